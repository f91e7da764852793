//! The provisioner: makes volumes for claims, deletes them, and publishes how much room there is.

pub mod access;
pub mod args;
pub mod capacity;
pub mod claim;
pub mod context;
pub mod controller;
pub mod delete;
pub mod driver;
pub mod journal;
pub mod metrics;
pub mod names;
pub mod outcome;
pub mod params;
pub mod progress;
pub mod provision;
pub mod request;
pub mod secrets;
pub mod source;
pub mod sources;
pub mod topology;
pub mod volume;

use tokio_util::sync::CancellationToken;

use controller::{Start, Surroundings};

use crate::runtime::{Runtime, namespace};

pub use crate::runtime::Error;
pub use args::Args;

/// Serves the driver's claims and volumes until `stop`, whenever this process leads.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), Error> {
    args.check().map_err(|error| Error::Flags(error.into()))?;
    let runtime = Runtime::start(&args.standard, &args::GATES, args.timeout, stop).await?;
    let metrics = metrics::Metrics::default();
    runtime.metrics.register(|registry| metrics.register(registry));
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let lock = controller::lock(runtime.driver.name());
    let start = Start {
        driver: driver::Driver::new(runtime.driver.clone(), args.timeout),
        client: runtime.client.clone(),
        metrics,
        queue_metrics: runtime.queues.clone(),
        surroundings: Surroundings {
            namespace: variable("NAMESPACE").unwrap_or_else(|| namespace("")),
            pod: variable("POD_NAME"),
        },
        args,
    };
    runtime.run_as_leader(&lock, |stop| controller::lead(start, stop)).await
}
