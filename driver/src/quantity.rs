//! Bytes as people write them, in the units of Kubernetes.

/// The units, longest names first, and the bytes of each.
const UNITS: [(&str, u64); 13] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("", 1),
];

/// More decimals than this say nothing.
const DECIMALS: usize = 9;

/// Whole bytes, rounded up; none when it is no such number or too large for CSI.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let (number, unit) = UNITS.iter().find_map(|(name, bytes)| Some((text.strip_suffix(*name)?, *bytes)))?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > DECIMALS {
        return None;
    }
    let parts = 10_u128.pow(u32::try_from(decimals.len()).ok()?);
    let number: u128 = format!("{whole}{decimals}").parse().ok()?;
    let bytes = number.checked_mul(unit.into())?.div_ceil(parts);
    u64::try_from(bytes).ok().filter(|bytes| i64::try_from(*bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_become_bytes_rounded_up() {
        for (text, expected) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("1Ki", Some(1024)),
            ("1Gi", Some(1 << 30)),
            ("1.5Gi", Some(3 << 29)),
            ("100M", Some(100_000_000)),
            ("3k", Some(3000)),
            ("0.1", Some(1)),
            ("7Ei", Some(7 << 60)),
            ("8Ei", None),
            ("99999999999999999999999999999999999999999E", None),
            ("-1", None),
            ("+1", None),
            ("", None),
            ("Gi", None),
            (".5Gi", None),
            ("1.Gi", None),
            ("1 Gi", None),
            ("1gi", None),
            ("1e3", None),
            ("1.0000000001Gi", None),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}
