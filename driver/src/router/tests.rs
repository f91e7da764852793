mod fake;
mod groups;
mod snapshots;

use std::time::Duration;

use dunnage_csi::v1::controller_service_capability::{Type, rpc};
use dunnage_csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest,
    ControllerModifyVolumeRequest, ControllerPublishVolumeRequest, ControllerServiceCapability,
    GetCapacityRequest, GetCapacityResponse, ListVolumesRequest, VolumeCapability,
};
use tonic::{Code, Request, Status};

use crate::engine::EngineKind;
use fake::{Do, Fake, Lab, create_request, topology, until};

const A: &str = "aaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbb";
const NOBODYS: &str = "cccccccccccccccc-0123456789abcdef0123456789abcdef";

#[tokio::test]
async fn a_volume_is_made_on_the_pool_asked_for_and_found_again_by_its_id() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    let id = lab.create("pvc-1", &[B]).await.unwrap();
    assert!(id.starts_with(B));
    assert_eq!(lab.list().await.unwrap(), std::slice::from_ref(&id));
    lab.delete(&id).await.unwrap();
    assert!(lab.list().await.unwrap().is_empty());
    assert_eq!(b.calls(), ["CreateVolume pvc-1".to_owned(), format!("DeleteVolume {id}")]);
    assert!(a.calls().is_empty());
}

#[tokio::test]
async fn a_volume_grows_where_it_is_and_the_list_knows_at_once() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    let id = lab.create("pvc-1", &[B]).await.unwrap();
    let request = |volume_id: &str, capacity_range| ControllerExpandVolumeRequest {
        volume_id: volume_id.to_owned(),
        capacity_range,
        ..ControllerExpandVolumeRequest::default()
    };
    let range = Some(CapacityRange { required_bytes: 5 << 20, limit_bytes: 0 });
    let answer = lab.controller().controller_expand_volume(request(&id, range)).await.unwrap().into_inner();
    assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (5 << 20, true));
    assert_eq!(b.calls().last().unwrap(), &format!("ControllerExpandVolume {id}"));
    assert!(a.calls().is_empty());
    let list = lab.controller().list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    assert_eq!(list.entries[0].volume.as_ref().unwrap().capacity_bytes, 5 << 20);
    for (id, range, code) in [
        ("", range, Code::InvalidArgument),
        (id.as_str(), None, Code::InvalidArgument),
        ("x", range, Code::NotFound),
        (NOBODYS, range, Code::Unavailable),
    ] {
        let refused = lab.controller().controller_expand_volume(request(id, range)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{id} {refused}");
    }
}

#[tokio::test]
async fn a_volume_is_modified_where_it_is_and_only_where_there_is_something_to_modify() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    let id = lab.create("pvc-1", &[B]).await.unwrap();
    let request = |volume_id: &str| ControllerModifyVolumeRequest {
        volume_id: volume_id.to_owned(),
        mutable_parameters: [("compression".to_owned(), "zstd".to_owned())].into(),
        ..ControllerModifyVolumeRequest::default()
    };
    lab.controller().controller_modify_volume(request(&id)).await.unwrap();
    assert_eq!(b.calls().last().unwrap(), &format!("ControllerModifyVolume {id}"));
    assert!(a.calls().is_empty());
    for (id, code) in [("", Code::InvalidArgument), ("x", Code::NotFound), (NOBODYS, Code::Unavailable)] {
        let refused = lab.controller().controller_modify_volume(request(id)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{id} {refused}");
    }
    for (engine, modifies) in
        [(EngineKind::Btrfs, true), (EngineKind::Directory, false), (EngineKind::LoopFile, false)]
    {
        let lab = Lab::of(engine, false).await;
        let asked = ControllerGetCapabilitiesRequest {};
        let told = lab.controller().controller_get_capabilities(asked).await.unwrap().into_inner();
        let is_modify = |capability: &ControllerServiceCapability| match capability.r#type {
            Some(Type::Rpc(rpc)) => rpc.r#type() == rpc::Type::ModifyVolume,
            None => false,
        };
        assert_eq!(told.capabilities.iter().any(is_modify), modifies, "{engine:?}");
        if !modifies {
            let refused = lab.controller().controller_modify_volume(request(&id)).await.unwrap_err();
            assert_eq!(refused.code(), Code::Unimplemented, "{engine:?}");
        }
    }
}

#[tokio::test]
async fn the_next_pool_is_tried_when_the_first_is_full() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    a.instead("CreateVolume", Do::Refuse(Status::resource_exhausted("7 bytes free")));
    assert!(lab.create("pvc-1", &[A, B]).await.unwrap().starts_with(B));
    let full = lab.create("pvc-2", &[A]).await.unwrap_err();
    assert_eq!((full.code(), full.message()), (Code::ResourceExhausted, "7 bytes free"));
}

#[tokio::test]
async fn any_other_refusal_is_the_answer() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    a.instead("CreateVolume", Do::Refuse(Status::invalid_argument("no such parameter")));
    let refused = lab.create("pvc-1", &[A, B]).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "no such parameter"));
    assert!(b.calls().is_empty());
}

#[tokio::test]
async fn a_volume_on_a_pool_no_longer_allowed_is_removed_before_the_new_one_is_made() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let lab = Lab::with(&[&a, &b]).await;
    let old = lab.create("pvc-1", &[A]).await.unwrap();
    a.instead("DeleteVolume", Do::Refuse(Status::internal("input/output error")));
    let refused = lab.create("pvc-1", &[B]).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "not final, so that it is asked again");
    assert!(refused.message().contains("input/output error"), "{}", refused.message());
    assert!(b.calls().is_empty(), "there would be two");
    a.instead.lock().unwrap().clear();
    let new = lab.create("pvc-1", &[B]).await.unwrap();
    assert_eq!(lab.list().await.unwrap(), [new]);
    assert_eq!(a.calls().last().unwrap(), &format!("DeleteVolume {old}"));
}

#[tokio::test]
async fn an_agent_that_dies_hands_its_claims_back_keeps_its_list_and_serves_again_when_it_is_back() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let mut lab = Lab::with(&[&a, &b]).await;
    let id = lab.create("pvc-1", &[A]).await.unwrap();
    lab.kill("na");
    lab.until_connected(1).await;
    let refused = lab.create("pvc-2", &[A]).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let refused = lab.delete(&id).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains(A) && refused.message().contains("na"), "{}", refused.message());
    assert_eq!(lab.list().await.unwrap(), std::slice::from_ref(&id));
    assert!(lab.create("pvc-3", &[B]).await.is_ok(), "the others go on");
    lab.serve(&a).await;
    lab.announce();
    lab.until_connected(2).await;
    lab.delete(&id).await.unwrap();
    assert!(lab.create("pvc-2", &[A]).await.is_ok());
}

#[tokio::test]
async fn an_agent_that_dies_in_the_middle_of_a_call_gives_an_error_that_is_not_final() {
    let a = Fake::new("na", A);
    let mut lab = Lab::with(&[&a]).await;
    a.instead("CreateVolume", Do::Hang);
    let mut controller = lab.controller();
    let call = tokio::spawn(async move { controller.create_volume(create_request("pvc-1", &[A])).await });
    until("the agent is called", async || !a.calls().is_empty()).await;
    lab.kill("na");
    let lost = call.await.unwrap().unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable, "{lost}");
    assert!(lost.message().contains("node na"), "{}", lost.message());
}

#[tokio::test]
async fn the_last_list_of_agents_holds_while_nobody_announces() {
    let a = Fake::new("na", A);
    let mut lab = Lab::with(&[&a]).await;
    lab.hang_up();
    assert!(lab.create("pvc-1", &[A]).await.is_ok());
    assert!(lab.probe().await);
}

#[tokio::test]
async fn one_pool_on_two_nodes_is_refused_and_both_are_fenced() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", A));
    let lab = Lab::with(&[&a, &b]).await;
    let fenced = |fake: &Fake| {
        let calls = fake.calls();
        calls.iter().any(|call| call.starts_with("Fence true") && call.contains("na, nb"))
    };
    until("both are fenced", async || fenced(&a) && fenced(&b)).await;
    let refused = lab.create("pvc-1", &[A]).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("na, nb"), "{}", refused.message());
    let refused = lab.delete(&format!("{A}-0123456789abcdef0123456789abcdef")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    // A person chooses.
    b.said.send_modify(|said| said.pool.as_mut().unwrap().fenced = false);
    until("the chosen one serves", async || lab.create("pvc-1", &[A]).await.is_ok()).await;
    assert!(!a.calls().iter().any(|call| call.starts_with("CreateVolume")));
}

#[tokio::test]
async fn another_nodes_agent_at_a_reused_address_is_not_taken_for_the_one_on_the_list() {
    let (a, stranger) = (Fake::new("na", A), Fake::new("nx", B));
    let mut lab = Lab::start(false).await;
    lab.serve(&a).await;
    lab.serve_as(&stranger, "nb").await;
    lab.announce();
    until("all are tried", async || lab.probe().await).await;
    lab.until_connected(1).await;
    assert_eq!(lab.create("pvc-1", &[B]).await.unwrap_err().code(), Code::ResourceExhausted);
    assert!(stranger.calls().is_empty());
}

#[tokio::test]
async fn the_agent_gets_the_callers_deadline() {
    let a = Fake::new("na", A);
    let lab = Lab::with(&[&a]).await;
    a.instead("CreateVolume", Do::Hang);
    let mut request = Request::new(create_request("pvc-1", &[A]));
    request.set_timeout(Duration::from_millis(300));
    let late = lab.controller().create_volume(request).await.unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late}");
    until("the agent's call ends", async || a.calls().last().unwrap() == "dropped").await;
}

#[tokio::test]
async fn a_caller_that_goes_takes_the_agents_call_along() {
    let a = Fake::new("na", A);
    let lab = Lab::with(&[&a]).await;
    a.instead("CreateVolume", Do::Hang);
    let mut controller = lab.controller();
    let call = tokio::spawn(async move { controller.create_volume(create_request("pvc-1", &[A])).await });
    until("the agent is called", async || !a.calls().is_empty()).await;
    let busy = lab.create("pvc-1", &[A]).await.unwrap_err();
    assert_eq!(busy.code(), Code::Aborted, "one call a name");
    call.abort();
    until("the agent's call ends", async || a.calls().last().unwrap() == "dropped").await;
    a.instead.lock().unwrap().clear();
    until("the name is free", async || lab.create("pvc-1", &[A]).await.is_ok()).await;
}

#[tokio::test]
async fn nothing_is_answered_before_the_first_list() {
    let mut lab = Lab::start(false).await;
    assert!(!lab.probe().await);
    assert_eq!(lab.create("pvc-1", &[A]).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(lab.list().await.unwrap_err().code(), Code::Unavailable);
    lab.announce();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!lab.probe().await, "an empty list may be that of a watch that has not begun");
    lab.serve(&Fake::new("na", A)).await;
    lab.announce();
    until("the probe succeeds", async || lab.probe().await).await;
}

#[tokio::test]
async fn a_stop_ends_the_router_although_lists_may_still_come() {
    let mut lab = Lab::with(&[&Fake::new("na", A)]).await;
    lab.stop.cancel();
    let stopped = tokio::time::timeout(Duration::from_secs(5), &mut lab.router).await;
    stopped.expect("it goes on").unwrap().unwrap();
}

#[tokio::test]
async fn what_is_on_a_pool_that_is_given_up_is_gone_and_what_an_agent_shows_is_not() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let mut lab = Lab::with(&[&a, &b]).await;
    let id = lab.create("pvc-1", &[A]).await.unwrap();
    lab.kill("na");
    lab.until_connected(1).await;
    assert_eq!(lab.delete(&id).await.unwrap_err().code(), Code::Unavailable, "it may come back");
    lab.announce_with(&[A, B]);
    until("the volume is gone", async || lab.delete(&id).await.is_ok()).await;
    assert_eq!(lab.list().await.unwrap(), [""; 0]);
    // The claim is served elsewhere, and a pool that is there is used as ever.
    let elsewhere = lab.create("pvc-1", &[B]).await.unwrap();
    assert!(elsewhere.starts_with(B), "{elsewhere}");
    lab.delete(&elsewhere).await.unwrap();
    assert!(b.calls().iter().any(|call| call.starts_with("DeleteVolume")), "{:?}", b.calls());
    assert_eq!(lab.create("pvc-2", &[A]).await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn an_id_that_is_not_ours_is_gone_already_and_one_of_an_unknown_pool_is_not() {
    let lab = Lab::with(&[&Fake::new("na", A)]).await;
    lab.delete("somebody-elses").await.unwrap();
    assert_eq!(lab.delete("").await.unwrap_err().code(), Code::InvalidArgument);
    let unknown = lab.delete(NOBODYS).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unavailable);
    assert!(unknown.message().contains("cccccccccccccccc"), "{}", unknown.message());
}

#[tokio::test]
async fn capacity_is_of_the_pool_asked_for_or_of_all() {
    let (a, b) = (Fake::new("na", A), Fake::new("nb", B));
    let mut lab = Lab::with(&[&a, &b]).await;
    b.said.send_modify(|said| said.pool.as_mut().unwrap().available_bytes = 1 << 20);
    let ask = async |lab: &Lab, pool: Option<&str>| {
        let accessible_topology = pool.map(topology);
        let request = GetCapacityRequest { accessible_topology, ..GetCapacityRequest::default() };
        lab.controller().get_capacity(request).await.map(tonic::Response::into_inner)
    };
    assert_eq!(ask(&lab, Some(B)).await.unwrap().available_capacity, 1 << 20);
    let whole = ask(&lab, None).await.unwrap();
    let expected = GetCapacityResponse {
        available_capacity: (1 << 30) + (1 << 20),
        maximum_volume_size: Some(1 << 30),
        minimum_volume_size: None,
    };
    assert_eq!(whole, expected);
    b.said.send_modify(|said| said.pool.as_mut().unwrap().fenced = true);
    until("nothing is free behind a fence", async || {
        ask(&lab, Some(B)).await.unwrap().available_capacity == 0
    })
    .await;
    assert_eq!(ask(&lab, None).await.unwrap().available_capacity, 1 << 30);
    lab.kill("nb");
    lab.until_connected(1).await;
    assert_eq!(ask(&lab, Some(B)).await.unwrap_err().code(), Code::Unavailable, "not known is not nothing");
}

#[tokio::test]
async fn a_page_token_that_is_none_is_refused() {
    let lab = Lab::with(&[&Fake::new("na", A)]).await;
    for (request, code) in [
        (ListVolumesRequest { starting_token: "17".into(), max_entries: 0 }, Code::Aborted),
        (ListVolumesRequest { starting_token: String::new(), max_entries: -1 }, Code::InvalidArgument),
    ] {
        assert_eq!(lab.controller().list_volumes(request).await.unwrap_err().code(), code);
    }
}

#[tokio::test]
async fn volumes_are_given_to_nodes_only_with_attach() {
    for attach in [false, true] {
        let a = Fake::new("na", A);
        let mut lab = Lab::start(attach).await;
        lab.serve(&a).await;
        lab.announce();
        lab.until_connected(1).await;
        let id = lab.create("pvc-1", &[A]).await.unwrap();
        let request = ControllerPublishVolumeRequest {
            volume_id: id,
            node_id: "na".into(),
            volume_capability: Some(VolumeCapability::default()),
            ..ControllerPublishVolumeRequest::default()
        };
        let given = lab.controller().controller_publish_volume(request).await;
        assert_eq!(given.err().map(|status| status.code()), (!attach).then_some(Code::Unimplemented));
        assert_eq!(a.calls().contains(&"ControllerPublishVolume na".to_owned()), attach);
        let can = lab.controller().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await;
        assert_eq!(format!("{can:?}").contains("PublishUnpublishVolume"), attach);
    }
}

#[tokio::test]
async fn calls_are_counted_by_pool_and_outcome() {
    let a = Fake::new("na", A);
    let lab = Lab::with(&[&a]).await;
    lab.create("pvc-1", &[A]).await.unwrap();
    a.instead("CreateVolume", Do::Refuse(Status::invalid_argument("")));
    lab.create("pvc-2", &[A]).await.unwrap_err();
    for code in ["OK", "InvalidArgument"] {
        let line = format!(
            "dunnage_router_calls_total{{pool=\"{A}\",method=\"CreateVolume\",grpc_status_code=\"{code}\"}} 1"
        );
        assert!(lab.metrics.render().contains(&line), "{}", lab.metrics.render());
    }
}
