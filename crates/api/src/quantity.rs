//! Amounts of resources: `500m` of a CPU, `1Gi` of memory.
//!
//! A quantity is a number with a suffix, which belongs to a format (binary, decimal, exponent). Its
//! canonical text is the shortest in its format without a fraction, as in upstream; the API stores and
//! returns only canonical text. Not here: which resources there are.

use serde_json::Value;
use std::cmp::Ordering;
use std::fmt;

/// The format of a quantity; arithmetic keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `Ki`, `Mi`, `Gi`, …
    Binary,
    /// `m`, none, `k`, `M`, …
    Decimal,
    /// `1e3`
    Exponent,
}

/// An exact number of nanos (the smallest unit) and the format.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

const NANOS: i128 = 1_000_000_000;
/// Upstream caps amounts at what fits into 63 bits.
const MAX_NANOS: i128 = (i64::MAX as i128) * NANOS;
/// More digits than this cannot change a capped value; they are refused before any arithmetic.
const MAX_TEXT: usize = 100;

const NOT_A_QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const NO_SUCH_SUFFIX: &str = "unable to parse quantity's suffix";
const NO_NUMBER: &str = "unable to parse numeric part of quantity";

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::Decimal };

    /// The error is upstream's text.
    pub fn parse(text: &str) -> Result<Quantity, String> {
        if text.is_empty() {
            return Err(NOT_A_QUANTITY.into());
        }
        if text.len() > MAX_TEXT {
            return Err(NO_NUMBER.into());
        }
        let negative = text.starts_with('-');
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let number_end =
            unsigned.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(NOT_A_QUANTITY.into());
        }
        if !is_suffix_shape(suffix) {
            return Err(NOT_A_QUANTITY.into());
        }
        let (scale, format) = Scale::parse(suffix).ok_or(NO_SUCH_SUFFIX)?;
        let nanos = scale.nanos(whole, fraction);
        Ok(Quantity { nanos: if negative { -nanos } else { nanos }, format })
    }

    /// From a field of an object, where plain numbers are allowed too.
    pub fn from_value(value: &Value) -> Option<Quantity> {
        match value {
            Value::String(text) => Quantity::parse(text).ok(),
            Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
            _ => None,
        }
    }

    pub fn whole(amount: i64) -> Quantity {
        Quantity { nanos: i128::from(amount) * NANOS, format: Format::Decimal }
    }

    pub fn milli(amount: i64) -> Quantity {
        Quantity { nanos: i128::from(amount) * (NANOS / 1000), format: Format::Decimal }
    }

    /// Whole units, rounded up.
    pub fn value(&self) -> i64 {
        clamp(round_up(self.nanos, NANOS))
    }

    /// Thousandths, rounded up.
    pub fn milli_value(&self) -> i64 {
        clamp(round_up(self.nanos, NANOS / 1000))
    }

    /// Rounded up to thousandths, the precision of resource lists.
    pub fn rounded_to_milli(self) -> Quantity {
        let milli = NANOS / 1000;
        Quantity { nanos: round_up(self.nanos, milli) * milli, ..self }
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// A whole number of units.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANOS == 0
    }
}

/// A sum or difference has the format of the first operand, unless that is zero.
impl std::ops::Add for Quantity {
    type Output = Quantity;

    fn add(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: cap(self.nanos.saturating_add(other.nanos)), format }
    }
}

impl std::ops::Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: cap(self.nanos.saturating_sub(other.nanos)), format }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    /// The canonical text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        match self.format {
            // Less than 1Ki, or a fraction: written in decimal format instead.
            Format::Binary if self.nanos.abs() >= 1024 * NANOS && self.is_whole() => {
                let mut amount = self.nanos / NANOS;
                let mut suffix = 0;
                while amount % 1024 == 0 && suffix + 1 < BINARY.len() {
                    amount /= 1024;
                    suffix += 1;
                }
                write!(f, "{amount}{}", BINARY[suffix])
            }
            Format::Binary | Format::Decimal => {
                let (amount, exponent) = self.without_thousands();
                let suffix = DECIMAL.iter().find(|(_, e)| *e == exponent).map_or("", |(s, _)| s);
                write!(f, "{amount}{suffix}")
            }
            Format::Exponent => {
                let (amount, exponent) = self.without_thousands();
                if exponent == 0 { write!(f, "{amount}") } else { write!(f, "{amount}e{exponent}") }
            }
        }
    }
}

impl Quantity {
    /// The number as amount × 10^exponent, where the exponent is a multiple of three, as large as it goes.
    fn without_thousands(&self) -> (i128, i32) {
        let (mut amount, mut exponent) = (self.nanos, -9);
        while amount % 1000 == 0 && exponent < 18 {
            amount /= 1000;
            exponent += 3;
        }
        (amount, exponent)
    }
}

/// Rewrites every quantity of a resource list (`requests`, `capacity`, `hard`, …) in canonical form and rounds
/// it up to thousandths. Leaves invalid quantities to the decoder, which rejects them.
pub fn canonicalize_list(list: Option<&mut Value>) {
    for value in list.and_then(Value::as_object_mut).into_iter().flat_map(|map| map.values_mut()) {
        if let Some(quantity) = Quantity::from_value(value) {
            *value = quantity.rounded_to_milli().to_string().into();
        }
    }
}

/// Rewrites a quantity in canonical form, if it is valid.
pub fn canonicalize(value: Option<&mut Value>) {
    if let Some(value) = value
        && let Some(quantity) = Quantity::from_value(value)
    {
        *value = quantity.to_string().into();
    }
}

const BINARY: &[&str] = &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: &[(&str, i32)] = &[
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// The factor of a suffix.
enum Scale {
    Ten(i32),
    Two(u32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<(Scale, Format)> {
        if let Some((_, exponent)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
            return Some((Scale::Ten(*exponent), Format::Decimal));
        }
        if let Some(steps) = BINARY.iter().position(|s| *s == suffix) {
            return Some((Scale::Two(steps as u32 * 10), Format::Binary));
        }
        let exponent = suffix.strip_prefix(['e', 'E'])?;
        Some((Scale::Ten(exponent.parse().ok()?), Format::Exponent))
    }

    /// whole.fraction × scale in nanos, rounded up, capped.
    fn nanos(&self, whole: &str, fraction: &str) -> i128 {
        let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|c| c - b'0').collect();
        let first = digits.iter().position(|d| *d != 0).unwrap_or(digits.len());
        let digits = &digits[first..];
        if digits.is_empty() {
            return 0;
        }
        let (power, binary) = match self {
            Scale::Ten(exponent) => (*exponent, 1),
            Scale::Two(bits) => (0, 1_i128 << bits),
        };
        // The value is digits × 10^point × binary; in nanos the point is nine places further.
        let point = power.saturating_sub(fraction.len() as i32).saturating_add(9);
        let magnitude = (digits.len() as i32).saturating_add(point);
        if magnitude > 30 {
            return MAX_NANOS;
        }
        let kept = digits.len().min(36);
        let dropped = digits[kept..].iter().any(|d| *d != 0);
        let number = digits[..kept].iter().fold(0_i128, |n, d| n * 10 + i128::from(*d));
        let point = point + (digits.len() - kept) as i32;
        scaled(number, point, binary, dropped)
    }
}

/// number × 10^point × binary, rounded up if anything is lost, capped.
fn scaled(number: i128, point: i32, binary: i128, mut lost: bool) -> i128 {
    if point >= 0 {
        let power = 10_i128.checked_pow(point.unsigned_abs());
        let product = power.and_then(|p| number.checked_mul(p)).and_then(|n| n.checked_mul(binary));
        return product.map_or(MAX_NANOS, |n| cap(n.saturating_add(i128::from(lost))));
    }
    let Some(divisor) = 10_i128.checked_pow(point.unsigned_abs()) else {
        return 1;
    };
    // Whole part and remainder separately, so that the binary factor does not overflow.
    let (quotient, rest) = (number / divisor, number % divisor);
    let Some(whole) = quotient.checked_mul(binary) else {
        return MAX_NANOS;
    };
    let (part, rest) = match rest.checked_mul(binary) {
        Some(product) => (product / divisor, product % divisor),
        // The fraction is so long that its last digits do not matter.
        None => {
            let coarse = divisor / 1_000_000_000;
            let product = (rest / 1_000_000_000).saturating_mul(binary);
            (product / coarse.max(1), 1)
        }
    };
    lost |= rest != 0;
    cap(whole.saturating_add(part).saturating_add(i128::from(lost)))
}

/// `[eEinumkKMGTP]*[-+]?[0-9]*`
fn is_suffix_shape(suffix: &str) -> bool {
    let rest = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    rest.bytes().all(|c| c.is_ascii_digit())
}

fn cap(nanos: i128) -> i128 {
    nanos.clamp(-MAX_NANOS, MAX_NANOS)
}

fn clamp(amount: i128) -> i64 {
    amount.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Division that rounds away from zero.
fn round_up(nanos: i128, unit: i128) -> i128 {
    let whole = nanos / unit;
    match (nanos % unit).signum() {
        0 => whole,
        sign => whole + sign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_147_quantities_are_written_canonically() {
        for (given, canonical) in [
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1e3", "1e3"),
            ("12e6", "12e6"),
            ("1E3", "1e3"),
            ("100e3", "100e3"),
            ("1000", "1k"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0", "0"),
            ("0Mi", "0"),
            ("-1", "-1"),
            ("+1", "1"),
            ("1.5Gi", "1536Mi"),
            ("0.5Mi", "512Ki"),
            ("512", "512"),
            ("0.5Ki", "512"),
            ("1Ki", "1Ki"),
            ("1025Ki", "1025Ki"),
            ("1000Ki", "1000Ki"),
            ("1E", "1E"),
            ("1000P", "1E"),
            ("100n", "100n"),
            ("0.1n", "1n"),
            (".5", "500m"),
            ("1.", "1"),
            ("9999999999999999999", "9223372036854775807"),
            ("1e-3", "1e-3"),
            ("0.3Ki", "307200m"),
        ] {
            assert_eq!(Quantity::parse(given).unwrap().to_string(), canonical, "{given}");
        }
    }

    #[test]
    fn invalid_quantities_are_rejected_with_upstreams_messages() {
        for (given, message) in [
            ("lots", NOT_A_QUANTITY),
            ("", NOT_A_QUANTITY),
            ("-", NOT_A_QUANTITY),
            ("1 Gi", NOT_A_QUANTITY),
            ("1.2.3", NOT_A_QUANTITY),
            ("1Kx", NOT_A_QUANTITY),
            ("1KiB", NOT_A_QUANTITY),
            ("1mi", NO_SUCH_SUFFIX),
            ("1K", NO_SUCH_SUFFIX),
            ("1e", NO_SUCH_SUFFIX),
        ] {
            assert_eq!(Quantity::parse(given).unwrap_err(), message, "{given}");
        }
    }

    #[test]
    fn resource_lists_are_rounded_up_to_thousandths() {
        let mut list = serde_json::json!({"cpu": "1u", "memory": 1024, "pods": "0.0001"});
        canonicalize_list(Some(&mut list));
        assert_eq!(list, serde_json::json!({"cpu": "1m", "memory": "1024", "pods": "1m"}));
    }

    #[test]
    fn sums_and_differences_keep_the_format() {
        let q = |text| Quantity::parse(text).unwrap();
        assert_eq!((q("1Gi") + q("1024Mi")).to_string(), "2Gi");
        assert_eq!((q("1") - q("250m")).to_string(), "750m");
        assert!(q("1Gi") > q("1G") && q("1000m") == q("1"));
        assert_eq!((q("1500m").value(), q("1500m").milli_value()), (2, 1500));
    }

    proptest! {
        #[test]
        fn random_text_does_not_panic(text in "[-+]?[0-9.]{0,45}[eEinumkKMGTP]{0,2}[-+]?[0-9]{0,6}") {
            let _ = Quantity::parse(&text).map(|q| q.to_string());
        }

        /// Canonical text is read back as the same amount and written the same.
        #[test]
        fn canonical_text_is_stable(amount in -1_000_000_000_000_i64..1_000_000_000_000, suffix in "(|n|u|m|k|M|Ki|Mi|Gi|e2)") {
            let first = Quantity::parse(&format!("{amount}{suffix}")).unwrap();
            let again = Quantity::parse(&first.to_string()).unwrap();
            prop_assert_eq!(first, again);
            prop_assert_eq!(first.to_string(), again.to_string());
        }
    }
}
