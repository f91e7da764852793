//! What a publish has to do, from what is mounted: pure.

use dunnage_host::mountinfo::Mount;

use crate::capability::Access;

/// What is there.
pub(super) struct Seen<'a> {
    /// What is mounted at the target.
    pub(super) target: Option<Mount>,
    /// All mounts of the volume.
    pub(super) mounts: &'a [Mount],
    pub(super) access: Access,
    pub(super) read_only: bool,
    /// The volume is a device, which is read-only for all of its pods or for none.
    pub(super) block: bool,
    /// Whether a mount of the volume is another pod's.
    pub(super) elsewhere: &'a dyn Fn(&Mount) -> bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Bind,
    /// It is mounted otherwise than it is asked for now, and the flags of a mount can be changed where it was made alone.
    Again,
    Finished,
    Refuse(String),
}

/// What to do.
pub(super) fn next(seen: &Seen<'_>) -> Step {
    if seen.access == Access::Single
        && let Some(other) = seen.mounts.iter().find(|mount| (seen.elsewhere)(mount))
    {
        return Step::Refuse(format!(
            "it is for one pod alone and is published at {} already",
            other.mount_point.display()
        ));
    }
    // Kubelet's own mount of a pod's device is writable, whatever the pod's is. Both paths end with the pod's uid.
    let is_read_only = |of: &Mount| {
        let same_pod = |mount: &&Mount| mount.mount_point.file_name() == of.mount_point.file_name();
        seen.mounts.iter().filter(same_pod).any(|mount| mount.read_only)
    };
    let differs = |mount: &&Mount| (seen.elsewhere)(mount) && is_read_only(mount) != seen.read_only;
    if seen.block
        && let Some(other) = seen.mounts.iter().find(differs)
    {
        let (has, asked) = if seen.read_only { ("writable", "read-only") } else { ("read-only", "writable") };
        return Step::Refuse(format!(
            "it is a block device, which is published {has} at {} and cannot be {asked} meanwhile",
            other.mount_point.display()
        ));
    }
    match &seen.target {
        None => Step::Bind,
        Some(mount) if !seen.mounts.iter().any(|own| own.id == mount.id) => {
            Step::Refuse("something else is mounted there".to_owned())
        }
        Some(mount) if mount.read_only != seen.read_only => Step::Again,
        Some(_) => Step::Finished,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, mount_point: &str, read_only: bool) -> Mount {
        Mount {
            id,
            device: (7, 0),
            root: "/".into(),
            mount_point: mount_point.into(),
            read_only,
            filesystem: "ext4".into(),
            source: "/dev/sda1".into(),
        }
    }

    #[test]
    fn each_sight_has_its_step() {
        let staged = mount(1, "/k/staging", false);
        let other = mount(2, "/k/pods/other", false);
        let here = mount(3, "/k/pods/here", false);
        let foreign = mount(9, "/k/pods/here", false);
        let refused = None;
        for (target, mounts, access, read_only, expected) in [
            (None, vec![&staged], Access::Shared, false, Some(Step::Bind)),
            (None, vec![&staged, &other], Access::Shared, false, Some(Step::Bind)),
            (None, vec![&staged, &other], Access::Single, false, refused),
            (Some(&here), vec![&staged, &here], Access::Single, false, Some(Step::Finished)),
            (Some(&here), vec![&staged, &here], Access::Shared, true, Some(Step::Again)),
            (Some(&foreign), vec![&staged], Access::Shared, false, None),
        ] {
            let mounts: Vec<Mount> = mounts.into_iter().cloned().collect();
            let seen = Seen {
                target: target.cloned(),
                mounts: &mounts,
                access,
                read_only,
                block: false,
                elsewhere: &|mount| mount.mount_point.ends_with("other"),
            };
            let step = next(&seen);
            match expected {
                Some(expected) => assert_eq!(step, expected),
                None => assert!(matches!(step, Step::Refuse(_)), "{step:?}"),
            }
        }
    }

    #[test]
    fn a_device_is_read_only_for_all_pods_or_for_none() {
        for (other_is, asked, block, expected) in [
            (false, false, true, true),
            (true, true, true, true),
            (false, true, true, false),
            (true, false, true, false),
            (false, true, false, true),
        ] {
            let mounts = [mount(2, "/k/pods/other", other_is)];
            let elsewhere = |mount: &Mount| mount.mount_point.ends_with("other");
            let access = Access::Shared;
            let seen = Seen {
                target: None,
                mounts: &mounts,
                access,
                read_only: asked,
                block,
                elsewhere: &elsewhere,
            };
            assert_eq!(next(&seen) == Step::Bind, expected, "{other_is} {asked} {block}");
        }
    }

    #[test]
    fn kubelets_own_mount_of_a_device_does_not_make_it_writable() {
        let mounts = [mount(2, "/k/dev/other", false), mount(3, "/k/publish/other", true)];
        for (asked, expected) in [(true, true), (false, false)] {
            let seen = Seen {
                target: None,
                mounts: &mounts,
                access: Access::Shared,
                read_only: asked,
                block: true,
                elsewhere: &|mount| mount.mount_point.ends_with("other"),
            };
            assert_eq!(next(&seen) == Step::Bind, expected, "{asked}");
        }
    }
}
