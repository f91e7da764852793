//! The connections to the agents: one task for each keeps the index up to date.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dunnage_csi::agent::agent_client::AgentClient;
use dunnage_csi::agent::{AgentList, CopyHint, DescribeRequest, DescribeResponse, FenceRequest};
use dunnage_csi::tls::{self, Material};
use dunnage_csi::uds::MAX_MESSAGE;
use tokio::task::AbortHandle;
use tonic::Status;
use tonic::transport::Channel;
use tracing::{debug, info, warn};

use super::index::{Fence, Index};
use super::metrics::RouterMetrics;
use crate::error::{Error, Result};
use crate::id::{PoolId, VolumeId};
use crate::status::chain;

/// For the first message of an agent, and for a fence.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const BACK_OFF: Duration = Duration::from_millis(200);
const MAX_BACK_OFF: Duration = Duration::from_secs(10);
/// How long an empty list may be just the list of a watch that has not begun.
const EMPTY_FOR: Duration = Duration::from_secs(5);

/// All agents of the backend. Clones share them.
#[derive(Clone)]
pub(crate) struct Agents(Arc<Shared>);

struct Shared {
    driver: String,
    material: Arc<Material>,
    metrics: RouterMetrics,
    state: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    index: Index,
    links: HashMap<String, Link>,
    /// When the first list came.
    announced: Option<Instant>,
    /// Numbers the links, so that a task whose link was replaced changes nothing more.
    next: u64,
}

struct Link {
    number: u64,
    address: SocketAddr,
    channel: Channel,
    task: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Agents {
    pub(crate) fn new(driver: String, material: Arc<Material>, metrics: RouterMetrics) -> Self {
        Self(Arc::new(Shared { driver, material, metrics, state: Mutex::default() }))
    }

    /// Takes a new list in place of the old one. Agents that are in both at the same address keep their connection.
    pub(crate) fn announce(&self, list: AgentList) {
        let mut wanted = HashMap::new();
        for agent in list.agents {
            match agent.address.parse::<SocketAddr>() {
                Ok(address) => drop(wanted.insert(agent.node, address)),
                Err(error) => {
                    warn!(node = %agent.node, address = %agent.address, %error, "ignored an agent");
                }
            }
        }
        let given_up = list.given_up_pools.iter().filter_map(|pool| pool.parse().ok()).collect();
        let mut state = self.lock();
        state.announced.get_or_insert_with(Instant::now);
        state.links.retain(|node, link| wanted.get(node) == Some(&link.address));
        state.index.announce(&wanted.keys().cloned().collect::<BTreeSet<_>>(), given_up);
        for (node, address) in wanted {
            if !state.links.contains_key(&node) {
                state.index.moved(&node);
                let link = self.link(&mut state, &node, address);
                state.links.insert(node, link);
            }
        }
        self.count(&state);
    }

    /// Asks something of the index.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&Index) -> T) -> T {
        question(&self.lock().index)
    }

    /// Tells the index something.
    pub(crate) fn tell(&self, news: impl FnOnce(&mut Index)) {
        news(&mut self.lock().index);
    }

    /// The node and the connection to ask about a pool.
    pub(crate) fn route(&self, pool: &PoolId) -> Result<(String, Channel)> {
        let state = self.lock();
        let node = state.index.route(pool)?;
        let link = state.links.get(node).ok_or_else(|| {
            Error::Unavailable(format!("the agent on node {node}, which has pool {pool}, is being replaced"))
        })?;
        Ok((node.to_owned(), link.channel.clone()))
    }

    /// Where the data of a source are to be had for a volume, and the ticket for them.
    pub(crate) fn hint(&self, source: &str, from: &PoolId, target: &VolumeId) -> Result<CopyHint> {
        let address = {
            let state = self.lock();
            let node = state.index.route(from)?;
            let replaced = || Error::Unavailable(format!("the agent on node {node} is being replaced"));
            state.links.get(node).ok_or_else(replaced)?.address
        };
        let ticket = self.0.material.issue_ticket(source, target.as_str(), SystemTime::now());
        let ticket = ticket.map_err(|error| Error::Unavailable(chain(&error)))?;
        Ok(CopyHint { address: address.to_string(), ticket: Some(ticket) })
    }

    /// Whether calls can be answered, or why not yet.
    pub(crate) fn ready(&self) -> Result<()> {
        let state = self.lock();
        let reason = match state.announced {
            _ if state.index.settled() => return Ok(()),
            Some(since) if state.links.is_empty() && since.elapsed() >= EMPTY_FOR => return Ok(()),
            None => "no list of the agents has come yet",
            Some(_) if state.links.is_empty() => "the list of the agents is still empty",
            Some(_) => "still connecting to the agents",
        };
        Err(Error::Unavailable(reason.to_owned()))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, state: &Inner) {
        self.0.metrics.agents(state.index.agents(), state.index.connected());
    }

    fn link(&self, state: &mut Inner, node: &str, address: SocketAddr) -> Link {
        let number = state.next;
        state.next += 1;
        let channel = tls::connect(address, Arc::clone(&self.0.material), tls::AGENT);
        let follower =
            Follower { agents: self.clone(), number, node: node.to_owned(), channel: channel.clone() };
        let task = tokio::spawn(follower.run()).abort_handle();
        Link { number, address, channel, task }
    }

    fn fence(&self, Fence { node, reason }: Fence) {
        let Some(channel) = self.lock().links.get(&node).map(|link| link.channel.clone()) else { return };
        warn!(%node, reason, "fencing an agent");
        tokio::spawn(async move {
            let mut request = tonic::Request::new(FenceRequest { fenced: true, reason });
            request.set_timeout(ANSWER_LIMIT);
            let fenced = tokio::time::timeout(ANSWER_LIMIT, AgentClient::new(channel).fence(request)).await;
            // Calls are refused here all the same, and the agent's next message brings the order again.
            match fenced {
                Ok(Ok(_)) => {}
                Ok(Err(status)) => warn!(%node, %status, "cannot fence an agent"),
                Err(_) => warn!(%node, "cannot fence an agent: no answer"),
            }
        });
    }
}

/// Keeps the index in step with one agent.
struct Follower {
    agents: Agents,
    number: u64,
    node: String,
    channel: Channel,
}

impl Follower {
    async fn run(self) {
        let jitter = RandomState::new();
        let mut failures = 0;
        loop {
            let status = self.follow(&mut failures).await;
            self.update(|index| {
                index.lost(&self.node);
                Vec::new()
            });
            failures += 1;
            if failures == 1 {
                warn!(node = %self.node, %status, "lost the agent");
            } else {
                debug!(node = %self.node, %status, failures, "cannot reach the agent");
            }
            tokio::time::sleep(back_off(failures, jitter.hash_one(failures))).await;
        }
    }

    /// Follows the agent until something breaks, and says what.
    async fn follow(&self, failures: &mut u32) -> Status {
        let mut client = AgentClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let first = async {
            let mut stream = client.describe(DescribeRequest {}).await?.into_inner();
            Ok((stream.message().await?, stream))
        };
        let (mut message, mut stream) = match tokio::time::timeout(ANSWER_LIMIT, first).await {
            Ok(Ok(first)) => first,
            Ok(Err(status)) => return status,
            Err(_) => return Status::deadline_exceeded("the agent did not describe itself"),
        };
        while let Some(said) = message {
            if let Err(stranger) = self.check(&said) {
                return stranger;
            }
            if std::mem::take(failures) > 0 || !self.agents.ask(|index| index.is_connected(&self.node)) {
                info!(node = %self.node, version = %said.version, "connected to the agent");
            }
            self.update(|index| index.describe(&self.node, said));
            // No limit: a change may be days away, and keep-alive notices a dead node.
            message = match stream.message().await {
                Ok(message) => message,
                Err(status) => return status,
            };
        }
        Status::unavailable("the agent has ended the connection")
    }

    /// A pod's address may by now be another pod's.
    fn check(&self, said: &DescribeResponse) -> std::result::Result<(), Status> {
        if said.node == self.node && said.driver == self.agents.0.driver {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "the agent there is of node {} and driver {}, not of node {} and driver {}",
            said.node, said.driver, self.node, self.agents.0.driver
        )))
    }

    fn update(&self, news: impl FnOnce(&mut Index) -> Vec<Fence>) {
        let mut state = self.agents.lock();
        if state.links.get(&self.node).is_none_or(|link| link.number != self.number) {
            return;
        }
        let fences = news(&mut state.index);
        self.agents.count(&state);
        drop(state);
        for fence in fences {
            self.agents.fence(fence);
        }
    }
}

/// Doubles up to a limit; `random` takes off up to half, so that the agents of a restarted router do not come in step.
fn back_off(failures: u32, random: u64) -> Duration {
    let full = BACK_OFF.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(MAX_BACK_OFF);
    let kept = 1024 - u32::try_from(random % 512).unwrap_or(0);
    full * kept / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_its_limit_and_is_never_less_than_half() {
        for (failures, full) in [(1, 200), (2, 400), (3, 800), (6, 6400), (7, 10_000), (60, 10_000)] {
            let full = Duration::from_millis(full);
            assert_eq!(back_off(failures, 0), full, "{failures}");
            for random in [1, 511, 512, u64::MAX] {
                let pause = back_off(failures, random);
                assert!(full / 2 <= pause && pause <= full, "{failures} {random}: {pause:?}");
            }
        }
    }
}
