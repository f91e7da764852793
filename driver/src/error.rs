//! What can go wrong in a call: one variant for each way the caller should react.

use tonic::Status;

/// The error of every call; `status.rs` gives it its gRPC code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request can never succeed as it is; the text names what is wrong and what is allowed.
    #[error("{0}")]
    Invalid(String),
    #[error("{field} is missing")]
    Missing { field: &'static str },
    /// The asked size cannot be had, whatever the pool's state.
    #[error("{0}")]
    OutOfRange(String),
    #[error("volume {id} exists and differs: {difference}")]
    Conflict { id: String, difference: String },
    #[error("snapshot {id} exists and is of another volume, {source_volume}")]
    SnapshotConflict { id: String, source_volume: String },
    #[error("group snapshot {id} exists and is of other volumes: {source_volumes}")]
    GroupConflict { id: String, source_volumes: String },
    #[error("snapshot {id} is a part of group snapshot {group}: it is deleted with that, and not alone")]
    InGroup { id: String, group: String },
    #[error("no volume {id}")]
    NoSuchVolume { id: String },
    #[error("no snapshot {id}")]
    NoSuchSnapshot { id: String },
    #[error("no group snapshot {id}")]
    NoSuchGroup { id: String },
    #[error("no node {node}: {reason}")]
    NoSuchNode { node: String, reason: String },
    #[error("an operation on {id} is still running")]
    Busy { id: String },
    #[error("not enough space: {wanted} bytes wanted, {free} bytes free")]
    Full { wanted: u64, free: u64 },
    #[error("pool {pool} is not among the topologies that are asked for")]
    Unreachable { pool: String },
    /// The data are not to be copied from another pool; the scheduler is to try the node that has them.
    #[error(
        "the data source lies on pool {pool}, and the volume is asked for on {asked}: copies between pools are switched off (crossPool: Refuse)"
    )]
    SourceElsewhere { pool: String, asked: String },
    /// The state of the world forbids it; the text says what has to change first.
    #[error("{0}")]
    Precondition(String),
    /// Not now: the pool or the agent is not there.
    #[error("{0}")]
    Unavailable(String),
    /// The caller must start again, as with a page token that is no longer known.
    #[error("{0}")]
    Aborted(String),
    #[error("{0}")]
    PermissionDenied(String),
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    #[error(transparent)]
    Host(#[from] dunnage_host::Error),
    /// A record on the disk cannot be understood.
    #[error("the record of {id} is damaged")]
    Damaged { id: String, source: serde_json::Error },
    /// A stream from another agent is not what it should be.
    #[error("what came from the other node cannot be used: {0}")]
    Corrupt(String),
    #[error("the operation ended in a panic")]
    Panicked,
    /// An answer of another Dunnage, passed on as it is.
    #[error("{}", .0.message())]
    Remote(Box<Status>),
}

/// The result of every call.
pub type Result<T> = std::result::Result<T, Error>;
