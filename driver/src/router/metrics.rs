//! The router's metrics: agents, and calls by pool and outcome.

use dunnage_telemetry::metrics::{Metrics, code_name};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tonic::Code;

use crate::id::PoolId;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Call {
    pool: String,
    method: &'static str,
    grpc_status_code: &'static str,
}

/// Clones share the values.
#[derive(Clone, Default)]
pub(crate) struct RouterMetrics {
    agents: Gauge,
    connected: Gauge,
    calls: Family<Call, Counter>,
}

impl RouterMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let ours = Self::default();
        metrics.register(|registry| {
            registry.register("dunnage_router_agents", "Nodes that have an agent", ours.agents.clone());
            registry.register(
                "dunnage_router_agents_connected",
                "Agents that the router is connected to",
                ours.connected.clone(),
            );
            registry.register(
                "dunnage_router_calls",
                "Calls to agents by pool, method and gRPC status",
                ours.calls.clone(),
            );
        });
        ours
    }

    pub(crate) fn agents(&self, known: usize, connected: usize) {
        let count = |n| i64::try_from(n).unwrap_or(i64::MAX);
        self.agents.set(count(known));
        self.connected.set(count(connected));
    }

    pub(crate) fn called(&self, pool: &PoolId, method: &'static str, code: Code) {
        let call = Call { pool: pool.to_string(), method, grpc_status_code: code_name(code as i32) };
        self.calls.get_or_create(&call).inc();
    }
}
