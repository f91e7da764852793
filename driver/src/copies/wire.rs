//! Items in the form that they are sent in.

use dunnage_csi::agent::{self, ExtendedAttribute, FileData, Item, Nothing, entry, item};
use dunnage_host::stream::{Attributes, Entry, Kind, Step};
use prost_types::Timestamp;

use crate::error::{Error, Result};

pub(super) fn data(offset: u64, bytes: &[u8]) -> Item {
    Item { item: Some(item::Item::Data(FileData { offset, bytes: bytes.to_vec() })) }
}

pub(super) fn step(step: Step) -> Item {
    let item = match step {
        Step::Begin(entry) => item::Item::Begin(begin(entry)),
        Step::End(attributes) => item::Item::End(end(attributes)),
    };
    Item { item: Some(item) }
}

fn begin(Entry { name, kind, link }: Entry) -> agent::Entry {
    let kind = match kind {
        Kind::Directory => entry::Kind::Directory(Nothing {}),
        Kind::File => entry::Kind::File(Nothing {}),
        Kind::Symlink(target) => entry::Kind::Symlink(target),
        Kind::Special { mode, major, minor } => {
            entry::Kind::Special(agent::Special { r#type: mode, major, minor })
        }
        Kind::Again(link) => entry::Kind::Again(link),
    };
    agent::Entry { name, kind: Some(kind), link }
}

fn end(from: Attributes) -> agent::Attributes {
    let time = |(seconds, nanos): (i64, u32)| {
        Some(Timestamp { seconds, nanos: i32::try_from(nanos).unwrap_or_default() })
    };
    agent::Attributes {
        mode: from.mode,
        owner: from.owner,
        group: from.group,
        accessed: time(from.accessed),
        modified: time(from.modified),
        size: from.size,
        extended: from.extended.into_iter().map(|(name, value)| ExtendedAttribute { name, value }).collect(),
    }
}

/// An item that was received.
pub(super) enum Received {
    Data(FileData),
    Step(Step),
}

pub(super) fn read(item: Item) -> Result<Received> {
    Ok(match item.item.ok_or_else(bad)? {
        item::Item::Data(data) => Received::Data(data),
        item::Item::Begin(entry) => Received::Step(Step::Begin(read_entry(entry)?)),
        item::Item::End(attributes) => Received::Step(Step::End(read_attributes(attributes)?)),
    })
}

fn read_entry(from: agent::Entry) -> Result<Entry> {
    let kind = match from.kind.ok_or_else(bad)? {
        entry::Kind::Directory(_) => Kind::Directory,
        entry::Kind::File(_) => Kind::File,
        entry::Kind::Symlink(target) => Kind::Symlink(target),
        entry::Kind::Special(agent::Special { r#type, major, minor }) => {
            Kind::Special { mode: r#type, major, minor }
        }
        entry::Kind::Again(link) => Kind::Again(link),
    };
    Ok(Entry { name: from.name, kind, link: from.link })
}

fn read_attributes(from: agent::Attributes) -> Result<Attributes> {
    let time = |time: Option<Timestamp>| {
        let Timestamp { seconds, nanos } = time.ok_or_else(bad)?;
        Ok::<_, Error>((seconds, u32::try_from(nanos).map_err(|_| bad())?))
    };
    Ok(Attributes {
        mode: from.mode,
        owner: from.owner,
        group: from.group,
        accessed: time(from.accessed)?,
        modified: time(from.modified)?,
        size: from.size,
        extended: from.extended.into_iter().map(|one| (one.name, one.value)).collect(),
    })
}

pub(super) fn bad() -> Error {
    Error::Corrupt("an item that is none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_read() {
        let entry = |kind, link| Step::Begin(Entry { name: b"no \xff text".to_vec(), kind, link });
        let attributes = Attributes {
            mode: 0o100_644,
            owner: 1,
            group: 2,
            accessed: (-1, 999_999_999),
            modified: (1 << 40, 7),
            size: 1 << 50,
            extended: vec![(b"user.x".to_vec(), vec![0, 255])],
        };
        for sent in [
            entry(Kind::Directory, None),
            entry(Kind::File, Some(u64::MAX)),
            entry(Kind::Symlink(b"/to".to_vec()), None),
            entry(Kind::Special { mode: 0o020_000, major: 1, minor: 3 }, Some(0)),
            entry(Kind::Again(7), None),
            Step::End(attributes),
        ] {
            match read(step(sent.clone())).unwrap() {
                Received::Step(read) => assert_eq!(read, sent),
                Received::Data(_) => panic!("{sent:?}"),
            }
        }
        let half =
            |kind| Item { item: Some(item::Item::Begin(agent::Entry { kind, ..agent::Entry::default() })) };
        let end = Item { item: Some(item::Item::End(agent::Attributes::default())) };
        for bad in [Item::default(), half(None), end] {
            assert!(matches!(read(bad), Err(Error::Corrupt(_))));
        }
    }
}
