//! Running programs: the only place that does, with a bounded time and what they said in the error.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tracing::debug;

use crate::error::{Error, Result};

/// More of a program's words than this helps nobody.
const SAID: u64 = 4096;

/// Where the tools lie, whatever the environment says.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a program to its end; `good` are the exit codes that mean success. Blocks.
pub fn run(program: &'static str, args: &[&OsStr], good: &[i32], limit: Duration) -> Result<()> {
    debug!(program, ?args, "running");
    let failed = |reason: String| Error::Program { program, reason };
    let mut child = spawn(program, args).map_err(|error| failed(not_run(program, &error)))?;
    // Both pipes are read to the end while it runs, lest it stall on a full one.
    let readers = [
        child.stdout.take().map(|pipe| thread::spawn(move || said(pipe))),
        child.stderr.take().map(|pipe| thread::spawn(move || said(pipe))),
    ];
    let Some(status) =
        wait(&mut child, limit).map_err(|error| failed(format!("cannot be awaited: {error}")))?
    else {
        // With what it has started itself. What hangs in the kernel dies when the kernel lets it; nobody waits for that.
        if let Some(group) = pid_of(&child) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        return Err(failed(format!("took longer than {} seconds and was stopped", limit.as_secs())));
    };
    let words: Vec<String> = readers
        .into_iter()
        .flatten()
        .filter_map(|reader| reader.join().ok())
        .filter(|text| !text.is_empty())
        .collect();
    match status.code() {
        Some(code) if good.contains(&code) => Ok(()),
        _ => Err(failed(format!("failed ({status}): {}", words.join("; ")))),
    }
}

#[allow(clippy::disallowed_methods, reason = "the one place that runs programs")]
fn spawn(program: &str, args: &[&OsStr]) -> std::io::Result<Child> {
    Command::new(program)
        .args(args)
        .env_clear()
        .env("PATH", SEARCH_PATH)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// Where a program would be run from.
pub fn find(program: &str) -> Option<PathBuf> {
    SEARCH_PATH.split(':').map(|folder| Path::new(folder).join(program)).find(|path| path.is_file())
}

/// Why a program could not be started; for one that is missing, what brings it.
fn not_run(program: &str, error: &std::io::Error) -> String {
    match package(program) {
        Some(package) if error.kind() == ErrorKind::NotFound => {
            format!("is not installed: install the package {package}")
        }
        _ => format!("cannot be run: {error}"),
    }
}

/// The package of a program, by its name in most distributions.
pub fn package(program: &str) -> Option<&'static str> {
    match program {
        "mkfs.ext4" | "e2fsck" | "resize2fs" | "tune2fs" => Some("e2fsprogs"),
        "mkfs.xfs" | "xfs_growfs" | "xfs_repair" | "xfs_db" => Some("xfsprogs"),
        "mkfs.btrfs" | "btrfs" | "btrfstune" => Some("btrfs-progs"),
        _ => None,
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// The end of the program, or `None` when it took too long.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let pid = pid_of(child).ok_or(ErrorKind::InvalidInput)?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = Timespec::try_from(limit).map_err(|_| ErrorKind::InvalidInput)?;
    match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit))? {
        0 => Ok(None),
        _ => child.wait().map(Some),
    }
}

fn said(pipe: impl std::io::Read) -> String {
    let mut pipe = pipe;
    let mut text = Vec::new();
    let _ = pipe.by_ref().take(SAID).read_to_end(&mut text);
    let _ = std::io::copy(&mut pipe, &mut std::io::sink());
    String::from_utf8_lossy(&text).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Result<()> {
        run("sh", &[OsStr::new("-c"), OsStr::new(script)], &[0, 3], limit)
    }

    #[test]
    fn a_failure_carries_the_programs_words_and_code() {
        let error =
            sh("echo out; echo no such luck >&2; exit 7", Duration::from_secs(10)).unwrap_err().to_string();
        assert!(error.contains("exit status: 7") && error.contains("no such luck"), "{error}");
        sh("exit 3", Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn a_program_that_hangs_is_stopped_with_what_it_has_started() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let error = sh(&script, Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error.contains("took longer"), "{error}");
        let started = std::fs::read_to_string(file).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", started.trim()));
        let ended = || state().map_or(true, |stat| stat.contains(") Z "));
        for _ in 0..100 {
            if ended() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("it goes on: {:?}", state());
    }

    #[test]
    fn a_program_that_says_a_lot_does_not_stall() {
        sh("head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2", Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run("mkfs.nothing", &[], &[0], Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error.starts_with("mkfs.nothing cannot be run"), "{error}");
        let missing = not_run("mkfs.xfs", &ErrorKind::NotFound.into());
        assert_eq!(missing, "is not installed: install the package xfsprogs");
    }
}
