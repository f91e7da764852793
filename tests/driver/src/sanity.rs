//! csi-sanity, built once from its Go module, against a driver's sockets.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::text;

/// What is served, so what may be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Attach,
    NoAttach,
}

/// How it ended.
#[derive(Debug)]
pub struct Outcome {
    pub passed: usize,
    pub failed: Vec<String>,
    pub skipped: Vec<String>,
    pub output: String,
    /// Whether something of a volume could be modified.
    modifies: bool,
}

/// Where a driver is to be found, and where it may mount.
#[derive(Debug)]
pub struct Sockets<'a> {
    pub node: &'a str,
    pub controller: &'a str,
    /// Attributes to modify volumes with; none where nothing of them can be modified.
    pub attributes: &'a [(&'a str, &'a str)],
}

/// What no engine of this driver serves: its tests may be skipped, and nothing else may be.
const NOT_SERVED: [&str; 2] = [
    // No limit on volumes a node; read-only attachment is not advertised.
    "max attach limit",
    "already published but is incompatible",
];

/// Skipped only where nothing of a volume can be modified.
const NEEDS_MODIFY: [&str; 2] = ["ModifyVolume", "volume attribute class"];

/// Skipped only where nothing attaches.
const NEEDS_ATTACH: [&str; 2] = ["ControllerPublishVolume", "ControllerUnpublishVolume"];

/// This one ends at the first capability that csi-sanity 5.4.0 does not know, the alpha one of CSI 1.12, which is told last.
const TOO_NEW_FOR_IT: (&str, &str) =
    (" ControllerGetCapabilities should return appropriate capabilities", "Unknown capability: GET_SNAPSHOT");

impl Outcome {
    /// Skipped tests of what is served.
    pub fn wrongly_skipped(&self, expected: Expected) -> Vec<&String> {
        let allowed = |name: &&String| {
            let any = |words: &[&str]| words.iter().any(|word| name.contains(word));
            any(&NOT_SERVED)
                || !self.modifies && any(&NEEDS_MODIFY)
                || expected == Expected::NoAttach && (any(&NEEDS_ATTACH) || name.contains("volume lifecycle"))
        };
        self.skipped.iter().filter(|name| !allowed(name)).collect()
    }
}

/// Builds csi-sanity if it is not there yet, and tells where it is.
pub fn program() -> PathBuf {
    let built = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/sanity/build")).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    PathBuf::from(String::from_utf8(built.stdout).unwrap().trim())
}

/// Runs it to its end with volumes that have a file system. Blocks.
pub fn run(sockets: &Sockets<'_>, kubelet_dir: &Path, scratch: &Path, volume_bytes: u64) -> Outcome {
    run_as("mount", sockets, kubelet_dir, scratch, volume_bytes)
}

/// Runs it to its end with block volumes. Blocks.
pub fn run_block(sockets: &Sockets<'_>, kubelet_dir: &Path, scratch: &Path, volume_bytes: u64) -> Outcome {
    run_as("block", sockets, kubelet_dir, scratch, volume_bytes)
}

fn run_as(
    access_type: &str,
    sockets: &Sockets<'_>,
    kubelet_dir: &Path,
    scratch: &Path,
    volume_bytes: u64,
) -> Outcome {
    /// What it says when it missed that its connection was made, because that went too fast for it.
    const MISSED: &str = "Connection timed out";
    let mut outcome = run_once(access_type, sockets, kubelet_dir, scratch, volume_bytes);
    for _ in 0..2 {
        if !outcome.output.contains(MISSED) {
            break;
        }
        outcome = run_once(access_type, sockets, kubelet_dir, scratch, volume_bytes);
    }
    outcome
}

fn run_once(
    access_type: &str,
    sockets: &Sockets<'_>,
    kubelet_dir: &Path,
    scratch: &Path,
    volume_bytes: u64,
) -> Outcome {
    let look = scratch.join("look");
    // Its own look at paths is switched off by custom mount paths; this is how it is told what is there.
    std::fs::write(&look, LOOK).unwrap();
    crate::must("chmod", &["+x", text(&look)]);
    let (report, attributes) = (scratch.join("sanity.xml"), scratch.join("attributes.yaml"));
    let lines = sockets.attributes.iter().map(|(key, value)| format!("{key}: {value}\n"));
    std::fs::write(&attributes, lines.collect::<String>()).unwrap();
    let output = Command::new(program())
        .arg(format!("--csi.endpoint={}", sockets.node))
        .arg(format!("--csi.controllerendpoint={}", sockets.controller))
        .arg(format!("--csi.mountdir={}", kubelet_dir.join("pods/sanity").display()))
        .arg(format!("--csi.stagingdir={}", kubelet_dir.join("plugins/sanity").display()))
        .arg(format!("--csi.checkpathcmd={}", look.display()))
        .arg(format!("--csi.testvolumesize={volume_bytes}"))
        .arg(format!("--csi.testvolumeaccesstype={access_type}"))
        .arg(format!("--csi.testvolumeexpandsize={}", 2 * volume_bytes))
        .arg(format!("--csi.testvolumemutableparameters={}", attributes.display()))
        .arg(format!("--ginkgo.junit-report={}", report.display()))
        .arg("--ginkgo.no-color")
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let xml = std::fs::read_to_string(&report).unwrap_or_else(|error| panic!("no report: {error}\n{words}"));
    let with = |status: &str| names(&xml, status, |case| !is_too_new(case));
    Outcome {
        passed: with("passed").len(),
        failed: with("failed").into_iter().chain(with("panicked")).collect(),
        // Pending ones are switched off by csi-sanity itself.
        skipped: with("skipped"),
        output: words.into_owned(),
        modifies: !sockets.attributes.is_empty(),
    }
}

const LOOK: &str = "#!/bin/sh
if [ -d \"$1\" ]; then echo directory; elif [ -f \"$1\" ]; then echo file; elif [ -e \"$1\" ]; then echo other
else echo not_found; fi
";

fn is_too_new(case: &str) -> bool {
    let (name, reason) = TOO_NEW_FOR_IT;
    case.split_once('>').is_some_and(|(head, body)| head.contains(name) && body.contains(reason))
}

/// Names of the report's test cases of one status that count.
fn names(xml: &str, status: &str, counts: impl Fn(&str) -> bool) -> Vec<String> {
    xml.split("<testcase ")
        .skip(1)
        .filter(|case| counts(case))
        .filter_map(|case| case.split_once('>').map(|(head, _)| head))
        .filter(|head| head.contains(&format!("status=\"{status}\"")))
        .filter_map(|head| head.split_once("name=\"")?.1.split_once('"').map(|(name, _)| name.to_owned()))
        .collect()
}
