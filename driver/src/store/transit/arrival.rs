//! A volume whose data are arriving from another pool: made aside, with a record of how far it is, and moved to its place
//! when it is whole.

use std::sync::Arc;

use dunnage_host::dir::{Dir, Mounts};
use dunnage_host::stream::Position;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::super::{Store, Volume, encode};
use super::IN;
use crate::copies::{Cursor, Taker};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::record::{self, Allocation, Content, Record};
use crate::status::chain;

/// The name of the record.
pub(super) const FILE: &str = "copy.json";

/// An arriving volume, as its record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Arrival {
    /// What the volume's will be.
    pub(crate) record: Record,
    /// Bytes of data that were announced.
    pub(crate) data_bytes: u64,
    /// Bytes of data that have come.
    pub(crate) received: u64,
    pub(crate) cursor: Cursor,
    #[serde(default)]
    place: Place,
}

/// Where in a tree it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Place {
    directories: Vec<Vec<u8>>,
    file: Option<(Vec<u8>, Option<u64>)>,
    ended: bool,
}

impl Arrival {
    /// One that has not begun.
    pub(crate) fn new(record: Record, identity: &str, data_bytes: u64) -> Self {
        Self { record, data_bytes, received: 0, cursor: Cursor::start(identity), place: Place::default() }
    }

    /// Bytes that it takes in all, in the books first.
    fn wanted(&self, engine: &dyn Engine) -> u64 {
        engine.charge(&self.record).max(self.data_bytes)
    }

    /// Bytes of them that it does not take up on the disk yet. A thick image takes all of its own at once.
    pub(super) fn owed(&self, engine: &dyn Engine) -> u64 {
        match self.record.content {
            Content::Image { allocation: Allocation::Thick, .. }
            | Content::Block { allocation: Allocation::Thick } => 0,
            _ => self.wanted(engine).saturating_sub(self.received),
        }
    }

    /// Bytes of data that are taken at most. What was announced is what they took up there, which can be less than they
    /// are, as where a file system compresses.
    fn most(&self) -> u64 {
        const MORE: u64 = 16 << 20;
        self.data_bytes.saturating_mul(2).max(self.record.capacity_bytes).saturating_add(MORE)
    }
}

impl Store {
    /// The volumes that are arriving, in the order of their ids.
    pub(crate) fn arriving(&self) -> Vec<VolumeId> {
        self.transit.arrivals().keys().cloned().collect()
    }

    pub(crate) fn arrival(&self, id: &VolumeId) -> Option<Arrival> {
        self.transit.arrivals().get(id).cloned()
    }

    /// Takes the space of a volume that is to arrive, and begins its record. One that had begun is given up.
    pub(crate) fn begin_arrival(self: &Arc<Self>, arrival: &Arrival) -> Result<()> {
        let id = &arrival.record.id;
        self.abandon(id)?;
        let wanted = arrival.wanted(self.engine.as_ref());
        self.reserve(id.as_str(), wanted)?;
        let made = self.make_arrival(arrival).map_err(|error| self.explain(error, wanted));
        if made.is_ok() {
            self.transit.arrivals().insert(id.clone(), arrival.clone());
            self.index().making.insert(id.to_string(), arrival.owed(self.engine.as_ref()));
        } else {
            let name = format!("{IN}{id}");
            if let Err(error) = self.transit.dir.remove_tree(&name) {
                warn!(name, error = chain(&error), "cannot clear away a copy that has hardly begun yet");
            }
            self.index().making.remove(id.as_str());
        }
        self.changed.notify();
        made
    }

    fn make_arrival(&self, arrival: &Arrival) -> Result<()> {
        let name = format!("{IN}{}", arrival.record.id);
        self.transit.dir.remove_tree(&name)?;
        let dir = self.transit.dir.make_dir(&name, 0o700)?;
        self.steps.reach("arrival directory made");
        self.engine.make(&dir, &arrival.record)?;
        self.steps.reach("arrival space taken");
        dir.write(FILE, &encode_arrival(arrival)?)?;
        self.transit.dir.sync()?;
        self.steps.reach("arrival record written");
        Ok(())
    }

    /// Goes on with a volume that is arriving.
    pub(crate) fn resume_arrival(&self, id: &VolumeId) -> Result<Taker> {
        let arrival = self.arrival(id).ok_or_else(|| Error::NoSuchVolume { id: id.to_string() })?;
        let dir = self.transit.entry(IN, id)?;
        let Place { directories, file, ended } = arrival.place.clone();
        let most = arrival.most();
        let receiver = self.engine.receive(&dir, &Position { directories, file, ended }, most)?;
        let left = most.saturating_sub(arrival.received);
        Ok(Taker::new(receiver, arrival.cursor, left))
    }

    /// Makes durable what has come, and notes it; `received` are all bytes of data so far.
    pub(crate) fn note_arrival(&self, id: &VolumeId, taker: &Taker, received: u64) -> Result<()> {
        let Some(mut arrival) = self.arrival(id) else { return Ok(()) };
        let (cursor, Position { directories, file, ended }) = taker.persist()?;
        self.steps.reach("arrival data durable");
        arrival.cursor = cursor;
        arrival.place = Place { directories, file, ended };
        arrival.received = received;
        let owed = arrival.owed(self.engine.as_ref());
        self.transit.entry(IN, id)?.write(FILE, &encode_arrival(&arrival)?)?;
        self.steps.reach("arrival noted");
        self.transit.arrivals().insert(id.clone(), arrival);
        self.index().making.insert(id.to_string(), owed);
        Ok(())
    }

    /// A disk that turned out to be full while data came is told as such, with the numbers.
    pub(crate) fn explain_arrival(&self, id: &VolumeId, error: Error) -> Error {
        let lacks = |arrival: Arrival| arrival.wanted(self.engine.as_ref()).saturating_sub(arrival.received);
        self.explain(error, self.arrival(id).map_or(0, lacks))
    }

    /// Moves a volume whose data are all here to its place.
    pub(crate) fn complete_arrival(&self, id: &VolumeId, taker: &Taker, received: u64) -> Result<Record> {
        // What is removed then could not be done without anywhere earlier.
        self.note_arrival(id, taker, received)?;
        taker.finish()?;
        self.steps.reach("arrival finished");
        let arrival = self.arrival(id).ok_or_else(|| Error::NoSuchVolume { id: id.to_string() })?;
        let dir = self.transit.entry(IN, id)?;
        self.engine.finish_copy(&dir, &arrival.record)?;
        self.steps.reach("arrival whole");
        dir.write(record::FILE, &encode(&arrival.record)?)?;
        self.steps.reach("arrived record written");
        self.transit.dir.rename(&format!("{IN}{id}"), &self.volumes, id.as_str())?;
        self.steps.reach("arrival renamed");
        let mut index = self.index();
        index.making.remove(id.as_str());
        index.records.insert(id.clone(), arrival.record.clone());
        drop(index);
        self.transit.arrivals().remove(id);
        self.changed.notify();
        arrived(&dir)?;
        Ok(arrival.record)
    }

    /// Gives up a volume that is arriving; it is no error when there is none.
    pub(crate) fn abandon(self: &Arc<Self>, id: &VolumeId) -> Result<()> {
        let Some(arrival) = self.arrival(id) else { return Ok(()) };
        let name = format!("{IN}{id}");
        let dir = self.transit.dir.dir(&name, Mounts::Refuse)?;
        let volume = Volume { record: arrival.record, dir, store: Arc::clone(self) };
        self.engine.forget(&volume)?;
        self.trash.take(&self.transit.dir, &name)?;
        self.steps.reach("arrival in the trash");
        self.transit.arrivals().remove(id);
        self.index().making.remove(id.as_str());
        self.changed.notify();
        Ok(())
    }
}

/// Removes from a volume's directory what only an arriving one needs; a start does it where a kill came in between.
pub(in crate::store) fn arrived(dir: &Dir) -> Result<()> {
    Ok(dir.remove_file(FILE)?)
}

fn encode_arrival(arrival: &Arrival) -> Result<Vec<u8>> {
    let id = || arrival.record.id.to_string();
    serde_json::to_vec(arrival).map_err(|source| Error::Damaged { id: id(), source })
}
