//! What reads bytes that others wrote, each with what holds whatever they are: for the fuzz targets (`tests/fuzz`) and for the
//! test beside this file. Every function panics where that is broken.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::path::{Component, Path};
use std::str::FromStr;

use dunnage_csi::mount_options::{self, On};
use dunnage_host::superblock::Content as OnDevice;
use dunnage_host::{mountinfo, options};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::EngineKind;
use crate::error::Error;
use crate::group::Group;
use crate::id::{GroupId, InlineId, PoolId, SnapshotId, VolumeId};
use crate::node::read_parameters;
use crate::overcommit::Overcommit;
use crate::pool::state::MarkerSeen;
use crate::quantity;
use crate::record::Record;
use crate::reserve::Reserve;
use crate::snapshot::Snapshot;

/// CSI's limit for ids.
const LONGEST_ID: usize = 128;

/// An id is one plain file name that reads as it was written, and of one kind only.
pub fn ids(text: &str) {
    let kinds = [
        is_id::<PoolId>(text),
        is_id::<VolumeId>(text),
        is_id::<SnapshotId>(text),
        is_id::<GroupId>(text),
        is_id::<InlineId>(text),
    ];
    assert!(kinds.into_iter().filter(|kind| *kind).count() <= 1, "{text:?} is of several kinds: {kinds:?}");
    if let Ok(id) = text.parse::<VolumeId>() {
        assert!(text.starts_with(id.pool().as_str()), "{text:?}");
        assert_eq!(id.is_inline(), text.contains("inline"), "{text:?}");
        assert_eq!(id.clone().not_inline().is_ok(), !id.is_inline(), "{text:?}");
    }
}

fn is_id<Id: FromStr + Display>(text: &str) -> bool {
    let Ok(id) = text.parse::<Id>() else { return false };
    assert_eq!(id.to_string(), text);
    assert!(text.len() <= LONGEST_ID, "{text:?} is too long");
    let parts: Vec<Component<'_>> = Path::new(text).components().collect();
    assert!(matches!(parts[..], [Component::Normal(_)]), "{text:?} is a path");
    assert!(!text.contains('\0'), "{text:?}");
    true
}

/// Parameters of classes and attributes of pods, a line each, and what stands in them: never more than is allowed.
pub fn parameters(text: &str) {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let parameters: HashMap<String, String> =
        lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    for kind in [EngineKind::Directory, EngineKind::LoopFile] {
        let engine = kind.engine(Overcommit::default());
        match read_parameters(&parameters, engine.as_ref()) {
            Ok(()) => {
                let strange = parameters.keys().find(|key| {
                    !key.starts_with("csi.storage.k8s.io/") && !engine.parameters().contains(&key.as_str())
                });
                assert_eq!(strange, None, "{kind:?} took it");
            }
            Err(Error::Invalid(why)) => assert!(!why.is_empty()),
            Err(other) => panic!("{other:?}"),
        }
    }
    for value in parameters.values().map(String::as_str).chain([text]) {
        if let Some(bytes) = quantity::parse(value) {
            assert!(i64::try_from(bytes).is_ok(), "{value:?}");
        }
        if let Ok(ratio) = value.parse::<Overcommit>() {
            assert!(ratio.share(1 << 40) <= 1 << 40, "{value:?} makes a promise count for more than it is");
            assert_eq!(ratio.to_string().parse::<Overcommit>().ok(), Some(ratio), "{value:?}");
        }
        if let Ok(Reserve::Percent(percent)) = value.parse::<Reserve>() {
            assert!(percent <= 90, "{value:?}");
        }
        mount_options_of(value);
    }
}

/// What the list lets through is a flag of the mount or known to the file system, and lifts nothing.
fn mount_options_of(text: &str) {
    const NEVER: [&str; 10] =
        ["dev", "suid", "bind", "remount", "loop", "source", "subvol", "device", "context", "norecovery"];
    let parsed = options::parse([text]);
    for on in [On::Pool, On::Ext4, On::Xfs, On::Btrfs] {
        if mount_options::check(on, [text]).is_err() {
            continue;
        }
        for (key, _) in &parsed.filesystem {
            assert!(on != On::Pool, "{key:?} of {text:?} is for no pool");
            assert!(!NEVER.contains(&key.as_str()), "{text:?}");
        }
    }
}

/// The kernel's list of mounts: a mount a line, or the line that is none.
pub fn mountinfo(text: &[u8]) {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    match mountinfo::parse(text) {
        Ok(mounts) => assert_eq!(mounts.len(), lines.count()),
        Err(strange) => {
            let mut lines = lines;
            assert!(lines.any(|line| String::from_utf8_lossy(line) == strange), "{strange:?} is no line");
        }
    }
}

/// What lies on the disk: what is read as a record is written as one that reads the same.
pub fn records(content: &[u8]) {
    rewritten::<Record>(content);
    rewritten::<Snapshot>(content);
    rewritten::<Group>(content);
    if let MarkerSeen::Marker(marker) = MarkerSeen::parse(content) {
        let again = serde_json::to_vec(&marker).expect("it was read from JSON");
        assert_eq!(MarkerSeen::parse(&again), MarkerSeen::Marker(marker));
    }
    let seen = OnDevice::parse(content);
    assert!(seen != OnDevice::Blank || content.iter().all(|byte| *byte == 0), "data are taken for nothing");
}

fn rewritten<T: DeserializeOwned + Serialize + PartialEq + Debug>(content: &[u8]) {
    let Ok(record) = serde_json::from_slice::<T>(content) else { return };
    let again = serde_json::to_vec(&record).expect("it was read from JSON");
    assert_eq!(serde_json::from_slice::<T>(&again).expect("it was just written"), record);
}

#[cfg(test)]
mod tests;
