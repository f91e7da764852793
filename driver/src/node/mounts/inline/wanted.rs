//! What a pod's spec asks of its inline volume: pure.

use std::collections::HashMap;

use dunnage_csi::v1::NodePublishVolumeRequest;

use crate::capability::{self, Access, Capability};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::node::controller::{INFORMATION, allocation_of, check_known, require_limit, same_content};
use crate::quantity;
use crate::record::{Content, Record};
use crate::size::{Range, choose};

/// What a parameter is to its author.
const ATTRIBUTE: &str = "volume attribute";

const SIZE: &str = "size";
const FS_TYPE: &str = "fsType";

/// A checked request.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) range: Range,
    pub(super) content: Content,
    pub(super) capability: Capability,
    /// Nothing is to be made whose size is not a hard limit.
    pub(super) require_limit: bool,
    /// The pod's namespace and name.
    pub(super) pod: String,
}

/// Whether a publish is of an inline volume.
pub(in crate::node::mounts) fn is_asked(context: &HashMap<String, String>) -> bool {
    context.get(&format!("{INFORMATION}ephemeral")).is_some_and(|value| value == "true")
}

impl Wanted {
    pub(super) fn parse(request: &NodePublishVolumeRequest, engine: &dyn Engine) -> Result<Self> {
        let attributes = &request.volume_context;
        let known = [&[SIZE, FS_TYPE][..], engine.parameters()].concat();
        check_known(ATTRIBUTE, attributes, &known)?;
        let mut capability = capability::parse(request.volume_capability.as_ref())?;
        capability.fs_type = fs_type(&capability.fs_type, attributes)?;
        if request.readonly || capability.access == Access::ReadOnly {
            capability.options = capability.options.read_only();
        }
        let allocation = allocation_of(ATTRIBUTE, attributes)?.unwrap_or_default();
        Ok(Self {
            range: Range { required: size(attributes)?, limit: u64::MAX },
            content: engine.content(&capability, allocation)?,
            capability,
            require_limit: require_limit(ATTRIBUTE, attributes)?,
            pod: pod(attributes),
        })
    }

    /// The volume that is there, if it is what is asked for.
    pub(super) fn matches(&self, record: Record, engine: &dyn Engine) -> Result<Record> {
        same_content(&record, self.content)?;
        let asked = choose(self.range, engine.sizes(self.content))?;
        if record.capacity_bytes == asked {
            return Ok(record);
        }
        Err(Error::Conflict {
            id: record.id.to_string(),
            difference: format!("it has {} bytes, asked are {asked}", record.capacity_bytes),
        })
    }
}

/// 0 when the pod leaves it open, which gives the size of a claim that does.
fn size(attributes: &HashMap<String, String>) -> Result<u64> {
    let Some(text) = attributes.get(SIZE) else { return Ok(0) };
    quantity::parse(text).filter(|bytes| *bytes > 0).ok_or_else(|| {
        Error::Invalid(format!(
            "{ATTRIBUTE} {SIZE} is {text:?}: it may be a quantity of bytes such as 500Mi or 2Gi"
        ))
    })
}

/// The pod's spec has a field of its own for the file system, and people write it among the attributes too.
fn fs_type(field: &str, attributes: &HashMap<String, String>) -> Result<String> {
    match attributes.get(FS_TYPE).map(String::as_str) {
        None | Some("") => Ok(field.to_owned()),
        Some(attribute) if field.is_empty() || field == attribute => Ok(attribute.to_owned()),
        Some(attribute) => Err(Error::Invalid(format!(
            "{ATTRIBUTE} {FS_TYPE} is {attribute:?}, and the field fsType beside the attributes is {field:?}: leave one \
             of them out"
        ))),
    }
}

fn pod(attributes: &HashMap<String, String>) -> String {
    let of = |key: &str| attributes.get(&format!("{INFORMATION}pod.{key}")).map_or("", String::as_str);
    format!("{}/{}", of("namespace"), of("name"))
}

#[cfg(test)]
mod tests;
