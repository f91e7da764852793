//! A keyed work queue: level-triggered, no key worked twice at once, failures tried again with back-off.

mod metrics;
mod state;

use std::future::Future;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use metrics::Metrics;
pub use state::Backoff;

use state::State;

/// What a handler says of the key it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is as it should be: earlier failures are forgotten.
    Done,
    /// Try again after the key's back-off.
    Retry,
    /// Look again after this time; earlier failures are forgotten.
    Again(Duration),
}

/// A queue of keys. Clones are the same queue.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    backoff: Backoff,
    metrics: metrics::Named,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// An empty queue; `name` is its label in the metrics.
    pub fn new(name: &'static str, backoff: Backoff, metrics: &Metrics) -> Self {
        let shared = Shared {
            state: Mutex::new(State::default()),
            changed: Notify::new(),
            backoff,
            metrics: metrics.named(name),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Works `key` as soon as there is a worker. While it is being worked, it is worked once more afterwards.
    pub fn add(&self, key: K) {
        let mut state = self.state();
        if state.add(key, Instant::now()) {
            self.shared.metrics.added(state.ready());
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Works `key` after `delay`, or earlier when it is added meanwhile.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.state().add_at(key, Instant::now() + delay);
        self.shared.changed.notify_one();
    }

    /// Works `key` again after its back-off, which doubles with each failure in a row.
    pub fn retry(&self, key: K) {
        let failures = self.state().fail(&key);
        self.shared.metrics.retried();
        self.add_after(key, self.shared.backoff.delay(failures, random()));
    }

    /// Forgets the failures of `key`.
    pub fn forget(&self, key: &K) {
        self.state().forget(key);
    }

    /// How often `key` has failed in a row.
    pub fn failures(&self, key: &K) -> u32 {
        self.state().failures(key)
    }

    /// Keys that wait for a worker now.
    pub fn len(&self) -> usize {
        self.state().ready()
    }

    /// Whether nothing waits for a worker.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next key, which is then this caller's until the claim is dropped; none when `stop` is cancelled.
    async fn claim(&self, stop: &CancellationToken) -> Option<Claim<K>> {
        while !stop.is_cancelled() {
            let changed = self.shared.changed.notified();
            let next_due = {
                let mut state = self.state();
                let now = Instant::now();
                let due = state.promote(now);
                if due > 0 {
                    self.shared.metrics.promoted(due, state.ready());
                }
                if let Some((key, since)) = state.take() {
                    self.shared.metrics.taken(now - since, state.ready());
                    return Some(Claim { queue: self.clone(), key, started: now });
                }
                state.next_due()
            };
            let due = async {
                match next_due {
                    Some(when) => tokio::time::sleep_until(when).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                () = changed => {}
                () = due => {}
            }
        }
        None
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key being worked; given back on drop, so that even a panic leaves it workable.
struct Claim<K: Clone + Eq + Hash> {
    queue: Queue<K>,
    key: K,
    started: Instant,
}

impl<K: Clone + Eq + Hash> Drop for Claim<K> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.done(&self.key, Instant::now());
        self.queue.shared.metrics.finished(self.started.elapsed(), state.ready());
        drop(state);
        self.queue.shared.changed.notify_one();
    }
}

/// Works the queue with at most `workers` handlers at once. After `stop` nothing new is begun, and it returns when the
/// running handlers have ended.
pub async fn run<K, F, W>(queue: Queue<K>, workers: usize, stop: CancellationToken, handler: F)
where
    K: Clone + Eq + Hash + Send + 'static,
    F: Fn(K) -> W,
    W: Future<Output = Outcome> + Send + 'static,
{
    let mut running = JoinSet::new();
    loop {
        // A free worker first, then a key: a claimed key is never kept waiting.
        while running.len() >= workers.max(1) {
            running.join_next().await;
        }
        while running.try_join_next().is_some() {}
        let Some(claim) = queue.claim(&stop).await else { break };
        let work = handler(claim.key.clone());
        running.spawn(async move {
            let outcome = work.await;
            let (queue, key) = (claim.queue.clone(), claim.key.clone());
            match outcome {
                Outcome::Done => queue.forget(&key),
                Outcome::Retry => queue.retry(key),
                Outcome::Again(delay) => {
                    queue.forget(&key);
                    queue.add_after(key, delay);
                }
            }
            drop(claim);
        });
    }
    while running.join_next().await.is_some() {}
}

/// A number in 0..1 that differs between keys and processes: good enough to spread retries.
pub(crate) fn random() -> f64 {
    let bits = u32::try_from(RandomState::new().hash_one(0_u8) >> 32).unwrap_or(0);
    f64::from(bits) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests;
