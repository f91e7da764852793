//! The service that tells the router where the agents are.

use dunnage_csi::agent::directory_server::Directory;
use dunnage_csi::agent::{AgentList, AnnounceResponse};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::agents::Agents;

/// Listens to whoever has the router's socket.
pub(crate) struct Announcements {
    pub(crate) agents: Agents,
    /// Ends the streams, which would otherwise keep the server from stopping.
    pub(crate) stop: CancellationToken,
}

#[tonic::async_trait]
impl Directory for Announcements {
    async fn announce(
        &self,
        request: Request<Streaming<AgentList>>,
    ) -> Result<Response<AnnounceResponse>, Status> {
        let mut lists = request.into_inner();
        while let Some(list) = self.stop.run_until_cancelled(lists.message()).await.transpose()?.flatten() {
            self.agents.announce(list);
        }
        Ok(Response::new(AnnounceResponse {}))
    }
}
