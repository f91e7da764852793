//! Where the data of a new volume come from.

use dunnage_host::dir::Dir;

use super::Volume;
use crate::engine::Engine;
use crate::error::Result;
use crate::record::Record;
use crate::snapshot::{State, Taken};

/// What a new volume begins with.
#[derive(Debug)]
pub(crate) enum Origin {
    Nothing,
    /// The open directory of a snapshot.
    Snapshot(Dir),
    Volume(Volume),
}

impl Origin {
    /// Bytes that the new volume takes, in the books first: a source may have outgrown its size.
    pub(super) fn bytes(&self, engine: &dyn Engine, record: &Record) -> Result<u64> {
        let data = match self {
            Self::Nothing => 0,
            Self::Snapshot(snapshot) => engine.data_bytes(snapshot)?,
            Self::Volume(volume) => engine.data_bytes(&volume.dir)?,
        };
        Ok(data.max(engine.charge(record)))
    }

    /// Makes the data of a new volume, and tells how they were copied if they were.
    pub(super) fn fill(&self, engine: &dyn Engine, dir: &Dir, record: &Record) -> Result<Option<Taken>> {
        match self {
            Self::Nothing => {
                engine.make(dir, record)?;
                return Ok(None);
            }
            _ => engine.begin_copy(dir, record)?,
        }
        let taken = match self {
            Self::Nothing => return Ok(None),
            Self::Snapshot(snapshot) => {
                Taken { made: engine.copy_snapshot(snapshot, dir)?, source: State::AtRest }
            }
            Self::Volume(volume) => engine.copy_volume(volume, dir)?,
        };
        engine.finish_copy(dir, record)?;
        Ok(Some(taken))
    }
}
