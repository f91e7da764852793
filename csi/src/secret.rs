//! How a secret shows in a log: its keys, never its values.

use std::collections::HashMap;
use std::fmt;

/// A map of secrets whose `Debug` form is safe to log.
pub struct Stripped<'a>(pub &'a HashMap<String, String>);

impl fmt::Debug for Stripped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys: Vec<&String> = self.0.keys().collect();
        keys.sort();
        f.debug_map().entries(keys.into_iter().map(|key| (key, "***stripped***"))).finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::v1::{CreateVolumeRequest, NodeStageVolumeRequest};

    #[test]
    fn a_request_shows_its_secrets_keys_and_never_their_values() {
        let secrets = [("password".to_owned(), "hunter2".to_owned())];
        let create = CreateVolumeRequest {
            name: "pvc-1".into(),
            secrets: secrets.clone().into(),
            ..CreateVolumeRequest::default()
        };
        let stage = NodeStageVolumeRequest { secrets: secrets.into(), ..NodeStageVolumeRequest::default() };
        for text in [format!("{create:?}"), format!("{stage:#?}")] {
            assert!(text.contains("password") && !text.contains("hunter2"), "{text}");
        }
    }

    /// csi.proto's own marks are the authority: a new secret field under another name must fail here.
    #[test]
    fn every_field_that_the_specification_marks_secret_is_named_secrets() {
        let proto = include_str!("../proto/csi.proto");
        let marked = proto.matches("(csi_secret) = true").count();
        let named = proto.matches("map<string, string> secrets = ").count();
        assert!(marked > 0);
        assert_eq!(marked, named);
    }
}
