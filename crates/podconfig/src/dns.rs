//! `/etc/resolv.conf` of a pod, by dnsPolicy and dnsConfig (N-60).

use crate::identity::{host_network, namespace};
use crate::{NodeFacts, files};
use k8s_openapi::api::core::v1::{Pod, PodDNSConfig};
use runtime::Dns;

/// A problem of the node, not of one pod: the event is about the node.
pub const MISSING_CLUSTER_DNS: &str = "MissingClusterDNS";

/// Limits of resolvers.
const SERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_LINE_MAX: usize = 2048;
/// Some resolvers abort on longer search domains.
const SEARCH_MAX: usize = 253;

/// A Warning event about settings that were adjusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    pub reason: &'static str,
    pub message: String,
}

/// DNSConfigForming and MissingClusterDNS (N-60), for events when a sandbox is created.
pub fn dns_warnings(pod: &Pod, facts: &NodeFacts) -> Vec<Warning> {
    dns(pod, facts, &files::nodes_resolv_conf(facts)).1
}

/// `nodes` is the content of the node's resolv.conf.
pub(crate) fn dns(pod: &Pod, facts: &NodeFacts, nodes: &str) -> (Dns, Vec<Warning>) {
    let mut warnings = Vec::new();
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|spec| spec.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let host = parse(nodes);
    let mut dns = match policy {
        "None" => Dns::default(),
        "Default" => host,
        "ClusterFirst" if host_network(pod) => host,
        _ if facts.cluster_dns.is_empty() => {
            warnings.push(missing_cluster_dns());
            host
        }
        _ => cluster_first(pod, facts, host),
    };
    if let Some(config) = spec.and_then(|spec| spec.dns_config.as_ref()) {
        append(&mut dns, config);
    }
    limit_servers(&mut dns, &mut warnings);
    limit_searches(&mut dns, &mut warnings);
    (dns, warnings)
}

fn cluster_first(pod: &Pod, facts: &NodeFacts, host: Dns) -> Dns {
    let domain = &facts.cluster_domain;
    let own = match domain.is_empty() {
        true => Vec::new(),
        false => {
            vec![
                format!("{}.svc.{domain}", namespace(pod)),
                format!("svc.{domain}"),
                domain.clone(),
            ]
        }
    };
    let mut searches = Vec::new();
    add_new(&mut searches, own.into_iter().chain(host.searches));
    Dns {
        servers: facts.cluster_dns.iter().map(ToString::to_string).collect(),
        searches,
        options: vec!["ndots:5".into()],
    }
}

fn missing_cluster_dns() -> Warning {
    let message = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
        \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    Warning { reason: MISSING_CLUSTER_DNS, message: message.into() }
}

/// Reads a resolv.conf. The last `search` line counts; options accumulate.
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => dns.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                let named = words.filter(|word| *word != ".");
                dns.searches = named.map(|word| word.trim_end_matches('.').to_owned()).collect();
            }
            Some("options") => words.for_each(|word| set_option(&mut dns.options, word.to_owned())),
            _ => {}
        }
    }
    dns
}

fn append(dns: &mut Dns, config: &PodDNSConfig) {
    add_new(&mut dns.servers, config.nameservers.iter().flatten().cloned());
    add_new(&mut dns.searches, config.searches.iter().flatten().cloned());
    for option in config.options.iter().flatten() {
        let Some(name) = option.name.as_deref().filter(|name| !name.is_empty()) else { continue };
        let option = match option.value.as_deref().filter(|value| !value.is_empty()) {
            Some(value) => format!("{name}:{value}"),
            None => name.to_owned(),
        };
        set_option(&mut dns.options, option);
    }
}

/// Replaces an option of the same name: `ndots:1` replaces `ndots:5`.
fn set_option(options: &mut Vec<String>, option: String) {
    let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
    match options.iter_mut().find(|known| name(known) == name(&option)) {
        Some(known) => *known = option,
        None => options.push(option),
    }
}

fn add_new(list: &mut Vec<String>, more: impl Iterator<Item = String>) {
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

fn limit_servers(dns: &mut Dns, warnings: &mut Vec<Warning>) {
    if dns.servers.len() > SERVERS_MAX {
        dns.servers.truncate(SERVERS_MAX);
        let message = format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: {}",
            dns.servers.join(" ")
        );
        warnings.push(Warning { reason: "DNSConfigForming", message });
    }
}

fn limit_searches(dns: &mut Dns, warnings: &mut Vec<Warning>) {
    let before = dns.searches.len();
    dns.searches.truncate(SEARCHES_MAX);
    dns.searches.retain(|search| search.len() <= SEARCH_MAX);
    while dns.searches.join(" ").len() > SEARCH_LINE_MAX {
        dns.searches.pop();
    }
    if dns.searches.len() < before {
        let message = format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: {}",
            dns.searches.join(" ")
        );
        warnings.push(Warning { reason: "DNSConfigForming", message });
    }
}

/// The content of a resolv.conf.
pub(crate) fn resolv_conf(dns: &Dns) -> String {
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        text.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NODES: &str = "# a comment\nnameserver 9.9.9.9\nsearch old.example\nnameserver 8.8.8.8\n\
        search corp.example. . svc.cluster.local\noptions timeout:1 ndots:2\noptions rotate\n";

    fn render(spec: Value, cluster_dns: &[&str]) -> (String, Vec<Warning>) {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let pod =
            json!({ "metadata": { "name": "p", "namespace": "ns", "uid": "u" }, "spec": spec });
        let mut facts = NodeFacts::new("n", "/tmp");
        facts.cluster_dns = cluster_dns.iter().map(|ip| ip.parse().unwrap()).collect();
        let (dns, warnings) = dns(&typed::from_value(pod).unwrap(), &facts, NODES);
        (resolv_conf(&dns), warnings)
    }

    /// NET-108: `dnsConfig` adds servers and domains and replaces options. NET-12: the host network uses the node's servers.
    #[test]
    fn n_60_each_dns_policy_has_its_resolv_conf() {
        let host = "search corp.example svc.cluster.local\nnameserver 9.9.9.9\nnameserver 8.8.8.8\n\
            options timeout:1 ndots:2 rotate\n";
        let cluster = "search ns.svc.cluster.local svc.cluster.local cluster.local corp.example\n\
            nameserver 10.0.0.10\noptions ndots:5\n";
        for (spec, expected) in [
            (json!({}), cluster),
            (json!({ "dnsPolicy": "ClusterFirst" }), cluster),
            (json!({ "dnsPolicy": "ClusterFirst", "hostNetwork": true }), host),
            (json!({ "dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true }), cluster),
            (json!({ "dnsPolicy": "Default" }), host),
            (json!({ "dnsPolicy": "None" }), ""),
            (
                json!({ "dnsPolicy": "None", "dnsConfig": { "nameservers": ["1.1.1.1"],
                    "searches": ["x.y"], "options": [{ "name": "ndots", "value": "1" }, { "name": "edns0" }] } }),
                "search x.y\nnameserver 1.1.1.1\noptions ndots:1 edns0\n",
            ),
            (
                json!({ "dnsConfig": { "nameservers": ["1.1.1.1", "10.0.0.10"],
                    "searches": ["cluster.local", "x.y"], "options": [{ "name": "ndots", "value": "1" }] } }),
                "search ns.svc.cluster.local svc.cluster.local cluster.local corp.example x.y\n\
                 nameserver 10.0.0.10\nnameserver 1.1.1.1\noptions ndots:1\n",
            ),
        ] {
            assert_eq!(
                render(spec.clone(), &["10.0.0.10"]),
                (expected.to_owned(), vec![]),
                "{spec}"
            );
        }
    }

    #[test]
    fn n_60_without_cluster_dns_the_nodes_servers_are_used_with_a_warning() {
        let (text, warnings) = render(json!({}), &[]);
        assert!(text.contains("nameserver 9.9.9.9"));
        assert_eq!(warnings[0].reason, "MissingClusterDNS");
        assert!(warnings[0].message.starts_with("kubelet does not have ClusterDNS IP configured"));
    }

    /// NET-108: 3 servers, 32 domains, 2048 characters.
    #[test]
    fn n_60_servers_and_searches_over_the_limit_are_dropped_with_a_warning() {
        let config = json!({ "dnsPolicy": "None", "dnsConfig": {
            "nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"],
            "searches": (0..40).map(|n| format!("s{n}")).collect::<Vec<_>>(),
        } });
        let (text, warnings) = render(config, &[]);
        assert!(text.contains("s31\n") && !text.contains("s32"), "{text}");
        assert!(!text.contains("1.1.1.4"));
        assert_eq!(warnings.iter().map(|w| w.reason).collect::<Vec<_>>(), ["DNSConfigForming"; 2]);
        assert!(warnings[0].message.ends_with("nameserver line is: 1.1.1.1 1.1.1.2 1.1.1.3"));

        let long = (0..10).map(|n| format!("{n}{}", "x".repeat(249))).collect::<Vec<_>>();
        let too_long = "y".repeat(254);
        let searches = [vec![too_long], long].concat();
        let config = json!({ "dnsPolicy": "None", "dnsConfig": { "searches": searches } });
        let (text, warnings) = render(config, &[]);
        assert_eq!(text.split_whitespace().count(), 1 + 8, "2048 characters hold eight of 250");
        assert!(!text.contains('y'));
        assert_eq!(warnings.len(), 1);
    }
}
