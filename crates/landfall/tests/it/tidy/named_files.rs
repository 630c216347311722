//! ARCHITECTURE.md names files that exist.

use super::{quoted, root, sources};
use std::fs;

/// A name in backquotes with one of these ends is a file.
const ENDS: [&str; 3] = [".rs", ".md", ".toml"];

/// A section about a crate names the crate's files (`workload/pending_writes.rs`); everything else is named from the root.
#[test]
fn architecture_names_existing_files() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let sources = sources();
    let mut crates: Vec<String> = Vec::new();
    let mut missing = Vec::new();
    let mut found = 0;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            crates = quoted(line).into_iter().filter(|name| name.starts_with("crates/")).collect();
        }
        for name in quoted(line) {
            if name.contains(' ') || !ENDS.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            let is_in_crate = |path: &str| {
                crates.is_empty() || crates.iter().any(|home| path.starts_with(&format!("{home}/")))
            };
            let end = format!("/{name}");
            let is_source = sources
                .iter()
                .any(|source| source.path.ends_with(&end) && is_in_crate(&source.path));
            if is_source || root().join(&name).exists() {
                found += 1;
            } else {
                missing.push(format!("line {}: {name}", number + 1));
            }
        }
    }
    assert!(found > 50, "only {found} names of files were read");
    assert!(missing.is_empty(), "ARCHITECTURE.md names files that do not exist: {missing:#?}");
}
