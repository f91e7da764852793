//! Which size to ask for: pure.

use super::facts::{Sizes, State};

/// Who grows a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The driver's controller, and perhaps a node afterwards.
    Controller,
    /// Nodes alone: the controller has nothing to do.
    Node,
}

/// The size to ask for; none when there is nothing to do, or a node is at it. `ended`: the last call is known to have
/// changed nothing.
pub(super) fn target(sizes: &Sizes, way: Way, ended: bool) -> Option<i64> {
    let &Sizes { requested, actual, volume, state, .. } = sizes;
    if requested <= actual {
        return None;
    }
    // What the claim has already is left from an attempt that is over.
    let allocated = sizes.allocated.filter(|allocated| *allocated > actual);
    let recorded = allocated.unwrap_or(requested);
    match (volume < requested, state) {
        (true, State::NodePending | State::NodeInProgress) => Some(recorded).filter(|size| volume < *size),
        // An attempt whose end is not known has to be finished before another size is tried.
        (true, State::ControllerInProgress) => Some(if ended { requested } else { recorded }),
        (true, State::ControllerInfeasible | State::None | State::Other) => Some(requested),
        (false, State::NodePending | State::NodeInProgress) => None,
        (false, State::NodeInfeasible) if way == Way::Node => Some(requested),
        // The request may have been lowered after the volume has grown.
        (false, State::ControllerInProgress | State::ControllerInfeasible) | (_, State::NodeInfeasible) => {
            Some(recorded)
        }
        (false, State::None | State::Other) => {
            // An API server that records no attempts tells by the condition alone that a node is at it.
            let node_is_at_it = allocated.is_none() && sizes.awaits_node;
            (!node_is_at_it).then_some(recorded)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: i64 = 10;
    const ALLOCATED: i64 = 20;

    fn sizes(requested: i64, allocated: Option<i64>, volume: i64, state: State) -> Sizes {
        Sizes { requested, actual: OLD, allocated, volume, state, awaits_node: false, told_error: false }
    }

    #[test]
    fn a_volume_smaller_than_the_request_is_asked_for_by_the_state_of_the_last_attempt() {
        use State::{
            ControllerInProgress, ControllerInfeasible, NodeInProgress, NodeInfeasible, NodePending,
            None as Nothing, Other,
        };
        let some = Some(ALLOCATED);
        for (state, allocated, volume, ended, expected) in [
            (NodeInfeasible, some, 20, false, Some(20)),
            (NodeInfeasible, None, 20, false, Some(30)),
            (NodePending, some, 20, false, None),
            (NodePending, some, OLD, false, some),
            (NodeInProgress, some, 20, false, None),
            (NodeInProgress, some, 15, false, some),
            (ControllerInProgress, some, OLD, false, some),
            (ControllerInProgress, some, OLD, true, Some(30)),
            (ControllerInProgress, None, OLD, false, Some(30)),
            (ControllerInfeasible, some, OLD, false, Some(30)),
            (Nothing, some, OLD, false, Some(30)),
            (Nothing, None, OLD, false, Some(30)),
            (Other, some, OLD, false, Some(30)),
        ] {
            for way in [Way::Controller, Way::Node] {
                let found = target(&sizes(30, allocated, volume, state), way, ended);
                assert_eq!(found, expected, "{state:?} {allocated:?} {volume} {ended} {way:?}");
            }
        }
    }

    #[test]
    fn a_volume_as_large_as_the_request_is_brought_to_the_end_of_its_attempt() {
        use State::{
            ControllerInProgress, ControllerInfeasible, NodeInProgress, NodeInfeasible, NodePending,
            None as Nothing, Other,
        };
        let some = Some(ALLOCATED);
        for (state, allocated, way, expected) in [
            (NodePending, some, Way::Controller, None),
            (NodeInProgress, some, Way::Controller, None),
            (NodeInfeasible, some, Way::Controller, some),
            (NodeInfeasible, some, Way::Node, Some(15)),
            (ControllerInProgress, some, Way::Controller, some),
            (ControllerInfeasible, some, Way::Controller, some),
            (Nothing, some, Way::Controller, some),
            (Other, some, Way::Controller, some),
            (Nothing, None, Way::Controller, Some(15)),
        ] {
            for ended in [false, true] {
                let found = target(&sizes(15, allocated, ALLOCATED, state), way, ended);
                assert_eq!(found, expected, "{state:?} {allocated:?} {way:?} {ended}");
            }
        }
    }

    #[test]
    fn without_a_record_the_condition_says_that_a_node_is_at_it() {
        let pending = Sizes { awaits_node: true, ..sizes(20, None, 20, State::None) };
        assert_eq!(target(&pending, Way::Controller, false), None);
        // An older attempt's record says nothing of this one.
        let stale = Sizes { allocated: Some(OLD), ..pending };
        assert_eq!(target(&stale, Way::Controller, false), None);
        assert_eq!(target(&Sizes { volume: OLD, ..pending }, Way::Controller, false), Some(20));
    }

    #[test]
    fn nothing_is_asked_for_that_is_there_already() {
        for state in [State::None, State::ControllerInProgress, State::NodeInfeasible] {
            assert_eq!(target(&sizes(OLD, Some(20), OLD, state), Way::Controller, true), None);
            let found = target(&sizes(12, Some(8), OLD, state), Way::Controller, false);
            assert_eq!(found, Some(12), "a record below what the claim has");
        }
    }
}
