//! Environment files that one container writes and later ones read (fileKeyRef, N-54).
//!
//! Entries are `NAME='literal'`. A value may span lines; `#` starts a comment.

/// Limit of a file.
pub(crate) const FILE_MAX: u64 = 64 * 1024;

/// The value of `key`; the last entry counts. An error means that the file is malformed.
pub(crate) fn value(text: &str, key: &str) -> Result<Option<String>, String> {
    let mut found = None;
    let mut rest = text;
    let mut line = 1;
    loop {
        let trimmed = rest.trim_start();
        line += newlines(&rest[..rest.len() - trimmed.len()]);
        rest = trimmed;
        if rest.is_empty() {
            return Ok(found);
        }
        if rest.starts_with('#') {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
            continue;
        }
        let (name, literal, beyond) = assignment(rest)
            .ok_or_else(|| format!("line {line} is not of the form NAME='value'"))?;
        if name == key {
            found = Some(literal.to_owned());
        }
        line += newlines(literal);
        rest = beyond;
    }
}

fn newlines(text: &str) -> usize {
    text.matches('\n').count()
}

/// Name, value, and the rest of the text after the entry's last line.
fn assignment(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = text.split_once("='")?;
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '\'' || c == '#') {
        return None;
    }
    let (literal, beyond) = rest.split_once('\'')?;
    let (tail, beyond) = beyond.split_at(beyond.find('\n').unwrap_or(beyond.len()));
    let tail = tail.trim();
    (tail.is_empty() || tail.starts_with('#')).then_some((name, literal, beyond))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_54_values_are_quoted_and_may_span_lines() {
        let text =
            "# first\n\nA='one'\n  B='two\nlines # not a comment' # comment\nA='again'\nC=''\n";
        assert_eq!(value(text, "A"), Ok(Some("again".into())));
        assert_eq!(value(text, "B"), Ok(Some("two\nlines # not a comment".into())));
        assert_eq!(value(text, "C"), Ok(Some(String::new())));
        assert_eq!(value(text, "D"), Ok(None));
        assert_eq!(value("", "D"), Ok(None));
        assert_eq!(value("# only a comment", "D"), Ok(None));
    }

    #[test]
    fn n_54_a_malformed_line_is_an_error_with_its_number() {
        for text in
            ["A=one", "A=\"one\"", "A 'one'", "='one'", "A='one' B='two'", "A='open", "A ='x'"]
        {
            let text = format!("X='1\n2'\n{text}");
            assert_eq!(
                value(&text, "A"),
                Err("line 3 is not of the form NAME='value'".into()),
                "{text}"
            );
        }
    }
}
