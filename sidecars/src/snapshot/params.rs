//! The parameters of a VolumeSnapshotClass: for the driver, or for the roles that speak to it.

use std::collections::BTreeMap;

use crate::provisioner::names::PARAMETER_PREFIX;
use crate::provisioner::params::SecretTemplate;
use crate::provisioner::secrets::{self, SecretRef};

type Parameters = BTreeMap<String, String>;

/// What a secret is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// CreateSnapshot and DeleteSnapshot.
    Snapshot,
    /// ListSnapshots and GetSnapshot.
    List,
}

/// Parameters that cannot be meant.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error(
        "VolumeSnapshotClass parameter {0:?} is not known; known with this prefix are the names and namespaces of secrets"
    )]
    Unknown(String),
    #[error("VolumeSnapshotClass parameters {name:?} and {namespace:?} need each other")]
    HalfSecret { name: String, namespace: String },
    #[error(transparent)]
    Secret(#[from] secrets::Invalid),
}

const SECRETS: [&str; 4] = ["snapshotter", "snapshotter-list", "group-snapshotter", "group-snapshotter-get"];

/// What the templates of secrets may speak of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) content: &'a str,
    pub(crate) snapshot: &'a str,
    pub(crate) namespace: &'a str,
}

/// The parameters that are meant for the driver.
pub(crate) fn of_driver(parameters: &Parameters) -> Result<Parameters, Invalid> {
    let mut left = Parameters::new();
    for (key, value) in parameters {
        match key.strip_prefix(PARAMETER_PREFIX) {
            None => drop(left.insert(key.clone(), value.clone())),
            Some(ours) if is_secret(ours) => {}
            Some(_) => return Err(Invalid::Unknown(key.clone())),
        }
    }
    Ok(left)
}

/// Where the class has the secret for `purpose`, if anywhere.
pub(crate) fn secret(
    parameters: &Parameters,
    purpose: Purpose,
    facts: &Facts<'_>,
) -> Result<Option<SecretRef>, Invalid> {
    let kind = match purpose {
        Purpose::Snapshot => SECRETS[0],
        Purpose::List => SECRETS[1],
    };
    let keys = (
        format!("{PARAMETER_PREFIX}{kind}-secret-name"),
        format!("{PARAMETER_PREFIX}{kind}-secret-namespace"),
    );
    let template = match (parameters.get(&keys.0), parameters.get(&keys.1)) {
        (None, None) => return Ok(None),
        (Some(name), Some(namespace)) => SecretTemplate { name: name.clone(), namespace: namespace.clone() },
        _ => return Err(Invalid::HalfSecret { name: keys.0, namespace: keys.1 }),
    };
    let in_namespace = |token: &str| match token {
        "volumesnapshotcontent.name" => Some(facts.content.to_owned()),
        "volumesnapshot.namespace" => Some(facts.namespace.to_owned()),
        // Not the snapshot's name: its author chooses it, and could choose a namespace by it.
        _ => None,
    };
    let in_name = |token: &str| match token {
        "volumesnapshot.name" => Some(facts.snapshot.to_owned()),
        token => in_namespace(token),
    };
    Ok(Some(secrets::fill(&template, in_namespace, in_name)?))
}

fn is_secret(key: &str) -> bool {
    let kind = key.strip_suffix("-secret-name").or_else(|| key.strip_suffix("-secret-namespace"));
    kind.is_some_and(|kind| SECRETS.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts<'_> = Facts { content: "snapcontent-1", snapshot: "daily", namespace: "shop" };

    fn parameters(pairs: &[(&str, &str)]) -> Parameters {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn the_driver_sees_only_what_is_meant_for_it() {
        let all = parameters(&[
            ("tier", "cold"),
            ("csi.storage.k8s.io/snapshotter-secret-name", "s"),
            ("csi.storage.k8s.io/snapshotter-secret-namespace", "ns"),
            ("csi.storage.k8s.io/group-snapshotter-get-secret-name", "s"),
        ]);
        assert_eq!(of_driver(&all), Ok(parameters(&[("tier", "cold")])));
        let wrong = parameters(&[("csi.storage.k8s.io/snapshoter-secret-name", "s")]);
        assert!(matches!(of_driver(&wrong), Err(Invalid::Unknown(_))));
    }

    #[test]
    fn a_secret_is_found_by_its_template() {
        let pair = |kind: &str, name: &str, namespace: &str| {
            parameters(&[
                (&format!("csi.storage.k8s.io/{kind}-secret-name"), name),
                (&format!("csi.storage.k8s.io/{kind}-secret-namespace"), namespace),
            ])
        };
        let found = |name: &str, namespace: &str| {
            Some(SecretRef { name: name.to_owned(), namespace: namespace.to_owned() })
        };
        for (parameters, purpose, expected) in [
            (pair("snapshotter", "s", "ns"), Purpose::Snapshot, Some(found("s", "ns"))),
            (pair("snapshotter", "s", "ns"), Purpose::List, Some(None)),
            (pair("snapshotter-list", "s", "ns"), Purpose::List, Some(found("s", "ns"))),
            (
                pair("snapshotter", "${volumesnapshot.name}-key", "${volumesnapshot.namespace}"),
                Purpose::Snapshot,
                Some(found("daily-key", "shop")),
            ),
            (
                pair("snapshotter", "${volumesnapshotcontent.name}", "ns"),
                Purpose::Snapshot,
                Some(found("snapcontent-1", "ns")),
            ),
            (pair("snapshotter", "s", "${volumesnapshot.name}"), Purpose::Snapshot, None),
            (parameters(&[("csi.storage.k8s.io/snapshotter-secret-name", "s")]), Purpose::Snapshot, None),
        ] {
            assert_eq!(secret(&parameters, purpose, &FACTS).ok(), expected, "{parameters:?}");
        }
    }
}
