//! What a process remembers of claims between two looks. All of it may be lost: then a call is repeated.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::outcome::Class;

/// What is known of one claim, by its UID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// The last call has ended, and has changed nothing.
    pub(super) ended: bool,
    /// The driver does not grow the volume while it is in use.
    pub(super) in_use: bool,
    /// Since when the driver calls impossible what is recorded.
    impossible_since: Option<Instant>,
}

impl Note {
    /// How much longer the same is not to be asked for again.
    pub(super) fn rest(&self, period: Duration, now: Instant) -> Option<Duration> {
        let over = self.impossible_since? + period;
        Some(over.saturating_duration_since(now)).filter(|rest| !rest.is_zero())
    }
}

/// The notes of all claims.
#[derive(Debug, Default)]
pub(super) struct Memory {
    notes: Mutex<HashMap<String, Note>>,
}

impl Memory {
    pub(super) fn of(&self, uid: &str) -> Note {
        self.lock().get(uid).copied().unwrap_or_default()
    }

    /// A call is about to be made: from now on nothing is known of how it ends.
    pub(super) fn begin(&self, uid: &str) {
        self.lock().insert(uid.to_owned(), Note::default());
    }

    /// A call has failed.
    pub(super) fn failed(&self, uid: &str, class: Class, now: Instant) {
        let note = Note {
            ended: class != Class::Unfinished,
            in_use: class == Class::InUse,
            impossible_since: (class == Class::Infeasible).then_some(now),
        };
        self.lock().insert(uid.to_owned(), note);
    }

    /// What was asked for is done, but the node could not do its part the last time: it is not asked again soon.
    pub(super) fn rests(&self, uid: &str, now: Instant) {
        self.lock().insert(uid.to_owned(), Note { impossible_since: Some(now), ..Note::default() });
    }

    /// All is well, or the claim is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Note>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_impossible_rests_for_the_period_and_only_that() {
        let (memory, period) = (Memory::default(), Duration::from_secs(300));
        for (class, ended, in_use, rests) in [
            (Class::Unfinished, false, false, false),
            (Class::Infeasible, true, false, true),
            (Class::InUse, true, true, false),
            (Class::Final, true, false, false),
        ] {
            memory.failed("1", class, Instant::now());
            let note = memory.of("1");
            assert_eq!((note.ended, note.in_use), (ended, in_use), "{class:?}");
            assert_eq!(note.rest(period, Instant::now()).is_some(), rests, "{class:?}");
        }
        memory.failed("1", Class::Infeasible, Instant::now());
        tokio::time::advance(Duration::from_secs(299)).await;
        assert_eq!(memory.of("1").rest(period, Instant::now()), Some(Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(memory.of("1").rest(period, Instant::now()), None);
        memory.begin("1");
        assert_eq!((memory.of("1"), memory.of("2")), (Note::default(), Note::default()));
    }
}
