//! Data on their way from one pool to another: what a stream consists of, how it is checked, and how fast it may be.

mod cursor;
mod pace;
mod send;
mod take;
mod wire;

pub(crate) use cursor::Cursor;
pub(crate) use pace::Pace;
pub use pace::Rate;
pub(crate) use send::{Sender, Stop};
pub(crate) use take::Taker;

use std::time::Duration;

/// How copies between pools go.
#[derive(Clone, Copy, Debug)]
pub struct CopySettings {
    /// Bytes a second that the node gives, and as many that it takes.
    pub rate: Rate,
    /// How long a copy that nobody asks for any more is kept.
    pub patience: Duration,
}

impl Default for CopySettings {
    fn default() -> Self {
        // Sidecars of others than Dunnage ask again after 5 minutes at the latest.
        Self { rate: Rate::default(), patience: Duration::from_secs(15 * 60) }
    }
}
