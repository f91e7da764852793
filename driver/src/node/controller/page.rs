//! One page of a list: pure. The token is the last id shown, so what comes and goes shifts nothing.

use std::fmt::Display;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A page, and the token of the next one; empty at the end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page<'a, T> {
    pub(super) entries: &'a [T],
    pub(super) next: String,
}

/// Cuts a page out of entries sorted by id.
pub(super) fn page<'a, T, Id: Ord + Display + FromStr>(
    all: &'a [T],
    id: impl Fn(&T) -> &Id,
    max_entries: i32,
    token: &str,
) -> Result<Page<'a, T>> {
    let most = usize::try_from(max_entries)
        .map_err(|_| Error::Invalid(format!("max_entries is negative: {max_entries}")))?;
    let start = if token.is_empty() {
        0
    } else {
        let last: Id = token.parse().map_err(|_| {
            Error::Aborted(format!("starting_token {token:?} is none of ours: list from the start"))
        })?;
        all.partition_point(|entry| id(entry) <= &last)
    };
    let rest = &all[start..];
    if most == 0 || most >= rest.len() {
        return Ok(Page { entries: rest, next: String::new() });
    }
    let entries = &rest[..most];
    Ok(Page { entries, next: id(&entries[most - 1]).to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::VolumeId;
    use crate::record::{Content, Record};

    fn page<'a>(records: &'a [Record], max_entries: i32, token: &str) -> Result<Page<'a, Record>> {
        super::page(records, |record| &record.id, max_entries, token)
    }

    fn records(count: usize) -> Vec<Record> {
        let pool = "0123456789abcdef".parse().unwrap();
        let mut records: Vec<_> = (0..count)
            .map(|number| Record {
                id: VolumeId::make(&pool, &number.to_string()),
                name: number.to_string(),
                capacity_bytes: 1,
                content: Content::Directory,
                published_node: None,
                source: None,
                inline: None,
            })
            .collect();
        records.sort_by(|a, b| a.id.cmp(&b.id));
        records
    }

    #[test]
    fn pages_hold_everything_once_though_volumes_go_meanwhile() {
        let mut all = records(7);
        let first = page(&all, 3, "").unwrap();
        assert_eq!(first.entries, &all[..3]);
        let token = first.next;
        // The volume that the token names, and one before it.
        all.drain(1..3);
        let second = page(&all, 3, &token).unwrap();
        assert_eq!(second.entries, &all[1..4]);
        let last = page(&all, 3, &second.next).unwrap();
        assert_eq!((last.entries, last.next.as_str()), (&all[4..], ""));
    }

    #[test]
    fn bad_pages_are_refused_with_what_makes_callers_start_again() {
        let all = records(2);
        assert_eq!(page(&all, 0, "").unwrap(), Page { entries: &all[..], next: String::new() });
        assert_eq!(page(&all, 2, "").unwrap().next, "");
        assert!(matches!(page(&all, -1, ""), Err(Error::Invalid(_))));
        assert!(matches!(page(&all, 0, "x"), Err(Error::Aborted(_))));
    }
}
