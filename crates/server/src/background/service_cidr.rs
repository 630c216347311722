//! Reports that `--service-cidr` differs from the ServiceCIDR `kubernetes` of an existing cluster (NET-143).
//!
//! The object wins, as upstream: Services have addresses of its range.

use crate::background::system_objects::{IfExists, ensure};
use crate::object::Stored as _;
use crate::server::Server;
use crate::service_allocation::{DEFAULT_RANGE, RANGES, ServiceRange};
use api::value::ValueExt as _;
use serde_json::json;

/// Upstream: `default_servicecidr_controller.go`.
const REASON: &str = "KubernetesDefaultServiceCIDRInconsistent";
const COMPONENT: &str = "kubernetes-service-cidr-controller";

/// Logs and records a Warning if the cluster uses another range than the configured one.
pub(crate) async fn report_mismatch(server: &Server, configured: ServiceRange) {
    let used = server.service_range();
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
