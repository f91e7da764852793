//! The journal as a value: what is owed, and how it fits into a Lease's annotations.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::provisioner::names;
use crate::provisioner::source::Source;
use crate::provisioner::topology::{Asked, Segment};

const ENTRY: &str = "journal.dunnage.dev/claim-";
const CLASS: &str = "journal.dunnage.dev/class-";
const PLACES: &str = "journal.dunnage.dev/places-";

/// The API server refuses more than 256 KiB of annotations an object; the rest is left to others.
pub const LIMIT: usize = 240 << 10;

/// What must be known to ask for the same volume again, should claim and class be gone by then.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub claim: PersistentVolumeClaim,
    pub class: StorageClass,
    pub topology: Option<Asked>,
    pub source: Option<Source>,
    pub mutable_parameters: BTreeMap<String, String>,
}

impl Entry {
    /// An entry with no more of claim and class than a request and a volume are made of.
    pub fn new(claim: &PersistentVolumeClaim, class: &StorageClass, keep: &BTreeSet<String>) -> Self {
        let kept = |key: &String| {
            keep.contains(key)
                || [names::SELECTED_NODE, names::SELECTED_NODE_ALPHA, names::STORAGE_CLASS_BETA]
                    .contains(&key.as_str())
        };
        let annotations = claim.metadata.annotations.iter().flatten();
        let annotations: BTreeMap<String, String> =
            annotations.filter(|(key, _)| kept(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        let spec = claim.spec.as_ref().map(|spec| PersistentVolumeClaimSpec {
            access_modes: spec.access_modes.clone(),
            data_source: spec.data_source.clone(),
            data_source_ref: spec.data_source_ref.clone(),
            resources: spec.resources.clone(),
            storage_class_name: spec.storage_class_name.clone(),
            volume_attributes_class_name: spec.volume_attributes_class_name.clone(),
            volume_mode: spec.volume_mode.clone(),
            ..PersistentVolumeClaimSpec::default()
        });
        let claim = PersistentVolumeClaim {
            metadata: ObjectMeta {
                namespace: claim.metadata.namespace.clone(),
                name: claim.metadata.name.clone(),
                uid: claim.metadata.uid.clone(),
                annotations: (!annotations.is_empty()).then_some(annotations),
                ..ObjectMeta::default()
            },
            spec,
            status: None,
        };
        let class = StorageClass {
            metadata: ObjectMeta {
                name: class.metadata.name.clone(),
                uid: class.metadata.uid.clone(),
                ..ObjectMeta::default()
            },
            ..class.clone()
        };
        Self { claim, class, topology: None, source: None, mutable_parameters: BTreeMap::new() }
    }
}

/// There is no room for a further entry now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many volumes are being made at once; this one waits until some are done")]
pub struct Full;

/// All entries, as the annotations they are stored in. Classes and places are stored once for all claims.
#[derive(Clone, Debug, Default)]
pub struct State {
    entries: BTreeMap<String, Stored>,
    shared: BTreeMap<String, Shared>,
    /// Annotations of ours that this version cannot read: kept, for they may mean a volume.
    unread: BTreeMap<String, String>,
    size: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    text: String,
    shared: Vec<String>,
}

#[derive(Clone, Debug)]
struct Shared {
    text: String,
    users: usize,
}

#[derive(Serialize, Deserialize)]
struct Record {
    claim: PersistentVolumeClaim,
    class: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    places: Option<Places>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Source>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    mutable: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Places {
    of: String,
    first: usize,
}

impl State {
    /// Puts an entry in; false when it is there as it is.
    pub fn insert(&mut self, uid: &str, entry: &Entry) -> Result<bool, Full> {
        let (stored, shared) = store(entry);
        if self.entries.get(uid) == Some(&stored) {
            return Ok(false);
        }
        let old = self.take(uid);
        self.put(uid, stored, shared);
        if self.size > LIMIT {
            self.take(uid);
            if let Some((stored, shared)) = old {
                self.put(uid, stored, shared);
            }
            return Err(Full);
        }
        Ok(true)
    }

    /// Puts an entry in that is stored already, whatever the limit.
    pub fn keep(&mut self, uid: &str, entry: &Entry) {
        self.take(uid);
        let (stored, shared) = store(entry);
        self.put(uid, stored, shared);
    }

    /// Takes an entry out; false when there is none.
    pub fn remove(&mut self, uid: &str) -> bool {
        self.take(uid).is_some()
    }

    pub fn contains(&self, uid: &str) -> bool {
        self.entries.contains_key(uid)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes that the annotations take.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The annotations of a Lease that had `others`: those of ours replaced, the rest left.
    pub fn annotations(&self, others: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut all: BTreeMap<String, String> =
            others.iter().filter(|(key, _)| !is_ours(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        all.extend(self.unread.clone());
        all.extend(self.shared.iter().map(|(key, shared)| (key.clone(), shared.text.clone())));
        all.extend(self.entries.iter().map(|(uid, stored)| (format!("{ENTRY}{uid}"), stored.text.clone())));
        all
    }

    fn put(&mut self, uid: &str, stored: Stored, shared: Vec<(String, String)>) {
        for (key, text) in shared {
            let size = key.len() + text.len();
            let shared = self.shared.entry(key).or_insert(Shared { text, users: 0 });
            if shared.users == 0 {
                self.size += size;
            }
            shared.users += 1;
        }
        self.size += ENTRY.len() + uid.len() + stored.text.len();
        self.entries.insert(uid.to_owned(), stored);
    }

    fn take(&mut self, uid: &str) -> Option<(Stored, Vec<(String, String)>)> {
        let stored = self.entries.remove(uid)?;
        self.size -= ENTRY.len() + uid.len() + stored.text.len();
        let mut texts = Vec::new();
        for key in &stored.shared {
            let Some(shared) = self.shared.get_mut(key) else { continue };
            texts.push((key.clone(), shared.text.clone()));
            shared.users -= 1;
            if shared.users == 0 {
                self.size -= key.len() + shared.text.len();
                self.shared.remove(key);
            }
        }
        Some((stored, texts))
    }
}

/// What a Lease's annotations hold.
#[derive(Debug, Default)]
pub struct Read {
    pub entries: BTreeMap<String, Entry>,
    /// Keys that this version cannot read.
    pub unread: BTreeMap<String, String>,
}

/// Reads the entries of a Lease.
pub fn read(annotations: &BTreeMap<String, String>) -> Read {
    let mut read = Read::default();
    for (key, text) in annotations {
        let Some(uid) = key.strip_prefix(ENTRY) else { continue };
        if let Some(entry) = entry(text, annotations) {
            read.entries.insert(uid.to_owned(), entry);
            continue;
        }
        read.unread.insert(key.clone(), text.clone());
        // What it refers to is kept with it.
        let referred = annotations.iter().filter(|(key, _)| is_ours(key) && !key.starts_with(ENTRY));
        read.unread.extend(referred.map(|(k, v)| (k.clone(), v.clone())));
    }
    read
}

impl From<&Read> for State {
    fn from(read: &Read) -> Self {
        let unread = read.unread.clone();
        let size = unread.iter().map(|(key, text)| key.len() + text.len()).sum();
        let mut state = Self { unread, size, ..Self::default() };
        for (uid, entry) in &read.entries {
            state.keep(uid, entry);
        }
        state
    }
}

fn is_ours(key: &str) -> bool {
    [ENTRY, CLASS, PLACES].iter().any(|prefix| key.starts_with(prefix))
}

fn store(entry: &Entry) -> (Stored, Vec<(String, String)>) {
    let class = text(&entry.class);
    let class_key = hashed(&class);
    let mut shared = vec![(format!("{CLASS}{class_key}"), class)];
    let places = entry.topology.as_ref().and_then(|asked| {
        let places = text(&asked.requisite);
        // The places of thousands of nodes do not fit. Drivers find a volume by its name wherever it is asked for.
        if places.len() > LIMIT / 2 {
            return None;
        }
        let of = hashed(&places);
        shared.push((format!("{PLACES}{of}"), places));
        Some(Places { of, first: asked.first })
    });
    let record = Record {
        claim: entry.claim.clone(),
        class: class_key,
        places,
        source: entry.source.clone(),
        mutable: entry.mutable_parameters.clone(),
    };
    let keys = shared.iter().map(|(key, _)| key.clone()).collect();
    (Stored { text: text(&record), shared: keys }, shared)
}

fn entry(stored: &str, annotations: &BTreeMap<String, String>) -> Option<Entry> {
    let record: Record = serde_json::from_str(stored).ok()?;
    let class = serde_json::from_str(annotations.get(&format!("{CLASS}{}", record.class))?).ok()?;
    let topology = match record.places {
        None => None,
        Some(Places { of, first }) => {
            let requisite: Vec<Segment> =
                serde_json::from_str(annotations.get(&format!("{PLACES}{of}"))?).ok()?;
            Some(Asked { requisite, first })
        }
    };
    let (claim, source, mutable_parameters) = (record.claim, record.source, record.mutable);
    Some(Entry { claim, class, topology, source, mutable_parameters })
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data with string keys always has a JSON form")
}

/// Only tells texts of one journal apart; it need not be the same in the next version.
fn hashed(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests;
