//! Which pods may use an image that was pulled with a secret (N-176).
//!
//! For every image that this node pulled, a record on disk has the secrets it was pulled with, or
//! that it needed none. A pod with other secrets must pull again, so that the registry checks them.
//! All pods may use images that this node did not pull (preloaded, imported).
//!
//!     pulling/<hash>   a pull of this name is running, or was when the agent died
//!     pulled/<id>      how an image was pulled, by repository

use super::keyring::{Login, Origin};
use crate::digest::{hex, sha256};
use runtime::ImageName;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Secrets kept per image and repository; the oldest are dropped first. Their pods just pull again.
const SECRETS_MAX: usize = 100;

#[derive(Clone)]
pub(super) struct PullRecords {
    inner: Arc<Inner>,
}

struct Inner {
    directory: PathBuf,
    /// Running pulls per name.
    running: Mutex<HashMap<String, usize>>,
}

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Record {
    /// By repository, without tag or digest.
    access: BTreeMap<String, Access>,
}

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Access {
    /// Pulled anonymously, or with the node's credentials.
    everybody: bool,
    secrets: Vec<UsedSecret>,
}

/// A secret that the registry accepted.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct UsedSecret {
    uid: String,
    namespace: String,
    name: String,
    /// Hash of user name and password.
    hash: String,
}

/// A running pull. Dropping it removes its trace on disk.
pub(super) struct Intent {
    pulled: PullRecords,
    name: ImageName,
}

impl PullRecords {
    pub(super) fn new(directory: PathBuf) -> PullRecords {
        PullRecords { inner: Arc::new(Inner { directory, running: Mutex::default() }) }
    }

    /// Writes to disk before the pull starts: if the agent dies during the pull, the image must not
    /// be usable by all.
    pub(super) async fn begin(&self, name: &ImageName) -> Intent {
        let text = name.to_string();
        *self.running().entry(text.clone()).or_default() += 1;
        let intent = Intent { pulled: self.clone(), name: name.clone() };
        let path = self.intent_path(&text);
        self.blocking(move || write(&path, text.as_bytes())).await;
        intent
    }

    /// Whether a pod with these logins may use the image without pulling it again.
    pub(super) async fn may_use(&self, name: &ImageName, id: &str, logins: &[Login]) -> bool {
        let (this, name, id) = (self.clone(), name.clone(), id.to_owned());
        let logins = logins.to_vec();
        self.blocking(move || this.may_use_now(&name, &id, &logins)).await
    }

    fn may_use_now(&self, name: &ImageName, id: &str, logins: &[Login]) -> bool {
        let path = self.record_path(id);
        let mut record = match std::fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<Record>(&bytes) {
                Ok(record) => record,
                Err(_) => return false, // Unreadable: pull again rather than allow everybody.
            },
            // This node did not pull it, unless a pull was interrupted before its record was written.
            Err(_) => return !self.intent_path(&name.to_string()).exists(),
        };
        let Some(access) = record.access.get_mut(&name.full_repository()) else { return false };
        if access.everybody {
            return true;
        }
        let secrets: Vec<UsedSecret> = logins.iter().filter_map(used_secret).collect();
        let same_secret = |a: &UsedSecret, b: &UsedSecret| {
            (&a.uid, &a.namespace, &a.name) == (&b.uid, &b.namespace, &b.name)
        };
        for new in secrets {
            if access.secrets.iter().any(|known| same_secret(known, &new)) {
                return true;
            }
            if access.secrets.iter().any(|known| known.hash == new.hash) {
                // The same password in another secret: add it, because its password may change later.
                access.add(new);
                save(&path, &record);
                return true;
            }
        }
        false
    }

    /// Removes the records of all other images.
    pub(super) async fn retain(&self, ids: BTreeSet<String>) {
        let directory = self.inner.directory.join("pulled");
        self.blocking(move || {
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

    fn record(&self, name: &ImageName, id: &str, login: Option<Login>) {
        let path = self.record_path(id);
        let read = std::fs::read(&path).ok();
        let record = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut record: Record = record.unwrap_or_default();
        let access = record.access.entry(name.full_repository()).or_default();
        match login.as_ref().and_then(used_secret) {
            None => access.everybody = true,
            Some(secret) => access.add(secret),
        }
        save(&path, &record);
    }

    fn intent_path(&self, name: &str) -> PathBuf {
        self.inner.directory.join("pulling").join(hex(&sha256(name)))
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.inner.directory.join("pulled").join(file_name(id))
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        self.inner.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs work on the filesystem without blocking other tasks.
    async fn blocking<T: Default + Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        clock::run_blocking(work).await.unwrap_or_default()
    }
}

impl Intent {
    /// The pull succeeded, with this login or without one.
    pub(super) async fn done(self, id: &str, login: Option<&Login>) {
        let (pulled, name) = (self.pulled.clone(), self.name.clone());
        let (id, login) = (id.to_owned(), login.cloned());
        self.pulled.blocking(move || pulled.record(&name, &id, login)).await;
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        let text = self.name.to_string();
        let mut running = self.pulled.running();
        if let Some(count) = running.get_mut(&text) {
            *count -= 1;
            if *count == 0 {
                running.remove(&text);
                let _ = std::fs::remove_file(self.pulled.intent_path(&text));
            }
        }
    }
}

impl Access {
    fn add(&mut self, new: UsedSecret) {
        self.secrets.retain(|known| {
            (&known.uid, &known.namespace, &known.name) != (&new.uid, &new.namespace, &new.name)
        });
        if self.secrets.len() >= SECRETS_MAX {
            self.secrets.remove(0);
        }
        self.secrets.push(new);
    }
}

/// None for the node's credentials, which all pods may use.
fn used_secret(login: &Login) -> Option<UsedSecret> {
    match &login.from {
        Origin::Node => None,
        Origin::Secret { uid, namespace, name } => {
            let known = &login.credentials;
            let pair = serde_json::json!([known.username, known.password]).to_string();
            Some(UsedSecret {
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

/// Logs a failure as an error, because without the record all pods could use the image.
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
        tracing::error!(path = %path.display(), %error, "writing the record of an image pull failed");
    }
}

#[cfg(test)]
mod tests {
    use super::super::keyring::{Keyring, tests::secret};
    use super::*;
    use serde_json::json;

    fn login(name: &str, password: &str) -> Login {
        let auths = json!({ "r.example": { "username": "u", "password": password } });
        Keyring::from_secrets(&[secret(name, auths)]).unwrap().lookup("r.example/a").remove(0)
    }

    #[tokio::test]
    async fn n_176_an_image_pulled_with_a_secret_is_only_for_pods_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let name = ImageName::parse("r.example/a:1").unwrap();
        let open = || PullRecords::new(directory.path().to_owned());
        let mine = login("mine", "one");
        open().begin(&name).await.done("sha256:1", Some(&mine)).await;
        let pulled = open(); // It survives a restart.
        assert!(pulled.may_use(&name, "sha256:1", std::slice::from_ref(&mine)).await);
        assert!(!pulled.may_use(&name, "sha256:1", &[]).await);
        assert!(!pulled.may_use(&name, "sha256:1", &[login("other", "two")]).await);
        assert!(pulled.may_use(&name, "sha256:1", &[login("mine", "changed")]).await);
        // Another secret with the same password is accepted, even after its password changes.
        assert!(pulled.may_use(&name, "sha256:1", &[login("copy", "one")]).await);
        assert!(pulled.may_use(&name, "sha256:1", &[login("copy", "changed")]).await);
        let elsewhere = ImageName::parse("other.example/a:1").unwrap();
        assert!(!pulled.may_use(&elsewhere, "sha256:1", &[mine]).await);
    }

    #[tokio::test]
    async fn n_176_images_without_a_secret_or_not_pulled_by_us_are_for_all() {
        let directory = tempfile::tempdir().unwrap();
        let pulled = PullRecords::new(directory.path().to_owned());
        let name = ImageName::parse("r.example/a:1").unwrap();
        assert!(pulled.may_use(&name, "sha256:preloaded", &[]).await);
        pulled.begin(&name).await.done("sha256:1", None).await;
        assert!(pulled.may_use(&name, "sha256:1", &[]).await);
        pulled.retain(BTreeSet::new()).await;
        assert_eq!(directory.path().join("pulled").read_dir().unwrap().count(), 0);
    }

    #[tokio::test]
    async fn n_176_an_image_whose_pull_was_interrupted_by_a_crash_is_not_for_all() {
        let directory = tempfile::tempdir().unwrap();
        let pulled = PullRecords::new(directory.path().to_owned());
        let name = ImageName::parse("r.example/a:1").unwrap();
        std::mem::forget(pulled.begin(&name).await); // As if killed here.
        let again = PullRecords::new(directory.path().to_owned());
        assert!(!again.may_use(&name, "sha256:1", &[]).await);
        // A pull that failed without a crash changes nothing.
        let other = ImageName::parse("r.example/b:1").unwrap();
        drop(again.begin(&other).await);
        assert!(again.may_use(&other, "sha256:2", &[]).await);
    }
}
