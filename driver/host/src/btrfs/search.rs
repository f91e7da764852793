//! Looking at the trees of a file system, in which btrfs keeps everything: it needs `CAP_SYS_ADMIN`.

use rustix::io::Errno;

use crate::dir::Dir;
use crate::error::{Error, Result, failed};
use crate::sys::btrfs::{SearchKey, TreeSearch, tree_search};

/// What stands before each item: transaction, object, offset, kind and length, as this machine has numbers.
const HEADER: usize = 32;

/// The items of one kind, of objects and offsets from the first to the second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) tree: u64,
    pub(super) objects: (u64, u64),
    pub(super) kind: u32,
    pub(super) offsets: (u64, u64),
}

/// An item of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item<'a> {
    pub(super) object: u64,
    pub(super) kind: u32,
    pub(super) offset: u64,
    /// As it is on the disk: numbers are little-endian.
    pub(super) data: &'a [u8],
}

impl Item<'_> {
    /// The number of this position in the item's data; 0 beyond their end, as items of older kernels are shorter.
    pub(super) fn number(&self, position: usize) -> u64 {
        let at = position * size_of::<u64>();
        let bytes = self.data.get(at..at + size_of::<u64>()).and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    }
}

/// Calls `with` for every item of a range, in order. A tree that is not there has none: the answer is `false`.
pub(super) fn search(anywhere: &Dir, range: Range, mut with: impl FnMut(Item<'_>)) -> Result<bool> {
    let mut key = SearchKey::default();
    (key.tree, key.most_transaction) = (range.tree, u64::MAX);
    (key.least_object, key.most_object) = range.objects;
    (key.least_kind, key.most_kind) = (range.kind, range.kind);
    (key.least_offset, key.most_offset) = range.offsets;
    loop {
        key.count = u32::MAX;
        let mut found = TreeSearch { key, items: [0; 3992] };
        match tree_search(anywhere, &mut found) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(failed("search the file system of", anywhere.path())(error)),
        }
        let items = parse(&found.items, found.key.count).ok_or_else(|| Error::Unexpected {
            path: anywhere.path().to_owned(),
            problem: "lies on a btrfs that answers a search with what makes no sense".into(),
        })?;
        let Some(last) = items.last() else { return Ok(true) };
        let Some(next) = after(last) else { return Ok(true) };
        // A range of keys has items of other kinds, too.
        let (first, most) = range.offsets;
        let wanted = |item: &&Item<'_>| item.kind == range.kind && (first..=most).contains(&item.offset);
        items.iter().filter(wanted).copied().for_each(&mut with);
        (key.least_object, key.least_kind, key.least_offset) = next;
    }
}

/// The key that comes after an item's.
fn after(item: &Item<'_>) -> Option<(u64, u32, u64)> {
    match item.offset.checked_add(1) {
        Some(offset) => Some((item.object, item.kind, offset)),
        None => match item.kind.checked_add(1) {
            Some(kind) => Some((item.object, kind, 0)),
            None => item.object.checked_add(1).map(|object| (object, 0, 0)),
        },
    }
}

/// Reads what a search has found.
fn parse(bytes: &[u8], count: u32) -> Option<Vec<Item<'_>>> {
    let mut rest = bytes;
    let mut items = Vec::new();
    for _ in 0..count {
        let (header, tail) = rest.split_at_checked(HEADER)?;
        let long = |at: usize| Some(u64::from_ne_bytes(header.get(at..at + 8)?.try_into().ok()?));
        let short = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let (data, tail) = tail.split_at_checked(usize::try_from(short(28)?).ok()?)?;
        items.push(Item { object: long(8)?, offset: long(16)?, kind: short(24)?, data });
        rest = tail;
    }
    Some(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(object: u64, kind: u32, offset: u64, data: &[u8]) -> Vec<u8> {
        let length = u32::try_from(data.len()).unwrap();
        let mut bytes = 7_u64.to_ne_bytes().to_vec();
        bytes.extend(object.to_ne_bytes());
        bytes.extend(offset.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(length.to_ne_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn items_of_any_length_are_read_and_no_byte_beyond_them() {
        let data: Vec<u8> = [1_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat();
        let mut bytes = encoded(5, 240, 6, &data);
        bytes.extend(encoded(8, 242, 9, &[]));
        let items = parse(&bytes, 2).unwrap();
        assert_eq!(items[0], Item { object: 5, kind: 240, offset: 6, data: &data });
        assert_eq!((items[0].number(0), items[0].number(1), items[0].number(2)), (1, 2, 0));
        assert_eq!((items[1].object, items[1].data.len(), items[1].number(0)), (8, 0, 0));
        assert_eq!(parse(&bytes, 1).unwrap().len(), 1);
        assert_eq!(parse(&bytes, 3), None);
        assert_eq!(parse(&bytes[..bytes.len() - 1], 2), None);
        assert_eq!(parse(&bytes[..40], 1), None);
    }

    #[test]
    fn keys_follow_one_another_to_the_last() {
        let max = u64::MAX;
        for (object, kind, offset, expected) in [
            (1, 2, 3, Some((1, 2, 4))),
            (1, 2, max, Some((1, 3, 0))),
            (1, u32::MAX, max, Some((2, 0, 0))),
            (max, u32::MAX, max, None),
        ] {
            assert_eq!(after(&Item { object, kind, offset, data: &[] }), expected);
        }
    }
}
