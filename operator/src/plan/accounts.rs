//! One service account a pod kind; neither puts a token into a pod by itself.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::View;
use super::meta::Component;

pub(super) fn accounts(view: &View<'_>) -> [ServiceAccount; 2] {
    let account = |name: &str, component| ServiceAccount {
        metadata: view.meta(name, component),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    [account(&view.names.controller, Component::Controller), account(&view.names.node, Component::Node)]
}
