//! The documentation stays true where a machine can check it: links and paths lead somewhere, and landfall
//! knows the commands and options that people are told to type.

use crate::harness::LANDFALL;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where paths in code spans are looked up.
const FOLDERS: &[&str] = &["crates/", "docs/", "scripts/", "dist/", "examples/"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two below the root")
}

/// Pages for people, with their text.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages = Vec::new();
    for folder in [".", "docs", "docs/decisions", "examples"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("the folder exists") {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "md" || end == "yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                pages.push((path, text));
            }
        }
    }
    assert!(pages.len() > 20, "{}", pages.len());
    pages
}

/// Texts between two marks, on one line each.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Vec<&'a str> {
    let pieces = text.lines().flat_map(|line| line.split(start).skip(1));
    pieces.filter_map(|piece| piece.split_once(end)).map(|(inside, _)| inside).collect()
}

#[test]
fn links_and_paths_lead_to_files() {
    let mut broken = Vec::new();
    for (page, text) in pages() {
        let links = between(&text, "](", ")").into_iter();
        let links = links.map(|link| link.split('#').next().unwrap_or_default());
        for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
            if !page.with_file_name(link).exists() {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
        for path in text.split('`').skip(1).step_by(2) {
            let is_path = FOLDERS.iter().any(|folder| path.starts_with(folder))
                && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
            if is_path && !root().join(path).exists() {
                broken.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Lines that people are told to type: code blocks, code spans, and the comments of examples.
fn typed_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    for (number, block) in text.split("```").enumerate() {
        match number % 2 {
            0 => lines.extend(block.split('`').skip(1).step_by(2)),
            _ => lines.extend(block.lines()),
        }
    }
    lines.extend(text.lines().filter_map(|line| line.strip_prefix("#   ")));
    lines
}

/// The arguments of `landfall` in such a line, without comments and redirections.
fn arguments(line: &str) -> Option<Vec<&str>> {
    let words = line.trim_start_matches("sudo ").strip_prefix("landfall ")?.split_whitespace();
    Some(words.take_while(|word| !["#", ">", "&&", "|"].contains(word)).collect())
}

#[test]
fn landfall_knows_the_commands_and_options_in_the_documentation() {
    let mut seen = 0;
    for (page, text) in pages() {
        // These two also name commands that are no longer there, and internal ones.
        if page.ends_with("CHANGELOG.md") || page.parent().unwrap().ends_with("decisions") {
            continue;
        }
        for line in typed_lines(&text) {
            let Some(arguments) = arguments(line) else { continue };
            if arguments.first().is_none_or(|command| *command == "drill") {
                continue; // Planned.
            }
            let mut command = Command::new(LANDFALL);
            let output = command.args(&arguments).arg("--help").output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {line}\n{error}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "only {seen} commands were found");
}
