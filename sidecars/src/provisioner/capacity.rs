//! CSIStorageCapacity: tells the scheduler where there is room.

pub mod plan;
