//! Objects by key and by indices; pure, so that it is tested without a server.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::Key;

pub(super) type Values<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

pub(super) struct Store<K> {
    objects: HashMap<Key, Arc<K>>,
    indices: Vec<Secondary<K>>,
}

struct Secondary<K> {
    values: Values<K>,
    keys: HashMap<String, HashSet<Key>>,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self { objects: HashMap::new(), indices: Vec::new() }
    }
}

impl<K> Store<K> {
    /// Adds an index over the objects there are and those that come; returns its number.
    pub(super) fn add_index(&mut self, values: Values<K>) -> usize {
        let mut index = Secondary { values, keys: HashMap::new() };
        for (key, object) in &self.objects {
            index.add(key, object);
        }
        self.indices.push(index);
        self.indices.len() - 1
    }

    /// Puts `object` in; returns what was there.
    pub(super) fn insert(&mut self, key: Key, object: Arc<K>) -> Option<Arc<K>> {
        let old = self.objects.insert(key.clone(), Arc::clone(&object));
        for index in &mut self.indices {
            if let Some(old) = &old {
                index.remove(&key, old);
            }
            index.add(&key, &object);
        }
        old
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let old = self.objects.remove(key)?;
        for index in &mut self.indices {
            index.remove(key, &old);
        }
        Some(old)
    }

    /// Removes all objects whose key is not in `keys`; returns them.
    pub(super) fn retain(&mut self, keys: &HashSet<Key>) -> Vec<Arc<K>> {
        let gone: Vec<Key> = self.objects.keys().filter(|key| !keys.contains(key)).cloned().collect();
        gone.iter().filter_map(|key| self.remove(key)).collect()
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.objects.get(key).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<K>> {
        self.objects.values().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn find(&self, index: usize, value: &str) -> Vec<Arc<K>> {
        let keys = self.indices.get(index).and_then(|index| index.keys.get(value));
        keys.into_iter().flatten().filter_map(|key| self.get(key)).collect()
    }

    pub(super) fn has(&self, index: usize, value: &str) -> bool {
        self.indices.get(index).is_some_and(|index| index.keys.contains_key(value))
    }
}

impl<K> Secondary<K> {
    fn add(&mut self, key: &Key, object: &K) {
        for value in (self.values)(object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &Key, object: &K) {
        for value in (self.values)(object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (Store<Vec<&'static str>>, usize) {
        let mut store = Store::default();
        let index =
            store.add_index(Box::new(|tags: &Vec<&str>| tags.iter().map(ToString::to_string).collect()));
        (store, index)
    }

    #[test]
    fn an_index_follows_changes_and_removals() {
        let (mut store, tag) = store();
        store.insert(Key::cluster("a"), Arc::new(vec!["red", "big"]));
        store.insert(Key::cluster("b"), Arc::new(vec!["red"]));
        assert_eq!(store.find(tag, "red").len(), 2);
        store.insert(Key::cluster("a"), Arc::new(vec!["blue"]));
        assert_eq!(store.find(tag, "red"), [Arc::new(vec!["red"])]);
        assert!(!store.has(tag, "big") && store.has(tag, "blue"));
        store.remove(&Key::cluster("b"));
        assert!(!store.has(tag, "red"));
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn an_index_added_late_knows_the_objects_that_are_there() {
        let (mut store, _) = store();
        store.insert(Key::cluster("a"), Arc::new(vec!["red"]));
        let count = store.add_index(Box::new(|tags| vec![tags.len().to_string()]));
        assert_eq!(store.find(count, "1").len(), 1);
    }

    #[test]
    fn what_a_new_list_lacks_is_removed_and_named() {
        let (mut store, tag) = store();
        store.insert(Key::namespaced("x", "a"), Arc::new(vec!["red"]));
        store.insert(Key::namespaced("y", "a"), Arc::new(vec!["blue"]));
        let gone = store.retain(&HashSet::from([Key::namespaced("x", "a")]));
        assert_eq!(gone, [Arc::new(vec!["blue"])]);
        assert!(store.has(tag, "red") && !store.has(tag, "blue"));
    }

    #[test]
    fn an_object_with_the_same_value_twice_is_found_once() {
        let (mut store, tag) = store();
        store.insert(Key::cluster("a"), Arc::new(vec!["red", "red"]));
        assert_eq!(store.find(tag, "red").len(), 1);
        store.remove(&Key::cluster("a"));
        assert!(!store.has(tag, "red"));
    }
}
