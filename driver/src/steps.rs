//! The moments between two steps of an operation, where a test can end it as a kill would.

use std::fmt;
use std::sync::Arc;

/// Called at each such moment with its name. Does nothing unless a test says otherwise.
#[derive(Clone, Default)]
pub struct Steps(Option<Arc<dyn Fn(&'static str) + Send + Sync>>);

impl Steps {
    /// Calls `at` at every step; a panic in it ends the operation there.
    pub fn new(at: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(at)))
    }

    pub(crate) fn reach(&self, step: &'static str) {
        if let Some(at) = &self.0 {
            at(step);
        }
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Steps(watched)" } else { "Steps" })
    }
}
