//! Users, nodes, the driver and kills in random order: whatever happens, the volume's capacity never shrinks and nothing
//! is asked for that is below what was given (the model checks both at each request), and when the world is calm again
//! every claim comes to what it asks for, in few calls.

use std::time::Duration;

use dunnage_cluster::queue::Outcome;
use serde_json::{Value, json};

use super::facts;
use super::memory::Memory;
use super::model::{Answer, DRIVER, GI, Kill, Model};
use super::outcome::{Class, of_growth, tests::CODES};
use super::plan::Way;
use super::{modify, resize};
use crate::access;

/// Numbers that look random and are the same for the same seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn answer(&mut self) -> Answer {
        let code = CODES[usize::try_from(self.below(16)).expect("small")];
        match self.below(6) {
            0 | 1 => Answer::Done,
            2 => Answer::DoneForNode,
            3 if of_growth(&tonic::Status::new(code, "")) == Class::Unfinished => Answer::DoneBehind(code),
            _ => Answer::Refused(code),
        }
    }
}

/// One process after another, and what they share.
struct Run {
    chance: Chance,
    model: Model,
    growth: Memory,
    changes: Memory,
    resize: resize::Rules,
    modify: modify::Rules,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let model = Model::new();
        let way = if chance.one_in(4) { Way::Node } else { Way::Controller };
        if way == Way::Node {
            // Where nodes alone grow volumes, the room is there.
            model.state().size = i64::MAX;
        }
        model.state().forgets_attempts = chance.one_in(5);
        let rest = Duration::from_secs(300);
        Self {
            chance,
            model,
            growth: Memory::default(),
            changes: Memory::default(),
            resize: resize::Rules {
                driver: DRIVER.to_owned(),
                way,
                access: access::Rules::default(),
                annotate: true,
                mind_use: true,
                rest,
            },
            modify: modify::Rules { driver: DRIVER.to_owned(), names: false, rest },
        }
    }

    /// Both controllers at once, as their workers run, perhaps until the process is killed.
    async fn sync(&mut self) -> Option<(Outcome, Outcome)> {
        let key = Model::key();
        let ended = tokio::select! {
            biased;
            ended = async {
                tokio::join!(
                    Box::pin(resize::sync(&self.model, &self.growth, &self.resize, &key)),
                    Box::pin(modify::sync(&self.model, &self.changes, &self.modify, &key)),
                )
            } => Some(ended),
            () = self.model.killed.notified() => None,
        };
        if ended.is_none() {
            (self.growth, self.changes) = (Memory::default(), Memory::default());
        }
        ended
    }

    /// What the API server lets a user ask for: more, or less that is more than there is.
    fn ask(&mut self) {
        let claim = self.model.claim_now();
        let actual = facts::actual(&claim).expect("capacity") / GI;
        let asked = facts::requested(&claim).expect("a request") / GI;
        let mut state = self.model.state();
        let least = if state.forgets_attempts { asked } else { actual + 1 };
        let size = (least + i64::try_from(self.chance.below(4)).expect("small")).max(least);
        if size != asked {
            state.edit_claim(|claim| {
                claim["spec"]["resources"]["requests"]["storage"] = json!(format!("{size}Gi"));
            });
        }
    }

    async fn trouble(&mut self) {
        match self.chance.below(11) {
            0 | 1 => self.ask(),
            2 => {
                let class = ["gold", "silver"][usize::from(self.chance.one_in(2))];
                let change = |claim: &mut Value| claim["spec"]["volumeAttributesClassName"] = json!(class);
                self.model.state().edit_claim(change);
            }
            3 => {
                let able = !self.chance.one_in(3);
                self.model.state().node(able);
            }
            4 => self.model.state().races = u32::try_from(self.chance.below(4)).expect("small"),
            5 => {
                let kill = Kill { after: self.chance.below(8), effect: self.chance.one_in(2) };
                self.model.state().kill = Some(kill);
            }
            6 => {
                let pod = self.chance.one_in(2).then(|| "pod".to_owned());
                self.model.state().pod = pod;
            }
            7 => self.model.state().away = true,
            8 => tokio::time::advance(Duration::from_secs(self.chance.below(400))).await,
            _ => {
                let answer = self.chance.answer();
                self.model.state().answers.push_back(answer);
            }
        }
    }

    /// The world is calm: all comes to its end.
    async fn calm(&mut self) {
        {
            let mut state = self.model.state();
            state.answers.clear();
            (state.kill, state.pod, state.races, state.away) = (None, None, 0, false);
        }
        let before = self.calls();
        for _ in 0..20 {
            self.sync().await;
            self.model.state().node(true);
            tokio::time::advance(Duration::from_secs(301)).await;
        }
        let (claim, volume) = (self.model.claim_now(), self.model.volume_now());
        let told = |what: &str| format!("{what}: {claim:?} {volume:?}");
        assert!(!facts::wants_more(&claim), "{}", told("too small"));
        let status = claim.status.as_ref().expect("status");
        let spec = claim.spec.as_ref().expect("spec");
        assert!(status.conditions.iter().flatten().next().is_none(), "{}", told("conditions"));
        assert!(
            status.allocated_resource_statuses.iter().flatten().next().is_none(),
            "{}",
            told("an attempt")
        );
        let classes = (&status.current_volume_attributes_class_name, &status.modify_volume_status);
        assert_eq!(classes, (&spec.volume_attributes_class_name, &None), "{}", told("the class"));
        let of_volume = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
        assert_eq!(of_volume, spec.volume_attributes_class_name, "{}", told("the volume's class"));
        assert_eq!(self.model.state().class, of_volume.unwrap_or_default(), "{}", told("the driver's class"));
        assert!(!facts::has_grown(&claim, &volume), "{}", told("the note of the size before"));
        assert!(self.calls() - before <= 6, "{}", told("too many calls"));
        let calls = self.calls();
        self.sync().await;
        assert_eq!(self.calls(), calls, "{}", told("no end"));
    }

    fn calls(&self) -> usize {
        let state = self.model.state();
        state.asked.len() + state.modified.len()
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_a_claim_comes_to_its_size_and_class() {
    let mut kills = 0;
    for seed in 0..400 {
        let mut run = Run::new(seed);
        let mut looks = 0;
        for _ in 0..40 {
            run.trouble().await;
            if run.chance.one_in(2) {
                kills += usize::from(run.sync().await.is_none());
                looks += 1;
            }
        }
        assert!(run.calls() <= 2 * looks, "seed {seed}: one look is at most one call of each kind");
        run.calm().await;
    }
    assert!(kills > 100, "{kills} kills show little");
}
