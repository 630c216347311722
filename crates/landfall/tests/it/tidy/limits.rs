//! Limits of length, comments that say something, and README files as front pages of the documentation.

use super::{README, Source, entries, root, sources};
use std::fs;

/// A file is a chapter; past this it is a folder.
const FILE_LINES_MAX: usize = 800;

const FUNCTION_LINES_MAX: usize = 100;

#[test]
fn no_file_is_too_long() {
    let long: Vec<String> = sources()
        .into_iter()
        .map(|source| (source.text.lines().count(), source.path))
        .filter(|(lines, _)| *lines > FILE_LINES_MAX)
        .map(|(lines, path)| format!("{path}: {lines} lines"))
        .collect();
    assert!(long.is_empty(), "split files with more than {FILE_LINES_MAX} lines: {long:#?}");
}

#[test]
fn no_function_is_too_long() {
    let mut long = Vec::new();
    for source in sources() {
        for (name, lines) in functions(&source.text) {
            if lines > FUNCTION_LINES_MAX {
                long.push(format!("{}: {name} has {lines} lines", source.path));
            }
        }
    }
    assert!(
        long.is_empty(),
        "split functions with more than {FUNCTION_LINES_MAX} lines, also tables of tests: {long:#?}"
    );
}

#[test]
fn comments_say_what_a_rule_requires() {
    let bare: Vec<String> = sources().iter().flat_map(bare_rule_comments).collect();
    assert!(bare.is_empty(), "say in a few words what the rule requires: {bare:#?}");
}

#[test]
fn every_readme_is_the_front_page_of_its_crate() {
    let mut without = Vec::new();
    for folder in entries(&root().join("crates")) {
        let name = folder.display().to_string();
        assert!(folder.join("README.md").is_file(), "{name} has no README.md");
        let Ok(lib) = fs::read_to_string(folder.join("src/lib.rs")) else {
            continue; // It is a program.
        };
        if !lib.starts_with(README) {
            without.push(name);
        }
    }
    assert!(without.is_empty(), "begin lib.rs with `{README}`: {without:#?}");
}

/// Names of functions with their number of lines, from the signature to the closing brace, in formatted code.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some(name) = function_name(code) else { continue };
        if code.ends_with('}') {
            continue; // All on one line.
        }
        let indent = &line[..line.len() - code.len()];
        let close = format!("{indent}}}");
        let rest = &lines[start..];
        // A declaration without a body ends with a semicolon before any closing brace.
        let end = rest.iter().position(|line| *line == close);
        let declared = rest.iter().position(|line| line.ends_with(';') || line.ends_with('{'));
        let has_body = declared.is_some_and(|at| rest[at].ends_with('{'));
        if let (Some(end), true) = (end, has_body) {
            found.push((name, end + 1));
        }
    }
    found
}

fn function_name(code: &str) -> Option<&str> {
    let mut words = code.split(' ');
    let modifier = |word: &str| {
        word.starts_with("pub") || matches!(word, "const" | "async" | "unsafe" | "extern" | "\"C\"")
    };
    let first = words.find(|word| !modifier(word))?;
    if first != "fn" {
        return None;
    }
    words.next()?.split(['(', '<']).next()
}

/// Comments of one or more lines that contain rule identifiers such as `T-NODE-83` and nothing else.
fn bare_rule_comments(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    for (number, line) in source.text.lines().chain([""]).enumerate() {
        let comment = line.trim_start().strip_prefix("//");
        match comment {
            Some(text) => block.push(text.trim_start_matches(['/', '!'])),
            None if block.is_empty() => {}
            None => {
                if is_bare(&block.join(" ")) {
                    found.push(format!("{}:{}:{}", source.path, number, block.join(" ")));
                }
                block.clear();
            }
        }
    }
    found
}

fn is_bare(comment: &str) -> bool {
    let words = comment.split([' ', ',', '.', ';', ':', '(', ')']).filter(|word| !word.is_empty());
    let mut words = words.filter(|word| !matches!(*word, "to" | "and" | "or")).peekable();
    words.peek().is_some_and(|first| is_rule(first))
        && words.all(|word| is_rule(word) || word.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `A-1`, `T-NODE-83`
fn is_rule(word: &str) -> bool {
    let Some((group, number)) = word.rsplit_once('-') else { return false };
    !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && group.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
        && group.starts_with(|first: char| first.is_ascii_uppercase())
}

#[test]
fn bare_rule_comments_are_found() {
    for bare in ["A-1", " T-NODE-83, T-NODE-84.", "T-INV-1 to T-INV-7", "T-NODE-15, 19, 26"] {
        assert!(is_bare(bare), "{bare}");
    }
    for explained in ["", "A-1: names are unique", "15, 19", "see T-NODE-83"] {
        assert!(!is_bare(explained), "{explained}");
    }
}

#[test]
fn functions_are_measured_from_signature_to_brace() {
    let text = "impl X {\n    pub(crate) async fn a(\n        &self,\n    ) {\n        b();\n    }\n}\n\
                trait Y {\n    fn c(&self);\n}\nfn d() {\n}\n";
    assert_eq!(functions(text), [("a", 5), ("d", 2)]);
}
