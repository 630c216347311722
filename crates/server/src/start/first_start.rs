//! Tells a first start from a lost store.
//!
//! Keys without objects mean either that the first start was interrupted or that the store was lost. A cluster with a
//! lost store must not start empty: its nodes would terminate all their pods. A marker file tells the two apart. It
//! exists from before the keys are created until the bootstrap objects are stored. A further server of a cluster on etcd
//! starts with copied keys and finds the objects of the others.

use crate::object::Store;
use crate::start::{Error, STORE_FILE, StoreChoice};
use std::path::{Path, PathBuf};

const MARKER: &str = "first-start";

pub(crate) struct FirstStart {
    dir: PathBuf,
    store: StoreChoice,
    /// The marker exists, or has just been created.
    begun: bool,
}

impl FirstStart {
    /// Called before keys are created and the store is opened.
    pub(crate) fn check_files(dir: &Path, store: &StoreChoice) -> Result<FirstStart, Error> {
        let marker = dir.join(MARKER);
        let keys = dir.join("pki/ca.key").exists();
        let this = FirstStart {
            dir: dir.to_owned(),
            store: store.clone(),
            begun: marker.exists() || !keys,
        };
        let empty = match store {
            StoreChoice::Embedded => {
                dir.join(STORE_FILE).metadata().map_or(true, |found| found.len() == 0)
            }
            StoreChoice::Etcd(_) => false, // Unknown before the store is opened.
        };
        if empty && !this.begun {
            return Err(this.lost());
        }
        if !keys {
            let made = access::pki::write_secret(&marker, b"");
            made.map_err(|source| Error::DataDir { path: dir.into(), source })?;
        }
        Ok(this)
    }

    /// Called after the store is opened.
    pub(crate) fn check_objects(&self, store: &Store) -> Result<(), Error> {
        match self.begun || store.counts().iter().any(|(_, count)| *count > 0) {
            true => Ok(()),
            false => Err(self.lost()),
        }
    }

    /// Called after the bootstrap objects are stored.
    pub(crate) fn done(&self) {
        if self.begun
            && let Err(error) = std::fs::remove_file(self.dir.join(MARKER))
        {
            tracing::warn!(%error, "removing the first-start marker failed");
        }
    }

    fn lost(&self) -> Error {
        let pki = self.dir.join("pki");
        match &self.store {
            StoreChoice::Embedded => Error::StoreLost { store: self.dir.join(STORE_FILE), pki },
            StoreChoice::Etcd(endpoints) => {
                Error::EtcdEmpty { endpoints: endpoints.join(","), pki }
            }
        }
    }
}
