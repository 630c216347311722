//! The final removal of an object from the store, by a delete or by the update that removes the last finalizer.
//!
//! Upstream: `deleteWithoutFinalizers` and the end of `Delete` in the generic registry. Both run the hooks after the
//! deletion (`finalizeDelete`) also when another request has removed the object first.

use crate::object::{Object, Stored as _, store_name};
use crate::request::call::Call;
use crate::response::error::Result;
use crate::service_allocation;
use crate::terminations::{self, Removal};
use crate::verbs::write::{self, Failed};
use api::value::ValueExt as _;
use serde_json::Value;
use std::sync::Arc;
use store::{Change, Expect, Write, WriteError};

const ENDPOINTS: &str = "endpoints";

/// The result of a removal.
pub(crate) enum Removed {
    /// This request has removed the object. It carries the revision of the deletion.
    Now(Arc<Object>),
    /// Another request has removed it.
    Before,
    /// Not removed, because it has changed. This is stored now.
    Overtaken(Arc<Object>),
}

/// Removes `stored`. `object` is the same in the version of the request, and `removal` says why it may be removed.
pub(crate) async fn remove(
    call: &Call,
    name: &str,
    stored: &Arc<Object>,
    object: &Value,
    removal: Removal,
) -> Result<Removed> {
    terminations::removing(call, object, removal).await;
    match write::write(call, name, Expect::Revision(stored.revision()), None).await {
        Ok(removed) => {
            // Only after our own removal: what another request has released may have been claimed again.
            service_allocation::release(call, object).await;
            delete_endpoints(call, object).await;
            terminations::removed(call, object).await;
            call.server.after_write(&call.kind, name).await;
            Ok(Removed::Now(removed))
        }
        Err(Failed::Conflict(Some(newer))) => Ok(Removed::Overtaken(newer)),
        Err(Failed::Conflict(None)) => {
            terminations::removed(call, object).await;
            Ok(Removed::Before)
        }
        Err(Failed::Api(error)) => Err(error),
    }
}

/// The Endpoints of a Service go in the same request; its slices are collected as garbage (NET-30).
async fn delete_endpoints(call: &Call, object: &Value) {
    if (call.kind.group.as_str(), call.kind.plural.as_str()) != ("", "services") {
        return;
    }
    let name =
        store_name(object.text(&["metadata", "namespace"]), object.text(&["metadata", "name"]));
    let Some(endpoints) = call.store().get(ENDPOINTS, &name) else { return };
    let finalizers = endpoints.value()["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
    if finalizers > 0 {
        return; // Whoever set them deletes the Endpoints when they are removed.
    }
    let write = Write {
        collection: ENDPOINTS.into(),
        name,
        expect: Expect::Revision(endpoints.revision()),
        change: Change::Delete,
    };
    // After a conflict another client has written them, and the controller deletes them.
    if let Err(WriteError::Backend(error)) = call.store().write(write).await {
        tracing::warn!(%error, "deleting the Endpoints of a Service failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object;
    use crate::request::{Query, Target};
    use crate::start::simulated::ServerTemplate;
    use access::User;
    use http::HeaderMap;
    use lifecycle::timeline::{self, StepKind, TerminationRecord};
    use serde_json::json;

    /// Two updates remove the last finalizer at the same time. The one that comes second also succeeds, and runs what
    /// follows a deletion: the removal is in the record even if the first server crashed before it wrote that.
    #[tokio::test]
    async fn t_api_37_a_removal_that_another_request_has_done_is_recorded_too() {
        let dir = tempfile::tempdir().unwrap();
        let template = ServerTemplate::create(dir.path()).await.unwrap();
        let simulated = template.instance().start().await.unwrap();
        let server = &simulated.server;
        let kind = server.built_in().resource("", "v1", "pods").unwrap().clone();
        let pod = json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "u-1",
                "deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 0},
            "spec": {"nodeName": "n1"},
        });
        let key = store_name("default", "web");
        let write = |expect, change| Write {
            collection: kind.storage.collection.clone(),
            name: key.clone(),
            expect,
            change,
        };
        let put = Change::Put(object::draft(&kind, &pod));
        let stored = server.store().write(write(Expect::Absent, put)).await.unwrap();
        let removed = write(Expect::Revision(stored.revision()), Change::Delete);
        server.store().write(removed).await.unwrap();

        let target = Target {
            version: "v1".into(),
            resource: "pods".into(),
            namespace: "default".into(),
            name: "web".into(),
            ..Target::default()
        };
        let user = Arc::new(User::authenticated("admin", &["system:masters"]));
        let (query, headers, body) = (Query::default(), HeaderMap::new(), bytes::Bytes::new());
        let call = Call::new(server.clone(), kind.clone(), target, query, headers, user, body);
        let result = remove(&call, "web", &stored, &pod, Removal::LastFinalizer).await.unwrap();
        assert!(matches!(result, Removed::Before));

        let name = store_name("default", &timeline::name("web", "u-1"));
        let record = server.store().get(terminations::COLLECTION, &name).unwrap().value();
        let record: TerminationRecord = serde_json::from_value(record).unwrap();
        assert!(record.steps.iter().any(|step| step.what == StepKind::Removed));
    }
}
