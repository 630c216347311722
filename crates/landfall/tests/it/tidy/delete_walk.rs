//! The walk through one `kubectl delete pod` in ARCHITECTURE.md names files and functions that exist.

use super::{quoted, root};
use std::collections::BTreeSet;
use std::fs;

const HEADING: &str = "## One `kubectl delete pod`, file by file";
/// More files are not a walk that a reader can follow.
const FILES_MAX: usize = 25;

/// Path and function of each row of the table.
fn walk() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let section = text.split_once(HEADING).expect("the section about one delete").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| ")).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = |cell: &str| quoted(cell).into_iter().next();
        Some((name(cells.get(2)?)?, name(cells.get(3)?)?))
    });
    rows.flatten().collect()
}

#[test]
fn the_walk_through_a_delete_names_existing_functions() {
    let walk = walk();
    assert!(walk.len() > 10, "the table was not read: {walk:?}");
    let missing = walk.iter().filter(|(path, function)| {
        let source = fs::read_to_string(root().join(path)).unwrap_or_default();
        !source.contains(&format!("fn {function}(")) && !source.contains(&format!("fn {function}<"))
    });
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what does not exist: {missing:#?}");
}

#[test]
fn the_walk_through_a_delete_is_short_and_names_no_file_twice() {
    let walk = walk();
    let files: BTreeSet<&str> = walk.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(files.len(), walk.len(), "a file is named twice");
    assert!(files.len() <= FILES_MAX, "{} files, at most {FILES_MAX} are wanted", files.len());
}
