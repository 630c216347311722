//! The report for CI systems: one test case, which fails if the target is missed.

use super::{percent, text, verdict};
use crate::drill::Drilled;
use std::fmt::Write;

pub fn junit(drilled: &Drilled) -> String {
    let failed = !drilled.reached();
    let time: f64 = drilled.runs.iter().map(|run| run.length).sum();
    let suite = format!("landfall drill {}", drilled.target.workload.id);
    let case =
        format!("{} of requests are answered during restarts", percent(drilled.options.target));
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        out,
        "<testsuites>\n  <testsuite name=\"{}\" tests=\"1\" failures=\"{}\" errors=\"0\" skipped=\"0\" time=\"{time:.3}\">",
        escape(&suite),
        u8::from(failed)
    );
    let _ = writeln!(
        out,
        "    <testcase name=\"{}\" classname=\"{}\" time=\"{time:.3}\">",
        escape(&case),
        escape(&drilled.target.workload.id.to_string())
    );
    if failed {
        let _ = writeln!(
            out,
            "      <failure message=\"{}\">{}</failure>",
            escape(&verdict(drilled)),
            escape(&text(drilled))
        );
    }
    let _ = writeln!(out, "      <system-out>{}</system-out>", escape(&text(drilled)));
    out.push_str("    </testcase>\n  </testsuite>\n</testsuites>\n");
    out
}

/// Escapes text for XML and HTML, in elements and attributes. Characters that XML cannot have are replaced.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
