//! Checks how this project is written as far as a program can, so that reviews can be about ideas.
//!
//! The table in ARCHITECTURE.md says which crate may use which: a new dependency means editing it. All other checks
//! read the source files.

mod delete_walk;
mod limits;
mod named_files;
mod test_filters;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// File names that say nothing about the content.
const VAGUE: &[&str] = &["util", "utils", "helper", "helpers", "common", "manager", "misc"];

/// The first line of `lib.rs` in a crate whose README.md is its front page in `cargo doc`.
const README: &str = "#![doc = include_str!(\"../README.md\")]";

/// Time and random numbers come only from `clock`; otherwise a simulated cluster is not repeatable.
/// `tokio::time::Instant` is fine, because a paused runtime controls it.
const IMPURE: &[&str] = &[
    "SystemTime::now",
    "std::time::Instant",
    "Timestamp::now",
    "Zoned::now",
    "thread::sleep",
    "rand::",
    "getrandom",
    "Uuid::new_v4",
];

/// Exceptions: path, word, and the reason.
const ALLOWED: &[(&str, &str, &str)] = &[];

struct Source {
    /// Relative to the root of the project, such as `crates/api/src/kind.rs`.
    path: String,
    text: String,
}

impl Source {
    /// The lines that are not comments, numbered from one.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(i, line)| (i + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

#[test]
fn every_file_begins_with_a_header() {
    let without: Vec<String> = sources()
        .into_iter()
        .filter(|source| !source.text.starts_with("//! ") && !source.text.starts_with(README))
        .map(|source| source.path)
        .collect();
    assert!(without.is_empty(), "begin with `//!` and what the file is for: {without:#?}");
}

#[test]
fn no_file_has_a_vague_name() {
    let vague: Vec<String> = sources()
        .into_iter()
        .map(|source| source.path)
        .filter(|path| {
            path.split('/').any(|part| VAGUE.contains(&part.strip_suffix(".rs").unwrap_or(part)))
        })
        .collect();
    assert!(vague.is_empty(), "name files after what they contain: {vague:#?}");
}

#[test]
fn time_and_random_numbers_come_from_clock() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| !source.path.starts_with("crates/clock/")) {
        if source.path.contains("/tests/it/tidy") {
            continue; // It lists the words.
        }
        for (number, line) in source.code() {
            for word in IMPURE.iter().filter(|word| contains_word(word, line)) {
                let allowed = |row: &&(&str, &str, &str)| row.0 == source.path && row.1 == *word;
                if !ALLOWED.iter().any(|row| allowed(&row)) {
                    found.push(format!("{}:{number}: {word}", source.path));
                }
            }
        }
        found.extend(std_instant(source));
    }
    assert!(found.is_empty(), "use `clock` or `tokio::time`: {found:#?}");
}

/// Finds `use std::time::{Duration, Instant}`.
fn std_instant(source: &Source) -> Option<String> {
    let grouped = |line: &str| {
        line.split_once("std::time::{")
            .is_some_and(|(_, names)| names.split(&[',', '}', ' ']).any(|name| name == "Instant"))
    };
    let (number, _) = source.code().find(|(_, line)| grouped(line))?;
    Some(format!("{}:{number}: std's Instant", source.path))
}

/// True if the line contains the word and not only as a part of another one: `operand::` is not `rand::`.
/// `ring::rand::` is allowed, because keys must be unpredictable even in a simulation.
fn contains_word(word: &str, line: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = &line[..at];
        !before.ends_with(|c: char| c.is_alphanumeric() || c == '_') && !before.ends_with("ring::")
    })
}

#[test]
fn nothing_is_marked_as_unfinished() {
    // Written in two parts, so that this file does not contain them.
    let marks = [["todo", "!("], ["unimplemented", "!("], ["#[", "ignore"], ["FIX", "ME"]];
    let marks = marks.map(|parts| parts.concat());
    let mut found = Vec::new();
    for source in sources() {
        for (i, line) in source.text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark.as_str())) {
                found.push(format!("{}:{}: {}", source.path, i + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn crates_use_only_what_architecture_allows() {
    let map = map();
    for (name, uses) in crates() {
        let Some(row) = map.get(&name) else {
            continue; // The next test fails.
        };
        for used in uses {
            assert!(
                row.may_use.contains(&used),
                "`{name}` uses `{used}`, which the table in ARCHITECTURE.md does not allow; edit it in the same commit"
            );
        }
    }
}

#[test]
fn architecture_lists_exactly_the_crates_that_exist() {
    let map = map();
    let crates = crates();
    for name in crates.keys() {
        let row = map.get(name).unwrap_or_else(|| panic!("`{name}` is not in ARCHITECTURE.md"));
        assert!(!row.coming, "`{name}` exists, but ARCHITECTURE.md says it is coming");
    }
    for (name, _) in map.iter().filter(|(_, row)| !row.coming) {
        assert!(crates.contains_key(name), "ARCHITECTURE.md lists `{name}`, which does not exist");
    }
}

#[test]
fn dependencies_have_no_cycles() {
    let map = map();
    // Every row uses only rows above it, so there can be no cycle.
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let order: Vec<String> = page.lines().filter_map(row).map(|(name, _)| name).collect();
    for (place, name) in order.iter().enumerate() {
        for used in &map[name].may_use {
            let above = order[..place].contains(used);
            assert!(above, "`{name}` may use `{used}`, which is not above it in the table");
        }
    }
}

#[test]
fn words_are_found_only_as_whole_words() {
    assert!(contains_word("rand::", "let x = rand::random();"));
    assert!(!contains_word("rand::", "operand::of(x)"));
    assert!(!contains_word("rand::", "use ring::rand::SystemRandom;"));
    let source = |text: &str| Source { path: "x.rs".into(), text: text.into() };
    assert!(std_instant(&source("use std::time::{Duration, Instant};")).is_some());
    assert!(std_instant(&source("use std::time::{Duration};")).is_none());
    assert!(std_instant(&source("// use std::time::{Instant};")).is_none());
}

/// The row of a crate in ARCHITECTURE.md.
struct Row {
    may_use: Vec<String>,
    coming: bool,
}

fn map() -> BTreeMap<String, Row> {
    let page =
        fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md can be read");
    page.lines().filter_map(row).collect()
}

/// Reads ``| `server` | what it is for | `api` `store` |``. A crate that does not exist yet is marked as coming.
fn row(line: &str) -> Option<(String, Row)> {
    let cells: Vec<&str> = line.trim().strip_prefix('|')?.strip_suffix('|')?.split('|').collect();
    let &[name, about, may_use] = cells.as_slice() else {
        return None;
    };
    let name = quoted(name).into_iter().next()?;
    Some((name, Row { may_use: quoted(may_use), coming: about.contains("coming") }))
}

fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// All crates of the workspace, and which of them each uses outside its tests.
fn crates() -> BTreeMap<String, Vec<String>> {
    let home = root().join("crates");
    let manifests: BTreeMap<String, String> = entries(&home)
        .into_iter()
        .filter_map(|folder| {
            let text = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
            Some((folder.file_name()?.to_str()?.to_owned(), text))
        })
        .collect();
    let ours: Vec<&String> = manifests.keys().collect();
    let uses =
        |text: &str| ours.iter().filter(|name| depends(text, name)).map(|n| (*n).clone()).collect();
    manifests.iter().map(|(name, text)| (name.clone(), uses(text))).collect()
}

fn depends(manifest: &str, name: &str) -> bool {
    let mut section = "";
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            section = line;
        }
        let key = line.split(['.', '=', ' ']).next();
        matches!(section, "[dependencies]" | "[build-dependencies]") && key == Some(name)
    })
}

fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).expect("source files are text");
                let path = path.strip_prefix(root()).expect("the path is below the root");
                sources.push(Source { path: path.to_string_lossy().into_owned(), text });
            }
        }
    }
    assert!(!sources.is_empty(), "no source files found");
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries.map(|entry| entry.expect("the directory can be read").path()).collect()
}

fn root() -> PathBuf {
    testbed::tools::workspace_root().to_owned()
}
