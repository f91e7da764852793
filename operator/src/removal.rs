//! Whether a backend may go. Pure: anything of its driver that exists holds it.

use dunnage_crds::{Blocker, Protection};

/// How many names a blocker shows.
const EXAMPLES: usize = 10;

/// A PersistentVolume of the driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Volume {
    pub name: String,
    pub phase: String,
    /// `namespace/name` of its claim.
    pub claim: Option<String>,
    pub handle: String,
}

/// All that uses a driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    pub volumes: Vec<Volume>,
    pub attachments: Vec<String>,
    /// Claims that the driver's provisioner works on.
    pub claims: Vec<String>,
    /// Pods with volumes of the driver in their own spec.
    pub inline_pods: Vec<String>,
    pub snapshot_contents: Vec<String>,
}

impl Uses {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the pods whose inline volumes an agent still has, be they gone themselves.
    #[must_use]
    pub fn with_inline<'a>(mut self, pods: impl IntoIterator<Item = &'a String>) -> Self {
        self.inline_pods.extend(pods.into_iter().cloned());
        self.inline_pods.sort();
        self.inline_pods.dedup();
        self
    }
}

/// What holds the backend, with what to do about each.
pub fn blockers(uses: &Uses, protection: Protection) -> Vec<Blocker> {
    let mut blockers: Vec<Blocker> = Vec::new();
    let mut add = |kind: &str, names: &[String], message: &str| {
        if !names.is_empty() {
            blockers.push(Blocker {
                kind: kind.to_owned(),
                count: i32::try_from(names.len()).unwrap_or(i32::MAX),
                examples: names.iter().take(EXAMPLES).cloned().collect(),
                message: message.to_owned(),
            });
        }
    };
    let volumes: Vec<String> = uses.volumes.iter().map(describe).collect();
    add(
        "PersistentVolume",
        &volumes,
        "delete the claims that are no longer needed; a Released volume with reclaim policy Retain is deleted by \
         setting its policy to Delete",
    );
    add(
        "PersistentVolumeClaim",
        &uses.claims,
        "a volume is being made for these claims: wait until they are bound, or delete them",
    );
    add("VolumeAttachment", &uses.attachments, "delete the pods that use the volumes; an attachment follows");
    add("Pod", &uses.inline_pods, "delete these pods: they have volumes of the driver in their own spec");
    add("VolumeSnapshotContent", &uses.snapshot_contents, "delete the snapshots that are no longer needed");
    if protection == Protection::Always {
        blockers.push(Blocker {
            kind: "StorageBackend".to_owned(),
            count: 1,
            examples: Vec::new(),
            message: "spec.deletion.protection is Always: set it to InUse to allow the deletion".to_owned(),
        });
    }
    blockers
}

fn describe(volume: &Volume) -> String {
    match &volume.claim {
        Some(claim) => format!("{} ({}, claim {claim})", volume.name, volume.phase),
        None => format!("{} ({})", volume.name, volume.phase),
    }
}

/// The blockers in one line.
pub fn summary(blockers: &[Blocker]) -> String {
    let one = |blocker: &Blocker| {
        if blocker.examples.is_empty() {
            return blocker.message.clone();
        }
        let more = usize::try_from(blocker.count).unwrap_or(0).saturating_sub(3);
        let names = blocker.examples.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{} {}: {names}{more}", blocker.count, blocker.kind)
    };
    blockers.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str, phase: &str) -> Volume {
        Volume { name: name.into(), phase: phase.into(), claim: Some("shop/data".into()), handle: "h".into() }
    }

    #[test]
    fn anything_of_the_driver_holds_the_backend() {
        let names = || vec!["x".to_owned()];
        for (uses, kind) in [
            (Uses { volumes: vec![volume("pv", "Bound")], ..Uses::default() }, "PersistentVolume"),
            (Uses { volumes: vec![volume("pv", "Released")], ..Uses::default() }, "PersistentVolume"),
            (Uses { claims: names(), ..Uses::default() }, "PersistentVolumeClaim"),
            (Uses { attachments: names(), ..Uses::default() }, "VolumeAttachment"),
            (Uses { inline_pods: names(), ..Uses::default() }, "Pod"),
            (Uses { snapshot_contents: names(), ..Uses::default() }, "VolumeSnapshotContent"),
        ] {
            let blockers = blockers(&uses, Protection::InUse);
            assert_eq!(blockers.iter().map(|b| (b.kind.as_str(), b.count)).collect::<Vec<_>>(), [(kind, 1)]);
            assert!(!blockers[0].message.is_empty());
        }
    }

    #[test]
    fn a_pod_is_counted_once_whether_a_list_or_an_agent_or_both_know_of_it() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let listed = Uses { inline_pods: names(&["shop/b"]), ..Uses::default() };
        let told = names(&["shop/a", "shop/b"]);
        assert_eq!(listed.clone().with_inline(&told).inline_pods, told);
        assert_eq!(Uses::default().with_inline(&told).inline_pods, told);
        assert_eq!(listed.clone().with_inline([]), listed);
    }

    #[test]
    fn an_unused_backend_is_free_unless_protected() {
        assert_eq!(blockers(&Uses::default(), Protection::InUse), []);
        let held = blockers(&Uses::default(), Protection::Always);
        assert!(held.len() == 1 && held[0].message.contains("InUse"));
    }

    #[test]
    fn a_summary_names_the_first_and_counts_the_rest() {
        let volumes = (0..12).map(|n| volume(&format!("pv-{n:02}"), "Bound")).collect();
        let blockers = blockers(&Uses { volumes, ..Uses::default() }, Protection::InUse);
        assert_eq!((blockers[0].count, blockers[0].examples.len()), (12, 10));
        let text = summary(&blockers);
        assert!(text.starts_with("12 PersistentVolume: pv-00 (Bound, claim shop/data), "), "{text}");
        assert!(text.ends_with(" and 9 more"), "{text}");
    }
}
