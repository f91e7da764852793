//! Upstream's snapshotter beside a backend's controller (`tests/stand-ins`), until the operator deploys its own.

use crate::cluster::kubectl;
use crate::storage::wait_ready;

/// The container that is added to the backend's own.
const CONTAINERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../stand-ins/containers.yaml");

/// The stand-ins of one backend.
pub struct StandIns(String);

impl StandIns {
    /// Adds them to the pods of the backend's controller.
    pub fn beside(backend: &str) -> Self {
        let controller = format!("dunnage-{backend}-controller");
        kubectl(&[
            "create",
            "clusterrolebinding",
            &binding(backend),
            "--clusterrole=external-snapshotter-runner",
            &format!("--serviceaccount=dunnage-system:{controller}"),
        ]);
        let set = format!("statefulset/{controller}");
        let patch = ["--field-manager=stand-ins", "--type=strategic", "--patch-file", CONTAINERS];
        kubectl(&[&["patch", &set, "-n=dunnage-system"][..], &patch].concat());
        kubectl(&["rollout", "status", &set, "-n=dunnage-system", "--timeout=180s"]);
        wait_ready(backend);
        Self(backend.to_owned())
    }

    /// Removes what is left of them when the backend is gone.
    pub fn remove(self) {
        kubectl(&["delete", "clusterrolebinding", &binding(&self.0)]);
    }
}

fn binding(backend: &str) -> String {
    format!("stand-in-{backend}")
}
