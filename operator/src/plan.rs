//! What a StorageBackend should look like in the cluster. Pure: no clock, no client, no environment.
