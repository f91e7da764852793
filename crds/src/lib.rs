//! The `StorageBackend` custom resource: types, rules, defaults and conditions, all of them pure.

pub mod backend;
pub mod conditions;
pub mod defaults;
pub mod manifest;
pub mod pools;
pub mod snapshot;
pub mod validate;

pub use backend::classes::{BindingMode, ClassState, DefaultClass, ReclaimPolicy, StorageClassSpec};
pub use backend::nodes::{KubeletDir, LabelOperator, LabelRequirement, LabelSelector, Nodes};
pub use backend::pods::{
    Amounts, ByContainer, ControllerSpec, Images, KubeApi, LeaderElection, LogFormat, LogLevel, Logging,
    PullPolicy, Resources, Tuning, Update, UpdateStrategy,
};
pub use backend::status::{
    Blocker, Capacity, NodeProblem, NodesStatus, StorageBackendStatus, Usage, Versions,
};
pub use backend::storage::{BackendType, Btrfs, Directory, FsType, LoopFile};
pub use backend::{Attach, CrossPool, Deletion, Protection, StorageBackend, StorageBackendSpec};
pub use manifest::crd_yaml;

/// The API group of everything that Dunnage defines, and the prefix of its labels and annotations.
pub const GROUP: &str = "dunnage.dev";

/// The finalizer that keeps a backend until nothing of it is in use.
pub const FINALIZER: &str = "dunnage.dev/in-use";

/// The field manager of all the operator's writes.
pub const FIELD_MANAGER: &str = "dunnage-operator";
