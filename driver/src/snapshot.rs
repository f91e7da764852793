//! What is written beside a snapshot's data: the truth about it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunnage_host::copy::How;
use prost_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{GroupId, SnapshotId, VolumeId};
use crate::record::Content;

/// The name of the record in the snapshot's directory.
pub(crate) const FILE: &str = "snapshot.json";

/// A snapshot, as its record has it. It stays when its volume goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Snapshot {
    pub id: SnapshotId,
    /// The name of the `CreateSnapshot` or `CreateVolumeGroupSnapshot` call that made it.
    pub name: String,
    pub source_volume_id: VolumeId,
    /// The size of the volume at that time: one made of it has at least this.
    pub size_bytes: u64,
    /// Nanoseconds since 1970.
    pub created: u64,
    pub content: Content,
    /// The group that it came with, and goes with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    #[serde(flatten)]
    pub taken: Taken,
}

/// How the data came to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Taken {
    pub made: Made,
    pub source: State,
}

/// Whether the data share the volume's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Made {
    Reflink,
    Copy,
}

impl From<How> for Made {
    fn from(how: How) -> Self {
        match how {
            How::Reflink => Self::Reflink,
            How::Copy => Self::Copy,
        }
    }
}

/// How the volume was meanwhile, which tells what the data are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum State {
    /// Nobody used it.
    AtRest,
    /// Its file system was frozen: the data are those of one moment, as after a clean stop of all writes.
    Frozen,
    /// It was attached: the data are those of one moment, as after a power cut.
    Attached,
    /// It was in use: each file is as it was while it was copied.
    InUse,
}

impl State {
    /// For the log.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::AtRest => "the volume was not in use",
            Self::Frozen => "the volume's file system was frozen meanwhile",
            Self::Attached => "the volume was attached: as after a power cut",
            Self::InUse => "the volume was in use: its files are as they were while each was copied",
        }
    }
}

impl Snapshot {
    /// The time now, as `created` has it.
    pub(crate) fn now() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// When it was made.
    pub(crate) fn created(&self) -> Timestamp {
        (UNIX_EPOCH + Duration::from_nanos(self.created)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The form on the disk outlives this program: changing it needs a new format number.
    #[test]
    fn the_form_on_the_disk_stays() {
        let pool = "0123456789abcdef".parse().unwrap();
        let (id, volume) = (SnapshotId::make(&pool, "snap-1"), VolumeId::make(&pool, "pvc-1"));
        let text = format!(
            r#"{{"id":"{id}","name":"snap-1","sourceVolumeId":"{volume}","sizeBytes":7,"created":1500000001,"content":{{"type":"directory"}},"made":"reflink","source":"inUse"}}"#,
        );
        let snapshot: Snapshot = serde_json::from_str(&text).unwrap();
        assert_eq!(snapshot.taken, Taken { made: Made::Reflink, source: State::InUse });
        assert_eq!(snapshot.created(), Timestamp { seconds: 1, nanos: 500_000_001 });
        assert_eq!(serde_json::to_string(&snapshot).unwrap(), text);
        assert_eq!(snapshot.group, None);
        let group = GroupId::make(&pool, "group-1");
        let text = text.replace(r#""made":"#, &format!(r#""group":"{group}","made":"#));
        let member: Snapshot = serde_json::from_str(&text).unwrap();
        assert_eq!(member, Snapshot { group: Some(group), ..snapshot });
        assert_eq!(serde_json::to_string(&member).unwrap(), text);
    }
}
