//! Many callers at once, at random, on few volumes: every answer is one that the CSI specification allows for what the
//! callers know, and what remains can be cleared away.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunnage_driver::EngineKind;
use dunnage_tests_driver::{Lab, mount};
use tonic::{Code, Status};

const CALLERS: u64 = 32;
const CALLS: usize = 40;
const VOLUMES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Create,
    Stage,
    Publish,
    Unpublish,
    Unstage,
    Expand,
    Delete,
}

const ALL: [Call; 7] =
    [Call::Create, Call::Stage, Call::Publish, Call::Unpublish, Call::Unstage, Call::Expand, Call::Delete];

/// A call that has been answered.
#[derive(Clone, Debug)]
struct Answered {
    call: Call,
    volume: usize,
    began: Instant,
    ended: Instant,
    code: Code,
    message: String,
}

impl Answered {
    fn overlaps(&self, from: Instant, to: Instant) -> bool {
        self.began <= to && self.ended >= from
    }

    /// Whether it may have had an effect.
    fn is(&self, calls: &[Call]) -> bool {
        calls.contains(&self.call)
    }
}

/// Codes besides OK that a call may end with here. ABORTED: another call on the volume is under way.
fn allowed(call: Call) -> &'static [Code] {
    match call {
        Call::Stage | Call::Expand => &[Code::Aborted, Code::NotFound],
        Call::Publish => &[Code::Aborted, Code::NotFound, Code::FailedPrecondition],
        Call::Create | Call::Unpublish | Call::Unstage => &[Code::Aborted],
        Call::Delete => &[Code::Aborted, Code::FailedPrecondition],
    }
}

/// What is wrong with an answer, given all others: rules that hold in every order that the calls can have had.
fn wrong(answer: &Answered, all: &[Answered]) -> Option<String> {
    if answer.code != Code::Ok && !allowed(answer.call).contains(&answer.code) {
        return Some(format!("{:?} must not end with {:?}", answer.call, answer.code));
    }
    let same = || all.iter().filter(|other| other.volume == answer.volume);
    // The last call of a kind that was over when this one began, if nothing that undoes it came near since.
    let holds = |done: Call, undone_by: &[Call]| {
        same()
            .filter(|other| other.call == done && other.code == Code::Ok && other.ended < answer.began)
            .max_by_key(|other| other.ended)
            .filter(|last| {
                !same().any(|other| other.is(undone_by) && other.overlaps(last.began, answer.ended))
            })
    };
    match (answer.call, answer.code) {
        (_, Code::NotFound) => {
            holds(Call::Create, &[Call::Delete]).map(|_| "it is there and was not found".to_owned())
        }
        (Call::Publish, Code::FailedPrecondition) => {
            holds(Call::Stage, &[Call::Unstage, Call::Delete]).map(|_| "it is staged".to_owned())
        }
        (Call::Delete, Code::Ok) => holds(Call::Publish, &[Call::Unpublish, Call::Unstage])
            .map(|_| "it was deleted although it is published".to_owned()),
        (Call::Stage | Call::Publish | Call::Expand, Code::Ok) => {
            holds(Call::Delete, &[Call::Create]).map(|_| "it is deleted".to_owned())
        }
        _ => None,
    }
}

async fn make(lab: &Lab, call: Call, id: &str, name: &str) -> Result<(), Status> {
    match call {
        Call::Create => lab.create(name, 16 << 20, mount("")).await.map(drop),
        Call::Stage => lab.stage(id, mount("")).await,
        Call::Publish => lab.publish(id, &lab.target(name), mount(""), false).await,
        Call::Unpublish => lab.unpublish(id, &lab.target(name)).await,
        Call::Unstage => lab.unstage(id).await,
        Call::Expand => lab.expand(id, 16 << 20).await.map(drop),
        Call::Delete => lab.delete(id).await,
    }
}

/// Numbers that look random and are the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

async fn storm(engine: EngineKind) {
    let lab = Arc::new(Lab::new(engine));
    let names: Vec<String> = (0..VOLUMES).map(|number| format!("pvc-{number}")).collect();
    let mut ids = Vec::new();
    for name in &names {
        ids.push(lab.create(name, 16 << 20, mount("")).await.unwrap().volume_id);
    }
    let (names, ids) = (Arc::new(names), Arc::new(ids));
    let callers = (1..=CALLERS).map(|seed| {
        let (lab, names, ids) = (Arc::clone(&lab), Arc::clone(&names), Arc::clone(&ids));
        tokio::spawn(async move {
            let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut answered = Vec::new();
            for _ in 0..CALLS {
                let (call, volume) = (ALL[numbers.below(ALL.len())], numbers.below(VOLUMES));
                let began = Instant::now();
                let result = make(&lab, call, &ids[volume], &names[volume]).await;
                let (code, message) =
                    result.err().map_or((Code::Ok, String::new()), |s| (s.code(), s.message().to_owned()));
                answered.push(Answered { call, volume, began, ended: Instant::now(), code, message });
            }
            answered
        })
    });
    let mut all = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        all.extend(caller.await.unwrap());
    }
    let mut report = String::new();
    for answer in &all {
        if let Some(why) = wrong(answer, &all) {
            let _ = writeln!(report, "{why}: {answer:?}: {}", answer.message);
        }
    }
    assert!(report.is_empty(), "{engine:?}: {report}");
    let succeeded = |call: Call| all.iter().any(|answer| answer.call == call && answer.code == Code::Ok);
    assert!(ALL.into_iter().all(succeeded), "{engine:?}: some call never succeeded");

    for (name, id) in names.iter().zip(ids.iter()) {
        lab.unpublish(id, &lab.target(name)).await.unwrap();
        lab.unstage(id).await.unwrap();
        lab.delete(id).await.unwrap();
    }
    lab.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_calls_on_directories_is_answered_as_the_specification_allows() {
    storm(EngineKind::Directory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_calls_on_subvolumes_is_answered_as_the_specification_allows() {
    storm(EngineKind::Btrfs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_calls_on_loop_files_is_answered_as_the_specification_allows() {
    storm(EngineKind::LoopFile).await;
}

#[test]
fn the_rules_see_what_is_wrong() {
    let start = Instant::now();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    let answered = |call, from, to, code| Answered {
        call,
        volume: 0,
        began: at(from),
        ended: at(to),
        code,
        message: String::new(),
    };
    let created = answered(Call::Create, 0, 1, Code::Ok);
    let published = answered(Call::Publish, 4, 5, Code::Ok);
    for (all, last, is_wrong) in [
        (vec![created.clone()], answered(Call::Stage, 2, 3, Code::NotFound), true),
        (
            vec![created.clone(), answered(Call::Delete, 2, 9, Code::Ok)],
            answered(Call::Stage, 3, 4, Code::NotFound),
            false,
        ),
        (vec![created.clone(), published.clone()], answered(Call::Delete, 6, 7, Code::Ok), true),
        (
            vec![created.clone(), published, answered(Call::Unpublish, 5, 8, Code::Aborted)],
            answered(Call::Delete, 6, 7, Code::Ok),
            false,
        ),
        (vec![created], answered(Call::Stage, 2, 3, Code::Internal), true),
    ] {
        assert_eq!(wrong(&last, &all).is_some(), is_wrong, "{last:?} after {all:?}");
    }
}
