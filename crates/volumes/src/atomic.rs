//! Directories whose files change atomically, all at once (N-138).
//!
//!     ..2026_01_02_03_04_05.1234567/   the files
//!     ..data -> ..2026_01_02_03_04_05.1234567
//!     key    -> ..data/key
//!
//! An update writes a new directory and renames `..data` once, so no reader sees a mix of old and
//! new files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) data: Vec<u8>,
    pub(crate) mode: u32,
    /// None means root.
    pub(crate) owner: Option<u32>,
}

/// Files by their path in the volume.
pub(crate) type Payload = BTreeMap<String, File>;

/// Makes `folder` contain exactly `payload`. Returns false if it already did. Calls `set_ownership`
/// after writing the new files, before readers can see them.
pub(crate) fn write(
    folder: &Path,
    payload: &Payload,
    set_ownership: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    payload.keys().try_for_each(|path| check(path))?;
    let old = current(folder);
    if let Some(old) = &old
        && is_same(&folder.join(old), payload)
    {
        link_and_unlink(folder, payload)?;
        return Ok(false);
    }
    let new = fresh_name();
    fs::DirBuilder::new().mode(0o755).create(folder.join(&new))?;
    fs::set_permissions(folder.join(&new), fs::Permissions::from_mode(0o755))?;
    let filled = fill(&folder.join(&new), payload).and_then(|()| set_ownership());
    if let Err(error) = filled {
        let _ = fs::remove_dir_all(folder.join(&new));
        return Err(error);
    }
    let _ = fs::remove_file(folder.join(DATA_NEW));
    symlink(&new, folder.join(DATA_NEW))?;
    fs::rename(folder.join(DATA_NEW), folder.join(DATA))?;
    link_and_unlink(folder, payload)?;
    remove_leftovers(folder, &new)?;
    Ok(true)
}

fn fresh_name() -> PathBuf {
    let at = clock::now().strftime("..%Y_%m_%d_%H_%M_%S").to_string();
    PathBuf::from(format!("{at}.{}", clock::random_u64() % 10_000_000_000))
}

/// The directory that `..data` links to, if it is valid.
fn current(folder: &Path) -> Option<PathBuf> {
    let target = fs::read_link(folder.join(DATA)).ok()?;
    let plain = matches!(target.components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
    (plain && folder.join(&target).is_dir()).then_some(target)
}

fn check(path: &str) -> Result<()> {
    let invalid = |why: &str| {
        Err(Error::new(ErrorKind::InvalidInput, format!("invalid path: {why}: {path}")))
    };
    if path.is_empty() || path.starts_with('/') {
        return invalid("must be relative path");
    }
    if path.starts_with("..") {
        return invalid("must not start with '..'");
    }
    if path.split('/').any(|part| part == "..") {
        return invalid("must not contain '..'");
    }
    Ok(())
}

fn fill(folder: &Path, payload: &Payload) -> Result<()> {
    for (path, file) in payload {
        let path = folder.join(path);
        if let Some(parent) = path.parent() {
            make_directories(folder, parent)?;
        }
        fs::write(&path, &file.data)?;
        if file.owner.is_some() {
            chown(&path, file.owner, None)?;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode & 0o7777))?;
    }
    Ok(())
}

/// Creates the directories of nested paths with mode 0755, whatever the umask.
fn make_directories(top: &Path, folder: &Path) -> Result<()> {
    let missing: Vec<&Path> =
        folder.ancestors().take_while(|path| *path != top && !path.exists()).collect();
    for path in missing.into_iter().rev() {
        fs::create_dir(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Whether the folder has the same files with the same content.
fn is_same(folder: &Path, payload: &Payload) -> bool {
    let expected: BTreeSet<PathBuf> = payload.keys().map(|path| plain(path)).collect();
    files_in(folder).is_ok_and(|found| found == expected)
        && payload.iter().all(|(path, file)| {
            fs::read(folder.join(path)).is_ok_and(|content| content == file.data)
        })
}

fn plain(path: &str) -> PathBuf {
    Path::new(path).components().filter(|part| *part != Component::CurDir).collect()
}

fn files_in(top: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(top.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                true => folders.push(path),
                false => drop(found.insert(path)),
            }
        }
    }
    Ok(found)
}

/// Creates one link for each top-level name in the payload, and removes links of files that are gone.
fn link_and_unlink(folder: &Path, payload: &Payload) -> Result<()> {
    let first =
        |path: &str| plain(path).components().next().map(|part| PathBuf::from(part.as_os_str()));
    let names: BTreeSet<PathBuf> = payload.keys().filter_map(|path| first(path)).collect();
    for name in &names {
        if fs::read_link(folder.join(name)).is_err() {
            symlink(Path::new(DATA).join(name), folder.join(name))?;
        }
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let ours = fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(DATA));
        if ours && !names.contains(Path::new(&entry.file_name())) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Removes the previous directory and what interrupted updates have left.
fn remove_leftovers(folder: &Path, current: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let dated = name.to_string_lossy().starts_with("..") && entry.file_type()?.is_dir();
        if dated && Path::new(&name) != current {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn payload(files: &[(&str, &str, u32)]) -> Payload {
        let file = |text: &str, mode| File { data: text.into(), mode, owner: None };
        files.iter().map(|(path, text, mode)| ((*path).to_owned(), file(text, *mode))).collect()
    }

    fn listed(folder: &Path) -> Vec<String> {
        let names =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names
            .map(|name| if name.starts_with("..2") { "..dated".into() } else { name })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn n_138_n_139_files_are_reached_through_the_data_link() {
        let folder = tempfile::tempdir().unwrap();
        let files = payload(&[("a", "1", 0o400), ("dir/sub/b", "2", 0o644)]);
        assert!(write(folder.path(), &files, || Ok(())).unwrap());
        assert_eq!(listed(folder.path()), ["..data", "..dated", "a", "dir"]);
        assert_eq!(fs::read_link(folder.path().join("dir")).unwrap(), Path::new("..data/dir"));
        assert_eq!(fs::read_to_string(folder.path().join("dir/sub/b")).unwrap(), "2");
        let mode = |path: &str| fs::metadata(folder.path().join(path)).unwrap().mode() & 0o7777;
        assert_eq!((mode("a"), mode("dir/sub/b")), (0o400, 0o644));
        assert_eq!((mode("..data"), mode("dir"), mode("dir/sub")), (0o755, 0o755, 0o755));
    }

    #[test]
    fn n_138_an_update_replaces_all_files_and_an_equal_payload_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let data = || fs::read_link(path.join("..data")).unwrap();
        write(path, &payload(&[("a", "1", 0o644), ("b", "1", 0o644)]), || Ok(())).unwrap();
        let first = data();
        assert!(
            !write(path, &payload(&[("a", "1", 0o644), ("b", "1", 0o644)]), || Ok(())).unwrap()
        );
        assert_eq!(data(), first);

        // A reader with an open file keeps the old content.
        let held = fs::File::open(path.join("a")).unwrap();
        assert!(write(path, &payload(&[("a", "2", 0o644), ("c", "2", 0o644)]), || Ok(())).unwrap());
        assert_ne!(data(), first);
        assert_eq!(listed(path), ["..data", "..dated", "a", "c"]);
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "2");
        assert_eq!(std::io::read_to_string(held).unwrap(), "1");

        assert!(write(path, &Payload::new(), || Ok(())).unwrap());
        assert_eq!(listed(path), ["..data", "..dated"]);
    }

    #[test]
    fn n_138_interrupted_updates_are_cleaned_up_and_failing_ones_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        write(path, &payload(&[("a", "1", 0o644)]), || Ok(())).unwrap();
        let fail = || Err(Error::other("no"));
        assert!(write(path, &payload(&[("a", "2", 0o644)]), fail).is_err());
        assert_eq!(listed(path), ["..data", "..dated", "a"]);
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");

        fs::create_dir(path.join("..2020_01_01_00_00_00.1")).unwrap();
        symlink("..2020_01_01_00_00_00.1", path.join("..data_tmp")).unwrap();
        write(path, &payload(&[("a", "3", 0o644)]), || Ok(())).unwrap();
        assert_eq!(listed(path), ["..data", "..dated", "a"]);
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "3");
    }

    /// N-138: a directory that is the mount point of a nested volume stays.
    #[test]
    fn other_directories_in_the_volume_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("nested")).unwrap();
        write(folder.path(), &payload(&[("a", "1", 0o644)]), || Ok(())).unwrap();
        write(folder.path(), &payload(&[("b", "1", 0o644)]), || Ok(())).unwrap();
        assert_eq!(listed(folder.path()), ["..data", "..dated", "b", "nested"]);
    }

    #[test]
    fn n_138_paths_outside_the_volume_or_reserved_names_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["../up", "..data", "a/../../b", "/etc/passwd", ""] {
            assert!(
                write(folder.path(), &payload(&[(path, "x", 0o644)]), || Ok(())).is_err(),
                "{path}"
            );
        }
        assert!(listed(folder.path()).is_empty());
    }
}
