//! The group snapshots of an open pool. All of a group lies in one directory, so that one rename makes it and one removes it:
//! there is never a part of a group.

use std::collections::BTreeMap;
use std::path::Path;

use dunnage_host::copy::can_reflink;
use dunnage_host::dir::{Dir, Mounts};
use tracing::warn;

use super::snapshots::{encode, load_in};
use super::sweep::HALF_MADE;
use super::{Store, Volume, load_json};
use crate::error::{Error, Result};
use crate::group::{FILE, Group};
use crate::id::{GroupId, SnapshotId};
use crate::snapshot::{self, Snapshot};
use crate::status::chain;

impl Store {
    pub(crate) fn group(&self, id: &GroupId) -> Option<Group> {
        self.snapshots.groups().get(id).cloned()
    }

    /// The snapshots of a group, in the order of their volumes.
    pub(crate) fn members(&self, group: &Group) -> Vec<Snapshot> {
        group.snapshots.iter().filter_map(|id| self.snapshot(id)).collect()
    }

    /// Makes snapshots of volumes, all of one moment: under a temporary name first, so that all are there or none.
    pub(crate) fn take_group(&self, id: &GroupId, name: &str, of: &[Volume]) -> Result<Group> {
        let made = self.make_group(id, name, of);
        self.index().making.remove(id.as_str());
        let made = made.map(|(group, members)| {
            self.snapshots.records().extend(members);
            self.snapshots.groups().insert(id.clone(), group.clone());
            group
        });
        self.changed.notify();
        made
    }

    fn make_group(&self, id: &GroupId, name: &str, of: &[Volume]) -> Result<(Group, Members)> {
        let all = &self.snapshots.dir;
        let temporary = format!("{HALF_MADE}{id}");
        all.remove_tree(&temporary)?;
        let made = self.fill_group(&temporary, id, name, of);
        if made.is_err()
            && let Err(error) = all.remove_tree(&temporary)
        {
            warn!(
                name = temporary,
                error = chain(&error),
                "cannot clear away a half-made group snapshot yet"
            );
        }
        made
    }

    fn fill_group(
        &self,
        temporary: &str,
        id: &GroupId,
        name: &str,
        of: &[Volume],
    ) -> Result<(Group, Members)> {
        let all = &self.snapshots.dir;
        let dir = all.make_dir(temporary, 0o700)?;
        let member = |volume: &Volume| SnapshotId::in_group(id, volume.id());
        let make = |volume: &Volume| -> Result<Dir> { Ok(dir.make_dir(member(volume).as_str(), 0o700)?) };
        let dirs: Vec<Dir> = of.iter().map(make).collect::<Result<_>>()?;
        self.steps.reach("group directory made");
        // Shared blocks take no space now; what they take later is seen as it is taken.
        let wanted = if can_reflink(&dir)? {
            0
        } else {
            of.iter().map(|volume| self.engine.data_bytes(&volume.dir)).sum::<Result<u64>>()?
        };
        self.reserve(id.as_str(), wanted)?;
        let created = Snapshot::now();
        let copies: Vec<_> = of.iter().zip(&dirs).collect();
        let taken = self.engine.copy_group(&copies).map_err(|error| self.explain(error, wanted))?;
        self.steps.reach("group data made");
        let mut members = Members::new();
        for ((volume, dir), taken) in copies.into_iter().zip(taken) {
            let snapshot = Snapshot {
                id: member(volume),
                name: name.to_owned(),
                source_volume_id: volume.id().clone(),
                size_bytes: volume.record.capacity_bytes,
                created,
                content: volume.record.content.copied(),
                group: Some(id.clone()),
                taken,
            };
            dir.write(snapshot::FILE, &encode(&snapshot)?)?;
            self.steps.reach("group's snapshot written");
            members.insert(snapshot.id.clone(), snapshot);
        }
        let group = Group {
            id: id.clone(),
            name: name.to_owned(),
            created,
            snapshots: of.iter().map(member).collect(),
        };
        let text =
            serde_json::to_vec(&group).map_err(|source| Error::Damaged { id: id.to_string(), source })?;
        // Makes durable what lies beside it, too.
        dir.write(FILE, &text)?;
        self.steps.reach("group record written");
        all.rename(temporary, all, id.as_str())?;
        self.steps.reach("group renamed");
        Ok((group, members))
    }

    /// Deletes a group with all its snapshots; it is no error when there is none.
    pub(crate) fn delete_group(&self, id: &GroupId) -> Result<()> {
        let Some(group) = self.group(id) else { return Ok(()) };
        self.trash.take(&self.snapshots.dir, id.as_str())?;
        self.steps.reach("group in the trash");
        self.snapshots.groups().remove(id);
        let mut records = self.snapshots.records();
        for member in &group.snapshots {
            records.remove(member);
        }
        drop(records);
        self.changed.notify();
        Ok(())
    }
}

/// Snapshots by their ids.
type Members = BTreeMap<SnapshotId, Snapshot>;

/// Reads a group and its snapshots, all of them or none.
pub(super) fn load(all: &Dir, id: &GroupId) -> Result<(Group, Members)> {
    let group: Group = load_json(all, id.as_str(), FILE, id.as_str())?;
    if group.id != *id {
        return Err(Error::Precondition(format!("its record is that of {}", group.id)));
    }
    let dir = all.dir(Path::new(id.as_str()), Mounts::Refuse)?;
    let mut members = Members::new();
    for member in &group.snapshots {
        let snapshot = load_in(&dir, member)?;
        if snapshot.group.as_ref() != Some(id) {
            return Err(Error::Precondition(format!("its snapshot {member} is of another group or of none")));
        }
        members.insert(member.clone(), snapshot);
    }
    Ok((group, members))
}
