//! Metrics of the DNS server, with the names of CoreDNS.

use super::message::Transport;
use super::server::Peer;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use metrics::{Family, Registry, counter, histogram};
use std::sync::Arc;
use std::time::Duration;

/// Buckets in seconds.
const DURATIONS: &[f64] = &[
    0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024,
    2.048, 4.096, 8.192,
];

const REQUESTS: &str = "coredns_dns_requests_total";
const RESPONSES: &str = "coredns_dns_responses_total";
const DURATION: &str = "coredns_dns_request_duration_seconds";

const CATALOGUE: &[Family] = &[
    histogram(DURATION, DURATIONS, &["server"], "Time to answer a DNS request."),
    counter(REQUESTS, &["family", "proto", "server", "type"], "DNS requests."),
    counter(RESPONSES, &["plugin", "rcode", "server"], "DNS responses, by code and origin."),
];

/// As CoreDNS names the server that answers all zones.
const SERVER: (&str, &str) = ("server", "dns://:53");

#[derive(Clone)]
pub(crate) struct DnsMetrics(Arc<Registry>);

impl DnsMetrics {
    pub(crate) fn new() -> DnsMetrics {
        DnsMetrics(Arc::new(Registry::new(CATALOGUE)))
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.0.clone()
    }

    pub(crate) fn request(&self, peer: &Peer, kind: RecordType) {
        let family = if peer.address.to_canonical().is_ipv4() { "1" } else { "2" };
        let protocol = match peer.transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        };
        let labels = &[("family", family), ("proto", protocol), SERVER, ("type", type_label(kind))];
        self.0.add(REQUESTS, labels, 1);
    }

    /// `started` is a [`clock::monotonic`] time.
    pub(crate) fn response(&self, code: ResponseCode, origin: &str, started: i64) {
        let labels = &[("plugin", origin), ("rcode", code_label(code)), SERVER];
        self.0.add(RESPONSES, labels, 1);
        let took = u64::try_from(clock::monotonic() - started).unwrap_or_default();
        self.0.observe(DURATION, &[SERVER], Duration::from_nanos(took));
    }

    /// A request that could not be read was answered with the code `low`.
    pub(crate) fn rejected(&self, low: u8) {
        let code = ResponseCode::from(0, low);
        let labels = &[("plugin", ""), ("rcode", code_label(code)), SERVER];
        self.0.add(RESPONSES, labels, 1);
    }
}

/// The types that CoreDNS counts one by one. The others share a label, so that clients cannot create many.
fn type_label(kind: RecordType) -> &'static str {
    match kind {
        RecordType::A => "A",
        RecordType::AAAA => "AAAA",
        RecordType::CNAME => "CNAME",
        RecordType::DNSKEY => "DNSKEY",
        RecordType::DS => "DS",
        RecordType::HTTPS => "HTTPS",
        RecordType::MX => "MX",
        RecordType::NS => "NS",
        RecordType::NSEC => "NSEC",
        RecordType::NSEC3 => "NSEC3",
        RecordType::PTR => "PTR",
        RecordType::RRSIG => "RRSIG",
        RecordType::SOA => "SOA",
        RecordType::SRV => "SRV",
        RecordType::TXT => "TXT",
        RecordType::ANY => "ANY",
        RecordType::IXFR => "IXFR",
        RecordType::AXFR => "AXFR",
        _ => "other",
    }
}

fn code_label(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::BADVERS => "BADVERS",
        _ => "other",
    }
}
