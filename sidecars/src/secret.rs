//! Secrets that a volume names for calls of its driver: found, read when needed, and kept by nobody.

use std::collections::HashMap;

use dunnage_cluster::Error as ClusterError;
use k8s_openapi::api::core::v1::{Secret, SecretReference};
use kube::{Api, Client};

/// Namespace and name of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// A reference or a content that is no use.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("{0} needs a name and a namespace")]
    Reference(&'static str),
    #[error("key {key:?} of secret {secret} is not UTF-8")]
    Value { secret: String, key: String },
}

/// Why a secret cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Api(#[from] ClusterError),
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// Where the secret is that the volume's `field` names, if it names one.
pub(crate) fn place<'a>(
    field: &'static str,
    reference: Option<&'a SecretReference>,
) -> Result<Option<Place<'a>>, Invalid> {
    match reference {
        None => Ok(None),
        Some(SecretReference { name: Some(name), namespace: Some(namespace) }) => {
            Ok(Some(Place { namespace, name }))
        }
        Some(_) => Err(Invalid::Reference(field)),
    }
}

/// The content of a secret, read now; nothing when there is none to be read.
pub(crate) async fn read(
    client: &Client,
    place: Option<Place<'_>>,
) -> Result<HashMap<String, String>, Error> {
    let Some(Place { namespace, name }) = place else { return Ok(HashMap::new()) };
    let secret = format!("{namespace}/{name}");
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let found = api.get(name).await.map_err(ClusterError::api(format!("get secret {secret}")))?;
    let text = |(key, value): (String, k8s_openapi::ByteString)| match String::from_utf8(value.0) {
        Ok(value) => Ok((key, value)),
        // The error of the conversion would hold the value.
        Err(_) => Err(Invalid::Value { secret: secret.clone(), key }),
    };
    Ok(found.data.unwrap_or_default().into_iter().map(text).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_by_name_and_namespace_or_not_at_all() {
        let reference = |name: Option<&str>, namespace: Option<&str>| SecretReference {
            name: name.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
        };
        for (reference, expected) in [
            (None, Ok(None)),
            (Some(reference(Some("n"), Some("ns"))), Ok(Some(Place { namespace: "ns", name: "n" }))),
            (Some(reference(Some("n"), None)), Err(Invalid::Reference("secretRef"))),
            (Some(reference(None, Some("ns"))), Err(Invalid::Reference("secretRef"))),
        ] {
            assert_eq!(place("secretRef", reference.as_ref()), expected);
        }
    }
}
