//! What a `StorageBackend` should look like in the cluster. Pure: no clock, no client, no environment.

mod accounts;
mod classes;
mod container;
mod controller;
mod csi_driver;
mod disruption;
pub mod facts;
pub mod meta;
mod network;
mod node;
mod rbac;
mod volumes;

use dunnage_crds::validate::{Invalid, validate};
use dunnage_crds::{Attach, BackendType, ClassState, StorageBackend, defaults};
use kube::core::{DynamicObject, TypeMeta};
use kube::{Resource, ResourceExt};
use serde::Serialize;

use facts::Observed;
use meta::Names;

/// Everything that the plan may depend on.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The backend as it is stored; its uid goes into the node plugin's command line.
    pub backend: &'a StorageBackend,
    /// Namespace of the operator, and of backends that name none.
    pub operator_namespace: &'a str,
    /// The operator's own image.
    pub image: &'a str,
    /// What the cluster has.
    pub observed: &'a Observed,
}

/// The wanted objects of one backend, in the order in which they are to be applied.
///
/// An object with the backend's label that is of a kind of the plan, but not in it, is stale: see [`Plan::stale`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The objects.
    pub objects: Vec<Planned>,
    /// Classes that the operator neither writes nor removes.
    pub unmanaged_classes: Vec<String>,
}

/// One wanted object.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The object to apply, with `apiVersion` and `kind`.
    pub object: DynamicObject,
    /// What to do when a field differs that the API server never changes.
    pub immutable: Immutable,
}

/// What to do when an applied object differs in a field that cannot be changed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immutable {
    /// Tell the user; the object stays as it is.
    Report,
    /// Delete and make it anew once no pod uses a volume of the driver; until then tell the user.
    RecreateWhenUnused,
    /// Delete and make it anew.
    Recreate,
}

/// What identifies an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its kind, as `DaemonSet`; no two kinds of a plan share a name.
    pub kind: String,
    /// Its namespace, none when cluster-scoped.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// Plans the objects of one backend, or says why it cannot work here.
pub fn plan(inputs: &Inputs<'_>) -> Result<Plan, Invalid> {
    let dirs = inputs.kubelet_dirs();
    validate(inputs.backend, &dirs)?;
    let view = View::of(inputs)?;
    classes::check_mount_options(&view)?;
    let mut plan = Plan::default();

    // Accounts and rights come before the pods that use them, classes last: no claim before there is a driver.
    plan.add(csi_driver::csi_driver(&view), Immutable::RecreateWhenUnused);
    for account in accounts::accounts(&view) {
        plan.add(account, Immutable::Recreate);
    }
    plan.add(rbac::role(&view), Immutable::Recreate);
    plan.add(rbac::role_binding(&view), Immutable::Recreate);
    for binding in rbac::cluster_bindings(&view) {
        plan.add(binding, Immutable::Recreate);
    }
    plan.add(network::agents(&view), Immutable::Recreate);
    for set in node::daemon_sets(&view, &dirs) {
        plan.add(set, Immutable::Report);
    }
    plan.add(disruption::controller(&view), Immutable::Recreate);
    plan.add(controller::stateful_set(&view), Immutable::Recreate);
    for class in classes::classes(&view) {
        plan.add(class, Immutable::Report);
    }
    if let Some(class) = classes::snapshot_class(&view) {
        plan.add(class, Immutable::Report);
    }
    let unmanaged =
        defaults::classes(inputs.backend).into_iter().filter(|c| c.state == ClassState::Unmanaged);
    plan.unmanaged_classes = unmanaged.map(|class| class.name).collect();
    Ok(plan)
}

impl Plan {
    /// Those of the objects with the backend's label that are not wanted any more.
    pub fn stale(&self, existing: impl IntoIterator<Item = ObjectKey>) -> Vec<ObjectKey> {
        let wanted: Vec<ObjectKey> = self.objects.iter().map(Planned::key).collect();
        let spared =
            |key: &ObjectKey| key.kind == "StorageClass" && self.unmanaged_classes.contains(&key.name);
        existing.into_iter().filter(|key| !wanted.contains(key) && !spared(key)).collect()
    }

    fn add<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: K, immutable: Immutable) {
        let object = serde_json::to_value(object).and_then(serde_json::from_value::<DynamicObject>);
        let mut object = object.expect("a typed object is a JSON object with metadata");
        object.types = Some(TypeMeta::resource::<K>());
        self.objects.push(Planned { object, immutable });
    }
}

impl Planned {
    /// What identifies the object.
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            kind: self.object.types.as_ref().map(|types| types.kind.clone()).unwrap_or_default(),
            namespace: self.object.metadata.namespace.clone(),
            name: self.object.name_any(),
        }
    }
}

impl Inputs<'_> {
    /// The kubelet directories of the nodes that the backend selects, the main one first.
    fn kubelet_dirs(&self) -> Vec<String> {
        let given = self.backend.spec.nodes.as_ref().and_then(|nodes| nodes.kubelet_dir.path());
        given.map_or_else(|| self.observed.kubelet_dirs(&self.backend.spec), |dir| vec![dir.to_owned()])
    }
}

/// The inputs with the defaults filled in, as the builders of objects need them.
struct View<'a> {
    backend: &'a StorageBackend,
    observed: &'a Observed,
    image: &'a str,
    operator_namespace: &'a str,
    namespace: &'a str,
    names: Names,
    driver: String,
    engine: BackendType,
    path: &'a str,
    require_mount_point: bool,
    attach: bool,
}

impl<'a> View<'a> {
    fn of(inputs: &Inputs<'a>) -> Result<Self, Invalid> {
        let spec = &inputs.backend.spec;
        let (path, require_mount_point) =
            defaults::pool(spec).ok_or(Invalid::MemberMissing(spec.type_.as_str(), spec.type_.member()))?;
        Ok(Self {
            backend: inputs.backend,
            observed: inputs.observed,
            image: inputs.image,
            operator_namespace: inputs.operator_namespace,
            namespace: defaults::namespace(inputs.backend, inputs.operator_namespace),
            names: Names::of(&inputs.backend.name_any()),
            driver: defaults::driver_name(inputs.backend),
            engine: spec.type_,
            path,
            require_mount_point,
            attach: spec.attach == Attach::Required,
        })
    }
}

#[cfg(test)]
mod tests;
