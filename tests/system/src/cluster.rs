//! The embedded cluster as a test sees it: kubectl, commands on a node, power and plugs.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dunnage_harness::Cluster;
use serde_json::Value;

/// How long a wait may take before the test fails. Generous: a slow machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Holds the name of the cluster that `tests/system/run` started for these tests.
const NAME: &str = "DUNNAGE_TEST_CLUSTER";

fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let name = std::env::var(NAME).expect("the tests are started by tests/system/run");
        Cluster::attach(&name).expect("the cluster is up")
    })
}

/// Runs `meanwhile` while the API server is away.
pub fn without_api_server(meanwhile: impl FnOnce()) {
    cluster().stop_api_server().expect("the API server is ended");
    meanwhile();
    cluster().start_api_server().expect("the API server is started");
}

/// kubectl, with what it says when it fails.
pub fn try_kubectl(arguments: &[&str]) -> Result<String, String> {
    cluster().kubectl(arguments).map(|text| text.trim().to_owned()).map_err(|error| format!("{error:#}"))
}

/// kubectl that must succeed.
pub fn kubectl(arguments: &[&str]) -> String {
    try_kubectl(arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// Applies manifests; the API server's words when it refuses them.
pub fn try_apply(manifest: &str) -> Result<String, String> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(manifest.as_bytes()).expect("the manifest is written");
    try_kubectl(&["apply", "-f", &file.path().display().to_string()])
}

/// Applies manifests that must be accepted.
pub fn apply(manifest: &str) {
    if let Err(error) = try_apply(manifest) {
        panic!("{error}\n{manifest}");
    }
}

/// An object or list as JSON; `Null` when there is none.
pub fn get(arguments: &[&str]) -> Value {
    let mut all = vec!["get", "--ignore-not-found", "-o", "json"];
    all.extend(arguments);
    serde_json::from_str(&kubectl(&all)).unwrap_or(Value::Null)
}

/// The items of a list.
pub fn list(arguments: &[&str]) -> Vec<Value> {
    get(arguments)["items"].as_array().cloned().unwrap_or_default()
}

/// Waits until `check` gives a value; `what` it waits for is in the failure, with the check's last words.
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match check() {
            Ok(value) => return value,
            Err(error) if begun.elapsed() > PATIENCE => panic!("waited for {what}: {error}\n{}", events()),
            Err(_) => sleep(Duration::from_millis(250)),
        }
    }
}

/// Watches that something stays true for a while: for what must not happen.
pub fn stays(what: &str, duration: Duration, mut check: impl FnMut() -> Result<(), String>) {
    let begun = Instant::now();
    while begun.elapsed() < duration {
        if let Err(error) = check() {
            panic!("{what}: {error}");
        }
        sleep(Duration::from_millis(500));
    }
}

/// The last warnings of the cluster, for the message of a failed wait.
fn events() -> String {
    let warnings =
        try_kubectl(&["get", "events", "-A", "--field-selector=type=Warning", "--sort-by=.lastTimestamp"]);
    let warnings = warnings.unwrap_or_else(|error| error);
    let lines: Vec<&str> = warnings.lines().collect();
    let mut tail = String::from("last warnings:\n");
    for line in &lines[lines.len().saturating_sub(20)..] {
        let _ = writeln!(tail, "  {line}");
    }
    tail
}

/// A node of the cluster: `n1` or `n2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node(pub String);

impl Node {
    /// The other of the two.
    #[must_use]
    pub fn other(&self) -> Self {
        Self(if self.0 == "n1" { "n2" } else { "n1" }.to_owned())
    }

    /// Both nodes.
    pub fn both() -> [Self; 2] {
        [Self("n1".to_owned()), Self("n2".to_owned())]
    }

    /// A shell command on the node, in its namespaces.
    pub fn try_shell(&self, line: &str) -> Result<String, String> {
        let exec = self.handle().exec(&["sh", "-c", line]);
        exec.map(|text| text.trim().to_owned()).map_err(|error| format!("{error:#}"))
    }

    /// A shell command that must succeed.
    pub fn shell(&self, line: &str) -> String {
        self.try_shell(line).unwrap_or_else(|error| panic!("{}: {line}: {error}", self.0))
    }

    fn handle(&self) -> dunnage_harness::Node<'static> {
        cluster().node(if self.0 == "n1" { 1 } else { 2 })
    }

    /// Cuts the power: everything on the node dies at once.
    pub fn power_off(&self) {
        self.handle().kill().expect("the node is killed");
    }

    /// Boots the node and waits until it is Ready.
    pub fn power_on(&self) {
        self.handle().start().expect("the node is started and becomes Ready");
    }

    /// Kills kubelet; the node's supervisor starts it again.
    pub fn restart_kubelet(&self) {
        self.handle().restart_kubelet().expect("kubelet is killed");
    }

    /// Waits until the API server has noticed that the node is away.
    pub fn wait_away(&self) {
        eventually(&format!("node {} to be seen as away", self.0), || {
            let node = get(&["node", &self.0]);
            condition(&node, "Ready")
                .filter(|ready| ready["status"] != "True")
                .map(|_| ())
                .ok_or_else(|| node.to_string())
        });
    }

    /// Loop devices of volumes whose id has this part. The id is all to go by: of a file that was opened in a container
    /// which is gone, the kernel tells only the end of the path.
    pub fn loop_devices(&self, volume: &str) -> Vec<String> {
        let lines = self.shell("losetup -l -n -O NAME,BACK-FILE");
        lines.lines().filter(|line| line.contains(volume)).map(str::to_owned).collect()
    }
}

/// A condition of an object by its type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}
