//! One lock a volume: a second call for it is told to come back.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// The volumes with a call in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks(Arc<Mutex<HashSet<String>>>);

/// Held while a call works on a volume.
#[derive(Debug)]
pub(crate) struct Guard {
    locks: Locks,
    id: String,
}

impl Locks {
    pub(crate) fn take(&self, id: &str) -> Result<Guard> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.insert(id.to_owned()) {
            Ok(Guard { locks: self.clone(), id: id.to_owned() })
        } else {
            Err(Error::Busy { id: id.to_owned() })
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.locks.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
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
}
