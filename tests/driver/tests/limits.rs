//! Hard limits of directories. What needs a kernel with project quota is ignored here and run by `make test-lab`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot be set up has failed")]

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::Command;

use dunnage_csi::v1::controller_server::Controller as _;
use dunnage_csi::v1::{CapacityRange, CreateVolumeRequest};
use dunnage_driver::EngineKind;
use dunnage_tests_driver::{Disk, Lab, mount};
use tonic::{Code, Request, Status};

const MIB: u64 = 1 << 20;

/// A node whose pool is a disk with project quota.
fn lab_on(filesystem: &str) -> (Lab, Disk) {
    let mut made = None;
    let lab = Lab::with(EngineKind::Directory, |config| {
        let root = config.pool_path.parent().unwrap();
        fs::create_dir_all(&config.pool_path).unwrap();
        let mut disk = Disk::with_project_quota(root, 400, filesystem);
        disk.mount(&config.pool_path);
        made = Some(disk);
    });
    (lab, made.unwrap())
}

/// A published volume.
async fn volume(lab: &Lab, name: &str, bytes: u64) -> (String, std::path::PathBuf) {
    let id = lab.create(name, i64::try_from(bytes).unwrap(), mount("")).await.unwrap().volume_id;
    let target = lab.to_pod(&id, name, mount("")).await;
    (id, target)
}

async fn remove(lab: &Lab, name: &str, id: &str) {
    lab.from_pod(id, name).await;
    lab.delete(id).await.unwrap();
}

async fn create_with_required_limit(lab: &Lab, name: &str) -> Result<String, Status> {
    let request = CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: 16 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![mount("")],
        parameters: HashMap::from([("requireLimit".into(), "true".into())]),
        ..CreateVolumeRequest::default()
    };
    let answer = lab.driver().controller().create_volume(Request::new(request)).await?;
    Ok(answer.into_inner().volume.unwrap().volume_id)
}

/// Writes until it is refused, as a process that may not pass limits; gives what was written.
fn fill(path: &Path) -> u64 {
    // ext4 lets a process with this capability past the limit; a container has it only when it is privileged.
    let script = format!("dd if=/dev/zero of={} bs=64k conv=fsync 2>&1", path.join("big").display());
    let output = Command::new("setpriv")
        .args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "sh", "-c", &script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "nothing has stopped it: {said}");
    assert!(said.contains("quota exceeded") || said.contains("No space left"), "{said}");
    fs::metadata(path.join("big")).unwrap().len()
}

fn size_shown(path: &Path) -> u64 {
    let output = Command::new("df").args(["-B1", "--output=size"]).arg(path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().nth(1).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn without_project_quota_a_class_that_requires_limits_is_refused_with_the_remedy() {
    let root = tempfile::tempdir().unwrap();
    let mut disk = Disk::make(root.path(), 64);
    let lab = Lab::with(EngineKind::Directory, |config| {
        fs::create_dir_all(&config.pool_path).unwrap();
        disk.mount(&config.pool_path);
    });
    let refused = create_with_required_limit(&lab, "pvc-1").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    for word in ["requireLimit", "ext4", "prjquota", "LoopFile"] {
        assert!(refused.message().contains(word), "{}", refused.message());
    }
    lab.create("pvc-1", 1 << 20, mount("")).await.unwrap();
}

#[tokio::test]
async fn a_loop_file_has_its_limit_by_nature() {
    let lab = Lab::new(EngineKind::LoopFile);
    create_with_required_limit(&lab, "pvc-1").await.unwrap();
}

#[tokio::test]
#[ignore = "needs a kernel with project quota: make test-lab"]
async fn a_volume_holds_no_more_than_its_size_and_shows_it_and_its_neighbour_is_not_touched() {
    for filesystem in ["ext4", "xfs"] {
        let (lab, disk) = lab_on(filesystem);
        let required = create_with_required_limit(&lab, "required").await.unwrap();
        let (small, at) = volume(&lab, "pvc-small", 16 * MIB).await;
        let (large, large_at) = volume(&lab, "pvc-large", 64 * MIB).await;
        assert_eq!((size_shown(&at), size_shown(&large_at)), (16 * MIB, 64 * MIB), "{filesystem}");
        let written = fill(&at);
        assert!((15 * MIB..=16 * MIB).contains(&written), "{filesystem}: {written}");
        assert!((63 * MIB..=64 * MIB).contains(&fill(&large_at)), "{filesystem}");
        lab.expand(&small, 24 << 20).await.unwrap();
        assert_eq!(size_shown(&at), 24 * MIB, "{filesystem}: growth is seen at once");
        assert!((23 * MIB..=24 * MIB).contains(&fill(&at)), "{filesystem}");
        remove(&lab, "pvc-small", &small).await;
        remove(&lab, "pvc-large", &large).await;
        lab.delete(&required).await.unwrap();
        lab.assert_clean();
        drop((lab, disk));
    }
}

#[tokio::test]
#[ignore = "needs a kernel with project quota: make test-lab"]
async fn a_limit_survives_a_restart_and_a_volume_of_the_same_name_begins_anew() {
    for filesystem in ["ext4", "xfs"] {
        let (mut lab, disk) = lab_on(filesystem);
        let (id, at) = volume(&lab, "pvc-1", 8 * MIB).await;
        fill(&at);
        lab.restart();
        let refused = fs::File::create(at.join("more")).and_then(|mut file| {
            file.write_all(&vec![1; 65536])?;
            file.sync_all()
        });
        if filesystem == "xfs" {
            let kind = refused.unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::QuotaExceeded | ErrorKind::StorageFull), "{kind:?}");
        }
        remove(&lab, "pvc-1", &id).await;
        let (again, at) = volume(&lab, "pvc-1", 24 * MIB).await;
        assert_eq!(again, id);
        assert!((23 * MIB..=24 * MIB).contains(&fill(&at)), "{filesystem}");
        remove(&lab, "pvc-1", &id).await;
        drop((lab, disk));
    }
}
