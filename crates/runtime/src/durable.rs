//! Files that are either the old or the new, whole, whatever happens in between.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file so that a crash of the process leaves the old or the new one.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, false)
}

/// Replaces a file so that a loss of power leaves the old or the new one too.
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
        // The name is in the directory: without it the file may be there, and nobody finds it.
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
