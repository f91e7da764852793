//! What may be done to a volume or a snapshot while it is copied, and what has to wait.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use dunnage_driver::EngineKind;
use dunnage_driver::steps::Steps;
use dunnage_tests_driver::{Lab, from_snapshot, from_volume, members, mount};
use tonic::{Code, Status};

const MIB: i64 = 1 << 20;

/// Holds up the first operation that reaches a step until it is let go.
struct Gate {
    reached: Arc<AtomicBool>,
    go: mpsc::Sender<()>,
}

impl Gate {
    fn at(lab: &mut Lab, step: &'static str) -> Self {
        let reached = Arc::new(AtomicBool::new(false));
        let (go, wait) = mpsc::channel();
        let (told, wait) = (Arc::clone(&reached), Mutex::new(wait));
        lab.config.steps = Steps::new(move |at| {
            if at == step && !told.swap(true, Ordering::SeqCst) {
                // When the test has failed there is nobody to let it go.
                let _ = wait.lock().unwrap().recv_timeout(Duration::from_secs(60));
            }
        });
        lab.restart();
        Self { reached, go }
    }

    async fn reached(&self) {
        while !self.reached.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn a_volume_being_copied_is_kept_and_goes_on_serving_its_pods() {
    for (engine, restage) in [
        (EngineKind::Directory, Code::Ok),
        (EngineKind::Btrfs, Code::Ok),
        (EngineKind::LoopFile, Code::Aborted),
    ] {
        let mut lab = Lab::new(engine);
        let id = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
        lab.stage(&id, mount("")).await.unwrap();
        let (target, other) = (lab.target("pod-1"), lab.target("pod-2"));
        lab.publish(&id, &target, mount(""), false).await.unwrap();
        let gate = Gate::at(&mut lab, "snapshot data made");
        let meanwhile = async {
            gate.reached().await;
            assert_eq!(code(lab.snapshot("snap-1", &id).await), Code::Aborted, "one call a name");
            assert_eq!(code(lab.snapshot("snap-2", &id).await), Code::Aborted, "one copy a volume");
            let clone = lab.create_from(from_volume(&id), "pvc-3", 16 * MIB, mount("")).await;
            assert_eq!(code(clone), Code::Aborted);
            assert_eq!(code(lab.stage(&id, mount("")).await), restage, "{engine:?}");
            assert_eq!(code(lab.publish(&id, &other, mount(""), false).await), Code::Ok);
            std::fs::write(other.join("data"), "x").unwrap();
            assert_eq!(code(lab.unpublish(&id, &other).await), Code::Ok);
            assert_eq!(code(lab.delete(&id).await), Code::Aborted);
            // Others do not wait.
            let another = lab.create("pvc-2", 16 * MIB, mount("")).await.unwrap().volume_id;
            assert_eq!(code(lab.delete(&another).await), Code::Ok);
            gate.go.send(()).unwrap();
        };
        let (made, ()) = tokio::join!(lab.snapshot("snap-1", &id), meanwhile);
        lab.delete_snapshot(&made.unwrap().snapshot_id).await.unwrap();
        lab.unpublish(&id, &target).await.unwrap();
        lab.unstage(&id).await.unwrap();
        lab.delete(&id).await.unwrap();
        lab.assert_clean();
    }
}

#[tokio::test]
async fn a_snapshot_being_restored_is_kept_and_serves_others_at_once() {
    for engine in [EngineKind::Directory, EngineKind::LoopFile, EngineKind::Btrfs] {
        let mut lab = Lab::new(engine);
        let id = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
        let snapshot = lab.snapshot("snap-1", &id).await.unwrap().snapshot_id;
        let restore = async |lab: &Lab, name: &str| {
            lab.create_from(from_snapshot(&snapshot), name, 16 * MIB, mount("")).await
        };
        let gate = Gate::at(&mut lab, "volume data made");
        let meanwhile = async {
            gate.reached().await;
            assert_eq!(code(lab.delete_snapshot(&snapshot).await), Code::Aborted);
            assert_eq!(code(restore(&lab, "pvc-2").await), Code::Aborted, "one call a name");
            assert_eq!(code(restore(&lab, "pvc-3").await), Code::Ok);
            assert_eq!(code(lab.delete_snapshot(&snapshot).await), Code::Aborted);
            gate.go.send(()).unwrap();
        };
        let (made, ()) = tokio::join!(restore(&lab, "pvc-2"), meanwhile);
        let third = restore(&lab, "pvc-3").await.unwrap().volume_id;
        lab.delete_snapshot(&snapshot).await.unwrap();
        for volume in [id, made.unwrap().volume_id, third] {
            lab.delete(&volume).await.unwrap();
        }
        lab.assert_clean();
    }
}

#[tokio::test]
async fn what_a_group_is_made_of_stays_as_it_is_meanwhile_and_in_use_where_it_was() {
    // Staging brings an image into use, and publishing a directory.
    for (engine, stage, publish) in [
        (EngineKind::Directory, Code::Aborted, Code::Aborted),
        (EngineKind::Btrfs, Code::Aborted, Code::Aborted),
        (EngineKind::LoopFile, Code::Aborted, Code::Ok),
    ] {
        let mut lab = Lab::new(engine);
        let rests = lab.create("pvc-1", 16 * MIB, mount("")).await.unwrap().volume_id;
        let used = lab.create("pvc-2", 16 * MIB, mount("")).await.unwrap().volume_id;
        let group_of: &[&str] = if engine == EngineKind::Directory { &[&rests] } else { &[&rests, &used] };
        let pod = lab.to_pod(&used, "pod-1", mount("")).await;
        let other = lab.target("pod-2");
        let gate = Gate::at(&mut lab, "group data made");
        let meanwhile = async {
            gate.reached().await;
            assert_eq!(code(lab.group("group-1", group_of).await), Code::Aborted, "one call a name");
            assert_eq!(code(lab.group("group-2", group_of).await), Code::Aborted, "one copy a volume");
            for volume in group_of {
                assert_eq!(code(lab.snapshot("snap-1", volume).await), Code::Aborted);
                assert_eq!(code(lab.delete(volume).await), Code::Aborted);
                assert_eq!(code(lab.expand(volume, 32 * MIB).await), Code::Aborted);
            }
            assert_eq!(code(lab.stage(&rests, mount("")).await), stage, "{engine:?}");
            if engine != EngineKind::Directory {
                let published = code(lab.publish(&used, &other, mount(""), false).await);
                assert_eq!(published, publish, "{engine:?}");
            }
            std::fs::write(pod.join("goes on"), "x").unwrap();
            gate.go.send(()).unwrap();
        };
        let (made, ()) = tokio::join!(lab.group("group-1", group_of), meanwhile);
        let group = made.unwrap();
        let _ = lab.unpublish(&used, &other).await;
        // While one of it is being restored, it cannot go.
        let snapshots = members(&group);
        let gate = Gate::at(&mut lab, "volume data made");
        let meanwhile = async {
            gate.reached().await;
            let deleted = lab.delete_group(&group.group_snapshot_id, &snapshots).await;
            assert_eq!(code(deleted), Code::Aborted);
            gate.go.send(()).unwrap();
        };
        let restore = lab.create_from(from_snapshot(&snapshots[0]), "pvc-3", 0, mount(""));
        let (restored, ()) = tokio::join!(restore, meanwhile);
        lab.delete_group(&group.group_snapshot_id, &snapshots).await.unwrap();
        lab.from_pod(&used, "pod-1").await;
        for volume in [&rests, &used, &restored.unwrap().volume_id] {
            lab.delete(volume).await.unwrap();
        }
        lab.assert_clean();
    }
}
