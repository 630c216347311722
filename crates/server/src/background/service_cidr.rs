//! Reports that `--service-cidr` differs from the ServiceCIDR `kubernetes` of an existing cluster (NET-143).
//!
//! The object wins, as upstream: Services have addresses of its ranges. A second family is added to it.

use crate::background::system_objects::{IfExists, ensure};
use crate::object::{self, Stored as _};
use crate::server::Server;
use crate::service_allocation::{DEFAULT_RANGE, RANGES, ServiceRanges};
use api::value::ValueExt as _;
use serde_json::{Value, json};
use store::{Change, Expect, Write, WriteError};

/// Upstream: `default_servicecidr_controller.go`.
const REASON: &str = "KubernetesDefaultServiceCIDRInconsistent";
const COMPONENT: &str = "kubernetes-service-cidr-controller";

/// Adds the second family that was configured for an existing cluster to its ServiceCIDR.
pub(crate) async fn add_second_family(server: &Server) -> Result<(), String> {
    let wanted: Vec<String> = server.service_ranges().iter().map(|one| one.to_string()).collect();
    let Some(stored) = server.store().get(RANGES, DEFAULT_RANGE) else { return Ok(()) };
    let Some(kind) = server.built_in().resource("networking.k8s.io", "v1", "servicecidrs") else {
        return Err("ServiceCIDR is not served".to_owned());
    };
    let mut range = stored.value();
    let has = range.at(&["spec", "cidrs"]).and_then(Value::as_array).map_or(0, Vec::len);
    if has != 1 || wanted.len() != 2 || stored.meta().deletion_timestamp.is_some() {
        return Ok(());
    }
    range.object("spec")["cidrs"] = json!(wanted);
    let write = Write {
        collection: RANGES.into(),
        name: DEFAULT_RANGE.into(),
        expect: Expect::Revision(stored.revision()),
        change: Change::Put(object::draft(kind, &range)),
    };
    match server.store().write(write).await {
        // Another server on the same store was faster.
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(WriteError::Backend(error)) => Err(error.to_string()),
    }
}

/// Logs and records a Warning if the cluster uses another range than the configured one.
pub(crate) async fn report_mismatch(server: &Server, configured: ServiceRanges) {
    let used = server.service_ranges();
    if used == configured {
        return;
    }
    tracing::warn!(
        "--service-cidr {configured} has no effect: this cluster uses {used}, the range of the ServiceCIDR \
         {DEFAULT_RANGE}. Start with --service-cidr {used}; or, to change the range, delete that ServiceCIDR and the \
         Services with addresses of it, and start again"
    );
    let Some(range) = server.store().get(RANGES, DEFAULT_RANGE) else { return };
    let (range, now) = (range.value(), clock::now_rfc3339());
    let message = format!(
        "The default ServiceCIDR [{used}] does not match the configured range [{configured}]; configure \
         --service-cidr {used}, or delete the ServiceCIDR"
    );
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {
            "name": format!("{DEFAULT_RANGE}.{:016x}", clock::random_u64()),
            "namespace": "default",
        },
        "involvedObject": {
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "name": DEFAULT_RANGE,
            "uid": range.text(&["metadata", "uid"]),
            "resourceVersion": range.text(&["metadata", "resourceVersion"]),
        },
        "type": "Warning", "reason": REASON, "message": message, "count": 1,
        "firstTimestamp": now, "lastTimestamp": now,
        "source": { "component": COMPONENT }, "reportingComponent": COMPONENT, "reportingInstance": "",
        "eventTime": null,
    });
    if let Err(error) = ensure(server, event, IfExists::Keep).await {
        tracing::warn!(error, "recording an event about the ServiceCIDR failed");
    }
}
