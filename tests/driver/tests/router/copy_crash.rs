//! Both ends of a copy are killed at each of their steps, and nothing is lost or left.

use dunnage_driver::EngineKind;
use dunnage_driver::steps::Steps;
use dunnage_tests_driver::{Killer, from_snapshot, from_volume};

use super::copies::{
    SOURCE, TARGET, blocks, cluster, copies, fill, image, provision, same, snapshot, transit, wanted,
};
use super::nodes::Cluster;

/// A new process of a node's driver.
async fn restart(cluster: &mut Cluster, node: usize, steps: Steps) {
    cluster.nodes[node].lab.config.steps = steps;
    cluster.nodes[node].kill();
    cluster.until_connected(1).await;
    cluster.boot(node);
    cluster.until_connected(2).await;
}

/// Kills one end at a step of a copy; `false` when a copy has no such step.
async fn killed_at(cluster: &mut Cluster, node: usize, step: usize, source: &str, of: &str) -> bool {
    let killer = Killer::at(step);
    restart(cluster, node, killer.steps()).await;
    let source = if source == of { from_volume(of) } else { from_snapshot(source) };
    let request = wanted(cluster, &format!("pvc-{node}-{step}"), source, true);
    let is_over = || killer.reached().len() > step;
    while !is_over() {
        if cluster.controller().create_volume(request.clone()).await.is_ok() {
            break;
        }
    }
    let ended = is_over();
    restart(cluster, node, Steps::default()).await;
    let made = provision(cluster, &request).await.unwrap();
    same(&image(cluster, SOURCE, of), &image(cluster, TARGET, &made.volume_id));
    assert!(transit(cluster, TARGET).is_empty(), "{:?}", killer.reached());
    cluster.delete(&made.volume_id).await.unwrap();
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_survives_the_death_of_either_end_at_any_step() {
    let mut cluster = cluster(EngineKind::LoopFile, copies("1Gi")).await;
    // More than one checkpoint.
    let id = blocks(&cluster, "pvc-1", 72).await;
    fill(&cluster, &id, 72);
    let snapshot = snapshot(&cluster, "s1", &id).await;
    for (node, source, least) in [(TARGET, &snapshot, 8), (SOURCE, &id, 2)] {
        let mut step = 0;
        while killed_at(&mut cluster, node, step, source, &id).await {
            step += 1;
        }
        assert!(step >= least, "only {step} steps at node {node}");
    }
    restart(&mut cluster, SOURCE, Steps::default()).await;
    assert!(transit(&cluster, SOURCE).is_empty(), "what was made to be read goes with a start");
}
