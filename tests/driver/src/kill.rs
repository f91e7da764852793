//! Ends an operation between two of its steps, as a kill of the process would.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};

use dunnage_driver::steps::Steps;

/// Counts the steps that operations reach, and ends the one that reaches a chosen step.
#[derive(Clone, Default)]
pub struct Killer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    reached: Vec<&'static str>,
    kill_at: Option<usize>,
    killed: bool,
}

impl Killer {
    /// Ends whatever reaches the step of this number, once.
    pub fn at(step: usize) -> Self {
        Self(Arc::new(Mutex::new(State { kill_at: Some(step), ..State::default() })))
    }

    /// All steps reached so far.
    pub fn reached(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().reached.clone()
    }

    /// Whether the chosen step was reached, and the operation ended there.
    pub fn has_killed(&self) -> bool {
        self.0.lock().unwrap().killed
    }

    pub fn steps(&self) -> Steps {
        let state = Arc::clone(&self.0);
        Steps::new(move |step| {
            let mut state = state.lock().unwrap();
            state.reached.push(step);
            let here = state.reached.len() - 1;
            if state.kill_at.take_if(|at| *at == here).is_some() {
                state.killed = true;
                drop(state);
                note(step);
                // Without the panic's message: it is wanted.
                resume_unwind(Box::new("killed"));
            }
        })
    }
}

/// Notes a kill in the file that `KILL_POINTS` names, a line each, so that `make test-driver` can count them.
fn note(step: &str) {
    let Some(path) = std::env::var_os("KILL_POINTS") else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(file, "{step}").unwrap();
}
