//! Mutual TLS between Dunnage's parts: fixed names instead of addresses, one CA a backend, material that changes in place.

mod connect;
mod incoming;
mod material;
mod ticket;

use tonic::{Request, Status};

pub use connect::connect;
pub use incoming::{Connection, incoming};
pub use material::{Error, Material};
pub use ticket::TicketError;

/// The name in the certificate of the controller's driver.
pub const ROUTER: &str = "router.dunnage";
/// The name in the certificate of every node's driver.
pub const AGENT: &str = "agent.dunnage";
/// The name in the certificate of the operator.
pub const OPERATOR: &str = "operator.dunnage";

/// Who may take part at all: a certificate of the CA with none of these names is refused in the handshake.
const NAMES: [&str; 3] = [ROUTER, AGENT, OPERATOR];

/// The only application protocol spoken.
const ALPN: &[u8] = b"h2";

/// The name in the client's certificate; an extension of each request that came over [`incoming()`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer(pub String);

/// Refuses a request of anyone but the named peers.
pub fn require_peer<T>(request: &Request<T>, allowed: &[&str]) -> Result<(), Status> {
    match request.extensions().get::<Peer>() {
        Some(Peer(name)) if allowed.contains(&name.as_str()) => Ok(()),
        Some(Peer(name)) => Err(Status::permission_denied(format!("{name} may not make this call"))),
        None => Err(Status::unauthenticated("this call needs a client certificate")),
    }
}

#[cfg(test)]
mod tests;
