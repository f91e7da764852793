//! The loop that keeps a cache up to date.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::Resource;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Config, Event, InitialListStrategy};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{Builder, Change, Listener, Shared, Trim};
use crate::error::{Category, category, chain};
use crate::{Key, queue};

/// Watches until `stop`.
pub(super) async fn run<K>(builder: Builder<K>, stop: CancellationToken)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let Builder { api, labels, fields, resync, trim, listeners, shared } = builder;
    let mut config =
        Config { label_selector: labels, field_selector: fields, ..Config::default() }.streaming_lists();
    let mut mirror = Mirror { trim, listeners, shared, seen: HashSet::new() };
    let mut next_resync = resync.map(soon);
    loop {
        let mut events = watch(api.clone(), config.clone()).default_backoff().boxed();
        let refused = loop {
            let due = async {
                match next_resync {
                    Some(when) => tokio::time::sleep_until(when).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = due => {
                    mirror.resync();
                    next_resync = resync.map(soon);
                }
                event = events.next() => match event {
                    Some(Ok(event)) => mirror.event(event),
                    Some(Err(error)) if refuses_streaming(&error) => break true,
                    Some(Err(error)) => {
                        warn!(kind = %K::kind(&()), error = chain(&error), "watch failed, trying again");
                    }
                    None => break false,
                },
            }
        };
        if refused {
            debug!(kind = %K::kind(&()), "the server has no streaming lists");
            config.initial_list_strategy = InitialListStrategy::ListWatch;
            config.page_size = Some(500);
        }
    }
}

/// A server without streaming lists calls the request invalid.
fn refuses_streaming(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(error) if category(error) == Category::Invalid)
}

/// Between 90 % and 110 % of `period` from now, so that processes do not resync together.
fn soon(period: Duration) -> Instant {
    Instant::now() + period.mul_f64(0.9 + queue::random() / 5.0)
}

/// Applies events to the store and tells the listeners.
struct Mirror<K> {
    trim: Trim<K>,
    listeners: Vec<Listener<K>>,
    shared: Arc<Shared<K>>,
    /// What the list under way has shown so far.
    seen: HashSet<Key>,
}

impl<K> Mirror<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug,
{
    fn event(&mut self, event: Event<DeserializeGuard<K>>) {
        match event {
            Event::Init => self.seen.clear(),
            Event::InitApply(object) => {
                // Kept also when it cannot be parsed: it exists, and its last good form is better than none.
                self.seen.insert(Key::of(&object));
                self.apply(object);
            }
            Event::InitDone => {
                let gone = self.shared.write(|store| store.retain(&self.seen));
                self.seen = HashSet::new();
                for object in gone {
                    self.tell(&Change::Deleted(object));
                }
                self.shared.ready.send_replace(true);
            }
            Event::Apply(object) => self.apply(object),
            Event::Delete(object) => {
                if let Some(old) = self.shared.write(|store| store.remove(&Key::of(&object))) {
                    self.tell(&Change::Deleted(old));
                }
            }
        }
    }

    fn apply(&mut self, object: DeserializeGuard<K>) {
        let key = Key::of(&object);
        let mut object = match object.0 {
            Ok(object) => object,
            Err(error) => {
                warn!(kind = %K::kind(&()), object = %key, %error, "cannot read this object, ignoring it");
                return;
            }
        };
        object.meta_mut().managed_fields = None;
        (self.trim)(&mut object);
        let new = Arc::new(object);
        let old = self.shared.write(|store| store.insert(key, Arc::clone(&new)));
        let unchanged = old.as_ref().is_some_and(|old| {
            old.meta().resource_version == new.meta().resource_version && old.meta().uid == new.meta().uid
        });
        if unchanged {
            return;
        }
        // The same name with another uid: the deletion happened unseen.
        if let Some(replaced) = old.as_ref().filter(|old| old.meta().uid != new.meta().uid) {
            self.tell(&Change::Deleted(Arc::clone(replaced)));
            self.tell(&Change::Applied { old: None, new });
        } else {
            self.tell(&Change::Applied { old, new });
        }
    }

    fn resync(&self) {
        if *self.shared.ready.borrow() {
            for object in self.shared.read(super::Store::all) {
                self.tell(&Change::Resync(object));
            }
        }
    }

    fn tell(&self, change: &Change<K>) {
        for listener in &self.listeners {
            listener(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, RwLock};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::Status;
    use serde_json::json;
    use tokio::sync::watch as signal;

    use super::super::store::Store;
    use super::*;

    fn guard(value: serde_json::Value) -> DeserializeGuard<ConfigMap> {
        serde_json::from_value(value).expect("metadata")
    }

    fn object(name: &str, uid: &str, version: &str) -> DeserializeGuard<ConfigMap> {
        guard(json!({"metadata": {"name": name, "uid": uid, "resourceVersion": version,
            "managedFields": [{"manager": "x"}]}, "data": {"big": "text"}}))
    }

    /// A mirror that drops the data, and the log of what its listener heard.
    fn mirror() -> (Mirror<ConfigMap>, Arc<Mutex<Vec<String>>>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let listener: Listener<ConfigMap> = Box::new(move |change| {
            let meta = &change.object().metadata;
            let what = match change {
                Change::Applied { old: None, .. } => "added",
                Change::Applied { .. } => "changed",
                Change::Deleted(_) => "deleted",
                Change::Resync(_) => "resync",
            };
            let name = meta.name.as_deref().unwrap_or_default();
            log.lock().expect("lock").push(format!("{what} {name}"));
        });
        let shared = Shared { store: RwLock::new(Store::default()), ready: signal::Sender::new(false) };
        let mirror = Mirror {
            trim: Box::new(|map: &mut ConfigMap| map.data = None),
            listeners: vec![listener],
            shared: Arc::new(shared),
            seen: HashSet::new(),
        };
        (mirror, heard)
    }

    fn take(heard: &Mutex<Vec<String>>) -> Vec<String> {
        std::mem::take(&mut heard.lock().expect("lock"))
    }

    #[test]
    fn a_second_list_tells_only_of_what_changed_while_the_watch_was_broken() {
        let (mut mirror, heard) = mirror();
        mirror.event(Event::Init);
        for name in ["same", "changes", "goes", "reborn"] {
            mirror.event(Event::InitApply(object(name, name, "1")));
        }
        mirror.event(Event::InitDone);
        assert!(*mirror.shared.ready.borrow());
        assert_eq!(take(&heard), ["added same", "added changes", "added goes", "added reborn"]);
        mirror.event(Event::Init);
        mirror.event(Event::InitApply(object("same", "same", "1")));
        mirror.event(Event::InitApply(object("changes", "changes", "2")));
        mirror.event(Event::InitApply(object("reborn", "other", "3")));
        mirror.event(Event::InitDone);
        assert_eq!(take(&heard), ["changed changes", "deleted reborn", "added reborn", "deleted goes"]);
    }

    #[test]
    fn what_is_kept_is_trimmed() {
        let (mut mirror, _) = mirror();
        mirror.event(Event::Apply(object("a", "a", "1")));
        let kept = mirror.shared.read(|store| store.get(&Key::cluster("a"))).expect("kept");
        assert_eq!((&kept.data, &kept.metadata.managed_fields), (&None, &None));
    }

    #[test]
    fn an_object_that_cannot_be_read_keeps_its_last_good_form_and_stops_nothing() {
        let (mut mirror, heard) = mirror();
        mirror.event(Event::Apply(object("a", "a", "1")));
        let bad = json!({"metadata": {"name": "a", "uid": "a", "resourceVersion": "2"}, "data": 7});
        mirror.event(Event::Init);
        mirror.event(Event::InitApply(guard(bad)));
        mirror.event(Event::InitApply(object("b", "b", "3")));
        mirror.event(Event::InitDone);
        assert_eq!(take(&heard), ["added a", "added b"]);
        assert!(mirror.shared.read(|store| store.get(&Key::cluster("a"))).is_some());
    }

    #[test]
    fn a_delete_is_told_once() {
        let (mut mirror, heard) = mirror();
        mirror.event(Event::Apply(object("a", "a", "1")));
        mirror.event(Event::Delete(object("a", "a", "2")));
        mirror.event(Event::Delete(object("a", "a", "2")));
        assert_eq!(take(&heard), ["added a", "deleted a"]);
    }

    #[test]
    fn a_resync_waits_for_the_first_list() {
        let (mut mirror, heard) = mirror();
        mirror.event(Event::Init);
        mirror.event(Event::InitApply(object("a", "a", "1")));
        mirror.resync();
        mirror.event(Event::InitDone);
        mirror.resync();
        assert_eq!(take(&heard), ["added a", "resync a"]);
    }

    #[test]
    fn only_an_invalid_request_means_that_streaming_is_refused() {
        let failed = |code| {
            let status = Status::failure("no", "").with_code(code).boxed();
            watcher::Error::WatchStartFailed(kube::Error::Api(status))
        };
        assert!(refuses_streaming(&failed(422)));
        for code in [401, 403, 404, 410, 429, 500, 503] {
            assert!(!refuses_streaming(&failed(code)), "{code}");
        }
    }
}
