//! Ids of pools, volumes, snapshots and groups of these: the only strings from outside that may become part of a path.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Error;

mod group;
mod inline;
mod snapshot;

pub use group::GroupId;
pub use inline::InlineId;
pub use snapshot::SnapshotId;

const POOL_DIGITS: usize = 16;
const HASH_DIGITS: usize = 32;

/// A pool's id: 16 lower-case hexadecimal digits, chosen by the operator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PoolId(String);

/// Stands in the ids of volumes that belong to one pod, so that no `CreateVolume` can make one of them.
const INLINE: &str = "inline-";

/// A volume's id: its pool's id, a dash, and 32 digits of the hash of its CSI name. Before the hash of an inline volume
/// stands `inline-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeId(String);

impl PoolId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl VolumeId {
    /// The id of the volume that a `CreateVolume` of this name makes on this pool.
    pub fn make(pool: &PoolId, name: &str) -> Self {
        let hash = hex::encode(Sha256::digest(format!("{pool}/{name}")));
        Self(format!("{pool}-{}", &hash[..HASH_DIGITS]))
    }

    /// The id on this pool of a pod's inline volume.
    pub fn inline(pool: &PoolId, id: &InlineId) -> Self {
        let hash = hex::encode(Sha256::digest(format!("{pool}/{id}")));
        Self(format!("{pool}-{INLINE}{}", &hash[..HASH_DIGITS]))
    }

    /// Whether it belongs to one pod. Such a volume is known outside by kubelet's id alone.
    pub fn is_inline(&self) -> bool {
        self.0[POOL_DIGITS + 1..].starts_with(INLINE)
    }

    /// The id, for calls that have no say in inline volumes.
    pub(crate) fn not_inline(self) -> Result<Self, Error> {
        if self.is_inline() {
            return Err(Error::Precondition(format!(
                "volume {self} is an inline volume: it belongs to one pod and goes with it"
            )));
        }
        Ok(self)
    }

    /// The pool that holds the volume.
    pub fn pool(&self) -> PoolId {
        PoolId(self.0[..POOL_DIGITS].to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn lower_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl FromStr for PoolId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if lower_hex(text, POOL_DIGITS) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::Invalid(format!(
                "pool id {text:?} is not {POOL_DIGITS} lower-case hexadecimal digits"
            )))
        }
    }
}

impl FromStr for VolumeId {
    type Err = Error;

    /// Refuses everything that this driver could not have made, so that no id is ever more than a file name.
    fn from_str(text: &str) -> Result<Self, Error> {
        let parts =
            text.split_once('-').map(|(pool, rest)| (pool, rest.strip_prefix(INLINE).unwrap_or(rest)));
        match parts {
            Some((pool, hash)) if lower_hex(pool, POOL_DIGITS) && lower_hex(hash, HASH_DIGITS) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(Error::NoSuchVolume { id: text.to_owned() }),
        }
    }
}

impl TryFrom<String> for PoolId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl TryFrom<String> for VolumeId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<PoolId> for String {
    fn from(id: PoolId) -> Self {
        id.0
    }
}

impl From<VolumeId> for String {
    fn from(id: VolumeId) -> Self {
        id.0
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_id_names_its_pool_and_hashes_its_name() {
        let pool: PoolId = "0123456789abcdef".parse().unwrap();
        let id = VolumeId::make(&pool, "pvc-1");
        assert_eq!(id.pool(), pool);
        assert_eq!(id, VolumeId::make(&pool, "pvc-1"));
        assert_ne!(id, VolumeId::make(&pool, "pvc-2"));
        assert_eq!(id.as_str().parse::<VolumeId>().unwrap(), id);
    }

    #[test]
    fn an_inline_volume_is_told_by_its_id() {
        let pool: PoolId = "0123456789abcdef".parse().unwrap();
        let kubelets: InlineId = format!("csi-{}", "0f".repeat(32)).parse().unwrap();
        let id = VolumeId::inline(&pool, &kubelets);
        assert_eq!((id.as_str().parse::<VolumeId>().unwrap(), id.pool()), (id.clone(), pool.clone()));
        assert!(id.is_inline());
        assert!(!VolumeId::make(&pool, &kubelets.to_string()).is_inline());
        // The name of its loop device, which the kernel cuts off at 63.
        assert!(format!("{id}/image").len() <= 63);
    }

    #[test]
    fn nothing_that_could_be_a_path_is_an_id() {
        let good = "0123456789abcdef-0123456789abcdef0123456789abcdef";
        assert!(good.parse::<VolumeId>().is_ok());
        for bad in [
            "",
            "..",
            "/",
            "0123456789abcdef",
            "0123456789abcdef-",
            "0123456789abcdef-0123456789abcdef0123456789abcde",
            "0123456789abcdef-0123456789abcdef0123456789abcdeF",
            "0123456789abcdef-0123456789abcdef0123456789abcdef/",
            "0123456789abcdef-0123456789abcdef0123456789abcdef\0",
            "../3456789abcdef-0123456789abcdef0123456789abcdef",
            "0123456789abcdef-../../../../../../../../../../..",
            "0123456789abcdef-inline-",
            "0123456789abcdef-inline-inline-0123456789abcdef0123456789abcdef",
            "0123456789abcdef-inline-../../../../../../../../../../..",
        ] {
            assert!(bad.parse::<VolumeId>().is_err(), "{bad:?}");
            assert!(bad == "0123456789abcdef" || bad.parse::<PoolId>().is_err(), "{bad:?}");
        }
    }
}
