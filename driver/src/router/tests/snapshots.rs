//! Snapshots, and volumes with a source, through the router.

use dunnage_csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use dunnage_csi::v1::{
    self, CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest,
    ListVolumesRequest, VolumeContentSource,
};
use tonic::{Code, Status};

use super::fake::{Do, Fake, Lab, create_request, until};
use super::{A, B};
use crate::id::VolumeId;

async fn snapshot(lab: &Lab, name: &str, volume: &str) -> Result<String, Status> {
    let request = CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume.to_owned(),
        ..CreateSnapshotRequest::default()
    };
    let made = lab.controller().create_snapshot(request).await?;
    Ok(made.into_inner().snapshot.unwrap().snapshot_id)
}

async fn delete(lab: &Lab, id: &str) -> Result<(), Status> {
    let request = DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..DeleteSnapshotRequest::default() };
    lab.controller().delete_snapshot(request).await.map(drop)
}

async fn list(lab: &Lab, request: ListSnapshotsRequest) -> Result<(Vec<String>, String), Status> {
    let listed = lab.controller().list_snapshots(request).await?.into_inner();
    let ids = listed.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id);
    Ok((ids.collect(), listed.next_token))
}

async fn get(lab: &Lab, id: &str) -> Result<v1::Snapshot, Status> {
    let request = GetSnapshotRequest { snapshot_id: id.to_owned(), ..GetSnapshotRequest::default() };
    Ok(lab.controller().get_snapshot(request).await?.into_inner().snapshot.unwrap())
}

#[tokio::test]
async fn a_snapshot_is_found_by_its_id_until_it_is_deleted() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let mut lab = Lab::with(&[&a, &b]).await;
    let volume = lab.create("pvc-1", &[A]).await.unwrap();
    let (first, second) =
        (snapshot(&lab, "s1", &volume).await.unwrap(), snapshot(&lab, "s2", &volume).await.unwrap());
    let found = get(&lab, &first).await.unwrap();
    assert_eq!((&found.snapshot_id, &found.source_volume_id), (&first, &volume));
    assert!(found.ready_to_use);
    delete(&lab, &second).await.unwrap();
    lab.kill("na");
    lab.until_connected(1).await;
    assert_eq!(get(&lab, &first).await.unwrap(), found, "its node is away, and it is there all the same");
    for (id, code) in [
        ("", Code::InvalidArgument),
        ("somebody-elses", Code::NotFound),
        (volume.as_str(), Code::NotFound),
        (second.as_str(), Code::NotFound),
        ("cccccccccccccccc-snap-0123456789abcdef0123456789abcdef", Code::Unavailable),
    ] {
        assert_eq!(get(&lab, id).await.unwrap_err().code(), code, "{id}");
    }
    lab.announce_with(&[A]);
    until("the snapshot is given up", async || {
        get(&lab, &first).await.is_err_and(|error| error.code() == Code::NotFound)
    })
    .await;
}

#[tokio::test]
async fn the_list_of_volumes_tells_what_each_was_made_from() {
    let a = Fake::new("na", A);
    let lab = Lab::with(&[&a]).await;
    let volume = lab.create("pvc-1", &[A]).await.unwrap();
    let snapshot_id = snapshot(&lab, "s1", &volume).await.unwrap();
    let sources = [
        Type::Snapshot(SnapshotSource { snapshot_id }),
        Type::Volume(VolumeSource { volume_id: volume.clone() }),
    ]
    .map(|source| VolumeContentSource { r#type: Some(source) });
    for (name, source) in ["pvc-2", "pvc-3"].into_iter().zip(&sources) {
        let mut request = create_request(name, &[A]);
        request.volume_content_source = Some(source.clone());
        lab.controller().create_volume(request).await.unwrap();
    }
    let listed = lab.controller().list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let told = |name: &str| {
        let id = VolumeId::make(&A.parse().unwrap(), name).to_string();
        let volumes = listed.entries.iter().filter_map(|entry| entry.volume.as_ref());
        volumes.filter(|volume| volume.volume_id == id).map(|volume| volume.content_source.clone()).next()
    };
    assert_eq!(told("pvc-1"), Some(None));
    assert_eq!(told("pvc-2"), Some(Some(sources[0].clone())));
    assert_eq!(told("pvc-3"), Some(Some(sources[1].clone())));
}

#[tokio::test]
async fn a_snapshot_is_made_where_its_volume_is_and_listed_among_all() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    let (first, second) =
        (lab.create("pvc-1", &[A]).await.unwrap(), lab.create("pvc-2", &[B]).await.unwrap());
    let ids = [snapshot(&lab, "s1", &first).await.unwrap(), snapshot(&lab, "s2", &second).await.unwrap()];
    assert!(ids[0].starts_with(A) && ids[1].starts_with(B));
    assert_eq!(list(&lab, ListSnapshotsRequest::default()).await.unwrap(), (ids.to_vec(), String::new()));
    let one = ListSnapshotsRequest { max_entries: 1, ..ListSnapshotsRequest::default() };
    let (page, starting_token) = list(&lab, one.clone()).await.unwrap();
    let rest = list(&lab, ListSnapshotsRequest { starting_token, ..one }).await.unwrap();
    assert_eq!((page, rest), (ids[..1].to_vec(), (ids[1..].to_vec(), String::new())));
    for (request, expected) in [
        (ListSnapshotsRequest { snapshot_id: ids[1].clone(), ..Default::default() }, &ids[1..]),
        (ListSnapshotsRequest { source_volume_id: first.clone(), ..Default::default() }, &ids[..1]),
        (ListSnapshotsRequest { snapshot_id: "other".into(), ..Default::default() }, &[]),
    ] {
        assert_eq!(list(&lab, request).await.unwrap().0, expected);
    }
    delete(&lab, &ids[1]).await.unwrap();
    assert_eq!(list(&lab, ListSnapshotsRequest::default()).await.unwrap().0, &ids[..1]);
    assert_eq!(b.calls().last().unwrap(), &format!("DeleteSnapshot {}", ids[1]));
    assert!(!a.calls().iter().any(|call| call.starts_with("DeleteSnapshot")));
}

#[tokio::test]
async fn a_snapshots_name_is_not_given_to_another_volume_on_another_pool() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    let (first, second) =
        (lab.create("pvc-1", &[A]).await.unwrap(), lab.create("pvc-2", &[B]).await.unwrap());
    let id = snapshot(&lab, "s1", &first).await.unwrap();
    let refused = snapshot(&lab, "s1", &second).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().contains(&id), "{}", refused.message());
    assert_eq!(snapshot(&lab, "s1", &first).await.unwrap(), id);
    for (name, volume, code) in [
        ("", first.as_str(), Code::InvalidArgument),
        ("s2", "", Code::InvalidArgument),
        ("s2", "somebody-elses", Code::NotFound),
    ] {
        assert_eq!(snapshot(&lab, name, volume).await.unwrap_err().code(), code);
    }
}

#[tokio::test]
async fn one_call_a_snapshots_name_at_a_time() {
    let a = Fake::new("na", A);
    let lab = Lab::with(&[&a]).await;
    let volume = lab.create("pvc-1", &[A]).await.unwrap();
    a.instead("CreateSnapshot", Do::Hang);
    let mut controller = lab.controller();
    let request = CreateSnapshotRequest {
        name: "s1".into(),
        source_volume_id: volume.clone(),
        ..CreateSnapshotRequest::default()
    };
    let call = tokio::spawn(async move { controller.create_snapshot(request).await });
    until("the agent is called", async || a.calls().last().unwrap() == "CreateSnapshot s1").await;
    assert_eq!(snapshot(&lab, "s1", &volume).await.unwrap_err().code(), Code::Aborted);
    call.abort();
}

#[tokio::test]
async fn a_volume_from_a_snapshot_goes_to_the_snapshots_pool_or_is_copied_from_there() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    let volume = lab.create("pvc-1", &[A]).await.unwrap();
    let snapshot_id = snapshot(&lab, "s1", &volume).await.unwrap();
    let source = |snapshot_id: &str| {
        let snapshot_id = snapshot_id.to_owned();
        Some(VolumeContentSource { r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id })) })
    };
    let mut request = create_request("pvc-2", &[B]);
    request.volume_content_source = source(&snapshot_id);
    lab.controller().create_volume(request.clone()).await.unwrap();
    assert_eq!(b.calls(), ["CreateVolume pvc-2".to_owned(), format!("copy from {}", lab.address("na"))]);
    request.name = "pvc-3".into();
    request.accessibility_requirements = create_request("", &[B, A]).accessibility_requirements;
    let made = lab.controller().create_volume(request.clone()).await.unwrap().into_inner().volume.unwrap();
    assert!(made.volume_id.starts_with(A));
    assert_eq!(b.calls().len(), 2, "what lies on the same pool is not copied from another");
    request.name = "pvc-4".into();
    request.volume_content_source = source("nothing");
    assert_eq!(lab.controller().create_volume(request).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_snapshot_on_a_pool_that_is_given_up_is_deleted_and_one_on_a_pool_that_is_away_is_not() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let mut lab = Lab::with(&[&a, &b]).await;
    let volume = lab.create("pvc-1", &[A]).await.unwrap();
    let id = snapshot(&lab, "s1", &volume).await.unwrap();
    lab.kill("na");
    lab.until_connected(1).await;
    assert_eq!(delete(&lab, &id).await.unwrap_err().code(), Code::Unavailable, "it may come back");
    assert_eq!(list(&lab, ListSnapshotsRequest::default()).await.unwrap().0, std::slice::from_ref(&id));
    lab.announce_with(&[A]);
    until("the snapshot is gone", async || delete(&lab, &id).await.is_ok()).await;
    assert_eq!(list(&lab, ListSnapshotsRequest::default()).await.unwrap().0, [""; 0]);
    delete(&lab, "somebody-elses").await.unwrap();
    assert_eq!(delete(&lab, "").await.unwrap_err().code(), Code::InvalidArgument);
}
