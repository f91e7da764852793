//! What is known in memory about claims that are not done: calls begun, refusals, and waits.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dunnage_csi::v1::CreateVolumeRequest;
use tokio::time::Instant;

use super::journal::state::Entry;

/// Longest wait between two times that a claim is handed back to the scheduler.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A driver that is at work is asked again at least this often.
const LONGEST_PATIENCE: Duration = Duration::from_secs(10);
const WOKEN_AT_ONCE: usize = 16;

/// What a claim waits for, so that it is woken when that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Space in the driver's pool.
    Room,
    /// A node with the driver and its labels.
    Place,
}

/// All claims that something is known about.
#[derive(Default)]
pub struct Progress(Mutex<HashMap<String, Item>>);

#[derive(Default)]
struct Item {
    owed: Option<Entry>,
    /// A PersistentVolume was written that the watch may not show yet.
    saved: bool,
    refused: Option<(Box<CreateVolumeRequest>, Instant)>,
    wait: Option<Wait>,
    handed_back: HandedBack,
    /// How often the driver has said that it is still at it.
    busy: u32,
}

/// How often a claim has gone back to the scheduler for want of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HandedBack {
    times: u32,
    not_before: Option<Instant>,
}

impl HandedBack {
    /// Whether the claim may go back now; else how long it has to wait.
    fn attempt(&mut self, now: Instant) -> Result<(), Duration> {
        match self.not_before {
            Some(when) if when > now => Err(when - now),
            _ => {
                self.times = self.times.saturating_add(1);
                let pause = Duration::from_secs(1).saturating_mul(1 << self.times.min(16));
                self.not_before = Some(now + pause.min(LONGEST_PAUSE));
                Ok(())
            }
        }
    }
}

impl Progress {
    /// The call whose end is not known.
    pub fn owed(&self, uid: &str) -> Option<Entry> {
        self.items().get(uid)?.owed.clone()
    }

    /// Whether the end of any such call is not known.
    pub fn owes(&self, such: impl Fn(&Entry) -> bool) -> bool {
        self.items().values().filter_map(|item| item.owed.as_ref()).any(such)
    }

    /// A call is about to be made.
    pub fn begin(&self, uid: &str, entry: Entry) {
        self.items().entry(uid.to_owned()).or_default().owed = Some(entry);
    }

    /// Nothing was made by the call that was begun.
    pub fn end(&self, uid: &str) -> Option<Entry> {
        self.items().get_mut(uid)?.owed.take()
    }

    /// The PersistentVolume is written: nothing is owed, and nothing more is to be made.
    pub fn save(&self, uid: &str) {
        self.items().insert(uid.to_owned(), Item { saved: true, ..Item::default() });
    }

    /// Whether the PersistentVolume is written, as far as this process knows.
    pub fn is_saved(&self, uid: &str) -> bool {
        self.items().get(uid).is_some_and(|item| item.saved)
    }

    /// Nothing needs to be known any more.
    pub fn forget(&self, uid: &str) {
        self.items().remove(uid);
    }

    /// When to ask a driver again that is still at it: ever slower, but not as slowly as one that fails.
    pub fn busy(&self, uid: &str, first: Duration) -> Duration {
        let mut items = self.items();
        let item = items.entry(uid.to_owned()).or_default();
        let pause = first.saturating_mul(1 << item.busy.min(16)).min(LONGEST_PATIENCE);
        item.busy = item.busy.saturating_add(1);
        pause
    }

    /// The driver called this request invalid.
    pub fn refuse(&self, uid: &str, request: CreateVolumeRequest, until: Instant) {
        self.items().entry(uid.to_owned()).or_default().refused = Some((Box::new(request), until));
    }

    /// Whether the driver has refused the very same request lately.
    pub fn is_refused(&self, uid: &str, request: &CreateVolumeRequest, now: Instant) -> bool {
        let items = self.items();
        let refused = items.get(uid).and_then(|item| item.refused.as_ref());
        refused.is_some_and(|(refused, until)| *until > now && **refused == *request)
    }

    /// Notes what the claim waits for.
    pub fn wait(&self, uid: &str, wait: Option<Wait>) {
        let mut items = self.items();
        match (items.get_mut(uid), wait) {
            (Some(item), wait) => item.wait = wait,
            (None, None) => {}
            (None, wait) => drop(items.insert(uid.to_owned(), Item { wait, ..Item::default() })),
        }
    }

    /// Some of the claims that wait for this.
    pub fn waiting(&self, wait: Wait) -> Vec<String> {
        let most = match wait {
            // Each success wakes the next ones; all at once would only fail all but a few again.
            Wait::Room => WOKEN_AT_ONCE,
            Wait::Place => usize::MAX,
        };
        let items = self.items();
        let waiting = items.iter().filter(|(_, item)| item.wait == Some(wait));
        waiting.take(most).map(|(uid, _)| uid.clone()).collect()
    }

    /// Whether a claim may go back to the scheduler now; else how long it has to wait.
    pub fn hand_back(&self, uid: &str, now: Instant) -> Result<(), Duration> {
        self.items().entry(uid.to_owned()).or_default().handed_back.attempt(now)
    }

    fn items(&self) -> MutexGuard<'_, HashMap<String, Item>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn going_back_to_the_scheduler_is_free_once_and_then_ever_slower() {
        let (mut handed_back, start) = (HandedBack::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(handed_back.attempt(start), Ok(()));
        assert_eq!(handed_back.attempt(start), Err(2 * second));
        assert_eq!(handed_back.attempt(start + 2 * second), Ok(()));
        assert_eq!(handed_back.attempt(start + 3 * second), Err(3 * second));
        let mut now = start;
        for _ in 0..40 {
            now += LONGEST_PAUSE;
            assert_eq!(handed_back.attempt(now), Ok(()));
        }
        assert_eq!(handed_back.attempt(now), Err(LONGEST_PAUSE));
    }

    #[test]
    fn a_busy_driver_is_asked_ever_slower_up_to_a_limit() {
        let progress = Progress::default();
        let pauses: Vec<u64> = (0..6).map(|_| progress.busy("1", Duration::from_secs(1)).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn only_the_very_same_request_counts_as_refused_and_not_for_ever() {
        let (progress, now) = (Progress::default(), Instant::now());
        let request = |value: &str| CreateVolumeRequest {
            parameters: [("a".to_owned(), value.to_owned())].into(),
            ..CreateVolumeRequest::default()
        };
        progress.refuse("1", request("wrong"), now + Duration::from_secs(10));
        assert!(progress.is_refused("1", &request("wrong"), now));
        assert!(!progress.is_refused("1", &request("right"), now));
        assert!(!progress.is_refused("2", &request("wrong"), now));
        assert!(!progress.is_refused("1", &request("wrong"), now + Duration::from_secs(11)));
    }

    #[test]
    fn a_saved_volume_is_remembered_until_it_is_forgotten() {
        let progress = Progress::default();
        progress.wait("1", Some(Wait::Room));
        progress.save("1");
        assert!(progress.is_saved("1") && progress.waiting(Wait::Room).is_empty());
        progress.forget("1");
        assert!(!progress.is_saved("1"));
    }

    #[test]
    fn claims_are_found_by_what_they_wait_for() {
        let progress = Progress::default();
        progress.wait("1", Some(Wait::Room));
        progress.wait("2", Some(Wait::Place));
        assert_eq!(progress.waiting(Wait::Room), ["1"]);
        progress.wait("1", None);
        assert!(progress.waiting(Wait::Room).is_empty());
        progress.forget("2");
        assert!(progress.waiting(Wait::Place).is_empty());
    }
}
