use serde_json::{Value, json};
use tonic::Code;

use super::super::model::{Answer, DRIVER, Model};
use super::*;

struct Scene {
    model: Model,
    memory: Memory,
    rules: Rules,
}

impl Scene {
    fn new() -> Self {
        let rules = Rules { driver: DRIVER.to_owned(), names: false, rest: Duration::from_secs(300) };
        Self { model: Model::new(), memory: Memory::default(), rules }
    }

    fn want(&self, class: &str) {
        self.model.state().edit_claim(|claim| claim["spec"]["volumeAttributesClassName"] = json!(class));
    }

    async fn sync(&self) -> Outcome {
        sync(&self.model, &self.memory, &self.rules, &Model::key()).await
    }

    async fn refuse(&self, code: Code) {
        self.model.state().answers.push_back(Answer::Refused(code));
        assert_eq!(self.sync().await, Outcome::Retry);
    }

    fn status(&self, field: &str) -> Value {
        self.model.state().claim["status"][field].clone()
    }

    fn conditions(&self) -> Vec<String> {
        let conditions = self.status("conditions");
        let kind = |condition: &Value| condition["type"].as_str().unwrap_or_default().to_owned();
        conditions.as_array().into_iter().flatten().map(kind).collect()
    }

    fn asked(&self) -> Vec<String> {
        self.model.state().modified.iter().map(|parameters| parameters["class"].clone()).collect()
    }

    fn told(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.model.state().told)
    }
}

#[tokio::test]
async fn a_claim_gets_the_class_that_it_wants() {
    let scene = Scene::new();
    assert_eq!((scene.sync().await, scene.asked()), (Outcome::Done, vec![]));
    scene.want("gold");
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!(scene.asked(), ["gold"]);
    assert_eq!(scene.status("currentVolumeAttributesClassName"), "gold");
    assert_eq!((scene.status("modifyVolumeStatus"), scene.conditions()), (Value::Null, vec![]));
    assert_eq!(scene.model.state().volume["spec"]["volumeAttributesClassName"], "gold");
    assert_eq!(scene.told(), ["VolumeModify", "VolumeModifySuccessful"]);
}

#[tokio::test]
async fn a_class_that_is_missing_or_anothers_is_waited_for() {
    for other in [None, Some("other.driver")] {
        let scene = Scene::new();
        scene.model.state().classes.remove("gold");
        let others = other.map(|driver| ("gold".to_owned(), driver.to_owned()));
        scene.model.state().classes.extend(others);
        scene.want("gold");
        assert_eq!(scene.sync().await, Outcome::Done);
        let pending = json!({"targetVolumeAttributesClassName": "gold", "status": "Pending"});
        assert_eq!((scene.status("modifyVolumeStatus"), scene.asked()), (pending, vec![]));
        assert_eq!(scene.told(), ["VolumeModifyFailed"]);
        scene.model.state().classes.insert("gold".to_owned(), DRIVER.to_owned());
        assert_eq!((scene.sync().await, scene.asked()), (Outcome::Done, vec!["gold".to_owned()]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_class_that_cannot_be_had_rests_until_another_is_wanted() {
    let scene = Scene::new();
    scene.want("gold");
    scene.refuse(Code::InvalidArgument).await;
    assert_eq!(scene.status("modifyVolumeStatus")["status"], "Infeasible");
    assert_eq!(scene.conditions(), [plan::MODIFYING, MODIFY_ERROR]);
    assert_eq!(scene.status("conditions")[1]["reason"], "InvalidArgument");
    assert_eq!(scene.told(), ["VolumeModify", "VolumeModifyFailed"]);
    assert_eq!(scene.sync().await, Outcome::Again(Duration::from_secs(300)));
    scene.want("silver");
    assert_eq!(
        (scene.sync().await, scene.asked()),
        (Outcome::Done, vec!["gold".to_owned(), "silver".to_owned()])
    );
    assert_eq!((scene.status("modifyVolumeStatus"), scene.conditions()), (Value::Null, vec![]));
}

#[tokio::test]
async fn what_may_have_been_done_is_finished_before_another_class() {
    for (code, restart, expected) in [
        (Code::DeadlineExceeded, false, vec!["gold", "gold", "silver"]),
        (Code::DeadlineExceeded, true, vec!["gold", "gold", "silver"]),
        (Code::Internal, false, vec!["gold", "silver"]),
        // A process that comes later does not know that it had ended.
        (Code::Internal, true, vec!["gold", "gold", "silver"]),
    ] {
        let mut scene = Scene::new();
        scene.want("gold");
        scene.refuse(code).await;
        assert_eq!(scene.status("modifyVolumeStatus")["status"], "InProgress");
        if restart {
            scene.memory = Memory::default();
        }
        scene.want("silver");
        if scene.sync().await == Outcome::Again(Duration::ZERO) {
            assert_eq!(scene.status("currentVolumeAttributesClassName"), "gold");
            assert_eq!(scene.sync().await, Outcome::Done);
        }
        assert_eq!(scene.asked(), expected, "{code:?} {restart}");
        assert_eq!(scene.status("currentVolumeAttributesClassName"), "silver");
    }
}

#[tokio::test]
async fn a_wish_that_is_taken_back_is_given_up_unless_it_may_be_at_work() {
    let scene = Scene::new();
    scene.want("gold");
    scene.refuse(Code::InvalidArgument).await;
    scene.want("");
    scene.told();
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!(
        (scene.told(), scene.conditions()),
        (vec!["VolumeModifyCanceled"], vec![MODIFY_ERROR.to_owned()])
    );
    assert_eq!(scene.sync().await, Outcome::Done);
    assert_eq!((scene.told(), scene.asked().len()), (vec![], 1));

    let scene = Scene::new();
    scene.want("gold");
    scene.refuse(Code::Unavailable).await;
    scene.want("");
    scene.sync().await;
    assert_eq!(scene.asked(), ["gold", "gold"]);
}
