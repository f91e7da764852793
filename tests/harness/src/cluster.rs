//! The embedded cluster: a control plane and real nodes, by the scripts of `tests/cluster`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, ensure};

/// A running cluster; ends with this value unless it is [attached](Cluster::attach).
pub struct Cluster {
    name: String,
    kubeconfig: PathBuf,
    owned: bool,
}

/// One of the cluster's nodes, `n1`, `n2` …
pub struct Node<'a> {
    cluster: &'a Cluster,
    name: String,
}

impl Cluster {
    /// Starts a cluster, which takes some seconds once its programs are built.
    pub fn up(name: &str, nodes: u32) -> anyhow::Result<Self> {
        let cluster = Self::named(name, true);
        cluster.run(&["up", "--nodes", &nodes.to_string()])?;
        cluster.located()
    }

    /// A cluster that somebody else has started and will end.
    pub fn attach(name: &str) -> anyhow::Result<Self> {
        Self::named(name, false).located()
    }

    fn named(name: &str, owned: bool) -> Self {
        Self { name: name.to_owned(), kubeconfig: PathBuf::new(), owned }
    }

    fn located(mut self) -> anyhow::Result<Self> {
        self.kubeconfig = PathBuf::from(self.run(&["kubeconfig"])?.trim());
        Ok(self)
    }

    /// Ends the cluster and removes everything it made on the machine.
    pub fn down(mut self) -> anyhow::Result<()> {
        self.owned = false;
        self.run(&["down"]).map(drop)
    }

    /// The admin's kubeconfig; its address is reachable from the cluster's network namespace only.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub fn node(&self, number: u32) -> Node<'_> {
        Node { cluster: self, name: format!("n{number}") }
    }

    /// Imports an image archive into every running node.
    pub fn load_image(&self, archive: &Path) -> anyhow::Result<()> {
        self.run(&["load", &archive.display().to_string()]).map(drop)
    }

    /// Ends the API server at once.
    pub fn stop_api_server(&self) -> anyhow::Result<()> {
        self.run(&["api", "stop"]).map(drop)
    }

    /// Starts the API server again and waits until it is ready.
    pub fn start_api_server(&self) -> anyhow::Result<()> {
        self.run(&["api", "start"]).map(drop)
    }

    /// kubectl with the admin's rights; gives what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.run(&[&["kubectl"], arguments].concat())
    }

    /// A program in the cluster's network namespace, with KUBECONFIG set and kubectl and helm in PATH.
    pub fn exec(&self, command: &[&str]) -> anyhow::Result<String> {
        self.run(&[&["exec"], command].concat())
    }

    fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let script = crate::workspace().join("tests/cluster/cluster");
        let Output { status, stdout, stderr } = Command::new(&script)
            .arg("--name")
            .arg(&self.name)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", script.display()))?;
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        ensure!(status.success(), "{} ({status}): {stdout}{stderr}", arguments.join(" "));
        Ok(stdout.into_owned())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.owned
            && let Err(error) = self.run(&["down"])
        {
            #[expect(clippy::print_stderr, reason = "a test's output is read by people")]
            {
                eprintln!("cluster {} may still be there: {error:#}", self.name);
            }
        }
    }
}

impl Node<'_> {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Power loss: every process of the node is gone at once.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.control("kill")
    }

    /// Boots a killed node again, with the disk it had.
    pub fn start(&self) -> anyhow::Result<()> {
        self.control("start")
    }

    /// Cuts the node's network.
    pub fn partition(&self) -> anyhow::Result<()> {
        self.control("partition")
    }

    pub fn heal(&self) -> anyhow::Result<()> {
        self.control("heal")
    }

    /// Kills kubelet; it is started again at once.
    pub fn restart_kubelet(&self) -> anyhow::Result<()> {
        self.control("restart-kubelet")
    }

    /// A program in the node's namespaces; gives what it printed.
    pub fn exec(&self, command: &[&str]) -> anyhow::Result<String> {
        self.cluster.run(&[&["node", &self.name, "exec"], command].concat())
    }

    fn control(&self, verb: &str) -> anyhow::Result<()> {
        self.cluster.run(&["node", &self.name, verb]).map(drop)
    }
}
