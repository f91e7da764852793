//! Certificates and keys from a directory, read again when their files change, or from memory.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::SigningKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

const CA: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Why a set of certificates and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not valid PEM", path.display())]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("{} holds no certificate", path.display())]
    Empty { path: PathBuf },
    #[error("the certificates and key in {} do not go together", directory.display())]
    Unusable { directory: PathBuf, source: rustls::Error },
    #[error("the CA bundle in {} cannot verify clients", directory.display())]
    Verifier { directory: PathBuf, source: VerifierBuilderError },
}

/// What both sides of a handshake use, always from one and the same set.
#[derive(Clone)]
pub(super) struct Configs {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    pub(super) identity: Arc<Identity>,
}

/// What signs and what is trusted, beside handshakes too.
pub(super) struct Identity {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: Arc<dyn SigningKey>,
    pub(super) roots: Arc<RootCertStore>,
}

/// Device, inode, size and change time of each file: differs as soon as kubelet swaps the directory behind the links.
type Fingerprint = [Option<(u64, u64, u64, i64, i64)>; 3];

struct State {
    /// Of the files last tried, so that a broken set is tried and logged once.
    tried: Fingerprint,
    configs: Configs,
}

/// The certificates and key of one of Dunnage's parts, up to date at each handshake.
pub struct Material {
    /// None when the material came from memory: then it is replaced as a whole.
    directory: Option<PathBuf>,
    pub(super) provider: Arc<CryptoProvider>,
    state: Mutex<State>,
}

impl fmt::Debug for Material {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Material {
    /// Reads `ca.crt` (a bundle), `tls.crt` and `tls.key` of a directory.
    pub fn open(directory: impl AsRef<Path>) -> Result<Arc<Self>, Error> {
        let directory = directory.as_ref().to_owned();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tried = fingerprint(&directory);
        let configs = load(&directory, &provider)?;
        Ok(Arc::new(Self {
            directory: Some(directory),
            provider,
            state: Mutex::new(State { tried, configs }),
        }))
    }

    /// Takes what a directory would hold: a bundle of CA certificates, a certificate and its key, in PEM.
    pub fn from_pem(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Arc<Self>, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let configs = configs(Path::new("memory"), [ca, certificate, key], &provider)?;
        let state = Mutex::new(State { tried: [None; 3], configs });
        Ok(Arc::new(Self { directory: None, provider, state }))
    }

    /// The newest set that can be used: three `stat` calls when nothing has changed.
    pub(super) fn current(&self) -> Configs {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(directory) = &self.directory else { return state.configs.clone() };
        // Taken before reading: a change in between is seen at the next handshake.
        let found = fingerprint(directory);
        if found != state.tried {
            state.tried = found;
            match load(directory, &self.provider) {
                Ok(configs) => {
                    tracing::info!(directory = %directory.display(), "loaded new certificates");
                    state.configs = configs;
                }
                Err(error) => tracing::error!(
                    directory = %directory.display(),
                    error = &error as &dyn std::error::Error,
                    "kept the old certificates: the new ones cannot be used"
                ),
            }
        }
        state.configs.clone()
    }
}

fn fingerprint(directory: &Path) -> Fingerprint {
    [CA, CERTIFICATE, KEY].map(|name| {
        let file = fs::metadata(directory.join(name)).ok()?;
        Some((file.dev(), file.ino(), file.size(), file.ctime(), file.ctime_nsec()))
    })
}

fn load(directory: &Path, provider: &Arc<CryptoProvider>) -> Result<Configs, Error> {
    let [ca, certificate, key] = [CA, CERTIFICATE, KEY].map(|name| read(&directory.join(name)));
    configs(directory, [&ca?, &certificate?, &key?], provider)
}

fn configs(directory: &Path, pem: [&[u8]; 3], provider: &Arc<CryptoProvider>) -> Result<Configs, Error> {
    let [ca, certificate, key] = pem;
    let unusable = |source| Error::Unusable { directory: directory.to_owned(), source };
    let verifier = |source| Error::Verifier { directory: directory.to_owned(), source };

    let mut roots = RootCertStore::empty();
    for certificate in certificates(&directory.join(CA), ca)? {
        roots.add(certificate).map_err(unusable)?;
    }
    let roots = Arc::new(roots);
    let chain = certificates(&directory.join(CERTIFICATE), certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|source| Error::Pem { path: directory.join(KEY), source })?;

    let signer = provider.key_provider.load_private_key(key.clone_key()).map_err(unusable)?;
    let identity = Arc::new(Identity { chain: chain.clone(), key: signer, roots: Arc::clone(&roots) });

    let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
        .build()
        .map_err(verifier)?;
    let mut server = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(unusable)?;
    server.alpn_protocols = vec![super::ALPN.to_vec()];
    // A resumed session skips the certificate, and connections here live long anyhow.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;

    let mut client = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(unusable)?;
    client.alpn_protocols = vec![super::ALPN.to_vec()];
    client.resumption = Resumption::disabled();

    Ok(Configs { server: Arc::new(server), client: Arc::new(client), identity })
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| Error::Pem { path: path.to_owned(), source })?;
    if found.is_empty() {
        return Err(Error::Empty { path: path.to_owned() });
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}
