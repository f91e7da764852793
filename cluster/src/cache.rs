//! Watched copies of one kind's objects, trimmed to what is used, with indices instead of scans.

mod store;
mod watch;

use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kube::core::DeserializeGuard;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch as signal;
use tokio_util::sync::CancellationToken;

use crate::{Error, Key};
use store::Store;

type Trim<K> = Box<dyn Fn(&mut K) + Send + Sync>;
type Listener<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// What happened to an object; the cache already shows it when a listener hears of it.
#[derive(Debug)]
pub enum Change<K> {
    /// It is new, or differs from `old`.
    Applied {
        /// What the cache had before.
        old: Option<Arc<K>>,
        /// What it has now.
        new: Arc<K>,
    },
    /// It is gone, perhaps while the watch was broken.
    Deleted(Arc<K>),
    /// Nothing happened, but the resync period is over.
    Resync(Arc<K>),
}

impl<K> Change<K> {
    /// The object that this is about, in its newest form.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Applied { new, .. } => new,
            Self::Deleted(object) | Self::Resync(object) => object,
        }
    }
}

/// A cache being set up. Nothing is watched before [`Builder::start`].
pub struct Builder<K> {
    /// Guarded: an object that cannot be parsed must not hide all the others.
    api: Api<DeserializeGuard<K>>,
    labels: Option<String>,
    fields: Option<String>,
    resync: Option<Duration>,
    trim: Trim<K>,
    listeners: Vec<Listener<K>>,
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    store: RwLock<Store<K>>,
    ready: signal::Sender<bool>,
}

/// The objects of one kind as the API server last told of them. Clones are the same cache.
pub struct Cache<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// The objects of a cache by some other value than their name.
pub struct Index<K> {
    shared: Arc<Shared<K>>,
    number: usize,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), number: self.number }
    }
}

impl<K> Builder<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// A cache of what `api` lists, such as `Builder::<Node>::new(Api::all(client))`.
    pub fn new(api: Api<DeserializeGuard<K>>) -> Self {
        let shared = Shared { store: RwLock::new(Store::default()), ready: signal::Sender::new(false) };
        Self {
            api,
            labels: None,
            fields: None,
            resync: None,
            trim: Box::new(|_| ()),
            listeners: Vec::new(),
            shared: Arc::new(shared),
        }
    }

    /// Only objects with these labels.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Only objects with these fields.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// Drops what nobody reads before an object is kept (managed fields always go). Such an object must never be
    /// written back as a whole.
    #[must_use]
    pub fn trim(mut self, trim: impl Fn(&mut K) + Send + Sync + 'static) -> Self {
        self.trim = Box::new(trim);
        self
    }

    /// Tells the listeners of every object once in about this time, to heal what an event missed.
    #[must_use]
    pub fn resync(mut self, period: Duration) -> Self {
        self.resync = Some(period);
        self
    }

    /// Finds objects by the values that `keys` gives for them.
    pub fn index(&mut self, keys: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) -> Index<K> {
        let number =
            self.shared.store.write().unwrap_or_else(PoisonError::into_inner).add_index(Box::new(keys));
        Index { shared: Arc::clone(&self.shared), number }
    }

    /// Calls `listener` on each change, in order. It must not block.
    pub fn listen(&mut self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.listeners.push(Box::new(listener));
    }

    /// The cache, still empty; for listeners that look things up.
    pub fn handle(&self) -> Cache<K> {
        Cache { shared: Arc::clone(&self.shared) }
    }

    /// Begins to watch, until `stop` is cancelled.
    pub fn start(self, stop: &CancellationToken) -> Cache<K> {
        let cache = self.handle();
        tokio::spawn(watch::run(self, stop.clone()));
        cache
    }
}

impl<K: Resource<DynamicType = ()>> Cache<K> {
    /// The object of this name.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.shared.read(|store| store.get(key))
    }

    /// The object of this name, for a cluster-scoped kind.
    pub fn named(&self, name: &str) -> Option<Arc<K>> {
        self.get(&Key::cluster(name))
    }

    /// All objects, in no order.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.shared.read(Store::all)
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.shared.read(Store::len)
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all objects that there were at the start have come.
    pub fn is_ready(&self) -> bool {
        *self.shared.ready.borrow()
    }

    /// Waits until all objects that there were at the start have come.
    pub async fn ready(&self, stop: &CancellationToken) -> Result<(), Error> {
        let mut ready = self.shared.ready.subscribe();
        tokio::select! {
            () = stop.cancelled() => Err(Error::Stopped { what: "the first list of objects" }),
            seen = ready.wait_for(|ready| *ready) => {
                seen.map(drop).map_err(|_| Error::Stopped { what: "the first list of objects" })
            }
        }
    }
}

impl<K> Index<K> {
    /// The objects that have `value`, in no order.
    pub fn get(&self, value: &str) -> Vec<Arc<K>> {
        self.shared.read(|store| store.find(self.number, value))
    }

    /// Whether any object has `value`.
    pub fn contains(&self, value: &str) -> bool {
        self.shared.read(|store| store.has(self.number, value))
    }
}

impl<K> Shared<K> {
    fn read<T>(&self, look: impl FnOnce(&Store<K>) -> T) -> T {
        look(&self.store.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Store<K>) -> T) -> T {
        change(&mut self.store.write().unwrap_or_else(PoisonError::into_inner))
    }
}
