//! Backends, namespaces and claims of a test, taken away again when the test ends well.

use serde_json::Value;

use crate::cluster::{Node, apply, condition, eventually, get, kubectl, list, try_kubectl};

/// A namespace of one test.
pub struct Namespace(pub String);

impl Namespace {
    /// Makes it.
    pub fn new(name: &str) -> Self {
        apply(&format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n"));
        eventually("the namespace's default account", || {
            try_kubectl(&["get", "serviceaccount", "default", "-n", name])
        });
        Self(name.to_owned())
    }

    /// Deletes it with all that is in it, and waits until its volumes are gone too.
    pub fn remove(self) {
        kubectl(&["delete", "namespace", &self.0, "--timeout=180s"]);
        eventually("the namespace's volumes to be gone", || {
            let left: Vec<Value> = list(&["pv"])
                .into_iter()
                .filter(|volume| volume["spec"]["claimRef"]["namespace"] == self.0.as_str())
                .collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
    }

    /// The events of an object, newest last, as `reason: message` lines.
    pub fn events(&self, object: &str) -> Vec<String> {
        self.event_objects(object)
            .iter()
            .map(|event| format!("{}: {}", word(&event["reason"]), word(&event["message"])))
            .collect()
    }

    /// How often events of an object whose message has `part` were told, repetitions in one event included.
    pub fn times_told(&self, object: &str, part: &str) -> u64 {
        self.event_objects(object)
            .iter()
            .filter(|event| word(&event["message"]).contains(part))
            .map(|event| event["count"].as_u64().unwrap_or(1))
            .sum()
    }

    fn event_objects(&self, object: &str) -> Vec<Value> {
        let selector = format!("--field-selector=involvedObject.name={object}");
        list(&["events", "-n", &self.0, &selector])
    }

    /// Waits for an event of `object` that has all these words.
    pub fn wait_event(&self, object: &str, words: &[&str]) -> String {
        eventually(&format!("an event of {object} with {words:?}"), || {
            let events = self.events(object);
            let found = events.iter().find(|event| words.iter().all(|word| event.contains(word)));
            found.cloned().ok_or_else(|| events.join("\n"))
        })
    }

    /// Waits until the pod is Ready and gives its node.
    pub fn wait_pod(&self, name: &str) -> Node {
        eventually(&format!("pod {name} to be Ready"), || {
            let pod = get(&["pod", name, "-n", &self.0]);
            let ready = condition(&pod, "Ready").is_some_and(|ready| ready["status"] == "True");
            let node = pod["spec"]["nodeName"]
                .as_str()
                .filter(|_| ready && pod["metadata"]["deletionTimestamp"].is_null());
            node.map(|node| Node(node.to_owned())).ok_or_else(|| pod["status"].to_string())
        })
    }

    /// A shell line in a pod's container.
    pub fn exec(&self, pod: &str, line: &str) -> Result<String, String> {
        try_kubectl(&["exec", "-n", &self.0, pod, "--", "sh", "-c", line])
    }

    /// Waits until the claim is bound; gives its volume's PV.
    pub fn wait_bound(&self, claim: &str) -> Value {
        let volume = eventually(&format!("claim {claim} to be bound"), || {
            let object = get(&["pvc", claim, "-n", &self.0]);
            let bound = object["status"]["phase"] == "Bound";
            object["spec"]["volumeName"]
                .as_str()
                .filter(|_| bound)
                .map(str::to_owned)
                .ok_or_else(|| self.events(claim).join("\n"))
        });
        get(&["pv", &volume])
    }
}

/// Waits until the backend's condition has this status; gives reason and message.
pub fn wait_condition(backend: &str, kind: &str, status: &str) -> String {
    eventually(&format!("backend {backend} to have {kind}={status}"), || {
        let object = get(&["storagebackend", backend]);
        let found = condition(&object, kind).filter(|condition| condition["status"] == status);
        found
            .map(|condition| format!("{}: {}", word(&condition["reason"]), word(&condition["message"])))
            .ok_or_else(|| object["status"].to_string())
    })
}

/// Waits until the backend is Ready for the spec that it has now.
pub fn wait_ready(backend: &str) {
    eventually(&format!("backend {backend} to be Ready"), || {
        let object = get(&["storagebackend", backend]);
        let ready = condition(&object, "Ready").is_some_and(|ready| ready["status"] == "True");
        let current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
        if ready && current { Ok(()) } else { Err(object["status"].to_string()) }
    });
}

/// Deletes an unused backend and waits until it is gone. The quick refusal goes by the status, which may still show what
/// has just gone.
pub fn remove_backend(backend: &str) {
    eventually(&format!("backend {backend} to be deleted"), || {
        match try_kubectl(&["delete", "storagebackend", backend, "--ignore-not-found", "--timeout=180s"]) {
            Err(refused) if refused.contains("is in use") => Err(refused),
            deleted => Ok(deleted.unwrap_or_else(|error| panic!("{error}"))),
        }
    });
}

/// The directory of a volume in its pool, by the volume's PV.
pub fn volume_directory(pool: &str, volume: &Value) -> String {
    format!("{pool}/volumes/{}", word(&volume["spec"]["csi"]["volumeHandle"]))
}

/// A JSON string, or nothing.
pub fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
