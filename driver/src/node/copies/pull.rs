//! The taking end: asks another node's agent for data and writes them, piece by piece.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use dunnage_csi::agent::copies_client::CopiesClient;
use dunnage_csi::agent::export_response::Part;
use dunnage_csi::agent::{CopyHint, ExportRequest, ExportResponse, Head, Piece};
use dunnage_csi::tls;
use dunnage_csi::uds::MAX_MESSAGE;
use tonic::{Code, Status, Streaming};
use tracing::{Span, info, warn};

use super::Coming;
use super::metrics::Direction;
use crate::copies::Taker;
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::node::Driver;
use crate::node::controller::source::at_least;
use crate::node::controller::wanted::Wanted;
use crate::record::{Content, Record};
use crate::size::choose;
use crate::status::chain;
use crate::store::{Arrival, Store};

/// So many bytes of a stream are sent again at most after this process was killed.
const CHECKPOINT: usize = 32 << 20;

/// What to do about a copy that has ended too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// What came is kept, and the copy goes on from there.
    GoOn,
    /// What came is removed, and the caller is told.
    GiveUp,
}

/// A copy under way.
struct Flow {
    taker: Taker,
    received: u64,
    /// Bytes of the stream since the last checkpoint.
    unsaved: usize,
}

impl Driver {
    /// Takes all data of a volume, and moves it to its place.
    pub(super) async fn pull(
        &self,
        store: &Arc<Store>,
        wanted: Wanted,
        id: &VolumeId,
        hint: CopyHint,
        coming: &Arc<Coming>,
    ) -> std::result::Result<(), Status> {
        let _running = self.copies().metrics.running(Direction::In);
        info!(source = %coming.source, from = hint.address, "copy begins");
        let Err(error) = self.take(store, wanted, id, hint, coming).await else {
            info!(source = %coming.source, progress = coming.progress(), "copy is whole");
            return Ok(());
        };
        let reason = chain(&error);
        match after(&error) {
            After::GoOn => {
                warn!(error = reason, progress = coming.progress(), "copy interrupted");
                Err(Status::aborted(format!(
                    "the copy of {} to volume {id} was interrupted at {} and goes on with the next call: {reason}",
                    coming.source,
                    coming.progress()
                )))
            }
            After::GiveUp => {
                warn!(error = reason, progress = coming.progress(), "copy failed");
                let (store, id) = (Arc::clone(store), id.clone());
                off(move || store.abandon(&id)).await?;
                let code = error.code();
                Err(Status::new(
                    code,
                    format!("the copy of {} from another pool has failed: {reason}", coming.source),
                ))
            }
        }
    }

    async fn take(
        &self,
        store: &Arc<Store>,
        wanted: Wanted,
        id: &VolumeId,
        hint: CopyHint,
        coming: &Arc<Coming>,
    ) -> Result<()> {
        let _slot = until_stop(coming, self.copies().taking.acquire()).await?;
        let mut stream = self.ask(store, id, hint, coming).await?;
        let Some(Part::Head(head)) = next(coming, &mut stream).await? else {
            return Err(Error::Corrupt("it does not begin with a head".to_owned()));
        };
        coming.announced.store(head.data_bytes, Ordering::Relaxed);
        let begin = {
            let (driver, store, id) = (self.clone(), Arc::clone(store), id.clone());
            move || driver.begin_arrival(&store, &wanted, &id, &head)
        };
        let mut flow = off(begin).await?;
        loop {
            coming.received.store(flow.received, Ordering::Relaxed);
            let (at, on) = (Arc::clone(store), id.clone());
            match next(coming, &mut stream).await {
                Ok(Some(Part::Piece(piece))) => {
                    let due = self.copies().take_pace.due(piece.body.len(), Instant::now());
                    let pause = tokio::time::sleep_until(due.into());
                    // If it is to stop, what comes next says so.
                    let _ = coming.stop.run_until_cancelled(pause).await;
                    let before = flow.received;
                    flow = off(move || flow.piece(&at, &on, &piece)).await?;
                    self.copies().metrics.copied(Direction::In, flow.received - before);
                }
                Ok(Some(Part::Tail(tail))) => {
                    return off(move || {
                        flow.taker.check(&tail)?;
                        at.complete_arrival(&on, &flow.taker, flow.received).map(drop)
                    })
                    .await;
                }
                Ok(Some(Part::Head(_))) => return Err(Error::Corrupt("it has two heads".to_owned())),
                cut => {
                    off(move || at.note_arrival(&on, &flow.taker, flow.received)).await?;
                    cut?;
                    return Err(Error::Unavailable("the stream was cut short".to_owned()));
                }
            }
        }
    }

    /// Asks for the data, from where on they are not here yet.
    async fn ask(
        &self,
        store: &Arc<Store>,
        id: &VolumeId,
        hint: CopyHint,
        coming: &Coming,
    ) -> Result<Streaming<ExportResponse>> {
        let unserved = || Error::Unavailable("this agent has no certificates yet".to_owned());
        let material = self.copies().material.get().ok_or_else(unserved)?;
        let wrong = |_| Error::Invalid(format!("{:?} is no address of an agent", hint.address));
        let channel = tls::connect(hint.address.parse().map_err(wrong)?, Arc::clone(material), tls::AGENT);
        let mut client = CopiesClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let after = store.arrival(id).map(|arrival| arrival.cursor.into());
        let asked = client.export(ExportRequest { ticket: hint.ticket, after });
        Ok(until_stop(coming, asked).await?.into_inner())
    }

    /// Begins a volume for the data that were announced, or goes on with it.
    fn begin_arrival(&self, store: &Arc<Store>, wanted: &Wanted, id: &VolumeId, head: &Head) -> Result<Flow> {
        let before = store.arrival(id).filter(|arrival| arrival.cursor.identity == head.identity);
        if !head.resumed || before.is_none() {
            let record = self.record_of(wanted, id, head)?;
            store.begin_arrival(&Arrival::new(record, &head.identity, head.data_bytes))?;
        }
        let taker = store.resume_arrival(id)?;
        let received = store.arrival(id).map_or(0, |arrival| arrival.received);
        if received > 0 {
            info!(received, "copy goes on from where it was");
        }
        Ok(Flow { taker, received, unsaved: 0 })
    }

    /// What the volume will be, if such data can become what is asked for.
    fn record_of(&self, wanted: &Wanted, id: &VolumeId, head: &Head) -> Result<Record> {
        let source = wanted.source.clone();
        let from = source.as_ref().map(ToString::to_string).unwrap_or_default();
        let cannot = |why: String| Error::Precondition(format!("a volume cannot be made from {from}: {why}"));
        let content: Content = serde_json::from_str(&head.content)
            .map_err(|_| cannot(format!("this agent does not know such data: {}", head.content)))?;
        let mut record = Record {
            id: id.clone(),
            name: wanted.name.clone(),
            capacity_bytes: head.volume_bytes,
            content: wanted.applied_to(content),
            published_node: None,
            source,
            inline: None,
        };
        wanted.check_content(&record).map_err(|error| cannot(error.to_string()))?;
        let range = at_least(head.volume_bytes, wanted.range)?;
        record.capacity_bytes = choose(range, self.engine().sizes(wanted.content))?;
        Ok(record)
    }
}

impl Flow {
    fn piece(mut self, store: &Store, id: &VolumeId, piece: &Piece) -> Result<Self> {
        self.received += self.taker.piece(piece).map_err(|error| store.explain_arrival(id, error))?;
        self.unsaved += piece.body.len();
        if self.unsaved >= CHECKPOINT {
            store.note_arrival(id, &self.taker, self.received)?;
            self.unsaved = 0;
        }
        Ok(self)
    }
}

/// The next part of a stream; none when it has ended.
async fn next(coming: &Coming, stream: &mut Streaming<ExportResponse>) -> Result<Option<Part>> {
    match until_stop(coming, stream.message()).await? {
        None => Ok(None),
        Some(ExportResponse { part: Some(part) }) => Ok(Some(part)),
        Some(ExportResponse { part: None }) => Err(Error::Corrupt("it has an empty part".to_owned())),
    }
}

/// Waits for something unless the copy is to stop.
async fn until_stop<T, E: Into<CopyError>>(
    coming: &Coming,
    work: impl Future<Output = std::result::Result<T, E>>,
) -> Result<T> {
    match coming.stop.run_until_cancelled(work).await {
        Some(done) => done.map_err(|error| error.into().0),
        None => Err(Error::Aborted("it is to stop".to_owned())),
    }
}

/// For what can be waited for: only this module needs to know that a closed semaphore is no case.
struct CopyError(Error);

impl From<Error> for CopyError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<Status> for CopyError {
    fn from(status: Status) -> Self {
        Self(status.into())
    }
}

impl From<tokio::sync::AcquireError> for CopyError {
    fn from(_: tokio::sync::AcquireError) -> Self {
        Self(Error::Unavailable("no more copies are made".to_owned()))
    }
}

/// Does work that blocks off the async threads.
async fn off<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let span = Span::current();
    let done = tokio::task::spawn_blocking(move || span.in_scope(work)).await;
    done.unwrap_or(Err(Error::Panicked))
}

/// What can be otherwise the next time is tried again from where it was; what came is kept for that.
fn after(error: &Error) -> After {
    match error {
        Error::Remote(status) => {
            let broken = std::error::Error::source(status.as_ref()).is_some();
            let passing = matches!(
                status.code(),
                Code::Unavailable
                    | Code::Aborted
                    | Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::Unknown
                    | Code::PermissionDenied
                    | Code::Unauthenticated
            );
            if broken || passing { After::GoOn } else { After::GiveUp }
        }
        Error::Host(dunnage_host::Error::Io { .. })
        | Error::Unavailable(_)
        | Error::Aborted(_)
        | Error::Busy { .. }
        | Error::Panicked => After::GoOn,
        _ => After::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_waited_out_and_the_rest_is_told() {
        let remote = |code| Error::Remote(Box::new(Status::new(code, "")));
        let io = |kind| {
            Error::Host(dunnage_host::Error::Io {
                action: "write",
                path: "x".into(),
                source: std::io::Error::from(kind),
            })
        };
        let bad = Error::Host(dunnage_host::Error::Unexpected { path: "x".into(), problem: String::new() });
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        for (error, expected) in [
            (remote(Code::Unavailable), After::GoOn),
            (remote(Code::PermissionDenied), After::GoOn),
            (remote(Code::Aborted), After::GoOn),
            (Error::Remote(Box::new(broken)), After::GoOn),
            (remote(Code::NotFound), After::GiveUp),
            (remote(Code::FailedPrecondition), After::GiveUp),
            (remote(Code::ResourceExhausted), After::GiveUp),
            (remote(Code::Internal), After::GiveUp),
            (io(std::io::ErrorKind::Other), After::GoOn),
            (Error::Full { wanted: 2, free: 1 }, After::GiveUp),
            (bad, After::GiveUp),
            (Error::Corrupt(String::new()), After::GiveUp),
            (Error::Precondition(String::new()), After::GiveUp),
            (Error::OutOfRange(String::new()), After::GiveUp),
            (Error::Aborted(String::new()), After::GoOn),
            (Error::Panicked, After::GoOn),
        ] {
            assert_eq!(after(&error), expected, "{error:?}");
        }
    }
}
