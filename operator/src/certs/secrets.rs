//! Authorities and certificates as Secrets: what else must be known of them stands in annotations, so that nothing
//! has to read a certificate.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use sha2::{Digest, Sha256};

use super::{Authority, Leaf, Pair, Party};

const NOT_BEFORE: &str = "dunnage.dev/not-before";
const NOT_AFTER: &str = "dunnage.dev/not-after";
const SINCE: &str = "dunnage.dev/since";
const ISSUER: &str = "dunnage.dev/issuer";

/// Name of the Secret with the authority.
pub fn authority_name(backend: &str) -> String {
    format!("dunnage-{backend}-ca")
}

/// Name of the Secret with a part's certificate.
pub fn leaf_name(backend: &str, party: Party) -> String {
    format!("dunnage-{backend}-{}-tls", party.word())
}

/// Tells certificates apart.
pub fn fingerprint(pem: &str) -> String {
    hex::encode(Sha256::digest(pem.as_bytes()))
}

/// The Secret of an authority.
pub fn from_authority(metadata: ObjectMeta, authority: &Authority) -> Secret {
    let mut data = vec![
        ("ca.crt", authority.bundle()),
        ("current.crt", authority.current.cert.clone()),
        ("current.key", authority.current.key.clone()),
    ];
    if let Some(next) = &authority.next {
        data.extend([("next.crt", next.cert.clone()), ("next.key", next.key.clone())]);
    }
    if let Some(previous) = &authority.previous {
        data.push(("previous.crt", previous.clone()));
    }
    let notes = [(NOT_AFTER, authority.not_after.to_string()), (SINCE, authority.since.to_string())];
    secret(metadata, &notes, data)
}

/// The Secret of a part's certificate.
pub fn from_leaf(metadata: ObjectMeta, leaf: &Leaf) -> Secret {
    let notes = [
        (NOT_BEFORE, leaf.not_before.to_string()),
        (NOT_AFTER, leaf.not_after.to_string()),
        (ISSUER, leaf.issuer.clone()),
    ];
    let data = vec![
        ("ca.crt", leaf.bundle.clone()),
        ("tls.crt", leaf.pair.cert.clone()),
        ("tls.key", leaf.pair.key.clone()),
    ];
    secret(metadata, &notes, data)
}

/// Reads an authority; `None` when something is missing, so that it is made anew.
pub fn to_authority(secret: &Secret) -> Option<Authority> {
    let next = text(secret, "next.crt").zip(text(secret, "next.key"));
    Some(Authority {
        current: Pair { cert: text(secret, "current.crt")?, key: text(secret, "current.key")? },
        not_after: time(secret, NOT_AFTER)?,
        next: next.map(|(cert, key)| Pair { cert, key }),
        previous: text(secret, "previous.crt"),
        since: time(secret, SINCE)?,
    })
}

/// Reads a part's certificate; `None` when something is missing, so that it is issued anew.
pub fn to_leaf(secret: &Secret) -> Option<Leaf> {
    Some(Leaf {
        pair: Pair { cert: text(secret, "tls.crt")?, key: text(secret, "tls.key")? },
        bundle: text(secret, "ca.crt")?,
        issuer: note(secret, ISSUER)?.to_owned(),
        not_before: time(secret, NOT_BEFORE)?,
        not_after: time(secret, NOT_AFTER)?,
    })
}

fn secret(mut metadata: ObjectMeta, notes: &[(&str, String)], data: Vec<(&str, String)>) -> Secret {
    let annotations = metadata.annotations.get_or_insert_with(BTreeMap::new);
    annotations.extend(notes.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    let data = data.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())));
    Secret { metadata, data: Some(data.collect()), type_: Some("Opaque".to_owned()), ..Secret::default() }
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let bytes = &secret.data.as_ref()?.get(key)?.0;
    String::from_utf8(bytes.clone()).ok().filter(|text| !text.is_empty())
}

fn note<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    secret.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn time(secret: &Secret, key: &str) -> Option<Timestamp> {
    note(secret, key)?.parse().ok()
}
