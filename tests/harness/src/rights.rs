//! Accounts with exactly the rights that a test gives them.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

const GROUP: &str = "rbac.authorization.k8s.io";

/// A right on everything of some kind: its group, its resource, and the verbs with spaces between.
pub type Right = (&'static str, &'static str, &'static str);

/// Makes the service account `name` in the namespace `default`, with `rights` in the whole cluster and that on Leases in its
/// own namespace; gives a kubeconfig with its token, made from the administrator's.
pub async fn account(client: &Client, kubeconfig: &Path, name: &str, rights: &[Right]) -> Result<String> {
    let rules = |rights: &[Right]| -> Value {
        rights
            .iter()
            .map(|(group, resource, verbs)| {
                let verbs: Vec<_> = verbs.split_whitespace().collect();
                json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
            })
            .collect()
    };
    let leases = [("coordination.k8s.io", "leases", "get watch list delete update create")];
    let binding = |kind: &str| {
        json!({
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
            "roleRef": {"apiGroup": GROUP, "kind": kind, "name": name},
        })
    };
    for (kind, namespaced, data) in [
        ("ClusterRole", false, json!({"rules": rules(rights)})),
        ("ClusterRoleBinding", false, binding("ClusterRole")),
        ("Role", true, json!({"rules": rules(&leases)})),
        ("RoleBinding", true, binding("Role")),
    ] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1", kind));
        let object = DynamicObject::new(name, &resource).data(data);
        let api: Api<DynamicObject> = if namespaced {
            Api::namespaced_with(client.clone(), "default", &resource)
        } else {
            Api::all_with(client.clone(), &resource)
        };
        api.create(&PostParams::default(), &object).await.with_context(|| kind.to_owned())?;
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let made = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    accounts.create(&PostParams::default(), &made).await?;
    let answer =
        accounts.create_token_request(name, &PostParams::default(), &TokenRequest::default()).await?;
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(kubeconfig)?)?;
    config["users"][0]["user"] = json!({"token": answer.status.context("no token")?.token});
    Ok(config.to_string())
}
