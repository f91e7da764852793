use std::collections::BTreeSet;

use super::super::index::tests::{A, B, C, announced, fenced, pool, ready};
use super::*;
use crate::id::SnapshotId;
use dunnage_csi::agent::DescribeResponse;

const KEY: &str = "topology.local.csi.dunnage.dev/pool";

fn term(key: &str, value: &str) -> Topology {
    Topology { segments: [(key.to_owned(), value.to_owned())].into() }
}

fn asked(preferred: &[&str], requisite: &[&str]) -> TopologyRequirement {
    let terms = |pools: &[&str]| pools.iter().map(|pool| term(KEY, pool)).collect();
    TopologyRequirement { preferred: terms(preferred), requisite: terms(requisite) }
}

fn pools(ids: &[&str]) -> Vec<PoolId> {
    ids.iter().map(|id| pool(id)).collect()
}

/// Three nodes with a pool each; B has most room, then A, then C.
fn three() -> Index {
    let mut index = announced(&["na", "nb", "nc"]);
    index.describe("na", ready(A, 20, &[]));
    index.describe("nb", ready(B, 30, &[]));
    index.describe("nc", ready(C, 10, &[]));
    index
}

fn plan(index: &Index, wanted: Option<&[&str]>) -> Result<Plan> {
    let wanted = wanted.map(pools);
    choose(index, "pvc-1", wanted.as_deref(), None, CrossPool::Copy)
}

#[test]
fn preferred_pools_come_first_and_each_pool_once() {
    for (preferred, requisite, expected) in [
        (&[][..], &[A, B][..], &[A, B][..]),
        (&[B], &[A, B], &[B, A]),
        (&[C, A], &[], &[C, A]),
        (&[C, A, C], &[A, B, C], &[C, A, B]),
    ] {
        let got = allowed(Some(&asked(preferred, requisite)), KEY).unwrap();
        assert_eq!(got, Some(pools(expected)), "{preferred:?} {requisite:?}");
    }
}

#[test]
fn no_requirement_allows_all_pools() {
    assert_eq!(allowed(None, KEY).unwrap(), None);
    assert_eq!(allowed(Some(&asked(&[], &[])), KEY).unwrap(), None);
}

#[test]
fn a_topology_that_no_pool_has_is_the_users_mistake() {
    let two_keys =
        Topology { segments: [(KEY.to_owned(), A.to_owned()), ("zone".to_owned(), "z".to_owned())].into() };
    for wrong in [term("zone", "z"), two_keys, Topology::default(), term(KEY, "../etc")] {
        let requirement = TopologyRequirement { requisite: vec![wrong.clone()], preferred: vec![] };
        let refused = allowed(Some(&requirement), KEY).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{wrong:?}: {refused}");
    }
}

#[test]
fn a_new_volume_goes_to_the_allowed_pools_in_their_order() {
    let index = three();
    for wanted in [&[A][..], &[C, A], &[B, C, A]] {
        let expected = Plan { remove: vec![], pools: pools(wanted), copy_from: None };
        assert_eq!(plan(&index, Some(wanted)).unwrap(), expected);
    }
}

#[test]
fn without_a_requirement_the_emptiest_pool_comes_first() {
    assert_eq!(plan(&three(), None).unwrap().pools, pools(&[B, A, C]));
}

#[test]
fn an_existing_volume_on_an_allowed_pool_is_the_answer() {
    let mut index = three();
    index.describe("nc", ready(C, 10, &["pvc-1"]));
    for wanted in [None, Some(&[A, C][..]), Some(&[C])] {
        let expected = Plan { remove: vec![], pools: pools(&[C]), copy_from: None };
        assert_eq!(plan(&index, wanted).unwrap(), expected, "{wanted:?}");
    }
    // A fence keeps new volumes away, not the answer about one that is there.
    index.describe("nc", fenced(ready(C, 10, &["pvc-1"])));
    assert_eq!(plan(&index, Some(&[C])).unwrap().pools, pools(&[C]));
}

#[test]
fn an_existing_volume_on_a_pool_no_longer_allowed_is_removed_first() {
    let mut index = three();
    index.describe("nc", ready(C, 10, &["pvc-1", "pvc-2"]));
    let expected =
        Plan { remove: vec![VolumeId::make(&pool(C), "pvc-1")], pools: pools(&[A]), copy_from: None };
    assert_eq!(plan(&index, Some(&[A])).unwrap(), expected);
}

#[test]
fn of_two_volumes_of_one_name_only_the_one_in_the_best_place_stays() {
    let mut index = three();
    index.describe("na", ready(A, 20, &["pvc-1"]));
    index.describe("nb", ready(B, 30, &["pvc-1"]));
    let expected =
        Plan { remove: vec![VolumeId::make(&pool(A), "pvc-1")], pools: pools(&[B]), copy_from: None };
    assert_eq!(plan(&index, Some(&[C, B, A])).unwrap(), expected);
}

#[test]
fn what_an_unreachable_agent_holds_does_not_stop_anyone() {
    let mut index = three();
    index.describe("nc", ready(C, 10, &["pvc-1"]));
    index.lost("nc");
    assert_eq!(
        plan(&index, Some(&[C, A])).unwrap(),
        Plan { remove: vec![], pools: pools(&[A]), copy_from: None }
    );
    assert_eq!(
        plan(&index, Some(&[B])).unwrap(),
        Plan { remove: vec![], pools: pools(&[B]), copy_from: None }
    );
}

/// `ResourceExhausted` gives the claim back to the scheduler; `Unavailable` would wait for this very pool.
#[test]
fn a_pool_that_cannot_take_it_hands_the_claim_back_and_says_why() {
    type Change = fn(&mut Index);
    let away: Change = |index| index.lost("na");
    let fence: Change = |index| drop(index.describe("na", fenced(ready(A, 20, &[]))));
    let twice: Change = |index| drop(index.describe("nb", ready(A, 20, &[])));
    let gone: Change = |index| index.announce(&["nb".to_owned()].into(), BTreeSet::new());
    let cases: [(Change, &str, Option<&[&str]>); 4] = [
        (away, "last seen on node na", Some(&[B])),
        (fence, "node na is fenced", Some(&[B])),
        (twice, "several nodes at once (na, nb)", None),
        (gone, "last seen on node na", Some(&[B])),
    ];
    for (change, reason, expected) in cases {
        let mut index = three();
        change(&mut index);
        let refused = plan(&index, Some(&[A])).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
        assert!(refused.to_string().contains(reason), "{refused}");
        let other = plan(&index, Some(&[A, B])).map(|plan| plan.pools);
        assert_eq!(other.ok(), expected.map(pools), "{reason}");
    }
}

#[test]
fn a_pool_that_nobody_has_is_named() {
    let refused = plan(&three(), Some(&["dddddddddddddddd"])).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(refused.to_string().contains("dddddddddddddddd"), "{refused}");
}

#[test]
fn a_cluster_without_pools_says_so() {
    let mut index = announced(&["n1"]);
    index.lost("n1");
    assert!(plan(&index, None).unwrap_err().to_string().contains("no node has a pool yet"));
}

#[test]
fn nothing_is_made_before_all_agents_were_tried() {
    let mut index = announced(&["na", "nb"]);
    index.describe("na", ready(A, 20, &[]));
    let refused = plan(&index, Some(&[A])).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "the volume may be on the other: {refused}");
    index.lost("nb");
    assert!(plan(&index, Some(&[A])).is_ok());
}

#[test]
fn a_long_list_of_reasons_is_cut() {
    let reasons = (0..20).map(|n| format!("reason {n}")).collect();
    let text = no_pool(reasons).to_string();
    assert!(text.contains("reason 4; and 15 more") && !text.contains("reason 5;"), "{text}");
}

fn plan_with(index: &Index, wanted: Option<&[&str]>, source: &Source, cross: CrossPool) -> Result<Plan> {
    let wanted = wanted.map(pools);
    choose(index, "pvc-1", wanted.as_deref(), Some(source), cross)
}

fn sources(on: &str) -> [Source; 2] {
    [Source::Snapshot(SnapshotId::make(&pool(on), "s")), Source::Volume(VolumeId::make(&pool(on), "v"))]
}

#[test]
fn a_volume_with_a_source_goes_to_the_sources_pool_only_where_copies_are_refused() {
    let index = three();
    for source in sources(A) {
        for wanted in [None, Some(&[B, A][..]), Some(&[A])] {
            let expected = Plan { remove: vec![], pools: pools(&[A]), copy_from: None };
            assert_eq!(
                plan_with(&index, wanted, &source, CrossPool::Refuse).unwrap(),
                expected,
                "{wanted:?}"
            );
        }
        let refused = plan_with(&index, Some(&[B, C]), &source, CrossPool::Refuse).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "the scheduler tries another node");
        let words = refused.to_string();
        assert!(words.contains(A) && words.contains("na") && words.contains(B), "{words}");
    }
}

#[test]
fn a_volume_with_a_source_goes_to_the_sources_pool_first_and_is_copied_elsewhere() {
    let mut index = three();
    for source in sources(A) {
        for (wanted, expected) in [
            (None, &[A, B, C][..]),
            (Some(&[B, A][..]), &[A, B]),
            (Some(&[A]), &[A]),
            (Some(&[C, B]), &[C, B]),
        ] {
            let expected = Plan { remove: vec![], pools: pools(expected), copy_from: Some(pool(A)) };
            assert_eq!(plan_with(&index, wanted, &source, CrossPool::Copy).unwrap(), expected, "{wanted:?}");
        }
    }
    // A fenced pool takes no new volume, but what it has can be read.
    index.describe("na", fenced(ready(A, 20, &[])));
    let plan = plan_with(&index, Some(&[A, B]), &sources(A)[0], CrossPool::Copy).unwrap();
    assert_eq!(plan, Plan { remove: vec![], pools: pools(&[B]), copy_from: Some(pool(A)) });
}

fn arriving(mut said: DescribeResponse, on: &str) -> DescribeResponse {
    said.arriving_volume_ids = vec![VolumeId::make(&pool(on), "pvc-1").to_string()];
    said
}

#[test]
fn a_copy_that_has_begun_goes_on_where_it_is_and_is_removed_where_it_may_not_be() {
    let source = &sources(A)[0];
    let mut index = three();
    index.describe("nb", arriving(ready(B, 30, &[]), B));
    for wanted in [None, Some(&[A, B][..]), Some(&[C, B]), Some(&[B])] {
        let expected = Plan { remove: vec![], pools: pools(&[B]), copy_from: Some(pool(A)) };
        assert_eq!(plan_with(&index, wanted, source, CrossPool::Copy).unwrap(), expected, "{wanted:?}");
    }
    let there = VolumeId::make(&pool(B), "pvc-1");
    let moved = Plan { remove: vec![there.clone()], pools: pools(&[C]), copy_from: Some(pool(A)) };
    assert_eq!(plan_with(&index, Some(&[C]), source, CrossPool::Copy).unwrap(), moved);
    let refused = Plan { remove: vec![there.clone()], pools: pools(&[A]), copy_from: None };
    assert_eq!(plan_with(&index, Some(&[A, B]), source, CrossPool::Refuse).unwrap(), refused);
    // A whole one is better than one that is on its way, and needs no copy.
    index.describe("nc", ready(C, 10, &["pvc-1"]));
    let whole = Plan { remove: vec![there], pools: pools(&[C]), copy_from: None };
    assert_eq!(plan_with(&index, Some(&[B, C]), source, CrossPool::Copy).unwrap(), whole);
}

#[test]
fn a_source_whose_pool_is_away_or_gone_is_told_apart() {
    let source = &sources(A)[0];
    for (cross, elsewhere) in [
        // Nobody but that node has the data: there is nothing to schedule.
        (CrossPool::Copy, tonic::Code::Unavailable),
        (CrossPool::Refuse, tonic::Code::ResourceExhausted),
    ] {
        let mut index = three();
        index.lost("na");
        let away = plan_with(&index, Some(&[A]), source, cross).unwrap_err();
        assert_eq!(away.code(), tonic::Code::ResourceExhausted, "{away}");
        assert!(away.to_string().contains("last seen on node na"), "{away}");
        let away = plan_with(&index, Some(&[B]), source, cross).unwrap_err();
        assert_eq!(away.code(), elsewhere, "{away}");
        assert!(away.to_string().contains(A), "{away}");
        index.announce(&["nb".to_owned(), "nc".to_owned()].into(), [pool(A)].into());
        let gone = plan_with(&index, Some(&[B]), source, cross).unwrap_err();
        assert_eq!(gone.code(), tonic::Code::NotFound);
        let unknown = Source::Snapshot(SnapshotId::make(&pool("dddddddddddddddd"), "s"));
        let unseen = plan_with(&index, Some(&[B]), &unknown, cross).unwrap_err();
        assert_eq!(unseen.code(), tonic::Code::Unavailable);
    }
}

#[test]
fn an_existing_volume_on_an_allowed_pool_is_not_removed_for_a_source_elsewhere() {
    let mut index = three();
    index.describe("nb", ready(B, 30, &["pvc-1"]));
    let source = &sources(A)[0];
    for cross in [CrossPool::Copy, CrossPool::Refuse] {
        // The agent there says that it differs.
        let expected = Plan { remove: vec![], pools: pools(&[B]), copy_from: None };
        assert_eq!(plan_with(&index, Some(&[A, B]), source, cross).unwrap(), expected);
    }
    let stale = Plan {
        remove: vec![VolumeId::make(&pool(B), "pvc-1")],
        pools: pools(&[A]),
        copy_from: Some(pool(A)),
    };
    assert_eq!(plan_with(&index, Some(&[A]), source, CrossPool::Copy).unwrap(), stale);
}
