//! The `StorageClass` objects, and which of them is the default.

use dunnage_crds::snapshot::{DeletionPolicy, VolumeSnapshotClass};
use dunnage_crds::validate::{FS_TYPE_PARAMETER, Invalid};
use dunnage_crds::{BackendType, ClassState, DefaultClass, StorageClassSpec, defaults};
use dunnage_csi::mount_options::{DISCARD_NEEDS_SPARSE, On, check, discards};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::View;
use super::facts::{DEFAULT_CLASS, Snapshots};

/// Marks the class for snapshots that name none, among those of one driver.
const DEFAULT_SNAPSHOT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";

pub(super) fn classes(view: &View<'_>) -> Vec<StorageClass> {
    let all = defaults::classes(view.backend);
    let managed: Vec<&StorageClassSpec> =
        all.iter().filter(|class| class.state == ClassState::Managed).collect();
    let default = default_class(&managed, &view.observed.default_classes);
    managed.iter().map(|class| storage_class(view, class, default == Some(class.name.as_str()))).collect()
}

/// Refuses a class whose volumes the driver would refuse for its mount options.
pub(super) fn check_mount_options(view: &View<'_>) -> Result<(), Invalid> {
    let all = defaults::classes(view.backend);
    for class in all.iter().filter(|class| class.state == ClassState::Managed) {
        let options = || class.mount_options.iter().map(String::as_str);
        let refused = |reason: String| Invalid::MountOption { class: class.name.clone(), reason };
        let on = match &view.backend.spec.loop_file {
            Some(loop_file) if view.engine == BackendType::LoopFile => {
                let named = class.parameters.get(FS_TYPE_PARAMETER).map(String::as_str);
                if discards(options()) && class.parameters.get("allocation").is_none_or(|it| it != "sparse") {
                    return Err(refused(DISCARD_NEEDS_SPARSE.to_owned()));
                }
                // A file system of another name is refused for that.
                On::filesystem(named.unwrap_or(loop_file.fs_type.as_str()))
            }
            _ => Some(On::Pool),
        };
        if let Some(on) = on {
            check(on, options()).map_err(|error| refused(error.to_string()))?;
        }
    }
    Ok(())
}

fn storage_class(view: &View<'_>, class: &StorageClassSpec, default: bool) -> StorageClass {
    let mut metadata = view.cluster_meta(&class.name);
    if default {
        metadata.annotations = Some([(DEFAULT_CLASS.to_owned(), "true".to_owned())].into());
    }
    let mut parameters = class.parameters.clone();
    if let (BackendType::LoopFile, Some(loop_file)) = (view.engine, &view.backend.spec.loop_file) {
        let fs_type = || loop_file.fs_type.as_str().to_owned();
        parameters.entry(FS_TYPE_PARAMETER.to_owned()).or_insert_with(fs_type);
    }
    StorageClass {
        metadata,
        provisioner: view.driver.clone(),
        parameters: (!parameters.is_empty()).then_some(parameters),
        reclaim_policy: Some(class.reclaim_policy.as_str().to_owned()),
        volume_binding_mode: Some(class.binding_mode.as_str().to_owned()),
        mount_options: (!class.mount_options.is_empty()).then(|| class.mount_options.clone()),
        // The volumes of every engine grow.
        allow_volume_expansion: Some(true),
        ..StorageClass::default()
    }
}

/// The class that snapshots of the backend's volumes have when they name none. One of its name that is somebody else's is left
/// alone.
pub(super) fn snapshot_class(view: &View<'_>) -> Option<VolumeSnapshotClass> {
    if view.observed.snapshots != Snapshots::Present {
        return None;
    }
    let mut metadata = view.cluster_meta(&view.backend.name_any());
    metadata.annotations = Some([(DEFAULT_SNAPSHOT_CLASS.to_owned(), "true".to_owned())].into());
    Some(VolumeSnapshotClass {
        metadata,
        driver: view.driver.clone(),
        parameters: None,
        deletion_policy: DeletionPolicy::Delete,
    })
}

/// The class that carries the mark. One that has it keeps it, so that two backends never take it from each other.
fn default_class<'a>(managed: &[&'a StorageClassSpec], observed: &[String]) -> Option<&'a str> {
    let forced = managed.iter().find(|class| class.default == DefaultClass::Force);
    let willing = || managed.iter().filter(|class| class.default == DefaultClass::IfNone);
    let class = forced.or_else(|| {
        let holder = willing().find(|class| observed.contains(&class.name));
        // A mark on a class of ours that is to have none is about to go.
        let others = observed.iter().any(|name| managed.iter().all(|class| &class.name != name));
        holder.or_else(|| if others { None } else { willing().next() })
    });
    class.map(|class| class.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, default: DefaultClass) -> StorageClassSpec {
        StorageClassSpec { name: name.to_owned(), default, ..StorageClassSpec::default() }
    }

    #[test]
    fn one_class_at_most_becomes_the_default() {
        use DefaultClass::{Force, IfNone, Never};
        for (wanted, observed, expected) in [
            (&[("a", IfNone)][..], &[][..], Some("a")),
            (&[("a", IfNone)], &["theirs"], None),
            (&[("a", IfNone)], &["a"], Some("a")),
            (&[("a", IfNone)], &["a", "theirs"], Some("a")),
            (&[("a", IfNone), ("b", IfNone)], &[], Some("a")),
            (&[("a", IfNone), ("b", IfNone)], &["b"], Some("b")),
            (&[("a", IfNone), ("b", Force)], &["a"], Some("b")),
            (&[("a", Never), ("b", IfNone)], &["a"], Some("b")),
            (&[("a", Never)], &[], None),
            (&[("a", Force)], &["theirs"], Some("a")),
            (&[], &[], None),
        ] {
            let classes: Vec<_> = wanted.iter().map(|(name, default)| class(name, *default)).collect();
            let observed: Vec<String> = observed.iter().map(|name| (*name).to_owned()).collect();
            let got = default_class(&classes.iter().collect::<Vec<_>>(), &observed);
            assert_eq!(got, expected, "{wanted:?} beside {observed:?}");
        }
    }
}
