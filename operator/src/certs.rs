//! Mutual-TLS material of a backend: when to keep, issue and rotate it. Pure: whoever calls says what time it is.
//!
//! A new authority is trusted before it signs, and an old one is trusted until long after it signed last, so that at
//! no moment two parts meet of which one does not know the other's authority.

pub mod issue;
pub mod secrets;

use jiff::{SignedDuration, Timestamp};

const DAY: SignedDuration = SignedDuration::from_hours(24);
/// How long an authority is valid.
pub const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(24 * 3650);
/// How long a certificate is valid.
pub const LEAF_LIFE: SignedDuration = SignedDuration::from_hours(24 * 90);
/// What kubelet needs at most to bring a changed Secret to a pod, many times over.
const SPREAD: SignedDuration = DAY;

/// The parts that speak mutual TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    Router,
    Agent,
    Operator,
}

impl Party {
    pub const ALL: [Self; 3] = [Self::Router, Self::Agent, Self::Operator];

    /// The word in the Secret's name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Agent => "agent",
            Self::Operator => "operator",
        }
    }

    /// The name in the certificate, which the other side checks.
    pub fn dns_name(self) -> String {
        format!("{}.dunnage", self.word())
    }
}

/// A certificate with its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    pub cert: String,
    pub key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("cert", &secrets::fingerprint(&self.cert)).finish_non_exhaustive()
    }
}

/// A backend's certificate authority, and those that come before and after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// Signs.
    pub current: Pair,
    pub not_after: Timestamp,
    /// Trusted already, signs later.
    pub next: Option<Pair>,
    /// Trusted still, signs no more. May hold several certificates.
    pub previous: Option<String>,
    /// When `next` or `previous` last changed.
    pub since: Timestamp,
}

impl Authority {
    /// What every part trusts.
    pub fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|pair| pair.cert.as_str());
        [Some(self.current.cert.as_str()), next, self.previous.as_deref()].into_iter().flatten().collect()
    }
}

/// A part's certificate as its Secret has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    pub pair: Pair,
    pub bundle: String,
    /// Fingerprint of the authority that signed.
    pub issuer: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// What to do next with the authority. Each step is one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorityStep {
    Keep,
    /// There is none, or none that can be used.
    Create,
    /// Two thirds of the life are over: let all trust the next one.
    AddNext,
    /// All trust the next one: let it sign.
    Promote,
    /// Nothing that the previous one signed is in use any more.
    DropPrevious,
}

/// What to do with a part's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafStep {
    Keep,
    /// Same certificate, other trust.
    Rebundle,
    Issue,
}

/// Decides about the authority.
pub fn authority_step(authority: Option<&Authority>, now: Timestamp) -> AuthorityStep {
    let Some(authority) = authority else { return AuthorityStep::Create };
    let left = authority.not_after.duration_since(now);
    let spread = now.duration_since(authority.since) >= SPREAD;
    match (&authority.next, &authority.previous) {
        // The operator was away for years: no overlap can help.
        _ if left <= SignedDuration::ZERO => AuthorityStep::Create,
        (Some(_), _) if spread => AuthorityStep::Promote,
        (None, Some(_)) if spread => AuthorityStep::DropPrevious,
        (None, _) if left < AUTHORITY_LIFE / 3 => AuthorityStep::AddNext,
        _ => AuthorityStep::Keep,
    }
}

/// Decides about one part's certificate.
pub fn leaf_step(leaf: Option<&Leaf>, authority: &Authority, now: Timestamp) -> LeafStep {
    let Some(leaf) = leaf else { return LeafStep::Issue };
    let aged = leaf.not_after.duration_since(now) < LEAF_LIFE / 3 || leaf.not_before > now;
    if aged || leaf.issuer != secrets::fingerprint(&authority.current.cert) {
        LeafStep::Issue
    } else if leaf.bundle != authority.bundle() {
        LeafStep::Rebundle
    } else {
        LeafStep::Keep
    }
}

/// When to look again, if nothing else happens before.
pub fn next_look(authority: &Authority, now: Timestamp) -> SignedDuration {
    if authority.next.is_some() || authority.previous.is_some() {
        (SPREAD - now.duration_since(authority.since)).max(SignedDuration::from_secs(60))
    } else {
        DAY
    }
}

#[cfg(test)]
mod tests;
