//! Endpoints, the predecessor of EndpointSlices.

use super::checks::{self, PROTOCOLS};
use crate::Rules;
use api::field::{At, Errors};
use api::names;
use api::value::ValueExt;
use serde_json::Value;

pub(super) const RULES: Rules = Rules { default, validate, create_on_update: true, ..Rules::NONE };

fn default(endpoints: &mut Value) {
    for subset in endpoints.list_mut("subsets") {
        for port in subset.list_mut("ports") {
            port.set_default("protocol", "TCP");
        }
    }
}

fn validate(endpoints: &At, errors: &mut Errors) {
    for subset in endpoints.field("subsets").items() {
        let (ready, others) = (subset.field("addresses"), subset.field("notReadyAddresses"));
        if ready.is_empty() && others.is_empty() {
            errors.required(&subset, "must specify `addresses` or `notReadyAddresses`");
        }
        ready.items().chain(others.items()).for_each(|at| address(&at, errors));
        let ports = subset.field("ports");
        ports.items().for_each(|at| port(&at, ports.len() > 1, errors));
    }
}

fn address(address: &At, errors: &mut Errors) {
    let ip = address.field("ip");
    checks::ip(&ip, errors);
    checks::optional_name(&address.field("hostname"), names::dns1123_label, errors);
    let node = address.field("nodeName");
    if node.is_set() {
        checks::each(&node, names::dns1123_subdomain(node.text()), errors);
    }
    checks::non_special_ip(&ip, errors);
}

fn port(port: &At, named: bool, errors: &mut Errors) {
    let name = port.field("name");
    if named && name.text().is_empty() {
        errors.required(&name, "");
    }
    checks::optional_name(&name, names::dns1123_label, errors);
    checks::port_number(&port.field("port"), errors);
    checks::one_of(&port.field("protocol"), PROTOCOLS, errors);
    let application = port.field("appProtocol");
    if application.is_set() {
        checks::each(&application, names::qualified_name(application.text()), errors);
    }
}
