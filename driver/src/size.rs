//! How large a new volume becomes, from what is asked and what the engine can make.

use dunnage_csi::v1::CapacityRange;

use crate::error::{Error, Result};

/// What a volume gets when nothing is asked.
const DEFAULT: u64 = 1 << 30;

/// The sizes that an engine can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The least, in bytes, and for whom.
    pub minimum: u64,
    pub minimum_for: &'static str,
    /// Sizes are multiples of this.
    pub step: u64,
}

/// The bytes that a volume may have; no limit is `u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub required: u64,
    pub limit: u64,
}

/// Reads the range of a request.
pub(crate) fn range(asked: Option<&CapacityRange>) -> Result<Range> {
    let (required, limit) = asked.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
    let bytes = |value: i64, field| {
        u64::try_from(value).map_err(|_| Error::Invalid(format!("{field} is negative: {value}")))
    };
    let required = bytes(required, "required_bytes")?;
    let limit = match bytes(limit, "limit_bytes")? {
        0 => u64::MAX,
        limit => limit,
    };
    if limit < required {
        return Err(Error::Invalid(format!("limit_bytes {limit} is less than required_bytes {required}")));
    }
    Ok(Range { required, limit })
}

/// The size of a new volume.
pub(crate) fn choose(range: Range, sizes: Sizes) -> Result<u64> {
    let Sizes { minimum, minimum_for, step } = sizes;
    let wanted = match range.required {
        0 => DEFAULT.max(minimum).min(range.limit),
        required => required,
    };
    if wanted < minimum {
        return Err(Error::OutOfRange(format!(
            "{wanted} bytes are too few for {minimum_for}: the least is {minimum} bytes ({} MiB)",
            minimum.div_ceil(1 << 20)
        )));
    }
    let size = wanted.checked_next_multiple_of(step).filter(|size| i64::try_from(*size).is_ok());
    match size {
        Some(size) if size <= range.limit => Ok(size),
        // Nothing was required, so less than the limit will do.
        _ if range.required == 0 && wanted / step * step >= minimum => Ok(wanted / step * step),
        _ => Err(Error::OutOfRange(format!(
            "no multiple of {step} bytes lies between {wanted} and the limit of {} bytes",
            range.limit
        ))),
    }
}

/// The size that a volume of this size has after it was asked to grow: it never shrinks.
pub(crate) fn grown(present: u64, range: Range, sizes: Sizes) -> Result<u64> {
    if range.limit < present {
        return Err(Error::OutOfRange(format!(
            "the volume has {present} bytes and cannot shrink to the limit of {} bytes",
            range.limit
        )));
    }
    if range.required <= present { Ok(present) } else { choose(range, sizes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { minimum: 1 << 20, minimum_for: "tests", step: 4096 };

    #[test]
    fn the_size_honours_what_is_required_and_the_limit() {
        let max = u64::MAX;
        for (required, limit, expected) in [
            (0, max, Some(1 << 30)),
            (0, 2 << 20, Some(2 << 20)),
            (0, (2 << 20) + 1, Some(2 << 20)),
            (0, 5000, None),
            (1 << 20, max, Some(1 << 20)),
            ((1 << 20) + 1, max, Some((1 << 20) + 4096)),
            ((1 << 20) + 1, (1 << 20) + 2, None),
            ((1 << 20) + 1, (1 << 20) + 4096, Some((1 << 20) + 4096)),
            ((1 << 20) - 1, max, None),
            (i64::MAX as u64, max, None),
        ] {
            let size = choose(Range { required, limit }, SIZES);
            assert_eq!(size.as_ref().ok(), expected.as_ref(), "{required} {limit} {size:?}");
            assert!(matches!(size, Ok(_) | Err(Error::OutOfRange(_))));
        }
    }

    #[test]
    fn a_volume_grows_to_what_is_required_and_never_shrinks() {
        let max = u64::MAX;
        let present = 2 << 20;
        for (required, limit, expected) in [
            (0, max, Some(present)),
            (present - 1, max, Some(present)),
            (present, present, Some(present)),
            (present + 1, max, Some(present + 4096)),
            (present + 1, present + 4095, None),
            (3 << 20, 3 << 20, Some(3 << 20)),
            (0, present - 1, None),
            (i64::MAX as u64, max, None),
        ] {
            let size = grown(present, Range { required, limit }, SIZES);
            assert_eq!(size.as_ref().ok(), expected.as_ref(), "{required} {limit} {size:?}");
            assert!(matches!(size, Ok(_) | Err(Error::OutOfRange(_))));
        }
    }

    #[test]
    fn a_senseless_range_is_refused() {
        for (required_bytes, limit_bytes) in [(-1, 0), (0, -1), (2, 1)] {
            let asked = CapacityRange { required_bytes, limit_bytes };
            assert!(matches!(range(Some(&asked)), Err(Error::Invalid(_))), "{asked:?}");
        }
        assert_eq!(range(None).unwrap(), Range { required: 0, limit: u64::MAX });
    }
}
