//! What each engine can do on a node, and what is missing for more: pure.

use dunnage_host::btrfs::quota::{Counts, Quotas};
use dunnage_host::command::package;
use dunnage_host::facts::{NodeFacts, PathFacts};
use serde::Serialize;

use crate::remedy::{Remedy, project_quota};

/// The programs that the engines run.
pub const PROGRAMS: [&str; 10] = [
    "mkfs.ext4",
    "e2fsck",
    "resize2fs",
    "tune2fs",
    "mkfs.xfs",
    "xfs_growfs",
    "xfs_db",
    "mkfs.btrfs",
    "btrfs",
    "btrfstune",
];

/// What each file system of an image needs, for its making, its growth, and the new UUID of a copy.
const FILE_SYSTEMS: [(&str, &[&str]); 3] = [
    ("ext4", &["mkfs.ext4", "e2fsck", "resize2fs", "tune2fs"]),
    ("xfs", &["mkfs.xfs", "xfs_growfs", "xfs_db"]),
    ("btrfs", &["mkfs.btrfs", "btrfs", "btrfstune"]),
];

/// The oldest kernel that has all system calls in use.
const LEAST_KERNEL: (u32, u32) = (5, 8);

/// How it stands with one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    Works,
    /// Works, but for what the text says.
    Limited,
    Missing,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    pub subject: String,
    pub verdict: Verdict,
    /// What was found; with another verdict than works, also what to do.
    pub text: String,
}

impl Line {
    fn new(subject: impl Into<String>, verdict: Verdict, text: impl Into<String>) -> Self {
        Self { subject: subject.into(), verdict, text: text.into() }
    }
}

/// The report: the node first, then the path, then the engines.
pub fn report(node: &NodeFacts, path: &Result<PathFacts, String>) -> Vec<Line> {
    let mut lines = vec![kernel(node), loops(node)];
    lines.extend(node.programs.iter().map(|(program, found)| match found {
        Some(at) => Line::new(*program, Verdict::Works, at.display().to_string()),
        None => Line::new(*program, Verdict::Missing, install(program)),
    }));
    match path {
        Ok(facts) => lines.extend(of_path(facts)),
        Err(error) => {
            lines.push(Line::new("path", Verdict::Missing, format!("{error}: make it a readable directory")));
        }
    }
    let engines = [directory(node, path), loop_file(node, path), btrfs(node, path)];
    lines.extend(engines);
    lines
}

fn kernel(node: &NodeFacts) -> Line {
    let (major, minor) = LEAST_KERNEL;
    if version(&node.kernel) >= LEAST_KERNEL {
        return Line::new("kernel", Verdict::Works, &node.kernel);
    }
    Line::new(
        "kernel",
        Verdict::Missing,
        format!("{}: Linux {major}.{minor} or later is needed", node.kernel),
    )
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn loops(node: &NodeFacts) -> Line {
    if node.loop_devices {
        return Line::new("loop devices", Verdict::Works, "/dev/loop-control");
    }
    Line::new("loop devices", Verdict::Missing, "no /dev/loop-control: modprobe loop")
}

fn install(program: &str) -> String {
    match package(program) {
        Some(package) => format!("not found: install the package {package}"),
        None => "not found".to_owned(),
    }
}

fn of_path(facts: &PathFacts) -> Vec<Line> {
    let gib = |bytes: u64| bytes >> 30;
    let space = format!(
        "{}, {} GiB free of {} GiB{}",
        facts.filesystem,
        gib(facts.space.available),
        gib(facts.space.total),
        if facts.is_mount_point { ", a file system of its own" } else { "" }
    );
    let path = if facts.read_only {
        Line::new("path", Verdict::Missing, format!("{space}, mounted read-only: mount it writable"))
    } else {
        Line::new("path", Verdict::Works, space)
    };
    let quota = match (facts.project_quota, facts.filesystem.as_str()) {
        (true, _) => Line::new("project quota", Verdict::Works, "kept to"),
        (false, filesystem) => {
            let Remedy { problem, remedy } = project_quota(filesystem);
            Line::new("project quota", Verdict::Limited, format!("the {filesystem} {problem}: {remedy}"))
        }
    };
    let reflink = if facts.reflink {
        Line::new("reflink", Verdict::Works, "copies share blocks")
    } else {
        Line::new("reflink", Verdict::Limited, "copies take time and space: xfs and btrfs can share blocks")
    };
    vec![path, quota, reflink]
}

/// What keeps every engine from working.
fn obstacle(node: &NodeFacts, path: &Result<PathFacts, String>) -> Option<&'static str> {
    let usable = path.as_ref().is_ok_and(|facts| !facts.read_only);
    match (version(&node.kernel) >= LEAST_KERNEL, usable) {
        (false, _) => Some("the kernel is too old"),
        (true, false) => Some("the path cannot be used"),
        (true, true) => None,
    }
}

fn directory(node: &NodeFacts, path: &Result<PathFacts, String>) -> Line {
    let subject = "type Directory";
    match (obstacle(node, path), path) {
        (Some(obstacle), _) => Line::new(subject, Verdict::Missing, obstacle),
        (None, Ok(facts)) if facts.project_quota => Line::new(subject, Verdict::Works, "with hard limits"),
        (None, _) => Line::new(subject, Verdict::Limited, "sizes are accounted for, not enforced"),
    }
}

fn loop_file(node: &NodeFacts, path: &Result<PathFacts, String>) -> Line {
    let subject = "type LoopFile";
    if let Some(obstacle) = obstacle(node, path) {
        return Line::new(subject, Verdict::Missing, obstacle);
    }
    if !node.loop_devices {
        return Line::new(subject, Verdict::Missing, "there are no loop devices");
    }
    let has = |programs: &[&str]| {
        programs.iter().all(|wanted| node.programs.iter().any(|(name, at)| name == wanted && at.is_some()))
    };
    let (good, bad): (Vec<_>, Vec<_>) = FILE_SYSTEMS.iter().partition(|(_, programs)| has(programs));
    let names = good.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let remedies: Vec<String> = bad
        .iter()
        .filter_map(|(name, programs)| Some(format!("for {name} install {}", package(programs[0])?)))
        .collect();
    match (good.is_empty(), bad.is_empty()) {
        (true, _) => Line::new(subject, Verdict::Missing, remedies.join(", ")),
        (false, true) => Line::new(subject, Verdict::Works, format!("with {names}")),
        (false, false) => {
            let text = format!("with {names}; {}", remedies.join(", "));
            Line::new(subject, Verdict::Limited, text)
        }
    }
}

fn btrfs(node: &NodeFacts, path: &Result<PathFacts, String>) -> Line {
    let subject = "type Btrfs";
    let facts = match (obstacle(node, path), path) {
        (None, Ok(facts)) => facts,
        (obstacle, _) => return Line::new(subject, Verdict::Missing, obstacle.unwrap_or_default()),
    };
    if facts.filesystem != "btrfs" {
        return Line::new(
            subject,
            Verdict::Missing,
            "the path is not on btrfs: mount a btrfs file system there",
        );
    }
    match facts.btrfs_quotas {
        Some(Quotas::Full(Counts::Right)) => Line::new(
            subject,
            Verdict::Works,
            "with full quotas; subvolumes that pods make in their volumes are not counted",
        ),
        Some(Quotas::Simple) => Line::new(
            subject,
            Verdict::Works,
            "with simple quotas; what snapshots keep counts for the volume that wrote it",
        ),
        Some(Quotas::Off) => Line::new(
            subject,
            Verdict::Missing,
            "quotas are off: btrfs quota enable PATH (or, with Linux and btrfs-progs 6.7 or later, enable --simple)",
        ),
        Some(Quotas::Full(Counts::Wrong)) => {
            Line::new(subject, Verdict::Missing, "quotas are inconsistent: btrfs quota rescan -w PATH")
        }
        Some(Quotas::Full(Counts::Running)) => Line::new(
            subject,
            Verdict::Missing,
            "quotas are being counted: wait, as btrfs quota rescan -w PATH does",
        ),
        None => Line::new(subject, Verdict::Limited, "its quotas cannot be seen from here: look as root"),
    }
}

#[cfg(test)]
mod tests {
    use Verdict::{Limited, Missing, Works};

    use super::*;

    fn node() -> NodeFacts {
        NodeFacts {
            kernel: "6.12.3-cloud".into(),
            loop_devices: true,
            filesystems: vec!["ext4".into()],
            programs: PROGRAMS.map(|program| (program, Some("/usr/sbin/x".into()))).into(),
        }
    }

    fn path(filesystem: &str, project_quota: bool) -> PathFacts {
        PathFacts {
            filesystem: filesystem.into(),
            is_mount_point: false,
            read_only: false,
            space: dunnage_host::space::Space { total: 8 << 30, available: 4 << 30, ..Default::default() },
            project_quota,
            btrfs_quotas: None,
            reflink: filesystem == "xfs",
        }
    }

    /// The verdict and text of a subject.
    fn of(node: &NodeFacts, path: Result<PathFacts, String>, subject: &str) -> (Verdict, String) {
        let line = report(node, &path).into_iter().find(|line| line.subject == subject).unwrap();
        (line.verdict, line.text)
    }

    #[test]
    fn each_lack_shows_where_it_hurts_and_nowhere_else() {
        let without = |name: &str| {
            let mut node = node();
            node.programs.iter_mut().filter(|(program, _)| *program == name).for_each(|(_, at)| *at = None);
            node
        };
        let old = NodeFacts { kernel: "5.4.0".into(), ..node() };
        let no_loops = NodeFacts { loop_devices: false, ..node() };
        let read_only = PathFacts { read_only: true, ..path("ext4", true) };
        for (node, path, directory, loop_file) in [
            (node(), Ok(path("ext4", true)), Works, Works),
            (node(), Ok(path("ext4", false)), Limited, Works),
            (node(), Ok(read_only), Missing, Missing),
            (node(), Err("no such directory".to_owned()), Missing, Missing),
            (old, Ok(path("xfs", true)), Missing, Missing),
            (no_loops, Ok(path("xfs", true)), Works, Missing),
            (without("mkfs.xfs"), Ok(path("xfs", true)), Works, Limited),
            (without("e2fsck"), Ok(path("xfs", true)), Works, Limited),
            (without("xfs_db"), Ok(path("xfs", true)), Works, Limited),
            (without("btrfstune"), Ok(path("xfs", true)), Works, Limited),
        ] {
            assert_eq!(of(&node, path.clone(), "type Directory").0, directory, "{node:?} {path:?}");
            assert_eq!(of(&node, path.clone(), "type LoopFile").0, loop_file, "{node:?} {path:?}");
        }
    }

    #[test]
    fn every_program_has_a_package_and_every_file_system_its_programs() {
        assert!(PROGRAMS.iter().all(|program| package(program).is_some()));
        let needed: Vec<&str> =
            FILE_SYSTEMS.iter().flat_map(|(_, programs)| programs.iter().copied()).collect();
        assert_eq!(needed, PROGRAMS);
    }

    #[test]
    fn what_is_missing_comes_with_the_remedy() {
        let mut bare = node();
        for (program, at) in &mut bare.programs {
            if ["mkfs.xfs", "btrfstune"].contains(program) {
                *at = None;
            }
        }
        assert_eq!(
            of(&bare, Ok(path("ext4", false)), "mkfs.xfs").1,
            "not found: install the package xfsprogs"
        );
        assert_eq!(
            of(&bare, Ok(path("ext4", false)), "type LoopFile"),
            (Limited, "with ext4; for xfs install xfsprogs, for btrfs install btrfs-progs".to_owned())
        );
        bare.programs.iter_mut().for_each(|(_, at)| *at = None);
        assert_eq!(
            of(&bare, Ok(path("ext4", false)), "type LoopFile"),
            (
                Missing,
                "for ext4 install e2fsprogs, for xfs install xfsprogs, for btrfs install btrfs-progs"
                    .to_owned()
            )
        );
        assert!(of(&bare, Ok(path("ext4", false)), "project quota").1.contains("tune2fs"));
        assert!(of(&bare, Ok(path("btrfs", false)), "project quota").1.contains("ext4 or xfs"));
    }

    #[test]
    fn btrfs_is_told_by_its_quotas() {
        for (filesystem, quotas, verdict, words) in [
            ("ext4", None, Missing, "not on btrfs"),
            ("btrfs", Some(Quotas::Off), Missing, "btrfs quota enable PATH"),
            ("btrfs", Some(Quotas::Full(Counts::Right)), Works, "full quotas"),
            ("btrfs", Some(Quotas::Full(Counts::Wrong)), Missing, "btrfs quota rescan -w PATH"),
            ("btrfs", Some(Quotas::Full(Counts::Running)), Missing, "wait"),
            ("btrfs", Some(Quotas::Simple), Works, "simple quotas"),
            ("btrfs", None, Limited, "root"),
        ] {
            let facts = PathFacts { btrfs_quotas: quotas, ..path(filesystem, false) };
            let (told, text) = of(&node(), Ok(facts), "type Btrfs");
            assert_eq!(told, verdict, "{filesystem} {quotas:?}");
            assert!(text.contains(words), "{text}");
        }
        let old = NodeFacts { kernel: "5.4.0".into(), ..node() };
        assert_eq!(of(&old, Ok(path("btrfs", false)), "type Btrfs").0, Missing);
    }

    #[test]
    fn kernels_are_compared_by_number() {
        for (release, expected) in
            [("6.18.44-fc", (6, 18)), ("5.10", (5, 10)), ("5.4.0-99-generic", (5, 4)), ("", (0, 0))]
        {
            assert_eq!(version(release), expected);
        }
    }
}
