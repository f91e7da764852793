//! Child processes and their folder, which never outlive their owner.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

/// A running program whose output goes to a log file in its working folder.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    pub(crate) fn start(
        name: &'static str,
        program: &Path,
        arguments: &[String],
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let child = Command::new(program)
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { name, child, log })
    }

    /// An error with the end of the log when the program has ended by itself.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended ({status}):\n{}", self.name, self.log_tail()),
        }
    }

    pub(crate) fn log_tail(&self) -> String {
        let mut text = String::new();
        match File::open(&self.log).and_then(|mut file| file.read_to_string(&mut text)) {
            Ok(_) => {
                let lines: Vec<_> = text.lines().collect();
                lines[lines.len().saturating_sub(15)..].join("\n")
            }
            Err(error) => format!("no log: {error}"),
        }
    }

    /// Stops the program in its tracks: connections stay open and nobody answers.
    pub(crate) fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Failing here means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A temporary folder that is removed, after every process working in it, when its owner goes, however it goes.
///
/// A small shell waits for the end of its input, which comes even when the owner is killed and no `Drop` runs.
pub(crate) struct Workplace {
    directory: PathBuf,
    janitor: Child,
}

const JANITOR: &str = r#"
trap '' HUP INT TERM
cat > /dev/null
for process in /proc/[0-9]*; do
  [ "$(readlink "$process/cwd")" != "$1" ] || kill -9 "${process#/proc/}"
done 2> /dev/null
rm -rf "$1"
"#;

impl Workplace {
    pub(crate) fn new(prefix: &str) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix(prefix).tempdir()?.keep().canonicalize()?;
        let janitor = Command::new("sh")
            .args(["-c", JANITOR, "janitor"])
            .arg(&directory)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start sh")?;
        Ok(Self { directory, janitor })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_workplace_ends_its_processes_and_removes_its_folder() {
        let workplace = Workplace::new("dunnage-harness-test-").unwrap();
        let directory = workplace.path().to_owned();
        // Not a `Process`: what the janitor must find is what nobody ended in order.
        let mut child = Command::new("sleep").arg("600").current_dir(&directory).spawn().unwrap();
        drop(workplace);
        assert!(!child.wait().unwrap().success());
        assert!(!directory.exists());
    }

    #[test]
    fn a_program_that_ended_is_reported_with_its_last_words() {
        let workplace = Workplace::new("dunnage-harness-test-").unwrap();
        let arguments = ["-c".to_owned(), "echo no such option; exit 3".to_owned()];
        let mut process = Process::start("sh", Path::new("/bin/sh"), &arguments, workplace.path()).unwrap();
        let error = loop {
            match process.check() {
                Ok(()) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("exit status: 3") && error.contains("no such option"), "{error}");
    }
}
