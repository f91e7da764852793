//! The StorageBackend custom resource: types, defaults, validation rules and conditions.
