//! The mount options that a class may give its volumes: one list for the driver, which applies them, and for the operator,
//! which checks classes before there is a claim.
//!
//! What is not here is refused: options that lift what the administrator forbade (`dev`, `suid`), that reach other data
//! (`bind`, `subvol`), that give up what the driver promises (`norecovery`, `nobarrier`), that can stop the node
//! (`errors=panic`), and those that nobody knows.

use std::fmt;

/// What a mount is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// A directory of the pool's file system, whose own options are the administrator's.
    Pool,
    Ext4,
    Xfs,
    Btrfs,
}

/// What an option has behind its `=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    Number,
    /// Bytes, with k, m or g.
    Size,
    OneOf(&'static [&'static str]),
    /// One of these, and a level behind a colon.
    Level(&'static [&'static str]),
}

type Known = (&'static str, Takes);

/// Those of the mount itself, whatever it is of.
const ANY: &[Known] = &[
    ("defaults", Takes::Nothing),
    ("ro", Takes::Nothing),
    ("rw", Takes::Nothing),
    ("nosuid", Takes::Nothing),
    ("nodev", Takes::Nothing),
    ("noexec", Takes::Nothing),
    ("exec", Takes::Nothing),
    ("noatime", Takes::Nothing),
    ("atime", Takes::Nothing),
    ("relatime", Takes::Nothing),
    ("strictatime", Takes::Nothing),
    ("nodiratime", Takes::Nothing),
    ("diratime", Takes::Nothing),
];

/// Those of every file system of a volume's own.
const OWN: &[Known] = &[
    ("sync", Takes::Nothing),
    ("dirsync", Takes::Nothing),
    ("lazytime", Takes::Nothing),
    ("discard", Takes::Nothing),
    ("nodiscard", Takes::Nothing),
];

const EXT4: &[Known] = &[
    ("data", Takes::OneOf(&["ordered", "journal", "writeback"])),
    ("commit", Takes::Number),
    ("errors", Takes::OneOf(&["continue", "remount-ro"])),
    ("auto_da_alloc", Takes::Nothing),
    ("delalloc", Takes::Nothing),
    ("nodelalloc", Takes::Nothing),
    ("acl", Takes::Nothing),
    ("user_xattr", Takes::Nothing),
    ("stripe", Takes::Number),
    ("inode_readahead_blks", Takes::Number),
    ("max_dir_size_kb", Takes::Number),
];

const XFS: &[Known] = &[
    ("allocsize", Takes::Size),
    ("inode32", Takes::Nothing),
    ("inode64", Takes::Nothing),
    ("largeio", Takes::Nothing),
    ("nolargeio", Takes::Nothing),
    ("logbufs", Takes::Number),
    ("logbsize", Takes::Size),
    ("swalloc", Takes::Nothing),
];

const COMPRESSIONS: &[&str] = &["zlib", "lzo", "zstd", "no"];

const BTRFS: &[Known] = &[
    ("discard", Takes::OneOf(&["sync", "async"])),
    ("compress", Takes::Nothing),
    ("compress", Takes::Level(COMPRESSIONS)),
    ("compress-force", Takes::Level(COMPRESSIONS)),
    ("autodefrag", Takes::Nothing),
    ("datacow", Takes::Nothing),
    ("nodatacow", Takes::Nothing),
    ("datasum", Takes::Nothing),
    ("nodatasum", Takes::Nothing),
    ("ssd", Takes::Nothing),
    ("nossd", Takes::Nothing),
    ("commit", Takes::Number),
    ("flushoncommit", Takes::Nothing),
    ("max_inline", Takes::Size),
    ("user_subvol_rm_allowed", Takes::Nothing),
];

/// A refused option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("mount option {option:?} is not possible with {on}; allowed are {}", allowed(*on))]
pub struct Refused {
    pub option: String,
    on: On,
}

/// Why a volume whose space is promised takes no `discard`.
pub const DISCARD_NEEDS_SPARSE: &str = "mount option \"discard\" is not possible: it would give away the space that the \
                                        volume was promised; it is with the StorageClass parameter allocation: sparse";

impl On {
    /// A file system by its name in Kubernetes.
    pub fn filesystem(name: &str) -> Option<Self> {
        [Self::Ext4, Self::Xfs, Self::Btrfs].into_iter().find(|on| on.to_string() == name)
    }

    fn options(self) -> impl Iterator<Item = &'static Known> {
        let (own, special): (&[Known], &[Known]) = match self {
            Self::Pool => (&[], &[]),
            Self::Ext4 => (OWN, EXT4),
            Self::Xfs => (OWN, XFS),
            Self::Btrfs => (OWN, BTRFS),
        };
        ANY.iter().chain(own).chain(special)
    }
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pool => "a volume on the pool's own file system",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        })
    }
}

/// Checks options as people write them; commas separate as they do in fstab.
pub fn check<'a>(on: On, options: impl IntoIterator<Item = &'a str>) -> Result<(), Refused> {
    let refused = |option: &&str| !on.options().any(|known| is(option, *known));
    match each(options).find(refused) {
        None => Ok(()),
        Some(option) => Err(Refused { option: option.to_owned(), on }),
    }
}

/// Whether an option has the kernel give back space as files are deleted.
pub fn discards<'a>(options: impl IntoIterator<Item = &'a str>) -> bool {
    each(options).any(|option| option == "discard" || option.starts_with("discard="))
}

fn each<'a>(options: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    options.into_iter().flat_map(|text| text.split(',')).map(str::trim).filter(|option| !option.is_empty())
}

fn is(option: &str, (name, takes): Known) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (key, value) = match option.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (option, None),
    };
    key == name
        && match (takes, value) {
            (Takes::Nothing, value) => value.is_none(),
            (_, None) => false,
            (Takes::Number, Some(value)) => number(value),
            (Takes::Size, Some(value)) => number(value.trim_end_matches(['k', 'm', 'g'])),
            (Takes::OneOf(words), Some(value)) => words.contains(&value),
            (Takes::Level(words), Some(value)) => match value.split_once(':') {
                Some((word, level)) => words.contains(&word) && number(level),
                None => words.contains(&value),
            },
        }
}

/// For people.
fn allowed(on: On) -> String {
    let one = |(name, takes): &Known| match takes {
        Takes::Nothing => (*name).to_owned(),
        Takes::Number => format!("{name}=NUMBER"),
        Takes::Size => format!("{name}=SIZE"),
        Takes::OneOf(words) => format!("{name}={}", words.join("|")),
        Takes::Level(words) => format!("{name}={}[:LEVEL]", words.join("|")),
    };
    on.options().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [On; 4] = [On::Pool, On::Ext4, On::Xfs, On::Btrfs];

    #[test]
    fn each_file_system_has_its_own_options() {
        for (option, on) in [
            ("", &ALL[..]),
            ("ro", &ALL),
            ("noatime, nodev,nosuid", &ALL),
            ("lazytime", &[On::Ext4, On::Xfs, On::Btrfs]),
            ("discard", &[On::Ext4, On::Xfs, On::Btrfs]),
            ("data=journal", &[On::Ext4]),
            ("errors=remount-ro", &[On::Ext4]),
            ("commit=30", &[On::Ext4, On::Btrfs]),
            ("allocsize=64k", &[On::Xfs]),
            ("compress", &[On::Btrfs]),
            ("compress=zstd:3", &[On::Btrfs]),
            ("discard=async", &[On::Btrfs]),
            ("noatime,allocsize=64k", &[On::Xfs]),
        ] {
            for fs in ALL {
                assert_eq!(check(fs, [option]).is_ok(), on.contains(&fs), "{option} with {fs}");
            }
        }
    }

    #[test]
    fn what_is_dangerous_or_unknown_is_refused_by_name_with_what_is_allowed() {
        for option in [
            "dev",
            "suid",
            "bind",
            "rbind",
            "remount",
            "loop",
            "loop=/dev/loop7",
            "move",
            "shared",
            "mand",
            "user",
            "nofail",
            "usrjquota=aquota.user",
            "prjquota",
            "context=system_u:object_r:tmp_t:s0",
            "errors=panic",
            "nobarrier",
            "barrier=0",
            "norecovery",
            "noload",
            "nouuid",
            "journal_path=/dev/sda1",
            "logdev=/dev/sda1",
            "rtdev=/dev/sda1",
            "subvol=/",
            "subvolid=5",
            "device=/dev/sda1",
            "degraded",
            "rescue=all",
            "fatal_errors=panic",
            "commit=soon",
            "commit=",
            "compress=zstd:best",
            "ro=1",
            "RO",
            "source=/dev/sda1",
            "no such option",
        ] {
            for on in ALL {
                let refused = check(on, ["noatime", option]).unwrap_err();
                assert_eq!(refused.option, option);
                let text = refused.to_string();
                assert!(text.contains(option) && text.contains(", noatime, "), "{text}");
            }
        }
    }

    #[test]
    fn a_file_system_is_known_by_its_name() {
        for (name, on) in [("ext4", Some(On::Ext4)), ("xfs", Some(On::Xfs)), ("btrfs", Some(On::Btrfs))] {
            assert_eq!(On::filesystem(name), on);
        }
        assert_eq!(On::filesystem("zfs"), None);
    }

    #[test]
    fn a_discard_is_seen_in_every_form() {
        for (options, expected) in [
            (&["discard"][..], true),
            (&["noatime,discard=async"], true),
            (&["nodiscard"], false),
            (&[], false),
        ] {
            assert_eq!(discards(options.iter().copied()), expected, "{options:?}");
        }
    }
}
