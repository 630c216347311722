//! Volumes without mount propagation (N-152, propagation None).
//!
//! A bind mount of a shared mount is a peer of it: later mounts below the source on the node also appear in the
//! container. libcontainer does not prevent that. So the shim first binds such sources in the container's mount
//! namespace and makes these mounts private ("staging").

use crate::{Error, Mount, Propagation, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Bind mounts that the shim makes first: source and target.
pub(crate) type Staged = Vec<(PathBuf, PathBuf)>;

/// Finds mounts that need staging, creates mount points for them below `directory`, and makes these the sources.
pub(crate) fn stage(mounts: &mut [Mount], directory: &Path) -> Result<Staged> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut staged = Staged::new();
    for mount in mounts.iter_mut().filter(|mount| mount.propagation == Propagation::Private) {
        let Ok(source) = mount.source.canonicalize() else { continue };
        if !has_peers(&table, &source) {
            continue;
        }
        let target = directory.join("mounts").join(staged.len().to_string());
        create_mount_point(&target, source.is_dir()).map_err(Error::io("create", &target))?;
        mount.source = target.clone();
        staged.push((source, target));
    }
    Ok(staged)
}

fn create_mount_point(path: &Path, is_directory: bool) -> std::io::Result<()> {
    match (is_directory, path.parent()) {
        (false, Some(parent)) => {
            fs::create_dir_all(parent)?;
            fs::write(path, "")
        }
        _ => fs::create_dir_all(path),
    }
}

/// Whether the mount that contains the path, or a mount below the path, is shared or a slave.
fn has_peers(table: &str, path: &Path) -> bool {
    let mut containing: Option<(PathBuf, bool)> = None;
    for line in table.lines() {
        let mut fields = line.split(' ');
        let Some(at) = fields.nth(4).map(unescaped) else { continue };
        let mut options = fields.skip(1).take_while(|field| *field != "-");
        let peers = options.any(|it| it.starts_with("shared:") || it.starts_with("master:"));
        if at.starts_with(path) && at != path && peers {
            return true;
        }
        // If two mounts have the same mount point, the later one is visible.
        let closer = containing.as_ref().is_none_or(|(known, _)| at.starts_with(known));
        if path.starts_with(&at) && closer {
            containing = Some((at, peers));
        }
    }
    containing.is_some_and(|(_, peers)| peers)
}

/// Decodes escapes such as `\040` for a space.
fn unescaped(text: &str) -> PathBuf {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                rest = &rest[at + 4..];
            }
            None => {
                plain.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    plain.push_str(rest);
    plain.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_and_slave_mounts_have_peers() {
        let table = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 0:5 / /shared rw shared:7 - tmpfs tmpfs rw
29 28 0:6 / /shared/own rw - tmpfs tmpfs rw
30 27 0:7 / /follows rw,noexec master:3 - tmpfs tmpfs rw
31 27 0:8 / /with\\040blank rw shared:9 - tmpfs tmpfs rw
32 27 0:9 / /deep/in/side rw shared:9 - tmpfs tmpfs rw";
        for (path, expected) in [
            ("/", true),
            ("/var", false),
            ("/shared", true),
            ("/shared/x", true),
            ("/shared/own", false),
            ("/shared/own/x", false),
            ("/follows/x", true),
            ("/with blank/x", true),
            ("/with", false),
            ("/deep", true),
            ("/deep/in/side/x", true),
            ("/deep/out", false),
        ] {
            assert_eq!(has_peers(table, Path::new(path)), expected, "{path}");
        }
    }
}
