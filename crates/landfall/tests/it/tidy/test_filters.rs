//! The filters in `.config/nextest.toml` name modules that exist. nextest accepts a filter that matches nothing.

use super::{entries, root};
use std::collections::BTreeSet;

#[test]
fn filters_of_tests_name_modules_that_exist() {
    let config = std::fs::read_to_string(root().join(".config/nextest.toml")).unwrap();
    let named: BTreeSet<String> = patterns(&config).iter().flat_map(|one| modules(one)).collect();
    assert!(named.contains("endings") && named.contains("crash_points"), "{named:?}");
    let existing = existing();
    let unknown: Vec<&String> = named.iter().filter(|name| !existing.contains(*name)).collect();
    assert!(unknown.is_empty(), "no module of a test has this name: {unknown:?}");
}

/// The text of every `test(/…/)`.
fn patterns(config: &str) -> Vec<&str> {
    let rest = config.split("test(/").skip(1);
    rest.filter_map(|rest| Some(rest.split_once("/)")?.0)).collect()
}

/// What is before `::` in a pattern: a name, or several in parentheses.
fn modules(pattern: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_|()".contains(c);
    let mut pieces: Vec<&str> = pattern.split("::").collect();
    pieces.pop();
    let alternatives = pieces.iter().flat_map(|piece| {
        let start = piece.rfind(|c| !is_part(c)).map_or(0, |at| at + 1);
        piece[start..].split(['|', '(', ')'])
    });
    alternatives.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The names of all files and directories of integration tests, which are modules.
fn existing() -> BTreeSet<String> {
    let crates = entries(&root().join("crates"));
    let tests = crates.iter().map(|found| found.join("tests/it"));
    let mut folders: Vec<_> = tests.filter(|folder| folder.is_dir()).collect();
    let mut names = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            names.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    names
}

#[test]
fn modules_are_found_in_patterns() {
    for (pattern, expected) in [
        ("^endings::(hangs::|.*a_hook)", &["endings", "hangs"][..]),
        ("^endings::load::|^pods::precedence::", &["endings", "load", "pods", "precedence"]),
        (
            "^(siege|servers)::|^pods::(crashes|deleting)::",
            &["siege", "servers", "pods", "crashes", "deleting"],
        ),
        ("^usage::c_138", &["usage"]),
    ] {
        assert_eq!(modules(pattern), expected, "{pattern}");
    }
}
