//! Which records one name has. The caller follows aliases.

use super::{Zone, address_data, record};
use crate::dns::endpoints::{Form, form_of, hosts, service_port, unique};
use crate::dns::name::{PortName, ServiceName, Subject, dashed_address};
use crate::watched::{BY_ADDRESS, BY_CLUSTER_IP, BY_SERVICE, SERVICE_NAME};
use client::ObjectKey;
use hickory_proto::rr::rdata::{PTR, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The version of the schema of records (NET-96).
const SCHEMA: &str = "1.1.0";

/// More records than fit into the largest message (64 KiB), so no answer needs more.
const RECORDS_MAX: usize = 4096;

/// The weights of the SRV records of one name add up to about this (NET-97).
const SRV_WEIGHT: u16 = 100;

#[derive(Debug)]
pub(super) enum Lookup {
    Records {
        data: Vec<RData>,
        additionals: Vec<Record>,
    },
    /// The name exists, but has no record of that type.
    NoData,
    NoName,
    /// The name is an alias of another one.
    Alias(Name),
    Outside,
}

impl Lookup {
    fn records(data: Vec<RData>) -> Lookup {
        match data.is_empty() {
            true => Lookup::NoData,
            false => Lookup::Records { data, additionals: Vec::new() },
        }
    }
}

impl Zone {
    pub(super) fn lookup(&self, subject: &Subject, kind: RecordType) -> Lookup {
        match subject {
            Subject::Outside => Lookup::Outside,
            Subject::Nothing => Lookup::NoName,
            Subject::Zone if kind == RecordType::SOA => Lookup::records(vec![self.soa()]),
            Subject::Zone | Subject::Branch => Lookup::NoData,
            Subject::Version if kind == RecordType::TXT => {
                Lookup::records(vec![RData::TXT(TXT::new(vec![SCHEMA.to_owned()]))])
            }
            Subject::Version => Lookup::NoData,
            Subject::Namespace(namespace) => match self.has_namespace(namespace) {
                true => Lookup::NoData,
                false => Lookup::NoName,
            },
            Subject::Pod { namespace, address } => match self.has_namespace(namespace) {
                true => self.addresses(vec![*address], kind),
                false => Lookup::NoName,
            },
            Subject::Service(name) => self.of_service(name, kind),
            Subject::Endpoint(name, host) => self.of_endpoint(name, host, kind),
            Subject::Port(name, port) => self.of_port(name, port, kind),
            Subject::Reverse(address) => self.of_address(*address, kind),
        }
    }

    fn of_service(&self, name: &ServiceName, kind: RecordType) -> Lookup {
        let Some(service) = self.service(name) else {
            return Lookup::NoName;
        };
        match form_of(&service) {
            Form::ClusterIp(addresses) => self.addresses(addresses, kind),
            Form::Headless => {
                let slices = self.slices(name);
                let addresses = unique(hosts(&slices).map(|host| host.address));
                match addresses.is_empty() {
                    true => Lookup::NoName,
                    false => self.addresses(addresses, kind),
                }
            }
            // The API server rejects an ExternalName that is not a name, so only an empty one is not.
            Form::ExternalName(target) => absolute(target).map_or(Lookup::NoData, Lookup::Alias),
        }
    }

    /// One endpoint. As upstream, also of a Service with a cluster IP (NET-100).
    fn of_endpoint(&self, name: &ServiceName, host: &str, kind: RecordType) -> Lookup {
        let is_alias = |service: &Service| matches!(form_of(service), Form::ExternalName(_));
        match self.service(name) {
            Some(service) if !is_alias(&service) => (),
            _ => return Lookup::NoName,
        }
        let slices = self.slices(name);
        let as_address = dashed_address(host);
        let named = hosts(&slices).filter(|candidate| candidate.has_name(host, as_address));
        let addresses = unique(named.map(|host| host.address));
        match addresses.is_empty() {
            true => Lookup::NoName,
            false => self.addresses(addresses, kind),
        }
    }

    fn of_port(&self, name: &ServiceName, port: &PortName, kind: RecordType) -> Lookup {
        let Some(service) = self.service(name) else {
            return Lookup::NoName;
        };
        let found = match form_of(&service) {
            Form::ExternalName(_) => None,
            Form::Headless => self.headless_port(name, port),
            Form::ClusterIp(addresses) => self.cluster_ip_port(name, &service, port, addresses),
        };
        match (found, kind) {
            (None, _) => Lookup::NoName,
            (Some((data, additionals)), RecordType::SRV) => Lookup::Records { data, additionals },
            (Some(_), _) => Lookup::NoData,
        }
    }

    fn cluster_ip_port(
        &self,
        name: &ServiceName,
        service: &Service,
        port: &PortName,
        addresses: Vec<IpAddr>,
    ) -> Option<(Vec<RData>, Vec<Record>)> {
        let found = service_port(service, &port.port, &port.protocol)?;
        let number = u16::try_from(found.port).ok()?;
        let target = self.service_name(name)?;
        let addresses = addresses.into_iter().map(address_data);
        let additionals = addresses.map(|data| record(&target, data)).collect();
        Some((vec![RData::SRV(SRV::new(0, SRV_WEIGHT, number, target))], additionals))
    }

    /// The SRV records of a headless Service, one per host, and the addresses of the hosts.
    fn headless_port(
        &self,
        name: &ServiceName,
        port: &PortName,
    ) -> Option<(Vec<RData>, Vec<Record>)> {
        let slices = self.slices(name);
        let (mut targets, mut addresses) = (Vec::new(), Vec::new());
        let (mut known_targets, mut known_addresses) = (HashSet::new(), HashSet::new());
        for host in hosts(&slices) {
            let Some(number) = host.port(&port.port, &port.protocol) else {
                continue;
            };
            let label = host.name();
            if known_targets.insert((label.clone(), number)) {
                targets.push((label.clone(), number));
            }
            if known_addresses.insert((label.clone(), host.address)) {
                addresses.push((label, host.address));
            }
        }
        self.rotate(&mut targets);
        targets.truncate(RECORDS_MAX);
        addresses.truncate(RECORDS_MAX);
        let service = self.service_name(name)?;
        let below = |label: &str| service.prepend_label(label.as_bytes()).ok();
        let weight = (SRV_WEIGHT / u16::try_from(targets.len()).ok()?.max(1)).max(1);
        let data = targets.iter().filter_map(|(label, number)| {
            Some(RData::SRV(SRV::new(0, weight, *number, below(label)?)))
        });
        let additionals = addresses
            .iter()
            .filter_map(|(label, address)| Some(record(&below(label)?, address_data(*address))));
        let data: Vec<RData> = data.collect();
        (!data.is_empty()).then(|| (data, additionals.collect()))
    }

    /// The reverse of an address: the Service with that cluster IP, else the endpoints of headless Services.
    fn of_address(&self, address: IpAddr, kind: RecordType) -> Lookup {
        let text = address.to_string();
        let mut names: Vec<Name> = Vec::new();
        for service in self.watched.services.by_index(BY_CLUSTER_IP, &text) {
            let metadata = &service.metadata;
            if let Form::ClusterIp(_) = form_of(&service)
                && let Some(name) = service_key(&metadata.namespace, metadata.name.as_ref())
            {
                names.extend(self.service_name(&name));
            }
        }
        if names.is_empty() {
            names.extend(self.endpoint_names(address, &text));
        }
        match (names.is_empty(), kind) {
            (true, _) => Lookup::Outside,
            (false, RecordType::PTR) => {
                self.rotate(&mut names);
                names.truncate(RECORDS_MAX);
                Lookup::records(names.into_iter().map(|name| RData::PTR(PTR(name))).collect())
            }
            (false, _) => Lookup::NoData,
        }
    }

    fn endpoint_names(&self, address: IpAddr, text: &str) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        for slice in self.watched.slices.by_index(BY_ADDRESS, text) {
            let labels = slice.metadata.labels.as_ref();
            let service = labels.and_then(|labels| labels.get(SERVICE_NAME));
            let Some(key) = service_key(&slice.metadata.namespace, service) else {
                continue;
            };
            let is_headless = |service: &Arc<Service>| form_of(service) == Form::Headless;
            let service = self.service(&key).filter(is_headless);
            let Some(owner) = service.and_then(|_| self.service_name(&key)) else {
                continue;
            };
            let slices = [slice];
            let hosts = hosts(&slices).filter(|host| host.address == address);
            names.extend(hosts.filter_map(|host| owner.prepend_label(host.name().as_bytes()).ok()));
        }
        names
    }

    /// The addresses of the family that was asked for.
    fn addresses(&self, mut addresses: Vec<IpAddr>, kind: RecordType) -> Lookup {
        match kind {
            RecordType::A => addresses.retain(IpAddr::is_ipv4),
            RecordType::AAAA => addresses.retain(IpAddr::is_ipv6),
            _ => return Lookup::NoData,
        }
        self.rotate(&mut addresses);
        addresses.truncate(RECORDS_MAX);
        Lookup::records(addresses.into_iter().map(address_data).collect())
    }

    fn service(&self, name: &ServiceName) -> Option<Arc<Service>> {
        self.watched.services.get(&ObjectKey::new(&name.namespace, &name.service))
    }

    fn slices(&self, name: &ServiceName) -> Vec<Arc<EndpointSlice>> {
        let key = format!("{}/{}", name.namespace, name.service);
        self.watched.slices.by_index(BY_SERVICE, &key)
    }

    fn has_namespace(&self, name: &str) -> bool {
        self.watched.namespaces.get(&ObjectKey::cluster(name)).is_some()
    }

    /// `<svc>.<ns>.svc.<zone>`; `None` if that is longer than a name may be.
    fn service_name(&self, name: &ServiceName) -> Option<Name> {
        let mut full = self.domain.prepend_label(&b"svc"[..]).ok()?;
        for label in [&name.namespace, &name.service] {
            full = full.prepend_label(label.as_bytes()).ok()?;
        }
        Some(full)
    }
}

fn service_key(namespace: &Option<String>, service: Option<&String>) -> Option<ServiceName> {
    Some(ServiceName { namespace: namespace.clone()?, service: service?.clone() })
}

/// The name as a fully qualified one, with or without a dot at its end.
fn absolute(name: &str) -> Option<Name> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let labels = name.split('.').map(str::as_bytes);
    (!name.is_empty()).then(|| Name::from_labels(labels).ok())?
}
