use dunnage_crds::conditions::problems;
use jiff::Timestamp;

use super::*;
use crate::agents::Facts;
use crate::pools::{Described, State};
use crate::removal::Volume;

const POOL: &str = "1111111111111111";

struct World {
    last: Option<StorageBackendStatus>,
    deleting: bool,
    rejected: Option<Rejected>,
    controller: Controller,
    nodes: Vec<NodeView>,
    agents: BTreeMap<String, Agent>,
    problems: BTreeMap<String, Problem>,
    defaults: Vec<String>,
    uses: Uses,
    seconds: i64,
}

/// Two nodes, all well.
fn world() -> World {
    let pod = PodView { ready: true, updated: true, message: String::new() };
    let node = |name: &str| NodeView {
        name: name.into(),
        pod: Some(pod.clone()),
        registered: true,
        label: Some(POOL.into()),
    };
    World {
        last: None,
        deleting: false,
        rejected: None,
        controller: Controller { desired: 2, ready: 2, updated: 2, message: String::new() },
        nodes: vec![node("a"), node("b")],
        agents: [("a".to_owned(), connected()), ("b".to_owned(), connected())].into(),
        problems: BTreeMap::new(),
        defaults: vec!["local".into()],
        uses: Uses::default(),
        seconds: 0,
    }
}

fn facts() -> Facts {
    Facts {
        pool: Described {
            state: State::Ready,
            message: String::new(),
            pool: POOL.into(),
            path: "/pool".into(),
            fenced: false,
        },
        version: "0.1.0".into(),
        total_bytes: 100 << 30,
        available_bytes: 81 << 30,
        limits_enforced: true,
        limits_message: String::new(),
        volumes: Vec::new(),
        inline_pods: Vec::new(),
    }
}

fn connected() -> Agent {
    Agent::Connected(facts())
}

impl World {
    fn status(&self) -> StorageBackendStatus {
        let blockers = removal::blockers(&self.uses, dunnage_crds::Protection::InUse);
        status(&Inputs {
            last: self.last.as_ref(),
            generation: Some(3),
            driver: "local.csi.dunnage.dev",
            topology_key: "topology.local.csi.dunnage.dev/pool",
            deleting: self.deleting,
            rejected: self.rejected.as_ref(),
            controller: &self.controller,
            nodes: &self.nodes,
            agents: &self.agents,
            problems: &self.problems,
            default_classes: &self.defaults,
            uses: &self.uses,
            blockers: &blockers,
            version: "0.1.0",
            now: &Time(Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(self.seconds)),
        })
    }

    fn is(&self, type_: &str) -> (String, String, String) {
        let status = self.status();
        let condition = find(&status.conditions, type_).expect("set").clone();
        (condition.status, condition.reason, condition.message)
    }
}

#[test]
fn all_is_well_when_pods_kubelets_labels_and_agents_agree() {
    let status = world().status();
    for (type_, wanted) in [
        (types::READY, "True"),
        (types::PROGRESSING, "False"),
        (types::CONFIG_ACCEPTED, "True"),
        (types::CONTROLLER_READY, "True"),
        (types::NODES_READY, "True"),
        (types::LIMITS_ENFORCED, "True"),
        (types::DEFAULT_CLASS_UNIQUE, "True"),
        (types::REMOVABLE, "True"),
    ] {
        assert_eq!(find(&status.conditions, type_).map(|c| c.status.as_str()), Some(wanted), "{type_}");
    }
    assert_eq!(status.nodes.expect("nodes").summary, "2/2");
    assert_eq!(status.capacity.expect("capacity").available, "162Gi");
    assert_eq!(status.observed_generation, Some(3));
}

type Change = Box<dyn Fn(&mut World)>;

#[test]
fn a_node_is_ready_only_when_nothing_is_missing() {
    let missing = Problem { reason: problems::POOL_MISSING, message: "mount it".into() };
    let cases: [(&str, Change); 9] = [
        (problems::POD_NOT_READY, Box::new(|w| w.nodes[0].pod = None)),
        (problems::POD_NOT_READY, Box::new(|w| w.nodes[0].pod.as_mut().expect("pod").ready = false)),
        (problems::NOT_REGISTERED, Box::new(|w| w.nodes[0].registered = false)),
        (problems::NOT_REGISTERED, Box::new(|w| w.nodes[0].label = None)),
        (problems::TOPOLOGY_STALE, Box::new(|w| w.nodes[0].label = Some("2222222222222222".into()))),
        (
            problems::AGENT_UNREACHABLE,
            Box::new(|w| drop(w.agents.insert("a".into(), Agent::Unreachable("x".into())))),
        ),
        (problems::AGENT_UNREACHABLE, Box::new(|w| drop(w.agents.remove("a")))),
        (problems::POOL_MISSING, Box::new(move |w| drop(w.problems.insert("a".into(), missing.clone())))),
        (
            problems::POOL_UNAVAILABLE,
            Box::new(|w| {
                let pool = Described { state: State::Empty, pool: String::new(), ..facts().pool };
                w.agents.insert("a".into(), Agent::Connected(Facts { pool, ..facts() }));
            }),
        ),
    ];
    for (reason, change) in cases {
        let mut world = world();
        change(&mut world);
        let nodes = world.status().nodes.expect("nodes");
        assert_eq!((nodes.desired, nodes.registered, nodes.summary.as_str()), (2, 1, "1/2"), "{reason}");
        assert_eq!((nodes.problems[0].node.as_str(), nodes.problems[0].reason.as_str()), ("a", reason));
        let (ready, _, message) = world.is(types::READY);
        assert!(ready == "False" && message.contains(&nodes.problems[0].message), "{message}");
    }
}

#[test]
fn the_summary_names_the_first_thing_in_the_way() {
    let mut world = world();
    world.nodes.clear();
    assert_eq!(world.is(types::READY).1, reasons::NO_NODES);
    world.controller =
        Controller { desired: 2, message: "image cannot be pulled".into(), ..Controller::default() };
    let (_, reason, message) = world.is(types::READY);
    assert_eq!(
        (reason.as_str(), message.contains("image cannot be pulled")),
        (reasons::PODS_NOT_READY, true)
    );
    world.rejected = Some(Rejected { reason: reasons::FOREIGN_OBJECT, message: "not ours".into() });
    assert_eq!(world.is(types::READY).1, reasons::FOREIGN_OBJECT);
    assert_eq!(world.is(types::CONFIG_ACCEPTED).0, "False");
}

#[test]
fn one_controller_of_two_serves_all_claims() {
    let mut world = world();
    world.controller.ready = 1;
    assert_eq!(world.is(types::READY).0, "True");
    world.controller.ready = 0;
    assert_eq!(world.is(types::READY).0, "False");
}

#[test]
fn a_rollout_is_progress() {
    let mut world = world();
    world.nodes[1].pod.as_mut().expect("pod").updated = false;
    let (status, reason, message) = world.is(types::PROGRESSING);
    assert_eq!((status.as_str(), reason.as_str()), ("True", reasons::UPDATING));
    assert!(message.contains("1 of 2 nodes"), "{message}");
}

#[test]
fn limits_are_told_honestly() {
    let mut world = world();
    let lax = Facts { limits_enforced: false, limits_message: "no project quota".into(), ..facts() };
    world.agents.insert("b".into(), Agent::Connected(lax));
    let (status, reason, message) = world.is(types::LIMITS_ENFORCED);
    assert_eq!((status.as_str(), reason.as_str()), ("False", reasons::ACCOUNTING_ONLY));
    assert_eq!(message, "on b: no project quota");
    assert_eq!(world.is(types::READY).0, "True", "it is no fault");
    world.agents.clear();
    assert_eq!(world.is(types::LIMITS_ENFORCED).0, "Unknown");
}

#[test]
fn two_default_classes_are_told() {
    let mut world = world();
    world.defaults.push("standard".into());
    let (status, _, message) = world.is(types::DEFAULT_CLASS_UNIQUE);
    assert!(status == "False" && message.contains("local, standard"), "{message}");
}

#[test]
fn a_deletion_that_waits_says_for_what() {
    let mut world = world();
    world.deleting = true;
    world.uses.volumes.push(Volume {
        name: "pv-1".into(),
        phase: "Released".into(),
        claim: Some("shop/data".into()),
        handle: "h".into(),
    });
    let (ready, reason, message) = world.is(types::READY);
    assert_eq!((ready.as_str(), reason.as_str()), ("False", reasons::DELETING));
    assert!(message.contains("pv-1 (Released, claim shop/data)"), "{message}");
    assert_eq!(world.status().blocking[0].count, 1);
    world.deleting = false;
    assert_eq!(world.is(types::REMOVABLE).1, reasons::IN_USE);
    assert!(world.status().blocking.is_empty());
}

#[test]
fn a_volume_without_a_persistent_volume_is_an_orphan_unless_one_is_being_made() {
    let mut world = world();
    let volumes = vec!["known".to_owned(), "unknown".to_owned()];
    world.agents.insert("a".into(), Agent::Connected(Facts { volumes, ..facts() }));
    let claim = None;
    world.uses.volumes.push(Volume {
        name: "pv".into(),
        phase: "Bound".into(),
        claim,
        handle: "known".into(),
    });
    assert_eq!(world.status().usage.expect("usage").orphans, 1);
    world.uses.claims.push("shop/new".into());
    assert_eq!(world.status().usage.expect("usage").orphans, 0);
}

#[test]
fn the_same_world_gives_the_same_status() {
    let mut world = world();
    let first = world.status();
    world.seconds = 100;
    world.last = Some(first.clone());
    assert_eq!(world.status(), first, "nothing turned, so no time moves");
}

#[test]
fn events_tell_of_turns_and_not_of_a_normal_start() {
    let mut world = world();
    world.nodes[0].registered = false;
    let starting = world.status();
    assert_eq!(turns(None, &starting), []);
    world.nodes[0].registered = true;
    let ready = world.status();
    let reasons =
        |turns: Vec<Turn>| turns.into_iter().map(|turn| (turn.reason, turn.warning)).collect::<Vec<_>>();
    assert_eq!(reasons(turns(Some(&starting), &ready)), [("Ready", false)]);
    assert_eq!(turns(Some(&ready), &ready), []);
    world.nodes[0].registered = false;
    assert_eq!(reasons(turns(Some(&ready), &world.status())), [("NotReady", true)]);
    world.rejected = Some(Rejected { reason: reasons::FOREIGN_OBJECT, message: "not ours".into() });
    assert_eq!(turns(None, &world.status()).len(), 1, "a refused spec is told at once");
}

#[test]
fn space_is_shown_in_binary_units() {
    for (count, text) in [
        (0, "0"),
        (1023, "1023"),
        (1024, "1.0Ki"),
        (81 << 30, "81.0Gi"),
        ((81 << 30) + (1 << 29), "81.5Gi"),
        (500 << 20, "500Mi"),
        (u64::MAX, "15.9Ei"),
    ] {
        assert_eq!(bytes(count), text);
    }
}
