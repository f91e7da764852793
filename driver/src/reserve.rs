//! What of a pool's file system is kept back: a full one harms everything else on it.

use std::fmt;
use std::str::FromStr;

use dunnage_host::space::Space;

use crate::error::Error;
use crate::quantity;

/// How much is kept back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    /// A fiftieth, and no more than 4 GiB.
    #[default]
    Modest,
    /// Hundredths of the file system.
    Percent(u8),
    Bytes(u64),
}

const MODEST_PERCENT: u8 = 2;
const MODEST_MOST: u64 = 4 << 30;
const MOST_PERCENT: u8 = 90;

impl Reserve {
    pub(crate) fn of(self, space: Space) -> u64 {
        let part = |percent: u8| {
            let bytes = u128::from(space.total) * u128::from(percent) / 100;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        match self {
            Self::Modest => part(MODEST_PERCENT).min(MODEST_MOST),
            Self::Percent(percent) => part(percent),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for Reserve {
    type Err = Error;

    /// A whole percentage, or a quantity of bytes.
    fn from_str(text: &str) -> Result<Self, Error> {
        let percent = |number: &str| number.parse::<u8>().ok().filter(|percent| *percent <= MOST_PERCENT);
        let parsed = match text.strip_suffix('%') {
            Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                percent(number).map(Self::Percent)
            }
            Some(_) => None,
            None => quantity::parse(text).map(Self::Bytes),
        };
        parsed.ok_or_else(|| {
            Error::Invalid(format!(
                "{text:?} is neither a percentage from 0% to {MOST_PERCENT}% nor a quantity of bytes such as 10Gi"
            ))
        })
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Modest => write!(f, "{MODEST_PERCENT}%, at most {} GiB", MODEST_MOST >> 30),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1 << 30;

    #[test]
    fn a_reserve_is_a_share_or_an_amount() {
        for (text, expected) in [
            ("0", Some(Reserve::Bytes(0))),
            ("10Gi", Some(Reserve::Bytes(10 * G))),
            ("500Mi", Some(Reserve::Bytes(500 << 20))),
            ("0%", Some(Reserve::Percent(0))),
            ("5%", Some(Reserve::Percent(5))),
            ("90%", Some(Reserve::Percent(90))),
            ("91%", None),
            ("300%", None),
            ("1.5%", None),
            ("+5%", None),
            ("%", None),
            ("", None),
            ("-1Gi", None),
            ("some", None),
        ] {
            let parsed = text.parse::<Reserve>();
            assert_eq!(parsed.as_ref().ok().copied(), expected, "{text:?}");
            assert!(parsed.is_ok() || parsed.unwrap_err().to_string().contains("0% to 90%"));
        }
    }

    #[test]
    fn a_share_is_of_the_whole_file_system() {
        for (reserve, total, expected) in [
            (Reserve::default(), 100 * G, 2 * G),
            (Reserve::default(), 1000 * G, 4 * G),
            (Reserve::default(), 0, 0),
            (Reserve::Percent(2), 1000 * G, 20 * G),
            (Reserve::Percent(0), 1000 * G, 0),
            (Reserve::Percent(90), u64::MAX, 16_602_069_666_338_596_453),
            (Reserve::Bytes(7), 100 * G, 7),
            (Reserve::Bytes(7), 1, 7),
        ] {
            assert_eq!(reserve.of(Space { total, ..Space::default() }), expected, "{reserve} of {total}");
        }
    }
}
