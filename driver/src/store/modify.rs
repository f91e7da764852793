//! Other attributes for a volume: its data have them first, and then its record says so.

use std::sync::Arc;

use crate::error::Result;
use crate::record::Content;
use crate::store::Volume;

impl Volume {
    /// Gives the volume what of this content can be changed. Its data get it even when the record has it already: an
    /// earlier call for something else may have been cut short between the two.
    pub(crate) fn modify(&mut self, content: Content) -> Result<()> {
        let store = Arc::clone(&self.store);
        store.engine.modify(self, content)?;
        self.reach("attributes on the disk");
        self.note(|record| record.content = content)?;
        self.reach("attributes in the record");
        Ok(())
    }
}
