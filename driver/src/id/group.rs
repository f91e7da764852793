//! Ids of group snapshots.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{HASH_DIGITS, POOL_DIGITS, PoolId, lower_hex};
use crate::error::Error;

/// A group snapshot's id: its pool's id, `-group-`, and 32 digits of the hash of its CSI name. It is no other thing's id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupId(String);

const MARK: &str = "-group-";

impl GroupId {
    /// The id of the group that a `CreateVolumeGroupSnapshot` of this name makes on this pool.
    pub fn make(pool: &PoolId, name: &str) -> Self {
        let hash = hex::encode(Sha256::digest(format!("{pool}/{name}")));
        Self(format!("{pool}{MARK}{}", &hash[..HASH_DIGITS]))
    }

    /// The pool that holds all of the group.
    pub fn pool(&self) -> PoolId {
        PoolId(self.0[..POOL_DIGITS].to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GroupId {
    type Err = Error;

    /// Refuses everything that this driver could not have made, so that no id is ever more than a file name.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(MARK) {
            Some((pool, hash)) if lower_hex(pool, POOL_DIGITS) && lower_hex(hash, HASH_DIGITS) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(Error::NoSuchGroup { id: text.to_owned() }),
        }
    }
}

impl TryFrom<String> for GroupId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<GroupId> for String {
    fn from(id: GroupId) -> Self {
        id.0
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SnapshotId, VolumeId};
    use super::*;

    #[test]
    fn a_groups_id_names_its_pool_and_is_nothing_elses() {
        let pool: PoolId = "0123456789abcdef".parse().unwrap();
        let group = GroupId::make(&pool, "a");
        assert_eq!(group.pool(), pool);
        assert_eq!(group.as_str().parse::<GroupId>().unwrap(), group);
        assert_ne!(group, GroupId::make(&pool, "b"));
        assert!(group.as_str().parse::<VolumeId>().is_err());
        assert!(group.as_str().parse::<SnapshotId>().is_err());
        assert!(group.as_str().len() < 128);
    }

    #[test]
    fn a_member_is_no_snapshot_that_somebody_could_name() {
        let pool: PoolId = "0123456789abcdef".parse().unwrap();
        let (one, two) = (VolumeId::make(&pool, "pvc-1"), VolumeId::make(&pool, "pvc-2"));
        let group = GroupId::make(&pool, "a");
        let member = SnapshotId::in_group(&group, &one);
        assert_eq!(member.pool(), pool);
        assert_eq!(member.as_str().parse::<SnapshotId>().unwrap(), member);
        assert_ne!(member, SnapshotId::in_group(&group, &two));
        assert_ne!(member, SnapshotId::in_group(&GroupId::make(&pool, "b"), &one));
        for name in [format!("{group}/{one}"), format!("a/{one}"), "a".to_owned()] {
            assert_ne!(member, SnapshotId::make(&pool, &name));
        }
    }

    #[test]
    fn nothing_that_could_be_a_path_is_an_id() {
        for bad in [
            "",
            "..",
            "0123456789abcdef-group-",
            "0123456789abcdef-group-../../../../../../../../../../..",
            "../3456789abcdef-group-0123456789abcdef0123456789abcdef",
            "0123456789abcdef-group-0123456789abcdef0123456789abcdef/",
            "0123456789abcdef-group-group-0123456789abcdef0123456789abcdef",
            "0123456789abcdef-snap-0123456789abcdef0123456789abcdef",
        ] {
            assert!(bad.parse::<GroupId>().is_err(), "{bad:?}");
        }
    }
}
