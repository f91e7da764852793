//! Makes authorities and certificates.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::OffsetDateTime;

use super::secrets::fingerprint;
use super::{AUTHORITY_LIFE, Authority, AuthorityStep, LEAF_LIFE, Leaf, LeafStep, Pair, Party};

/// Clocks of two machines may differ by this much.
const SKEW: SignedDuration = SignedDuration::from_hours(1);

/// A key or certificate could not be made, or a stored one not be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}")]
pub struct IssueError {
    action: &'static str,
    source: rcgen::Error,
}

fn failed(action: &'static str) -> impl FnOnce(rcgen::Error) -> IssueError {
    move |source| IssueError { action, source }
}

/// Takes one step with the authority. `trusted` is what the parts trust now: it stays trusted when an authority is lost.
pub fn advance(
    backend: &str,
    authority: Option<Authority>,
    step: AuthorityStep,
    trusted: Option<&str>,
    now: Timestamp,
) -> Result<Option<Authority>, IssueError> {
    let fresh = |previous| {
        Ok(Some(Authority {
            current: new_authority(backend, now)?,
            not_after: now + AUTHORITY_LIFE,
            next: None,
            previous,
            since: now,
        }))
    };
    match (step, authority) {
        (AuthorityStep::Create, _) | (_, None) => fresh(trusted.map(str::to_owned)),
        (AuthorityStep::Keep, Some(authority)) => Ok(Some(authority)),
        (AuthorityStep::AddNext, Some(authority)) => {
            Ok(Some(Authority { next: Some(new_authority(backend, now)?), since: now, ..authority }))
        }
        (AuthorityStep::Promote, Some(authority)) => match authority.next {
            None => Ok(Some(authority)),
            // It was made when `since` says.
            Some(next) => Ok(Some(Authority {
                current: next,
                not_after: authority.since + AUTHORITY_LIFE,
                next: None,
                previous: Some(authority.current.cert),
                since: now,
            })),
        },
        (AuthorityStep::DropPrevious, Some(authority)) => {
            Ok(Some(Authority { previous: None, since: now, ..authority }))
        }
    }
}

/// Takes one step with a part's certificate.
pub fn renew(
    backend: &str,
    party: Party,
    leaf: Option<Leaf>,
    step: LeafStep,
    authority: &Authority,
    now: Timestamp,
) -> Result<Leaf, IssueError> {
    match (step, leaf) {
        (LeafStep::Keep, Some(leaf)) => Ok(leaf),
        (LeafStep::Rebundle, Some(leaf)) => Ok(Leaf { bundle: authority.bundle(), ..leaf }),
        (LeafStep::Issue, _) | (_, None) => Ok(Leaf {
            pair: new_leaf(backend, party, authority, now)?,
            bundle: authority.bundle(),
            issuer: fingerprint(&authority.current.cert),
            not_before: now,
            not_after: now + LEAF_LIFE,
        }),
    }
}

fn new_authority(backend: &str, now: Timestamp) -> Result<Pair, IssueError> {
    let key = KeyPair::generate().map_err(failed("make an authority's key"))?;
    let mut params = authority_params(backend);
    params.not_before = date(now - SKEW);
    params.not_after = date(now + AUTHORITY_LIFE);
    let cert = params.self_signed(&key).map_err(failed("make an authority"))?;
    Ok(Pair { cert: cert.pem(), key: key.serialize_pem() })
}

/// The part of an authority's certificate that its signatures depend on: the same for all of a backend's authorities,
/// which the key identifier tells apart, so that nothing needs to read a certificate.
fn authority_params(backend: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Dunnage authority of {backend}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn new_leaf(backend: &str, party: Party, authority: &Authority, now: Timestamp) -> Result<Pair, IssueError> {
    let signer = KeyPair::from_pem(&authority.current.key).map_err(failed("read the authority's key"))?;
    let issuer = Issuer::new(authority_params(backend), signer);
    let key = KeyPair::generate().map_err(failed("make a key"))?;
    let mut params = CertificateParams::new([party.dns_name()]).map_err(failed("name a certificate"))?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, party.dns_name());
    params.not_before = date(now - SKEW);
    params.not_after = date(now + LEAF_LIFE);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let cert = params.signed_by(&key, &issuer).map_err(failed("sign a certificate"))?;
    Ok(Pair { cert: cert.pem(), key: key.serialize_pem() })
}

fn date(at: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
