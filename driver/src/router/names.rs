//! The names of the `CreateVolume` calls that are running.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// One call a name at a time: two could otherwise put it on two pools.
#[derive(Clone, Default)]
pub(crate) struct Names(Arc<Mutex<HashSet<String>>>);

/// Held while a call runs, and given back also when it is cancelled.
pub(crate) struct Claim {
    names: Names,
    name: String,
}

impl Names {
    pub(crate) fn claim(&self, name: &str) -> Result<Claim> {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned()) {
            return Ok(Claim { names: self.clone(), name: name.to_owned() });
        }
        Err(Error::Aborted(format!("an earlier CreateVolume of {name} is still running")))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.names.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_busy_until_its_call_ends() {
        let names = Names::default();
        let held = names.claim("pvc-1").unwrap();
        assert!(names.claim("pvc-2").is_ok());
        assert!(matches!(names.claim("pvc-1"), Err(Error::Aborted(_))));
        drop(held);
        assert!(names.claim("pvc-1").is_ok());
    }
}
