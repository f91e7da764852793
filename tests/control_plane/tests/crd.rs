//! A real API server takes the definition, refuses bad specs with the remedy, and fills in the defaults.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use dunnage_crds::crd_yaml;
use dunnage_harness::{ControlPlane, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::Request;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Value, json};

/// One entry of `crds/testdata`.
#[derive(Deserialize)]
struct Case {
    /// What the refusal must say; none when the spec is fine.
    says: Option<String>,
    #[serde(default = "local")]
    name: String,
    /// The spec before the change, when the case is a change.
    before: Option<Value>,
    spec: Value,
}

fn local() -> String {
    "local".to_owned()
}

fn cases(folder: &str) -> Result<Vec<(String, Case)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds/testdata").join(folder);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        let cases: Vec<Case> = serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
        let origin = |index| format!("{}[{index}]", file.file_name().unwrap_or_default().display());
        found.extend(cases.into_iter().enumerate().map(|(index, case)| (origin(index), case)));
    }
    Ok(found)
}

struct Server {
    client: Client,
    backends: Api<DynamicObject>,
    _control_plane: ControlPlane,
}

impl Server {
    async fn with_the_definition() -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client().await?;
        let definition: CustomResourceDefinition = serde_saphyr::from_str(&crd_yaml()?)?;
        Api::all(client.clone())
            .create(&PostParams::default(), &definition)
            .await
            .context("the definition")?;
        let kind = GroupVersionKind::gvk("dunnage.dev", "v1alpha1", "StorageBackend");
        let backends: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
        eventually("the API server serves the definition", Duration::from_secs(30), async || {
            backends.list(&ListParams::default()).await
        })
        .await;
        Ok(Self { client, backends, _control_plane: control_plane })
    }

    /// As `kubectl apply --server-side` does it: a field that the definition lacks is an error.
    async fn apply(&self, name: &str, spec: &Value) -> Result<DynamicObject, kube::Error> {
        let object = json!({
            "apiVersion": "dunnage.dev/v1alpha1", "kind": "StorageBackend",
            "metadata": {"name": name}, "spec": spec,
        });
        let params = PatchParams::apply("test").validation_strict();
        self.backends.patch(name, &params, &Patch::Apply(&object)).await
    }

    /// What the API server says to a case: the stored object, or the refusal.
    async fn judge(&self, case: &Case) -> Result<Result<DynamicObject, String>> {
        if let Some(before) = &case.before {
            self.apply(&case.name, before).await.context("the spec before the change")?;
        }
        let verdict = match self.apply(&case.name, &case.spec).await {
            Ok(stored) => Ok(stored),
            Err(kube::Error::Api(status)) => Err(status.message.clone()),
            Err(error) => return Err(error.into()),
        };
        match self.backends.delete(&case.name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => drop(other?),
        }
        Ok(verdict)
    }
}

#[tokio::test]
async fn bad_specs_are_refused_with_the_remedy_and_good_ones_are_taken() -> Result<()> {
    let server = Server::with_the_definition().await?;
    let mut wrong = Vec::new();
    let (refused, accepted) = (cases("refused")?, cases("accepted")?);
    for (origin, case) in refused.into_iter().chain(accepted) {
        let verdict = server.judge(&case).await.with_context(|| origin.clone())?;
        match (&case.says, verdict) {
            (Some(says), Err(message)) if message.contains(says.as_str()) => {}
            (None, Ok(_)) => {}
            (Some(says), Err(message)) => wrong.push(format!("{origin}: not {says:?} but {message}")),
            (Some(says), Ok(_)) => wrong.push(format!("{origin}: taken; should be refused with {says:?}")),
            (None, Err(message)) => wrong.push(format!("{origin}: refused: {message}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test]
async fn defaults_are_filled_in_and_columns_show_the_status() -> Result<()> {
    let server = Server::with_the_definition().await?;
    let spec =
        json!({"type": "LoopFile", "loopFile": {"path": "/srv/images"}, "classes": [{"name": "fast"}]});
    let stored = server.apply("images", &spec).await?;
    let filled = &stored.data["spec"];
    assert_eq!(filled["attach"], "Auto");
    assert_eq!(
        filled["loopFile"],
        json!({"path": "/srv/images", "fsType": "ext4", "requireMountPoint": false})
    );
    let class = json!({
        "name": "fast", "default": "IfNone", "reclaimPolicy": "Delete", "bindingMode": "WaitForFirstConsumer",
        "state": "Managed",
    });
    assert_eq!(filled["classes"][0], class);

    let status = json!({"status": {
        "observedGeneration": 1,
        "driverName": "images.csi.dunnage.dev",
        "nodes": {"desired": 2, "registered": 1, "updated": 2, "summary": "1/2",
                  "problems": [{"node": "b", "reason": "PoolMissing", "message": "mount the disk"}]},
        "capacity": {"total": "100Gi", "available": "80Gi"},
        "usage": {"volumes": 3, "attachments": 0, "orphans": 1},
        "versions": {"operator": "0.1.0", "drivers": ["0.1.0"]},
        "conditions": [{"type": "Ready", "status": "False", "reason": "NodesMissing", "message": "see node b",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }});
    let stored =
        server.backends.patch_status("images", &PatchParams::default(), &Patch::Merge(&status)).await?;
    assert_eq!(stored.data["status"], status["status"], "nothing of the status is pruned");

    let table = table(&server.client).await?;
    let titles: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|c| c["name"].as_str())
        .collect();
    let expected =
        ["Name", "TYPE", "READY", "NODES", "VOLUMES", "FREE", "AGE", "DRIVER", "VERSION", "MESSAGE"];
    assert_eq!(titles, expected);
    let mut cells = table["rows"][0]["cells"].clone();
    cells[6] = json!("any");
    let expected = json!([
        "images",
        "LoopFile",
        "False",
        "1/2",
        3,
        "80Gi",
        "any",
        "images.csi.dunnage.dev",
        "0.1.0",
        "see node b"
    ]);
    assert_eq!(cells, expected);
    Ok(())
}

/// The backends as `kubectl get -o wide` is told them.
async fn table(client: &Client) -> Result<Value> {
    let mut request =
        Request::new("/apis/dunnage.dev/v1alpha1/storagebackends").list(&ListParams::default())?;
    request.headers_mut().insert("accept", "application/json;as=Table;g=meta.k8s.io;v=v1".parse()?);
    Ok(client.request(request).await?)
}
