//! Programs and images that only tests need, where `scripts/install` puts them.

use std::path::{Path, PathBuf};

/// The root directory of the project.
pub fn workspace_root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the crate is two levels below the root")
}

/// A file below `target/tools`.
#[track_caller]
pub fn tool(path: &str) -> PathBuf {
    let path = workspace_root().join("target/tools").join(path);
    assert!(path.is_file(), "{} does not exist: run `scripts/install all`", path.display());
    path
}

/// The OCI archive of an image that `scripts/images` builds, such as `busybox`.
#[track_caller]
pub fn image_archive(name: &str) -> PathBuf {
    tool(&format!("images/{name}.tar"))
}
