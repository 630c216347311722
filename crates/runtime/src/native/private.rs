//! Mounts that must not follow the node's (N-152, propagation None).
//!
//! What is bound from a mount of the node that has peers follows it: what is mounted below on the node
//! later appears in the container too. libcontainer does not change that, so such sources are bound
//! once before, in the namespace that the shim makes for the container, and made private there.

use crate::{Error, Mount, Propagation, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// What the shim binds before the container is made: from where, and to where.
pub(crate) type Staged = Vec<(PathBuf, PathBuf)>;

/// Changes the sources of mounts that need it to places below `directory`, and makes those places.
pub(crate) fn stage(mounts: &mut [Mount], directory: &Path) -> Result<Staged> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut staged = Staged::new();
    for mount in mounts.iter_mut().filter(|mount| mount.propagation == Propagation::Private) {
        let Ok(source) = mount.source.canonicalize() else { continue };
        if !has_peers(&table, &source) {
            continue;
        }
        let place = directory.join("mounts").join(staged.len().to_string());
        make_place(&place, source.is_dir()).map_err(Error::io("make", &place))?;
        mount.source = place.clone();
        staged.push((source, place));
    }
    Ok(staged)
}

fn make_place(place: &Path, is_directory: bool) -> std::io::Result<()> {
    match (is_directory, place.parent()) {
        (false, Some(parent)) => {
            fs::create_dir_all(parent)?;
            fs::write(place, "")
        }
        _ => fs::create_dir_all(place),
    }
}

/// The mount that holds the path, or one below it, is shared with others or follows another.
fn has_peers(table: &str, path: &Path) -> bool {
    let mut holder: Option<(PathBuf, bool)> = None;
    for line in table.lines() {
        let mut fields = line.split(' ');
        let Some(at) = fields.nth(4).map(unescaped) else { continue };
        let mut options = fields.skip(1).take_while(|field| *field != "-");
        let peers = options.any(|it| it.starts_with("shared:") || it.starts_with("master:"));
        if at.starts_with(path) && at != path && peers {
            return true;
        }
        // Of two at the same place the later one is on top.
        let closer = holder.as_ref().is_none_or(|(known, _)| at.starts_with(known));
        if path.starts_with(&at) && closer {
            holder = Some((at, peers));
        }
    }
    holder.is_some_and(|(_, peers)| peers)
}

/// Blanks and the like are written as `\040`.
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
    fn only_what_follows_others_has_peers() {
        let table = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 0:5 / /shared rw shared:7 - tmpfs tmpfs rw
29 28 0:6 / /shared/own rw - tmpfs tmpfs rw
30 27 0:7 / /follows rw,noexec master:3 - tmpfs tmpfs rw
31 27 0:8 / /with\\040blank rw shared:9 - tmpfs tmpfs rw
32 27 0:9 / /deep/in/side rw shared:9 - tmpfs tmpfs rw";
        for (path, wanted) in [
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
            assert_eq!(has_peers(table, Path::new(path)), wanted, "{path}");
        }
    }
}
