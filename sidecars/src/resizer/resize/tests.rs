use dunnage_cluster::queue::Outcome;
use serde_json::{Value, json};
use tonic::Code;

use super::super::model::{Answer, DRIVER, GI, Kill, Model};
use super::*;

fn rules(way: Way) -> Rules {
    Rules {
        driver: DRIVER.to_owned(),
        way,
        access: access::Rules::default(),
        annotate: true,
        mind_use: true,
        rest: Duration::from_secs(300),
    }
}

/// A process with its memory, and the world.
struct Scene {
    model: Model,
    memory: Memory,
    rules: Rules,
}

impl Scene {
    fn new() -> Self {
        Self { model: Model::new(), memory: Memory::default(), rules: rules(Way::Controller) }
    }

    fn ask(&self, size: &str) {
        self.model
            .state()
            .edit_claim(|claim| claim["spec"]["resources"]["requests"]["storage"] = json!(size));
    }

    fn answer(&self, answer: Answer) {
        self.model.state().answers.push_back(answer);
    }

    async fn sync(&self) -> Outcome {
        sync(&self.model, &self.memory, &self.rules, &Model::key()).await
    }

    fn status(&self, path: &str) -> Value {
        self.model.state().claim.pointer(&format!("/status/{path}")).cloned().unwrap_or_default()
    }

    fn state(&self) -> Value {
        self.status("allocatedResourceStatuses/storage")
    }

    fn conditions(&self) -> Vec<String> {
        let conditions = self.status("conditions");
        let kind = |condition: &Value| condition["type"].as_str().unwrap_or_default().to_owned();
        conditions.as_array().into_iter().flatten().map(kind).collect()
    }

    fn asked(&self) -> Vec<i64> {
        self.model.state().asked.clone()
    }

    fn told(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.model.state().told)
    }
}

#[tokio::test]
async fn a_claim_grows_in_one_call_when_no_node_is_needed() {
    let scene = Scene::new();
    scene.ask("2Gi");
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!(scene.asked(), [2 * GI]);
    assert_eq!(scene.model.state().volume["spec"]["capacity"]["storage"], "2Gi");
    assert_eq!(scene.model.state().volume["metadata"]["annotations"], Value::Null);
    assert_eq!((scene.status("capacity/storage"), scene.state()), (json!("2Gi"), Value::Null));
    assert_eq!(scene.status("allocatedResources/storage"), "2Gi");
    assert_eq!(scene.conditions(), Vec::<String>::new());
    let note = scene.model.state().claim["metadata"]["annotations"][facts::NO_NODE_EXPANSION].clone();
    assert_eq!(note, "true");
    assert_eq!(scene.told(), ["Resizing", "VolumeResizeSuccessful"]);
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!(scene.asked().len(), 1);
}

#[tokio::test]
async fn a_node_is_waited_for_and_the_note_of_the_size_before_goes_afterwards() {
    let scene = Scene::new();
    scene.ask("2Gi");
    scene.answer(Answer::DoneForNode);
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!((scene.status("capacity/storage"), scene.state()), (json!("1Gi"), json!("NodeResizePending")));
    assert_eq!(scene.conditions(), ["Resizing", "FileSystemResizePending"]);
    assert_eq!(scene.model.state().volume["metadata"]["annotations"][facts::SIZE_BEFORE], "1Gi");
    assert_eq!(scene.told(), ["Resizing", "FileSystemResizeRequired"]);
    // While the node is at it, nothing is asked.
    assert_eq!(scene.sync().await, Outcome::Done);
    scene.model.state().node(true);
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!(scene.model.state().volume["metadata"]["annotations"], json!({}));
    assert_eq!((scene.asked().len(), scene.status("capacity/storage")), (1, json!("2Gi")));
}

#[tokio::test]
async fn a_driver_that_grows_on_nodes_only_is_not_called() {
    let scene = Scene { rules: rules(Way::Node), ..Scene::new() };
    scene.model.state().size = 9 * GI;
    scene.ask("2Gi");
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!((scene.asked(), scene.state()), (vec![], json!("NodeResizePending")));
}

#[tokio::test(start_paused = true)]
async fn an_impossible_size_rests_until_a_smaller_one_is_asked_for() {
    for code in [Code::InvalidArgument, Code::OutOfRange, Code::NotFound] {
        let scene = Scene::new();
        scene.ask("100Gi");
        scene.answer(Answer::Refused(code));
        assert_eq!(scene.sync().await, Outcome::Retry);
        assert_eq!(scene.state(), "ControllerResizeInfeasible");
        assert_eq!(scene.conditions(), ["Resizing", "ControllerResizeError"]);
        assert_eq!(scene.told(), ["Resizing", "VolumeResizeFailed"]);
        assert_eq!(scene.sync().await, Outcome::Again(Duration::from_secs(300)));
        scene.ask("2Gi");
        assert_eq!(scene.sync().await, Outcome::Done);
        assert_eq!(scene.asked(), [100 * GI, 2 * GI], "{code:?}");
        assert_eq!(scene.status("allocatedResources/storage"), "2Gi");
        assert_eq!((scene.state(), scene.conditions()), (Value::Null, vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn an_impossible_size_is_tried_again_after_its_rest() {
    let scene = Scene::new();
    scene.ask("100Gi");
    scene.answer(Answer::Refused(Code::OutOfRange));
    assert_eq!(scene.sync().await, Outcome::Retry);
    tokio::time::advance(Duration::from_secs(301)).await;
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!(scene.asked(), [100 * GI, 100 * GI]);
}

#[tokio::test]
async fn what_may_have_been_done_is_finished_before_a_smaller_size_is_asked_for() {
    for code in
        [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable, Code::ResourceExhausted, Code::Aborted]
    {
        let scene = Scene::new();
        scene.ask("3Gi");
        scene.answer(Answer::DoneBehind(code));
        assert_eq!(scene.sync().await, Outcome::Retry);
        assert_eq!(
            (scene.state(), scene.conditions()),
            (json!("ControllerResizeInProgress"), vec!["Resizing".to_owned()])
        );
        scene.ask("2Gi");
        assert_eq!(scene.sync().await, Outcome::Done);
        assert_eq!((scene.asked(), scene.status("capacity/storage")), (vec![3 * GI, 3 * GI], json!("3Gi")));
    }
}

#[tokio::test]
async fn a_size_that_was_refused_for_good_is_left_even_by_a_process_that_comes_later() {
    for restart in [false, true] {
        let mut scene = Scene::new();
        scene.ask("3Gi");
        scene.answer(Answer::Refused(Code::Internal));
        assert_eq!(scene.sync().await, Outcome::Retry);
        assert_eq!(scene.state(), "ControllerResizeInProgress");
        assert_eq!(scene.conditions(), ["Resizing", "ControllerResizeError"]);
        if restart {
            scene.memory = Memory::default();
        }
        scene.ask("2Gi");
        assert_eq!(scene.sync().await, Outcome::Done);
        assert_eq!((scene.asked(), scene.status("capacity/storage")), (vec![3 * GI, 2 * GI], json!("2Gi")));
    }
}

#[tokio::test]
async fn a_kill_during_a_repeated_call_leaves_no_error_that_could_be_taken_for_its_end() {
    let mut scene = Scene::new();
    scene.ask("3Gi");
    scene.answer(Answer::Refused(Code::Internal));
    scene.sync().await;
    // Two reads, one patch, then the call: done, but nobody hears of it.
    scene.model.state().kill = Some(Kill { after: 3, effect: true });
    tokio::select! {
        outcome = scene.sync() => panic!("not killed: {outcome:?}"),
        () = scene.model.killed.notified() => {}
    }
    // Not in one line: the guard of the model's state lives as long as its statement.
    let size = scene.model.state().size;
    assert_eq!((size, scene.conditions()), (3 * GI, vec!["Resizing".to_owned()]));
    scene.memory = Memory::default();
    scene.ask("2Gi");
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!((scene.asked(), scene.status("capacity/storage")), (vec![3 * GI; 3], json!("3Gi")));
}

#[tokio::test]
async fn a_volume_in_use_waits_until_no_pod_uses_it() {
    let scene = Scene::new();
    scene.ask("2Gi");
    scene.answer(Answer::Refused(Code::FailedPrecondition));
    scene.model.state().pod = Some("pod".to_owned());
    assert_eq!(scene.sync().await, Outcome::Retry);
    assert_eq!(scene.told(), ["Resizing", "VolumeResizeFailed"]);
    assert_eq!(scene.sync().await, Outcome::Retry);
    assert_eq!((scene.asked().len(), scene.told()), (1, vec!["VolumeResizeFailed"]));
    assert_eq!(scene.conditions(), ["Resizing", "ControllerResizeError"]);
    scene.model.state().pod = None;
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!(scene.asked().len(), 2);
}

#[tokio::test]
async fn without_minding_use_the_driver_is_asked_again() {
    let mut scene = Scene::new();
    scene.rules.mind_use = false;
    scene.ask("2Gi");
    scene.answer(Answer::Refused(Code::FailedPrecondition));
    scene.model.state().pod = Some("pod".to_owned());
    assert_eq!(scene.sync().await, Outcome::Retry);
    assert_eq!(scene.sync().await, Outcome::Done);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_is_not_asked_over_and_over() {
    let scene = Scene::new();
    scene.ask("2Gi");
    for _ in 0..2 {
        scene.answer(Answer::DoneForNode);
        assert_eq!(scene.sync().await, Outcome::Done);
        scene.model.state().node(false);
    }
    assert_eq!(scene.sync().await, Outcome::Again(Duration::from_secs(300)));
    assert_eq!(scene.asked(), [2 * GI, 2 * GI]);
}

#[tokio::test]
async fn changes_that_come_in_between_are_no_failure() {
    let scene = Scene::new();
    scene.ask("2Gi");
    // The first one is before anything is done: looked at again, in silence.
    scene.model.state().races = 1;
    assert_eq!(scene.sync().await, Outcome::Retry);
    assert_eq!((scene.asked(), scene.told()), (vec![], vec![]));
    // The others come after the call: its outcome is written all the same.
    scene.model.state().kill = Some(Kill { after: 3, effect: false });
    tokio::select! {
        _ = scene.sync() => panic!("not killed"),
        () = scene.model.killed.notified() => scene.model.state().races = 4,
    }
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!((scene.asked(), scene.status("capacity/storage")), (vec![2 * GI], json!("2Gi")));
}

#[tokio::test]
async fn other_drivers_claims_and_unbound_ones_are_left_alone() {
    for (part, path, value) in [
        ("claim", "/status/phase", json!("Pending")),
        ("volume", "/spec/csi/driver", json!("other")),
        ("volume", "/spec/claimRef/uid", json!("other")),
        ("volume", "/spec/claimRef/namespace", json!("other")),
    ] {
        let scene = Scene::new();
        scene.ask("2Gi");
        {
            let mut state = scene.model.state();
            let object = if part == "claim" { &mut state.claim } else { &mut state.volume };
            *object.pointer_mut(path).expect("a field") = value;
        }
        assert_eq!((scene.sync().await, scene.asked()), (Outcome::Done, vec![]), "{part} {path}");
    }
}
