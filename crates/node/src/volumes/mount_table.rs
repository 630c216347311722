//! The kernel's table of mounts, as far as volumes need it: what is mounted where, mount, unmount.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::io::{Error, Result};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Everything that is mounted at or below `path`, in the order it was mounted.
pub(crate) fn below(path: &Path) -> Result<Vec<PathBuf>> {
    let path = path.canonicalize()?;
    Ok(points()?.into_iter().filter(|point| point.starts_with(&path)).collect())
}

pub(crate) fn is_mount_point(path: &Path) -> Result<bool> {
    match path.canonicalize() {
        Ok(path) => Ok(points()?.contains(&path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn points() -> Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/thread-self/mountinfo")?;
    let lines = table.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescaped).collect())
}

/// Blanks and the like are written as `\040`.
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

/// `source` appears at `target`, which must be of the same sort: file or directory.
pub(crate) fn bind(source: &Path, target: &Path) -> Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(source), target, None::<&str>, flags, None::<&str>).map_err(named("bind", target))
}

/// A filesystem of its own, without devices and set-uid programs.
pub(crate) fn filesystem(kind: &str, source: &Path, target: &Path, options: &str) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some(source), target, Some(kind), flags, Some(options)).map_err(named("mount", target))
}

/// In memory, and not swapped out where the kernel can promise that.
pub(crate) fn tmpfs(target: &Path, size: Option<u64>) -> Result<()> {
    let size = size.map(|bytes| format!("size={bytes}")).unwrap_or_default();
    let kept = if size.is_empty() { "noswap".to_owned() } else { format!("{size},noswap") };
    let source = Path::new("tmpfs");
    let mount =
        |options: &str| mount(Some(source), target, Some("tmpfs"), MsFlags::empty(), Some(options));
    mount(&kept).or_else(|_| mount(&size)).map_err(named("mount a tmpfs at", target))
}

/// Gone from the tree at once with all that is mounted below it, and for good when its last user is gone.
///
/// A bind shares what is below it with where it came from, and where mounts are shared (systemd makes all
/// of them so) what is unmounted here would be unmounted there too. So it is set apart first.
pub(crate) fn unmount(path: &Path) -> Result<()> {
    let apart = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    match mount(None::<&str>, path, None::<&str>, apart, None::<&str>) {
        Ok(()) => {}
        Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(named("set apart", path)(errno)),
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
    fn odd_names_are_read_as_they_are() {
        assert_eq!(unescaped(br"/a\040b\134c\011"), PathBuf::from("/a b\\c\t"));
        assert_eq!(unescaped(br"/plain\04"), PathBuf::from("/plain\\04"));
    }
}
