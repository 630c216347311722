//! The value of a plain scalar in YAML 1.1, as upstream's parser reads it.

use serde_json::{Number, Value};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Integer(i64),
    /// Too large for a signed integer.
    Unsigned(u64),
    Float(f64),
    String(String),
    Merge,
}

pub(super) fn resolve(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
        "<<" => Scalar::Merge,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Scalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Scalar::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
        _ => number(text).unwrap_or_else(|| Scalar::String(text.to_owned())),
    }
}

fn number(text: &str) -> Option<Scalar> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let plain = text.replace('_', "");
    integer(&plain).or_else(|| float(&plain))
}

/// Decimal, `0x`, `0o`, `0b`, or octal after a leading zero.
fn integer(text: &str) -> Option<Scalar> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // The parser below would accept a second sign.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let amount = u64::from_str_radix(digits, radix).ok()?;
    match (negative, i64::try_from(amount)) {
        (false, Ok(amount)) => Some(Scalar::Integer(amount)),
        (false, Err(_)) => Some(Scalar::Unsigned(amount)),
        (true, _) => 0i64.checked_sub_unsigned(amount).map(Scalar::Integer),
    }
}

fn float(text: &str) -> Option<Scalar> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mantissa_ok =
        all_digits(whole) && all_digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    let exponent_ok = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !digits.is_empty() && all_digits(digits)
    });
    if !mantissa_ok || !exponent_ok {
        return None;
    }
    text.parse().ok().map(Scalar::Float)
}

impl Scalar {
    pub(super) fn into_value(self) -> Result<Value, String> {
        Ok(match self {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => value.into(),
            Scalar::Integer(value) => value.into(),
            Scalar::Unsigned(value) => value.into(),
            // A whole number becomes JSON without a fraction.
            Scalar::Float(value) if value.fract() == 0.0 && value.abs() < 1e15 => {
                (value as i64).into()
            }
            Scalar::Float(value) => match Number::from_f64(value) {
                Some(number) => number.into(),
                None => return Err(format!("json: unsupported value: {value}")),
            },
            Scalar::String(text) => text.into(),
            Scalar::Merge => "<<".into(),
        })
    }

    /// The name of a field: JSON keys are strings.
    pub(super) fn into_key(self) -> Result<String, String> {
        match self {
            Scalar::Null => Err("unsupported map key of type: nil".into()),
            Scalar::String(text) => Ok(text),
            other => other.into_value().map(|value| match value {
                Value::String(text) => text,
                other => other.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_are_read_as_yaml_1_1() {
        let cases = [
            ("", Scalar::Null),
            ("y", Scalar::Bool(true)),
            ("Off", Scalar::Bool(false)),
            ("12", Scalar::Integer(12)),
            ("-1_000", Scalar::Integer(-1000)),
            ("010", Scalar::Integer(8)),
            ("0x1F", Scalar::Integer(31)),
            ("08", Scalar::Float(8.0)),
            ("1.5e3", Scalar::Float(1500.0)),
            ("-9223372036854775808", Scalar::Integer(i64::MIN)),
            ("18446744073709551615", Scalar::Unsigned(u64::MAX)),
        ];
        for (text, expected) in cases {
            assert_eq!(resolve(text), expected, "{text}");
        }
        for text in ["yeS", "1.2.3", "2026-01-02", "1m", "--1", "+-1", ".", "-", "nginx:1.27", "e3"]
        {
            assert_eq!(resolve(text), Scalar::String(text.into()));
        }
    }
}
