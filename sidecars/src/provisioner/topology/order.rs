//! The order of segments, and where a claim's list starts.

use super::Segment;

/// Sorted by length, then by keys and values, without duplicates.
pub(super) fn sorted(mut segments: Vec<Segment>) -> Vec<Segment> {
    segments.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    segments.dedup();
    segments
}

/// Spreads the members of a StatefulSet over places while all claims of one member share a place.
pub(super) fn spread(claim: &str, places: usize) -> usize {
    let Ok(places) = u32::try_from(places) else { return 0 };
    if places == 0 {
        return 0;
    }
    let (text, ordinal) = member(claim).unwrap_or((claim, 0));
    (fnv1(text).wrapping_add(ordinal) % places) as usize
}

/// `template-set-3` belongs to member 3 of `set`.
fn member(claim: &str) -> Option<(&str, u32)> {
    let (rest, ordinal) = claim.rsplit_once('-')?;
    if !ordinal.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let ordinal = ordinal.parse().ok()?;
    let set = rest.rsplit_once('-').map_or(rest, |(_, set)| set);
    Some((set, ordinal))
}

/// FNV-1 with 32 bits: multiplied first, then xored.
fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1_and_not_1a() {
        assert_eq!(fnv1(""), 0x811c_9dc5);
        assert_eq!(fnv1("a"), 0x050c_5d7e);
        assert_eq!(fnv1("foobar"), 0x31f0_b262);
    }

    #[test]
    fn members_of_a_set_are_told_from_plain_claims() {
        for (claim, expected) in [
            ("data-web-2", Some(("web", 2))),
            ("web-10", Some(("web", 10))),
            ("www-big-web-0", Some(("web", 0))),
            ("data", None),
            ("data-x", None),
            ("data-99999999999", None),
            ("data-", None),
        ] {
            assert_eq!(member(claim), expected, "{claim}");
        }
    }

    #[test]
    fn neighbours_get_neighbouring_places_and_one_members_claims_share_theirs() {
        let first = spread("data-web-0", 3);
        assert_eq!(spread("data-web-1", 3), (first + 1) % 3);
        assert_eq!(spread("logs-web-0", 3), first);
        assert_eq!(spread("anything", 0), 0);
    }
}
