//! Tickets: the router's word, signed with its certificate's key, that one agent may have another one's data, once.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;
use rustls::SignatureScheme;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use super::{Material, ROUTER};
use crate::agent::{Ticket, TicketClaims};

/// So long a stream may be begun: a copy that goes on for longer is given a new ticket with each repeated call.
const LIFE: Duration = Duration::from_secs(600);
/// Nothing else that this key signs begins so: in a handshake, that is 64 spaces.
const PURPOSE: &[u8] = b"dunnage.agent.v1.Ticket\0";

/// Why a ticket could not be made, or is none.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    #[error("a ticket cannot be signed")]
    Sign(#[source] rustls::Error),
    #[error("the ticket is malformed")]
    Malformed,
    #[error("the ticket is not the router's")]
    Certificate(#[source] webpki::Error),
    #[error("the ticket is forged")]
    Signature(#[source] webpki::Error),
    #[error("the ticket was good until {seconds} seconds ago: the clocks of the nodes may differ")]
    Expired { seconds: u64 },
}

impl Material {
    /// A ticket for the copy of a snapshot or volume to a volume that is to be.
    pub fn issue_ticket(&self, source: &str, target: &str, now: SystemTime) -> Result<Ticket, TicketError> {
        let identity = self.current().identity;
        let mut nonce = vec![0; 16];
        let random = |_| TicketError::Sign(rustls::Error::FailedToGetRandomBytes);
        self.provider.secure_random.fill(&mut nonce).map_err(random)?;
        let claims = TicketClaims {
            source: source.to_owned(),
            target_volume_id: target.to_owned(),
            expires: i64::try_from((since_epoch(now) + LIFE).as_secs()).unwrap_or(i64::MAX),
            nonce,
        }
        .encode_to_vec();
        let known = self.provider.signature_verification_algorithms.mapping;
        let schemes: Vec<SignatureScheme> = known.iter().map(|(scheme, _)| *scheme).collect();
        let no_scheme = || TicketError::Sign(rustls::Error::General("the key knows no scheme".to_owned()));
        let signer = identity.key.choose_scheme(&schemes).ok_or_else(no_scheme)?;
        Ok(Ticket {
            signature: signer.sign(&signed(&claims)).map_err(TicketError::Sign)?,
            scheme: u16::from(signer.scheme()).into(),
            certificates: identity.chain.iter().map(|certificate| certificate.to_vec()).collect(),
            claims,
        })
    }

    /// What a ticket allows, if it is the router's and not too old.
    pub fn check_ticket(&self, ticket: &Ticket, now: SystemTime) -> Result<TicketClaims, TicketError> {
        let identity = self.current().identity;
        let algorithms = self.provider.signature_verification_algorithms;
        let mut chain = ticket.certificates.iter().map(|der| CertificateDer::from(der.as_slice()));
        let certificate = chain.next().ok_or(TicketError::Malformed)?;
        let between: Vec<_> = chain.collect();
        let certificate = EndEntityCert::try_from(&certificate).map_err(TicketError::Certificate)?;
        let router = ServerName::try_from(ROUTER).map_err(|_| TicketError::Malformed)?;
        certificate
            .verify_for_usage(
                algorithms.all,
                &identity.roots.roots,
                &between,
                UnixTime::since_unix_epoch(since_epoch(now)),
                KeyUsage::client_auth(),
                None,
                None,
            )
            .and_then(|_| certificate.verify_is_valid_for_subject_name(&router))
            .map_err(TicketError::Certificate)?;
        let scheme = u16::try_from(ticket.scheme).map_err(|_| TicketError::Malformed)?;
        let known = algorithms.mapping.iter().find(|(known, _)| u16::from(*known) == scheme);
        let algorithm = known.and_then(|(_, all)| all.first()).ok_or(TicketError::Malformed)?;
        certificate
            .verify_signature(*algorithm, &signed(&ticket.claims), &ticket.signature)
            .map_err(TicketError::Signature)?;
        let claims = TicketClaims::decode(ticket.claims.as_slice()).map_err(|_| TicketError::Malformed)?;
        let expires = u64::try_from(claims.expires).unwrap_or(0);
        match since_epoch(now).as_secs().checked_sub(expires) {
            Some(seconds) if seconds > 0 => Err(TicketError::Expired { seconds }),
            _ => Ok(claims),
        }
    }
}

fn signed(claims: &[u8]) -> Vec<u8> {
    [PURPOSE, claims].concat()
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Ca, ca, set};
    use super::super::{AGENT, OPERATOR};
    use super::*;

    fn material(name: &str, ca: &Ca) -> std::sync::Arc<Material> {
        Material::open(set(name, &[ca]).path()).unwrap()
    }

    #[test]
    fn the_routers_ticket_is_good_for_what_it_says_and_for_a_while() {
        let ca = ca();
        let (router, agent) = (material(ROUTER, &ca), material(AGENT, &ca));
        let now = SystemTime::now();
        let ticket = router.issue_ticket("source", "target", now).unwrap();
        let claims = agent.check_ticket(&ticket, now).unwrap();
        assert_eq!((claims.source.as_str(), claims.target_volume_id.as_str()), ("source", "target"));
        assert!(agent.check_ticket(&ticket, now + LIFE).is_ok());
        let late = agent.check_ticket(&ticket, now + LIFE + Duration::from_secs(2)).unwrap_err();
        assert!(matches!(late, TicketError::Expired { .. }), "{late}");
        let other = router.issue_ticket("source", "target", now).unwrap();
        assert_ne!(agent.check_ticket(&other, now).unwrap().nonce, claims.nonce);
    }

    #[test]
    fn only_the_router_of_the_same_authority_can_issue_one() {
        let (ours, theirs) = (ca(), ca());
        let agent = material(AGENT, &ours);
        let now = SystemTime::now();
        for issuer in [material(AGENT, &ours), material(OPERATOR, &ours), material(ROUTER, &theirs)] {
            let ticket = issuer.issue_ticket("source", "target", now).unwrap();
            let refused = agent.check_ticket(&ticket, now).unwrap_err();
            assert!(matches!(refused, TicketError::Certificate(_)), "{refused}");
        }
    }

    #[test]
    fn a_changed_ticket_is_refused() {
        let ca = ca();
        let (router, agent) = (material(ROUTER, &ca), material(AGENT, &ca));
        let now = SystemTime::now();
        let good = router.issue_ticket("source", "target", now).unwrap();
        let other = router.issue_ticket("another", "target", now).unwrap();
        let of_agent = agent.issue_ticket("source", "target", now).unwrap();
        for bad in [
            Ticket { claims: other.claims, ..good.clone() },
            Ticket { signature: of_agent.signature, ..good.clone() },
            Ticket { signature: Vec::new(), ..good.clone() },
            Ticket { scheme: 7, ..good.clone() },
            Ticket { certificates: Vec::new(), ..good.clone() },
            Ticket::default(),
        ] {
            assert!(agent.check_ticket(&bad, now).is_err(), "{bad:?}");
        }
        assert!(agent.check_ticket(&good, now).is_ok());
    }
}
