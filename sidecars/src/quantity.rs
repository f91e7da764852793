//! Bytes from and to the quantities that Kubernetes writes.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const BINARY: [(&str, u32); 6] = [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];

/// The whole bytes of a quantity, rounded up; `None` when it is no quantity or does not fit.
pub fn parse(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.trim();
    let end =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.starts_with('-') || (whole.is_empty() && fraction.is_empty()) || fraction.len() > 18 {
        return None;
    }
    let digits = format!("{}{fraction}", whole.trim_start_matches('+'));
    let mut numerator: i128 = digits.parse().ok()?;
    let mut denominator = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    match multiplier(suffix)? {
        Multiplier::Binary(bits) => numerator = numerator.checked_mul(1_i128 << bits)?,
        Multiplier::Decimal(power) if power >= 0 => {
            numerator = numerator.checked_mul(10_i128.checked_pow(power.unsigned_abs())?)?;
        }
        Multiplier::Decimal(power) => {
            denominator = denominator.checked_mul(10_i128.checked_pow(power.unsigned_abs())?)?;
        }
    }
    i64::try_from(numerator.checked_add(denominator - 1)? / denominator).ok()
}

enum Multiplier {
    Binary(u32),
    Decimal(i32),
}

fn multiplier(suffix: &str) -> Option<Multiplier> {
    if let Some((_, bits)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some(Multiplier::Binary(*bits));
    }
    let power = match suffix {
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "" => 0,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        exponent => exponent.strip_prefix(['e', 'E'])?.parse().ok()?,
    };
    Some(Multiplier::Decimal(power))
}

/// Bytes in the canonical binary form: the largest unit that needs no fraction.
pub fn format(bytes: i64) -> Quantity {
    let unit = BINARY.iter().find(|(_, bits)| bytes >= (1 << bits) && bytes % (1 << bits) == 0);
    Quantity(match unit {
        Some((name, bits)) => format!("{}{name}", bytes >> bits),
        None => bytes.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_become_bytes_rounded_up() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1Gi", Some(1 << 30)),
            ("1.5Gi", Some(3 << 29)),
            ("100M", Some(100_000_000)),
            ("1e3", Some(1000)),
            ("12E6", Some(12_000_000)),
            ("2E", Some(2_000_000_000_000_000_000)),
            ("100m", Some(1)),
            ("1500m", Some(2)),
            ("0.1", Some(1)),
            ("7Ei", Some(7 << 60)),
            ("8Ei", None),
            ("99999999999999E", None),
            ("-1", None),
            ("", None),
            ("Gi", None),
            ("1 Gi", None),
            ("1Zi", None),
            ("1e-40", None),
        ] {
            assert_eq!(parse(&Quantity(text.into())), expected, "{text:?}");
        }
    }

    #[test]
    fn bytes_are_written_in_the_largest_whole_binary_unit() {
        for (bytes, expected) in [
            (0, "0"),
            (512, "512"),
            (1000, "1000"),
            (1024, "1Ki"),
            (1536 << 20, "1536Mi"),
            (1 << 30, "1Gi"),
            ((1 << 30) + 1, "1073741825"),
            (1 << 60, "1Ei"),
        ] {
            assert_eq!(format(bytes).0, expected);
            assert_eq!(parse(&format(bytes)), Some(bytes));
        }
    }
}
