//! What the driver tells of its volumes: all of them page by page, or one.

use std::collections::HashSet;
use std::time::Duration;

use dunnage_csi::v1;
use dunnage_csi::v1::list_volumes_response::Entry;
use tonic::Status;

use super::Driver;

impl Driver {
    /// Hands the entries of each page to `take`. Each page has the whole `timeout`: a long list is no reason to give up.
    /// With `max_entries` 0 the driver chooses how many a page has.
    pub async fn list_volumes(
        &self,
        timeout: Duration,
        max_entries: i32,
        mut take: impl FnMut(Vec<Entry>),
    ) -> Result<(), Status> {
        let method = "/csi.v1.Controller/ListVolumes";
        let (mut token, mut before) = (String::new(), HashSet::new());
        loop {
            let request = v1::ListVolumesRequest { max_entries, starting_token: token };
            let page = self
                .controller(method, timeout, request, async |mut client, request| {
                    client.list_volumes(request).await
                })
                .await?;
            take(page.entries);
            if page.next_token.is_empty() {
                return Ok(());
            }
            if !before.insert(page.next_token.clone()) {
                return Err(Status::internal(format!(
                    "the driver gives the page {:?} twice",
                    page.next_token
                )));
            }
            token = page.next_token;
        }
    }

    /// What the driver says of one volume's condition, if anything.
    pub async fn get_volume_condition(
        &self,
        timeout: Duration,
        volume: &str,
    ) -> Result<Option<v1::VolumeCondition>, Status> {
        let method = "/csi.v1.Controller/ControllerGetVolume";
        let request = v1::ControllerGetVolumeRequest { volume_id: volume.to_owned() };
        let answer = self
            .controller(method, timeout, request, async |mut client, request| {
                client.controller_get_volume(request).await
            })
            .await?;
        Ok(answer.status.and_then(|status| status.volume_condition))
    }
}
