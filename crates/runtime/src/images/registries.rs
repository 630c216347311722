//! What the node's owner says about registries: mirrors to ask first, certificates to trust.

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// `registries.json` in the store's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Registries {
    /// By host as it stands in names (`docker.io`, `r.example:5000`): addresses such as
    /// `https://mirror.example` or `http://10.0.0.1:5000/hub`, asked in order before the host itself.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Certificates (PEM) to trust besides the machine's own.
    pub ca_files: Vec<PathBuf>,
}

impl Registries {
    /// No file: nothing to say.
    pub(crate) fn read(path: &Path) -> Result<Registries> {
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::Refused(format!("{} cannot be read: {e}", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Registries::default()),
            Err(error) => Err(Error::io("read", path)(error)),
        }
    }
}
