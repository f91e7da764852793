//! The accounts that the roles run as, with the rights that upstream's manifests give.

use std::path::Path;

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

/// The rights that upstream's manifests give, and no more: of the cluster, and in the Lease's namespace.
pub(crate) fn rights() -> [(&'static str, Value, Value); 3] {
    let rule = |group: &str, resource: &str, verbs: &str| {
        let verbs: Vec<&str> = verbs.split(' ').collect();
        json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
    };
    let snapshots = "snapshot.storage.k8s.io";
    let leases = || json!([rule("coordination.k8s.io", "leases", "get watch list delete update create")]);
    let controller = json!([
        rule("", "persistentvolumes", "get list watch"),
        rule("", "persistentvolumeclaims", "get list watch update"),
        rule("", "events", "list watch create update patch"),
        rule(snapshots, "volumesnapshotclasses", "get list watch"),
        rule(snapshots, "volumesnapshotcontents", "create get list watch update delete patch"),
        rule(snapshots, "volumesnapshotcontents/status", "patch"),
        rule(snapshots, "volumesnapshots", "create get list watch update patch delete"),
        rule(snapshots, "volumesnapshots/status", "update patch"),
    ]);
    let snapshotter = json!([
        rule("", "events", "list watch create update patch"),
        rule("", "secrets", "get list"),
        rule(snapshots, "volumesnapshotclasses", "get list watch"),
        rule(snapshots, "volumesnapshotcontents", "get list watch update patch"),
        rule(snapshots, "volumesnapshotcontents/status", "update patch"),
    ]);
    let provisioner = json!([
        rule("", "persistentvolumes", "get list watch create patch delete"),
        rule("", "persistentvolumeclaims", "get list watch update"),
        rule("storage.k8s.io", "storageclasses", "get list watch"),
        rule("", "events", "list watch create update patch"),
        rule(snapshots, "volumesnapshots", "get list watch update"),
        rule(snapshots, "volumesnapshotcontents", "get list"),
    ]);
    [
        ("snapshot-controller", controller, leases()),
        ("snapshotter", snapshotter, leases()),
        ("provisioner", provisioner, leases()),
    ]
}

pub(crate) async fn grant(client: &Client, account: &str, rules: &Value, own: &Value) {
    let group = "rbac.authorization.k8s.io";
    let binding = |kind: &str| {
        json!({
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}],
            "roleRef": {"apiGroup": group, "kind": kind, "name": account},
        })
    };
    for (namespace, kind, data) in [
        (None, "ClusterRole", json!({"rules": rules})),
        (None, "ClusterRoleBinding", binding("ClusterRole")),
        (Some("default"), "Role", json!({"rules": own})),
        (Some("default"), "RoleBinding", binding("Role")),
    ] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        let object = DynamicObject::new(account, &resource).data(data);
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

/// The administrator's kubeconfig with the account's token in it.
pub(crate) async fn kubeconfig(file: &Path, client: &Client, account: &str) -> String {
    use k8s_openapi::api::authentication::v1::TokenRequest;
    use k8s_openapi::api::core::v1::ServiceAccount;

    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let made = serde_json::from_value(json!({"metadata": {"name": account}})).unwrap();
    accounts.create(&PostParams::default(), &made).await.unwrap();
    let request = TokenRequest::default();
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await.unwrap();
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    config["users"][0]["user"] = json!({"token": answer.status.unwrap().token});
    config.to_string()
}
