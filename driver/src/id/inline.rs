//! Kubelet's ids of inline volumes.

use std::fmt;
use std::str::FromStr;

use super::lower_hex;
use crate::error::Error;

const MARK: &str = "csi-";
const DIGITS: usize = 64;

/// What kubelet calls a volume that a pod has in its own spec: `csi-` and a hash of the pod's uid and the volume's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InlineId(String);

impl InlineId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InlineId {
    type Err = Error;

    /// Refuses everything that kubelet could not have made.
    fn from_str(text: &str) -> Result<Self, Error> {
        if text.strip_prefix(MARK).is_some_and(|hash| lower_hex(hash, DIGITS)) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::NoSuchVolume { id: text.to_owned() })
        }
    }
}

impl fmt::Display for InlineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{SnapshotId, VolumeId};

    #[test]
    fn an_inline_id_is_no_other_id() {
        let good = format!("csi-{}", "0123456789abcdef".repeat(4));
        assert_eq!(good.parse::<InlineId>().unwrap().as_str(), good);
        assert!(good.parse::<VolumeId>().is_err() && good.parse::<SnapshotId>().is_err());
        let upper = good.to_uppercase();
        let long = format!("{good}0");
        for bad in ["", "csi-", "csi-../../../etc", &upper, &long, &good[..67], "0123456789abcdef"] {
            assert!(bad.parse::<InlineId>().is_err(), "{bad:?}");
        }
    }
}
