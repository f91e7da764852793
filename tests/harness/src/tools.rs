//! The programs under test conditions (etcd, kube-apiserver …), built from pinned Go modules when they are missing.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// The folder with the named programs; builds those that are missing, which takes minutes the first time.
pub(crate) fn directory(programs: &[&str]) -> anyhow::Result<PathBuf> {
    let script = crate::workspace().join("tests/tools/build");
    let output = Command::new(&script)
        .args(programs)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", script.display()))?;
    ensure!(output.status.success(), "{} failed: {}", script.display(), output.status);
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
