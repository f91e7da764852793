//! Kubernetes access modes as CSI ones.

pub use dunnage_csi::v1::volume_capability::access_mode::Mode;

/// Whether the driver tells one writer from many writers on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SingleNode {
    Plain,
    MultiWriter,
}

/// An access mode that no CSI mode stands for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error(
        "access mode {0:?} is not known; use ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod"
    )]
    Unknown(String),
    #[error("the claim has no access mode")]
    None,
    #[error("ReadWriteOncePod cannot be combined with other access modes")]
    PodWithOthers,
}

/// One CSI mode for each mode of a claim, in its order.
pub fn modes(claim: &[String], driver: SingleNode) -> Result<Vec<Mode>, Invalid> {
    if claim.is_empty() {
        return Err(Invalid::None);
    }
    if claim.len() > 1 && claim.iter().any(|mode| mode == "ReadWriteOncePod") {
        return Err(Invalid::PodWithOthers);
    }
    claim.iter().map(|mode| one(mode, driver)).collect()
}

fn one(mode: &str, driver: SingleNode) -> Result<Mode, Invalid> {
    match (mode, driver) {
        ("ReadWriteMany", _) => Ok(Mode::MultiNodeMultiWriter),
        ("ReadOnlyMany", _) => Ok(Mode::MultiNodeReaderOnly),
        ("ReadWriteOnce", SingleNode::MultiWriter) => Ok(Mode::SingleNodeMultiWriter),
        ("ReadWriteOncePod", SingleNode::MultiWriter) => Ok(Mode::SingleNodeSingleWriter),
        ("ReadWriteOnce" | "ReadWriteOncePod", SingleNode::Plain) => Ok(Mode::SingleNodeWriter),
        _ => Err(Invalid::Unknown(mode.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_of_a_claim_is_mapped_by_itself() {
        use SingleNode::{MultiWriter, Plain};
        for (claim, driver, expected) in [
            (vec!["ReadWriteOnce"], Plain, Ok(vec![Mode::SingleNodeWriter])),
            (vec!["ReadWriteOnce"], MultiWriter, Ok(vec![Mode::SingleNodeMultiWriter])),
            (vec!["ReadWriteOncePod"], Plain, Ok(vec![Mode::SingleNodeWriter])),
            (vec!["ReadWriteOncePod"], MultiWriter, Ok(vec![Mode::SingleNodeSingleWriter])),
            (
                vec!["ReadWriteMany", "ReadOnlyMany"],
                Plain,
                Ok(vec![Mode::MultiNodeMultiWriter, Mode::MultiNodeReaderOnly]),
            ),
            (vec!["ReadWriteOncePod", "ReadWriteOnce"], Plain, Err(Invalid::PodWithOthers)),
            (vec!["Sometimes"], Plain, Err(Invalid::Unknown("Sometimes".into()))),
            (vec![], Plain, Err(Invalid::None)),
        ] {
            let claim: Vec<String> = claim.into_iter().map(str::to_owned).collect();
            assert_eq!(modes(&claim, driver), expected, "{claim:?} {driver:?}");
        }
    }
}
