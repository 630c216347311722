//! hostPath volumes: creates or checks the path (N-145).

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Creates or checks the path as its type requires. Follows links; changes nothing that exists.
pub(crate) fn check(path: &str, kind: &str) -> Result<PathBuf, String> {
    if path.split('/').any(|part| part == "..") {
        return Err(format!("the path {path:?} must not contain '..'"));
    }
    let path = Path::new(path);
    let make = match kind {
        "DirectoryOrCreate" => make_directory(path),
        "FileOrCreate" => make_file(path),
        // Container runtimes create a missing source too. If this fails, the runtime reports it.
        "" => {
            let _ = make_directory(path);
            return Ok(path.to_owned());
        }
        _ => Ok(()),
    };
    make.map_err(|error| error.to_string())?;
    let file_type = fs::metadata(path).map(|about| about.file_type());
    let (matches, expected) = match kind {
        "Directory" | "DirectoryOrCreate" => (file_type.is_ok_and(|it| it.is_dir()), "directory"),
        "File" | "FileOrCreate" => (file_type.is_ok_and(|it| it.is_file()), "file"),
        "Socket" => (file_type.is_ok_and(|it| it.is_socket()), "socket file"),
        "CharDevice" => (file_type.is_ok_and(|it| it.is_char_device()), "character device"),
        "BlockDevice" => (file_type.is_ok_and(|it| it.is_block_device()), "block device"),
        other => return Err(format!("{other} is an invalid volume type")),
    };
    match matches {
        true => Ok(path.to_owned()),
        false => Err(format!("hostPath type check failed: {} is not a {expected}", path.display())),
    }
}

fn make_directory(path: &Path) -> std::io::Result<()> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
        }
        _ => Ok(()),
    }
}

fn make_file(path: &Path) -> std::io::Result<()> {
    let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    match created {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_145_a_path_is_created_or_checked_as_its_type_requires() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("dir", at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for (path, kind, why) in [
            (at("dir"), "Directory", None),
            (at("link"), "Directory", None),
            (at("file"), "File", None),
            (at("socket"), "Socket", None),
            ("/dev/null".into(), "CharDevice", None),
            (at("new/deep"), "DirectoryOrCreate", None),
            (at("new/file"), "FileOrCreate", None),
            (at("any/deep"), "", None),
            (at("file"), "", None),
            (at("file"), "Directory", Some("a directory")),
            (at("none"), "Directory", Some("a directory")),
            (at("file"), "DirectoryOrCreate", Some("a directory")),
            (at("dir"), "File", Some("a file")),
            (at("dir"), "FileOrCreate", Some("a file")),
            (at("none"), "Socket", Some("a socket file")),
            (at("file"), "CharDevice", Some("a character device")),
            ("/dev/null".into(), "BlockDevice", Some("a block device")),
        ] {
            let expected =
                why.map(|why| format!("hostPath type check failed: {path} is not {why}"));
            assert_eq!(check(&path, kind).err(), expected, "{kind} {path}");
        }
        assert!(Path::new(&at("any/deep")).is_dir());
        assert!(
            check(&at("absent/file"), "FileOrCreate").is_err(),
            "parents of files are not created"
        );
        assert!(check(&at("dir/../dir"), "").is_err());
    }
}
