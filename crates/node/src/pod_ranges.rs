//! Which of the node's pod address ranges its kernel can use. Pure.

/// Reason of the event.
pub(crate) const IPV6_NOT_AVAILABLE: &str = "IPv6NotAvailable";

/// The ranges to use, and a warning if some are left out. `ipv6_unavailable` says why this host has no IPv6, if it has none.
/// Fails if the node has no other range.
pub(crate) fn usable(
    assigned: Vec<String>,
    ipv6_unavailable: Option<String>,
) -> Result<(Vec<String>, Option<String>), String> {
    let is_ipv6 = |cidr: &String| cidr.contains(':');
    let Some(why) = ipv6_unavailable.filter(|_| assigned.iter().any(is_ipv6)) else {
        return Ok((assigned, None));
    };
    let kept: Vec<String> = assigned.into_iter().filter(|cidr| !is_ipv6(cidr)).collect();
    match kept.is_empty() {
        true => Err(format!("pods have IPv6 addresses in this cluster, but {why}")),
        false => Ok((kept, Some(format!("pods of this node get no IPv6 addresses: {why}")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_14_a_host_without_ipv6_uses_its_other_range_and_says_so() {
        let ranges = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let (four, both): (Vec<String>, Vec<String>) =
            (ranges(&["10.244.0.0/24"]), ranges(&["fd00::/64", "10.244.0.0/24"]));
        let none = || Some("this kernel has no IPv6".to_owned());
        assert_eq!(usable(both.clone(), None), Ok((both.clone(), None)));
        assert_eq!(usable(four.clone(), none()), Ok((four.clone(), None)));
        assert_eq!(usable(Vec::new(), none()), Ok((Vec::new(), None)), "the runtime's network");
        let (kept, warning) = usable(both, none()).unwrap();
        assert_eq!(kept, four);
        assert!(warning.unwrap().ends_with("this kernel has no IPv6"));
        let refused = usable(ranges(&["fd00::/64"]), none()).unwrap_err();
        assert!(refused.contains("this kernel has no IPv6"), "{refused}");
    }
}
