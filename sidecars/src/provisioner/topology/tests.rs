use serde_json::json;

use super::*;

const KEY: &str = "zone";

fn node(zone: Option<&str>, driver: Driver) -> Node {
    Node { labels: Some(zone.map(|zone| (KEY.to_owned(), zone.to_owned())).into_iter().collect()), driver }
}

fn registered(zone: &str) -> Node {
    node(Some(zone), Driver::Registered(vec![KEY.into()]))
}

fn zone(zone: &str) -> Segment {
    [(KEY.to_owned(), zone.to_owned())].into()
}

fn terms(values: serde_json::Value) -> Vec<TopologySelectorTerm> {
    serde_json::from_value(values).expect("terms")
}

struct Case {
    selected: Option<Node>,
    allowed: Vec<TopologySelectorTerm>,
    strict: bool,
    immediate: bool,
    nodes: Vec<Node>,
}

impl Case {
    fn new(selected: Option<Node>) -> Self {
        let nodes =
            vec![registered("b"), registered("a"), registered("b"), node(None, Driver::NotRegistered)];
        Self { selected, allowed: Vec::new(), strict: false, immediate: true, nodes }
    }

    fn ask(&self) -> Result<Option<Asked>, Unknown> {
        let nodes = || self.nodes.clone();
        ask(&Inputs {
            claim: "data",
            selected: self.selected.clone().map(|node| ("n1", node)),
            allowed: &self.allowed,
            strict: self.strict,
            immediate: self.immediate,
            nodes: &nodes,
        })
    }
}

#[test]
fn strict_delayed_binding_asks_for_the_chosen_nodes_segment_alone() {
    let mut case = Case { strict: true, ..Case::new(Some(registered("b"))) };
    assert_eq!(case.ask(), Ok(Some(Asked { requisite: vec![zone("b")], first: 0 })));
    case.allowed = terms(json!([{"matchLabelExpressions": [{"key": KEY, "values": ["a", "b"]}]}]));
    assert_eq!(case.ask(), Ok(Some(Asked { requisite: vec![zone("b")], first: 0 })));
    case.allowed = terms(json!([{"matchLabelExpressions": [{"key": KEY, "values": ["a"]}]}]));
    assert_eq!(case.ask(), Err(Unknown::NotAllowed("n1".into())));
}

#[test]
fn relaxed_delayed_binding_asks_for_all_places_and_prefers_the_chosen_nodes() {
    let case = Case::new(Some(registered("b")));
    let asked = case.ask().expect("places").expect("something");
    assert_eq!(asked, Asked { requisite: vec![zone("a"), zone("b")], first: 1 });
    let requirement = asked.requirement();
    assert_eq!(requirement.requisite[0].segments[KEY], "a");
    assert_eq!(requirement.preferred[0].segments[KEY], "b");
    assert_eq!(requirement.preferred.len(), 2);
}

#[test]
fn immediate_binding_asks_for_what_is_allowed_or_all_places_or_nothing() {
    let mut case = Case::new(None);
    assert_eq!(case.ask().expect("places").expect("something").requisite, [zone("a"), zone("b")]);
    case.immediate = false;
    assert_eq!(case.ask(), Ok(None));
    case.allowed = terms(json!([{"matchLabelExpressions": [{"key": KEY, "values": ["z"]}]}]));
    assert_eq!(case.ask().expect("places").expect("something").requisite, [zone("z")]);
    case.allowed = terms(json!([{}]));
    assert_eq!(case.ask(), Ok(None));
}

#[test]
fn terms_are_multiplied_out_and_sorted() {
    let allowed = terms(json!([
        {"matchLabelExpressions": [{"key": "zone", "values": ["b", "a"]}, {"key": "rack", "values": ["1", "2"]}]},
        {"matchLabelExpressions": [{"key": "zone", "values": ["c", "c"]}]},
    ]));
    let flat = flatten(&allowed).expect("terms");
    assert_eq!(flat[0], zone("c"));
    assert_eq!(flat.len(), 5);
    assert_eq!(flat[1], [("rack".to_owned(), "1".to_owned()), ("zone".to_owned(), "a".to_owned())].into());
}

#[test]
fn a_node_that_is_gone_goes_back_to_the_scheduler_and_one_that_starts_is_waited_for() {
    let gone = Node { labels: None, driver: Driver::Registered(vec![KEY.into()]) };
    for (selected, expected) in [
        (node(Some("a"), Driver::NoNode), Unknown::NodeGone("n1".into())),
        (gone, Unknown::NodeGone("n1".into())),
        (node(Some("a"), Driver::NotRegistered), Unknown::NotRegistered("n1".into())),
        (node(Some("a"), Driver::Registered(vec![])), Unknown::NotRegistered("n1".into())),
        (
            node(None, Driver::Registered(vec![KEY.into()])),
            Unknown::NoLabel { node: "n1".into(), key: KEY.into() },
        ),
    ] {
        assert_eq!(Case { strict: true, ..Case::new(Some(selected)) }.ask(), Err(expected));
    }
}

#[test]
fn without_a_registered_node_immediate_binding_waits() {
    let mut case = Case { nodes: vec![node(Some("a"), Driver::NotRegistered)], ..Case::new(None) };
    assert_eq!(case.ask(), Err(Unknown::NoKeys));
    case.nodes = vec![node(None, Driver::Registered(vec![KEY.into()]))];
    assert_eq!(case.ask(), Err(Unknown::NoNode(vec![KEY.into()])));
}
