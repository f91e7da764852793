//! Volumes of pods and where containers mount them.

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, DownwardAPIProjection, DownwardAPIVolumeFile, EmptyDirVolumeSource,
    HostPathVolumeSource, KeyToPath, ObjectFieldSelector, ProjectedVolumeSource, SecretVolumeSource,
    ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};

/// Where the driver's socket lies in each container.
pub(super) const SOCKET_DIR: &str = "/csi";
/// Where a driver finds its certificate.
pub(super) const TLS_DIR: &str = "/tls";
/// Where the kubelet looks for registrations, as the registrar sees it.
pub(super) const REGISTRATION_DIR: &str = "/registration";
/// Where every Kubernetes client looks for its token.
const TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Volumes with their names, which mounts refer to.
pub(super) const SOCKET: &str = "socket";
pub(super) const TLS: &str = "tls";
pub(super) const TOKEN: &str = "token";

/// What happens to mounts that are made below a host's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    HostToContainer,
    Bidirectional,
}

/// A directory of the node, made if `make` says so.
pub(super) fn host_dir(name: &str, path: &str, make: bool) -> Volume {
    Volume {
        name: name.to_owned(),
        host_path: Some(HostPathVolumeSource {
            path: path.to_owned(),
            type_: Some(if make { "DirectoryOrCreate" } else { "Directory" }.to_owned()),
        }),
        ..Volume::default()
    }
}

/// A directory in memory that the containers of one pod share: it holds only a socket.
pub(super) fn shared_memory(name: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: None }),
        ..Volume::default()
    }
}

/// A secret. Its files follow it while the pod runs, so a new certificate restarts nothing.
pub(super) fn secret(name: &str, secret: &str, mode: i32) -> Volume {
    Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            default_mode: Some(mode),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// What a Kubernetes client needs, as an account's own token volume has it; mounted only where one runs.
pub(super) fn token() -> Volume {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            path: "token".to_owned(),
            expiration_seconds: Some(3607),
            audience: None,
        }),
        ..VolumeProjection::default()
    };
    let authority = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: "kube-root-ca.crt".to_owned(),
            items: Some(vec![KeyToPath { key: "ca.crt".to_owned(), path: "ca.crt".to_owned(), mode: None }]),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    let namespace = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: "namespace".to_owned(),
                field_ref: Some(ObjectFieldSelector {
                    field_path: "metadata.namespace".to_owned(),
                    ..ObjectFieldSelector::default()
                }),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name: TOKEN.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(0o440),
            sources: Some(vec![token, authority, namespace]),
        }),
        ..Volume::default()
    }
}

pub(super) fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

pub(super) fn mount_read_only(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { read_only: Some(true), ..mount(volume, path) }
}

pub(super) fn mount_host(volume: &str, path: &str, propagation: Propagation) -> VolumeMount {
    let propagation = match propagation {
        Propagation::HostToContainer => "HostToContainer",
        Propagation::Bidirectional => "Bidirectional",
    };
    VolumeMount { mount_propagation: Some(propagation.to_owned()), ..mount(volume, path) }
}

pub(super) fn mount_token() -> VolumeMount {
    mount_read_only(TOKEN, TOKEN_DIR)
}
