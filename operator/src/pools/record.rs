//! The record of a backend's pools, kept in a ConfigMap so that it outlives operator and nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};

/// Name of the ConfigMap.
pub fn name(backend: &str) -> String {
    format!("dunnage-{backend}-pools")
}

/// Pools by id.
pub type Record = BTreeMap<String, Entry>;

/// How far a pool has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The id is chosen; the agent may or may not have made the pool.
    Pending,
    /// Seen ready.
    Active,
    /// A person said that its node shall start a new one. It is taken back when it shows up.
    Retired,
    /// Its node is gone from the cluster. It is taken back when it shows up.
    Lost,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub node: String,
    #[serde(default)]
    pub node_uid: String,
    #[serde(default)]
    pub path: String,
    pub phase: Phase,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    /// Since when the Node object is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_gone: Option<Timestamp>,
}

/// The record cannot be read. Going on without it could make a second pool where one is missing.
#[derive(Debug, thiserror::Error)]
#[error("the pool record {config_map} has an unreadable entry {pool:?}: correct it or remove that entry")]
pub struct Unreadable {
    pub config_map: String,
    pub pool: String,
    pub source: serde_json::Error,
}

/// Reads the record.
pub fn read(map: &ConfigMap) -> Result<Record, Unreadable> {
    let entries = map.data.iter().flatten().map(|(pool, text)| {
        let entry = serde_json::from_str(text).map_err(|source| Unreadable {
            config_map: map.metadata.name.clone().unwrap_or_default(),
            pool: pool.clone(),
            source,
        })?;
        Ok((pool.clone(), entry))
    });
    entries.collect()
}

/// The ConfigMap's data.
pub fn write(record: &Record) -> BTreeMap<String, String> {
    let text = |entry| serde_json::to_string(entry).expect("an entry has only text");
    record.iter().map(|(pool, entry)| (pool.clone(), text(entry))).collect()
}

/// Whether `text` has the form of a pool id.
pub fn is_pool_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
