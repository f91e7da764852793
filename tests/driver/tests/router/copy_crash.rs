//! Both ends of a copy are killed at each of their steps, and nothing is lost or left.

use dunnage_csi::v1::VolumeContentSource;
use dunnage_driver::EngineKind;
use dunnage_driver::steps::Steps;
use dunnage_tests_driver::{Killer, from_snapshot, from_volume};

use super::copies::{
    SOURCE, TARGET, blocks, cluster, copies, fill, image, provision, same, snapshot, transit, wanted,
};
use super::nodes::Cluster;
use super::trees::{self, TREES, data, plant};

/// A new process of a node's driver.
async fn restart(cluster: &mut Cluster, node: usize, steps: Steps) {
    cluster.nodes[node].lab.config.steps = steps;
    cluster.nodes[node].kill();
    cluster.until_connected(1).await;
    cluster.boot(node);
    cluster.until_connected(2).await;
}

/// What is copied, and how a copy of it is told to be one.
struct Original {
    id: String,
    blocks: bool,
    same: fn(&Cluster, &str, &str),
}

impl Original {
    /// Kills one end at a step of a copy; `false` when a copy has no such step.
    async fn killed_at(
        &self,
        cluster: &mut Cluster,
        node: usize,
        step: usize,
        source: &VolumeContentSource,
    ) -> bool {
        let killer = Killer::at(step);
        restart(cluster, node, killer.steps()).await;
        let request = wanted(cluster, &format!("pvc-{node}-{step}"), source.clone(), self.blocks);
        let is_over = || killer.reached().len() > step;
        while !is_over() {
            if cluster.controller().create_volume(request.clone()).await.is_ok() {
                break;
            }
        }
        let ended = is_over();
        restart(cluster, node, Steps::default()).await;
        let made = provision(cluster, &request).await.unwrap();
        (self.same)(cluster, &self.id, &made.volume_id);
        assert!(transit(cluster, TARGET).is_empty(), "{:?}", killer.reached());
        cluster.delete(&made.volume_id).await.unwrap();
        ended
    }

    async fn is_copied_whoever_dies(&self, cluster: &mut Cluster) {
        let snapshot = from_snapshot(&snapshot(cluster, "s1", &self.id).await);
        for (node, source, least) in [(TARGET, snapshot, 10), (SOURCE, from_volume(&self.id), 2)] {
            let mut step = 0;
            while self.killed_at(cluster, node, step, &source).await {
                step += 1;
            }
            assert!(step >= least, "only {step} steps at node {node}");
        }
        restart(cluster, SOURCE, Steps::default()).await;
        assert!(transit(cluster, SOURCE).is_empty(), "what was made to be read goes with a start");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_an_image_survives_the_death_of_either_end_at_any_step() {
    let mut cluster = cluster(EngineKind::LoopFile, copies("1Gi")).await;
    // More than one checkpoint.
    let id = blocks(&cluster, "pvc-1", 72).await;
    fill(&cluster, &id, 72);
    let same = |cluster: &Cluster, of: &str, copy: &str| {
        same(&image(cluster, SOURCE, of), &image(cluster, TARGET, copy));
    };
    Original { id, blocks: true, same }.is_copied_whoever_dies(&mut cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_tree_survives_the_death_of_either_end_at_any_step() {
    for engine in TREES {
        let mut cluster = cluster(engine, copies("1Gi")).await;
        let id = cluster.create("pvc-1", &cluster.nodes[SOURCE].pool).await.unwrap();
        plant(&data(&cluster, SOURCE, &id));
        Original { id, blocks: false, same: trees::same }.is_copied_whoever_dies(&mut cluster).await;
    }
}
