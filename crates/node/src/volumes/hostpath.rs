//! A path of the node as a volume: what is checked before a container may see it (N-145).

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Makes or checks the path as its type says. Links are followed; nothing that exists is changed.
pub(crate) fn check(path: &str, kind: &str) -> Result<PathBuf, String> {
    if path.split('/').any(|part| part == "..") {
        return Err(format!("the path {path:?} must not contain '..'"));
    }
    let path = Path::new(path);
    let make = match kind {
        "DirectoryOrCreate" => make_directory(path),
        "FileOrCreate" => make_file(path),
        // As container runtimes do with a source that is missing; what cannot be made they report.
        "" => {
            let _ = make_directory(path);
            return Ok(path.to_owned());
        }
        _ => Ok(()),
    };
    make.map_err(|error| error.to_string())?;
    let sort = fs::metadata(path).map(|about| about.file_type());
    let (is, called) = match kind {
        "Directory" | "DirectoryOrCreate" => (sort.is_ok_and(|sort| sort.is_dir()), "directory"),
        "File" | "FileOrCreate" => (sort.is_ok_and(|sort| sort.is_file()), "file"),
        "Socket" => (sort.is_ok_and(|sort| sort.is_socket()), "socket file"),
        "CharDevice" => (sort.is_ok_and(|sort| sort.is_char_device()), "character device"),
        "BlockDevice" => (sort.is_ok_and(|sort| sort.is_block_device()), "block device"),
        other => return Err(format!("{other} is an invalid volume type")),
    };
    match is {
        true => Ok(path.to_owned()),
        false => Err(format!("hostPath type check failed: {} is not a {called}", path.display())),
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
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    match made {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N-145
    #[test]
    fn a_path_is_checked_as_its_type_says() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name).display().to_string();
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
            let wanted = why.map(|why| format!("hostPath type check failed: {path} is not {why}"));
            assert_eq!(check(&path, kind).err(), wanted, "{kind} {path}");
        }
        assert!(Path::new(&at("any/deep")).is_dir());
        assert!(
            check(&at("absent/file"), "FileOrCreate").is_err(),
            "parents are not made for files"
        );
        assert!(check(&at("dir/../dir"), "").is_err());
    }
}
