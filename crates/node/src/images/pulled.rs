//! Who may use an image that is here because somebody's secret opened the registry (N-176).
//!
//! For every image this node pulled it is on disk which secrets it was pulled with, or that anybody
//! could. A pod with other secrets has to show that the registry lets it in. Images that were here
//! without us (preloaded, imported) are free.
//!
//!     pulling/<hash>   a pull of this name is under way, or was when we died
//!     pulled/<id>      how an image was pulled, by repository

use super::keyring::{Login, Origin};
use crate::digest::{hex, sha256};
use runtime::Name;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Secrets remembered for one image and repository; the oldest go first. They can always be shown to
/// the registry again.
const SECRETS_MAX: usize = 100;

#[derive(Clone)]
pub(super) struct Pulled {
    inner: Arc<Inner>,
}

struct Inner {
    directory: PathBuf,
    /// How many pulls of a name are under way.
    under_way: Mutex<HashMap<String, usize>>,
}

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Record {
    /// By repository, without tag or digest.
    access: BTreeMap<String, Access>,
}

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Access {
    /// Pulled as nobody, or as the node.
    everybody: bool,
    secrets: Vec<Shown>,
}

/// A secret that opened the registry.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Shown {
    uid: String,
    namespace: String,
    name: String,
    /// Of name and password.
    hash: String,
}

/// A pull under way; dropped, it never was.
pub(super) struct Intent {
    pulled: Pulled,
    name: Name,
}

impl Pulled {
    pub(super) fn new(directory: PathBuf) -> Pulled {
        Pulled { inner: Arc::new(Inner { directory, under_way: Mutex::default() }) }
    }

    /// On disk before the pull begins: if we die in the middle, the image does not become free.
    pub(super) async fn begin(&self, name: &Name) -> Intent {
        let text = name.to_string();
        *self.under_way().entry(text.clone()).or_default() += 1;
        let intent = Intent { pulled: self.clone(), name: name.clone() };
        let path = self.intent_path(&text);
        self.aside(move || write(&path, text.as_bytes())).await;
        intent
    }

    /// Whether a pod with these logins may use the image without asking the registry.
    pub(super) async fn may_use(&self, name: &Name, id: &str, logins: &[Login]) -> bool {
        let (this, name, id) = (self.clone(), name.clone(), id.to_owned());
        let logins = logins.to_vec();
        self.aside(move || this.may_use_now(&name, &id, &logins)).await
    }

    fn may_use_now(&self, name: &Name, id: &str, logins: &[Login]) -> bool {
        let path = self.record_path(id);
        let mut record = match std::fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<Record>(&bytes) {
                Ok(record) => record,
                Err(_) => return false, // Better ask the registry than let anybody in.
            },
            // Not pulled by us, unless we were just about to note it.
            Err(_) => return !self.intent_path(&name.to_string()).exists(),
        };
        let Some(access) = record.access.get_mut(&name.full_repository()) else { return false };
        if access.everybody {
            return true;
        }
        let shown: Vec<Shown> = logins.iter().filter_map(shown).collect();
        let same_secret = |a: &Shown, b: &Shown| {
            (&a.uid, &a.namespace, &a.name) == (&b.uid, &b.namespace, &b.name)
        };
        for new in shown {
            if access.secrets.iter().any(|known| same_secret(known, &new)) {
                return true;
            }
            if access.secrets.iter().any(|known| known.hash == new.hash) {
                // The same password in another secret: remembered, so that it may change there.
                access.learn(new);
                save(&path, &record);
                return true;
            }
        }
        false
    }

    /// Records of images that are no longer here go.
    pub(super) async fn keep_only(&self, ids: BTreeSet<String>) {
        let directory = self.inner.directory.join("pulled");
        self.aside(move || {
            let Ok(entries) = std::fs::read_dir(&directory) else { return };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let known = ids.iter().any(|id| *file_name(id) == *name);
                if !known {
                    let _ = std::fs::remove_file(entry.path());
                }
            }
        })
        .await;
    }

    fn note(&self, name: &Name, id: &str, login: Option<Login>) {
        let path = self.record_path(id);
        let read = std::fs::read(&path).ok();
        let record = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut record: Record = record.unwrap_or_default();
        let access = record.access.entry(name.full_repository()).or_default();
        match login.as_ref().and_then(shown) {
            None => access.everybody = true,
            Some(shown) => access.learn(shown),
        }
        save(&path, &record);
    }

    fn intent_path(&self, name: &str) -> PathBuf {
        self.inner.directory.join("pulling").join(hex(&sha256(name)))
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.inner.directory.join("pulled").join(file_name(id))
    }

    fn under_way(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        self.inner.under_way.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Disks are slow; the threads that run tasks do not wait for them.
    async fn aside<T: Default + Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        clock::apart(work).await.unwrap_or_default()
    }
}

impl Intent {
    /// The image is here, opened by this login or by none.
    pub(super) async fn done(self, id: &str, login: Option<&Login>) {
        let (pulled, name) = (self.pulled.clone(), self.name.clone());
        let (id, login) = (id.to_owned(), login.cloned());
        self.pulled.aside(move || pulled.note(&name, &id, login)).await;
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        let text = self.name.to_string();
        let mut under_way = self.pulled.under_way();
        if let Some(count) = under_way.get_mut(&text) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&text);
                let _ = std::fs::remove_file(self.pulled.intent_path(&text));
            }
        }
    }
}

impl Access {
    fn learn(&mut self, new: Shown) {
        self.secrets.retain(|known| {
            (&known.uid, &known.namespace, &known.name) != (&new.uid, &new.namespace, &new.name)
        });
        if self.secrets.len() >= SECRETS_MAX {
            self.secrets.remove(0);
        }
        self.secrets.push(new);
    }
}

/// None for the node's own: those are everybody's.
fn shown(login: &Login) -> Option<Shown> {
    match &login.from {
        Origin::Node => None,
        Origin::Secret { uid, namespace, name } => {
            let known = &login.credentials;
            let pair = serde_json::json!([known.username, known.password]).to_string();
            Some(Shown {
                uid: uid.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                hash: hex(&sha256(pair)),
            })
        }
    }
}

fn file_name(id: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    id.chars().map(plain).collect()
}

fn save(path: &Path, record: &Record) {
    if let Ok(bytes) = serde_json::to_vec(record) {
        write(path, &bytes);
    }
}

/// Without the note the image would be free for all, so failing is told.
fn write(path: &Path, bytes: &[u8]) {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let written = || {
        std::fs::create_dir_all(directory)?;
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        std::io::Result::Ok(())
    };
    if let Err(error) = written() {
        tracing::error!(path = %path.display(), %error, "cannot note how an image was pulled");
    }
}

#[cfg(test)]
mod tests {
    use super::super::keyring::{Keyring, tests::secret};
    use super::*;
    use serde_json::json;

    fn login(name: &str, password: &str) -> Login {
        let auths = json!({ "r.example": { "username": "u", "password": password } });
        Keyring::of_secrets(&[secret(name, auths)]).unwrap().lookup("r.example/a").remove(0)
    }

    #[tokio::test]
    async fn an_image_pulled_with_a_secret_is_for_those_who_show_it_n_176() {
        let directory = tempfile::tempdir().unwrap();
        let name = Name::parse("r.example/a:1").unwrap();
        let open = || Pulled::new(directory.path().to_owned());
        let mine = login("mine", "one");
        open().begin(&name).await.done("sha256:1", Some(&mine)).await;
        let pulled = open(); // It survives a restart.
        assert!(pulled.may_use(&name, "sha256:1", std::slice::from_ref(&mine)).await);
        assert!(!pulled.may_use(&name, "sha256:1", &[]).await);
        assert!(!pulled.may_use(&name, "sha256:1", &[login("other", "two")]).await);
        assert!(pulled.may_use(&name, "sha256:1", &[login("mine", "changed")]).await);
        // Another secret that opens the same door is as good, and stays so when it changes.
        assert!(pulled.may_use(&name, "sha256:1", &[login("copy", "one")]).await);
        assert!(pulled.may_use(&name, "sha256:1", &[login("copy", "changed")]).await);
        let elsewhere = Name::parse("other.example/a:1").unwrap();
        assert!(!pulled.may_use(&elsewhere, "sha256:1", &[mine]).await);
    }

    #[tokio::test]
    async fn what_anybody_could_pull_or_was_here_before_is_free_n_176() {
        let directory = tempfile::tempdir().unwrap();
        let pulled = Pulled::new(directory.path().to_owned());
        let name = Name::parse("r.example/a:1").unwrap();
        assert!(pulled.may_use(&name, "sha256:preloaded", &[]).await);
        pulled.begin(&name).await.done("sha256:1", None).await;
        assert!(pulled.may_use(&name, "sha256:1", &[]).await);
        pulled.keep_only(BTreeSet::new()).await;
        assert_eq!(directory.path().join("pulled").read_dir().unwrap().count(), 0);
    }

    #[tokio::test]
    async fn an_image_whose_pull_was_cut_short_by_our_death_is_not_free_n_176() {
        let directory = tempfile::tempdir().unwrap();
        let pulled = Pulled::new(directory.path().to_owned());
        let name = Name::parse("r.example/a:1").unwrap();
        std::mem::forget(pulled.begin(&name).await); // As if killed here.
        let again = Pulled::new(directory.path().to_owned());
        assert!(!again.may_use(&name, "sha256:1", &[]).await);
        // A pull that failed in peace leaves things as they were.
        let other = Name::parse("r.example/b:1").unwrap();
        drop(again.begin(&other).await);
        assert!(again.may_use(&other, "sha256:2", &[]).await);
    }
}
