//! How IP addresses and ranges are written: which forms new objects may not use, and which get a warning (NET-23).
//!
//! Programs read `010.0.0.1`, `::ffff:10.0.0.1` and `10.0.0.1/8` in different ways. Stored objects may still have them.

use std::net::IpAddr;

const NOT_AN_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NOT_A_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// Why this is not an address.
pub(crate) fn unreadable_ip(text: &str) -> Option<&'static str> {
    match (text.parse::<IpAddr>(), lenient_ip(text)) {
        (Ok(_), _) => None,
        (Err(_), Some(_)) => Some("must not have leading 0s"),
        (Err(_), None) => Some(NOT_AN_IP),
    }
}

/// Why a new object may not have this address, although it can be read.
pub(crate) fn ambiguous_ip(text: &str) -> Option<&'static str> {
    let mapped = text.parse().is_ok_and(is_mapped);
    mapped.then_some("must not be an IPv4-mapped IPv6 address")
}

/// Why this is not a range.
pub(crate) fn unreadable_cidr(text: &str) -> Option<&'static str> {
    match (cidr(text), lenient_cidr(text)) {
        (Some(_), _) => None,
        (None, Some(_)) => Some("must not have leading 0s in IP or prefix length"),
        (None, None) => Some(NOT_A_CIDR),
    }
}

/// Why a new object may not have this range, although it can be read.
pub(crate) fn ambiguous_cidr(text: &str) -> Option<&'static str> {
    let (address, length) = cidr(text)?;
    if is_mapped(address) {
        return Some("must not have an IPv4-mapped IPv6 address");
    }
    let has_more_bits = network(address, length) != address;
    has_more_bits.then_some("must not have bits set beyond the prefix length")
}

/// A warning about an address that can be written better.
pub(crate) fn ip_warning(field: &str, text: &str) -> Option<String> {
    let address = lenient_ip(text)?;
    if text.parse::<IpAddr>().is_err() || is_mapped(address) {
        let better = address.to_canonical().to_string();
        return Some(format!(
            "{field}: non-standard IP address {text:?} is invalid: use {better:?}"
        ));
    }
    let better = address.to_string();
    (address.is_ipv6() && better != text).then(|| {
        format!(
            "{field}: IPv6 address {text:?} should be in RFC 5952 canonical format ({better:?})"
        )
    })
}

/// Warnings about a range that can be written better.
pub(crate) fn cidr_warnings(field: &str, text: &str) -> Vec<String> {
    let Some((address, length)) = lenient_cidr(text) else { return Vec::new() };
    let better = format!("{}/{length}", network(address, length));
    let mut warnings = Vec::new();
    if network(address, length) != address {
        let single = format!("{address}/{}", width(address));
        warnings.push(format!(
            "{field}: CIDR value {text:?} is ambiguous in this context (should be {better:?} or {single:?}?)"
        ));
    }
    if cidr(text).is_none() || is_mapped(address) {
        warnings
            .push(format!("{field}: non-standard CIDR value {text:?} is invalid: use {better:?}"));
    }
    if warnings.is_empty() && address.is_ipv6() && better != text {
        warnings.push(format!(
            "{field}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format ({better:?})"
        ));
    }
    warnings
}

/// A range in a form that all clients read in the same way, except for bits after the prefix.
pub(crate) fn cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let plain = length == "0" || !length.starts_with(['0', '+']);
    let address: IpAddr = address.parse().ok()?;
    let length = length.parse().ok().filter(|length| plain && *length <= width(address))?;
    Some((address, length))
}

/// As old versions of Kubernetes read it: without leading zeros.
fn lenient_ip(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let octets: Option<Vec<u8>> = text.split('.').map(lenient_number).collect();
    <[u8; 4]>::try_from(octets?).ok().map(IpAddr::from)
}

fn lenient_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address = lenient_ip(address)?;
    let length = lenient_number(length).filter(|length| *length <= width(address))?;
    Some((address, length))
}

fn lenient_number(text: &str) -> Option<u8> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let significant = text.trim_start_matches('0');
    match significant {
        "" => digits.then_some(0),
        _ => significant.parse().ok().filter(|_| digits),
    }
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The first address of the range.
fn network(address: IpAddr, length: u8) -> IpAddr {
    let beyond = u32::from(width(address) - length);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(beyond).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(beyond).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_23_some_forms_of_addresses_are_refused_or_get_a_warning() {
        let rows = [
            ("10.0.0.1", None, ""),
            ("fd00::1", None, ""),
            (
                "FD00::1",
                None,
                "IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")",
            ),
            (
                "010.0.0.001",
                Some("must not have leading 0s"),
                "non-standard IP address \"010.0.0.001\" is invalid: use \"10.0.0.1\"",
            ),
            (
                "::ffff:10.0.0.1",
                Some("must not be an IPv4-mapped IPv6 address"),
                "non-standard IP address \"::ffff:10.0.0.1\" is invalid: use \"10.0.0.1\"",
            ),
            ("10.0.0", Some(NOT_AN_IP), ""),
            ("10.0.0.256", Some(NOT_AN_IP), ""),
            ("10.0.0.+1", Some(NOT_AN_IP), ""),
            ("", Some(NOT_AN_IP), ""),
        ];
        for (text, refused, warning) in rows {
            assert_eq!(unreadable_ip(text).or(ambiguous_ip(text)), refused, "{text}");
            let expected = (!warning.is_empty()).then(|| format!("f: {warning}"));
            assert_eq!(ip_warning("f", text), expected, "{text}");
        }
    }

    #[test]
    fn net_23_some_forms_of_ranges_are_refused_or_get_a_warning() {
        let zeros = "must not have leading 0s in IP or prefix length";
        let bits = "must not have bits set beyond the prefix length";
        let rows = [
            ("10.0.0.0/8", None, ""),
            ("0.0.0.0/0", None, ""),
            ("::/0", None, ""),
            ("10.0.0.1/32", None, ""),
            (
                "FD00::/8",
                None,
                "IPv6 CIDR value \"FD00::/8\" should be in RFC 5952 canonical format (\"fd00::/8\")",
            ),
            (
                "10.0.0.1/8",
                Some(bits),
                "CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
            ),
            (
                "10.0.0.0/08",
                Some(zeros),
                "non-standard CIDR value \"10.0.0.0/08\" is invalid: use \"10.0.0.0/8\"",
            ),
            (
                "010.0.0.0/8",
                Some(zeros),
                "non-standard CIDR value \"010.0.0.0/8\" is invalid: use \"10.0.0.0/8\"",
            ),
            ("10.0.0.0/33", Some(NOT_A_CIDR), ""),
            ("10.0.0.0/+8", Some(NOT_A_CIDR), ""),
            ("10.0.0.0", Some(NOT_A_CIDR), ""),
        ];
        for (text, refused, warning) in rows {
            assert_eq!(unreadable_cidr(text).or(ambiguous_cidr(text)), refused, "{text}");
            let expected = (!warning.is_empty()).then(|| format!("f: {warning}"));
            assert_eq!(cidr_warnings("f", text), Vec::from_iter(expected), "{text}");
        }
        let mapped = "::ffff:10.0.0.0/104";
        assert_eq!(ambiguous_cidr(mapped), Some("must not have an IPv4-mapped IPv6 address"));
    }
}
