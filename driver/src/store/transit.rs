//! What is on its way between this pool and others: volumes whose data are arriving, and copies of volumes made to be
//! read by another node.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dunnage_host::dir::{Dir, Mounts};
use tracing::{info, warn};

use super::load_json;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::id::{PoolId, VolumeId};
use crate::status::chain;

mod arrival;
mod lent;

pub(crate) use arrival::Arrival;
pub(super) use arrival::arrived;
pub(crate) use lent::Lent;

/// The directory of all of it.
pub(crate) const TRANSIT: &str = "transit";

/// Names of arriving volumes begin with the one, names of copies to be read with the other; the arriving volume's id
/// follows.
const IN: &str = "in-";
const OUT: &str = "out-";

/// The directory, and what is known of it.
#[derive(Debug)]
pub(super) struct Transit {
    dir: Dir,
    arrivals: Mutex<BTreeMap<VolumeId, Arrival>>,
    /// By the volume that the data are for.
    lent: Mutex<HashMap<VolumeId, lent::Kept>>,
}

/// What a start makes of an entry.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Arrival(VolumeId),
    /// Of use to nobody any more.
    Remains,
    Strange,
}

fn sort(name: &str) -> Found {
    // A deep tree whose removal was cut short has its parts beside it, under names that begin alike.
    let id = |rest: &str| rest.split('.').next().and_then(|id| id.parse::<VolumeId>().ok());
    match (name.strip_prefix(IN), name.strip_prefix(OUT)) {
        (Some(rest), _) => match (id(rest), rest.contains('.')) {
            (Some(id), false) => Found::Arrival(id),
            (Some(_), true) => Found::Remains,
            (None, _) => Found::Strange,
        },
        (_, Some(rest)) if id(rest).is_some() => Found::Remains,
        _ => Found::Strange,
    }
}

impl Transit {
    /// Opens the directory, which pools of earlier versions do not have yet. Arrivals go on when they are asked for
    /// again; what was lent is made anew if it is still wanted.
    pub(super) fn open(pool: &PoolId, root: &Dir) -> Result<Self> {
        let dir = root.make_dir(TRANSIT, 0o700)?;
        root.sync()?;
        let mut arrivals = BTreeMap::new();
        for entry in dir.entries()? {
            let name = entry.name.to_string_lossy().into_owned();
            match sort(&name) {
                Found::Arrival(id) => match load_json::<Arrival>(&dir, &name, arrival::FILE, id.as_str()) {
                    Ok(arrival) if arrival.record.id == id => drop(arrivals.insert(id, arrival)),
                    other => {
                        let error = other.err().map(|error| chain(&error));
                        info!(%pool, name, error, "removing a copy that has hardly begun");
                        dir.remove_tree(&name)?;
                    }
                },
                Found::Remains => dir.remove_tree(&name)?,
                Found::Strange => warn!(%pool, name, "leaving alone what is not on its way"),
            }
        }
        Ok(Self { dir, arrivals: Mutex::new(arrivals), lent: Mutex::default() })
    }

    /// Bytes that arriving volumes have been promised and do not take up yet.
    pub(super) fn owed(&self, engine: &dyn Engine) -> HashMap<String, u64> {
        self.arrivals().iter().map(|(id, arrival)| (id.to_string(), arrival.owed(engine))).collect()
    }

    /// Checks that nothing is on its way, and removes what was only kept to be read again.
    pub(super) fn close(&self) -> Result<()> {
        if let Some(id) = self.arrivals().keys().next() {
            return Err(Error::Precondition(format!("volume {id} is being copied to this pool")));
        }
        let mut lent = self.lent();
        if let Some((id, _)) = lent.iter().find(|(_, kept)| kept.is_read()) {
            return Err(Error::Precondition(format!("volume {id} is being copied from this pool")));
        }
        for (id, _) in lent.drain() {
            self.dir.remove_tree(&format!("{OUT}{id}"))?;
        }
        Ok(())
    }

    fn arrivals(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lent(&self) -> MutexGuard<'_, HashMap<VolumeId, lent::Kept>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, prefix: &str, id: &VolumeId) -> Result<Dir> {
        Ok(self.dir.dir(format!("{prefix}{id}"), Mounts::Refuse)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_go_on_and_the_rest_goes() {
        let id = "0123456789abcdef-0123456789abcdef0123456789abcdef";
        for (name, expected) in [
            (format!("in-{id}"), Found::Arrival(id.parse().unwrap())),
            (format!("in-{id}.deep-0"), Found::Remains),
            (format!("out-{id}"), Found::Remains),
            (format!("out-{id}.deep-3"), Found::Remains),
            ("in-".to_owned(), Found::Strange),
            ("in-x".to_owned(), Found::Strange),
            ("out-x".to_owned(), Found::Strange),
            (id.to_owned(), Found::Strange),
            ("lost+found".to_owned(), Found::Strange),
        ] {
            assert_eq!(sort(&name), expected, "{name}");
        }
    }
}
