//! The quick answer to `kubectl delete storagebackend`: an admission policy that reads the Removable condition.
//!
//! It only saves people from a deletion that would wait; the finalizer is what protects.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dunnage_cluster::Error;
use dunnage_cluster::apply::apply;
use dunnage_crds::GROUP;
use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation,
};
use kube::api::{DeleteParams, ObjectMeta};
use kube::{Api, Client};
use tokio::time::Instant;

use crate::apply::{WRITER, ignore_missing};
use crate::plan::meta::shared_labels;

/// Name of the policy and of its binding.
pub const NAME: &str = "dunnage-deletion";

/// Somebody may have removed it.
const REFRESH: Duration = Duration::from_secs(600);

const HELD: &str = "has(oldObject.status) && has(oldObject.status.conditions) && \
                    oldObject.status.conditions.exists(c, c.type == 'Removable' && c.status == 'False')";

const MESSAGE: &str = "'StorageBackend ' + oldObject.metadata.name + ' is in use, nothing was deleted: ' + \
                       oldObject.status.conditions.filter(c, c.type == 'Removable')[0].message";

/// The policy, and what binds it.
pub fn objects() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let metadata =
        ObjectMeta { name: Some(NAME.to_owned()), labels: Some(shared_labels()), ..ObjectMeta::default() };
    let rule = NamedRuleWithOperations {
        api_groups: Some(vec![GROUP.to_owned()]),
        api_versions: Some(vec!["*".to_owned()]),
        operations: Some(vec!["DELETE".to_owned()]),
        resources: Some(vec!["storagebackends".to_owned()]),
        scope: Some("Cluster".to_owned()),
        ..NamedRuleWithOperations::default()
    };
    let validation = Validation {
        expression: format!("!({HELD})"),
        message_expression: Some(MESSAGE.to_owned()),
        message: Some(
            "the StorageBackend is in use, nothing was deleted: see its condition Removable".to_owned(),
        ),
        reason: Some("Forbidden".to_owned()),
    };
    let policy = ValidatingAdmissionPolicy {
        metadata: metadata.clone(),
        spec: Some(ValidatingAdmissionPolicySpec {
            // The finalizer is there as well.
            failure_policy: Some("Ignore".to_owned()),
            match_constraints: Some(MatchResources {
                resource_rules: Some(vec![rule]),
                match_policy: Some("Equivalent".to_owned()),
                ..MatchResources::default()
            }),
            validations: Some(vec![validation]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        status: None,
    };
    let binding = ValidatingAdmissionPolicyBinding {
        metadata,
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(NAME.to_owned()),
            validation_actions: Some(vec!["Deny".to_owned()]),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }),
    };
    (policy, binding)
}

/// Sees to it that the policy is there, and does not ask the API server about it all the time.
#[derive(Default)]
pub struct Guard {
    ensured: Mutex<Option<Instant>>,
}

impl Guard {
    /// Writes the policy, unless that was done a while ago.
    pub async fn ensure(&self, client: &Client) -> Result<(), Error> {
        if self.lock().is_some_and(|at| at.elapsed() < REFRESH) {
            return Ok(());
        }
        let (policy, binding) = objects();
        apply(&Api::all(client.clone()), &policy, WRITER).await?;
        apply(&Api::all(client.clone()), &binding, WRITER).await?;
        *self.lock() = Some(Instant::now());
        Ok(())
    }

    /// Removes the policy when the last backend is gone.
    pub async fn lift(&self, client: &Client) -> Result<(), Error> {
        *self.lock() = None;
        remove(client).await
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.ensured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the policy.
pub async fn remove(client: &Client) -> Result<(), Error> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let deleted = bindings.delete(NAME, &DeleteParams::default()).await.map(drop);
    ignore_missing(deleted, || format!("delete ValidatingAdmissionPolicyBinding {NAME}"))?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let deleted = policies.delete(NAME, &DeleteParams::default()).await.map(drop);
    ignore_missing(deleted, || format!("delete ValidatingAdmissionPolicy {NAME}"))
}
