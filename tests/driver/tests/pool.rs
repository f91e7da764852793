//! The pool's path in all its states: empty, foreign, newer, not mounted, mounted later, held by another process.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use dunnage_csi::agent::pool::State;
use dunnage_csi::v1::identity_server::Identity as _;
use dunnage_csi::v1::node_server::Node as _;
use dunnage_csi::v1::{NodeGetInfoRequest, ProbeRequest};
use dunnage_driver::EngineKind;
use dunnage_driver::node::Driver;
use dunnage_tests_driver::{BACKEND, Disk, Lab, POOL, block, eventually, mount, pool_id};
use tonic::{Code, Request};

const MIB: i64 = 1 << 20;

fn empty() -> Lab {
    Lab::without_pool(EngineKind::Directory, |_| {})
}

fn state(lab: &Lab) -> State {
    lab.driver().pool_state().0
}

fn write_marker(lab: &Lab, content: &str) {
    let own = lab.config.pool_path.join(".dunnage");
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("pool.json"), content).unwrap();
}

#[tokio::test]
async fn without_a_pool_nothing_is_made_and_all_say_so() {
    let lab = empty();
    assert_eq!(state(&lab), State::Empty);
    let probe = lab.driver().identity().probe(Request::new(ProbeRequest {})).await.unwrap();
    assert_eq!(probe.into_inner().ready, Some(false));
    let info = lab.driver().node().node_get_info(Request::new(NodeGetInfoRequest {})).await;
    assert_eq!(info.unwrap_err().code(), Code::Unavailable);
    assert_eq!(lab.create("pvc-1", MIB, mount("")).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(std::fs::read_dir(&lab.config.pool_path).unwrap().count(), 0);
}

#[tokio::test]
async fn a_pool_is_made_once() {
    let lab = empty();
    let driver = lab.driver();
    let other = "fedcba9876543210".parse().unwrap();
    assert!(driver.init_pool(&pool_id(), "another-uid").is_err());
    driver.init_pool(&pool_id(), BACKEND).unwrap();
    driver.init_pool(&pool_id(), BACKEND).unwrap();
    let refusal = driver.init_pool(&other, BACKEND).unwrap_err();
    assert!(refusal.to_string().contains(POOL), "{refusal}");
    assert_eq!(state(&lab), State::Ready);
    let info = driver.node().node_get_info(Request::new(NodeGetInfoRequest {})).await.unwrap().into_inner();
    let segments = info.accessible_topology.unwrap().segments;
    assert_eq!(segments.get("topology.local.csi.dunnage.dev/pool").map(String::as_str), Some(POOL));
}

#[test]
fn what_is_not_ours_is_not_touched() {
    for (content, expected) in [
        (format!(r#"{{"format":1,"poolId":"{POOL}","backendUid":"another"}}"#), State::Foreign),
        (r#"{"format":2,"something":"new"}"#.to_owned(), State::NewerFormat),
        ("not json".to_owned(), State::Damaged),
    ] {
        let lab = empty();
        write_marker(&lab, &content);
        let (state, message) = lab.driver().pool_state();
        assert_eq!(state, expected);
        assert!(!message.is_empty());
        let refusal = lab.driver().init_pool(&pool_id(), BACKEND).unwrap_err();
        assert_eq!(refusal.to_string(), message);
        assert!(lab.driver().remove_pool(&pool_id()).is_err());
        let marker = std::fs::read_to_string(lab.config.pool_path.join(".dunnage/pool.json")).unwrap();
        assert_eq!(marker, content);
    }
}

#[test]
fn other_files_make_no_pool_but_those_of_a_fresh_disk_do() {
    let lab = empty();
    std::fs::write(lab.config.pool_path.join("photo.jpg"), "x").unwrap();
    assert_eq!(state(&lab), State::NotEmpty);
    assert!(lab.driver().init_pool(&pool_id(), BACKEND).unwrap_err().to_string().contains("photo.jpg"));
    std::fs::remove_file(lab.config.pool_path.join("photo.jpg")).unwrap();
    std::fs::create_dir(lab.config.pool_path.join("lost+found")).unwrap();
    assert_eq!(state(&lab), State::Empty);
    lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
}

#[tokio::test]
async fn a_disk_that_is_mounted_late_brings_its_volumes() {
    let mut lab = Lab::without_pool(EngineKind::Directory, |config| config.require_mount_point = true);
    let (state_before, message) = lab.driver().pool_state();
    assert_eq!(state_before, State::NotMounted);
    assert!(message.contains("mount the disk"), "{message}");
    let mut disk = Disk::make(lab.root(), 64);
    disk.mount(&lab.config.pool_path);
    assert_eq!(state(&lab), State::Empty);
    lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
    let id = lab.create("pvc-1", MIB, mount("")).await.unwrap().volume_id;
    lab.driver = None;
    disk.unmount();
    lab.restart();
    assert_eq!(state(&lab), State::NotMounted);
    // Deleting is not done either: the volume may well be on the disk that is missing.
    assert_eq!(lab.delete(&id).await.unwrap_err().code(), Code::Unavailable);
    disk.mount(&lab.config.pool_path);
    assert_eq!(state(&lab), State::Ready);
    lab.stage(&id, mount("")).await.unwrap();
    lab.delete(&id).await.unwrap();
    lab.assert_clean();
    lab.driver = None;
    disk.unmount();
}

#[tokio::test]
async fn a_pool_that_goes_and_comes_is_let_go_and_opened_again() {
    let lab = Lab::new(EngineKind::Directory);
    let away = lab.root().join("away");
    std::fs::rename(&lab.config.pool_path, &away).unwrap();
    let (gone, message) = lab.driver().pool_state();
    assert_eq!(gone, State::Unavailable);
    assert!(message.contains("needs a directory"), "{message}");
    std::fs::rename(&away, &lab.config.pool_path).unwrap();
    assert_eq!(state(&lab), State::Ready);
}

#[tokio::test]
async fn unmounting_works_without_the_pool() {
    for capability in [mount(""), block()] {
        let lab = Lab::new(EngineKind::LoopFile);
        let id = lab.create("pvc-1", 16 * MIB, capability.clone()).await.unwrap().volume_id;
        lab.stage(&id, capability.clone()).await.unwrap();
        let target = lab.target("pod-1");
        lab.publish(&id, &target, capability, false).await.unwrap();
        let away = lab.root().join("away");
        std::fs::rename(&lab.config.pool_path, &away).unwrap();
        lab.unpublish(&id, &target).await.unwrap();
        assert_eq!(lab.loops().len(), 1);
        lab.unstage(&id).await.unwrap();
        assert_eq!(lab.mounts(), Vec::<std::path::PathBuf>::new());
        eventually("the loop device is gone", || lab.loops().is_empty());
    }
}

#[test]
fn one_process_serves_a_pool_at_a_time() {
    let mut lab = Lab::new(EngineKind::Directory);
    let second = Driver::open(lab.config.clone());
    let (state, message) = second.pool_state();
    assert_eq!(state, State::Unavailable);
    assert!(message.contains("another process"), "{message}");
    lab.driver = None;
    assert_eq!(second.pool_state().0, State::Ready);
}

#[tokio::test]
async fn an_empty_pool_is_given_up_and_one_with_volumes_is_not() {
    let lab = Lab::new(EngineKind::Directory);
    let id = lab.create("pvc-1", MIB, mount("")).await.unwrap().volume_id;
    let refusal = lab.driver().remove_pool(&pool_id()).unwrap_err();
    assert!(refusal.to_string().contains("1 volumes"), "{refusal}");
    assert!(lab.driver().remove_pool(&"fedcba9876543210".parse().unwrap()).is_err());
    lab.delete(&id).await.unwrap();
    lab.driver().remove_pool(&pool_id()).unwrap();
    lab.driver().remove_pool(&pool_id()).unwrap();
    assert_eq!(std::fs::read_dir(&lab.config.pool_path).unwrap().count(), 0);
    assert_eq!(state(&lab), State::Empty);
}

#[test]
fn what_others_have_on_a_path_without_a_pool_is_not_removed_with_it() {
    let lab = empty();
    for name in ["trash", "volumes"] {
        std::fs::create_dir(lab.config.pool_path.join(name)).unwrap();
        std::fs::write(lab.config.pool_path.join(name).join("file"), "kept").unwrap();
    }
    lab.driver().remove_pool(&pool_id()).unwrap();
    for name in ["trash", "volumes"] {
        assert_eq!(std::fs::read(lab.config.pool_path.join(name).join("file")).unwrap(), b"kept");
    }
}
