//! The rules that the API server enforces, in its expression language, each with a message that says what to do.

use kube::core::Rule;

/// Directories of the kubelets that are known; `validate` has those of the nodes at hand.
const KUBELET_DIRS: &str =
    "['/var/lib/kubelet', '/var/snap/microk8s/common/var/lib/kubelet', '/var/lib/k0s/kubelet']";

/// Directories that belong to the system or to the container runtime.
const SYSTEM_DIRS: &str = "['/bin', '/boot', '/dev', '/etc', '/lib', '/lib32', '/lib64', '/proc', '/run', '/sbin', \
                           '/sys', '/usr', '/var/lib/containerd', '/var/lib/docker', '/var/lib/etcd', '/var/run']";

fn rule(expression: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule::new(expression).message(kube::core::Message::Message(message.into()))
}

// A controller's pods carry its name and an eleven-character revision in a label of at most 63.
pub(super) fn name_is_short() -> Rule {
    rule(
        "self.metadata.name.size() <= 33",
        "the name may have 33 characters, because names of pods and labels are made from it: choose a shorter one",
    )
}

pub(super) fn name_is_a_label() -> Rule {
    rule(
        "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "the name may have lower-case letters, digits and inner hyphens only, because pods are named after it",
    )
}

pub(super) fn member_of_type(type_: &str, member: &str) -> Rule {
    rule(
        format!("(self.type == '{type_}') == has(self.{member})"),
        format!("spec.{member} belongs to type {type_}: set it when type is {type_}, and only then"),
    )
}

pub(super) fn type_is_immutable() -> Rule {
    rule(
        "self.type == oldSelf.type",
        "type is immutable, because volumes of the old type would be lost: make another StorageBackend",
    )
}

pub(super) fn path_is_immutable(member: &str) -> Rule {
    rule(
        format!(
            "!has(self.{member}) || !has(oldSelf.{member}) || self.{member}.path == oldSelf.{member}.path"
        ),
        format!(
            "{member}.path is immutable, because the volumes lie there: make another StorageBackend, or mount the \
             disk at the old path"
        ),
    )
}

/// A rule on the field itself would be skipped when the field is added or taken away.
pub(super) fn optional_is_immutable(field: &str) -> Rule {
    // A word that the language reserves is written so.
    let name = if field == "namespace" { "__namespace__" } else { field };
    rule(
        format!(
            "has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
        ),
        format!("{field} is immutable, because existing volumes depend on it: make another StorageBackend"),
    )
}

pub(super) fn driver_name_is_a_subdomain() -> Rule {
    rule(
        "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "driverName must be a DNS name of lower-case letters, digits, hyphens and dots, as local.csi.example.com",
    )
}

pub(super) fn driver_name_is_short() -> Rule {
    rule(
        "self.size() <= 54",
        "driverName may have 54 characters, because the topology label is made from it: choose a shorter one",
    )
}

pub(super) fn namespace_is_a_label() -> Rule {
    rule(
        "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "namespace must be the name of a namespace: lower-case letters, digits and inner hyphens",
    )
}

pub(super) fn path_is_absolute() -> Rule {
    rule("self.startsWith('/')", "path must be absolute: begin it with /, as /var/lib/dunnage")
}

pub(super) fn path_is_not_the_root() -> Rule {
    rule(
        "self != '/'",
        "path must not be the root of the node: give a directory for this backend alone, as /var/lib/dunnage",
    )
}

pub(super) fn path_has_plain_characters() -> Rule {
    rule(
        "self.matches('^[-A-Za-z0-9._/@+]*$')",
        "path may have letters, digits and the characters . _ - @ + / only: rename the directory",
    )
}

pub(super) fn path_is_canonical() -> Rule {
    rule(
        "self == '/' || !(self.endsWith('/') || self.contains('//') || self.matches('(^|/)[.][.]?(/|$)'))",
        "path must have no segment . or .., no // and no / at its end: write the plain path",
    )
}

pub(super) fn path_is_not_the_kubelets() -> Rule {
    rule(
        format!(
            "self == '/' || !{KUBELET_DIRS}.exists(d, self == d || self.startsWith(d + '/') || \
             d.startsWith(self + '/'))"
        ),
        "path must not lie within or above a kubelet's directory: give one beside it, as /var/lib/dunnage",
    )
}

pub(super) fn path_is_not_the_systems() -> Rule {
    rule(
        format!("!{SYSTEM_DIRS}.exists(d, self == d || self.startsWith(d + '/'))"),
        "path must not lie in a directory of the system or the container runtime: give another, as /var/lib/dunnage",
    )
}

pub(super) fn kubelet_dir_is_auto_or_a_path() -> Rule {
    rule(
        "self == 'Auto' || self.matches('^(/[A-Za-z0-9_@+-][-A-Za-z0-9._@+]*)+$')",
        "kubeletDir must be Auto or an absolute path without segments that begin with a dot, as /var/lib/kubelet",
    )
}

pub(super) fn values_fit_the_operator() -> Rule {
    rule(
        "(self.operator == 'In' || self.operator == 'NotIn') == (has(self.values) && self.values.size() > 0)",
        "values are needed for In and NotIn, and not allowed for Exists and DoesNotExist",
    )
}

pub(super) fn one_forced_default() -> Rule {
    rule(
        "self.filter(c, has(c.default) && c.default == 'Force').size() <= 1",
        "only one class can be the default: set default: Force on one class at most",
    )
}

pub(super) fn class_name_is_a_subdomain() -> Rule {
    rule(
        "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "the name of a class may have lower-case letters, digits, hyphens and dots only",
    )
}

pub(super) fn registry_is_a_host() -> Rule {
    rule(
        "self.matches('^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?(/[a-z0-9]+([._-][a-z0-9]+)*)*$')",
        "registry must be a host with an optional port and path and without https://, as registry.example.com:5000/mirror",
    )
}

pub(super) fn is_a_duration(field: &str) -> Rule {
    rule(
        "self.matches('^([0-9]+(ms|s|m|h))+$')",
        format!("{field} must be a duration of whole numbers with the units h, m, s or ms, as 30s"),
    )
}

pub(super) fn lease_times_are_in_order() -> Rule {
    rule(
        "duration(self.leaseDuration) > duration(self.renewDeadline) && \
         duration(self.renewDeadline) > duration(self.retryPeriod)",
        "leaseDuration must be longer than renewDeadline, and that longer than retryPeriod, as 15s, 10s, 5s",
    )
}
