//! One connection to each node's agent: what it describes is kept here, and it is called through here.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dunnage_csi::agent::agent_client::AgentClient;
use dunnage_csi::agent::pool::State as WireState;
use dunnage_csi::agent::{
    DescribeRequest, DescribeResponse, FenceRequest, InitPoolRequest, RemovePoolRequest,
};
use dunnage_csi::tls::{self, Material};
use tokio::task::AbortHandle;
use tonic::transport::Channel;
use tracing::{debug, info};

use crate::certs::Leaf;
use crate::certs::secrets::fingerprint;
use crate::pools::{Described, State};

/// An agent with as many volumes as a node can hold stays far below.
const MESSAGE_LIMIT: usize = 16 << 20;
const CALL_LIMIT: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// A node pod to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub node: String,
    pub pod_uid: String,
    pub address: SocketAddr,
}

/// What an agent says, without what nobody reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub pool: Described,
    pub version: String,
    pub total_bytes: u64,
    pub available_bytes: u64,
    pub limits_enforced: bool,
    pub limits_message: String,
    /// Volume ids, sorted.
    pub volumes: Vec<String>,
    /// `namespace/name` of the pods whose inline volumes are there, sorted.
    pub inline_pods: Vec<String>,
}

/// An agent as the operator knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agent {
    Connected(Facts),
    /// Why there is no connection.
    Unreachable(String),
    /// Not tried long enough to tell.
    Connecting,
}

impl Agent {
    /// The facts of a connected agent.
    pub fn facts(&self) -> Option<&Facts> {
        match self {
            Self::Connected(facts) => Some(facts),
            Self::Unreachable(_) | Self::Connecting => None,
        }
    }
}

/// The operator's certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the operator's certificate cannot be used: delete its Secret to get a new one")]
pub struct BadMaterial(#[from] tls::Error);

/// A call to an agent did not work.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("the agent of node {0} is not connected")]
    NoAgent(String),
    #[error("the agent of node {node} refused {call}: {}", status.message())]
    Refused { node: String, call: &'static str, status: Box<tonic::Status> },
}

/// Called with a backend's name when one of its agents has news; `true` when it is more than numbers.
type OnChange = Box<dyn Fn(&str, bool) + Send + Sync>;

/// The connections to all agents of all backends.
pub struct Agents {
    backends: Mutex<HashMap<String, Backend>>,
    on_change: Arc<OnChange>,
}

#[derive(Default)]
struct Backend {
    material: Option<(String, Arc<Material>)>,
    connections: BTreeMap<String, Connection>,
}

struct Connection {
    target: Target,
    channel: Channel,
    agent: Arc<Mutex<Agent>>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Agents {
    pub fn new(on_change: impl Fn(&str, bool) + Send + Sync + 'static) -> Self {
        Self { backends: Mutex::default(), on_change: Arc::new(Box::new(on_change)) }
    }

    /// Connects to exactly these agents from now on. New certificates make new connections.
    pub fn sync(&self, backend: &str, targets: Vec<Target>, leaf: &Leaf) -> Result<(), BadMaterial> {
        let mut backends = self.lock();
        let known = backends.entry(backend.to_owned()).or_default();
        let version = fingerprint(&format!("{}{}", leaf.pair.cert, leaf.bundle));
        let material = match &known.material {
            Some((current, material)) if *current == version => Arc::clone(material),
            _ => {
                let (ca, cert, key) =
                    (leaf.bundle.as_bytes(), leaf.pair.cert.as_bytes(), leaf.pair.key.as_bytes());
                let material = Material::from_pem(ca, cert, key)?;
                known.material = Some((version, Arc::clone(&material)));
                known.connections.clear();
                material
            }
        };
        known.connections.retain(|_, connection| targets.contains(&connection.target));
        for target in targets {
            if !known.connections.contains_key(&target.node) {
                let connection = self.connect(backend, target, &material);
                known.connections.insert(connection.target.node.clone(), connection);
            }
        }
        Ok(())
    }

    /// Drops all connections of a backend.
    pub fn forget(&self, backend: &str) {
        self.lock().remove(backend);
    }

    /// All agents of a backend, by node.
    pub fn of(&self, backend: &str) -> BTreeMap<String, Agent> {
        let backends = self.lock();
        let connections = backends.get(backend).map(|backend| &backend.connections);
        let agent =
            |connection: &Connection| connection.agent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        connections
            .into_iter()
            .flatten()
            .map(|(node, connection)| (node.clone(), agent(connection)))
            .collect()
    }

    /// Asks an agent to make its pool.
    pub async fn init_pool(
        &self,
        backend: &str,
        node: &str,
        pool_id: &str,
        uid: &str,
    ) -> Result<(), CallError> {
        let mut client = self.client(backend, node)?;
        let request = InitPoolRequest { pool_id: pool_id.to_owned(), backend_uid: uid.to_owned() };
        client.init_pool(bounded(request)).await.map(drop).map_err(refused(node, "InitPool"))
    }

    /// Fences a pool or lifts its fence.
    pub async fn fence(
        &self,
        backend: &str,
        node: &str,
        fenced: bool,
        reason: &str,
    ) -> Result<(), CallError> {
        let mut client = self.client(backend, node)?;
        let request = FenceRequest { fenced, reason: reason.to_owned() };
        client.fence(bounded(request)).await.map(drop).map_err(refused(node, "Fence"))
    }

    /// Asks an agent to give up its empty pool.
    pub async fn remove_pool(&self, backend: &str, node: &str, pool_id: &str) -> Result<(), CallError> {
        let mut client = self.client(backend, node)?;
        let request = RemovePoolRequest { pool_id: pool_id.to_owned() };
        client.remove_pool(bounded(request)).await.map(drop).map_err(refused(node, "RemovePool"))
    }

    fn client(&self, backend: &str, node: &str) -> Result<AgentClient<Channel>, CallError> {
        let backends = self.lock();
        let connection = backends.get(backend).and_then(|backend| backend.connections.get(node));
        let channel = connection.map(|connection| connection.channel.clone());
        channel.map(AgentClient::new).ok_or_else(|| CallError::NoAgent(node.to_owned()))
    }

    fn connect(&self, backend: &str, target: Target, material: &Arc<Material>) -> Connection {
        let channel = tls::connect(target.address, Arc::clone(material), tls::AGENT);
        let agent = Arc::new(Mutex::new(Agent::Connecting));
        let watch = Watch {
            backend: backend.to_owned(),
            node: target.node.clone(),
            client: AgentClient::new(channel.clone()).max_decoding_message_size(MESSAGE_LIMIT),
            agent: Arc::clone(&agent),
            on_change: Arc::clone(&self.on_change),
        };
        let task = tokio::spawn(watch.run()).abort_handle();
        Connection { target, channel, agent, task }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Backend>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bounded<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_LIMIT);
    request
}

fn refused(node: &str, call: &'static str) -> impl FnOnce(tonic::Status) -> CallError {
    move |status| CallError::Refused { node: node.to_owned(), call, status: Box::new(status) }
}

/// Follows one agent until it is aborted.
struct Watch {
    backend: String,
    node: String,
    client: AgentClient<Channel>,
    agent: Arc<Mutex<Agent>>,
    on_change: Arc<OnChange>,
}

impl Watch {
    async fn run(mut self) {
        let mut wait = RETRY;
        loop {
            let status = self.follow(&mut wait).await;
            debug!(
                backend = self.backend,
                node = self.node,
                message = status.message(),
                "agent is not connected"
            );
            self.set(Agent::Unreachable(status.message().to_owned()));
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    async fn follow(&mut self, wait: &mut Duration) -> tonic::Status {
        let mut stream = match self.client.describe(DescribeRequest {}).await {
            Ok(response) => response.into_inner(),
            Err(status) => return status,
        };
        loop {
            match stream.message().await {
                Ok(Some(response)) if response.node != self.node => {
                    return tonic::Status::unknown(format!("it answers as node {:?}", response.node));
                }
                Ok(Some(response)) => {
                    *wait = RETRY;
                    self.set(Agent::Connected(facts(response)));
                }
                Ok(None) => return tonic::Status::unavailable("the agent ended the stream"),
                Err(status) => return status,
            }
        }
    }

    fn set(&self, new: Agent) {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        if *agent == new {
            return;
        }
        let pool = |agent: &Agent| agent.facts().map(|facts| facts.pool.clone());
        let more_than_numbers =
            pool(&agent) != pool(&new) || agent.facts().is_some() != new.facts().is_some();
        if let (None, Some(facts)) = (agent.facts(), new.facts()) {
            info!(backend = self.backend, node = self.node, pool = facts.pool.pool, "agent is connected");
        }
        *agent = new;
        drop(agent);
        (self.on_change)(&self.backend, more_than_numbers);
    }
}

fn facts(response: DescribeResponse) -> Facts {
    let pool = response.pool.unwrap_or_default();
    let state = match pool.state() {
        WireState::Ready => State::Ready,
        WireState::Empty => State::Empty,
        WireState::NotEmpty => State::NotEmpty,
        WireState::NotMounted => State::NotMounted,
        WireState::Foreign => State::Foreign,
        WireState::NewerFormat => State::NewerFormat,
        WireState::Damaged => State::Damaged,
        // A state of a newer agent is at least not a usable one.
        WireState::Unavailable | WireState::Unspecified => State::Unavailable,
    };
    Facts {
        pool: Described { state, message: pool.message, pool: pool.id, path: pool.path, fenced: pool.fenced },
        version: response.version,
        total_bytes: pool.total_bytes,
        available_bytes: pool.available_bytes,
        limits_enforced: pool.limits_enforced,
        limits_message: pool.limits_message,
        volumes: response.volumes.into_iter().map(|volume| volume.id).collect(),
        inline_pods: response.inline_pods,
    }
}
