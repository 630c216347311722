//! Parses the Prometheus text format strictly: what this accepts, Prometheus accepts.
//!
//! Tests check the output of landfall with it, and the server scrapes its nodes with it.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq)]
pub struct ParsedSample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
    /// When it was measured, in milliseconds since 1970, if the sample has a time.
    pub at: Option<i64>,
}

/// Returns all samples in order, or the error of the first invalid line.
pub fn parse(text: &str) -> Result<Vec<ParsedSample>, String> {
    let mut parser = Parser::default();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line has no newline".into());
    }
    for (number, line) in text.lines().enumerate() {
        parser.line(line).map_err(|why| format!("line {}: {why}: {line}", number + 1))?;
    }
    parser.check_histograms()?;
    Ok(parser.samples)
}

#[derive(Default)]
struct Parser {
    samples: Vec<ParsedSample>,
    /// Kinds by name.
    kinds: BTreeMap<String, String>,
    /// Names with a HELP line.
    helped: BTreeSet<String>,
    /// Names whose group of lines has ended; all lines of a name must be adjacent.
    ended: BTreeSet<String>,
    current: String,
    /// Names with labels of all samples so far.
    seen: BTreeSet<String>,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.trim() != line {
            return Err("leading or trailing spaces".into());
        }
        match line.strip_prefix("# ") {
            Some(rest) => match rest.split_once(' ') {
                Some(("HELP", rest)) => self.help(rest),
                Some(("TYPE", rest)) => self.kind(rest),
                _ => Ok(()),
            },
            None if line.is_empty() => Ok(()),
            None => self.sample(line),
        }
    }

    fn help(&mut self, rest: &str) -> Result<(), String> {
        let (name, text) = rest.split_once(' ').ok_or("no help text")?;
        self.enter(name)?;
        if text.is_empty() {
            return Err("no help text".into());
        }
        self.helped.insert(name.to_owned()).then_some(()).ok_or("a second HELP".into())
    }

    fn kind(&mut self, rest: &str) -> Result<(), String> {
        let (name, kind) = rest.split_once(' ').ok_or("no type")?;
        self.enter(name)?;
        if !["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind) {
            return Err("unknown type".into());
        }
        let before = self.kinds.insert(name.to_owned(), kind.to_owned());
        before.is_none().then_some(()).ok_or("a second TYPE".into())
    }

    /// The following lines are about `name`.
    fn enter(&mut self, name: &str) -> Result<(), String> {
        is_name(name, true)?;
        if self.current != name {
            self.ended.insert(std::mem::replace(&mut self.current, name.to_owned()));
        }
        (!self.ended.contains(name)).then_some(()).ok_or("lines of one name not adjacent".into())
    }

    fn sample(&mut self, line: &str) -> Result<(), String> {
        let end = line.find(['{', ' ']).ok_or("no value")?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => read_labels(rest)?,
            None => (BTreeMap::new(), rest),
        };
        let mut words = rest.split(' ').filter(|word| !word.is_empty());
        let value = match words.next().ok_or("no value")? {
            "+Inf" => f64::INFINITY,
            word => word.parse().map_err(|_| "not a number")?,
        };
        let at = words.next().map(str::parse::<i64>).transpose().map_err(|_| "not a time")?;
        let family = self.family(name);
        self.enter(&family)?;
        if !self.kinds.contains_key(&family) {
            return Err("no TYPE".into());
        }
        if !self.seen.insert(format!("{name}{labels:?}")) {
            return Err("duplicate sample".into());
        }
        if self.kinds[&family] == "counter" && value < 0.0 {
            return Err("a counter below zero".into());
        }
        self.samples.push(ParsedSample { name: name.to_owned(), labels, value, at });
        Ok(())
    }

    /// `x_bucket`, `x_sum` and `x_count` belong to a histogram `x`.
    fn family(&self, name: &str) -> String {
        for part in ["_bucket", "_sum", "_count"] {
            if let Some(family) = name.strip_suffix(part)
                && self.kinds.get(family).is_some_and(|kind| kind == "histogram")
            {
                return family.to_owned();
            }
        }
        name.to_owned()
    }

    /// Buckets must not decrease, and the last one has all values.
    fn check_histograms(&self) -> Result<(), String> {
        let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in &self.samples {
            let Some(family) = sample.name.strip_suffix("_bucket") else { continue };
            let mut labels = sample.labels.clone();
            let bound = labels.remove("le").ok_or_else(|| format!("{family}: no bound"))?;
            let bound = if bound == "+Inf" { Ok(f64::INFINITY) } else { bound.parse() };
            let bound = bound.map_err(|_| format!("{family}: no bound"))?;
            buckets.entry(format!("{family}{labels:?}")).or_default().push((bound, sample.value));
        }
        for (name, buckets) in &buckets {
            if !buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1) {
                return Err(format!("{name}: buckets decrease"));
            }
            let last = buckets.last().filter(|(bound, _)| bound.is_infinite());
            let (_, all) = last.ok_or_else(|| format!("{name}: no +Inf bucket"))?;
            let count = self.samples.iter().find(|sample| {
                let family = sample.name.strip_suffix("_count");
                family.is_some_and(|family| *name == format!("{family}{:?}", sample.labels))
            });
            if count.is_none_or(|count| count.value != *all) {
                return Err(format!("{name}: the count differs from the +Inf bucket"));
            }
        }
        Ok(())
    }
}

/// The labels, and the rest of the line.
fn read_labels(text: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return Ok((labels, behind));
        }
        let (name, quoted) = rest.split_once("=\"").ok_or("a label without value")?;
        is_name(name, false)?;
        let mut value = String::new();
        let mut letters = quoted.char_indices();
        let end = loop {
            match letters.next().ok_or("a label without end")? {
                (at, '"') => break at,
                (_, '\\') => match letters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, letter @ ('"' | '\\'))) => value.push(letter),
                    _ => return Err("unknown escape sequence".into()),
                },
                (_, letter) => value.push(letter),
            }
        };
        if labels.insert(name.to_owned(), value).is_some() {
            return Err(format!("duplicate label {name}"));
        }
        rest = &quoted[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

fn is_name(name: &str, colons: bool) -> Result<(), String> {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_' || (colons && c == ':');
    let valid = name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit());
    valid.then_some(()).ok_or_else(|| format!("{name:?} is not a valid name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N-182, A-57: rejects what Debian's promtool rejects.
    #[test]
    fn n_182_text_that_a_scraper_rejects_is_rejected() {
        for (text, wrong) in [
            ("# TYPE a counter\na 1\n", None),
            ("# HELP a x\n# TYPE a gauge\na{b=\"c\\\"d\",e=\"\"} 1.5e3 1700000000000\n", None),
            (
                "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n",
                None,
            ),
            ("a 1\n", Some("no TYPE")),
            ("# TYPE a counter\na 1", Some("no newline")),
            ("# TYPE a counter\na 1\na 1\n", Some("duplicate sample")),
            ("# TYPE a counter\na{x=\"1\"} 1\na{x=\"1\"} 2\n", Some("duplicate sample")),
            ("# TYPE a counter\na 1\n# TYPE a counter\n", Some("second TYPE")),
            ("# TYPE a counter\na 1\n# TYPE b gauge\nb 1\na 2\n", Some("not adjacent")),
            ("# TYPE a counter\na one\n", Some("not a number")),
            ("# TYPE a counter\na -1\n", Some("below zero")),
            ("# TYPE a-b counter\n", Some("not a valid name")),
            ("# TYPE a counter\na{1=\"x\"} 1\n", Some("not a valid name")),
            ("# TYPE a counter\na{x=\"y} 1\n", Some("without end")),
            (
                "# TYPE h histogram\nh_bucket{le=\"1\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n",
                Some("buckets decrease"),
            ),
            (
                "# TYPE h histogram\nh_bucket{le=\"1\"} 3\nh_sum 3\nh_count 3\n",
                Some("no +Inf bucket"),
            ),
            (
                "# TYPE h histogram\nh_bucket{le=\"+Inf\"} 3\nh_sum 3\nh_count 2\n",
                Some("the count differs"),
            ),
        ] {
            match (parse(text), wrong) {
                (Ok(_), None) => {}
                (Err(error), Some(wrong)) if error.contains(wrong) => {}
                (result, _) => panic!("{text}{result:?}"),
            }
        }
    }
}
