//! Secret names from templates: which tokens there are, and what they become.

use std::collections::{BTreeMap, BTreeSet};

use super::params::{SecretKind, SecretTemplate};

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRef {
    pub name: String,
    pub namespace: String,
}

/// What templates may speak of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub volume: &'a str,
    pub claim: &'a str,
    pub namespace: &'a str,
    /// None where the claim is not known any more (deletion).
    pub annotations: Option<&'a BTreeMap<String, String>>,
}

/// A template that gives no usable name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("secret template {template:?} has tokens that mean nothing here: {tokens:?}")]
    Tokens { template: String, tokens: Vec<String> },
    #[error("secret template {template:?} gives {value:?}, which is no valid {what}")]
    Name { template: String, value: String, what: &'static str },
}

/// Resolves one kind's template, if the class has one.
pub fn resolve(
    secrets: &BTreeMap<SecretKind, SecretTemplate>,
    kind: SecretKind,
    facts: &Facts<'_>,
) -> Result<Option<SecretRef>, Invalid> {
    let Some(template) = secrets.get(&kind) else { return Ok(None) };
    let in_namespace = |token: &str| match token {
        "pv.name" => Some(facts.volume.to_owned()),
        "pvc.namespace" => Some(facts.namespace.to_owned()),
        // Nothing that the claim's author may choose freely: it would open any namespace's secrets.
        _ => None,
    };
    let in_name = |token: &str| match token {
        "pv.name" => Some(facts.volume.to_owned()),
        "pvc.name" => Some(facts.claim.to_owned()),
        "pvc.namespace" => Some(facts.namespace.to_owned()),
        other => facts.annotations?.get(annotation(other)?).cloned(),
    };
    fill(template, in_namespace, in_name).map(Some)
}

/// Fills in a template by what each token stands for.
pub(crate) fn fill(
    template: &SecretTemplate,
    in_namespace: impl Fn(&str) -> Option<String>,
    in_name: impl Fn(&str) -> Option<String>,
) -> Result<SecretRef, Invalid> {
    let namespace = expand(&template.namespace, in_namespace)?;
    let name = expand(&template.name, in_name)?;
    if !is_label(&namespace) {
        let template = template.namespace.clone();
        return Err(Invalid::Name { template, value: namespace, what: "namespace" });
    }
    if !is_subdomain(&name) {
        let template = template.name.clone();
        return Err(Invalid::Name { template, value: name, what: "secret name" });
    }
    Ok(SecretRef { name, namespace })
}

/// The claim's annotations that the templates read.
pub fn annotations_used(secrets: &BTreeMap<SecretKind, SecretTemplate>) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for template in secrets.values() {
        for part in parts(&template.name) {
            if let Part::Token(token) = part {
                used.extend(annotation(token).map(str::to_owned));
            }
        }
    }
    used
}

fn annotation(token: &str) -> Option<&str> {
    token.strip_prefix("pvc.annotations['")?.strip_suffix("']")
}

enum Part<'a> {
    Text(&'a str),
    Token(&'a str),
}

/// Splits at `${token}` and `$token`.
fn parts(template: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some(dollar) = rest.find('$') {
        parts.push(Part::Text(&rest[..dollar]));
        rest = &rest[dollar + 1..];
        let braced = rest.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        if let Some((token, after)) = braced {
            parts.push(Part::Token(token));
            rest = after;
        } else {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            parts.push(Part::Token(&rest[..end]));
            rest = &rest[end..];
        }
    }
    parts.push(Part::Text(rest));
    parts
}

fn expand(template: &str, value: impl Fn(&str) -> Option<String>) -> Result<String, Invalid> {
    let mut text = String::new();
    let mut unknown = Vec::new();
    for part in parts(template) {
        match part {
            Part::Text(plain) => text.push_str(plain),
            Part::Token(token) => match value(token) {
                Some(value) => text.push_str(&value),
                None => unknown.push(token.to_owned()),
            },
        }
    }
    if unknown.is_empty() {
        Ok(text)
    } else {
        Err(Invalid::Tokens { template: template.into(), tokens: unknown })
    }
}

fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(plain) && text.ends_with(plain) && text.chars().all(|c| plain(c) || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(name: &str, namespace: &str) -> Result<SecretRef, Invalid> {
        let annotations = [("team/key".to_owned(), "gold".to_owned())].into();
        let facts =
            Facts { volume: "pvc-1", claim: "data", namespace: "shop", annotations: Some(&annotations) };
        let template = SecretTemplate { name: name.into(), namespace: namespace.into() };
        let secrets = [(SecretKind::Provisioner, template)].into();
        resolve(&secrets, SecretKind::Provisioner, &facts).map(|found| found.expect("configured"))
    }

    #[test]
    fn tokens_are_replaced() {
        for (name, namespace, expected) in [
            ("plain", "ns", ("plain", "ns")),
            ("${pvc.name}-key", "${pvc.namespace}", ("data-key", "shop")),
            ("${pv.name}", "a-${pv.name}", ("pvc-1", "a-pvc-1")),
            ("${pvc.annotations['team/key']}.x", "ns", ("gold.x", "ns")),
        ] {
            let expected = SecretRef { name: expected.0.into(), namespace: expected.1.into() };
            assert_eq!(resolved(name, namespace), Ok(expected));
        }
    }

    #[test]
    fn a_namespace_may_not_use_what_the_claims_author_chooses() {
        for namespace in ["${pvc.name}", "${pvc.annotations['team/key']}"] {
            assert!(matches!(resolved("name", namespace), Err(Invalid::Tokens { .. })), "{namespace}");
        }
    }

    #[test]
    fn what_gives_no_valid_name_is_refused() {
        for (name, namespace) in [
            ("${pvc.nam}", "ns"),
            ("$name", "ns"),
            ("${unclosed", "ns"),
            ("Upper", "ns"),
            ("ok", "a.b"),
            ("a..b", "ns"),
            ("${pvc.annotations['none']}", "ns"),
        ] {
            assert!(resolved(name, namespace).is_err(), "{name} {namespace}");
        }
    }

    #[test]
    fn the_annotations_that_templates_read_are_known() {
        let template =
            SecretTemplate { name: "${pvc.annotations['a']}-${pvc.name}".into(), namespace: "n".into() };
        let used = annotations_used(&[(SecretKind::NodeStage, template)].into());
        assert_eq!(used.into_iter().collect::<Vec<_>>(), ["a"]);
    }
}
