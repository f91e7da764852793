//! What is written beside a volume's data: the truth about it.

use serde::{Deserialize, Serialize};

use dunnage_host::filesystem::Kind;

use crate::id::VolumeId;

mod source;

pub(crate) use source::Source;

/// The name of the record in the volume's directory.
pub(crate) const FILE: &str = "volume.json";

/// A volume, as its record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub id: VolumeId,
    /// The name of the `CreateVolume` call that made it.
    pub name: String,
    pub capacity_bytes: u64,
    pub content: Content,
    /// The node that `ControllerPublishVolume` gave it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_node: Option<String>,
    /// What its data were copied from; none when it was made empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The pod that has it in its own spec; none when it is a claim's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<Inline>,
}

/// Whose an inline volume is. Its name is kubelet's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Inline {
    /// Namespace and name, for people.
    pub pod: String,
    /// Where it is published, below kubelet's directory.
    pub target: String,
}

/// How the data lie beside the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Content {
    /// In the directory `data`.
    Directory,
    /// In the subvolume `data`.
    Subvolume {
        /// As the file system is mounted, unless it is said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        compression: Option<Compression>,
    },
    /// In the file `image`, which holds a file system.
    Image {
        #[serde(with = "kind")]
        fs_type: Kind,
        format: Format,
        #[serde(default, skip_serializing_if = "Allocation::is_thick")]
        allocation: Allocation,
    },
    /// In the file `image`, which is a pod's own to fill as it likes.
    Block {
        #[serde(default, skip_serializing_if = "Allocation::is_thick")]
        allocation: Allocation,
    },
}

impl Content {
    pub(crate) fn is_block(self) -> bool {
        matches!(self, Self::Block { .. })
    }

    /// A directory or subvolume has none, and counts as thick.
    pub(crate) fn allocation(self) -> Allocation {
        match self {
            Self::Directory | Self::Subvolume { .. } => Allocation::Thick,
            Self::Image { allocation, .. } | Self::Block { allocation } => allocation,
        }
    }
}

/// When an image takes its space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Allocation {
    /// All of it at once: a write never finds the pool full.
    #[default]
    Thick,
    /// As it is written to.
    Sparse,
}

impl Allocation {
    /// Its name as a parameter of a class.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Thick => "thick",
            Self::Sparse => "sparse",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Thick, Self::Sparse].into_iter().find(|allocation| allocation.name() == name)
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for this form")]
    fn is_thick(&self) -> bool {
        *self == Self::Thick
    }
}

/// How btrfs compresses what is written from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Compression {
    Zstd,
    Lzo,
    Zlib,
    /// Not at all, whatever the file system is mounted with.
    None,
}

impl Compression {
    pub(crate) const ALL: [Self; 4] = [Self::Zstd, Self::Lzo, Self::Zlib, Self::None];

    /// Its name as a parameter of a class, which is the kernel's too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Lzo => "lzo",
            Self::Zlib => "zlib",
            Self::None => "none",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|compression| compression.name() == name)
    }
}

/// How far an image's file system is. An image whose formatting was finished is never formatted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Format {
    /// Not begun: the image is all zeros.
    Never,
    /// Begun, perhaps cut short: it has never been mounted, so it holds nobody's data.
    Started,
    Done,
    /// A copy of a finished one, which still has its original's UUID. It has never been mounted.
    Copied,
}

mod kind {
    use super::{Deserialize, Kind};
    use serde::{Deserializer, Serializer, de::Error};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for this form")]
    pub(super) fn serialize<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(kind.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
        let name = String::deserialize(deserializer)?;
        Kind::named(&name).ok_or_else(|| D::Error::custom(format!("unknown file system {name:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> VolumeId {
        VolumeId::make(&"0123456789abcdef".parse().unwrap(), "pvc-1")
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        for content in [
            Content::Directory,
            Content::Subvolume { compression: None },
            Content::Subvolume { compression: Some(Compression::Lzo) },
            Content::Image { fs_type: Kind::Xfs, format: Format::Started, allocation: Allocation::Thick },
            Content::Image { fs_type: Kind::Btrfs, format: Format::Never, allocation: Allocation::Sparse },
            Content::Block { allocation: Allocation::Thick },
            Content::Block { allocation: Allocation::Sparse },
        ] {
            let record = Record {
                id: id(),
                name: "pvc-1".into(),
                capacity_bytes: 1 << 30,
                content,
                published_node: Some("n1".into()),
                source: Some(Source::Volume(id())),
                inline: Some(Inline { pod: "shop/cart-0".into(), target: "pods/1/mount".into() }),
            };
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record, "{text}");
        }
    }

    /// The form on the disk outlives this program: changing it needs a new format number.
    #[test]
    fn the_form_on_the_disk_stays() {
        let (thick, sparse) = (Allocation::Thick, Allocation::Sparse);
        for (form, content) in [
            (r#"{"type":"directory"}"#, Content::Directory),
            (r#"{"type":"subvolume"}"#, Content::Subvolume { compression: None }),
            (
                r#"{"type":"subvolume","compression":"zstd"}"#,
                Content::Subvolume { compression: Some(Compression::Zstd) },
            ),
            (
                r#"{"type":"subvolume","compression":"none"}"#,
                Content::Subvolume { compression: Some(Compression::None) },
            ),
            (
                r#"{"type":"image","fsType":"ext4","format":"done"}"#,
                Content::Image { fs_type: Kind::Ext4, format: Format::Done, allocation: thick },
            ),
            (
                r#"{"type":"image","fsType":"ext4","format":"never","allocation":"sparse"}"#,
                Content::Image { fs_type: Kind::Ext4, format: Format::Never, allocation: sparse },
            ),
            (r#"{"type":"block"}"#, Content::Block { allocation: thick }),
            (r#"{"type":"block","allocation":"sparse"}"#, Content::Block { allocation: sparse }),
        ] {
            let text = format!(r#"{{"id":"{}","name":"pvc-1","capacityBytes":7,"content":{form}}}"#, id());
            let record: Record = serde_json::from_str(&text).unwrap();
            assert_eq!(record.content, content);
            assert_eq!(serde_json::to_string(&record).unwrap(), text);
        }
    }
}
