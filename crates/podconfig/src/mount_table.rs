//! Mounting, unmounting, and reading the kernel's mount table.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::io::{Error, Result};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// All mount points at or below `path`, in the order in which they were mounted.
pub fn below(path: &Path) -> Result<Vec<PathBuf>> {
    let path = path.canonicalize()?;
    Ok(points()?.into_iter().filter(|point| point.starts_with(&path)).collect())
}

pub fn is_mount_point(path: &Path) -> Result<bool> {
    match path.canonicalize() {
        Ok(path) => Ok(points()?.contains(&path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub fn points() -> Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/thread-self/mountinfo")?;
    let lines = table.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescaped).collect())
}

/// The kernel writes spaces and other special characters as `\040`.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// Bind-mounts `source` at `target`. Both must be files, or both directories.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(source), target, None::<&str>, flags, None::<&str>).map_err(named("bind", target))
}

/// Mounts a filesystem without devices and set-uid programs.
pub fn filesystem(kind: &str, source: &Path, target: &Path, options: &str) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some(source), target, Some(kind), flags, Some(options)).map_err(named("mount", target))
}

/// Mounts a tmpfs, without swap if the kernel supports that.
pub fn tmpfs(target: &Path, size: Option<u64>) -> Result<()> {
    let size = size.map(|bytes| format!("size={bytes}")).unwrap_or_default();
    let kept = if size.is_empty() { "noswap".to_owned() } else { format!("{size},noswap") };
    let source = Path::new("tmpfs");
    let mount =
        |options: &str| mount(Some(source), target, Some("tmpfs"), MsFlags::empty(), Some(options));
    mount(&kept).or_else(|_| mount(&size)).map_err(named("mount a tmpfs at", target))
}

/// Detaches the mount and all mounts below it; they disappear when their last user is gone.
///
/// Mounts below a bind mount propagate to its source if they are shared, and systemd makes all
/// mounts shared. Unmounting them here would unmount them at the source too, so the mount becomes
/// private first.
pub fn unmount(path: &Path) -> Result<()> {
    let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    match mount(None::<&str>, path, None::<&str>, private, None::<&str>) {
        Ok(()) => {}
        Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(named("make private the mount at", path)(errno)),
    }
    match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => Ok(()),
        Err(errno) => Err(named("unmount", path)(errno)),
    }
}

fn named(doing: &'static str, path: &Path) -> impl FnOnce(nix::errno::Errno) -> Error {
    let path = path.display().to_string();
    move |errno| Error::other(format!("failed to {doing} {path}: {}", Error::from(errno)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_characters_are_decoded() {
        assert_eq!(unescaped(br"/a\040b\134c\011"), PathBuf::from("/a b\\c\t"));
        assert_eq!(unescaped(br"/plain\04"), PathBuf::from("/plain\\04"));
    }
}
