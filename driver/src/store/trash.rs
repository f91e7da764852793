//! Deleted volumes and snapshots: out of sight at once, removed one after the other in the background.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use dunnage_host::dir::Dir;
use tracing::{info, warn};

use crate::error::Result;
use crate::pool::Changed;
use crate::status::chain;

#[derive(Debug)]
pub(crate) struct Trash {
    dir: Arc<Dir>,
    remover: Sender<String>,
}

impl Trash {
    /// Opens the trash and goes on with what an earlier process left in it.
    pub(crate) fn open(dir: Dir, changed: Changed) -> Result<Self> {
        let (remover, names) = channel::<String>();
        for entry in dir.entries()? {
            // A name that is not text is none of ours.
            if let Ok(name) = entry.name.into_string() {
                let _ = remover.send(name);
            }
        }
        let dir = Arc::new(dir);
        let trash = Arc::clone(&dir);
        thread::spawn(move || {
            for name in names {
                match trash.remove_tree(&name) {
                    Ok(()) => info!(name, "what was deleted is removed"),
                    Err(error) => {
                        warn!(name, error = chain(&error), "what was deleted stays until the next start");
                    }
                }
                changed.notify();
            }
        });
        Ok(Self { dir, remover })
    }

    /// Moves the entry `id` of a directory here; one of the same id may still be waiting.
    pub(crate) fn take(&self, from: &Dir, id: &str) -> Result<()> {
        let mut number = 0;
        let name = loop {
            let name = format!("{id}.{number}");
            if !self.dir.has(&name)? {
                break name;
            }
            number += 1;
        };
        from.rename(id, &self.dir, &name)?;
        // The thread ends only with this sender; were it gone, the next start would do its work.
        let _ = self.remover.send(name);
        Ok(())
    }
}
