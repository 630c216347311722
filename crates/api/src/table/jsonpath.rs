//! The part of Kubernetes' JSONPath that a printed column can use:
//!
//!     .spec.a.b   .spec['a.b']   .items[0]   .items[-1]   .items[*].name
//!     .status.conditions[?(@.type=="Ready")].status
//!
//! Not supported: ranges, functions, recursive descent. A path that uses them finds nothing.

use serde_json::Value;

/// A field, written as `a\.b` or as `['a.b']`.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// From the end if negative.
    Index(i64),
    All,
    Filter {
        path: Vec<Step>,
        test: Test,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    Exists,
    Equals(Value),
    Differs(Value),
}

/// How deep filters may be nested; a path with deeper ones finds nothing.
const FILTER_DEPTH_MAX: usize = 4;

/// All values at the path, in order; none if they are missing or the path is invalid.
pub(super) fn find<'v>(path: &str, object: &'v Value) -> Vec<&'v Value> {
    let path = path.trim();
    // Upstream adds braces around the path, but also accepts a path that already has them.
    let path = path.strip_prefix('{').and_then(|path| path.strip_suffix('}')).unwrap_or(path);
    match parse(path.strip_prefix('$').unwrap_or(path), 0) {
        Some(steps) => walk(&steps, object),
        None => Vec::new(),
    }
}

fn walk<'v>(steps: &[Step], object: &'v Value) -> Vec<&'v Value> {
    let mut found = vec![object];
    for step in steps {
        found = found.into_iter().flat_map(|value| take(step, value)).collect();
    }
    found.retain(|value| !value.is_null());
    found
}

fn take<'v>(step: &Step, value: &'v Value) -> Vec<&'v Value> {
    match (step, value) {
        (Step::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
        (Step::Index(index), Value::Array(list)) => {
            let place = if *index < 0 { list.len() as i64 + index } else { *index };
            usize::try_from(place).ok().and_then(|place| list.get(place)).into_iter().collect()
        }
        (Step::All, Value::Array(list)) => list.iter().collect(),
        (Step::All, Value::Object(map)) => map.values().collect(),
        (Step::Filter { path, test }, Value::Array(list)) => {
            list.iter().filter(|item| passes(path, test, item)).collect()
        }
        _ => Vec::new(),
    }
}

fn passes(path: &[Step], test: &Test, item: &Value) -> bool {
    let found = walk(path, item);
    match test {
        Test::Exists => !found.is_empty(),
        Test::Equals(expected) => found.first() == Some(&expected),
        Test::Differs(other) => found.first().is_some_and(|found| found != &other),
    }
}

fn parse(text: &str, depth: usize) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let end = closing(after)?;
            steps.push(bracket(after[..end].trim(), depth)?);
            rest = &after[end + 1..];
        } else if let Some(after) = rest.strip_prefix('.') {
            let (name, after) = field(after);
            match name.as_str() {
                // `.['a']` means `['a']`, and a single dot is the object itself.
                "" if after.is_empty() || after.starts_with('[') => {}
                "" => return None,
                "*" => steps.push(Step::All),
                _ => steps.push(Step::Field(name)),
            }
            rest = after;
        } else {
            return None;
        }
    }
    Some(steps)
}

/// A field's name up to the next step; a backslash escapes a dot in the name.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '.' | '[' => return (name, &text[i..]),
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            c => name.push(c),
        }
    }
    (name, "")
}

/// The position of the bracket that closes the one before `text`, ignoring quotes and inner brackets.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut open = 0usize;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => open += 1,
            (None, ']') if open == 0 => return Some(i),
            (None, ']') => open -= 1,
            (None, _) => {}
        }
    }
    None
}

fn bracket(inside: &str, depth: usize) -> Option<Step> {
    if inside == "*" {
        return Some(Step::All);
    }
    if let Some(name) = quoted(inside) {
        return Some(Step::Field(name.to_owned()));
    }
    if let Some(condition) = inside.strip_prefix("?(").and_then(|inside| inside.strip_suffix(')')) {
        return (depth < FILTER_DEPTH_MAX).then(|| filter(condition, depth + 1)).flatten();
    }
    inside.parse().ok().map(Step::Index)
}

fn quoted(text: &str) -> Option<&str> {
    ['\'', '"'].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote))
}

/// `@.type=="Ready"`
fn filter(condition: &str, depth: usize) -> Option<Step> {
    let path = |text: &str| parse(text.trim().strip_prefix('@')?, depth);
    let value = |text: &str| match quoted(text.trim()) {
        Some(text) => Some(Value::from(text)),
        None => serde_json::from_str(text.trim()).ok(),
    };
    let step = |path, test| Step::Filter { path, test };
    if let Some((left, right)) = condition.split_once("==") {
        Some(step(path(left)?, Test::Equals(value(right)?)))
    } else if let Some((left, right)) = condition.split_once("!=") {
        Some(step(path(left)?, Test::Differs(value(right)?)))
    } else {
        Some(step(path(condition)?, Test::Exists))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn paths_find_their_values() {
        let object = json!({
            "a": {"b": 1, "c.d": 2, "n": null},
            "list": [{"name": "x", "n": 1}, {"name": "y"}],
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "Other", "status": "False"},
            ],
        });
        for (path, found) in [
            (".a.b", json!([1])),
            ("$.a.b", json!([1])),
            ("{.a.b}", json!([1])),
            (".a['b']", json!([1])),
            (".a['c.d']", json!([2])),
            (".a.c\\.d", json!([2])),
            (".a.none", json!([])),
            (".a.n", json!([])),
            (".a.b.c", json!([])),
            (".list[0].name", json!(["x"])),
            (".list[-1].name", json!(["y"])),
            (".list[2].name", json!([])),
            (".list[-3].name", json!([])),
            (".list[*].name", json!(["x", "y"])),
            (".list[?(@.n)].name", json!(["x"])),
            (".list[?(@.n==1)].name", json!(["x"])),
            (".conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".conditions[?(@.type == 'Ready')].status", json!(["True"])),
            (".conditions[?(@.type!='Ready')].status", json!(["False"])),
            ("..b", json!([])),
            (".list[0:1]", json!([])),
            (".list[", json!([])),
            ("a.b", json!([])),
        ] {
            assert_eq!(json!(find(path, &object)), found, "{path}");
        }
    }

    proptest! {
        #[test]
        fn random_paths_do_not_panic(path in "(\\.|a|b|\\[|\\]|\\*|\\?\\(|@|\\)|==|!=|'|\"|-|0|1|\\\\|é|\\{|\\}|\\$){0,16}") {
            find(&path, &json!({"a": [{"b": 1}, {"a": "é"}]}));
        }
    }
}
