//! The write-ahead journal: which volumes may exist without a PersistentVolume, kept where a restart finds it.

pub mod state;
