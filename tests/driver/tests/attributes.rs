//! Attributes of volumes that are given at their making and changed while they are in use.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::Path;

use dunnage_csi::v1::controller_server::Controller as _;
use dunnage_csi::v1::{CapacityRange, CreateVolumeRequest, VolumeContentSource};
use dunnage_driver::EngineKind;
use dunnage_host::dir::Dir;
use dunnage_tests_driver::{Lab, compression, from_snapshot, from_volume, mount};
use tonic::{Code, Request, Status};

const MIB: i64 = 1 << 20;

/// Writes 8 MiB that are easy to compress, and gives by how much the volume has grown.
async fn grown_by(lab: &Lab, id: &str, target: &Path, file: &str) -> i64 {
    let used = async || {
        Dir::open(&lab.config.pool_path).unwrap().sync_filesystem().unwrap();
        lab.bytes(id, target).await.used
    };
    let before = used().await;
    fs::write(target.join(file), vec![7; 8 << 20]).unwrap();
    used().await - before
}

#[tokio::test]
async fn a_volume_is_compressed_as_it_is_modified_while_its_pod_goes_on() {
    let mut lab = Lab::new(EngineKind::Btrfs);
    let id = lab.create("pvc-1", 256 * MIB, mount("")).await.unwrap().volume_id;
    let target = lab.to_pod(&id, "pod-1", mount("")).await;
    assert_eq!(compression(&target), None);
    for (method, value) in [("zstd", Some("zstd")), ("zlib", Some("zlib")), ("lzo", Some("lzo"))] {
        for _ in 0..2 {
            lab.modify(&id, &[("compression", method), ("csi.storage.k8s.io/pvc/name", "a")]).await.unwrap();
            assert_eq!(compression(&target).as_deref(), value);
        }
        fs::create_dir(target.join(method)).unwrap();
        let grown = grown_by(&lab, &id, &target, &format!("{method}/file")).await;
        assert!(grown < 2 * MIB, "{method}: {grown}");
        assert_eq!(compression(&target.join(method).join("file")).as_deref(), value, "inherited");
    }
    lab.modify(&id, &[("compression", "none")]).await.unwrap();
    lab.restart();
    let record = fs::read_to_string(lab.volume_dir(&id).join("volume.json")).unwrap();
    assert!(record.contains(r#""compression":"none""#), "{record}");
    let grown = grown_by(&lab, &id, &target, "plain").await;
    assert!(grown >= 8 * MIB, "{grown}");
    for (id, attributes, code, says) in [
        ("", vec![("compression", "zstd")], Code::InvalidArgument, "volume_id"),
        (id.as_str(), vec![], Code::InvalidArgument, "mutable_parameters"),
        ("x", vec![("compression", "zstd")], Code::NotFound, "x"),
        (&id, vec![("compression", "gzip")], Code::InvalidArgument, "zstd, lzo, zlib, none"),
        (&id, vec![("compression", "zstd"), ("iops", "7")], Code::InvalidArgument, "allowed are compression"),
    ] {
        let refused = lab.modify(id, &attributes).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(says), "{refused}");
    }
    let after = fs::read_to_string(lab.volume_dir(&id).join("volume.json")).unwrap();
    assert_eq!(after, record, "all or nothing");
    lab.from_pod(&id, "pod-1").await;
    lab.delete(&id).await.unwrap();
    lab.assert_clean();
}

#[tokio::test]
async fn a_volume_is_made_with_a_compression_and_what_is_made_from_it_keeps_it_unless_told_otherwise() {
    let lab = Lab::new(EngineKind::Btrfs);
    let make = async |name: &str, method: Option<&str>, source: Option<VolumeContentSource>| {
        let request = CreateVolumeRequest {
            name: name.into(),
            capacity_range: Some(CapacityRange { required_bytes: 64 * MIB, limit_bytes: 0 }),
            volume_capabilities: vec![mount("")],
            mutable_parameters: method
                .map(|it| ("compression".to_owned(), it.to_owned()))
                .into_iter()
                .collect(),
            volume_content_source: source,
            ..CreateVolumeRequest::default()
        };
        let made = lab.driver().controller().create_volume(Request::new(request)).await?;
        Ok::<_, Status>(made.into_inner().volume.unwrap().volume_id)
    };
    let first = make("pvc-1", Some("zstd"), None).await.unwrap();
    let data = |id: &str| lab.volume_dir(id).join("data");
    assert_eq!(compression(&data(&first)).as_deref(), Some("zstd"));
    fs::write(data(&first).join("file"), vec![7; 8 << 20]).unwrap();
    assert_eq!(make("pvc-1", Some("zstd"), None).await.unwrap(), first);
    assert_eq!(make("pvc-1", None, None).await.unwrap(), first);
    assert_eq!(make("pvc-1", Some("lzo"), None).await.unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(make("pvc-9", Some("gzip"), None).await.unwrap_err().code(), Code::InvalidArgument);
    let snapshot = lab.snapshot("snap-1", &first).await.unwrap().snapshot_id;
    lab.modify(&first, &[("compression", "zlib")]).await.unwrap();
    let mut volumes = vec![first.clone()];
    for (name, method, source, becomes) in [
        ("pvc-2", None, from_snapshot(&snapshot), "zstd"),
        ("pvc-3", None, from_volume(&first), "zlib"),
        ("pvc-4", Some("lzo"), from_snapshot(&snapshot), "lzo"),
    ] {
        let id = make(name, method, Some(source.clone())).await.unwrap();
        assert_eq!(compression(&data(&id)).as_deref(), Some(becomes), "{name}");
        assert_eq!(make(name, method, Some(source)).await.unwrap(), id);
        assert_eq!(fs::read(data(&id).join("file")).unwrap(), vec![7; 8 << 20]);
        volumes.push(id);
    }
    for id in volumes {
        lab.delete(&id).await.unwrap();
    }
    lab.delete_snapshot(&snapshot).await.unwrap();
    lab.assert_clean();
}

#[tokio::test]
async fn what_cannot_be_modified_of_an_engines_volumes_is_not_asked_of_them() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile] {
        let lab = Lab::new(engine);
        let id = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
        let refused = lab.modify(&id, &[("compression", "zstd")]).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
        lab.delete(&id).await.unwrap();
        lab.assert_clean();
    }
}
