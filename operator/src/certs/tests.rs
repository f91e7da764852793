use jiff::{SignedDuration, Timestamp};

use super::issue::{advance, renew};
use super::secrets::{fingerprint, from_authority, from_leaf, to_authority, to_leaf};
use super::*;

fn at(day: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * (20_000 + day))
}

fn pair(name: &str) -> Pair {
    Pair { cert: format!("cert {name}\n"), key: format!("key {name}\n") }
}

fn authority() -> Authority {
    Authority { current: pair("a"), not_after: at(3650), next: None, previous: None, since: at(0) }
}

fn leaf(of: &Authority) -> Leaf {
    Leaf {
        pair: pair("leaf"),
        bundle: of.bundle(),
        issuer: fingerprint(&of.current.cert),
        not_before: at(0),
        not_after: at(90),
    }
}

#[test]
fn an_authority_is_replaced_in_steps_that_overlap() {
    let next = Authority { next: Some(pair("b")), since: at(2500), ..authority() };
    let promoted = Authority {
        current: pair("b"),
        not_after: at(6150),
        previous: Some("cert a\n".into()),
        since: at(2501),
        ..authority()
    };
    for (observed, day, wanted) in [
        (None, 0, AuthorityStep::Create),
        (Some(authority()), 1, AuthorityStep::Keep),
        (Some(authority()), 2432, AuthorityStep::Keep),
        (Some(authority()), 2440, AuthorityStep::AddNext),
        (Some(next.clone()), 2500, AuthorityStep::Keep),
        (Some(next), 2501, AuthorityStep::Promote),
        (Some(promoted.clone()), 2501, AuthorityStep::Keep),
        (Some(promoted), 2502, AuthorityStep::DropPrevious),
        (Some(authority()), 3650, AuthorityStep::Create),
    ] {
        assert_eq!(authority_step(observed.as_ref(), at(day)), wanted, "day {day}");
    }
}

#[test]
fn a_certificate_is_renewed_when_a_third_of_its_life_is_left() {
    let authority = authority();
    let good = leaf(&authority);
    let other = Leaf { issuer: fingerprint("somebody else"), ..good.clone() };
    let narrow = Leaf { bundle: String::new(), ..good.clone() };
    for (observed, day, wanted) in [
        (None, 0, LeafStep::Issue),
        (Some(&good), 59, LeafStep::Keep),
        (Some(&good), 61, LeafStep::Issue),
        (Some(&good), -5, LeafStep::Issue),
        (Some(&other), 1, LeafStep::Issue),
        (Some(&narrow), 1, LeafStep::Rebundle),
    ] {
        assert_eq!(leaf_step(observed, &authority, at(day)), wanted, "day {day}");
    }
}

/// Plays thirty years in days, and at each day lets any part have yesterday's Secret still.
#[test]
fn at_no_moment_two_parts_meet_that_do_not_trust_each_other() {
    let mut authority: Option<Authority> = None;
    let mut leaves: Vec<Option<Leaf>> = vec![None; Party::ALL.len()];
    let mut rotations = 0;
    for hour in (0..24 * 365 * 30).step_by(8) {
        let now = at(0) + SignedDuration::from_hours(hour);
        let yesterday = leaves.clone();
        let step = authority_step(authority.as_ref(), now);
        rotations += i32::from(step == AuthorityStep::Promote);
        authority = match step {
            AuthorityStep::Keep => authority,
            // Real keys would take minutes here.
            step => Some(fake_advance(authority, step, now)),
        };
        let authority = authority.as_ref().expect("made");
        for slot in &mut leaves {
            let step = leaf_step(slot.as_ref(), authority, now);
            *slot = Some(match (step, slot.take()) {
                (LeafStep::Keep, Some(leaf)) => leaf,
                (LeafStep::Rebundle, Some(leaf)) => Leaf { bundle: authority.bundle(), ..leaf },
                _ => Leaf { not_before: now, not_after: now + LEAF_LIFE, ..leaf(authority) },
            });
        }
        if leaves == yesterday {
            continue;
        }
        let present: Vec<&Leaf> = leaves.iter().chain(&yesterday).flatten().collect();
        for one in &present {
            assert!(one.not_after > now, "expired at hour {hour}");
            for other in &present {
                let trusts = other.bundle.split_inclusive('\n').any(|cert| fingerprint(cert) == one.issuer);
                assert!(trusts, "hour {hour}: {:?} does not trust {:?}", other.bundle, one.issuer);
            }
        }
    }
    assert!(rotations >= 4, "{rotations} rotations in thirty years");
}

fn fake_advance(known: Option<Authority>, step: AuthorityStep, now: Timestamp) -> Authority {
    let fresh = pair(&now.to_string());
    match (step, known) {
        (AuthorityStep::AddNext, Some(authority)) => Authority { next: Some(fresh), since: now, ..authority },
        (AuthorityStep::Create | AuthorityStep::AddNext, _) | (_, None) => {
            Authority { current: fresh, not_after: now + AUTHORITY_LIFE, since: now, ..authority() }
        }
        (step, authority) => advance("b", authority, step, None, now).expect("no key is made").expect("kept"),
    }
}

#[test]
fn secrets_keep_all_that_is_known() {
    let now = at(0);
    let authority =
        advance("b", None, AuthorityStep::Create, Some("old\n"), now).expect("issue").expect("made");
    let authority =
        advance("b", Some(authority), AuthorityStep::AddNext, None, now).expect("issue").expect("made");
    let stored = from_authority(kube::api::ObjectMeta::default(), &authority);
    assert_eq!(to_authority(&stored), Some(authority.clone()));

    let leaf = renew("b", Party::Agent, None, LeafStep::Issue, &authority, now).expect("issue");
    assert_eq!(to_leaf(&from_leaf(kube::api::ObjectMeta::default(), &leaf)), Some(leaf.clone()));
    assert_eq!(leaf_step(Some(&leaf), &authority, now), LeafStep::Keep);
    assert!(leaf.bundle.ends_with("old\n"), "what was trusted stays trusted");
}

#[test]
fn a_damaged_secret_is_made_anew() {
    let now = at(0);
    let authority = advance("b", None, AuthorityStep::Create, None, now).expect("issue").expect("made");
    let mut stored = from_authority(kube::api::ObjectMeta::default(), &authority);
    stored.data.as_mut().expect("data").remove("current.key");
    assert_eq!(authority_step(to_authority(&stored).as_ref(), now), AuthorityStep::Create);
}
