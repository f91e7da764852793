//! The next step of staging an image, from what is there: pure, so that a stage cut short anywhere is just another start.

use dunnage_host::filesystem::Kind;
use dunnage_host::superblock::Content;

use crate::record::Format;

/// A file system this much smaller than its device is grown: less may be what no whole group of blocks fits into.
const WORTH_GROWING: u64 = 8 << 20;

/// How much a file system could grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    None,
    /// By what may be too little for it.
    Slight,
    Full,
}

/// A loop device has only whole sectors of its image.
const SECTOR: u64 = 512;

/// What is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) fs_type: Kind,
    pub(crate) format: Format,
    pub(crate) image_bytes: u64,
    pub(crate) device: Option<Device>,
    pub(crate) staging: Staging,
    /// What this pass has done already.
    pub(crate) done: Done,
}

/// The attached loop device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub(crate) bytes: u64,
    pub(crate) content: Content,
    /// Mounted somewhere, perhaps out of sight: its file system must not be touched from outside.
    pub(crate) in_use: bool,
}

/// What is mounted at the staging path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Staging {
    Free,
    Ours,
    Other,
}

/// Steps that leave no trace, or are tried once only.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a step of its own")]
pub(crate) struct Done {
    pub(crate) formatted: bool,
    pub(crate) checked: bool,
    pub(crate) grown: bool,
    pub(crate) renewed: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Attach,
    /// Let the device take the image's size.
    Resize,
    NoteFormatStarted,
    Format,
    NoteFormatDone,
    /// Give a copied file system a UUID of its own.
    Renew,
    NoteRenewed,
    Check,
    GrowUnmounted,
    Mount,
    GrowMounted,
    Finished,
    Refuse(String),
}

/// Whether a device has less than its image.
pub(crate) fn is_short(device_bytes: u64, image_bytes: u64) -> bool {
    device_bytes < image_bytes / SECTOR * SECTOR
}

/// How much a file system of this kind could grow on its device; not at all if the device holds something else.
pub(crate) fn growth(fs_type: Kind, content: Content, device_bytes: u64) -> Growth {
    match size(fs_type, content) {
        Some(bytes) if bytes.saturating_add(WORTH_GROWING) <= device_bytes => Growth::Full,
        Some(bytes) if bytes < device_bytes => Growth::Slight,
        _ => Growth::None,
    }
}

/// The size of a file system, if it is what it should be.
fn size(fs_type: Kind, content: Content) -> Option<u64> {
    match (fs_type, content) {
        (Kind::Ext4, Content::Ext4 { bytes })
        | (Kind::Xfs, Content::Xfs { bytes })
        | (Kind::Btrfs, Content::Btrfs { bytes }) => Some(bytes),
        _ => None,
    }
}

/// The next step.
pub(crate) fn next(seen: Seen) -> Step {
    let Seen { fs_type, format, image_bytes, device, staging, done } = seen;
    if staging == Staging::Other {
        return Step::Refuse("something else is mounted there".to_owned());
    }
    let Some(device) = device else { return Step::Attach };
    if is_short(device.bytes, image_bytes) {
        return Step::Resize;
    }
    let grows = !done.grown && growth(fs_type, device.content, device.bytes) == Growth::Full;
    if staging == Staging::Ours {
        return if grows && fs_type.grows_mounted() { Step::GrowMounted } else { Step::Finished };
    }
    match format {
        Format::Never if device.content == Content::Blank => Step::NoteFormatStarted,
        Format::Never => Step::Refuse(format!(
            "its image was never formatted but holds {:?}: it is left alone",
            device.content
        )),
        Format::Started if done.formatted => Step::NoteFormatDone,
        Format::Started => Step::Format,
        Format::Done | Format::Copied if size(fs_type, device.content).is_none() => Step::Refuse(format!(
            "its image held {} and now holds {:?}: repair a copy of it ({} may do) or restore it from a backup, for it \
             is never formatted again",
            fs_type.name(),
            device.content,
            fs_type.repair()
        )),
        Format::Copied if device.in_use => {
            Step::Refuse("its copied file system is mounted already".to_owned())
        }
        Format::Copied if !done.renewed => Step::Renew,
        Format::Copied => Step::NoteRenewed,
        Format::Done if device.in_use => Step::Mount,
        Format::Done if !done.checked => Step::Check,
        Format::Done if grows && !fs_type.grows_mounted() => Step::GrowUnmounted,
        Format::Done => Step::Mount,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1 << 30;

    fn seen(format: Format, content: Content) -> Seen {
        Seen {
            fs_type: Kind::Ext4,
            format,
            image_bytes: G,
            device: Some(Device { bytes: G, content, in_use: false }),
            staging: Staging::Free,
            done: Done::default(),
        }
    }

    fn with(seen: Seen, change: impl FnOnce(&mut Seen)) -> Seen {
        let mut seen = seen;
        change(&mut seen);
        seen
    }

    const EXT4: Content = Content::Ext4 { bytes: G };
    const CHECKED: Done = Done { formatted: false, checked: true, grown: false, renewed: false };

    #[test]
    fn a_first_stage_goes_from_nothing_to_mounted() {
        let start = with(seen(Format::Never, Content::Blank), |seen| seen.device = None);
        assert_eq!(next(start), Step::Attach);
        assert_eq!(next(seen(Format::Never, Content::Blank)), Step::NoteFormatStarted);
        assert_eq!(next(seen(Format::Started, Content::Blank)), Step::Format);
        let formatted = with(seen(Format::Started, EXT4), |seen| seen.done.formatted = true);
        assert_eq!(next(formatted), Step::NoteFormatDone);
        assert_eq!(next(seen(Format::Done, EXT4)), Step::Check);
        assert_eq!(next(with(seen(Format::Done, EXT4), |seen| seen.done = CHECKED)), Step::Mount);
        assert_eq!(next(with(seen(Format::Done, EXT4), |seen| seen.staging = Staging::Ours)), Step::Finished);
    }

    #[test]
    fn a_copy_gets_a_uuid_of_its_own_before_anything_else() {
        let copied = seen(Format::Copied, EXT4);
        assert_eq!(next(copied), Step::Renew);
        assert_eq!(next(with(copied, |seen| seen.done.renewed = true)), Step::NoteRenewed);
        for content in [Content::Blank, Content::Unknown, Content::Xfs { bytes: G }] {
            assert!(matches!(next(seen(Format::Copied, content)), Step::Refuse(_)), "{content:?}");
        }
        let used = with(copied, |seen| {
            seen.device = seen.device.map(|device| Device { in_use: true, ..device });
        });
        assert!(matches!(next(used), Step::Refuse(_)));
    }

    #[test]
    fn a_format_cut_short_is_done_again() {
        for content in [Content::Blank, Content::Unknown, EXT4] {
            assert_eq!(next(seen(Format::Started, content)), Step::Format);
        }
    }

    #[test]
    fn what_may_hold_data_is_never_formatted() {
        for content in [Content::Blank, Content::Unknown, Content::Xfs { bytes: G }] {
            assert!(matches!(next(seen(Format::Done, content)), Step::Refuse(_)), "{content:?}");
        }
        for content in [Content::Unknown, EXT4, Content::Xfs { bytes: G }] {
            assert!(matches!(next(seen(Format::Never, content)), Step::Refuse(_)), "{content:?}");
        }
    }

    #[test]
    fn another_mount_in_the_way_is_not_touched() {
        let other = with(seen(Format::Done, EXT4), |seen| seen.staging = Staging::Other);
        assert!(matches!(next(other), Step::Refuse(_)));
    }

    #[test]
    fn a_file_system_smaller_than_its_device_grows_once() {
        let small = Content::Ext4 { bytes: G / 2 };
        let ext4 = with(seen(Format::Done, small), |seen| seen.done = CHECKED);
        assert_eq!(next(ext4), Step::GrowUnmounted);
        assert_eq!(next(with(ext4, |seen| seen.done.grown = true)), Step::Mount);
        assert_eq!(next(with(ext4, |seen| seen.staging = Staging::Ours)), Step::Finished);
        for (kind, content) in
            [(Kind::Xfs, Content::Xfs { bytes: G / 2 }), (Kind::Btrfs, Content::Btrfs { bytes: G / 2 })]
        {
            let unmounted = with(seen(Format::Done, content), |seen| {
                seen.fs_type = kind;
                seen.done = CHECKED;
            });
            assert_eq!(next(unmounted), Step::Mount);
            let mounted = with(unmounted, |seen| seen.staging = Staging::Ours);
            assert_eq!(next(mounted), Step::GrowMounted);
            assert_eq!(next(with(mounted, |seen| seen.done.grown = true)), Step::Finished);
        }
        let nearly = with(seen(Format::Done, Content::Ext4 { bytes: G - 4096 }), |seen| seen.done = CHECKED);
        assert_eq!(next(nearly), Step::Mount);
    }

    #[test]
    fn growth_is_told_by_what_is_missing() {
        for (fs_type, content, expected) in [
            (Kind::Ext4, Content::Ext4 { bytes: G }, Growth::None),
            (Kind::Ext4, Content::Ext4 { bytes: G + 1 }, Growth::None),
            (Kind::Ext4, Content::Ext4 { bytes: G - 1 }, Growth::Slight),
            (Kind::Xfs, Content::Xfs { bytes: G - WORTH_GROWING }, Growth::Full),
            (Kind::Btrfs, Content::Btrfs { bytes: G / 2 }, Growth::Full),
            (Kind::Btrfs, Content::Ext4 { bytes: G / 2 }, Growth::None),
            (Kind::Ext4, Content::Blank, Growth::None),
        ] {
            assert_eq!(growth(fs_type, content, G), expected, "{fs_type:?} {content:?}");
        }
    }

    #[test]
    fn a_device_smaller_than_its_image_takes_its_size() {
        let small = with(seen(Format::Done, EXT4), |seen| seen.image_bytes = 2 * G);
        assert_eq!(next(small), Step::Resize);
        assert_eq!(next(with(small, |seen| seen.image_bytes = G + 511)), Step::Check);
    }

    #[test]
    fn a_file_system_in_use_is_neither_checked_nor_grown() {
        let used = with(seen(Format::Done, Content::Ext4 { bytes: G / 2 }), |seen| {
            seen.device = seen.device.map(|device| Device { in_use: true, ..device });
        });
        assert_eq!(next(used), Step::Mount);
    }
}
