//! What a `CreateVolume` asks for, checked before anything is done: pure.

use std::collections::HashMap;
use std::mem::discriminant;

use dunnage_csi::v1::{CreateVolumeRequest, TopologyRequirement};

use crate::capability::{self, Capability};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::id::PoolId;
use crate::record::{Allocation, Content, Record, Source};
use crate::size::{Range, range};

use super::attributes::Attributes;
use super::source::same_source;

/// The provisioner passes these on for information (`--extra-create-metadata`, class settings of its own).
pub(in crate::node) const INFORMATION: &str = "csi.storage.k8s.io/";

/// What a parameter is to its author.
pub(super) const CLASS: &str = "StorageClass parameter";

/// Whether a claim is refused rather than served by a volume that can outgrow its size.
const REQUIRE_LIMIT: &str = "requireLimit";

/// Twice what CSI demands to be taken.
const LONGEST_NAME: usize = 256;

/// A checked request.
#[derive(Debug)]
pub(in crate::node) struct Wanted {
    pub(in crate::node) name: String,
    pub(in crate::node) range: Range,
    pub(in crate::node) content: Content,
    attributes: Attributes,
    /// Nothing is to be made whose size is not a hard limit.
    pub(super) require_limit: bool,
    pub(in crate::node) source: Option<Source>,
    /// Whether the file system is that of the source, for none is asked for.
    takes_sources: bool,
}

impl Wanted {
    pub(super) fn parse(request: &CreateVolumeRequest, engine: &dyn Engine) -> Result<Self> {
        let name = request.name.clone();
        check_name(&name)?;
        let capabilities = capability::parse_all(&request.volume_capabilities)?;
        let allocation = allocation(&request.parameters, engine)?.unwrap_or_default();
        let attributes = Attributes::parse(&request.mutable_parameters, engine)?;
        let range = range(request.capacity_range.as_ref())?;
        let content = attributes.given_to(content(&capabilities, allocation, engine)?);
        let require_limit = require_limit(CLASS, &request.parameters)?;
        // Last: that it is not there is said only of a request that is right otherwise.
        let source = Source::parse(request.volume_content_source.as_ref())?;
        let takes_sources = source.is_some() && capabilities[0].fs_type.is_empty();
        Ok(Self { name, range, content, attributes, require_limit, source, takes_sources })
    }

    /// What the volume is with data of this content.
    pub(in crate::node) fn applied_to(&self, data: Content) -> Content {
        self.attributes.given_to(data.allocated(self.content.allocation()))
    }

    /// An existing volume of this name, if it is what is asked for.
    pub(in crate::node) fn matches(&self, record: Record) -> Result<Record> {
        let Range { required, limit } = self.range;
        let size = record.capacity_bytes;
        if size < required || size > limit {
            return Err(Error::Conflict {
                id: record.id.to_string(),
                difference: format!("it has {size} bytes, asked are {required} to {limit}"),
            });
        }
        same_source(&record, self.source.as_ref())?;
        self.check_content(&record).map(|()| record)
    }

    /// Whether a volume consists of what is asked for.
    pub(in crate::node) fn check_content(&self, record: &Record) -> Result<()> {
        self.attributes.check(record)?;
        if self.takes_sources && discriminant(&record.content) == discriminant(&self.content) {
            return Ok(());
        }
        same_content(record, self.content)
    }
}

/// Refuses names that CSI does not allow, and longer ones than it demands.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::Missing { field: "name" });
    }
    if name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        return Err(Error::Invalid(format!(
            "name has control characters or more than {LONGEST_NAME} bytes: {name:?}"
        )));
    }
    Ok(())
}

/// What all capabilities together need.
fn content(capabilities: &[Capability], allocation: Allocation, engine: &dyn Engine) -> Result<Content> {
    let mut contents = capabilities.iter().map(|capability| engine.content(capability, allocation));
    let first = contents.next().ok_or(Error::Missing { field: "volume_capabilities" })?;
    contents.try_fold(first?, |first, next| next.map(|_| first))
}

/// Whether a volume consists of what is asked, however far its format is.
pub(in crate::node) fn same_content(record: &Record, asked: Content) -> Result<()> {
    let same = match (record.content, asked) {
        (Content::Image { fs_type: has, .. }, Content::Image { fs_type: asked, .. }) => has == asked,
        (has, asked) => discriminant(&has) == discriminant(&asked),
    };
    let (has, wants) = (record.content.allocation(), asked.allocation());
    if same && has == wants {
        return Ok(());
    }
    if same {
        let difference = format!("it is {}, asked is {}", has.name(), wants.name());
        return Err(Error::Conflict { id: record.id.to_string(), difference });
    }
    let name = |content| match content {
        Content::Directory => "a directory",
        Content::Subvolume { .. } => "a subvolume",
        Content::Image { fs_type, .. } => fs_type.name(),
        Content::Block { .. } => "a block device",
    };
    Err(Error::Conflict {
        id: record.id.to_string(),
        difference: format!("it is {}, asked is {}", name(record.content), name(asked)),
    })
}

/// Whether a volume can be used so.
pub(in crate::node) fn check_use(
    record: &Record,
    capability: &Capability,
    engine: &dyn Engine,
) -> Result<()> {
    let mut capability = capability.clone();
    // Any file system will do, and so the one that is there; its options are what is checked.
    if let (true, Content::Image { fs_type, .. }) = (capability.fs_type.is_empty(), record.content) {
        fs_type.name().clone_into(&mut capability.fs_type);
    }
    same_content(record, engine.content(&capability, record.content.allocation())?)
}

/// What the class says about the allocation. Refuses what the engine does not understand.
pub(super) fn allocation(
    parameters: &HashMap<String, String>,
    engine: &dyn Engine,
) -> Result<Option<Allocation>> {
    check_known(CLASS, parameters, engine.parameters())?;
    allocation_of(CLASS, parameters)
}

/// Reads all that a class can say.
pub(crate) fn read_parameters(parameters: &HashMap<String, String>, engine: &dyn Engine) -> Result<()> {
    allocation(parameters, engine)?;
    require_limit(CLASS, parameters).map(drop)
}

/// A misspelt parameter must not be ignored.
pub(in crate::node) fn check_known(
    noun: &str,
    parameters: &HashMap<String, String>,
    known: &[&str],
) -> Result<()> {
    let unknown = |key: &&String| !key.starts_with(INFORMATION) && !known.contains(&key.as_str());
    match parameters.keys().filter(unknown).min() {
        None => Ok(()),
        Some(key) => {
            let known =
                if known.is_empty() { "only".to_owned() } else { format!("{} and", known.join(", ")) };
            Err(Error::Invalid(format!(
                "{noun} {key:?} is unknown: allowed are {known} those that begin with {INFORMATION}"
            )))
        }
    }
}

pub(in crate::node) fn allocation_of(
    noun: &str,
    parameters: &HashMap<String, String>,
) -> Result<Option<Allocation>> {
    let Some(value) = parameters.get("allocation") else { return Ok(None) };
    Allocation::named(value)
        .map(Some)
        .ok_or_else(|| Error::Invalid(format!("{noun} allocation is {value:?}: it may be thick or sparse")))
}

/// Whether only a volume is wanted that cannot outgrow its size.
pub(in crate::node) fn require_limit(noun: &str, parameters: &HashMap<String, String>) -> Result<bool> {
    match parameters.get(REQUIRE_LIMIT).map(String::as_str) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            Err(Error::Invalid(format!("{noun} {REQUIRE_LIMIT} is {other:?}: it may be true or false")))
        }
    }
}

/// Whether a volume's allocation is what the class says, if it says anything.
pub(super) fn check_allocation(
    record: &Record,
    parameters: &HashMap<String, String>,
    engine: &dyn Engine,
) -> Result<()> {
    let has = record.content.allocation();
    match allocation(parameters, engine)? {
        Some(asked) if asked != has => Err(Error::Conflict {
            id: record.id.to_string(),
            difference: format!("it is {}, asked is {}", has.name(), asked.name()),
        }),
        _ => Ok(()),
    }
}

/// The claim that the volume is for, as far as the provisioner tells.
pub(super) fn claim(parameters: &HashMap<String, String>) -> String {
    let of = |key: &str| parameters.get(&format!("{INFORMATION}pvc/{key}")).map_or("", String::as_str);
    match (of("namespace"), of("name")) {
        (_, "") => String::new(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

/// Whether a volume on this pool is what the topology asks for.
pub(super) fn check_topology(asked: Option<&TopologyRequirement>, key: &str, pool: &PoolId) -> Result<()> {
    let Some(asked) = asked else { return Ok(()) };
    let allowed = if asked.requisite.is_empty() { &asked.preferred } else { &asked.requisite };
    let here =
        allowed.iter().any(|topology| topology.segments.get(key).is_some_and(|id| id == pool.as_str()));
    if allowed.is_empty() || here {
        return Ok(());
    }
    Err(Error::Unreachable { pool: pool.to_string() })
}

#[cfg(test)]
mod tests;
