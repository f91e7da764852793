//! Mount options as people write them, split into the mount's own flags and what the file system must understand.

use rustix::mount::{MountAttrFlags, MountFlags};

use crate::sys::mount::MountAttributes;

/// Parsed mount options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    flags: Flags,
    /// Options for the file system: a key, and a value if there is one.
    pub filesystem: Vec<(String, Option<String>)>,
}

/// The flags that every mount has, whatever its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flags {
    restrict: Restrict,
    atime: Atime,
    no_directory_atime: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Restrict(u8);

const READ_ONLY: u8 = 1;
const NO_SUID: u8 = 2;
const NO_DEV: u8 = 4;
const NO_EXEC: u8 = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Atime {
    #[default]
    Relative,
    Never,
    Strict,
}

/// Parses options; commas separate as they do in fstab. A later option wins over an earlier one.
pub fn parse<'a>(options: impl IntoIterator<Item = &'a str>) -> Options {
    let mut parsed = Options::default();
    for option in options.into_iter().flat_map(|text| text.split(',')).map(str::trim) {
        let flags = &mut parsed.flags;
        let (set, bits) = match option {
            "" | "defaults" => continue,
            "ro" => (true, READ_ONLY),
            "rw" => (false, READ_ONLY),
            "nosuid" => (true, NO_SUID),
            "nodev" => (true, NO_DEV),
            "noexec" => (true, NO_EXEC),
            "exec" => (false, NO_EXEC),
            "relatime" | "atime" => {
                flags.atime = Atime::Relative;
                continue;
            }
            "noatime" => {
                flags.atime = Atime::Never;
                continue;
            }
            "strictatime" => {
                flags.atime = Atime::Strict;
                continue;
            }
            "nodiratime" | "diratime" => {
                flags.no_directory_atime = option == "nodiratime";
                continue;
            }
            other => {
                let (key, value) = match other.split_once('=') {
                    Some((key, value)) => (key, Some(value.to_owned())),
                    None => (other, None),
                };
                parsed.filesystem.push((key.to_owned(), value));
                continue;
            }
        };
        if set {
            flags.restrict.0 |= bits;
        } else {
            flags.restrict.0 &= !bits;
        }
    }
    parsed
}

impl Options {
    /// The options for the file system, as people write them.
    pub fn words(&self) -> Vec<String> {
        let word = |(key, value): &(String, Option<String>)| match value {
            Some(value) => format!("{key}={value}"),
            None => key.clone(),
        };
        self.filesystem.iter().map(word).collect()
    }

    /// The same options on a read-only mount.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.flags.restrict.0 |= READ_ONLY;
        self
    }

    pub fn is_read_only(&self) -> bool {
        self.flags.restrict.0 & READ_ONLY != 0
    }

    /// Whether a bind mount without options would be the same.
    pub(crate) fn is_plain(&self) -> bool {
        self.flags == Flags::default()
    }

    /// For a new mount. The file system itself stays writable: a read-only mount is a property of the mount.
    pub(crate) fn attributes(&self) -> MountAttrFlags {
        let mut attributes = MountAttrFlags::empty();
        for (bit, attribute) in [
            (READ_ONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
            (NO_SUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (NO_DEV, MountAttrFlags::MOUNT_ATTR_NODEV),
            (NO_EXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        ] {
            attributes.set(attribute, self.flags.restrict.0 & bit != 0);
        }
        attributes.set(MountAttrFlags::MOUNT_ATTR_NODIRATIME, self.flags.no_directory_atime);
        attributes |= match self.flags.atime {
            Atime::Relative => MountAttrFlags::MOUNT_ATTR_RELATIME,
            Atime::Never => MountAttrFlags::MOUNT_ATTR_NOATIME,
            Atime::Strict => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        };
        attributes
    }

    /// For a bind mount. What the source's mount forbids stays forbidden, and its times stay as they are unless others are
    /// asked for.
    pub(crate) fn changes(&self) -> MountAttributes {
        let clear = match self.flags.atime {
            Atime::Relative => MountAttrFlags::empty(),
            Atime::Never | Atime::Strict => MountAttrFlags::MOUNT_ATTR__ATIME,
        };
        let [set, clear] = [self.attributes(), clear].map(|flags| flags.bits().into());
        MountAttributes { set, clear, ..MountAttributes::default() }
    }

    /// For the remount that gives a bind mount its flags.
    pub(crate) fn remount(&self) -> MountFlags {
        let mut flags = MountFlags::BIND;
        for (bit, flag) in [
            (READ_ONLY, MountFlags::RDONLY),
            (NO_SUID, MountFlags::NOSUID),
            (NO_DEV, MountFlags::NODEV),
            (NO_EXEC, MountFlags::NOEXEC),
        ] {
            flags.set(flag, self.flags.restrict.0 & bit != 0);
        }
        flags.set(MountFlags::NODIRATIME, self.flags.no_directory_atime);
        flags
            | match self.flags.atime {
                // Without one, the kernel leaves it as it is on the source.
                Atime::Relative => MountFlags::empty(),
                Atime::Never => MountFlags::NOATIME,
                Atime::Strict => MountFlags::STRICTATIME,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounts_own_flags_are_told_from_the_file_systems() {
        let options = parse(["ro,noatime", "nodev", "data=ordered", "discard", "defaults", ""]);
        assert!(options.is_read_only() && !options.is_plain());
        assert_eq!(
            options.attributes(),
            MountAttrFlags::MOUNT_ATTR_RDONLY
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOATIME
        );
        assert_eq!(
            options.remount(),
            MountFlags::BIND | MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOATIME
        );
        let changes = |set: MountAttrFlags, clear: MountAttrFlags| MountAttributes {
            set: set.bits().into(),
            clear: clear.bits().into(),
            ..MountAttributes::default()
        };
        assert_eq!(options.changes(), changes(options.attributes(), MountAttrFlags::MOUNT_ATTR__ATIME));
        assert_eq!(
            parse(["ro"]).changes(),
            changes(MountAttrFlags::MOUNT_ATTR_RDONLY, MountAttrFlags::empty())
        );
        assert_eq!(
            options.filesystem,
            [("data".to_owned(), Some("ordered".to_owned())), ("discard".to_owned(), None)]
        );
        assert_eq!(options.words(), ["data=ordered", "discard"]);
        // Nothing lifts what was forbidden: no file system takes these, and they are no flags.
        assert_eq!(parse(["nodev,dev", "suid"]).words(), ["dev", "suid"]);
        assert_eq!(parse(["nodev,dev"]).attributes(), parse(["nodev"]).attributes());
    }

    #[test]
    fn a_later_option_wins() {
        for (text, read_only) in [("ro,rw", false), ("rw,ro", true), ("", false), ("nosuid,ro,rw,ro", true)] {
            assert_eq!(parse([text]).is_read_only(), read_only, "{text}");
        }
        assert!(parse(["ro,noexec,noatime,nodiratime,rw,exec,relatime,diratime"]).is_plain());
        assert!(parse(["rw"]).read_only().is_read_only());
    }
}
