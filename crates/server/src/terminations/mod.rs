//! Stores the termination records of pods: `terminations.landfall.dev`.
//!
//!     delete, eviction ─▶ deletion_steps ─┐
//!                                         ├─▶ append ─▶ store ─▶ kubectl get terminations
//!     POST …/steps ─▶ posted_steps ───────┘              └── retention: old records are deleted
//!
//! Clients cannot write a record; they only add steps (`lifecycle::timeline` derives the rest from them). A failure to
//! write a record is logged and never stops a termination.

mod closing;
mod deletion_steps;
pub(crate) mod posted_steps;
pub(crate) mod retention;

pub(crate) use deletion_steps::{DeleteRequest, Removal, marked, removed, removing};

use crate::object::{self, Stored, store_name};
use crate::response::error::{ApiError, Result};
use crate::server::Server;
use api::Kind;
use lifecycle::timeline::{GROUP, PLURAL, Step, Subject, TerminationRecord};
use serde_json::Value;
use std::sync::Arc;
use store::{Change, Expect, Write, WriteError};

/// The collection in the store.
pub(crate) const COLLECTION: &str = "landfall.dev/terminations";
/// How often an append starts over because the record has changed. One of the competing writes succeeds every time.
const ATTEMPTS: usize = 100;

fn kind(server: &Server) -> Result<Arc<Kind>> {
    let kind = server.built_in().resource(GROUP, "v1", PLURAL).cloned();
    kind.ok_or_else(|| ApiError::Internal("Termination is not served".into()))
}

/// The record of that name, if there is one.
fn find(server: &Server, namespace: &str, name: &str) -> Option<TerminationRecord> {
    let stored = server.store().get(COLLECTION, &store_name(namespace, name))?;
    read(&stored.value())
}

fn read(object: &Value) -> Option<TerminationRecord> {
    serde_json::from_value(object.clone()).ok()
}

/// Adds the steps that `steps` returns for the current record. Creates the record if there is none.
async fn append(
    server: &Server,
    namespace: &str,
    subject: &Subject,
    steps: impl Fn(&TerminationRecord) -> Vec<Step>,
) -> Result<()> {
    let kind = kind(server)?;
    let name = lifecycle::timeline::name(&subject.name, &subject.uid);
    let key = store_name(namespace, &name);
    for _ in 0..ATTEMPTS {
        let stored = server.store().get(COLLECTION, &key);
        let known = stored.as_ref().and_then(|stored| read(&stored.value()));
        let mut record = known.unwrap_or_else(|| {
            TerminationRecord::new(namespace, subject.clone(), &clock::uuid(), clock::now())
        });
        if record.pod.uid != subject.uid {
            // Two pods of one name whose uids have the same prefix: the newer one is not recorded.
            return Err(ApiError::bad_request("the record is about another pod of that name"));
        }
        let steps = steps(&record);
        if !record.append(steps) {
            return Ok(());
        }
        let object = serde_json::to_value(&record).map_err(|error| {
            ApiError::Internal(format!("encoding a termination record failed: {error}"))
        })?;
        let expect = stored.as_ref().map_or(Expect::Absent, |s| Expect::Revision(s.revision()));
        let write = Write {
            collection: COLLECTION.into(),
            name: key.clone(),
            expect,
            change: Change::Put(object::draft(&kind, &object)),
        };
        match server.store().write(write).await {
            Ok(_) => {
                if stored.is_none() {
                    server.terminations().added();
                }
                return Ok(());
            }
            Err(WriteError::Conflict { .. }) => {}
            Err(WriteError::Backend(error)) => {
                return Err(ApiError::store("writing to the store", &error));
            }
        }
    }
    Err(ApiError::modified(&kind, &name))
}
