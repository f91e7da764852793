//! The attributes that a volume can be given while it is in use (`mutable_parameters`, which Kubernetes has from a
//! `VolumeAttributesClass`): pure.

use std::collections::HashMap;

use super::wanted::check_known;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::record::{Compression, Content, Record};

/// What a parameter is to its author.
const CLASS: &str = "VolumeAttributesClass parameter";

/// What a request names. What it does not name stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::node) struct Attributes {
    compression: Option<Compression>,
}

impl Attributes {
    /// Reads all of them, or refuses all: one that the engine does not understand, or that cannot have its value.
    pub(in crate::node) fn parse(parameters: &HashMap<String, String>, engine: &dyn Engine) -> Result<Self> {
        check_known(CLASS, parameters, engine.mutable_parameters())?;
        let compression = parameters.get("compression").map(|value| {
            Compression::named(value).ok_or_else(|| {
                let allowed: Vec<_> = Compression::ALL.into_iter().map(Compression::name).collect();
                Error::Invalid(format!("{CLASS} compression is {value:?}: it may be {}", allowed.join(", ")))
            })
        });
        Ok(Self { compression: compression.transpose()? })
    }

    /// A content with these attributes. What cannot have one is never asked for it: the engine would not know it.
    pub(in crate::node) fn given_to(self, mut content: Content) -> Content {
        if let Content::Subvolume { compression } = &mut content {
            *compression = self.compression.or(*compression);
        }
        content
    }

    /// Whether a volume has all of them.
    pub(in crate::node) fn check(self, record: &Record) -> Result<()> {
        let Content::Subvolume { compression: has } = record.content else { return Ok(()) };
        if self.given_to(record.content) == record.content {
            return Ok(());
        }
        let name = |compression: Option<Compression>| compression.map_or("not set", Compression::name);
        Err(Error::Conflict {
            id: record.id.to_string(),
            difference: format!("its compression is {}, asked is {}", name(has), name(self.compression)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineKind;
    use crate::id::VolumeId;
    use crate::overcommit::Overcommit;
    use crate::record::Allocation;

    fn parse(engine: EngineKind, parameters: &[(&str, &str)]) -> Result<Attributes> {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Attributes::parse(&parameters.collect(), engine.engine(Overcommit::default()).as_ref())
    }

    #[test]
    fn what_an_engine_cannot_change_is_named_with_what_it_can() {
        use EngineKind::{Btrfs, Directory, LoopFile};
        for (engine, parameters, says) in [
            (Btrfs, vec![("compression", "gzip")], r#""gzip": it may be zstd, lzo, zlib, none"#),
            (
                Btrfs,
                vec![("compression", "zstd"), ("iops", "7")],
                r#""iops" is unknown: allowed are compression and"#,
            ),
            (Btrfs, vec![("compression", "")], r#""": it may be"#),
            (Directory, vec![("compression", "zstd")], r#""compression" is unknown: allowed are only those"#),
            (LoopFile, vec![("compression", "zstd")], r#""compression" is unknown: allowed are only those"#),
        ] {
            let error = parse(engine, &parameters).unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error:?}");
            assert!(error.to_string().contains(says), "{error}");
        }
        let informed = [("csi.storage.k8s.io/pvc/name", "a")];
        for engine in [Btrfs, Directory, LoopFile] {
            assert_eq!(parse(engine, &informed).unwrap(), Attributes::default());
        }
    }

    #[test]
    fn what_is_named_changes_and_the_rest_stays() {
        let subvolume = |compression| Content::Subvolume { compression };
        let (zstd, lzo) = (Some(Compression::Zstd), Some(Compression::Lzo));
        let block = Content::Block { allocation: Allocation::Thick };
        for (asked, has, becomes) in [
            (None, subvolume(None), subvolume(None)),
            (None, subvolume(zstd), subvolume(zstd)),
            (zstd, subvolume(None), subvolume(zstd)),
            (lzo, subvolume(zstd), subvolume(lzo)),
            (None, block, block),
        ] {
            let attributes = Attributes { compression: asked };
            assert_eq!(attributes.given_to(has), becomes);
            let id = VolumeId::make(&"0123456789abcdef".parse().unwrap(), "pvc-1");
            let record = Record {
                id,
                name: "pvc-1".into(),
                capacity_bytes: 1,
                content: has,
                published_node: None,
                source: None,
                inline: None,
            };
            let checked = attributes.check(&record);
            assert_eq!(checked.is_ok(), has == becomes, "{asked:?} {has:?}");
            assert!(matches!(checked, Ok(()) | Err(Error::Conflict { .. })));
        }
    }
}
