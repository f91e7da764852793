//! An API server and a driver in memory, for tests: one claim and its volume, answers by script or by chance, and a kill
//! of the process between any two steps.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use dunnage_cluster::events::Kind;
use dunnage_cluster::{Error, Key};
use dunnage_csi::v1;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tonic::{Code, Status};

use super::facts;
use super::outcome::{Class, of_growth};
use super::world::World;
use crate::secret::{self, Place};

pub(super) const DRIVER: &str = "fake.csi.dunnage.dev";
pub(super) const GI: i64 = 1 << 30;

/// How the driver answers one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    /// Done, and a node has to do its part.
    DoneForNode,
    Refused(Code),
    /// An error, and done all the same, at once or before the next call.
    DoneBehind(Code),
}

/// Where the process dies, in requests from now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kill {
    pub(super) after: u64,
    /// The request still has its effect.
    pub(super) effect: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) claim: Value,
    pub(super) volume: Value,
    pub(super) classes: BTreeMap<String, String>,
    pub(super) pod: Option<String>,
    /// The truth about the volume.
    pub(super) size: i64,
    pub(super) class: String,
    late: Option<i64>,
    /// The answers of the next calls; when there are none, all is done.
    pub(super) answers: VecDeque<Answer>,
    /// The largest size that was asked for and given.
    given: i64,
    pub(super) asked: Vec<i64>,
    pub(super) modified: Vec<HashMap<String, String>>,
    pub(super) told: Vec<&'static str>,
    pub(super) kill: Option<Kill>,
    /// Foreign writes that come right before our next patches.
    pub(super) races: u32,
    /// The API server is away when the next patch of the volume's object comes.
    pub(super) away: bool,
    /// The API server knows no record of attempts.
    pub(super) forgets_attempts: bool,
    version: u64,
}

#[derive(Clone)]
pub(super) struct Model {
    state: Arc<Mutex<State>>,
    pub(super) killed: Arc<Notify>,
}

impl Model {
    /// A claim of 1 GiB that has what it asks for.
    pub(super) fn new() -> Self {
        let claim = json!({
            "metadata": {"name": "claim", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
            "spec": {"volumeName": "pv", "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        });
        let volume = json!({
            "metadata": {"name": "pv", "uid": "v", "resourceVersion": "1"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "claimRef": {"namespace": "ns", "name": "claim", "uid": "u"},
                "csi": {"driver": DRIVER, "volumeHandle": "handle", "fsType": "xfs"},
            },
        });
        let classes = ["gold", "silver"].map(|name| (name.to_owned(), DRIVER.to_owned())).into();
        let state = State { claim, volume, classes, size: GI, given: GI, version: 1, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), killed: Arc::default() }
    }

    pub(super) fn key() -> Key {
        Key::namespaced("ns", "claim")
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("lock")
    }

    pub(super) fn claim_now(&self) -> PersistentVolumeClaim {
        serde_json::from_value(self.state().claim.clone()).expect("a claim")
    }

    pub(super) fn volume_now(&self) -> PersistentVolume {
        serde_json::from_value(self.state().volume.clone()).expect("a volume")
    }

    /// A request: whether it still has its effect; never returns from the one that the process dies in.
    async fn request<T>(&self, effect: impl FnOnce(&mut State) -> T) -> T {
        tokio::task::yield_now().await;
        let dies = {
            let mut state = self.state();
            match &mut state.kill {
                Some(kill) if kill.after == 0 => state.kill.take(),
                Some(kill) => {
                    kill.after -= 1;
                    None
                }
                None => None,
            }
        };
        let Some(kill) = dies else { return effect(&mut self.state()) };
        if kill.effect {
            effect(&mut self.state());
        }
        self.killed.notify_one();
        std::future::pending().await
    }
}

impl State {
    /// Somebody changes the claim.
    pub(super) fn edit_claim(&mut self, change: impl FnOnce(&mut Value)) {
        change(&mut self.claim);
        self.version += 1;
        self.claim["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    /// A node does its part, or finds that it cannot.
    pub(super) fn node(&mut self, able: bool) {
        let word = self.claim["status"]["allocatedResourceStatuses"]["storage"].clone();
        let recorded = word == facts::NODE_PENDING || word == "NodeResizeInProgress";
        let conditions = self.claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let told = conditions.iter().any(|condition| condition["type"] == facts::FILE_SYSTEM_PENDING);
        let waits = recorded || self.forgets_attempts && told;
        if !waits {
            return;
        }
        let capacity = self.volume["spec"]["capacity"]["storage"].clone();
        self.edit_claim(|claim| {
            if able {
                claim["status"]["capacity"]["storage"] = capacity;
                claim["status"]["allocatedResourceStatuses"] = Value::Null;
                claim["status"]["conditions"] = Value::Null;
            } else if recorded {
                claim["status"]["allocatedResourceStatuses"]["storage"] = json!("NodeResizeInfeasible");
            }
        });
    }

    fn race(&mut self) {
        if self.races > 0 {
            self.races -= 1;
            self.edit_claim(|claim| claim["metadata"]["labels"] = json!({"n": "x"}));
            self.version += 1;
            self.volume["metadata"]["resourceVersion"] = json!(self.version.to_string());
        }
    }

    fn patched_claim(&mut self, patch: &Value) -> Result<PersistentVolumeClaim, Error> {
        self.race();
        if patch["metadata"]["resourceVersion"] != self.claim["metadata"]["resourceVersion"] {
            return Err(conflict());
        }
        let mut claim = self.claim.clone();
        merge(&mut claim, patch);
        if self.forgets_attempts {
            let status = claim["status"].as_object_mut().expect("status");
            status.remove("allocatedResources");
            status.remove("allocatedResourceStatuses");
        }
        let typed: PersistentVolumeClaim = serde_json::from_value(claim.clone()).expect("a claim");
        let allocated = typed.status.as_ref().and_then(|status| status.allocated_resources.as_ref());
        let (allocated, actual) = (facts::storage(allocated), facts::actual(&typed).expect("capacity"));
        assert!(allocated.is_none_or(|size| size >= GI && actual >= GI), "{claim}");
        if claim != self.claim {
            self.edit_claim(|old| *old = claim);
        }
        Ok(serde_json::from_value(self.claim.clone()).expect("a claim"))
    }

    fn patched_volume(&mut self, patch: &Value) -> Result<PersistentVolume, Error> {
        if std::mem::take(&mut self.away) {
            return Err(Error::api("patch")(kube::Error::TlsRequired));
        }
        self.race();
        if patch["metadata"]["resourceVersion"] != self.volume["metadata"]["resourceVersion"] {
            return Err(conflict());
        }
        let capacity = |volume: &Value| {
            let typed: PersistentVolume = serde_json::from_value(volume.clone()).expect("a volume");
            facts::storage(typed.spec.expect("spec").capacity.as_ref()).expect("capacity")
        };
        let before = capacity(&self.volume);
        merge(&mut self.volume, patch);
        assert!(capacity(&self.volume) >= before, "the volume's capacity shrinks: {patch}");
        assert!(capacity(&self.volume) <= self.size, "the volume is not that large: {patch}");
        self.version += 1;
        self.volume["metadata"]["resourceVersion"] = json!(self.version.to_string());
        Ok(serde_json::from_value(self.volume.clone()).expect("a volume"))
    }

    fn grown(&mut self, request: &v1::ControllerExpandVolumeRequest) -> Result<bool, Status> {
        let size = request.capacity_range.as_ref().expect("a range").required_bytes;
        let claim: PersistentVolumeClaim = serde_json::from_value(self.claim.clone()).expect("a claim");
        // The CSI driver serves one call a volume at a time: what an earlier one began is done by now.
        self.given = self.given.max(self.late.take().unwrap_or(0));
        self.size = self.size.max(self.given);
        assert!(size > facts::actual(&claim).expect("capacity"), "asked for what the claim has: {claim:?}");
        assert!(size >= self.given, "asked for {size} where {} was given: {claim:?}", self.given);
        self.asked.push(size);
        match self.answers.pop_front().unwrap_or(Answer::Done) {
            // What is there already is not refused for good: the specification asks for the same answer again.
            Answer::Refused(code) if size > self.given || is_unfinished(code) => {
                Err(Status::new(code, "refused"))
            }
            Answer::DoneBehind(code) => {
                self.late = Some(size);
                Err(Status::new(code, "too slow"))
            }
            answer => {
                self.given = size;
                self.size = self.size.max(size);
                Ok(answer == Answer::DoneForNode)
            }
        }
    }

    fn changed(&mut self, request: &v1::ControllerModifyVolumeRequest) -> Result<(), Status> {
        self.modified.push(request.mutable_parameters.clone());
        let class = request.mutable_parameters["class"].clone();
        match self.answers.pop_front().unwrap_or(Answer::Done) {
            Answer::Refused(code) => Err(Status::new(code, "refused")),
            Answer::DoneBehind(code) => {
                self.class = class;
                Err(Status::new(code, "too slow"))
            }
            _ => {
                self.class = class;
                Ok(())
            }
        }
    }
}

fn is_unfinished(code: Code) -> bool {
    of_growth(&Status::new(code, "")) == Class::Unfinished
}

fn conflict() -> Error {
    let refusal = kube::core::Status::failure("changed", "Conflict").with_code(409).boxed();
    Error::api("patch")(kube::Error::Api(refusal))
}

/// A strategic merge patch, as far as claims go: conditions are merged by their type.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let fields = target.as_object_mut().expect("made above");
    for (key, change) in changes {
        match change {
            Value::Null => drop(fields.remove(key)),
            Value::Array(changes) if key == "conditions" => {
                let mut all = fields.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
                for change in changes {
                    all.retain(|found| found["type"] != change["type"]);
                    if change.get("$patch").is_none() {
                        all.push(change.clone());
                    }
                }
                fields.insert(key.clone(), Value::Array(all));
            }
            change => merge(fields.entry(key.clone()).or_insert(Value::Null), change),
        }
    }
}

impl World for Model {
    async fn claim(&self, _: &Key) -> Result<Option<PersistentVolumeClaim>, Error> {
        self.request(|state| Ok(serde_json::from_value(state.claim.clone()).expect("a claim"))).await
    }

    async fn volume(&self, _: &str) -> Result<Option<PersistentVolume>, Error> {
        self.request(|state| Ok(serde_json::from_value(state.volume.clone()).expect("a volume"))).await
    }

    async fn patch_claim(&self, _: &Key, patch: Value) -> Result<PersistentVolumeClaim, Error> {
        self.request(|state| state.patched_claim(&patch)).await
    }

    async fn patch_volume(&self, _: &str, patch: Value) -> Result<PersistentVolume, Error> {
        self.request(|state| state.patched_volume(&patch)).await
    }

    async fn user(&self, _: &Key) -> Result<Option<String>, Error> {
        self.request(|state| Ok(state.pod.clone())).await
    }

    fn class(&self, name: &str) -> Option<Arc<VolumeAttributesClass>> {
        let driver = self.state().classes.get(name).cloned()?;
        let class = json!({
            "metadata": {"name": name}, "driverName": driver, "parameters": {"class": name},
        });
        Some(Arc::new(serde_json::from_value(class).expect("a class")))
    }

    async fn secret(&self, _: Option<Place<'_>>) -> Result<HashMap<String, String>, secret::Error> {
        Ok(HashMap::new())
    }

    async fn expand(
        &self,
        request: v1::ControllerExpandVolumeRequest,
    ) -> Result<v1::ControllerExpandVolumeResponse, Status> {
        let size = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        let answered = self.request(|state| state.grown(&request)).await;
        answered.map(|node_expansion_required| v1::ControllerExpandVolumeResponse {
            capacity_bytes: size,
            node_expansion_required,
        })
    }

    async fn modify(
        &self,
        request: v1::ControllerModifyVolumeRequest,
    ) -> Result<v1::ControllerModifyVolumeResponse, Status> {
        self.request(|state| state.changed(&request)).await?;
        Ok(v1::ControllerModifyVolumeResponse {})
    }

    fn tell(&self, _: &PersistentVolumeClaim, _: Kind, reason: &'static str, _: String) {
        self.state().told.push(reason);
    }
}
