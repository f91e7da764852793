use dunnage_csi::v1::VolumeCapability;
use dunnage_csi::v1::volume_capability::access_mode::Mode;
use dunnage_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use dunnage_host::filesystem::Kind;

use super::*;
use crate::EngineKind;
use crate::id::VolumeId;
use crate::record::{Allocation, Format, Inline};

const MIB: u64 = 1 << 20;

/// What a pod writes under `volumeAttributes`.
type Attributes = &'static [(&'static str, &'static str)];

fn request(fs_type: &str, attributes: &[(&str, &str)]) -> NodePublishVolumeRequest {
    let mount = MountVolume { fs_type: fs_type.into(), ..MountVolume::default() };
    let kubelets = [
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/pod.name", "cart-0"),
        ("csi.storage.k8s.io/pod.namespace", "shop"),
        ("csi.storage.k8s.io/serviceAccount.name", "default"),
    ];
    let all = attributes.iter().chain(&kubelets);
    NodePublishVolumeRequest {
        volume_capability: Some(VolumeCapability {
            access_type: Some(AccessType::Mount(mount)),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeMultiWriter.into() }),
        }),
        volume_context: all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..NodePublishVolumeRequest::default()
    }
}

fn engine(kind: EngineKind) -> std::sync::Arc<dyn Engine> {
    kind.engine(crate::Overcommit::default())
}

#[test]
fn a_volume_is_inline_when_kubelet_says_so() {
    let context =
        |value: &str| HashMap::from([("csi.storage.k8s.io/ephemeral".to_owned(), value.to_owned())]);
    assert!(is_asked(&context("true")));
    assert!(!is_asked(&context("false")) && !is_asked(&HashMap::new()));
}

#[test]
fn the_pods_attributes_are_checked_as_a_classs_parameters_are() {
    use EngineKind::{Directory, LoopFile};
    let image = |fs_type, allocation| Content::Image { fs_type, format: Format::Never, allocation };
    let thick = Allocation::Thick;
    let fine: [(EngineKind, &str, Attributes, u64, Content); 7] = [
        (Directory, "", &[], 0, Content::Directory),
        (Directory, "", &[("size", "16Mi"), ("requireLimit", "false")], 16 * MIB, Content::Directory),
        (LoopFile, "", &[("size", "1.5Gi")], 1536 * MIB, image(Kind::Ext4, thick)),
        (LoopFile, "xfs", &[], 0, image(Kind::Xfs, thick)),
        (LoopFile, "", &[("fsType", "xfs")], 0, image(Kind::Xfs, thick)),
        (LoopFile, "xfs", &[("fsType", "xfs")], 0, image(Kind::Xfs, thick)),
        (LoopFile, "", &[("allocation", "sparse")], 0, image(Kind::Ext4, Allocation::Sparse)),
    ];
    for (kind, field, attributes, bytes, content) in fine {
        let wanted = Wanted::parse(&request(field, attributes), engine(kind).as_ref()).unwrap();
        assert_eq!((wanted.range.required, wanted.content), (bytes, content), "{attributes:?}");
        assert_eq!(wanted.pod, "shop/cart-0");
    }
    let refused: [(EngineKind, &str, Attributes, &str); 8] = [
        (Directory, "", &[("Size", "1Gi")], "volume attribute \"Size\" is unknown: allowed are size, fsType"),
        (Directory, "", &[("allocation", "thick")], "\"allocation\" is unknown"),
        (Directory, "", &[("size", "much")], "500Mi"),
        (Directory, "", &[("size", "0")], "500Mi"),
        (Directory, "ext4", &[], "LoopFile"),
        (LoopFile, "", &[("fsType", "zfs")], "ext4 or xfs or btrfs"),
        (LoopFile, "xfs", &[("fsType", "ext4")], "leave one"),
        (LoopFile, "", &[("requireLimit", "yes")], "volume attribute requireLimit is \"yes\""),
    ];
    for (kind, field, attributes, says) in refused {
        let error = Wanted::parse(&request(field, attributes), engine(kind).as_ref()).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains(says), "{error}");
    }
    let mut block = request("", &[]);
    let access_type = Some(AccessType::Block(BlockVolume {}));
    block.volume_capability = block.volume_capability.map(|it| VolumeCapability { access_type, ..it });
    assert!(Wanted::parse(&block, engine(Directory).as_ref()).is_err());
}

#[test]
fn a_read_only_volume_is_mounted_so_at_once() {
    let read_only = NodePublishVolumeRequest { readonly: true, ..request("", &[]) };
    let wanted = |request| Wanted::parse(request, engine(EngineKind::LoopFile).as_ref()).unwrap();
    assert!(wanted(&read_only).capability.options.is_read_only());
    assert!(!wanted(&request("", &[])).capability.options.is_read_only());
}

#[test]
fn a_repeated_publish_asks_for_the_same_volume() {
    let engine = engine(EngineKind::LoopFile);
    let pool = "0123456789abcdef".parse().unwrap();
    let id = format!("csi-{}", "0f".repeat(32));
    let record = Record {
        id: VolumeId::inline(&pool, &id.parse().unwrap()),
        name: id,
        capacity_bytes: 32 * MIB,
        content: Content::Image { fs_type: Kind::Ext4, format: Format::Done, allocation: Allocation::Thick },
        published_node: None,
        source: None,
        inline: Some(Inline { pod: "shop/cart-0".into(), target: "pods/1/mount".into() }),
    };
    for (field, attributes, same) in [
        ("", [("size", "32Mi")], true),
        ("ext4", [("size", "33554432")], true),
        ("", [("size", "64Mi")], false),
        ("xfs", [("size", "32Mi")], false),
    ] {
        let wanted = Wanted::parse(&request(field, &attributes), engine.as_ref()).unwrap();
        let got = wanted.matches(record.clone(), engine.as_ref());
        assert_eq!(got.is_ok(), same, "{field} {attributes:?}");
        assert!(got.is_ok() || matches!(got, Err(Error::Conflict { .. })));
    }
}
