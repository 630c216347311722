//! Ends watches of custom kinds that are no longer served. A watch is notified only of changes to its own definition, because
//! there may be hundreds of watches while definitions come and go.

use api::Kind;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;

/// The served versions of each definition, by uid.
#[derive(Default)]
pub(crate) struct ServedVersions(Mutex<HashMap<String, watch::Sender<Vec<String>>>>);

impl ServedVersions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Vec<String>>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn set(&self, uid: &str, versions: Vec<String>) {
        let mut served = self.lock();
        if versions.is_empty() {
            // Dropping the sender wakes the receivers.
            served.remove(uid);
        } else if let Some(known) = served.get(uid) {
            known.send_replace(versions);
        } else {
            served.insert(uid.to_owned(), watch::Sender::new(versions));
        }
    }

    pub(crate) fn follow(&self, kind: &Kind) -> Gone {
        let Some(custom) = &kind.custom else { return Gone::Never };
        match self.lock().get(&custom.uid) {
            Some(served) => Gone::Follow(served.subscribe(), kind.version.as_str().into()),
            None => Gone::Already,
        }
    }
}

/// Resolves when a kind is no longer served.
pub(crate) enum Gone {
    /// A built-in kind.
    Never,
    Already,
    Follow(watch::Receiver<Vec<String>>, Arc<str>),
}

impl Gone {
    /// Cancel-safe.
    pub(crate) async fn wait(&mut self) {
        match self {
            Gone::Never => std::future::pending().await,
            Gone::Already => {}
            Gone::Follow(served, version) => {
                let version = version.clone();
                // An error means that the definition was deleted.
                let _ = served
                    .wait_for(|served| !served.iter().any(|one| one.as_str() == &*version))
                    .await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use serde_json::json;

    fn kind(uid: &str, version: &str) -> Arc<Kind> {
        let kinds = api::crd::kinds(&json!({
            "metadata": {"name": "as.example.com", "uid": uid},
            "spec": {"group": "example.com", "names": {"plural": "as", "kind": "A"},
                "versions": [{"name": version, "served": true, "storage": true}]}
        }));
        kinds[0].clone()
    }

    #[test]
    fn a_watch_ends_only_with_its_own_definition_or_version() {
        let versions = |list: &[&str]| list.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
        let served = ServedVersions::default();
        served.set("one", versions(&["v1", "v2"]));
        served.set("two", versions(&["v1"]));
        let pod = api::Registry::built_in().resource("", "v1", "pods").unwrap().clone();
        let ended = |gone: &mut Gone| gone.wait().now_or_never().is_some();
        let mut first = served.follow(&kind("one", "v1"));
        let mut second = served.follow(&kind("one", "v2"));
        let mut other = served.follow(&kind("two", "v1"));
        let mut built_in = served.follow(&pod);
        let mut late = served.follow(&kind("three", "v1"));
        assert!(ended(&mut late), "its definition went before the watch began");
        served.set("one", versions(&["v1"]));
        assert_eq!([&mut first, &mut second, &mut other].map(ended), [false, true, false]);
        served.set("one", versions(&[]));
        assert_eq!([&mut first, &mut other, &mut built_in].map(ended), [true, false, false]);
    }
}
