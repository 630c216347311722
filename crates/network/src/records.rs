//! Who has which place, on disk: what a process that was killed must not forget.
//!
//! A record is written before anything is made for it and removed after everything is gone, so
//! that whatever is in the kernel can be found by reading records.

use crate::{Error, HostPort, Result};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Longer names do not fit into a file name with its ending.
const KEY_MAX: usize = 200;
const ENDING: &str = ".json";

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Record {
    pub(crate) key: String,
    pub(crate) place: u64,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ports: Vec<HostPort>,
    /// False while it is being made: what is there then is of no use.
    pub(crate) complete: bool,
}

pub(crate) struct Records {
    directory: PathBuf,
}

impl Records {
    pub(crate) fn open(state: &Path) -> Result<Records> {
        let directory = state.join("pods");
        fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        Ok(Records { directory })
    }

    /// Every record that can be read. One that cannot was cut off while it was first written, before
    /// anything was made for it; it is removed.
    pub(crate) fn load(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        let entries = fs::read_dir(&self.directory).map_err(Error::io("read", &self.directory))?;
        for entry in entries {
            let path = entry.map_err(Error::io("read", &self.directory))?.path();
            if !path.to_string_lossy().ends_with(ENDING) {
                continue;
            }
            let text = fs::read(&path).map_err(Error::io("read", &path))?;
            match serde_json::from_slice::<Record>(&text) {
                Ok(record) if self.path(&record.key) == path => records.push(record),
                _ => fs::remove_file(&path).map_err(Error::io("remove", &path))?,
            }
        }
        Ok(records)
    }

    pub(crate) fn save(&self, record: &Record) -> Result<()> {
        let text = serde_json::to_vec(record).unwrap_or_default();
        self.write(&self.path(&record.key), &text)
    }

    pub(crate) fn remove(&self, key: &str) -> Result<()> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io("remove", path)(error))
            }
            _ => Ok(()),
        }
    }

    /// The place that was given last; 0 if none ever was.
    pub(crate) fn last(&self) -> u64 {
        let text = fs::read_to_string(self.directory.join("last")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    pub(crate) fn save_last(&self, place: u64) -> Result<()> {
        self.write(&self.directory.join("last"), place.to_string().as_bytes())
    }

    /// Removes the directory, which must be empty of records.
    pub(crate) fn close(&self) -> Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io("remove", &self.directory)(error))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(format!("{key}{ENDING}"))
    }

    /// Whoever reads sees the old text or the new one.
    fn write(&self, path: &Path, text: &[u8]) -> Result<()> {
        let new = path.with_extension("new");
        fs::write(&new, text).map_err(Error::io("write", &new))?;
        fs::rename(&new, path).map_err(Error::io("rename to", path))
    }
}

/// Keys are parts of file names.
pub(crate) fn check_key(key: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if key.is_empty() || key.len() > KEY_MAX || key.starts_with('.') || !key.chars().all(plain) {
        return Err(Error::Invalid(format!("{key:?} cannot name a pod's network")));
    }
    Ok(())
}
