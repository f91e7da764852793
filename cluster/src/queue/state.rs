//! The queue as a pure state machine: time and chance are given to it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// How long a failing key waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub start: Duration,
    /// At most.
    pub max: Duration,
}

impl Backoff {
    /// `start` doubled for each further failure up to `max`, and up to a fifth more by `chance` (0..1), so that keys
    /// which failed together do not come back together.
    pub fn delay(&self, failures: u32, chance: f64) -> Duration {
        let doubled =
            self.start.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.max).mul_f64(1.0 + chance.clamp(0.0, 1.0) / 5.0)
    }
}

/// A key is in at most one of `ready` and `delayed`; a key in `processing` never is in `ready`.
pub(super) struct State<K> {
    /// To be worked, with the time since when.
    dirty: HashMap<K, Instant>,
    processing: HashSet<K>,
    ready: VecDeque<K>,
    delayed: BTreeMap<(Instant, u64), K>,
    due: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    sequence: u64,
}

impl<K> Default for State<K> {
    fn default() -> Self {
        Self {
            dirty: HashMap::new(),
            processing: HashSet::new(),
            ready: VecDeque::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            sequence: 0,
        }
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Marks `key` as to be worked; false when it was already.
    pub(super) fn add(&mut self, key: K, now: Instant) -> bool {
        // The handler decides anew about any delay.
        if let Some(slot) = self.due.remove(&key) {
            self.delayed.remove(&slot);
        }
        if self.dirty.contains_key(&key) {
            return false;
        }
        if !self.processing.contains(&key) {
            self.ready.push_back(key.clone());
        }
        self.dirty.insert(key, now);
        true
    }

    /// Marks `key` as to be worked at `when`. The earlier of two times holds; a key already to be worked stays so.
    pub(super) fn add_at(&mut self, key: K, when: Instant) {
        if self.dirty.contains_key(&key) {
            return;
        }
        if let Some(slot) = self.due.get(&key) {
            if slot.0 <= when {
                return;
            }
            self.delayed.remove(slot);
        }
        self.sequence += 1;
        let slot = (when, self.sequence);
        self.delayed.insert(slot, key.clone());
        self.due.insert(key, slot);
    }

    /// Moves what is due by `now`; returns how many keys.
    pub(super) fn promote(&mut self, now: Instant) -> usize {
        let mut moved = 0;
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.due.remove(&key);
            moved += usize::from(self.add(key, now));
        }
        moved
    }

    /// When the next delayed key is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((when, _), _)| *when)
    }

    /// Gives out the next key and the time since when it waits.
    pub(super) fn take(&mut self) -> Option<(K, Instant)> {
        let key = self.ready.pop_front()?;
        let since = self.dirty.remove(&key)?;
        self.processing.insert(key.clone());
        Some((key, since))
    }

    /// Takes `key` back; if it was added meanwhile it is ready again.
    pub(super) fn done(&mut self, key: &K, now: Instant) {
        self.processing.remove(key);
        if let Some(since) = self.dirty.get_mut(key) {
            *since = now;
            self.ready.push_back(key.clone());
        }
    }

    /// Counts a failure; returns how many there are in a row.
    pub(super) fn fail(&mut self, key: &K) -> u32 {
        let failures = self.failures.entry(key.clone()).or_default();
        *failures = failures.saturating_add(1);
        *failures
    }

    pub(super) fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    pub(super) fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or(0)
    }

    /// How many keys wait for a worker.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_key_added_twice_is_worked_once() {
        let (mut state, now) = (State::default(), Instant::now());
        assert!(state.add("a", now));
        assert!(!state.add("a", now));
        assert_eq!(state.take(), Some(("a", now)));
        assert_eq!(state.take(), None);
    }

    #[test]
    fn a_key_added_while_it_is_worked_waits_for_the_end_and_is_worked_again() {
        let (mut state, now) = (State::default(), Instant::now());
        state.add("a", now);
        state.take();
        state.add("a", now);
        assert_eq!(state.take(), None, "two workers would have the same key");
        state.done(&"a", after(now, 1));
        assert_eq!(state.take(), Some(("a", after(now, 1))));
    }

    #[test]
    fn keys_are_given_out_in_the_order_they_came() {
        let (mut state, now) = (State::default(), Instant::now());
        for key in ["b", "a", "c"] {
            state.add(key, now);
        }
        let order: Vec<_> = std::iter::from_fn(|| state.take()).map(|(key, _)| key).collect();
        assert_eq!(order, ["b", "a", "c"]);
    }

    #[test]
    fn the_earlier_of_two_delays_holds_and_an_add_ends_both() {
        let (mut state, now) = (State::default(), Instant::now());
        state.add_at("a", after(now, 10));
        state.add_at("a", after(now, 5));
        state.add_at("a", after(now, 20));
        assert_eq!(state.next_due(), Some(after(now, 5)));
        assert_eq!(state.promote(after(now, 4)), 0);
        state.add("a", now);
        assert_eq!(state.next_due(), None);
        assert_eq!(state.take(), Some(("a", now)));
    }

    #[test]
    fn a_delayed_key_that_comes_due_while_it_is_worked_is_not_given_out() {
        let (mut state, now) = (State::default(), Instant::now());
        state.add("a", now);
        state.take();
        state.add_at("a", after(now, 1));
        assert_eq!(state.promote(after(now, 2)), 1);
        assert_eq!(state.take(), None);
        state.done(&"a", after(now, 3));
        assert!(state.take().is_some());
    }

    #[test]
    fn failures_are_counted_by_key_until_forgotten() {
        let mut state = State::default();
        assert_eq!((state.fail(&"a"), state.fail(&"a"), state.fail(&"b")), (1, 2, 1));
        state.forget(&"a");
        assert_eq!((state.failures(&"a"), state.failures(&"b")), (0, 1));
    }

    #[test]
    fn the_back_off_doubles_up_to_its_limit_and_chance_adds_at_most_a_fifth() {
        let backoff = Backoff { start: Duration::from_secs(1), max: Duration::from_secs(300) };
        for (failures, chance, expected) in [
            (0, 0.0, 1.0),
            (1, 0.0, 1.0),
            (2, 0.0, 2.0),
            (9, 0.0, 256.0),
            (10, 0.0, 300.0),
            (u32::MAX, 0.0, 300.0),
            (1, 1.0, 1.2),
            (2, 0.5, 2.2),
            (10, 1.0, 360.0),
        ] {
            let delay = backoff.delay(failures, chance).as_secs_f64();
            assert!((delay - expected).abs() < 1e-6, "{failures} failures: {delay} instead of {expected}");
        }
    }
}
