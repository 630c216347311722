//! Writes files atomically, some of them readable only by us.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;

/// Writes a file that only we may read. Readers see the old content or the new, even after a crash.
pub fn write_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, SECRET)
}

pub(crate) fn write_public(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, PUBLIC)
}

/// Creates a directory that only we may enter, or restricts an existing one.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

/// Creates a directory that only we may enter, and its parents. An existing directory keeps its permissions: an
/// administrator may have chosen them.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(_) if path.is_dir() => Ok(()),
        made => made,
    }
}

/// Reads a secret, and removes permissions of other users. None if there is no file.
pub(crate) fn read_secret(path: &Path) -> io::Result<Option<String>> {
    let Some(text) = read(path)? else { return Ok(None) };
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(SECRET))?;
    }
    Ok(Some(text))
}

pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = parent.join(format!(".{name}.{:016x}.tmp", clock::random_u64()));
    let written = (|| {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        // The umask may have removed permissions of a public file; it never adds any.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        fs::File::open(parent)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
