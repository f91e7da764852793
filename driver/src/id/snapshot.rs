//! Ids of snapshots.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{GroupId, HASH_DIGITS, POOL_DIGITS, PoolId, VolumeId, lower_hex};
use crate::error::Error;

/// A snapshot's id: its pool's id, `-snap-`, and 32 digits of the hash of its CSI name, or of its group and its volume. It
/// is never a volume's id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotId(String);

const MARK: &str = "-snap-";

impl SnapshotId {
    /// The id of the snapshot that a `CreateSnapshot` of this name makes on this pool.
    pub fn make(pool: &PoolId, name: &str) -> Self {
        let hash = hex::encode(Sha256::digest(format!("{pool}/{name}")));
        Self(format!("{pool}{MARK}{}", &hash[..HASH_DIGITS]))
    }

    /// The id of a volume's snapshot in a group. What is hashed begins otherwise than with any name, so that no
    /// `CreateSnapshot` can ask for it.
    pub fn in_group(group: &GroupId, of: &VolumeId) -> Self {
        let hash = hex::encode(Sha256::digest(format!("{group}/{of}")));
        Self(format!("{}{MARK}{}", group.pool(), &hash[..HASH_DIGITS]))
    }

    /// The pool that holds the snapshot.
    pub fn pool(&self) -> PoolId {
        PoolId(self.0[..POOL_DIGITS].to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SnapshotId {
    type Err = Error;

    /// Refuses everything that this driver could not have made, so that no id is ever more than a file name.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(MARK) {
            Some((pool, hash)) if lower_hex(pool, POOL_DIGITS) && lower_hex(hash, HASH_DIGITS) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(Error::NoSuchSnapshot { id: text.to_owned() }),
        }
    }
}

impl TryFrom<String> for SnapshotId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<SnapshotId> for String {
    fn from(id: SnapshotId) -> Self {
        id.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshots_id_names_its_pool_and_is_no_volumes() {
        let pool: PoolId = "0123456789abcdef".parse().unwrap();
        let (snapshot, volume) = (SnapshotId::make(&pool, "a"), VolumeId::make(&pool, "a"));
        assert_eq!(snapshot.pool(), pool);
        assert_eq!(snapshot.as_str().parse::<SnapshotId>().unwrap(), snapshot);
        assert_ne!(snapshot, SnapshotId::make(&pool, "b"));
        assert!(snapshot.as_str().parse::<VolumeId>().is_err());
        assert!(volume.as_str().parse::<SnapshotId>().is_err());
        assert!(snapshot.as_str().len() < 128);
    }

    #[test]
    fn nothing_that_could_be_a_path_is_an_id() {
        for bad in [
            "",
            "..",
            "0123456789abcdef-snap-",
            "0123456789abcdef-snap-../../../../../../../../../../..",
            "../3456789abcdef-snap-0123456789abcdef0123456789abcdef",
            "0123456789abcdef-snap-0123456789abcdef0123456789abcdef/",
            "0123456789abcdef-snap-snap-0123456789abcdef0123456789abcdef",
        ] {
            assert!(bad.parse::<SnapshotId>().is_err(), "{bad:?}");
        }
    }
}
