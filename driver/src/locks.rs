//! One lock a volume: a second call for it is told to come back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// The volumes with a call in flight, with the number of calls that share one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks(Arc<Mutex<HashMap<String, Holders>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holders {
    One,
    Shared(usize),
}

/// Held while a call works on a volume.
#[derive(Debug)]
pub(crate) struct Guard {
    locks: Locks,
    id: String,
}

impl Locks {
    pub(crate) fn take(&self, id: &str) -> Result<Guard> {
        self.hold(id, |before| before.is_none().then_some(Holders::One))
    }

    /// For calls that only read what the others change.
    pub(crate) fn share(&self, id: &str) -> Result<Guard> {
        self.hold(id, |before| match before {
            None => Some(Holders::Shared(1)),
            Some(Holders::Shared(others)) => Some(Holders::Shared(others + 1)),
            Some(Holders::One) => None,
        })
    }

    fn hold(&self, id: &str, next: impl FnOnce(Option<Holders>) -> Option<Holders>) -> Result<Guard> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match next(held.get(id).copied()) {
            Some(holders) => {
                held.insert(id.to_owned(), holders);
                Ok(Guard { locks: self.clone(), id: id.to_owned() })
            }
            None => Err(Error::Busy { id: id.to_owned() }),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = self.locks.0.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get_mut(&self.id) {
            Some(Holders::Shared(others)) if *others > 1 => *others -= 1,
            _ => drop(held.remove(&self.id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_one_call_at_a_time_and_others_are_free() {
        let locks = Locks::default();
        let guard = locks.take("a").unwrap();
        assert!(matches!(locks.take("a"), Err(Error::Busy { id }) if id == "a"));
        let _other = locks.take("b").unwrap();
        drop(guard);
        assert!(locks.take("a").is_ok());
    }

    #[test]
    fn readers_share_and_keep_out_who_changes() {
        let locks = Locks::default();
        let (first, second) = (locks.share("a").unwrap(), locks.share("a").unwrap());
        assert!(locks.take("a").is_err());
        drop(first);
        assert!(locks.take("a").is_err());
        drop(second);
        let one = locks.take("a").unwrap();
        assert!(locks.share("a").is_err());
        drop(one);
        assert!(locks.share("a").is_ok());
    }
}
