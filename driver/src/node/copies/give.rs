//! The giving end: shows data to another node's agent that has a ticket of the router for them.

use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dunnage_csi::agent::copies_server::Copies as CopiesApi;
use dunnage_csi::agent::export_response::Part;
use dunnage_csi::agent::{ExportRequest, ExportResponse, Head, Ticket, TicketClaims};
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::field::Empty;
use tracing::{Span, debug, info, instrument, warn};

use super::metrics::Direction;
use super::{AT_A_TIME, Driver};
use crate::copies::{Cursor, Sender, Stop};
use crate::error::{Error, Result};
use crate::id::{PoolId, SnapshotId, VolumeId};
use crate::record::Source;
use crate::status::chain;
use crate::store::{Lent, Store};

/// How soon a sender whose time has not come sees that nobody listens any more.
const LOOK: Duration = Duration::from_millis(100);

type Parts = mpsc::Sender<std::result::Result<ExportResponse, Status>>;

/// What the agents of other nodes may ask for.
#[derive(Clone, Debug)]
pub struct CopiesService {
    driver: Driver,
    /// Ends the streams, which would otherwise keep the server from stopping.
    stop: CancellationToken,
}

impl CopiesService {
    pub(in crate::node) fn new(driver: Driver, stop: CancellationToken) -> Self {
        Self { driver, stop }
    }
}

type Exported = Pin<Box<dyn Stream<Item = std::result::Result<ExportResponse, Status>> + Send>>;

#[tonic::async_trait]
impl CopiesApi for CopiesService {
    type ExportStream = Exported;

    #[instrument(skip_all, fields(source = Empty, target = Empty))]
    async fn export(
        &self,
        request: Request<ExportRequest>,
    ) -> std::result::Result<Response<Exported>, Status> {
        let ExportRequest { ticket, after } = request.into_inner();
        let driver = self.driver.clone();
        let claims = driver.admit(&ticket.unwrap_or_default(), SystemTime::now())?;
        Span::current().record("source", &claims.source).record("target", &claims.target_volume_id);
        let slot = Arc::clone(&driver.copies().giving).try_acquire_owned().map_err(|_| {
            Status::unavailable(format!("this node gives data to {AT_A_TIME} others already"))
        })?;
        let (parts, receiver) = mpsc::channel(2);
        let span = Span::current();
        tokio::task::spawn_blocking(move || {
            let _entered = span.entered();
            let _slot = slot;
            let _running = driver.copies().metrics.running(Direction::Out);
            driver.give(&claims, after.map(Cursor::from), &parts);
        });
        let stream = ReceiverStream::new(receiver).take_until(self.stop.clone().cancelled_owned());
        Ok(Response::new(Box::pin(stream)))
    }
}

impl Driver {
    /// What a ticket allows, if it is one and was not used before.
    fn admit(&self, ticket: &Ticket, now: SystemTime) -> Result<TicketClaims> {
        let unserved = || Error::Unavailable("this agent has no certificates yet".to_owned());
        let material = self.copies().material.get().ok_or_else(unserved)?;
        let claims = material.check_ticket(ticket, now).map_err(|error| {
            warn!(error = chain(&error), "refused a ticket");
            Error::PermissionDenied(chain(&error))
        })?;
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let mut spent = self.copies().spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.retain(|_, expires| u64::try_from(*expires).is_ok_and(|expires| expires >= now));
        if spent.insert(claims.nonce.clone(), claims.expires).is_some() {
            return Err(Error::PermissionDenied("the ticket was used before".to_owned()));
        }
        Ok(claims)
    }

    /// Sends what was asked for, or why that cannot be.
    fn give(&self, claims: &TicketClaims, after: Option<Cursor>, parts: &Parts) {
        info!(resumes = after.is_some(), "giving data to another node");
        match self.give_source(claims, after, parts) {
            Ok(()) => info!("gave all data to another node"),
            Err(Stop::Gone) => info!("the other node takes no more for now"),
            Err(Stop::Disorder) => warn!("the data cannot be read twice in the same order"),
            Err(Stop::Failed(error)) => {
                warn!(error = chain(&error), "cannot give data to another node");
                let _ = parts.blocking_send(Err(error.into()));
            }
        }
    }

    fn give_source(
        &self,
        claims: &TicketClaims,
        after: Option<Cursor>,
        parts: &Parts,
    ) -> std::result::Result<(), Stop> {
        let store = self.store()?;
        let target: VolumeId = claims.target_volume_id.parse()?;
        match source(&claims.source)? {
            Source::Snapshot(id) => {
                check_pool(&id.pool(), &store)?;
                let _guard = self.share_snapshot(&id)?;
                self.send(&store.lend_snapshot(&id)?, after, parts)
            }
            Source::Volume(id) => {
                check_pool(&id.pool(), &store)?;
                let lent = self.lend(&store, &id, &target)?;
                let sent = self.send(&lent, after, parts);
                store.give_back(&target, sent.is_ok());
                sent
            }
        }
    }

    /// The copy of a volume that is read, made now if there is none yet.
    fn lend(&self, store: &Arc<Store>, id: &VolumeId, target: &VolumeId) -> Result<Lent> {
        if let Some(lent) = store.lent(id, target)? {
            return Ok(lent);
        }
        let _data = self.lock_data(id)?;
        let volume = store.volume(id)?;
        self.check_fence()?;
        store.lend_volume(&volume, target)?;
        store.lent(id, target)?.ok_or_else(|| Error::Busy { id: id.to_string() })
    }

    fn send(&self, lent: &Lent, after: Option<Cursor>, parts: &Parts) -> std::result::Result<(), Stop> {
        match self.send_after(lent, after, parts) {
            Err(Stop::Disorder) => {
                debug!("the data are not read in the same order again: sending them from the start");
                self.send_after(lent, None, parts)
            }
            sent => sent,
        }
    }

    fn send_after(&self, lent: &Lent, after: Option<Cursor>, parts: &Parts) -> std::result::Result<(), Stop> {
        let id = || lent.identity.clone();
        let content =
            serde_json::to_string(&lent.content).map_err(|source| Error::Damaged { id: id(), source })?;
        let head = Head {
            identity: id(),
            resumed: false,
            content,
            volume_bytes: lent.volume_bytes,
            data_bytes: lent.data_bytes,
        };
        let mut sender = Sender::new(head, after, |part| self.send_part(part, parts))?;
        self.engine().send(&lent.dir, &mut sender)?;
        sender.finish()
    }

    /// Sends a part when its time has come.
    fn send_part(&self, part: Part, parts: &Parts) -> std::result::Result<(), Stop> {
        if let Part::Piece(piece) = &part {
            let due = self.copies().give_pace.due(piece.body.len(), Instant::now());
            loop {
                if parts.is_closed() {
                    return Err(Stop::Gone);
                }
                match due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                    Some(left) => std::thread::sleep(left.min(LOOK)),
                    None => break,
                }
            }
            self.copies().metrics.copied(Direction::Out, piece.body.len() as u64);
        }
        parts.blocking_send(Ok(ExportResponse { part: Some(part) })).map_err(|_| Stop::Gone)
    }
}

fn source(id: &str) -> Result<Source> {
    match id.parse::<SnapshotId>() {
        Ok(id) => Ok(Source::Snapshot(id)),
        Err(_) => Ok(Source::Volume(id.parse()?)),
    }
}

fn check_pool(pool: &PoolId, store: &Store) -> Result<()> {
    if *pool == store.id {
        return Ok(());
    }
    Err(Error::PermissionDenied(format!(
        "the ticket is for data of pool {pool}, and this is pool {}",
        store.id
    )))
}
