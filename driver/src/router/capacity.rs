//! The capacity of one pool, or of all of them.

use dunnage_csi::v1::{GetCapacityRequest, GetCapacityResponse};
use futures::future::join_all;

use super::controller::RouterController;
use super::forward::Deadline;
use super::index::Holder;
use crate::error::Result;
use crate::id::PoolId;

impl RouterController {
    pub(super) async fn capacity_of(
        &self,
        pool: &PoolId,
        deadline: &Deadline,
        request: GetCapacityRequest,
    ) -> Result<GetCapacityResponse> {
        let takes_volumes = self.forward.agents.ask(|index| match index.holder(pool) {
            Holder::Live { fenced, .. } => !fenced,
            Holder::Contested { .. } | Holder::GivenUp => false,
            // Not known is not nothing: the error makes the caller keep what it knew and ask again.
            Holder::Away { .. } | Holder::Unknown => true,
        });
        if !takes_volumes {
            return Ok(GetCapacityResponse {
                maximum_volume_size: Some(0),
                ..GetCapacityResponse::default()
            });
        }
        self.forward
            .call(pool, "GetCapacity", deadline, request, |mut agent, request| async move {
                agent.get_capacity(request).await
            })
            .await
    }

    /// The sum over all pools; a volume can be as large as the largest of them takes.
    pub(super) async fn whole_capacity(
        &self,
        deadline: &Deadline,
        request: GetCapacityRequest,
    ) -> Result<GetCapacityResponse> {
        self.forward.agents.ready()?;
        let live = self.forward.agents.ask(|index| {
            let live = index.pools().filter(|(id, _)| matches!(index.holder(id), Holder::Live { .. }));
            live.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        });
        let answers =
            join_all(live.iter().map(|pool| self.capacity_of(pool, deadline, request.clone()))).await;
        let mut whole: Option<GetCapacityResponse> = None;
        let mut failed = None;
        for answer in answers {
            match answer {
                Ok(answer) => whole = Some(whole.map_or(answer, |whole| add(whole, answer))),
                Err(error) => failed = Some(error),
            }
        }
        match (whole, failed) {
            (Some(whole), _) => Ok(whole),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(GetCapacityResponse::default()),
        }
    }
}

fn add(a: GetCapacityResponse, b: GetCapacityResponse) -> GetCapacityResponse {
    let largest =
        |answer: &GetCapacityResponse| answer.maximum_volume_size.unwrap_or(answer.available_capacity);
    let smallest = match (a.minimum_volume_size, b.minimum_volume_size) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => None,
    };
    GetCapacityResponse {
        available_capacity: a.available_capacity.saturating_add(b.available_capacity),
        maximum_volume_size: Some(largest(&a).max(largest(&b))),
        minimum_volume_size: smallest,
    }
}
