//! How much more than there is sparse volumes may promise.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The bytes that sparse volumes may promise for a byte of the pool, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overcommit(u32);

const ONE: u32 = 100;
const MOST: u32 = 100 * ONE;

impl Default for Overcommit {
    /// No more than there is.
    fn default() -> Self {
        Self(ONE)
    }
}

impl Overcommit {
    /// The bytes of the pool that stand for a promise.
    pub(crate) fn share(self, promised: u64) -> u64 {
        scale(promised, ONE, self.0, u128::div_ceil)
    }

    /// The promises that bytes of the pool can stand for.
    pub(crate) fn promises(self, bytes: u64) -> u64 {
        scale(bytes, self.0, ONE, |product, by| product / by)
    }
}

fn scale(bytes: u64, times: u32, by: u32, divide: impl Fn(u128, u128) -> u128) -> u64 {
    u64::try_from(divide(u128::from(bytes) * u128::from(times), by.into())).unwrap_or(u64::MAX)
}

impl FromStr for Overcommit {
    type Err = Error;

    /// A number from 1 to 100 with at most two decimals.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refused =
            || Error::Invalid(format!("{text:?} is no number from 1 to 100 with at most two decimals"));
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || whole.len() > 3 || decimals.len() > 2 {
            return Err(refused());
        }
        let number = format!("{whole}{decimals:0<2}").parse().map_err(|_| refused())?;
        if (ONE..=MOST).contains(&number) { Ok(Self(number)) } else { Err(refused()) }
    }
}

impl fmt::Display for Overcommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / ONE, self.0 % ONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_has_at_least_one_and_at_most_two_decimals() {
        for (text, expected) in [
            ("1", Some("1.00")),
            ("1.0", Some("1.00")),
            ("1.5", Some("1.50")),
            ("2.25", Some("2.25")),
            ("100", Some("100.00")),
            ("0.99", None),
            ("100.01", None),
            ("1.234", None),
            ("", None),
            (".5", None),
            ("1.", None),
            ("-1", None),
            ("+1", None),
            ("1e1", None),
            ("NaN", None),
            ("9999999999", None),
        ] {
            let parsed = text.parse::<Overcommit>();
            assert_eq!(parsed.as_ref().ok().map(ToString::to_string).as_deref(), expected, "{text}");
            assert!(parsed.is_ok() || parsed.unwrap_err().to_string().contains("1 to 100"));
        }
    }

    #[test]
    fn a_promise_is_never_counted_for_less_than_its_share() {
        for (ratio, promised, share, promises) in [
            ("1", 7, 7, 7),
            ("2", 7, 4, 14),
            ("1.5", 100, 67, 150),
            ("3", 1, 1, 3),
            ("1", u64::MAX, u64::MAX, u64::MAX),
            ("2", u64::MAX, u64::MAX / 2 + 1, u64::MAX),
            ("2", 0, 0, 0),
        ] {
            let ratio: Overcommit = ratio.parse().unwrap();
            assert_eq!(
                (ratio.share(promised), ratio.promises(promised)),
                (share, promises),
                "{ratio} {promised}"
            );
        }
    }
}
