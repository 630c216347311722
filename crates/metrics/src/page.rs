//! Writes the Prometheus text format.

use crate::Kind;
use std::fmt::Write;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Label names are constants; values can be any text and are escaped.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// Writes the header of a metric, once before its samples.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        if !help.is_empty() {
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(self.0, "# HELP {name} {help}");
        }
        let _ = writeln!(self.0, "# TYPE {name} {}", kind.word());
    }

    /// `at` is in milliseconds since 1970, for values that were measured earlier.
    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64, at: Option<i64>) {
        let at = at.map_or(String::new(), |at| format!(" {at}"));
        let _ = writeln!(self.0, "{name}{} {value}{at}", braced(&text_of(labels)));
    }

    pub(crate) fn value(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.0, "{name}{} {value}", braced(labels));
    }

    /// `counts` has one more element than `bounds`, for values above all bounds.
    pub(crate) fn buckets(
        &mut self,
        name: &str,
        labels: &str,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut total = 0;
        for (place, count) in counts.iter().enumerate() {
            total += count;
            let bound = bounds.get(place).map_or("+Inf".to_owned(), f64::to_string);
            let _ = writeln!(self.0, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}");
        }
        let _ = writeln!(self.0, "{name}_sum{} {sum}", braced(labels));
        let _ = writeln!(self.0, "{name}_count{} {total}", braced(labels));
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

fn braced(labels: &str) -> String {
    match labels {
        "" => String::new(),
        labels => format!("{{{labels}}}"),
    }
}

/// `a="x",b="y"`
pub fn text_of(labels: Labels<'_>) -> String {
    let mut text = String::new();
    for (name, value) in labels {
        let comma = if text.is_empty() { "" } else { "," };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{comma}{name}=\"{value}\"");
    }
    text
}
