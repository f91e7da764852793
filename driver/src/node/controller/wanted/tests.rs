use dunnage_csi::v1::volume_capability::access_mode::Mode;
use dunnage_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use dunnage_csi::v1::{CapacityRange, Topology, VolumeCapability, VolumeContentSource};
use dunnage_host::filesystem::Kind;

use super::*;
use crate::engine::EngineKind;
use crate::id::VolumeId;
use crate::overcommit::Overcommit;
use crate::record::Format;

fn request(fs_type: &str) -> CreateVolumeRequest {
    let mount = MountVolume { fs_type: fs_type.into(), ..MountVolume::default() };
    CreateVolumeRequest {
        name: "pvc-1".into(),
        volume_capabilities: vec![VolumeCapability {
            access_type: Some(AccessType::Mount(mount)),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }],
        ..CreateVolumeRequest::default()
    }
}

type Spoil = fn(&mut CreateVolumeRequest);

fn parse(request: &CreateVolumeRequest) -> Result<Wanted> {
    Wanted::parse(request, EngineKind::LoopFile.engine(Overcommit::default()).as_ref())
}

#[test]
fn what_cannot_be_served_is_named_with_what_can() {
    let cases: [(&str, Spoil); 10] = [
        ("name is missing", |r| r.name.clear()),
        ("control characters", |r| r.name = "a\0b".into()),
        ("256 bytes", |r| r.name = "x".repeat(300)),
        ("volume_capabilities is missing", |r| r.volume_capabilities.clear()),
        ("\"fsTyp\" is unknown: allowed are", |r| {
            r.parameters =
                [("fsTyp".into(), "xfs".into()), ("csi.storage.k8s.io/pvc/name".into(), "a".into())].into();
        }),
        ("requireLimit is \"yes\": it may be", |r| {
            r.parameters = [("requireLimit".into(), "yes".into())].into();
        }),
        ("may be thick or sparse", |r| r.parameters = [("allocation".into(), "thin".into())].into()),
        ("volume_content_source.type is missing", |r| {
            r.volume_content_source = Some(VolumeContentSource::default());
        }),
        ("VolumeAttributesClass parameter \"iops\" is unknown", |r| {
            r.mutable_parameters = [("iops".into(), "1".into())].into();
        }),
        ("is negative", |r| r.capacity_range = Some(CapacityRange { required_bytes: -1, limit_bytes: 0 })),
    ];
    for (says, spoil) in cases {
        let mut request = request("");
        spoil(&mut request);
        let error = parse(&request).unwrap_err();
        assert!(matches!(error, Error::Invalid(_) | Error::Missing { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
    }
    let mut informed = request("xfs");
    informed.parameters = [("csi.storage.k8s.io/pvc/name".into(), "a".into())].into();
    assert!(!parse(&informed).unwrap().require_limit);
    informed.parameters = [("requireLimit".into(), "true".into())].into();
    assert!(parse(&informed).unwrap().require_limit);
}

#[test]
fn an_existing_volume_answers_only_what_it_is() {
    let id = VolumeId::make(&"0123456789abcdef".parse().unwrap(), "pvc-1");
    let record = Record {
        id,
        name: "pvc-1".into(),
        capacity_bytes: 100,
        content: Content::Image { fs_type: Kind::Ext4, format: Format::Done, allocation: Allocation::Thick },
        published_node: None,
        source: None,
        inline: None,
    };
    for (fs_type, required_bytes, limit_bytes, same) in [
        ("ext4", 100, 100, true),
        ("", 0, 0, true),
        ("ext4", 50, 0, true),
        ("ext4", 101, 0, false),
        ("ext4", 0, 99, false),
        ("xfs", 100, 0, false),
    ] {
        let mut request = request(fs_type);
        request.capacity_range = Some(CapacityRange { required_bytes, limit_bytes });
        let matched = parse(&request).unwrap().matches(record.clone());
        assert_eq!(matched.is_ok(), same, "{matched:?}");
        assert!(matches!(matched, Ok(_) | Err(Error::Conflict { .. })));
    }
    for (allocation, same) in [("thick", true), ("sparse", false)] {
        let mut request = request("");
        request.parameters = [("allocation".into(), allocation.into())].into();
        let matched = parse(&request).unwrap().matches(record.clone());
        assert_eq!(matched.is_ok(), same, "{matched:?}");
    }
}

#[test]
fn a_volume_with_a_source_has_the_sources_file_system_unless_another_is_asked_for() {
    let source = Source::Volume(VolumeId::make(&"0123456789abcdef".parse().unwrap(), "pvc-0"));
    for (has, asked, fits) in [
        (
            Content::Image { fs_type: Kind::Xfs, format: Format::Copied, allocation: Allocation::Thick },
            "",
            true,
        ),
        (
            Content::Image { fs_type: Kind::Xfs, format: Format::Done, allocation: Allocation::Thick },
            "xfs",
            true,
        ),
        (
            Content::Image { fs_type: Kind::Xfs, format: Format::Copied, allocation: Allocation::Thick },
            "ext4",
            false,
        ),
        (Content::Directory, "", false),
    ] {
        let mut request = request(asked);
        request.volume_content_source = Some(source.to_csi());
        let wanted = parse(&request).unwrap();
        let id = VolumeId::make(&"0123456789abcdef".parse().unwrap(), "pvc-1");
        let name = wanted.name.clone();
        let source = Some(source.clone());
        let record =
            Record { id, name, capacity_bytes: 1, content: has, published_node: None, source, inline: None };
        assert_eq!(wanted.check_content(&record).is_ok(), fits, "{has:?} {asked:?}");
        assert_eq!(wanted.matches(record).is_ok(), fits, "{has:?} {asked:?}");
    }
}

#[test]
fn a_topology_that_leaves_the_pool_out_is_refused() {
    let pool: PoolId = "0123456789abcdef".parse().unwrap();
    let at = |pool: &str| Topology { segments: [("k".to_owned(), pool.to_owned())].into() };
    let own = || at("0123456789abcdef");
    for (requisite, preferred, allowed) in [
        (vec![], vec![], true),
        (vec![own()], vec![], true),
        (vec![at("x"), own()], vec![at("x")], true),
        (vec![at("x")], vec![own()], false),
        (vec![], vec![own()], true),
        (vec![], vec![at("x")], false),
        (vec![Topology::default()], vec![], false),
    ] {
        let asked = TopologyRequirement { requisite, preferred };
        assert_eq!(check_topology(Some(&asked), "k", &pool).is_ok(), allowed, "{asked:?}");
    }
    assert!(check_topology(None, "k", &pool).is_ok());
}
