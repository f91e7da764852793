//! The manifests of the tests: a backend, a claim, a pod.

/// A backend of one type with its pool at `path`; `extra` is added to the spec.
pub fn backend(name: &str, kind: &str, path: &str, extra: &str) -> String {
    backend_with(name, kind, &format!("path: {path}"), extra)
}

/// As [`backend`], with further fields in the type's member.
pub fn backend_with(name: &str, kind: &str, member_fields: &str, extra: &str) -> String {
    let member = match kind {
        "Directory" => "directory",
        "LoopFile" => "loopFile",
        "Btrfs" => "btrfs",
        other => panic!("no such type: {other}"),
    };
    format!(
        "apiVersion: dunnage.dev/v1alpha1\nkind: StorageBackend\nmetadata: {{name: {name}}}\n\
         spec:\n  type: {kind}\n  {member}: {{{member_fields}}}\n{}",
        indented(extra)
    )
}

fn indented(text: &str) -> String {
    text.lines().flat_map(|line| ["  ", line, "\n"]).collect()
}

/// A claim of a class.
pub fn claim(namespace: &str, name: &str, class: &str, size: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  storageClassName: {class}\n  accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: {size}}}}}\n"
    )
}

/// A claim whose volume has the data of another object: `kind/name`, with the group before it unless it is a claim.
pub fn claim_from(namespace: &str, name: &str, class: &str, size: &str, source: &str) -> String {
    let (kind, of) = source.rsplit_once('/').expect("a kind and a name");
    let (group, kind) = match kind.rsplit_once('/') {
        Some((group, kind)) => (format!("apiGroup: {group}, "), kind),
        None => (String::new(), kind),
    };
    claim(namespace, name, class, size) + &format!("  dataSource: {{{group}kind: {kind}, name: {of}}}\n")
}

/// A snapshot of a claim's volume.
pub fn snapshot(namespace: &str, name: &str, class: &str, claim: &str) -> String {
    format!(
        "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{volumeSnapshotClassName: {class}, source: {{persistentVolumeClaimName: {claim}}}}}\n"
    )
}

/// A pod that runs a shell line with the claim at /data, then stays. `node` insists on a node.
pub fn pod(namespace: &str, name: &str, claim: &str, line: &str, node: Option<&str>) -> String {
    let selector =
        node.map(|node| format!("  nodeSelector: {{kubernetes.io/hostname: {node}}}\n")).unwrap_or_default();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  terminationGracePeriodSeconds: 0\n{selector}  containers:\n  - name: app\n    image: localhost/busybox:1\n\
         \x20   command: [sh, -c, {line:?}]\n    volumeMounts: [{{name: data, mountPath: /data}}]\n\
         \x20 volumes:\n  - name: data\n    persistentVolumeClaim: {{claimName: {claim}}}\n",
        line = format!("{line}; exec sleep 1000000")
    )
}

/// As [`claim`], for a device.
pub fn block_claim(namespace: &str, name: &str, class: &str, size: &str) -> String {
    claim(namespace, name, class, size) + "  volumeMode: Block\n"
}

/// As [`pod`], with the claim's device at /dev/data.
pub fn block_pod(namespace: &str, name: &str, claim: &str, line: &str) -> String {
    pod(namespace, name, claim, line, None).replace(
        "volumeMounts: [{name: data, mountPath: /data}]",
        "volumeDevices: [{name: data, devicePath: /dev/data}]",
    )
}

/// A pod on a node that runs a shell line with an inline volume of a driver at /data, then stays.
pub fn inline_pod(
    namespace: &str,
    name: &str,
    driver: &str,
    attributes: &str,
    line: &str,
    node: &str,
) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  terminationGracePeriodSeconds: 0\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n\
         \x20 tolerations: [{{operator: Exists}}]\n  containers:\n  - name: app\n    image: localhost/busybox:1\n\
         \x20   command: [sh, -c, {line:?}]\n    volumeMounts: [{{name: scratch, mountPath: /data}}]\n\
         \x20 volumes:\n  - name: scratch\n    csi: {{driver: {driver}, volumeAttributes: {attributes}}}\n",
        line = format!("{line}; exec sleep 1000000")
    )
}

/// A `StatefulSet` of one pod, which comes back by itself wherever its volume is.
pub fn stateful(namespace: &str, name: &str, claim: &str, line: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  replicas: 1\n  serviceName: {name}\n  selector: {{matchLabels: {{app: {name}}}}}\n\
         \x20 template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n      terminationGracePeriodSeconds: 0\n\
         \x20     containers:\n      - name: app\n        image: localhost/busybox:1\n        command: [sh, -c, {line:?}]\n\
         \x20       volumeMounts: [{{name: data, mountPath: /data}}]\n\
         \x20     volumes:\n      - name: data\n        persistentVolumeClaim: {{claimName: {claim}}}\n",
        line = format!("{line}; exec sleep 1000000")
    )
}
