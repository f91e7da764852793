use super::snapshots::Filter;
use super::*;
use dunnage_csi::agent;

pub(crate) const A: &str = "aaaaaaaaaaaaaaaa";
pub(crate) const B: &str = "bbbbbbbbbbbbbbbb";
pub(crate) const C: &str = "cccccccccccccccc";

pub(crate) fn pool(id: &str) -> PoolId {
    id.parse().unwrap()
}

fn volume(pool_id: &str, name: &str) -> Volume {
    let id = VolumeId::make(&pool(pool_id), name).to_string();
    Volume { id, name: name.to_owned(), ..Volume::default() }
}

/// What an agent with a ready pool says.
pub(crate) fn ready(id: &str, available_bytes: u64, names: &[&str]) -> DescribeResponse {
    let mut volumes: Vec<_> = names.iter().map(|name| volume(id, name)).collect();
    volumes.sort_by(|a, b| a.id.cmp(&b.id));
    let pool =
        agent::Pool { state: State::Ready.into(), id: id.to_owned(), available_bytes, ..Default::default() };
    DescribeResponse { pool: Some(pool), volumes, ..DescribeResponse::default() }
}

pub(crate) fn fenced(mut said: DescribeResponse) -> DescribeResponse {
    said.pool.as_mut().unwrap().fenced = true;
    said
}

fn without_pool(state: State) -> DescribeResponse {
    let pool = agent::Pool { state: state.into(), ..Default::default() };
    DescribeResponse { pool: Some(pool), ..DescribeResponse::default() }
}

/// An index to which these nodes have been announced.
pub(crate) fn announced(nodes: &[&str]) -> Index {
    let mut index = Index::default();
    index.announce(&nodes.iter().map(|node| (*node).to_owned()).collect(), BTreeSet::new());
    index
}

/// The names of the volumes of a page, in its order.
fn names_of(page: &Page<(PoolId, Volume), VolumeId>) -> Vec<&str> {
    page.entries.iter().map(|(_, volume)| volume.name.as_str()).collect()
}

fn all(index: &Index) -> Vec<String> {
    let mut names: Vec<_> = names_of(&index.page(None, 0).unwrap()).into_iter().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn nothing_is_settled_until_every_agent_of_the_first_list_was_tried() {
    let mut index = announced(&[]);
    assert!(!index.settled(), "an empty list tells nothing");
    index.announce(&["n1".to_owned(), "n2".to_owned()].into(), BTreeSet::new());
    index.describe("n1", ready(A, 1, &[]));
    assert!(!index.settled());
    index.lost("n2");
    assert!(index.settled(), "a dead node must not hold the others up");
    index.announce(&["n1".to_owned(), "n2".to_owned(), "n3".to_owned()].into(), BTreeSet::new());
    assert!(index.settled(), "a node that joins must not stop the others");
}

#[test]
fn a_pool_is_where_the_agent_that_answers_has_it() {
    let mut index = announced(&["n1", "n2"]);
    assert_eq!(index.holder(&pool(A)), Holder::Unknown);
    index.describe("n1", ready(A, 1, &["v"]));
    assert_eq!(index.holder(&pool(A)), Holder::Live { node: "n1", fenced: false });
    index.lost("n1");
    assert_eq!(index.holder(&pool(A)), Holder::Away { node: "n1" });
    // The disk moves to another machine.
    index.describe("n2", ready(A, 1, &["v"]));
    assert_eq!(index.holder(&pool(A)), Holder::Live { node: "n2", fenced: false });
    index.lost("n2");
    assert_eq!(index.holder(&pool(A)), Holder::Away { node: "n2" });
}

#[test]
fn only_a_pool_that_is_ready_counts() {
    for state in [
        State::Unspecified,
        State::Empty,
        State::NotEmpty,
        State::Unavailable,
        State::NotMounted,
        State::Foreign,
        State::NewerFormat,
        State::Damaged,
    ] {
        let mut index = announced(&["n1"]);
        let mut said = without_pool(state);
        said.pool.as_mut().unwrap().id = A.to_owned();
        index.describe("n1", said);
        assert_eq!(index.holder(&pool(A)), Holder::Unknown, "{state:?}");
        assert_eq!(index.connected(), 1);
    }
}

#[test]
fn a_pool_whose_disk_is_gone_keeps_its_volumes_in_the_list() {
    let mut index = announced(&["n1"]);
    index.describe("n1", ready(A, 1, &["v"]));
    index.describe("n1", without_pool(State::NotMounted));
    assert_eq!(index.holder(&pool(A)), Holder::Away { node: "n1" });
    let refused = index.route(&pool(A)).unwrap_err();
    assert!(refused.to_string().contains(A) && refused.to_string().contains("n1"), "{refused}");
    assert_eq!(all(&index), ["v"]);
}

#[test]
fn a_pool_that_is_given_up_is_nobodys_until_an_agent_shows_it() {
    let mut index = announced(&["n1", "n2"]);
    index.describe("n1", ready(A, 1, &["v1"]));
    index.describe("n2", ready(B, 1, &["v2"]));
    index.announce(&["n2".to_owned()].into(), [pool(A), pool(B)].into());
    assert_eq!(index.holder(&pool(A)), Holder::GivenUp);
    assert!(matches!(index.route(&pool(A)), Err(Error::Precondition(_))));
    assert_eq!(index.holder(&pool(B)), Holder::Live { node: "n2", fenced: false }, "an agent has it");
    assert_eq!(all(&index), ["v2"]);
    index.announce(&["n1".to_owned(), "n2".to_owned()].into(), [pool(A)].into());
    index.describe("n1", ready(A, 1, &["v1"]));
    assert_eq!(index.holder(&pool(A)), Holder::Live { node: "n1", fenced: false });
    assert_eq!(all(&index), ["v1", "v2"]);
}

#[test]
fn the_list_of_an_agent_that_is_away_is_served() {
    let mut index = announced(&["n1", "n2"]);
    index.describe("n1", ready(A, 1, &["v1"]));
    index.describe("n2", ready(B, 1, &["v2"]));
    index.lost("n1");
    assert_eq!(all(&index), ["v1", "v2"]);
    // Its pod is deleted, and made anew.
    index.announce(&["n2".to_owned()].into(), BTreeSet::new());
    assert_eq!(all(&index), ["v1", "v2"]);
    index.announce(&["n1".to_owned(), "n2".to_owned()].into(), BTreeSet::new());
    assert_eq!(all(&index), ["v1", "v2"]);
    index.describe("n1", ready(A, 1, &["v1", "v3"]));
    assert_eq!(all(&index), ["v1", "v2", "v3"]);
}

#[test]
fn the_list_is_refused_while_an_agent_was_never_heard_of() {
    let mut index = announced(&["n1", "n2"]);
    index.describe("n1", ready(A, 1, &["v1"]));
    index.lost("n2");
    let refused = index.page(None, 0).unwrap_err();
    assert!(matches!(&refused, Error::Unavailable(text) if text.contains("n2")), "{refused}");
}

#[test]
fn pages_go_through_all_volumes_once_in_the_order_of_their_ids() {
    let mut index = announced(&["n1", "n2", "n3"]);
    index.describe("n1", ready(C, 1, &["1", "2", "3"]));
    index.describe("n2", ready(A, 1, &["4", "5"]));
    index.describe("n3", ready(B, 1, &[]));
    for limit in 1..=6 {
        let (mut after, mut ids) = (None, Vec::new());
        loop {
            let page = index.page(after.as_ref(), limit).unwrap();
            assert!(page.entries.len() <= limit && !page.entries.is_empty());
            ids.extend(page.entries.into_iter().map(|(_, volume)| volume.id));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(ids.len(), 5, "limit {limit}");
        assert!(ids.is_sorted(), "limit {limit}");
    }
}

#[test]
fn a_page_goes_on_after_a_volume_that_is_gone() {
    let mut index = announced(&["n1"]);
    index.describe("n1", ready(A, 1, &["1", "2", "3"]));
    let first = index.page(None, 1).unwrap();
    let rest = index.page(first.next.as_ref(), 0).unwrap();
    index.deleted(first.next.as_ref().unwrap());
    assert_eq!(index.page(first.next.as_ref(), 0).unwrap(), rest);
}

#[test]
fn what_this_routers_calls_changed_holds_until_the_agent_agrees() {
    let mut index = announced(&["n1"]);
    index.describe("n1", ready(A, 1, &["old"]));
    let (old, new) = (VolumeId::make(&pool(A), "old"), volume(A, "new"));
    index.deleted(&old);
    index.created(&new.id.parse().unwrap(), new);
    assert_eq!(all(&index), ["new"]);
    index.describe("n1", ready(A, 1, &["old"]));
    assert_eq!(all(&index), ["new"], "a message from before the calls");
    index.describe("n1", ready(A, 1, &["new"]));
    assert_eq!(all(&index), ["new"]);
    index.describe("n1", ready(A, 1, &["old"]));
    assert_eq!(all(&index), ["old"], "once it has agreed, the agent alone knows");
}

#[test]
fn a_size_that_this_router_knows_holds_until_the_agent_has_caught_up() {
    let sized = |bytes: u64| {
        let mut said = ready(A, 1, &["pvc"]);
        said.volumes[0].capacity_bytes = bytes;
        said
    };
    let id = VolumeId::make(&pool(A), "pvc");
    let mut index = announced(&["n1"]);
    index.describe("n1", sized(1));
    index.grown(&id, 5);
    let bytes = |index: &Index| index.page(None, 0).unwrap().entries[0].1.capacity_bytes;
    assert_eq!(bytes(&index), 5);
    index.describe("n1", sized(1));
    assert_eq!(bytes(&index), 5, "a message from before the call");
    index.describe("n1", sized(7));
    assert_eq!(bytes(&index), 7);
    index.grown(&id, 6);
    assert_eq!(bytes(&index), 7, "volumes never shrink");
    index.describe("n1", ready(A, 1, &[]));
    index.grown(&id, 9);
    assert_eq!(all(&index), Vec::<String>::new(), "nothing grows that is gone");
}

#[test]
fn a_pool_on_two_live_nodes_is_refused_on_both_and_both_are_fenced() {
    let mut index = announced(&["n1", "n2"]);
    assert_eq!(index.describe("n1", ready(A, 1, &[])), []);
    let fences = index.describe("n2", ready(A, 1, &[]));
    assert_eq!(fences.iter().map(|fence| fence.node.as_str()).collect::<Vec<_>>(), ["n1", "n2"]);
    for fence in fences {
        assert!(fence.reason.contains("n1, n2") && fence.reason.contains(A), "{}", fence.reason);
    }
    assert_eq!(index.holder(&pool(A)), Holder::Contested { nodes: vec!["n1", "n2"] });
    assert!(matches!(index.route(&pool(A)), Err(Error::Precondition(text)) if text.contains("n1, n2")));
}

#[test]
fn of_two_nodes_with_one_pool_neither_is_chosen_by_being_fenced_later() {
    let mut index = announced(&["n1", "n2"]);
    index.describe("n1", ready(A, 1, &[]));
    index.describe("n2", ready(A, 1, &[]));
    let fences = index.describe("n1", fenced(ready(A, 1, &[])));
    assert_eq!(fences.iter().map(|fence| fence.node.as_str()).collect::<Vec<_>>(), ["n2"]);
    assert!(matches!(index.holder(&pool(A)), Holder::Contested { .. }));
    assert_eq!(index.describe("n2", fenced(ready(A, 1, &[]))), []);
    assert!(matches!(index.holder(&pool(A)), Holder::Contested { .. }));
}

#[test]
fn the_node_whose_fence_is_lifted_has_the_pool_and_its_volumes() {
    let mut index = announced(&["n1", "n2"]);
    for said in [ready(A, 1, &[]), fenced(ready(A, 1, &[]))] {
        index.describe("n1", said.clone());
        index.describe("n2", said);
    }
    assert_eq!(index.describe("n2", ready(A, 1, &["mine"])), []);
    assert_eq!(index.holder(&pool(A)), Holder::Live { node: "n2", fenced: false });
    assert_eq!(index.describe("n1", fenced(ready(A, 1, &["theirs"]))), []);
    assert_eq!(all(&index), ["mine"]);
    // An agent that restarts forgets its fence, and is fenced again without taking anything from the chosen one.
    index.lost("n1");
    let fences = index.describe("n1", ready(A, 1, &["theirs"]));
    assert_eq!(fences.iter().map(|fence| fence.node.as_str()).collect::<Vec<_>>(), ["n1"]);
    assert_eq!(index.holder(&pool(A)), Holder::Live { node: "n2", fenced: false });
}

#[test]
fn an_agent_that_restarts_between_two_fenced_ones_is_not_the_chosen_one() {
    let mut index = announced(&["n1", "n2"]);
    for said in [ready(A, 1, &[]), fenced(ready(A, 1, &[]))] {
        index.describe("n1", said.clone());
        index.describe("n2", said);
    }
    index.lost("n2");
    let fences = index.describe("n2", ready(A, 1, &[]));
    assert_eq!(fences.iter().map(|fence| fence.node.as_str()).collect::<Vec<_>>(), ["n2"]);
    assert!(matches!(index.holder(&pool(A)), Holder::Contested { .. }));
}

#[test]
fn a_fenced_copy_does_not_change_the_list() {
    let mut index = announced(&["n1", "n2"]);
    index.describe("n1", ready(A, 1, &["mine"]));
    assert_eq!(index.describe("n2", fenced(ready(A, 1, &["theirs"]))), []);
    assert_eq!(all(&index), ["mine"]);
    assert_eq!(index.holder(&pool(A)), Holder::Live { node: "n1", fenced: false });
}

#[test]
fn a_contest_ends_when_one_of_the_nodes_goes() {
    let mut index = announced(&["n1", "n2"]);
    index.describe("n1", ready(A, 1, &[]));
    index.describe("n2", ready(A, 1, &[]));
    index.lost("n1");
    assert_eq!(index.holder(&pool(A)), Holder::Live { node: "n2", fenced: false });
}

#[test]
fn an_agent_that_is_no_longer_on_the_list_changes_nothing() {
    let mut index = announced(&["n1"]);
    index.announce(&["n2".to_owned()].into(), BTreeSet::new());
    assert_eq!(index.describe("n1", ready(A, 1, &["v"])), []);
    assert_eq!(index.holder(&pool(A)), Holder::Unknown);
    index.lost("n1");
    assert_eq!((index.agents(), index.connected()), (1, 0));
}

#[test]
fn a_long_list_of_nodes_is_cut() {
    assert_eq!(names(&["a", "b"]), "a, b");
    assert_eq!(names(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
}

fn snapshot(pool_id: &str, name: &str, of: &str) -> Snapshot {
    let source_volume_id = VolumeId::make(&pool(pool_id), of).to_string();
    let id = SnapshotId::make(&pool(pool_id), name).to_string();
    Snapshot { id, name: name.to_owned(), source_volume_id, ..Snapshot::default() }
}

/// Two pools with snapshots of two volumes each.
fn with_snapshots() -> Index {
    let mut index = announced(&["n1", "n2"]);
    for (node, id) in [("n1", A), ("n2", B)] {
        let mut said = ready(id, 1, &["v1", "v2"]);
        said.snapshots = vec![snapshot(id, "s1", "v1"), snapshot(id, "s2", "v1"), snapshot(id, "s3", "v2")];
        index.describe(node, said);
    }
    index
}

#[test]
fn snapshots_are_listed_in_pages_by_themselves_or_by_their_volume() {
    let mut index = with_snapshots();
    let mut ids = Vec::new();
    let mut after = None;
    loop {
        let page = index.snapshot_page(&Filter::default(), after.as_ref(), 2).unwrap();
        assert!(page.entries.len() <= 2);
        ids.extend(page.entries.into_iter().map(|snapshot| snapshot.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(ids.len(), 6);
    assert!(ids.is_sorted());
    let of = |snapshot: Option<&str>, volume: Option<&str>| Filter {
        snapshot: snapshot.map(|name| SnapshotId::make(&pool(B), name)),
        volume: volume.map(|name| VolumeId::make(&pool(B), name)),
    };
    // Another agent that is silent hides nothing of what is asked for.
    index.announce(&["n1".to_owned(), "n2".to_owned(), "n3".to_owned()].into(), BTreeSet::new());
    for (filter, count) in [
        (of(Some("s1"), None), 1),
        (of(None, Some("v1")), 2),
        (of(Some("s3"), Some("v1")), 0),
        (of(Some("s3"), Some("v2")), 1),
        (of(Some("nothing"), None), 0),
    ] {
        let page = index.snapshot_page(&filter, None, 0).unwrap();
        assert_eq!(page.entries.len(), count, "{filter:?}");
        assert!(page.entries.iter().all(|snapshot| snapshot.id.starts_with(B)));
    }
    assert!(index.snapshot_page(&Filter::default(), None, 0).is_err(), "the third may have some");
    let elsewhere = Filter { snapshot: Some(SnapshotId::make(&pool(C), "s1")), volume: None };
    assert!(index.snapshot_page(&elsewhere, None, 0).is_err(), "the third may have that pool");
}

#[test]
fn a_snapshots_name_is_given_once_on_all_pools() {
    let mut index = with_snapshots();
    assert_eq!(index.same_name_elsewhere("s1", &pool(A)).map(|id| id.pool()), Some(pool(B)));
    assert_eq!(index.same_name_elsewhere("s4", &pool(A)), None);
    let made = snapshot(A, "s4", "v1");
    index.snapshot_created(&SnapshotId::make(&pool(A), "s4"), made);
    assert_eq!(index.same_name_elsewhere("s4", &pool(A)), None, "that is this one");
    assert!(index.same_name_elsewhere("s4", &pool(B)).is_some());
    index.snapshot_deleted(&SnapshotId::make(&pool(A), "s4"));
    assert_eq!(index.same_name_elsewhere("s4", &pool(B)), None);
    // What is given up, or may be anything by now, takes no name.
    index.lost("n2");
    index.announce(&["n1".to_owned()].into(), [pool(B)].into());
    assert_eq!(index.same_name_elsewhere("s1", &pool(A)), None);
}
