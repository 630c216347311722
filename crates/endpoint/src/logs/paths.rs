//! The two paths of a log, which log collectors depend on (N-157).

use std::io;
use std::path::{Path, PathBuf};

/// Longest file name on common filesystems.
const NAME_MAX: usize = 255;
const SUFFIX: &str = ".log";

/// `<root>/<namespace>_<pod>_<uid>`
pub fn pod_directory(root: &Path, namespace: &str, pod: &str, uid: &str) -> PathBuf {
    root.join(format!("{namespace}_{pod}_{uid}"))
}

/// `<container>/<restarts>.log`, below the pod's directory.
pub fn container_log(container: &str, restarts: u32) -> PathBuf {
    Path::new(container).join(format!("{restarts}{SUFFIX}"))
}

fn link_path(directory: &Path, namespace: &str, pod: &str, container: &str, id: &str) -> PathBuf {
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    // Names of objects are ASCII, but an id might not be: do not cut a character in two.
    let mut end = name.len().min(NAME_MAX - SUFFIX.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    directory.join(name + SUFFIX)
}

/// Links a container's log in `directory` (`/var/log/containers`) under a name of pod, namespace,
/// container and id. Idempotent.
pub fn link(
    directory: &Path,
    (namespace, pod): (&str, &str),
    (container, id): (&str, &str),
    log: &Path,
) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let path = link_path(directory, namespace, pod, container, id);
    match std::os::unix::fs::symlink(log, &path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if std::fs::read_link(&path).is_ok_and(|target| target == log) {
                return Ok(());
            }
            std::fs::remove_file(&path)?;
            std::os::unix::fs::symlink(log, &path)
        }
        linked => linked,
    }
}

/// Removes that link. Idempotent.
pub fn unlink(
    directory: &Path,
    (namespace, pod): (&str, &str),
    (container, id): (&str, &str),
) -> io::Result<()> {
    match std::fs::remove_file(link_path(directory, namespace, pod, container, id)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_157_paths_of_logs_are_upstreams() {
        let directory = pod_directory(Path::new("/var/log/pods"), "shop", "web-1", "u-1");
        assert_eq!(directory, Path::new("/var/log/pods/shop_web-1_u-1"));
        assert_eq!(
            directory.join(container_log("app", 3)),
            Path::new("/var/log/pods/shop_web-1_u-1/app/3.log")
        );
    }

    #[test]
    fn n_157_the_link_points_to_the_log_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        std::fs::write(&log, "hello\n").unwrap();
        let links = dir.path().join("containers");
        for _ in 0..2 {
            link(&links, ("shop", "web-1"), ("app", "abc"), &log).unwrap();
        }
        let path = links.join("web-1_shop_app-abc.log");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "hello\n");
        unlink(&links, ("shop", "web-1"), ("app", "abc")).unwrap();
        unlink(&links, ("shop", "web-1"), ("app", "abc")).unwrap();
        assert!(!path.is_symlink());
    }

    #[test]
    fn n_157_a_name_that_is_too_long_is_cut() {
        let path = link_path(Path::new("/l"), "n", &"p".repeat(253), "c", &"f".repeat(64));
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(name.len(), 255);
        assert!(name.ends_with("p.log"), "{name}");
    }
}
