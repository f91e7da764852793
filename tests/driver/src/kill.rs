//! Ends an operation between two of its steps, as a kill of the process would.

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
}

impl Killer {
    /// Ends whatever reaches the step of this number, once.
    pub fn at(step: usize) -> Self {
        Self(Arc::new(Mutex::new(State { reached: Vec::new(), kill_at: Some(step) })))
    }

    /// All steps reached so far.
    pub fn reached(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().reached.clone()
    }

    pub fn steps(&self) -> Steps {
        let state = Arc::clone(&self.0);
        Steps::new(move |step| {
            let mut state = state.lock().unwrap();
            state.reached.push(step);
            let here = state.reached.len() - 1;
            if state.kill_at.take_if(|at| *at == here).is_some() {
                drop(state);
                // Without the panic's message: it is wanted.
                resume_unwind(Box::new("killed"));
            }
        })
    }
}
