//! What an agent has of one kind, volumes or snapshots, with what this router's own calls changed since it told.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::Bound;

/// Things by their ids.
#[derive(Debug)]
pub(super) struct Kept<Id, T> {
    there: BTreeMap<Id, T>,
    /// What calls changed and the agent has not told yet.
    notes: HashMap<Id, Option<T>>,
}

/// One page of a list.
#[derive(Debug, PartialEq)]
pub(crate) struct Page<T, Id> {
    pub(crate) entries: Vec<T>,
    /// The last id of the page, when more follow.
    pub(crate) next: Option<Id>,
}

impl<Id: Clone + Eq + Hash + Ord, T: Clone> Kept<Id, T> {
    pub(super) fn new() -> Self {
        Self { there: BTreeMap::new(), notes: HashMap::new() }
    }

    pub(super) fn has(&self, id: &Id) -> bool {
        self.there.contains_key(id)
    }

    pub(super) fn get(&self, id: &Id) -> Option<&T> {
        self.there.get(id)
    }

    /// Notes what a call has made.
    pub(super) fn created(&mut self, id: &Id, made: T) {
        self.notes.insert(id.clone(), Some(made.clone()));
        self.there.insert(id.clone(), made);
    }

    /// Notes what a call has removed.
    pub(super) fn deleted(&mut self, id: &Id) {
        self.notes.insert(id.clone(), None);
        self.there.remove(id);
    }

    /// Notes what a call has changed, if `change` says that it did.
    pub(super) fn change(&mut self, id: &Id, change: impl FnOnce(&mut T) -> bool) {
        if let Some(there) = self.there.get_mut(id)
            && change(there)
        {
            self.notes.insert(id.clone(), Some(there.clone()));
        }
    }

    /// Forgets what calls changed: another agent has it now.
    pub(super) fn forget(&mut self) {
        self.notes.clear();
    }

    /// Takes what the agent says. That may be older than a call that has just ended; a note holds until the agent agrees,
    /// and `catch_up` brings what it says up to the note, if that is still newer.
    pub(super) fn update(&mut self, there: BTreeMap<Id, T>, catch_up: impl Fn(&mut T, &T) -> bool) {
        self.there = there;
        let found = &mut self.there;
        self.notes.retain(|id, note| match note {
            Some(made) => match found.get_mut(id) {
                None => found.insert(id.clone(), made.clone()).is_none(),
                Some(said) => catch_up(said, made),
            },
            None => found.remove(id).is_some(),
        });
    }

    /// All after an id, in the order of their ids.
    pub(super) fn after<'a>(&'a self, id: Option<&'a Id>) -> impl Iterator<Item = (&'a Id, &'a T)> {
        self.there.range((id.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
    }
}

/// Cuts a page off; `limit` 0 means all.
pub(super) fn page<Id: Clone, T>(rest: impl Iterator<Item = (Id, T)>, limit: usize) -> Page<T, Id> {
    let limit = if limit == 0 { usize::MAX } else { limit };
    let mut rest = rest;
    let (mut entries, mut last) = (Vec::new(), None);
    for (id, entry) in rest.by_ref().take(limit) {
        entries.push(entry);
        last = Some(id);
    }
    let more = rest.next().is_some();
    Page { entries, next: last.filter(|_| more) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(ids: &[u32]) -> BTreeMap<u32, u32> {
        ids.iter().map(|id| (*id, *id)).collect()
    }

    #[test]
    fn what_a_call_changed_holds_until_the_agent_agrees() {
        let all = |kept: &Kept<u32, u32>| kept.after(None).map(|(id, _)| *id).collect::<Vec<_>>();
        let mut kept = Kept::new();
        kept.update(told(&[1, 2]), |_, _| false);
        kept.created(&3, 3);
        kept.deleted(&1);
        assert_eq!(all(&kept), [2, 3]);
        kept.update(told(&[1, 2]), |_, _| false);
        assert_eq!(all(&kept), [2, 3], "older than the calls");
        kept.update(told(&[2, 3]), |_, _| false);
        kept.update(told(&[1, 2]), |_, _| false);
        assert_eq!(all(&kept), [1, 2], "later than both");
        kept.deleted(&1);
        kept.forget();
        kept.update(told(&[1]), |_, _| false);
        assert_eq!(all(&kept), [1]);
        assert!(kept.has(&1) && !kept.has(&2));
    }

    #[test]
    fn a_page_names_its_last_when_more_follow() {
        for (limit, entries, next) in [(0, 3, None), (2, 2, Some(2)), (3, 3, None), (9, 3, None)] {
            let page = page([1, 2, 3].into_iter().map(|id| (id, id)), limit);
            assert_eq!((page.entries.len(), page.next), (entries, next), "{limit}");
        }
    }
}
