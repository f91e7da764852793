//! Who keeps a pool that the agents of several nodes say they have. Pure.

/// The agent that calls for a pool go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keeper {
    pub(crate) node: String,
    /// Whether it was preferred to another that is or was there too.
    pub(crate) chosen: bool,
}

/// Decides after each change: `live` are the agents that answer and have the pool, and whether each is fenced;
/// `lifted` is the one whose fence has just gone, which is how a person's choice arrives.
///
/// `None` means that nobody may have it until somebody chooses. An agent's fence does not survive its restart, so an
/// unfenced agent that has just come is never taken for the chosen one, but while the router itself starts (not
/// `settled`), it believes what it finds.
pub(crate) fn judge(
    keeper: Option<&Keeper>,
    live: &[(&str, bool)],
    lifted: Option<&str>,
    settled: bool,
) -> Option<Keeper> {
    let was = |node: &str| keeper.is_some_and(|keeper| keeper.node == node);
    let chosen = keeper.is_some_and(|keeper| keeper.chosen);
    let unfenced: Vec<&str> = live.iter().filter(|(_, fenced)| !fenced).map(|(node, _)| *node).collect();
    match (live, unfenced.as_slice()) {
        ([], _) => keeper.cloned(),
        ([(node, _)], _) => Some(Keeper { node: (*node).to_owned(), chosen: was(node) && chosen }),
        (_, unfenced) if chosen && unfenced.iter().any(|node| was(node)) => keeper.cloned(),
        (_, [one]) if was(one) || lifted == Some(*one) || !settled => {
            Some(Keeper { node: (*one).to_owned(), chosen: true })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FENCED: bool = true;
    const OPEN: bool = false;

    fn keeper(node: &str, chosen: bool) -> Keeper {
        Keeper { node: node.to_owned(), chosen }
    }

    /// `judge` with a keeper before.
    fn after(before: &Keeper, live: &[(&str, bool)]) -> Option<Keeper> {
        judge(Some(before), live, None, true)
    }

    #[test]
    fn one_alone_keeps_the_pool_fenced_or_not() {
        for fence in [OPEN, FENCED] {
            assert_eq!(judge(None, &[("a", fence)], None, true), Some(keeper("a", false)));
            assert_eq!(after(&keeper("b", true), &[("a", fence)]), Some(keeper("a", false)));
            assert_eq!(after(&keeper("a", true), &[("a", fence)]), Some(keeper("a", true)));
        }
    }

    #[test]
    fn two_without_a_choice_both_lose_it() {
        let both = [("a", OPEN), ("b", OPEN)];
        assert_eq!(judge(None, &both, None, true), None);
        for before in [keeper("a", false), keeper("b", false)] {
            assert_eq!(after(&before, &both), None, "{before:?}");
        }
        assert_eq!(judge(None, &[("a", FENCED), ("b", FENCED)], None, true), None);
    }

    #[test]
    fn being_fenced_second_or_having_restarted_is_no_choice() {
        assert_eq!(judge(None, &[("a", FENCED), ("b", OPEN)], None, true), None);
        assert_eq!(after(&keeper("a", false), &[("a", FENCED), ("b", OPEN)]), None);
    }

    #[test]
    fn the_one_whose_fence_is_lifted_is_chosen() {
        let live = [("a", FENCED), ("b", OPEN)];
        assert_eq!(judge(None, &live, Some("b"), true), Some(keeper("b", true)));
        assert_eq!(judge(None, &live, Some("c"), true), None, "a fence elsewhere says nothing");
    }

    #[test]
    fn a_fenced_newcomer_takes_nothing_from_the_one_that_is_open() {
        assert_eq!(after(&keeper("a", false), &[("a", OPEN), ("b", FENCED)]), Some(keeper("a", true)));
    }

    #[test]
    fn the_chosen_one_stays_until_it_is_fenced() {
        let before = keeper("a", true);
        assert_eq!(after(&before, &[("a", OPEN), ("b", OPEN)]), Some(before.clone()));
        assert_eq!(after(&before, &[]), Some(before.clone()));
        assert_eq!(after(&before, &[("a", FENCED), ("b", FENCED)]), None);
    }

    #[test]
    fn a_router_that_starts_believes_what_it_finds() {
        assert_eq!(judge(None, &[("a", FENCED), ("b", OPEN)], None, false), Some(keeper("b", true)));
        assert_eq!(judge(None, &[("a", OPEN), ("b", OPEN)], None, false), None);
    }
}
