use serde_json::json;

use super::*;

fn entry(name: &str, places: usize) -> Entry {
    let claim = json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": name, "labels": {"long": "x".repeat(60)},
            "annotations": {"volume.kubernetes.io/selected-node": "n1", "note": "y".repeat(1000), "team": "a"},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let class =
        json!({"metadata": {"name": "fast", "uid": "c"}, "provisioner": "d", "parameters": {"a": "b"}});
    let keep = ["team".to_owned()].into();
    let claim = serde_json::from_value(claim).expect("a claim");
    let mut entry = Entry::new(&claim, &serde_json::from_value(class).expect("a class"), &keep);
    let place = |n: usize| [("zone".to_owned(), format!("z{n}"))].into();
    entry.topology = Some(Asked { requisite: (0..places).map(place).collect(), first: 0 });
    entry
}

fn true_size(state: &State) -> usize {
    state.annotations(&BTreeMap::new()).iter().map(|(key, value)| key.len() + value.len()).sum()
}

#[test]
fn what_is_written_is_read_again() {
    let mut state = State::default();
    let mut filled = entry("b", 2);
    filled.source = Some(Source::Snapshot("s-1".into()));
    filled.mutable_parameters = [("iops".to_owned(), "9".to_owned())].into();
    let plain = Entry { topology: None, ..entry("a", 1) };
    assert_eq!(state.insert("a", &plain), Ok(true));
    assert_eq!(state.insert("b", &filled), Ok(true));
    let read = read(&state.annotations(&BTreeMap::new()));
    assert_eq!(read.entries, [("a".to_owned(), plain), ("b".to_owned(), filled)].into());
    assert!(read.unread.is_empty());
    assert_eq!(State::from(&read).size(), state.size());
}

#[test]
fn an_entry_keeps_what_requests_need_and_drops_the_rest() {
    let annotations = entry("a", 1).claim.metadata.annotations.expect("annotations");
    assert_eq!(annotations.keys().collect::<Vec<_>>(), ["team", names::SELECTED_NODE]);
    assert_eq!(entry("a", 1).claim.metadata.labels, None);
}

#[test]
fn the_size_is_counted_as_the_server_counts_it() {
    let mut state = State::default();
    for n in 0..20 {
        state.insert(&format!("uid-{n}"), &entry(&format!("claim-{n}"), n % 3)).expect("room");
        assert_eq!(state.size(), true_size(&state));
    }
    state.insert("uid-3", &entry("claim-3", 7)).expect("room");
    assert_eq!(state.size(), true_size(&state));
    for n in 0..20 {
        assert!(state.remove(&format!("uid-{n}")));
        assert_eq!(state.size(), true_size(&state));
    }
    assert_eq!(state.size(), 0);
}

#[test]
fn classes_and_places_are_stored_once_so_that_hundreds_of_claims_fit() {
    let mut state = State::default();
    for n in 0..400 {
        state.insert(&format!("00000000-0000-0000-0000-{n:012}"), &entry("claim", 1000)).expect("room");
    }
    assert!(state.size() < LIMIT);
    assert_eq!(state.annotations(&BTreeMap::new()).len(), 402);
}

#[test]
fn a_full_journal_says_so_and_stays_as_it_is() {
    let mut state = State::default();
    let mut n = 0;
    while state.insert(&format!("{n:036}"), &entry("claim", 10)).is_ok() {
        n += 1;
    }
    assert!(n > 100 && state.size() <= LIMIT && true_size(&state) == state.size());
    assert_eq!(state.len(), n);
    assert_eq!(state.insert(&format!("{:036}", 0), &entry("claim", 2000)), Err(Full));
    assert_eq!(true_size(&state), state.size());
    assert!(state.contains(&format!("{:036}", 0)), "the old form is still there");
    state.remove(&format!("{:036}", 1));
    assert_eq!(state.insert(&format!("{n:036}"), &entry("claim", 10)), Ok(true));
}

#[test]
fn an_entry_put_in_again_unchanged_is_no_change() {
    let mut state = State::default();
    assert_eq!(state.insert("a", &entry("a", 1)), Ok(true));
    assert_eq!(state.insert("a", &entry("a", 1)), Ok(false));
    assert_eq!(state.insert("a", &entry("a", 2)), Ok(true));
    assert!(!state.remove("b"));
}

#[test]
fn annotations_of_others_and_entries_of_a_newer_version_are_kept() {
    let mut state = State::default();
    state.insert("a", &entry("a", 1)).expect("room");
    let mut stored = state.annotations(&[("note".to_owned(), "x".to_owned())].into());
    stored.insert(format!("{ENTRY}new"), "{\"version\":2}".into());
    stored.insert(format!("{PLACES}77"), "[]".into());
    let read = read(&stored);
    assert_eq!(read.entries.len(), 1);
    let again = State::from(&read).annotations(&stored);
    for key in ["note".to_owned(), format!("{ENTRY}new"), format!("{PLACES}77"), format!("{ENTRY}a")] {
        assert!(again.contains_key(&key), "{key}");
    }
}

#[test]
fn more_places_than_fit_are_left_out_and_the_claim_is_kept() {
    let mut state = State::default();
    state.insert("a", &entry("a", 20_000)).expect("room");
    let read = read(&state.annotations(&BTreeMap::new()));
    assert_eq!(read.entries["a"].topology, None);
    assert!(state.size() < LIMIT / 2);
}
