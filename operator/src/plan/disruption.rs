//! Drains take one controller pod at a time.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::View;
use super::meta::Component;

/// By pods that may be away, not by pods that must be there: a single controller pod must not stop a drain.
pub(super) fn controller(view: &View<'_>) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: view.meta(&view.names.controller, Component::Controller),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(view.pod_selector(Component::Controller)),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
