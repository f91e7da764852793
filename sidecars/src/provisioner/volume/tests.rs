use dunnage_csi::v1::volume_capability::AccessMode;
use dunnage_csi::v1::{CapacityRange, Topology, VolumeCapability, VolumeContentSource};
use serde_json::{Value, json};

use super::*;

struct Case {
    claim: Value,
    class: StorageClass,
    request: CreateVolumeRequest,
    volume: Volume,
    secrets: BTreeMap<SecretKind, SecretRef>,
    publish_read_only: bool,
}

impl Case {
    fn new() -> Self {
        Self {
            claim: json!({
                "metadata": {"name": "data", "namespace": "shop", "uid": "1", "resourceVersion": "7"},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem"},
            }),
            class: StorageClass {
                provisioner: "d".into(),
                reclaim_policy: Some("Delete".into()),
                ..StorageClass::default()
            },
            request: CreateVolumeRequest {
                name: "pvc-1".into(),
                capacity_range: Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }),
                ..CreateVolumeRequest::default()
            },
            volume: Volume { volume_id: "v1".into(), capacity_bytes: 1 << 30, ..Volume::default() },
            secrets: BTreeMap::new(),
            publish_read_only: false,
        }
    }

    fn built(&self) -> Value {
        let claim = serde_json::from_value(self.claim.clone()).expect("a claim");
        let volume = build(&Inputs {
            driver: "d",
            identity: "who",
            claim: &claim,
            class: &self.class,
            request: &self.request,
            volume: &self.volume,
            fs_type: "ext4",
            secrets: &self.secrets,
            publish_read_only: self.publish_read_only,
        });
        serde_json::to_value(volume).expect("json")
    }
}

#[test]
fn a_plain_volume_has_exactly_the_fields_that_consumers_expect() {
    let expected = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": "pvc-1",
            "annotations": {
                "pv.kubernetes.io/provisioned-by": "d",
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": "shop", "name": "data", "uid": "1", "resourceVersion": "7",
            },
            "csi": {
                "driver": "d",
                "volumeHandle": "v1",
                "fsType": "ext4",
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "who"},
            },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
        },
    });
    assert_eq!(Case::new().built(), expected);
}

#[test]
fn the_drivers_topology_becomes_node_affinity() {
    let mut case = Case::new();
    let segments = [("zone".to_owned(), "a".to_owned()), ("rack".to_owned(), "1".to_owned())].into();
    case.volume.accessible_topology = vec![Topology::default(), Topology { segments }];
    let terms = &case.built()["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    let expected = json!([{"matchExpressions": [
        {"key": "rack", "operator": "In", "values": ["1"]},
        {"key": "zone", "operator": "In", "values": ["a"]},
    ]}]);
    assert_eq!(*terms, expected);
    case.volume.accessible_topology = vec![Topology::default()];
    assert_eq!(case.built()["spec"]["nodeAffinity"], Value::Null);
}

#[test]
fn the_drivers_context_wins_over_our_attribute() {
    let mut case = Case::new();
    case.volume.volume_context =
        [("k".to_owned(), "v".to_owned()), (names::IDENTITY_ATTRIBUTE.to_owned(), "its".to_owned())].into();
    let attributes = &case.built()["spec"]["csi"]["volumeAttributes"];
    assert_eq!(*attributes, json!({"k": "v", "storage.kubernetes.io/csiProvisionerIdentity": "its"}));
}

#[test]
fn secrets_are_kept_as_references_and_annotations() {
    let mut case = Case::new();
    for (kind, name) in
        [(SecretKind::Provisioner, "p"), (SecretKind::NodeStage, "s"), (SecretKind::ControllerModify, "m")]
    {
        case.secrets.insert(kind, SecretRef { name: name.into(), namespace: "ns".into() });
    }
    let built = case.built();
    assert_eq!(built["spec"]["csi"]["nodeStageSecretRef"], json!({"name": "s", "namespace": "ns"}));
    assert_eq!(built["spec"]["csi"]["nodePublishSecretRef"], Value::Null);
    let annotations = &built["metadata"]["annotations"];
    assert_eq!(annotations[names::DELETION_SECRET_NAME], "p");
    assert_eq!(annotations[names::DELETION_SECRET_NAMESPACE], "ns");
    assert_eq!(annotations[names::MODIFY_SECRET_NAME], "m");
}

#[test]
fn a_block_volume_has_no_file_system_and_a_class_is_followed() {
    let mut case = Case::new();
    case.claim["spec"]["volumeMode"] = json!("Block");
    case.class.reclaim_policy = Some("Retain".into());
    case.class.mount_options = Some(vec!["noatime".into()]);
    let built = case.built();
    assert_eq!(built["spec"]["csi"]["fsType"], Value::Null);
    assert_eq!(built["spec"]["volumeMode"], "Block");
    assert_eq!(built["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(built["spec"]["mountOptions"], json!(["noatime"]));
}

#[test]
fn only_a_read_only_mode_with_the_flag_makes_a_read_only_volume() {
    let mut case = Case::new();
    let mode = |mode: Mode| VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: None,
    };
    for (flag, modes, expected) in [
        (true, vec![Mode::MultiNodeReaderOnly], json!(true)),
        (true, vec![Mode::MultiNodeReaderOnly, Mode::SingleNodeWriter], Value::Null),
        (true, vec![Mode::SingleNodeWriter], Value::Null),
        (false, vec![Mode::MultiNodeReaderOnly], Value::Null),
    ] {
        case.publish_read_only = flag;
        case.request.volume_capabilities = modes.into_iter().map(mode).collect();
        assert_eq!(case.built()["spec"]["csi"]["readOnly"], expected);
    }
}

#[test]
fn a_driver_that_tells_no_size_gets_the_one_asked_for() {
    let mut case = Case::new();
    case.volume.capacity_bytes = 0;
    assert_eq!(case.built()["spec"]["capacity"]["storage"], "1Gi");
}

#[test]
fn an_answer_that_breaks_the_request_is_noticed() {
    let mut case = Case::new();
    assert_eq!(check(&case.request, &case.volume), Ok(()));
    case.volume.capacity_bytes = 1;
    assert_eq!(check(&case.request, &case.volume), Err(Mismatch::TooSmall { made: 1, asked: 1 << 30 }));
    case.volume.capacity_bytes = 0;
    case.request.volume_content_source = Some(VolumeContentSource::default());
    assert_eq!(check(&case.request, &case.volume), Err(Mismatch::NoSource));
    case.volume.volume_id = String::new();
    assert_eq!(check(&case.request, &case.volume), Err(Mismatch::NoId));
}
