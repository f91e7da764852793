//! Which events become writes: repeats are counted, floods are summed up or dropped. Pure.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{Kind, Note};

/// Different messages of one reason on one object before they are summed up.
const SIMILAR: u32 = 10;
/// How long different messages count together.
const WINDOW: Duration = Duration::from_secs(600);
/// Writes for one object at once, and the time in which one more is earned.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
/// Entries of each kind that are remembered.
const REMEMBERED: usize = 4096;

/// What to do with a note.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create { message: String },
    Repeat { event: String, count: i32, message: String },
    Drop,
}

/// The object by kind, namespace, name and uid.
type Object = (String, String, String, String);
/// What is one event: the object, type, reason and message (none when summed up).
type Same = (Object, Kind, &'static str, Option<String>);

#[derive(Default)]
pub(super) struct Correlator {
    /// By object and reason: since when, and how many different messages.
    similar: HashMap<(Object, Kind, &'static str), (Instant, u32)>,
    /// The event that stands for repeats, and how often it happened.
    written: HashMap<Same, Written>,
    budgets: HashMap<Object, (Instant, u32)>,
}

struct Written {
    event: Option<String>,
    count: i32,
    last: Instant,
}

impl Correlator {
    pub(super) fn decide(&mut self, note: &Note, now: Instant) -> Step {
        self.bound(now);
        if !self.pay(object(note), now) {
            return Step::Drop;
        }
        let (same, message) = self.place(note, now);
        let written = self.written.entry(same).or_insert(Written { event: None, count: 0, last: now });
        written.count = written.count.saturating_add(1);
        written.last = now;
        match &written.event {
            Some(event) => Step::Repeat { event: event.clone(), count: written.count, message },
            None => Step::Create { message },
        }
    }

    /// Notes the name under which `note` was written.
    pub(super) fn created(&mut self, note: &Note, event: String) {
        if let Some(written) = self.find(note) {
            written.event = Some(event);
            written.count = 1;
        }
    }

    /// Forgets the event written for `note`: it is gone.
    pub(super) fn forget(&mut self, note: &Note) {
        if let Some(written) = self.find(note) {
            *written = Written { event: None, count: 0, last: written.last };
        }
    }

    fn find(&mut self, note: &Note) -> Option<&mut Written> {
        let summed = self.is_summed(note);
        self.written.get_mut(&same(note, summed))
    }

    fn is_summed(&self, note: &Note) -> bool {
        let group = (object(note), note.kind, note.reason);
        self.similar.get(&group).is_some_and(|(_, messages)| *messages > SIMILAR)
    }

    /// The event that `note` is (a repeat of), and the text for it.
    fn place(&mut self, note: &Note, now: Instant) -> (Same, String) {
        let alone = same(note, false);
        let known = self.written.contains_key(&alone);
        let group = self.similar.entry((object(note), note.kind, note.reason)).or_insert((now, 0));
        if now - group.0 > WINDOW {
            *group = (now, 0);
        }
        if !known {
            group.1 += 1;
        }
        if group.1 > SIMILAR {
            (same(note, true), format!("(many different messages, this is the latest) {}", note.message))
        } else {
            (alone, note.message.clone())
        }
    }

    /// Takes one write from the object's budget.
    fn pay(&mut self, object: Object, now: Instant) -> bool {
        let budget = self.budgets.entry(object).or_insert((now, BURST));
        let earned = u32::try_from((now - budget.0).as_secs() / REFILL.as_secs()).unwrap_or(BURST);
        if earned > 0 {
            *budget = (budget.0 + REFILL * earned, budget.1.saturating_add(earned).min(BURST));
        }
        let paid = budget.1 > 0;
        budget.1 = budget.1.saturating_sub(1);
        paid
    }

    /// Keeps memory bounded: old entries go first, and all of them if there still are too many.
    fn bound(&mut self, now: Instant) {
        if self.written.len() >= REMEMBERED {
            self.written.retain(|_, written| now - written.last <= WINDOW);
            if self.written.len() >= REMEMBERED {
                self.written.clear();
            }
        }
        if self.similar.len() >= REMEMBERED {
            self.similar.retain(|_, (since, _)| now - *since <= WINDOW);
            if self.similar.len() >= REMEMBERED {
                self.similar.clear();
            }
        }
        if self.budgets.len() >= REMEMBERED {
            self.budgets.retain(|_, (since, left)| *left < BURST && now - *since <= REFILL * BURST);
            if self.budgets.len() >= REMEMBERED {
                self.budgets.clear();
            }
        }
    }
}

fn object(note: &Note) -> Object {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    let object = &note.object;
    (part(&object.kind), part(&object.namespace), part(&object.name), part(&object.uid))
}

fn same(note: &Note, summed: bool) -> Same {
    (object(note), note.kind, note.reason, (!summed).then(|| note.message.clone()))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    fn note(object: &str, message: &str) -> Note {
        Note {
            object: ObjectReference { name: Some(object.to_owned()), ..ObjectReference::default() },
            kind: Kind::Warning,
            reason: "ProvisioningFailed",
            message: message.to_owned(),
        }
    }

    /// Decides, and answers a `Create` as the server would.
    fn tell(correlator: &mut Correlator, note: &Note, now: Instant) -> Step {
        let step = correlator.decide(note, now);
        if matches!(step, Step::Create { .. }) {
            correlator.created(note, format!("event of {}", note.message));
        }
        step
    }

    #[test]
    fn the_same_thing_told_again_is_counted_on_the_first_event() {
        let (mut correlator, now) = (Correlator::default(), Instant::now());
        assert_eq!(tell(&mut correlator, &note("a", "m"), now), Step::Create { message: "m".to_owned() });
        for count in 2..5 {
            let expected = Step::Repeat { event: "event of m".to_owned(), count, message: "m".to_owned() };
            assert_eq!(tell(&mut correlator, &note("a", "m"), now), expected);
        }
        assert!(matches!(tell(&mut correlator, &note("b", "m"), now), Step::Create { .. }));
    }

    #[test]
    fn an_event_that_is_gone_is_written_anew() {
        let (mut correlator, now) = (Correlator::default(), Instant::now());
        tell(&mut correlator, &note("a", "m"), now);
        correlator.forget(&note("a", "m"));
        assert!(matches!(tell(&mut correlator, &note("a", "m"), now), Step::Create { .. }));
        let again = tell(&mut correlator, &note("a", "m"), now);
        assert!(matches!(again, Step::Repeat { count: 2, .. }), "{again:?}");
    }

    #[test]
    fn an_event_that_could_not_be_written_is_tried_anew() {
        let (mut correlator, now) = (Correlator::default(), Instant::now());
        for _ in 0..2 {
            assert!(matches!(correlator.decide(&note("a", "m"), now), Step::Create { .. }));
        }
    }

    #[test]
    fn many_different_messages_become_one_event() {
        let (mut correlator, now) = (Correlator::default(), Instant::now());
        let steps: Vec<Step> =
            (0..15).map(|number| tell(&mut correlator, &note("a", &number.to_string()), now)).collect();
        let created = steps.iter().filter(|step| matches!(step, Step::Create { .. })).count();
        assert_eq!(created, 11, "ten as they are and one for all others: {steps:?}");
        assert!(matches!(&steps[14], Step::Repeat { count: 5, message, .. } if message.ends_with("14")));
    }

    #[test]
    fn a_flood_on_one_object_is_dropped_and_others_are_not_touched() {
        let (mut correlator, now) = (Correlator::default(), Instant::now());
        let dropped = |correlator: &mut Correlator, object: &str, now| {
            (0..30).filter(|_| tell(correlator, &note(object, "m"), now) == Step::Drop).count()
        };
        assert_eq!(dropped(&mut correlator, "a", now), 5);
        assert_eq!(dropped(&mut correlator, "b", now), 5);
        assert_eq!(dropped(&mut correlator, "a", now + REFILL * 2), 28, "two more are earned in that time");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut correlator, now) = (Correlator::default(), Instant::now());
        for number in 0..3 * REMEMBERED {
            tell(&mut correlator, &note(&number.to_string(), "m"), now);
        }
        for len in [correlator.written.len(), correlator.similar.len(), correlator.budgets.len()] {
            assert!(len <= REMEMBERED, "{len}");
        }
    }
}
