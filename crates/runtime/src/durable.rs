//! Atomic replacement of files: after a crash, a file has either its old or its new content.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Atomic if the process crashes.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, false)
}

/// Atomic if the machine loses power.
pub(crate) fn replace_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, true)
}

fn put(path: &Path, content: &[u8], sync: bool) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let temporary = Path::new(&name);
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
    file.write_all(content)?;
    if sync {
        file.sync_data()?;
    }
    std::fs::rename(temporary, path)?;
    match path.parent().filter(|_| sync) {
        // The directory contains the file's name, so it has to be synced too.
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
