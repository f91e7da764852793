//! How far a copy is, counted by both ends in the same way.

use dunnage_csi::agent;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A place between two pieces of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cursor {
    /// Which data they are.
    pub(crate) identity: String,
    /// Entries begun and ended.
    pub(crate) steps: u64,
    /// In the file that is begun, the end of its last data.
    pub(crate) offset: u64,
    /// Over the entries begun: whether a tree is walked in the same order again.
    pub(crate) order: Vec<u8>,
    /// Over all pieces.
    pub(crate) chain: Vec<u8>,
}

impl Cursor {
    pub(crate) fn start(identity: &str) -> Self {
        Self { identity: identity.to_owned(), ..Self::default() }
    }

    /// Counts an entry that begins, in the form that it is sent in.
    pub(crate) fn began(&mut self, entry: &[u8]) {
        self.ended();
        self.order = after(&self.order, entry);
    }

    pub(crate) fn ended(&mut self) {
        self.steps += 1;
        self.offset = 0;
    }

    /// Counts a piece by its checksum.
    pub(crate) fn piece(&mut self, checksum: &[u8]) {
        self.chain = after(&self.chain, checksum);
    }
}

fn after(before: &[u8], next: &[u8]) -> Vec<u8> {
    Sha256::new().chain_update(before).chain_update(next).finalize().to_vec()
}

/// The checksum of a piece.
pub(super) fn checksum(body: &[u8]) -> Vec<u8> {
    Sha256::digest(body).to_vec()
}

impl From<agent::Cursor> for Cursor {
    fn from(from: agent::Cursor) -> Self {
        let agent::Cursor { identity, steps, offset, order, chain } = from;
        Self { identity, steps, offset, order, chain }
    }
}

impl From<Cursor> for agent::Cursor {
    fn from(from: Cursor) -> Self {
        let Cursor { identity, steps, offset, order, chain } = from;
        Self { identity, steps, offset, order, chain }
    }
}
