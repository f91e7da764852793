//! The record of a backend's pools, kept in a ConfigMap so that it outlives operator and nodes.
//!
//! The operator writes it; the router's discovery reads it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Name of the ConfigMap.
pub fn name(backend: &str) -> String {
    format!("dunnage-{backend}-pools")
}

/// All pools of a backend by id.
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

impl Phase {
    /// Whether nobody waits for the pool any more.
    pub fn is_given_up(self) -> bool {
        match self {
            Self::Pending | Self::Active => false,
            Self::Retired | Self::Lost => true,
        }
    }
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Name of the Kubernetes node that it was last on.
    pub node: String,
    /// That Node object's uid.
    #[serde(default)]
    pub node_uid: String,
    /// Path on the node.
    #[serde(default)]
    pub path: String,
    /// How far it has come.
    pub phase: Phase,
    /// When its id was chosen, or it was first described.
    pub first_seen: Timestamp,
    /// When an agent last began to describe it.
    pub last_seen: Timestamp,
    /// Since when the Node object is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_gone: Option<Timestamp>,
}

/// The record cannot be read. Going on without it could make a second pool where one is missing.
#[derive(Debug, thiserror::Error)]
#[error("the pool record {config_map} has an unreadable entry {pool:?}: correct it or remove that entry")]
pub struct Unreadable {
    /// Name of the ConfigMap.
    pub config_map: String,
    /// The entry's key.
    pub pool: String,
    /// What is wrong with it.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn map(data: &[(&str, &str)]) -> ConfigMap {
        let data = data.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        ConfigMap { data: Some(data), ..ConfigMap::default() }
    }

    #[test]
    fn what_is_written_is_read_and_what_is_missing_is_filled_in() {
        let text = r#"{"node":"n1","phase":"Lost","firstSeen":"2026-01-01T00:00:00Z","lastSeen":"2026-01-02T00:00:00Z"}"#;
        let record = read(&map(&[("0123456789abcdef", text)])).unwrap();
        let entry = &record["0123456789abcdef"];
        assert_eq!((entry.node.as_str(), entry.phase, entry.node_gone), ("n1", Phase::Lost, None));
        let again = ConfigMap { data: Some(write(&record)), ..ConfigMap::default() };
        assert_eq!(read(&again).unwrap(), record);
    }

    #[test]
    fn an_entry_that_cannot_be_read_is_named() {
        let error = read(&map(&[("0123456789abcdef", "{}")])).unwrap_err();
        assert!(error.to_string().contains("0123456789abcdef"), "{error}");
    }

    #[test]
    fn a_pool_id_has_sixteen_lower_hexadecimal_digits() {
        for (text, is) in
            [("0123456789abcdef", true), ("0123456789ABCDEF", false), ("012345678", false), ("", false)]
        {
            assert_eq!(is_pool_id(text), is, "{text}");
        }
    }
}
