//! Keeps the records of how pods ended: `terminations.landfall.dev`.
//!
//!     delete, eviction ─▶ asked ─┐
//!                                ├─▶ append ─▶ store ─▶ kubectl get terminations
//!     POST …/steps ─▶ posted ────┘              └── retention: what is old goes
//!
//! Nobody writes a record; steps are added to it (`lifecycle::timeline` says what follows from them).
//! A record that cannot be kept never stops an ending: that is logged, and the ending goes on.

mod asked;
pub(crate) mod posted;
pub(crate) mod retention;

pub(crate) use asked::{Asked, Removal, marked, removed, removing};

use crate::error::{ApiError, Result};
use crate::object::{self, Stored, store_name};
use crate::server::Server;
use api::Kind;
use lifecycle::timeline::{GROUP, PLURAL, Step, Subject, Termination};
use serde_json::Value;
use std::sync::Arc;
use store::{Change, Expect, Write, WriteError};

/// Where the store keeps them.
pub(crate) const COLLECTION: &str = "landfall.dev/terminations";
/// How often an append starts over because another was faster. One of them gets through every time.
const ATTEMPTS: usize = 100;

fn kind(server: &Server) -> Result<Arc<Kind>> {
    let kind = server.built_in().resource(GROUP, "v1", PLURAL).cloned();
    kind.ok_or_else(|| ApiError::Internal("Termination is not served".into()))
}

/// The record of that name, if there is one.
fn find(server: &Server, namespace: &str, name: &str) -> Option<Termination> {
    let stored = server.store().get(COLLECTION, &store_name(namespace, name))?;
    read(&stored.value())
}

fn read(object: &Value) -> Option<Termination> {
    serde_json::from_value(object.clone()).ok()
}

/// Adds what `steps` makes of the record as it is, in a record that is made if there is none.
async fn append(
    server: &Server,
    namespace: &str,
    subject: &Subject,
    steps: impl Fn(&Termination) -> Vec<Step>,
) -> Result<()> {
    let kind = kind(server)?;
    let name = lifecycle::timeline::name(&subject.name, &subject.uid);
    let key = store_name(namespace, &name);
    for _ in 0..ATTEMPTS {
        let stored = server.store().get(COLLECTION, &key);
        let known = stored.as_ref().and_then(|stored| read(&stored.value()));
        let mut record = known.unwrap_or_else(|| {
            Termination::new(namespace, subject.clone(), &clock::uuid(), clock::now())
        });
        if record.pod.uid != subject.uid {
            // Two uids that begin alike, of one name: the newer one is not kept.
            return Err(ApiError::bad_request("the record is about another pod of that name"));
        }
        let steps = steps(&record);
        if !record.append(steps) {
            return Ok(());
        }
        let object = serde_json::to_value(&record)
            .map_err(|error| ApiError::Internal(format!("a record cannot be written: {error}")))?;
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
