//! Inline volumes: a pod's own, made by its publish and gone with its data by its unpublish.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use dunnage_csi::agent::DescribeRequest;
use dunnage_csi::agent::agent_server::Agent as _;
use dunnage_csi::v1::controller_server::Controller as _;
use dunnage_csi::v1::node_server::Node as _;
use dunnage_csi::v1::{GetCapacityRequest, ListVolumesRequest, NodePublishVolumeRequest};
use dunnage_driver::EngineKind;
use dunnage_tests_driver::{BACKEND, Disk, Killer, Lab, from_volume, id_in_pool, inline_id, mount, pool_id};
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request};

const MIB: i64 = 1 << 20;
const ENGINES: [EngineKind; 3] = [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs];

async fn capacity(lab: &Lab) -> i64 {
    let request = Request::new(GetCapacityRequest::default());
    lab.driver().controller().get_capacity(request).await.unwrap().into_inner().available_capacity
}

#[tokio::test]
async fn an_inline_volume_lives_as_long_as_its_pod() {
    for engine in ENGINES {
        let mut lab = Lab::new(engine);
        let target = lab.publish_inline("cart-0", "", &[("size", "64Mi")]).await.unwrap();
        std::fs::write(target.join("data"), "kept").unwrap();
        let total = lab.bytes(&inline_id("cart-0"), &target).await.total;
        assert!((48 * MIB..=64 * MIB).contains(&total), "{total}");

        // Containers of the pod end and begin, the driver and the node too: the data stay.
        lab.restart();
        lab.tick().await;
        lab.publish_inline("cart-0", "", &[("size", "64Mi")]).await.unwrap();
        assert_eq!(std::fs::read(target.join("data")).unwrap(), b"kept");
        lab.reboot();
        lab.tick().await;
        lab.publish_inline("cart-0", "", &[("size", "64Mi")]).await.unwrap();
        assert_eq!(std::fs::read(target.join("data")).unwrap(), b"kept");

        lab.unpublish_inline("cart-0").await.unwrap();
        lab.unpublish_inline("cart-0").await.unwrap();
        assert!(!target.exists());
        lab.assert_clean();
        // A pod of the same name has another uid; one of the same id still gets nothing of the old data.
        let target = lab.publish_inline("cart-0", "", &[("size", "64Mi")]).await.unwrap();
        assert!(!target.join("data").exists());
        lab.unpublish_inline("cart-0").await.unwrap();
        lab.assert_clean();
    }
}

#[tokio::test]
async fn an_inline_volume_counts_in_the_capacity_of_its_pool() {
    for engine in ENGINES {
        let mut lab = Lab::without_pool(engine, |_| {});
        let mut disk = match engine {
            EngineKind::Btrfs => Disk::btrfs(lab.root(), 256),
            _ => Disk::make(lab.root(), 256),
        };
        disk.mount(&lab.config.pool_path);
        lab.driver().init_pool(&pool_id(), BACKEND).unwrap();
        let before = capacity(&lab).await;
        lab.publish_inline("cart-0", "", &[("size", "64Mi")]).await.unwrap();
        let taken = before - capacity(&lab).await;
        assert!((taken - 64 * MIB).abs() < 2 * MIB, "{engine:?} {taken}");
        let status = lab.publish_inline("cart-1", "", &[("size", "300Mi")]).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        lab.unpublish_inline("cart-0").await.unwrap();
        lab.assert_clean();
        lab.driver = None;
        disk.unmount();
    }
}

#[tokio::test]
async fn the_pods_spec_chooses_the_file_system_and_may_make_it_read_only() {
    let lab = Lab::new(EngineKind::LoopFile);
    lab.publish_inline("cart-0", "xfs", &[("size", "300Mi")]).await.unwrap();
    let mut request = lab.inline_request("cart-1", "", &[("size", "16Mi")]);
    request.readonly = true;
    lab.driver().node().node_publish_volume(Request::new(request)).await.unwrap();
    let target = lab.pod_target("cart-1");
    assert!(std::fs::write(target.join("data"), "x").is_err(), "it is writable");
    let mounts = dunnage_host::mountinfo::read().unwrap();
    let kind = |pod: &str| {
        let at = lab.pod_target(pod);
        mounts.iter().find(|mount| mount.mount_point == at).map(|mount| mount.filesystem.clone())
    };
    assert_eq!((kind("cart-0").as_deref(), kind("cart-1").as_deref()), (Some("xfs"), Some("ext4")));
    for pod in ["cart-0", "cart-1"] {
        lab.unpublish_inline(pod).await.unwrap();
    }
    lab.assert_clean();
}

#[tokio::test]
async fn nobody_but_its_pod_has_a_say_in_an_inline_volume() {
    for engine in ENGINES {
        let lab = Lab::new(engine);
        let target = lab.publish_inline("cart-0", "", &[("size", "16Mi")]).await.unwrap();
        let (own, kubelets) = (id_in_pool("cart-0"), inline_id("cart-0"));

        let listed =
            lab.driver().controller().list_volumes(Request::new(ListVolumesRequest::default())).await;
        assert!(listed.unwrap().into_inner().entries.is_empty());
        let agent = lab.driver().agent(CancellationToken::new());
        let mut told = agent.describe(Request::new(DescribeRequest {})).await.unwrap().into_inner();
        let told = told.next().await.unwrap().unwrap();
        assert!(told.volumes.is_empty());
        assert_eq!(told.inline_pods, ["shop/cart-0"]);

        // To kubelet's id they are blind, and the pool's own is refused.
        lab.delete(&kubelets).await.unwrap();
        let refused = [
            lab.delete(&own).await.unwrap_err(),
            lab.snapshot("snap-1", &own).await.unwrap_err(),
            lab.create_from(from_volume(&own), "pvc-1", 16 * MIB, mount("")).await.unwrap_err(),
            lab.expand(&own, 64 * MIB).await.unwrap_err(),
            lab.expand_staged(&own, 64 * MIB).await.unwrap_err(),
            lab.stage(&own, mount("")).await.unwrap_err(),
            lab.unpublish(&own, &target).await.unwrap_err(),
        ];
        for status in refused {
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains(&own) && status.message().contains("inline"), "{status}");
        }
        // A volume of a claim can have kubelet's id for its name, and is another one.
        let claims = lab.create(&kubelets, 16 * MIB, mount("")).await.unwrap().volume_id;
        assert_ne!(claims, own);
        lab.delete(&claims).await.unwrap();

        let driver = lab.driver().clone();
        let removed =
            tokio::task::spawn_blocking(move || driver.remove_pool(&pool_id()).map_err(|e| e.to_string()));
        assert!(removed.await.unwrap().unwrap_err().contains("1 volumes"));
        std::fs::write(target.join("data"), "still there").unwrap();
        lab.unpublish_inline("cart-0").await.unwrap();
        lab.assert_clean();
    }
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_by_name_and_leaves_nothing() {
    let lab = Lab::new(EngineKind::LoopFile);
    for (fs_type, attributes, code, says) in [
        ("", [("sise", "16Mi")], Code::InvalidArgument, "\"sise\" is unknown"),
        ("", [("size", "16 MB")], Code::InvalidArgument, "500Mi"),
        ("", [("size", "1Mi")], Code::OutOfRange, "16 MiB"),
        ("", [("size", "1Ei")], Code::ResourceExhausted, "bytes free"),
        ("zfs", [("size", "16Mi")], Code::InvalidArgument, "ext4 or xfs"),
    ] {
        let status = lab.publish_inline("cart-0", fs_type, &attributes).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(says), "{status}");
        lab.assert_clean();
    }
    lab.publish_inline("cart-0", "", &[("size", "16Mi")]).await.unwrap();
    let other = lab.publish_inline("cart-0", "", &[("size", "32Mi")]).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    lab.unpublish_inline("cart-0").await.unwrap();

    let request = lab.inline_request("cart-0", "", &[("size", "16Mi")]);
    for (id, code) in [("pvc-1", Code::InvalidArgument), ("", Code::InvalidArgument)] {
        let request = NodePublishVolumeRequest { volume_id: id.into(), ..request.clone() };
        let status = lab.driver().node().node_publish_volume(Request::new(request)).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }
    // Without kubelet's word it is no inline volume, and there is no other of this id.
    let target = lab.pod_target("cart-0");
    let status = lab.publish(&inline_id("cart-0"), &target, mount(""), false).await.unwrap_err();
    assert!(matches!(status.code(), Code::NotFound | Code::FailedPrecondition), "{status}");
    lab.assert_clean();
}

#[tokio::test]
async fn what_kubelet_will_never_unpublish_is_removed_and_nothing_else() {
    for engine in ENGINES {
        let mut lab = Lab::new(engine);
        for pod in ["gone", "there", "used"] {
            lab.publish_inline(pod, "", &[("size", "16Mi")]).await.unwrap();
        }
        // Kubelet has made a second mount of a part of it, which is still there.
        lab.reboot();
        let used = lab.publish_inline("used", "", &[("size", "16Mi")]).await.unwrap();
        let elsewhere = lab.target("elsewhere");
        lab.bind(&used, &elsewhere);
        lab.unbind(&used);
        for pod in ["gone", "used"] {
            lab.forget_pod(pod);
        }
        lab.tick().await;
        assert_eq!(["gone", "there", "used"].map(|pod| lab.has_inline(pod)), [false, true, true]);
        lab.unbind(&elsewhere);

        // A directory without pods is no directory of a kubelet.
        let (pods, aside) = (lab.config.kubelet_dir.join("pods"), lab.root().join("aside"));
        std::fs::rename(&pods, &aside).unwrap();
        lab.tick().await;
        assert!(lab.has_inline("used") && lab.has_inline("there"));
        std::fs::rename(&aside, &pods).unwrap();

        lab.tick().await;
        assert_eq!(["there", "used"].map(|pod| lab.has_inline(pod)), [true, false]);
        lab.unpublish_inline("there").await.unwrap();
        lab.assert_clean();
    }
}

#[tokio::test]
async fn a_lost_pool_keeps_no_pod_and_its_inline_volumes_go_when_it_is_back() {
    // A subvolume's pool is a mount point here and cannot be moved aside.
    for engine in [EngineKind::Directory, EngineKind::LoopFile] {
        let mut lab = Lab::new(engine);
        let target = lab.publish_inline("cart-0", "", &[("size", "16Mi")]).await.unwrap();
        lab.driver = None;
        let aside = lab.root().join("aside");
        std::fs::rename(&lab.config.pool_path, &aside).unwrap();
        std::fs::create_dir(&lab.config.pool_path).unwrap();
        lab.restart();
        lab.unpublish_inline("cart-0").await.unwrap();
        assert!(!target.exists());
        assert_eq!(lab.mounts(), Vec::<std::path::PathBuf>::new());
        lab.forget_pod("cart-0");

        lab.driver = None;
        std::fs::remove_dir(&lab.config.pool_path).unwrap();
        std::fs::rename(&aside, &lab.config.pool_path).unwrap();
        lab.restart();
        assert!(lab.has_inline("cart-0"));
        lab.tick().await;
        lab.assert_clean();
    }
}

/// What happens after a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Kubelet asks again.
    Again,
    /// The node restarts, and kubelet ends the pod.
    Ended,
    /// The node restarts, and kubelet has never heard of the pod.
    Forgotten,
}

/// The life of an inline volume with a kill at one step, or none; gives the steps that were reached.
async fn live(
    engine: EngineKind,
    fs_type: &str,
    size: &str,
    killer: Killer,
    after: After,
) -> Vec<&'static str> {
    let mut lab = Lab::new(engine);
    lab.config.steps = killer.steps();
    lab.restart();
    let attributes = [("size", size)];
    for publish in [true, true, false, false] {
        let result = if publish {
            lab.publish_inline("cart-0", fs_type, &attributes).await.map(drop)
        } else {
            lab.unpublish_inline("cart-0").await
        };
        let context = format!("{after:?} {publish} after {:?}", killer.reached());
        if let Err(status) = result {
            assert_eq!(status.code(), Code::Internal, "{context}: {status}");
            match after {
                After::Again => {
                    lab.restart();
                    lab.tick().await;
                    if publish {
                        lab.publish_inline("cart-0", fs_type, &attributes).await.expect(&context);
                    } else {
                        lab.unpublish_inline("cart-0").await.expect(&context);
                    }
                }
                After::Ended => {
                    lab.reboot();
                    lab.pod_target("cart-0");
                    lab.tick().await;
                    lab.unpublish_inline("cart-0").await.expect(&context);
                    lab.assert_clean();
                    return killer.reached();
                }
                After::Forgotten => {
                    lab.reboot();
                    lab.forget_pod("cart-0");
                    lab.tick().await;
                    lab.assert_clean();
                    return killer.reached();
                }
            }
        }
        assert_eq!(lab.mounts().len(), usize::from(publish), "{context}");
        let data = lab.pod_target("cart-0").join("data");
        if publish && data.exists() {
            assert_eq!(std::fs::read(data).unwrap(), b"kept", "{context}");
        } else if publish {
            std::fs::write(data, "kept").unwrap();
        }
    }
    lab.assert_clean();
    killer.reached()
}

async fn die_everywhere(engine: EngineKind, fs_type: &str, size: &str, wanted: &[&str]) {
    let steps = live(engine, fs_type, size, Killer::default(), After::Again).await;
    for step in wanted {
        assert!(steps.contains(step), "{step}: {steps:?}");
    }
    for after in [After::Again, After::Ended, After::Forgotten] {
        for step in 0..steps.len() {
            let killer = Killer::at(step);
            live(engine, fs_type, size, killer.clone(), after).await;
            assert!(killer.has_killed(), "{step} was not reached");
        }
    }
}

const LIFE: [&str; 5] =
    ["volume renamed", "inline volume staged", "target unmounted", "volume released", "volume in the trash"];

#[tokio::test]
async fn an_inline_directory_survives_a_kill_at_any_step_and_leaves_nothing() {
    die_everywhere(EngineKind::Directory, "", "16Mi", &[&LIFE[..], &["target mounted"]].concat()).await;
}

#[tokio::test]
async fn an_inline_image_survives_a_kill_at_any_step_and_leaves_nothing() {
    die_everywhere(EngineKind::LoopFile, "ext4", "16Mi", &[&LIFE[..], &["image mounted"]].concat()).await;
}

#[tokio::test]
async fn an_inline_xfs_image_survives_a_kill_at_any_step_and_leaves_nothing() {
    die_everywhere(EngineKind::LoopFile, "xfs", "300Mi", &[&LIFE[..], &["image mounted"]].concat()).await;
}
