//! Values as Go programs write them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::Duration;

/// A duration such as `300ms`, `1m30s` or `1.5h`; only zero may stand without a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("{text:?} is no duration: write it like 300ms, 15s, 1m30s or 2h");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let number: f64 = rest[..digits].parse().map_err(|_| invalid())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let seconds = match &rest[..letters] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(invalid()),
        };
        rest = &rest[letters..];
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| invalid())?;
        total = total.checked_add(part).ok_or_else(invalid)?;
    }
    Ok(total)
}

/// Labels such as `team:storage,tier:1`.
pub fn labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let pair = |part: &str| match part.split_once(':') {
        Some((key, value)) if !key.is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err(format!("{part:?} is no label: write it like key:value")),
    };
    text.split(',').filter(|part| !part.is_empty()).map(pair).collect()
}

/// An address such as `:8080`, `0.0.0.0:8080`, `[::1]:8080` or `localhost:8080`.
pub fn http_address(text: &str) -> Result<SocketAddr, String> {
    let invalid = || format!("{text:?} is no address: write it like :8080 or 0.0.0.0:8080");
    if let Some(port) = text.strip_prefix(':') {
        return Ok((Ipv4Addr::UNSPECIFIED, port.parse().map_err(|_| invalid())?).into());
    }
    text.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(invalid)
}

/// Feature gates that were set on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<String, bool>);

impl FeatureGates {
    /// Whether `gate` is on.
    pub fn enabled(&self, gate: &str, default: bool) -> bool {
        self.0.get(gate).copied().unwrap_or(default)
    }

    /// Gates that are set but mean nothing to a role that knows `known`.
    pub fn unknown<'a>(&'a self, known: &[&str]) -> Vec<&'a str> {
        let general = ["AllAlpha", "AllBeta"];
        self.0
            .keys()
            .map(String::as_str)
            .filter(|gate| !known.contains(gate) && !general.contains(gate))
            .collect()
    }
}

impl FromStr for FeatureGates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let gate = |part: &str| {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("{part:?} lacks =true or =false"))?;
            let value = boolean(value).ok_or_else(|| format!("{value:?} is neither true nor false"))?;
            Ok((name.trim().to_owned(), value))
        };
        text.split(',').filter(|part| !part.trim().is_empty()).map(gate).collect::<Result<_, _>>().map(Self)
    }
}

/// A truth value in any spelling that Go takes.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text.trim() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("15s", Some(15_000)),
            ("300ms", Some(300)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("2h0m1s", Some(7_201_000)),
            ("+1s", Some(1000)),
            ("1500us", Some(1)),
            ("10", None),
            ("", None),
            ("-1s", None),
            ("1x", None),
            ("s", None),
            ("1.2.3s", None),
            ("99999999999999999999h", None),
        ] {
            let found = duration(text).ok().map(|found| found.as_millis());
            assert_eq!(found, expected.map(|millis: u64| millis.into()), "{text:?}");
        }
    }

    #[test]
    fn labels_are_pairs_by_commas() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(labels("a:b,c:d"), Ok(BTreeMap::from([pair("a", "b"), pair("c", "d")])));
        assert_eq!(labels(""), Ok(BTreeMap::new()));
        assert!(labels("a").is_err() && labels(":b").is_err());
    }

    #[test]
    fn an_address_may_leave_out_the_host_but_not_the_port() {
        for (text, expected) in [
            (":9808", Some("0.0.0.0:9808")),
            ("127.0.0.1:1", Some("127.0.0.1:1")),
            ("[::1]:1", Some("[::1]:1")),
            ("127.0.0.1", None),
            ("9808", None),
            (":x", None),
            (":70000", None),
        ] {
            assert_eq!(http_address(text).ok().map(|found| found.to_string()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn gates_are_a_map_and_unknown_ones_are_named() {
        let gates: FeatureGates =
            "Topology=true,ReleaseLeaderElectionOnExit=false,New=1".parse().expect("gates");
        assert!(gates.enabled("Topology", false) && !gates.enabled("ReleaseLeaderElectionOnExit", true));
        assert!(gates.enabled("Unset", true) && !gates.enabled("Unset", false));
        assert_eq!(gates.unknown(&["Topology", "ReleaseLeaderElectionOnExit"]), ["New"]);
        for wrong in ["Topology", "Topology=maybe"] {
            assert!(wrong.parse::<FeatureGates>().is_err(), "{wrong}");
        }
    }
}
