//! How fast data may go: so many bytes a second, over all copies of a node together.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;

/// Bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

const UNITS: [(&str, u64); 4] = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10), ("", 1)];

impl Default for Rate {
    /// What leaves a gigabit network something for others.
    fn default() -> Self {
        Self(100 << 20)
    }
}

impl FromStr for Rate {
    type Err = Error;

    /// A number of bytes, as in 100Mi.
    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = UNITS.iter().find_map(|(unit, bytes)| {
            let number = text.strip_suffix(unit)?;
            let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(*bytes)
        });
        match parsed {
            Some(rate) if rate > 0 => Ok(Self(rate)),
            _ => Err(Error::Invalid(format!("{text:?} is no number of bytes a second, as 100Mi is"))),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = UNITS.iter().find(|(_, bytes)| self.0 >= *bytes && self.0.is_multiple_of(*bytes));
        let (unit, bytes) = fits.unwrap_or(&UNITS[3]);
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

/// Says of each piece when its time is.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: Rate,
    /// When all that was let go on its way is over.
    free: Mutex<Option<Instant>>,
}

impl Pace {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, free: Mutex::default() }
    }

    /// Takes the time that a piece needs, and says when that begins: what was not used before is not made up for.
    pub(crate) fn due(&self, bytes: usize, now: Instant) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = free.map_or(now, |free| free.max(now));
        let nanoseconds = bytes as u128 * 1_000_000_000 / u128::from(self.rate.0);
        *free = Some(begin + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)));
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_and_told_again() {
        for (text, told) in [
            ("100Mi", Some("100Mi")),
            ("1", Some("1")),
            ("1024", Some("1Ki")),
            ("1536Ki", Some("1536Ki")),
            ("2Gi", Some("2Gi")),
            ("0", None),
            ("0Mi", None),
            ("", None),
            ("Mi", None),
            ("-1", None),
            ("+1", None),
            ("1.5Mi", None),
            ("1M", None),
            ("99999999999Gi", None),
        ] {
            assert_eq!(text.parse::<Rate>().ok().map(|rate| rate.to_string()).as_deref(), told, "{text}");
        }
        assert_eq!(Rate::default().to_string(), "100Mi");
    }

    #[test]
    fn no_second_has_more_than_its_share_however_many_copies_there_are() {
        let start = Instant::now();
        let pace = Pace::new("1000".parse().unwrap());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(pace.due(500, at(0)), at(0));
        assert_eq!(pace.due(500, at(0)), at(500), "of another copy, perhaps");
        assert_eq!(pace.due(100, at(200)), at(1000));
        assert_eq!(pace.due(100, at(1050)), at(1100));
        // After a pause there is no burst.
        assert_eq!(pace.due(1000, at(9000)), at(9000));
        assert_eq!(pace.due(1000, at(9000)), at(10_000));
    }
}
