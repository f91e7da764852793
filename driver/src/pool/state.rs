//! What a pool's path holds and may be used for: a pure judgement of what was seen there.

use dunnage_csi::agent::pool::State;
use serde::{Deserialize, Serialize};

use crate::id::PoolId;

/// The on-disk format that this program writes, and the newest it knows.
pub(crate) const FORMAT: u32 = 1;

/// What marks a directory as a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Marker {
    pub(crate) format: u32,
    pub(crate) pool_id: PoolId,
    pub(crate) backend_uid: String,
}

/// The marker file, as far as it could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MarkerSeen {
    None,
    Newer { format: u32 },
    Damaged { why: String },
    Marker(Marker),
}

impl MarkerSeen {
    /// Reads a marker; of a newer one nothing but the format can be trusted.
    pub(crate) fn parse(content: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        match serde_json::from_slice::<Head>(content) {
            Ok(head) if head.format > FORMAT => Self::Newer { format: head.format },
            Ok(_) => match serde_json::from_slice(content) {
                Ok(marker) => Self::Marker(marker),
                Err(error) => Self::Damaged { why: error.to_string() },
            },
            Err(error) => Self::Damaged { why: error.to_string() },
        }
    }
}

/// What was seen at the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) is_mount_point: bool,
    /// Names of files that are not ours and no part of a fresh file system.
    pub(crate) foreign: Vec<String>,
    pub(crate) marker: MarkerSeen,
}

/// What a pool must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) path: &'a str,
    pub(crate) backend_uid: &'a str,
    pub(crate) require_mount_point: bool,
}

/// The judgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) state: State,
    /// What is wrong and what to do.
    pub(crate) message: String,
    pub(crate) marker: Option<Marker>,
}

/// Judges a path; `look` is the error's text when it could not be looked at.
pub(crate) fn judge(wanted: Wanted<'_>, look: Result<Look, String>) -> Verdict {
    let Wanted { path, backend_uid, require_mount_point } = wanted;
    let bad = |state, message| Verdict { state, message, marker: None };
    let look = match look {
        Ok(look) => look,
        Err(why) => return bad(State::Unavailable, format!("{why}: the pool needs a directory at {path}")),
    };
    let unmounted = require_mount_point && !look.is_mount_point;
    match look.marker {
        MarkerSeen::Newer { format } => bad(
            State::NewerFormat,
            format!("{path} has on-disk format {format}, this version knows {FORMAT}: use a newer Dunnage"),
        ),
        MarkerSeen::Damaged { why } => bad(
            State::Damaged,
            format!(
                "{path}/.dunnage/pool.json cannot be read ({why}): restore it, for the volumes are still there"
            ),
        ),
        MarkerSeen::Marker(marker) if marker.backend_uid != backend_uid => Verdict {
            state: State::Foreign,
            message: format!(
                "{path} is the pool of another StorageBackend (uid {}), not of this one (uid {backend_uid}): give each its own path",
                marker.backend_uid
            ),
            marker: Some(marker),
        },
        MarkerSeen::Marker(marker) if unmounted => Verdict { marker: Some(marker), ..not_mounted(path) },
        MarkerSeen::Marker(marker) => {
            Verdict { state: State::Ready, message: String::new(), marker: Some(marker) }
        }
        MarkerSeen::None if unmounted => not_mounted(path),
        MarkerSeen::None if !look.foreign.is_empty() => bad(
            State::NotEmpty,
            format!("{path} has other files ({}): empty it or choose another path", some(&look.foreign)),
        ),
        MarkerSeen::None => bad(State::Empty, String::new()),
    }
}

fn not_mounted(path: &str) -> Verdict {
    Verdict {
        state: State::NotMounted,
        message: format!(
            "no file system is mounted at {path}, as requireMountPoint asks: mount the disk there"
        ),
        marker: None,
    }
}

/// The first few names.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let more = if names.len() > SHOWN { ", …" } else { "" };
    names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ") + more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(uid: &str) -> MarkerSeen {
        MarkerSeen::parse(
            format!(r#"{{"format":1,"poolId":"0123456789abcdef","backendUid":"{uid}"}}"#).as_bytes(),
        )
    }

    #[test]
    fn each_sight_has_its_state_and_its_remedy() {
        let look = |marker, mounted, foreign: &[&str]| {
            Ok(Look {
                is_mount_point: mounted,
                foreign: foreign.iter().map(ToString::to_string).collect(),
                marker,
            })
        };
        let none = || MarkerSeen::None;
        for (seen, require, state, says) in [
            (look(marker("u"), false, &[]), false, State::Ready, ""),
            (look(marker("u"), false, &["x"]), false, State::Ready, ""),
            (look(marker("u"), true, &[]), true, State::Ready, ""),
            (look(marker("u"), false, &[]), true, State::NotMounted, "mount the disk"),
            (look(marker("v"), true, &[]), true, State::Foreign, "(uid v)"),
            (
                look(MarkerSeen::parse(br#"{"format":2}"#), true, &[]),
                false,
                State::NewerFormat,
                "newer Dunnage",
            ),
            (look(MarkerSeen::parse(b"{"), true, &[]), false, State::Damaged, "restore it"),
            (
                look(MarkerSeen::parse(br#"{"format":1,"poolId":"..","backendUid":"u"}"#), true, &[]),
                false,
                State::Damaged,
                "restore it",
            ),
            (look(none(), false, &[]), false, State::Empty, ""),
            (look(none(), false, &[]), true, State::NotMounted, "mount the disk"),
            (look(none(), false, &["a", "b", "c", "d"]), false, State::NotEmpty, "a, b, c, …"),
            (Err("cannot open /p".to_owned()), false, State::Unavailable, "cannot open /p"),
        ] {
            let wanted = Wanted { path: "/p", backend_uid: "u", require_mount_point: require };
            let verdict = judge(wanted, seen.clone());
            assert_eq!(verdict.state, state, "{seen:?}");
            assert!(verdict.message.contains(says), "{}", verdict.message);
            assert_eq!(verdict.message.is_empty(), matches!(state, State::Ready | State::Empty), "{seen:?}");
        }
    }
}
