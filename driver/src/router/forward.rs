//! One CSI call passed on to an agent, with its deadline.

use std::time::Duration;

use dunnage_csi::agent::CopyHint;
use dunnage_csi::metadata::{COPY, UNWANTED};
use dunnage_csi::uds::MAX_MESSAGE;
use dunnage_csi::v1::controller_client::ControllerClient;
use dunnage_csi::v1::group_controller_client::GroupControllerClient;
use prost::Message as _;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tracing::debug;

use super::agents::Agents;
use super::metrics::RouterMetrics;
use crate::error::Result;
use crate::id::PoolId;

/// For callers that give no deadline.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);
const TIMEOUT: &str = "grpc-timeout";

/// What the caller waits for. When it is over, or the caller goes, tonic drops the call, and that cancels it at the
/// agent too: nothing on the way is spawned.
#[derive(Clone)]
pub(crate) struct Deadline(Option<MetadataValue<tonic::metadata::Ascii>>);

impl Deadline {
    pub(crate) fn of(metadata: &MetadataMap) -> Self {
        Self(metadata.get(TIMEOUT).cloned())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        match &self.0 {
            Some(timeout) => drop(request.metadata_mut().insert(TIMEOUT, timeout.clone())),
            None => request.set_timeout(DEFAULT_DEADLINE),
        }
        request
    }
}

/// Passes calls on to the agents of pools.
#[derive(Clone)]
pub(crate) struct Forward {
    pub(crate) agents: Agents,
    pub(crate) metrics: RouterMetrics,
}

impl Forward {
    /// Makes a call to the controller service of the agent that has the pool.
    pub(crate) async fn call<Q, A, F>(
        &self,
        pool: &PoolId,
        method: &'static str,
        deadline: &Deadline,
        message: Q,
        call: impl FnOnce(ControllerClient<Channel>, Request<Q>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let client = |channel| ControllerClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        self.pass(pool, method, deadline, message, |channel, request| call(client(channel), request)).await
    }

    /// The same with its group controller service.
    pub(crate) async fn call_group<Q, A, F>(
        &self,
        pool: &PoolId,
        method: &'static str,
        deadline: &Deadline,
        message: Q,
        call: impl FnOnce(GroupControllerClient<Channel>, Request<Q>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let client = |channel| GroupControllerClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        self.pass(pool, method, deadline, message, |channel, request| call(client(channel), request)).await
    }

    async fn pass<Q, A, F>(
        &self,
        pool: &PoolId,
        method: &'static str,
        deadline: &Deadline,
        message: Q,
        call: impl FnOnce(Channel, Request<Q>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let (node, channel) = self.agents.route(pool)?;
        let answer = call(channel, deadline.request(message)).await.map_err(|status| broken(status, &node));
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        self.metrics.called(pool, method, code);
        debug!(%node, %pool, method, ?code, "passed a call on");
        Ok(answer?.into_inner())
    }
}

/// What an agent must know beside the request.
pub(super) fn tell(metadata: &mut MetadataMap, hint: Option<CopyHint>, unwanted: bool) {
    if let Some(hint) = hint {
        metadata.insert_bin(COPY, MetadataValue::from_bytes(&hint.encode_to_vec()));
    }
    if unwanted {
        metadata.insert(UNWANTED, MetadataValue::from_static("true"));
    }
}

/// An error of the connection is told as such; the agent's own answers (they have no source) stay as they are.
fn broken(status: Status, node: &str) -> Status {
    let own = std::error::Error::source(&status).is_none();
    if own || matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled) {
        return status;
    }
    Status::unavailable(format!("lost the agent on node {node} during the call: {}", status.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_deadline_goes_along() {
        let mut incoming = MetadataMap::new();
        incoming.insert(TIMEOUT, "1500m".parse().unwrap());
        incoming.insert("authorization", "secret".parse().unwrap());
        let onward = Deadline::of(&incoming).request(());
        assert_eq!(onward.metadata().get(TIMEOUT).unwrap(), "1500m");
        assert!(onward.metadata().get("authorization").is_none());
    }

    #[test]
    fn a_call_without_a_deadline_gets_one() {
        let onward = Deadline::of(&MetadataMap::new()).request(());
        assert!(onward.metadata().get(TIMEOUT).is_some());
    }

    #[test]
    fn a_broken_connection_is_not_the_agents_answer() {
        let answer = Status::internal("disk on fire");
        assert_eq!(broken(answer, "a").code(), Code::Internal);
        let io: Box<dyn std::error::Error + Send + Sync> = Box::new(std::io::Error::other("reset"));
        let lost = broken(Status::from_error(io), "a");
        assert_eq!(lost.code(), Code::Unavailable);
        assert!(lost.message().contains("node a"), "{}", lost.message());
    }
}
