//! What happens while no part dies. These tests share the cluster and run side by side.

mod bad_input;
mod block;
mod copies;
mod deletion;
mod growth;
mod main_job;
mod space;
