//! What to do with the Lease as it was seen: pure.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

/// A record and when this process first saw it so.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) record: LeaseSpec,
    /// Expiry counts from here, not from the record's own time: clocks differ between machines.
    pub(super) since: Instant,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Me<'a> {
    pub(super) identity: &'a str,
    pub(super) lease_duration: Duration,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There is no Lease: make it.
    Create,
    /// Nobody holds it (any more): take it.
    Take,
    /// It is ours: renew it.
    Renew,
    /// Somebody else holds it: look again later.
    Wait,
}

pub(super) fn decide(lease: Option<&Seen>, me: Me<'_>, now: Instant) -> Step {
    let Some(seen) = lease else { return Step::Create };
    let holder = seen.record.holder_identity.as_deref().unwrap_or_default();
    if holder == me.identity {
        return Step::Renew;
    }
    // The holder's own promise counts; a record without one is held to ours.
    let lasts = match seen.record.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds),
        _ => me.lease_duration,
    };
    if holder.is_empty() || seen.since + lasts <= now { Step::Take } else { Step::Wait }
}

/// Notes what was read: the time moves only when the record does.
pub(super) fn observe(before: Option<Seen>, record: LeaseSpec, now: Instant) -> Seen {
    match before {
        Some(seen) if seen.record == record => seen,
        _ => Seen { record, since: now },
    }
}

/// The record of a new holder, or of the same one again.
pub(super) fn held(before: Option<&LeaseSpec>, me: Me<'_>, now: MicroTime) -> LeaseSpec {
    let same = before.is_some_and(|record| record.holder_identity.as_deref() == Some(me.identity));
    let transitions = before.map_or(0, |record| record.lease_transitions.unwrap_or(0) + i32::from(!same));
    let acquired = before.filter(|_| same).and_then(|record| record.acquire_time.clone());
    LeaseSpec {
        holder_identity: Some(me.identity.to_owned()),
        lease_duration_seconds: Some(i32::try_from(me.lease_duration.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(transitions),
        ..before.cloned().unwrap_or_default()
    }
}

/// The record that says that nobody holds the Lease.
pub(super) fn released(before: &LeaseSpec, now: MicroTime) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(String::new()),
        // Zero would be refused.
        lease_duration_seconds: Some(1),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        ..before.clone()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    const ME: Me<'_> = Me { identity: "me", lease_duration: Duration::from_secs(15) };

    fn record(holder: &str, seconds: Option<i32>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: seconds,
            lease_transitions: Some(3),
            acquire_time: Some(time(1)),
            renew_time: Some(time(2)),
            ..LeaseSpec::default()
        }
    }

    fn time(second: i64) -> MicroTime {
        MicroTime(Timestamp::from_second(second).expect("in range"))
    }

    #[test]
    fn a_lease_is_taken_only_when_nobody_can_still_hold_it() {
        let now = Instant::now() + Duration::from_secs(100);
        for (holder, promised, age, expected) in [
            ("me", Some(15), 0, Step::Renew),
            ("me", Some(15), 90, Step::Renew),
            ("", Some(1), 0, Step::Take),
            ("other", Some(15), 14, Step::Wait),
            ("other", Some(15), 15, Step::Take),
            ("other", Some(60), 59, Step::Wait),
            ("other", Some(60), 60, Step::Take),
            ("other", None, 14, Step::Wait),
            ("other", None, 15, Step::Take),
            ("other", Some(-5), 14, Step::Wait),
        ] {
            let seen = Seen { record: record(holder, promised), since: now - Duration::from_secs(age) };
            assert_eq!(decide(Some(&seen), ME, now), expected, "{holder:?} {promised:?} {age}");
        }
        assert_eq!(decide(None, ME, now), Step::Create);
        let nobody = Seen { record: LeaseSpec::default(), since: now };
        assert_eq!(decide(Some(&nobody), ME, now), Step::Take);
    }

    #[test]
    fn a_holder_whose_clock_is_wrong_is_alive_as_long_as_its_record_changes() {
        let start = Instant::now();
        let mut seen = observe(None, record("other", Some(15)), start);
        for round in 1..10 {
            let now = start + Duration::from_secs(10 * round);
            // Its renew times lie far in the past.
            let fresh =
                LeaseSpec { renew_time: Some(time(round.cast_signed())), ..record("other", Some(15)) };
            seen = observe(Some(seen), fresh, now);
            assert_eq!(decide(Some(&seen), ME, now + Duration::from_secs(9)), Step::Wait);
        }
        let silent = observe(Some(seen.clone()), seen.record.clone(), start + Duration::from_secs(200));
        assert_eq!(decide(Some(&silent), ME, start + Duration::from_secs(200)), Step::Take);
    }

    #[test]
    fn taking_over_counts_a_transition_and_renewing_does_not() {
        let taken = held(Some(&record("other", Some(60))), ME, time(9));
        assert_eq!((taken.lease_transitions, taken.acquire_time.clone()), (Some(4), Some(time(9))));
        assert_eq!((taken.holder_identity.as_deref(), taken.lease_duration_seconds), (Some("me"), Some(15)));
        let renewed = held(Some(&taken), ME, time(12));
        assert_eq!((renewed.lease_transitions, renewed.acquire_time), (Some(4), Some(time(9))));
        assert_eq!(renewed.renew_time, Some(time(12)));
        assert_eq!(held(None, ME, time(9)).lease_transitions, Some(0));
    }

    #[test]
    fn a_released_lease_can_be_taken_at_once() {
        let seen = observe(None, released(&record("other", Some(60)), time(9)), Instant::now());
        assert_eq!(decide(Some(&seen), ME, seen.since), Step::Take);
        assert_eq!(seen.record.lease_transitions, Some(3));
    }
}
