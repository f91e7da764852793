//! Reading and writing the Lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::Config;
use super::decide::{Me, Seen, Step, decide, held, observe, released};
use crate::error::chain;
use crate::{Error, queue};

pub(super) struct Holder {
    api: Api<Lease>,
    config: Config,
    /// The Lease as last read or written, with its resource version.
    lease: Option<Lease>,
    seen: Option<Seen>,
}

impl Holder {
    pub(super) fn new(client: Client, config: Config) -> Self {
        let api = Api::namespaced(client, &config.namespace);
        Self { api, config, lease: None, seen: None }
    }

    /// Tries until this process holds the Lease, and says since when; none when `stop` came first.
    pub(super) async fn acquire(&mut self, stop: &CancellationToken) -> Option<Instant> {
        let mut told = String::new();
        loop {
            // Taken before the request: the time that others count from cannot be earlier.
            let started = Instant::now();
            let tried = tokio::select! {
                () = stop.cancelled() => return None,
                tried = tokio::time::timeout(self.config.renew_deadline, self.attempt()) => tried,
            };
            match tried {
                Ok(Ok(true)) => return Some(started),
                Ok(Ok(false)) => {
                    let holder = self.seen.as_ref().and_then(|seen| seen.record.holder_identity.clone());
                    let holder = holder.unwrap_or_default();
                    if holder != told {
                        info!(lease = self.config.lease(), holder, "waiting for the leader");
                        told = holder;
                    }
                }
                Ok(Err(error)) => {
                    warn!(lease = self.config.lease(), error = chain(&error), "cannot take the lease yet");
                }
                Err(_elapsed) => warn!(lease = self.config.lease(), "no answer about the lease"),
            }
            // Spread, so that followers do not all write at once.
            let pause = self.config.retry_period.mul_f64(1.0 + queue::random() / 5.0);
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Renews until that has not worked for the renew deadline since `last`, or somebody else holds the Lease.
    pub(super) async fn renew(&mut self, mut last: Instant, mut renewed: impl FnMut(Instant)) -> Error {
        loop {
            tokio::time::sleep(self.config.retry_period.min(self.config.renew_deadline)).await;
            let deadline = last + self.config.renew_deadline;
            loop {
                let started = Instant::now();
                match tokio::time::timeout_at(deadline, self.attempt()).await {
                    Ok(Ok(true)) => {
                        last = started;
                        renewed(last);
                        break;
                    }
                    Ok(Ok(false)) => {
                        let holder =
                            self.seen.as_ref().and_then(|seen| seen.record.holder_identity.as_deref());
                        warn!(lease = self.config.lease(), ?holder, "somebody else holds the lease");
                        return self.lost();
                    }
                    Ok(Err(error)) => {
                        warn!(lease = self.config.lease(), error = chain(&error), "cannot renew the lease");
                    }
                    Err(_elapsed) => return self.lost(),
                }
                let pause = (self.config.retry_period / 5).max(Duration::from_millis(100));
                tokio::time::sleep_until((Instant::now() + pause).min(deadline)).await;
            }
        }
    }

    fn lost(&self) -> Error {
        Error::LeaseLost { lease: self.config.lease() }
    }

    /// Gives the Lease up, so that another process need not wait for it to run out.
    pub(super) async fn release(&mut self) {
        match tokio::time::timeout(self.config.renew_deadline, self.give_up()).await {
            Ok(Ok(true)) => info!(lease = self.config.lease(), "released the lease"),
            Ok(Ok(false)) => debug!(lease = self.config.lease(), "the lease is somebody else's already"),
            Ok(Err(error)) => {
                warn!(lease = self.config.lease(), error = chain(&error), "cannot release the lease");
            }
            Err(_elapsed) => warn!(lease = self.config.lease(), "no answer to the lease's release"),
        }
    }

    /// Writes the released record over this process's own; false when there is none of its own.
    async fn give_up(&mut self) -> Result<bool, Error> {
        while let Some(lease) = self.lease.clone().filter(|lease| self.is_mine(lease)) {
            let record = released(&lease.spec.clone().unwrap_or_default(), now());
            match self.replace(lease, record).await {
                Ok(()) => return Ok(true),
                // Also what a renewal leaves that was under way when the work ended: it was written, and not heard of.
                Err(error) if error.is_conflict() || error.is_not_found() => self.read().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn is_mine(&self, lease: &Lease) -> bool {
        lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref())
            == Some(self.config.identity.as_str())
    }

    /// One look and, if it is to be, one write. Whether the Lease is this process's afterwards.
    async fn attempt(&mut self) -> Result<bool, Error> {
        if let Some(lease) = self.lease.clone().filter(|lease| self.is_mine(lease)) {
            // The usual renewal: one write, no read. It fails if anybody else wrote.
            let record = held(lease.spec.as_ref(), self.me(), now());
            match self.replace(lease, record).await {
                Ok(()) => return Ok(true),
                Err(error) if error.is_conflict() || error.is_not_found() => {
                    debug!(lease = self.config.lease(), error = chain(&error), "reading the lease again");
                }
                Err(error) => return Err(error),
            }
        }
        self.read().await?;
        match decide(self.seen.as_ref(), self.me(), Instant::now()) {
            Step::Wait => Ok(false),
            Step::Create => self.create().await.map(|()| true),
            Step::Take | Step::Renew => {
                let lease = self.lease.clone().unwrap_or_default();
                let record = held(lease.spec.as_ref(), self.me(), now());
                self.replace(lease, record).await.map(|()| true)
            }
        }
    }

    async fn read(&mut self) -> Result<(), Error> {
        self.lease = self
            .api
            .get_opt(&self.config.name)
            .await
            .map_err(Error::api(format!("get lease {}", self.config.lease())))?;
        self.seen = self
            .lease
            .as_ref()
            .map(|lease| observe(self.seen.take(), lease.spec.clone().unwrap_or_default(), Instant::now()));
        Ok(())
    }

    async fn create(&mut self) -> Result<(), Error> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.config.name.clone()),
                namespace: Some(self.config.namespace.clone()),
                labels: Some(self.config.labels.clone()).filter(|labels| !labels.is_empty()),
                ..ObjectMeta::default()
            },
            spec: Some(held(None, self.me(), now())),
        };
        let made = self.api.create(&PostParams::default(), &lease).await;
        self.written(made.map_err(Error::api(format!("create lease {}", self.config.lease())))?);
        Ok(())
    }

    async fn replace(&mut self, mut lease: Lease, record: LeaseSpec) -> Result<(), Error> {
        lease.spec = Some(record);
        lease.metadata.managed_fields = None;
        lease.metadata.labels.get_or_insert_default().extend(self.config.labels.clone());
        let made = self.api.replace(&self.config.name, &PostParams::default(), &lease).await;
        self.written(made.map_err(Error::api(format!("update lease {}", self.config.lease())))?);
        Ok(())
    }

    fn written(&mut self, lease: Lease) {
        self.seen = Some(Seen { record: lease.spec.clone().unwrap_or_default(), since: Instant::now() });
        self.lease = Some(lease);
    }

    fn me(&self) -> Me<'_> {
        Me { identity: &self.config.identity, lease_duration: self.config.lease_duration }
    }
}

/// The time in microseconds, which is all that a Lease's fields hold.
fn now() -> MicroTime {
    let now = Timestamp::now();
    MicroTime(
        now.round(TimestampRound::new().smallest(Unit::Microsecond).mode(RoundMode::Trunc)).unwrap_or(now),
    )
}
