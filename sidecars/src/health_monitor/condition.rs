//! Which conditions of volumes are told: pure.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dunnage_cluster::events::Kind;
use dunnage_csi::v1::VolumeCondition;

/// What is to be told on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tale {
    pub(super) kind: Kind,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The volumes that were abnormal when they were last heard of. Those that are well cost nothing.
#[derive(Debug, Default)]
pub(super) struct Conditions(Mutex<Abnormal>);

#[derive(Debug, Default)]
struct Abnormal {
    /// With the last pass in which they were seen.
    volumes: HashMap<String, u64>,
    pass: u64,
}

impl Conditions {
    /// Begins a look at all volumes.
    pub(super) fn begin(&self) {
        self.lock().pass += 1;
    }

    /// The volume is still there, whatever its condition.
    pub(super) fn saw(&self, volume: &str) {
        let mut abnormal = self.lock();
        let pass = abnormal.pass;
        if let Some(seen) = abnormal.volumes.get_mut(volume) {
            *seen = pass;
        }
    }

    /// Notes a volume's condition, and says what is to be told: every time that it is abnormal, for events are kept an
    /// hour only, and once that it is well again. Whoever takes over the lead knows of no recovery.
    pub(super) fn learn(&self, volume: &str, condition: &VolumeCondition) -> Option<Tale> {
        let mut abnormal = self.lock();
        if condition.abnormal {
            let pass = abnormal.pass;
            abnormal.volumes.insert(volume.to_owned(), pass);
            let message = if condition.message.is_empty() {
                "the driver says that the volume is abnormal, and not why".to_owned()
            } else {
                condition.message.clone()
            };
            return Some(Tale { kind: Kind::Warning, reason: "VolumeConditionAbnormal", message });
        }
        abnormal.volumes.remove(volume)?;
        let message = "the volume is well again".to_owned();
        Some(Tale { kind: Kind::Normal, reason: "VolumeConditionNormal", message })
    }

    /// Ends a look that was complete: volumes that are gone are forgotten.
    pub(super) fn end(&self) {
        let mut abnormal = self.lock();
        let pass = abnormal.pass;
        abnormal.volumes.retain(|_, seen| *seen == pass);
    }

    fn lock(&self) -> MutexGuard<'_, Abnormal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(abnormal: bool, message: &str) -> VolumeCondition {
        VolumeCondition { abnormal, message: message.to_owned() }
    }

    fn reason(tale: Option<Tale>) -> Option<&'static str> {
        tale.map(|tale| tale.reason)
    }

    #[test]
    fn an_abnormal_volume_is_told_each_time_and_a_recovery_once() {
        let (abnormal, normal) = (Some("VolumeConditionAbnormal"), Some("VolumeConditionNormal"));
        let conditions = Conditions::default();
        for (is_abnormal, expected) in [
            (false, None),
            (true, abnormal),
            (true, abnormal),
            (false, normal),
            (false, None),
            (true, abnormal),
        ] {
            assert_eq!(reason(conditions.learn("v", &condition(is_abnormal, "full"))), expected);
        }
        assert_eq!(reason(conditions.learn("w", &condition(false, ""))), None, "another volume");
        let unsaid = conditions.learn("w", &condition(true, "")).expect("told");
        assert!(unsaid.kind == Kind::Warning && unsaid.message.contains("not why"), "{unsaid:?}");
    }

    #[test]
    fn a_volume_that_is_gone_is_forgotten_after_a_whole_look_only() {
        let conditions = Conditions::default();
        for volume in ["gone", "silent", "failed"] {
            conditions.learn(volume, &condition(true, "full"));
        }
        conditions.begin();
        // Cut short.
        conditions.begin();
        conditions.saw("silent");
        conditions.saw("never heard of");
        conditions.learn("failed", &condition(true, "full"));
        conditions.end();
        let normal = condition(false, "");
        assert_eq!(reason(conditions.learn("gone", &normal)), None);
        assert!(
            conditions.learn("silent", &normal).is_some() && conditions.learn("failed", &normal).is_some()
        );
        assert!(conditions.lock().volumes.is_empty());
    }
}
