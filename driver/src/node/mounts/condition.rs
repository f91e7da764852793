//! Whether something is wrong with a volume: pure.

use dunnage_csi::v1::VolumeCondition;
use dunnage_host::space::Space;

/// The condition of a volume on a pool with this space and reserve; `shares` says that others can take what it has yet to
/// write.
pub(super) fn of(shares: bool, pool: Space, reserve: u64) -> VolumeCondition {
    if !shares || pool.available >= reserve {
        return VolumeCondition { abnormal: false, message: "the volume is usable".to_owned() };
    }
    VolumeCondition {
        abnormal: true,
        message: format!(
            "the pool is nearly full: {} bytes are free, less than the {reserve} that are kept back, and writes to \
             the volume may fail: delete what is no longer needed or enlarge the pool's disk",
            pool.available
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_suffers_from_a_full_pool_only_if_it_shares_the_space() {
        for (shares, available, abnormal) in
            [(true, 2, false), (true, 1, true), (true, 0, true), (false, 0, false), (false, 2, false)]
        {
            let condition = of(shares, Space { total: 100, available, ..Space::default() }, 2);
            assert_eq!(condition.abnormal, abnormal, "{shares} {available}");
            assert!(!condition.message.is_empty());
            assert!(!abnormal || condition.message.contains("enlarge the pool's disk"));
        }
    }
}
