//! A real control plane without nodes: etcd, kube-apiserver and, when asked, kube-controller-manager.

use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{GetParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::{Api, Client, Config};

use crate::process::{Process, Workplace};

mod arguments;

/// Ports of the servers.
const PORTS: Range<u16> = 20_000..30_000;
mod credentials;

use credentials::Credentials;

const READY_WITHIN: Duration = Duration::from_secs(90);

/// A running control plane on loopback ports of its own, with RBAC on.
///
/// Ends with this value. Tests of one binary may share one in a `tokio::sync::OnceCell`: what a static keeps for ever
/// is ended when the test process does.
pub struct ControlPlane {
    // Fields are dropped in order: the clients of a server first, then the folder.
    controller_manager: Option<Process>,
    api_server: Option<Process>,
    _etcd: Process,
    workplace: Workplace,
    programs: PathBuf,
    ports: Ports,
    credentials: Credentials,
}

#[derive(Clone, Copy)]
struct Ports {
    etcd: u16,
    etcd_peer: u16,
    api_server: u16,
}

/// What a control plane is made of beside etcd and kube-apiserver.
#[derive(Clone, Copy, Default)]
pub struct Builder {
    controller_manager: bool,
}

impl Builder {
    /// Runs kube-controller-manager too: garbage collection, namespaces, PV binding, workload controllers.
    #[must_use]
    pub fn controller_manager(mut self) -> Self {
        self.controller_manager = true;
        self
    }

    /// Starts everything and waits until the API server is ready.
    pub async fn start(self) -> anyhow::Result<ControlPlane> {
        // Between choosing a free port and listening on it, somebody else may take it.
        let mut attempts = 3;
        loop {
            attempts -= 1;
            match ControlPlane::launch(self).await {
                Err(error) if attempts > 0 && error.to_string().contains("address already in use") => {}
                result => return result,
            }
        }
    }
}

impl ControlPlane {
    /// etcd and kube-apiserver, ready for requests.
    pub async fn start() -> anyhow::Result<Self> {
        Builder::default().start().await
    }

    pub fn builder() -> Builder {
        Builder::default()
    }

    async fn launch(wanted: Builder) -> anyhow::Result<Self> {
        let mut names = vec!["etcd", "kube-apiserver"];
        if wanted.controller_manager {
            names.push("kube-controller-manager");
        }
        // The first build takes minutes: not on a thread that other futures wait for.
        let programs = tokio::task::spawn_blocking(move || crate::tools::directory(&names)).await??;
        let workplace = Workplace::new("dunnage-control-plane-")?;
        let ports = Ports::free()?;
        let credentials = Credentials::create(workplace.path(), ports.api_server)?;
        let etcd = Process::start("etcd", &programs.join("etcd"), &arguments::etcd(ports), workplace.path())?;
        let mut control_plane = Self {
            controller_manager: None,
            api_server: None,
            _etcd: etcd,
            workplace,
            programs,
            ports,
            credentials,
        };
        control_plane.start_api_server().await?;
        if wanted.controller_manager {
            control_plane.start_controller_manager()?;
        }
        Ok(control_plane)
    }

    /// A client with all rights.
    pub async fn client(&self) -> anyhow::Result<Client> {
        self.client_with_token(credentials::ADMIN_TOKEN).await
    }

    /// A client with exactly the rights of a service account, which is made when it is not there.
    ///
    /// The token is a real one, so what RBAC does not grant is refused.
    pub async fn client_for(&self, namespace: &str, service_account: &str) -> anyhow::Result<Client> {
        let admin = self.client().await?;
        let namespaces: Api<Namespace> = Api::all(admin.clone());
        create_if_missing(&namespaces, Namespace { metadata: named(namespace), ..Namespace::default() })
            .await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(admin, namespace);
        create_if_missing(
            &accounts,
            ServiceAccount { metadata: named(service_account), ..ServiceAccount::default() },
        )
        .await?;
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![credentials::ISSUER.to_owned()],
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let answer = accounts.create_token_request(service_account, &PostParams::default(), &request).await?;
        let token = answer.status.context("the token request has no status")?.token;
        self.client_with_token(&token).await
    }

    async fn client_with_token(&self, token: &str) -> anyhow::Result<Client> {
        let kubeconfig = Kubeconfig::from_yaml(&self.credentials.kubeconfig(token))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// A kubeconfig file with all rights, for programs.
    pub fn kubeconfig(&self) -> &Path {
        &self.credentials.admin_kubeconfig
    }

    /// The server's address, `https://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.credentials.url
    }

    /// Ends the API server at once, as a crash would; etcd keeps what was written.
    pub fn stop_api_server(&mut self) {
        self.api_server = None;
    }

    /// Starts the API server on the same port and waits until it is ready.
    pub async fn start_api_server(&mut self) -> anyhow::Result<()> {
        let arguments = arguments::api_server(self.ports, self.workplace.path());
        let process = Process::start(
            "kube-apiserver",
            &self.programs.join("kube-apiserver"),
            &arguments,
            self.workplace.path(),
        )?;
        let process = self.api_server.insert(process);
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            process.check()?;
            let kubeconfig = Kubeconfig::from_yaml(&self.credentials.kubeconfig(credentials::ADMIN_TOKEN))?;
            match check_ready(kubeconfig).await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    let log = process.log_tail();
                    bail!("the API server was not ready in {READY_WITHIN:?}: {error:#}\n{log}");
                }
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Freezes the API server: connections stay and nobody answers.
    pub fn pause_api_server(&self) -> anyhow::Result<()> {
        self.api_server.as_ref().context("the API server is stopped")?.pause()
    }

    pub fn resume_api_server(&self) -> anyhow::Result<()> {
        self.api_server.as_ref().context("the API server is stopped")?.resume()
    }

    fn start_controller_manager(&mut self) -> anyhow::Result<()> {
        let name = "kube-controller-manager";
        let arguments = arguments::controller_manager(self.kubeconfig(), self.workplace.path());
        let process = Process::start(name, &self.programs.join(name), &arguments, self.workplace.path())?;
        self.controller_manager = Some(process);
        Ok(())
    }
}

/// `/readyz` alone is early: until the bootstrap is through, the default namespace is missing.
async fn check_ready(kubeconfig: Kubeconfig) -> anyhow::Result<()> {
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let request = Request::new("").get("readyz", &GetParams::default()).context("a fixed path")?;
    client.request_text(request).await?;
    Api::<Namespace>::all(client).get("default").await?;
    Ok(())
}

async fn create_if_missing<K>(api: &Api<K>, object: K) -> anyhow::Result<()>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

impl Ports {
    /// Three free ports that nobody else of this process gets.
    fn free() -> anyhow::Result<Self> {
        Ok(Self { etcd: free_port()?, etcd_peer: free_port()?, api_server: free_port()? })
    }
}

/// A free port below the range that outgoing connections take theirs from: between the look and the server's bind
/// one of these would be in the way, and a second etcd on a port that is taken would leave two servers with one store.
fn free_port() -> anyhow::Result<u16> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..PORTS.len() {
        let offset = std::process::id().wrapping_mul(97).wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + u16::try_from(offset % u32::from(PORTS.end - PORTS.start))?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port of 127.0.0.1 from {} to {} is free", PORTS.start, PORTS.end)
}
