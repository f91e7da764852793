//! The data that a new volume begins with.

use dunnage_csi::v1::VolumeContentSource;

use crate::error::{Error, Result};
use crate::id::PoolId;
use crate::locks::Guard;
use crate::node::Driver;
use crate::record::{Content, Record, Source};
use crate::size::Range;
use crate::store::{Origin, Store};
use std::sync::Arc;

/// A source that was found, and is kept from being deleted.
pub(super) struct Found {
    pub(super) origin: Origin,
    /// What a volume made from it consists of.
    pub(super) content: Content,
    /// The least size of such a volume.
    pub(super) bytes: u64,
    _guard: Guard,
}

impl Driver {
    /// Finds the source of a new volume on this pool.
    pub(super) fn find(&self, source: &Source, store: &Arc<Store>) -> Result<Found> {
        check_pool(source, &store.id)?;
        match source {
            Source::Snapshot(id) => {
                let guard = self.share_snapshot(id)?;
                let snapshot =
                    store.snapshot(id).ok_or_else(|| Error::NoSuchSnapshot { id: id.to_string() })?;
                let origin = Origin::Snapshot(store.snapshot_dir(id)?);
                Ok(Found { origin, content: snapshot.content, bytes: snapshot.size_bytes, _guard: guard })
            }
            Source::Volume(id) => {
                let guard = self.lock_data(id)?;
                let volume = store.volume(id)?;
                let Record { content, capacity_bytes, .. } = volume.record;
                let origin = Origin::Volume(volume);
                Ok(Found { origin, content: content.copied(), bytes: capacity_bytes, _guard: guard })
            }
        }
    }
}

fn check_pool(source: &Source, here: &PoolId) -> Result<()> {
    let pool = source.pool();
    if pool == *here {
        return Ok(());
    }
    Err(Error::SourceElsewhere { pool: pool.to_string(), asked: format!("pool {here}") })
}

/// The sizes that a volume with such data may have.
pub(in crate::node) fn at_least(bytes: u64, range: Range) -> Result<Range> {
    let Range { required, limit } = range;
    if required != 0 && required < bytes || limit < bytes {
        return Err(Error::OutOfRange(format!(
            "the data source has {bytes} bytes: a volume made from it cannot be smaller, and asked are {required} to \
             {limit}"
        )));
    }
    Ok(Range { required: required.max(bytes), limit })
}

/// The source of a repeated request must be that of the volume.
pub(super) fn same_source(record: &Record, asked: Option<&Source>) -> Result<()> {
    if record.source.as_ref() == asked {
        return Ok(());
    }
    let name = |source: Option<&Source>| source.map_or("nothing".to_owned(), Source::to_string);
    Err(Error::Conflict {
        id: record.id.to_string(),
        difference: format!("it was made from {}, asked is {}", name(record.source.as_ref()), name(asked)),
    })
}

/// The source as an answer has it.
pub(super) fn told(record: &Record) -> Option<VolumeContentSource> {
    record.source.as_ref().map(Source::to_csi)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{SnapshotId, VolumeId};

    const ANY: u64 = u64::MAX;

    #[test]
    fn a_volume_is_no_smaller_than_its_source() {
        let range = |required, limit| Range { required, limit };
        for (required, limit, expected) in [
            (0, ANY, Some(range(100, ANY))),
            (100, ANY, Some(range(100, ANY))),
            (150, 200, Some(range(150, 200))),
            (0, 100, Some(range(100, 100))),
            (99, ANY, None),
            (0, 99, None),
            (50, 99, None),
        ] {
            let got = at_least(100, range(required, limit));
            assert!(matches!(got, Ok(_) | Err(Error::OutOfRange(_))), "{got:?}");
            assert_eq!(got.ok(), expected, "{required} {limit}");
        }
    }

    #[test]
    fn a_repeated_request_names_the_same_source() {
        let pool: PoolId = "0123456789abcdef".parse().unwrap();
        let snapshot = Source::Snapshot(SnapshotId::make(&pool, "a"));
        let volume = Source::Volume(VolumeId::make(&pool, "a"));
        let record = |source| Record {
            id: VolumeId::make(&pool, "pvc-1"),
            name: "pvc-1".into(),
            capacity_bytes: 1,
            content: Content::Directory,
            published_node: None,
            source,
            inline: None,
        };
        for (has, asked, same) in [
            (None, None, true),
            (Some(&snapshot), Some(&snapshot), true),
            (Some(&snapshot), Some(&volume), false),
            (None, Some(&snapshot), false),
            (Some(&volume), None, false),
        ] {
            let got = same_source(&record(has.cloned()), asked);
            assert_eq!(got.is_ok(), same, "{has:?} {asked:?}");
            assert!(got.is_ok() || matches!(got, Err(Error::Conflict { .. })));
        }
    }

    #[test]
    fn a_source_on_another_pool_is_named_with_its_pool() {
        let (here, there): (PoolId, PoolId) =
            ("0123456789abcdef".parse().unwrap(), "fedcba9876543210".parse().unwrap());
        let source = Source::Snapshot(SnapshotId::make(&there, "a"));
        assert!(check_pool(&source, &there).is_ok());
        let error = check_pool(&source, &here).unwrap_err();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        assert!(error.to_string().contains("fedcba9876543210"), "{error}");
    }
}
