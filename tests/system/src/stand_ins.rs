//! Upstream's resizer and snapshotter beside a backend's controller (`tests/stand-ins`), for what Dunnage has no sidecars for.

use crate::cluster::kubectl;
use crate::storage::wait_ready;

/// The containers that stand in for sidecars of a backend.
const CONTAINERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../stand-ins/containers.yaml");
const ROLES: [&str; 2] = ["resizer", "snapshotter"];

/// The stand-ins of one backend.
pub struct StandIns(String);

impl StandIns {
    /// Adds them to the pods of the backend's controller.
    pub fn beside(backend: &str) -> Self {
        let controller = format!("dunnage-{backend}-controller");
        for role in ROLES {
            kubectl(&[
                "create",
                "clusterrolebinding",
                &binding(backend, role),
                &format!("--clusterrole=external-{role}-runner"),
                &format!("--serviceaccount=dunnage-system:{controller}"),
            ]);
        }
        let set = format!("statefulset/{controller}");
        let patch = ["--field-manager=stand-ins", "--type=strategic", "--patch-file", CONTAINERS];
        kubectl(&[&["patch", &set, "-n=dunnage-system"][..], &patch].concat());
        kubectl(&["rollout", "status", &set, "-n=dunnage-system", "--timeout=180s"]);
        wait_ready(backend);
        Self(backend.to_owned())
    }

    /// Removes what is left of them when the backend is gone.
    pub fn remove(self) {
        for role in ROLES {
            kubectl(&["delete", "clusterrolebinding", &binding(&self.0, role)]);
        }
    }
}

fn binding(backend: &str, role: &str) -> String {
    format!("stand-in-{backend}-{role}")
}
