//! Growth of a volume: its space is taken in the books, then on the disk, and then its record says so.

use std::sync::Arc;

use crate::error::Result;
use crate::id::VolumeId;
use crate::store::{Store, Volume};

/// Bytes that stay in the books until the disk or the record has them.
struct Booked {
    store: Arc<Store>,
    id: VolumeId,
}

impl Drop for Booked {
    fn drop(&mut self) {
        self.store.index().making.remove(self.id.as_str());
        self.store.changed.notify();
    }
}

impl Volume {
    /// Makes the volume larger; a smaller size changes nothing.
    pub(crate) fn expand(&mut self, bytes: u64) -> Result<()> {
        if bytes <= self.record.capacity_bytes {
            return Ok(());
        }
        let store = Arc::clone(&self.store);
        let mut more = self.record.clone();
        more.capacity_bytes = bytes - self.record.capacity_bytes;
        let wanted = store.engine.charge(&more);
        store.reserve(self.record.id.as_str(), wanted)?;
        let _booked = Booked { store: Arc::clone(&store), id: self.record.id.clone() };
        self.reach("growth booked");
        store.engine.grow(self, bytes).map_err(|error| store.explain(error, wanted))?;
        self.reach("growth on the disk");
        self.note(|record| record.capacity_bytes = bytes)?;
        self.reach("growth in the record");
        Ok(())
    }
}
