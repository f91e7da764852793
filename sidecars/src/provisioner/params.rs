//! What a StorageClass's parameters say to the provisioner, and what is left for the driver.

use std::collections::BTreeMap;

use super::names::PARAMETER_PREFIX;

/// Parameters, sorted out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Empty when neither the class nor the provisioner names one.
    pub fs_type: String,
    pub driver: BTreeMap<String, String>,
    pub secrets: BTreeMap<SecretKind, SecretTemplate>,
}

/// Where a secret is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SecretKind {
    Provisioner,
    ControllerPublish,
    NodeStage,
    NodePublish,
    ControllerExpand,
    NodeExpand,
    ControllerModify,
}

/// A secret's name and namespace before its tokens are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretTemplate {
    pub name: String,
    pub namespace: String,
}

/// Parameters that cannot be meant.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("StorageClass parameters name the file system twice ({0:?} and {1:?}); keep one")]
    FileSystemTwice(String, String),
    #[error("StorageClass parameter {0:?} is not known; known with this prefix are: {known}", known = known())]
    Unknown(String),
    #[error("StorageClass parameter {0:?} is empty")]
    Empty(String),
    #[error("StorageClass parameters {0:?} and {1:?} mean the same; keep one")]
    AliasTwice(String, String),
    #[error("StorageClass parameters for the {0} secret need both a name and a namespace")]
    HalfSecret(&'static str),
}

const FS_TYPE: &str = "fstype";
const DEFAULT_SECRET: (&str, &str) = ("secret-name", "secret-namespace");

impl SecretKind {
    pub const ALL: [Self; 7] = [
        Self::Provisioner,
        Self::ControllerPublish,
        Self::NodeStage,
        Self::NodePublish,
        Self::ControllerExpand,
        Self::NodeExpand,
        Self::ControllerModify,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::ControllerPublish => "controller-publish",
            Self::NodeStage => "node-stage",
            Self::NodePublish => "node-publish",
            Self::ControllerExpand => "controller-expand",
            Self::NodeExpand => "node-expand",
            Self::ControllerModify => "controller-modify",
        }
    }

    /// The spelling from before the prefix; still honoured, and still passed on to the driver.
    fn alias(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Provisioner => Some(("csiProvisionerSecretName", "csiProvisionerSecretNamespace")),
            Self::ControllerPublish => {
                Some(("csiControllerPublishSecretName", "csiControllerPublishSecretNamespace"))
            }
            Self::NodeStage => Some(("csiNodeStageSecretName", "csiNodeStageSecretNamespace")),
            Self::NodePublish => Some(("csiNodePublishSecretName", "csiNodePublishSecretNamespace")),
            Self::ControllerExpand | Self::NodeExpand | Self::ControllerModify => None,
        }
    }
}

/// Sorts a class's parameters out.
pub fn parse(class: &BTreeMap<String, String>, default_fs_type: &str) -> Result<Parameters, Invalid> {
    let known = known_keys();
    let mut driver = BTreeMap::new();
    for (key, value) in class {
        match key.strip_prefix(PARAMETER_PREFIX) {
            None => drop(driver.insert(key.clone(), value.clone())),
            Some(rest) if known.iter().any(|known| known == rest) => {}
            Some(_) => return Err(Invalid::Unknown(key.clone())),
        }
    }
    Ok(Parameters { fs_type: fs_type(class, default_fs_type)?, driver, secrets: secrets(class)? })
}

fn fs_type(class: &BTreeMap<String, String>, default: &str) -> Result<String, Invalid> {
    let prefixed = format!("{PARAMETER_PREFIX}{FS_TYPE}");
    let mut found = class.iter().filter(|(key, _)| **key == prefixed || key.eq_ignore_ascii_case(FS_TYPE));
    let Some((key, value)) = found.next() else { return Ok(default.to_owned()) };
    if let Some((other, _)) = found.next() {
        return Err(Invalid::FileSystemTwice(key.clone(), other.clone()));
    }
    Ok(if value.is_empty() { default.to_owned() } else { value.clone() })
}

fn secrets(class: &BTreeMap<String, String>) -> Result<BTreeMap<SecretKind, SecretTemplate>, Invalid> {
    let (name, namespace) = DEFAULT_SECRET;
    let fallback = pair(class, "default", [&prefixed(name)], [&prefixed(namespace)])?;
    let mut secrets = BTreeMap::new();
    for kind in SecretKind::ALL {
        let label = kind.label();
        let name = prefixed(&format!("{label}-secret-name"));
        let namespace = prefixed(&format!("{label}-secret-namespace"));
        let own = match kind.alias() {
            Some((old_name, old_namespace)) => {
                pair(class, label, [name.as_str(), old_name], [namespace.as_str(), old_namespace])?
            }
            None => pair(class, label, [&name], [&namespace])?,
        };
        if let Some(template) = own.or_else(|| fallback.clone()) {
            secrets.insert(kind, template);
        }
    }
    Ok(secrets)
}

fn pair<const N: usize>(
    class: &BTreeMap<String, String>,
    label: &'static str,
    names: [&str; N],
    namespaces: [&str; N],
) -> Result<Option<SecretTemplate>, Invalid> {
    match (one_of(class, names)?, one_of(class, namespaces)?) {
        (None, None) => Ok(None),
        (Some(name), Some(namespace)) => Ok(Some(SecretTemplate { name, namespace })),
        _ => Err(Invalid::HalfSecret(label)),
    }
}

fn one_of<const N: usize>(
    class: &BTreeMap<String, String>,
    keys: [&str; N],
) -> Result<Option<String>, Invalid> {
    let mut found: Option<(&str, &String)> = None;
    for key in keys {
        let Some(value) = class.get(key) else { continue };
        if value.is_empty() {
            return Err(Invalid::Empty(key.to_owned()));
        }
        if let Some((first, _)) = found {
            return Err(Invalid::AliasTwice(first.to_owned(), key.to_owned()));
        }
        found = Some((key, value));
    }
    Ok(found.map(|(_, value)| value.clone()))
}

fn prefixed(key: &str) -> String {
    format!("{PARAMETER_PREFIX}{key}")
}

fn known_keys() -> Vec<String> {
    let mut keys = vec![FS_TYPE.to_owned(), DEFAULT_SECRET.0.to_owned(), DEFAULT_SECRET.1.to_owned()];
    for kind in SecretKind::ALL {
        keys.push(format!("{}-secret-name", kind.label()));
        keys.push(format!("{}-secret-namespace", kind.label()));
    }
    keys
}

fn known() -> String {
    known_keys().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_file_system_comes_from_the_prefixed_key_the_old_key_or_the_default() {
        for (entries, expected) in [
            (vec![("csi.storage.k8s.io/fstype", "xfs")], "xfs"),
            (vec![("fsType", "btrfs")], "btrfs"),
            (vec![("FSTYPE", "btrfs")], "btrfs"),
            (vec![], "ext4"),
        ] {
            assert_eq!(parse(&class(&entries), "ext4").expect("parse").fs_type, expected);
        }
        assert!(matches!(
            parse(&class(&[("csi.storage.k8s.io/fstype", "xfs"), ("fstype", "ext4")]), ""),
            Err(Invalid::FileSystemTwice(..))
        ));
    }

    #[test]
    fn the_driver_gets_everything_without_the_prefix_even_old_aliases() {
        let parsed = parse(
            &class(&[
                ("type", "fast"),
                ("fstype", "xfs"),
                ("csiNodeStageSecretName", "n"),
                ("csiNodeStageSecretNamespace", "ns"),
                ("csi.storage.k8s.io/provisioner-secret-name", "p"),
                ("csi.storage.k8s.io/provisioner-secret-namespace", "ns"),
            ]),
            "",
        )
        .expect("parse");
        let keys: Vec<&str> = parsed.driver.keys().map(String::as_str).collect();
        assert_eq!(keys, ["csiNodeStageSecretName", "csiNodeStageSecretNamespace", "fstype", "type"]);
        assert_eq!(
            parsed.secrets.keys().copied().collect::<Vec<_>>(),
            [SecretKind::Provisioner, SecretKind::NodeStage]
        );
    }

    #[test]
    fn a_kinds_own_secret_beats_the_default_one() {
        let parsed = parse(
            &class(&[
                ("csi.storage.k8s.io/secret-name", "default"),
                ("csi.storage.k8s.io/secret-namespace", "ns"),
                ("csi.storage.k8s.io/node-stage-secret-name", "own"),
                ("csi.storage.k8s.io/node-stage-secret-namespace", "other"),
            ]),
            "",
        )
        .expect("parse");
        assert_eq!(parsed.secrets.len(), SecretKind::ALL.len());
        let stage = SecretTemplate { name: "own".into(), namespace: "other".into() };
        assert_eq!(parsed.secrets[&SecretKind::NodeStage], stage);
        assert_eq!(parsed.secrets[&SecretKind::Provisioner].name, "default");
    }

    #[test]
    fn parameters_that_cannot_be_meant_are_refused_by_name() {
        for (entries, expected) in [
            (vec![("csi.storage.k8s.io/surprise", "x")], "csi.storage.k8s.io/surprise"),
            (vec![("csi.storage.k8s.io/secret-name", "x")], "default secret"),
            (
                vec![("csi.storage.k8s.io/secret-name", ""), ("csi.storage.k8s.io/secret-namespace", "n")],
                "is empty",
            ),
            (
                vec![
                    ("csi.storage.k8s.io/node-stage-secret-name", "a"),
                    ("csiNodeStageSecretName", "b"),
                    ("csi.storage.k8s.io/node-stage-secret-namespace", "n"),
                ],
                "mean the same",
            ),
        ] {
            let error = parse(&class(&entries), "").expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
