//! What `/healthz` and `/readyz` ask.

use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The checks of a process. Clones share them; they may be added at any time.
#[derive(Clone, Default)]
pub struct Checks {
    live: Arc<RwLock<Vec<(&'static str, Check)>>>,
    ready: Arc<RwLock<Vec<(&'static str, Check)>>>,
}

impl Checks {
    /// A failing `live` check makes kubelet restart the container.
    pub fn live(&self, name: &'static str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.live.write().unwrap_or_else(PoisonError::into_inner).push((name, Arc::new(check)));
    }

    /// A failing `ready` check makes the pod not ready.
    pub fn ready(&self, name: &'static str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.ready.write().unwrap_or_else(PoisonError::into_inner).push((name, Arc::new(check)));
    }

    pub(crate) fn report_live(&self) -> Report {
        report(&self.live)
    }

    /// Not alive is not ready either.
    pub(crate) fn report_ready(&self) -> Report {
        let (live, ready) = (report(&self.live), report(&self.ready));
        Report { passed: live.passed && ready.passed, text: live.text + &ready.text }
    }
}

/// The outcome of all checks, one line each.
pub(crate) struct Report {
    pub(crate) passed: bool,
    pub(crate) text: String,
}

fn report(checks: &RwLock<Vec<(&'static str, Check)>>) -> Report {
    let checks = checks.read().unwrap_or_else(PoisonError::into_inner).clone();
    let mut report = Report { passed: true, text: String::new() };
    for (name, check) in checks {
        let _ = match check() {
            Ok(()) => writeln!(report.text, "{name}: ok"),
            Err(reason) => {
                report.passed = false;
                writeln!(report.text, "{name}: {reason}")
            }
        };
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failing_check_fails_the_whole_and_is_named() {
        let checks = Checks::default();
        checks.live("loop", || Ok(()));
        checks.ready("driver", || Err("not connected".to_owned()));
        assert!(checks.report_live().passed);
        let ready = checks.report_ready();
        assert!(!ready.passed);
        assert_eq!(ready.text, "loop: ok\ndriver: not connected\n");
    }

    #[test]
    fn what_is_not_alive_is_not_ready() {
        let checks = Checks::default();
        checks.live("lease", || Err("wedged".to_owned()));
        assert!(!checks.report_ready().passed);
    }
}
