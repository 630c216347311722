//! The records of attachments on disk.
//!
//! A record is written before anything of its attachment exists in the kernel and removed after everything
//! is gone. After a crash the records therefore name everything that may be left in the kernel.

use crate::{Error, HostPort, Result};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// A key with its suffix must fit into a file name.
const KEY_MAX: usize = 200;
const SUFFIX: &str = ".json";
/// File with the address index that was allocated last.
const LAST_ALLOCATED: &str = "last";

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Record {
    pub(crate) key: String,
    #[serde(rename = "place")]
    pub(crate) address_index: u64,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ports: Vec<HostPort>,
    /// False while the attachment is being set up. An incomplete attachment is removed, never used.
    pub(crate) complete: bool,
}

pub(crate) struct Records {
    directory: PathBuf,
    /// An earlier process has allocated addresses here.
    pub(crate) were_used: bool,
}

impl Records {
    pub(crate) fn open(state: &Path) -> Result<Records> {
        let directory = state.join("pods");
        fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        let were_used = directory.join(LAST_ALLOCATED).exists();
        Ok(Records { directory, were_used })
    }

    /// Loads all readable records. A record is unreadable if a crash interrupted its first write; nothing of
    /// it exists in the kernel then, so the file is removed.
    pub(crate) fn load(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        let entries = fs::read_dir(&self.directory).map_err(Error::io("read", &self.directory))?;
        for entry in entries {
            let path = entry.map_err(Error::io("read", &self.directory))?.path();
            if !path.to_string_lossy().ends_with(SUFFIX) {
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

    /// The address index that was allocated last; 0 if none was.
    pub(crate) fn last_allocated(&self) -> u64 {
        let text = fs::read_to_string(self.directory.join(LAST_ALLOCATED)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    pub(crate) fn save_last_allocated(&self, index: u64) -> Result<()> {
        self.write(&self.directory.join(LAST_ALLOCATED), index.to_string().as_bytes())
    }

    /// Removes the directory. It must not contain records any more.
    pub(crate) fn close(&self) -> Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io("remove", &self.directory)(error))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(format!("{key}{SUFFIX}"))
    }

    /// Replaces the file atomically.
    fn write(&self, path: &Path, text: &[u8]) -> Result<()> {
        let new = path.with_extension("new");
        fs::write(&new, text).map_err(Error::io("write", &new))?;
        fs::rename(&new, path).map_err(Error::io("rename to", path))
    }
}

/// Keys become file names.
pub(crate) fn check_key(key: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if key.is_empty() || key.len() > KEY_MAX || key.starts_with('.') || !key.chars().all(plain) {
        return Err(Error::Invalid(format!("{key:?} is not a valid key for a pod network")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_older_versions_are_readable() {
        let text = r#"{"key":"a","place":2,"addresses":["10.0.0.2"],"ports":[],"complete":true}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(record.address_index, 2);
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
    }
}
