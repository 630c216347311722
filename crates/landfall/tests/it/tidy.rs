//! What a machine can check of the way this project is written, so that reviews can be about ideas.
//!
//! Who may use whom is read from the table in ARCHITECTURE.md: the page is the rule, and a new edge
//! means editing it. Everything else is a walk over the source files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file is a chapter; past this it is a folder.
const LINES_MAX: usize = 800;

/// File names that say nothing of what is in the file.
const VAGUE: &[&str] = &["util", "utils", "helper", "helpers", "common", "manager", "misc"];

/// Time and chance come from `clock` only (decision 1), or a simulated cluster is not repeatable.
/// `tokio::time::Instant` is fine: a paused runtime controls it.
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

/// Where an impure word may stand nevertheless: path, word, and why. Tests that measure the real
/// world go here, with the bound they keep.
const ALLOWED: &[(&str, &str, &str)] = &[];

struct Source {
    /// From the root of the project: `crates/api/src/kind.rs`.
    path: String,
    text: String,
}

impl Source {
    /// The lines that are code, numbered from one.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(i, line)| (i + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

#[test]
fn every_file_opens_by_saying_what_it_is_for() {
    let silent: Vec<String> = sources()
        .into_iter()
        .filter(|source| !source.text.starts_with("//! "))
        .map(|source| source.path)
        .collect();
    assert!(silent.is_empty(), "no `//!` header: {silent:#?}");
}

#[test]
fn no_file_has_a_name_that_says_nothing() {
    let vague: Vec<String> = sources()
        .into_iter()
        .map(|source| source.path)
        .filter(|path| {
            path.split('/').any(|part| VAGUE.contains(&part.strip_suffix(".rs").unwrap_or(part)))
        })
        .collect();
    assert!(vague.is_empty(), "name them after their noun: {vague:#?}");
}

#[test]
fn no_file_is_too_long() {
    let long: Vec<String> = sources()
        .into_iter()
        .map(|source| (source.text.lines().count(), source.path))
        .filter(|(lines, _)| *lines > LINES_MAX)
        .map(|(lines, path)| format!("{path}: {lines} lines"))
        .collect();
    assert!(long.is_empty(), "past {LINES_MAX} a chapter is a folder: {long:#?}");
}

#[test]
fn time_and_chance_come_from_the_clock() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| !source.path.starts_with("crates/clock/")) {
        if source.path.ends_with("/tests/it/tidy.rs") {
            continue; // It has to name the words.
        }
        for (number, line) in source.code() {
            for word in IMPURE.iter().filter(|word| stands_in(word, line)) {
                let allowed = |row: &&(&str, &str, &str)| row.0 == source.path && row.1 == *word;
                if !ALLOWED.iter().any(|row| allowed(&row)) {
                    found.push(format!("{}:{number}: {word}", source.path));
                }
            }
        }
        found.extend(std_instant(source));
    }
    assert!(found.is_empty(), "ask `clock`, or wait with `tokio::time`: {found:#?}");
}

/// `use std::time::{Duration, Instant}` says it in two pieces.
fn std_instant(source: &Source) -> Option<String> {
    let grouped = |line: &str| {
        line.split_once("std::time::{")
            .is_some_and(|(_, names)| names.split(&[',', '}', ' ']).any(|name| name == "Instant"))
    };
    let (number, _) = source.code().find(|(_, line)| grouped(line))?;
    Some(format!("{}:{number}: std's Instant", source.path))
}

/// As a word of its own: `operand::` is not `rand::`. Keys and signatures must never be guessable,
/// not even in a simulation, so `ring::rand::` is not meant either.
fn stands_in(word: &str, line: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = &line[..at];
        !before.ends_with(|c: char| c.is_alphanumeric() || c == '_') && !before.ends_with("ring::")
    })
}

#[test]
fn nothing_is_left_undone() {
    // Put together here, so that they are not found in this file.
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
fn crates_use_only_what_the_map_lets_them_use() {
    let map = map();
    for (name, uses) in crates() {
        let Some(row) = map.get(&name) else {
            continue; // The next test says so.
        };
        for used in uses {
            assert!(
                row.may_use.contains(&used),
                "`{name}` uses `{used}`: a design change, to be made in ARCHITECTURE.md too"
            );
        }
    }
}

#[test]
fn the_map_names_every_crate_and_no_other() {
    let map = map();
    let crates = crates();
    for name in crates.keys() {
        let row = map.get(name).unwrap_or_else(|| panic!("`{name}` is not in ARCHITECTURE.md"));
        assert!(!row.coming, "`{name}` is there, but ARCHITECTURE.md says it is coming");
    }
    for (name, _) in map.iter().filter(|(_, row)| !row.coming) {
        assert!(crates.contains_key(name), "ARCHITECTURE.md names `{name}`, which is not there");
    }
}

#[test]
fn the_map_has_no_circles() {
    let map = map();
    // Use points at rows further up only; so the order of the table is a proof.
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let order: Vec<String> = page.lines().filter_map(row).map(|(name, _)| name).collect();
    for (place, name) in order.iter().enumerate() {
        for used in &map[name].may_use {
            let above = order[..place].contains(used);
            assert!(above, "`{name}` may use `{used}`, which stands below it or is not there");
        }
    }
}

#[test]
fn words_are_found_only_where_they_stand_alone() {
    assert!(stands_in("rand::", "let x = rand::random();"));
    assert!(!stands_in("rand::", "operand::of(x)"));
    assert!(!stands_in("rand::", "use ring::rand::SystemRandom;"));
    let source = |text: &str| Source { path: "x.rs".into(), text: text.into() };
    assert!(std_instant(&source("use std::time::{Duration, Instant};")).is_some());
    assert!(std_instant(&source("use std::time::{Duration};")).is_none());
    assert!(std_instant(&source("// use std::time::{Instant};")).is_none());
}

/// What ARCHITECTURE.md says of a crate.
struct Row {
    may_use: Vec<String>,
    coming: bool,
}

fn map() -> BTreeMap<String, Row> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("there is a map");
    page.lines().filter_map(row).collect()
}

/// ``| `server` | what it is for | `api` `store` |``; a crate that is not there yet says so.
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

/// Our crates, and which of our crates each uses, outside its tests.
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
                let path = path.strip_prefix(root()).expect("it is below the root");
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
    entries.map(|entry| entry.expect("the folder stays readable").path()).collect()
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/landfall is two below the root").to_owned()
}
