use jiff::{SignedDuration, Timestamp};

use super::*;

const KEY: &str = "topology.local.csi.dunnage.dev/pool";
const P1: &str = "1111111111111111";
const P2: &str = "2222222222222222";

/// The world of one backend, changed by each test and by the operator's steps.
#[derive(Clone, Default)]
struct World {
    record: Record,
    agents: BTreeMap<String, Described>,
    nodes: BTreeMap<String, NodeFacts>,
    wishes: Wishes,
    minutes: i64,
}

impl World {
    fn decide(&self) -> Decision {
        decide(&Inputs {
            record: &self.record,
            agents: &self.agents,
            nodes: &self.nodes,
            wishes: &self.wishes,
            topology_key: KEY,
            now: Timestamp::UNIX_EPOCH + SignedDuration::from_mins(self.minutes),
        })
    }

    fn node(mut self, name: &str) -> Self {
        self.nodes.insert(name.into(), NodeFacts { uid: format!("uid-{name}"), label: None });
        self
    }

    fn labelled(mut self, name: &str, pool: &str) -> Self {
        self.nodes.get_mut(name).expect("node").label = Some(pool.into());
        self
    }

    fn agent(mut self, node: &str, state: State, pool: &str) -> Self {
        let agent = Described {
            state,
            message: String::new(),
            pool: pool.into(),
            path: "/pool".into(),
            fenced: false,
        };
        self.agents.insert(node.into(), agent);
        self
    }

    fn entry(mut self, pool: &str, node: &str, phase: Phase) -> Self {
        let entry = Entry {
            node: node.into(),
            node_uid: format!("uid-{node}"),
            path: "/pool".into(),
            phase,
            first_seen: Timestamp::UNIX_EPOCH,
            last_seen: Timestamp::UNIX_EPOCH,
            node_gone: None,
        };
        self.record.insert(pool.into(), entry);
        self
    }

    fn wish_new(mut self, node: &str) -> Self {
        self.wishes.new_pools.insert(node.into());
        self
    }

    fn reasons(&self) -> Vec<(String, &'static str)> {
        self.decide().problems.into_iter().map(|(node, problem)| (node, problem.reason)).collect()
    }
}

fn owned(items: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
    items.iter().map(|(node, reason)| ((*node).to_owned(), *reason)).collect()
}

#[test]
fn a_new_node_gets_an_id_on_record_before_its_pool() {
    let world = World::default().node("a").agent("a", State::Empty, "");
    let first = world.decide();
    assert_eq!((first.starts.as_slice(), first.inits.len()), (["a".to_owned()].as_slice(), 0));

    let recorded = world.clone().entry(P1, "a", Phase::Pending);
    let second = recorded.decide();
    assert_eq!(second.inits, [("a".to_owned(), P1.to_owned())]);
    assert!(second.starts.is_empty());

    let made = recorded.agent("a", State::Ready, P1).decide();
    assert_eq!(made.record[P1].phase, Phase::Active);
    assert_eq!((made.starts.len(), made.inits.len(), made.problems.len()), (0, 0, 0));
    assert_eq!(made.notes[0].reason, "PoolCreated");
}

#[test]
fn what_keeps_a_path_from_being_a_pool_is_said_with_a_remedy() {
    for (state, reason, remedy) in [
        (State::NotEmpty, "PoolNotEmpty", "empty directory"),
        (State::NotMounted, "PoolNotMounted", "mount the disk"),
        (State::Foreign, "PoolForeign", "right disk"),
        (State::NewerFormat, "PoolNewerFormat", "upgrade"),
        (State::Damaged, "PoolDamaged", "marker"),
        (State::Unavailable, "PoolUnavailable", "readable directory"),
    ] {
        let decision = World::default().node("a").agent("a", state, "").decide();
        let problem = &decision.problems["a"];
        assert_eq!(problem.reason, reason);
        assert!(problem.message.contains(remedy) && problem.message.contains("/pool"), "{}", problem.message);
        assert!(decision.starts.is_empty() && decision.inits.is_empty(), "{state:?}");
    }
}

#[test]
fn a_node_that_had_a_pool_gets_no_second_one_unasked() {
    for state in [State::Empty, State::NotMounted, State::NotEmpty, State::Unavailable] {
        for phase in [Phase::Active, Phase::Lost] {
            let world = World::default().node("a").agent("a", state, "").entry(P1, "a", phase);
            let decision = world.decide();
            assert!(decision.starts.is_empty() && decision.inits.is_empty(), "{state:?} {phase:?}");
            let problem = &decision.problems["a"];
            assert_eq!(problem.reason, "PoolMissing");
            for word in [P1, "/pool", "node a", NEW_POOL] {
                assert!(problem.message.contains(word), "{word}: {}", problem.message);
            }
        }
    }
}

#[test]
fn a_node_set_up_again_under_its_old_name_gets_no_second_pool_either() {
    let mut world = World::default().node("a").agent("a", State::Empty, "").entry(P1, "a", Phase::Active);
    world.nodes.get_mut("a").expect("node").uid = "another".into();
    assert_eq!(world.reasons(), owned(&[("a", "PoolMissing")]));
}

#[test]
fn a_wish_for_a_new_pool_holds_once() {
    let world =
        World::default().node("a").agent("a", State::Empty, "").entry(P1, "a", Phase::Active).wish_new("a");
    let asked = world.decide();
    assert_eq!(asked.record[P1].phase, Phase::Retired);
    assert_eq!(asked.starts, ["a"]);
    assert!(asked.fulfilled.is_empty(), "not before the new id is on record");

    let recorded = World { record: asked.record, ..world }.entry(P2, "a", Phase::Pending);
    let next = recorded.decide();
    assert_eq!(next.inits, [("a".to_owned(), P2.to_owned())]);
    assert!(next.fulfilled.contains("a"));

    // Should the annotation still be there when the pool is ready, nothing more comes of it.
    let ready = recorded.agent("a", State::Ready, P2).decide();
    assert!(ready.fulfilled.contains("a") && ready.starts.is_empty() && ready.problems.is_empty());
}

#[test]
fn a_wish_cannot_start_a_pool_on_a_path_that_is_not_empty() {
    let world = World::default().node("a").entry(P1, "a", Phase::Active).wish_new("a");
    for state in [State::NotMounted, State::NotEmpty, State::Foreign] {
        let decision = world.clone().agent("a", state, "").decide();
        assert!(decision.starts.is_empty() && decision.record[P1].phase == Phase::Active, "{state:?}");
    }
}

#[test]
fn a_pool_that_moved_is_followed_and_its_old_node_may_start_anew() {
    let world = World::default()
        .node("a")
        .node("b")
        .labelled("a", P1)
        .entry(P1, "a", Phase::Active)
        .agent("a", State::Empty, "")
        .agent("b", State::Ready, P1);
    let decision = world.decide();
    assert_eq!(decision.record[P1].node, "b");
    assert_eq!(decision.record[P1].node_uid, "uid-b");
    assert_eq!(decision.notes[0].reason, "PoolMoved");
    assert_eq!(decision.starts, ["a"]);
    assert!(decision.problems.is_empty());

    // Once node a has its own, the label of the moved one stands in kubelet's way.
    let world =
        World { record: decision.record, ..world }.entry(P2, "a", Phase::Active).agent("a", State::Ready, P2);
    assert_eq!(world.decide().stale_labels, ["a"]);
}

#[test]
fn a_label_is_cleared_only_when_its_pool_is_elsewhere_or_given_up() {
    let world = World::default().node("a").labelled("a", P1).agent("a", State::Ready, P2);
    for (record, stale, problem) in [
        (world.clone().entry(P1, "b", Phase::Active), true, None),
        (world.clone().entry(P1, "a", Phase::Retired), true, None),
        (world.clone().entry(P1, "a", Phase::Active), false, Some("PoolMissing")),
        (world.clone(), false, Some("TopologyStale")),
        (world.clone().labelled("a", P2), false, None),
    ] {
        let decision = record.decide();
        assert_eq!(!decision.stale_labels.is_empty(), stale);
        assert_eq!(decision.problems.get("a").map(|problem| problem.reason), problem);
    }
}

#[test]
fn the_label_of_a_missing_pool_stays_until_the_pool_is_found_elsewhere() {
    let world = World::default().node("a").labelled("a", P1);
    for state in [State::Empty, State::NotMounted] {
        let world = world.clone().agent("a", state, "");
        assert!(world.clone().decide().stale_labels.is_empty(), "a pool of which nothing is known");
        assert!(world.clone().entry(P1, "a", Phase::Active).decide().stale_labels.is_empty());
        assert_eq!(world.entry(P1, "b", Phase::Active).decide().stale_labels, ["a"]);
    }
}

#[test]
fn a_node_has_the_label_of_its_pool_and_of_none_that_is_disputed() {
    let world = World::default().node("a").entry(P1, "a", Phase::Active);
    let label = [("a".to_owned(), P1.to_owned())];
    let ready = world.clone().agent("a", State::Ready, P1);
    assert_eq!(ready.decide().missing_labels, label);
    assert_eq!(ready.clone().labelled("a", P1).decide().missing_labels, []);
    assert_eq!(world.agent("a", State::NotMounted, "").decide().missing_labels, []);
    let disputed = ready.node("b").agent("b", State::Ready, P1);
    assert_eq!(disputed.decide().missing_labels, []);
    let moved = World::default().node("a").entry(P1, "b", Phase::Active).agent("a", State::Ready, P1);
    assert_eq!(moved.decide().missing_labels, label, "back where it was");
}

#[test]
fn the_same_pool_on_two_nodes_is_fenced_on_both_until_a_person_chooses() {
    let mut world = World::default()
        .node("a")
        .node("b")
        .entry(P1, "a", Phase::Active)
        .agent("a", State::Ready, P1)
        .agent("b", State::Ready, P1);
    let decision = world.decide();
    assert_eq!(world.reasons(), owned(&[("a", "PoolDuplicate"), ("b", "PoolDuplicate")]));
    assert!(decision.fences.iter().all(|fence| fence.fenced) && decision.fences.len() == 2);
    assert_eq!(decision.record, world.record, "the record does not change sides by itself");

    for agent in world.agents.values_mut() {
        agent.fenced = true;
    }
    assert!(world.decide().fences.is_empty(), "fenced already");

    world.wishes.owners.insert(P1.into(), "b".into());
    let chosen = world.decide();
    assert_eq!(world.reasons(), owned(&[("a", "PoolDuplicate")]));
    assert_eq!(chosen.fences, [Fence { node: "b".into(), fenced: false, reason: String::new() }]);
    assert_eq!(chosen.record[P1].node, "b");

    // When the other copy is gone, the fence goes too.
    world.agents.remove("b");
    assert_eq!(world.decide().fences, [Fence { node: "a".into(), fenced: false, reason: String::new() }]);
}

#[test]
fn a_pool_that_comes_back_is_taken_back() {
    for phase in [Phase::Lost, Phase::Retired] {
        let decision = World::default().node("a").entry(P1, "a", phase).agent("a", State::Ready, P1).decide();
        assert_eq!(decision.record[P1].phase, Phase::Active);
        assert_eq!(decision.notes[0].reason, "PoolReturned");
    }
}

#[test]
fn a_lost_record_is_made_again_from_what_agents_have() {
    let decision = World::default().node("a").agent("a", State::Ready, P1).decide();
    assert_eq!((decision.record[P1].node.as_str(), decision.record[P1].phase), ("a", Phase::Active));
}

#[test]
fn a_pool_is_lost_when_its_node_is_gone_for_long() {
    let mut world = World { minutes: 100, ..World::default() }.entry(P1, "a", Phase::Active);
    let first = world.decide();
    assert_eq!(first.record[P1].phase, Phase::Active);
    assert!(first.record[P1].node_gone.is_some() && first.notes.is_empty());
    world = World { record: first.record, minutes: 110, ..world };
    assert_eq!(world.decide().record[P1].phase, Phase::Active);
    world.minutes = 116;
    let lost = world.decide();
    assert_eq!(lost.record[P1].phase, Phase::Lost);
    assert_eq!(lost.notes[0].reason, "PoolLost");
    let again = World { record: lost.record.clone(), minutes: 200, ..world.clone() }.decide();
    assert!(again.notes.is_empty() && again.record == lost.record, "told once");
    let back = World { record: lost.record, ..world }.node("a").decide();
    assert_eq!(back.record[P1].node_gone, None, "the node is back, the pool not yet");
}

#[test]
fn an_id_chosen_for_a_node_that_went_is_forgotten() {
    let world = World { minutes: 100, ..World::default() }.entry(P1, "a", Phase::Pending);
    let first = world.decide();
    let later = World { record: first.record, minutes: 116, ..world }.decide();
    assert!(later.record.is_empty());
}

#[test]
fn an_id_chosen_before_the_disk_turned_up_is_forgotten() {
    let world = World::default().node("a").entry(P1, "a", Phase::Active).entry(P2, "a", Phase::Pending);
    let decision = world.agent("a", State::Ready, P1).decide();
    assert!(!decision.record.contains_key(P2) && decision.inits.is_empty());
}

#[test]
fn a_silent_agent_changes_nothing() {
    let world =
        World::default().node("a").entry(P1, "a", Phase::Active).entry(P2, "b", Phase::Pending).node("b");
    let decision = world.decide();
    assert_eq!(decision, Decision { record: world.record.clone(), ..Decision::default() });
}

#[test]
fn a_settled_pool_is_written_at_most_hourly() {
    let mut world = World::default().node("a").entry(P1, "a", Phase::Active).agent("a", State::Ready, P1);
    world.minutes = 59;
    assert_eq!(world.decide().record, world.record);
    world.minutes = 60;
    assert_ne!(world.decide().record, world.record);
}

#[test]
fn wishes_are_lists_and_nonsense_in_them_is_left_out() {
    let annotations = [
        (NEW_POOL.to_owned(), " a, b ,,".to_owned()),
        (POOL_OWNER.to_owned(), format!("{P1}=a, nonsense,{P2} = b")),
    ];
    let wishes = Wishes::parse(&annotations.into());
    assert_eq!(wishes.new_pools, ["a".to_owned(), "b".to_owned()].into());
    assert_eq!(wishes.owners, [(P1.to_owned(), "a".to_owned()), (P2.to_owned(), "b".to_owned())].into());
}
