//! Records of a log file, and how they are rendered (N-158, N-162).

use super::Query;
use jiff::Timestamp;

/// `<time> <stream> <tags> <content>`
#[derive(Debug, PartialEq, Eq)]
struct Record<'a> {
    at: Timestamp,
    /// Part of a longer line: no newline follows.
    partial: bool,
    /// With its newline, unless the record is partial or the file ends without one.
    content: &'a [u8],
}

impl<'a> Record<'a> {
    /// `line` includes the newline. None if it is not a record.
    fn parse(line: &'a [u8]) -> Option<Record<'a>> {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let at = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        if !matches!(parts.next()?, b"stdout" | b"stderr") {
            return None;
        }
        let tags = parts.next()?;
        let content = parts.next()?;
        // Further tags may follow after colons.
        let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
        let content = match content.strip_suffix(b"\n") {
            Some(without_newline) if partial => without_newline,
            _ => content,
        };
        Some(Record { at, partial, content })
    }
}

/// Turns records into output as the query asks for, up to its limit.
pub(super) struct Renderer {
    since: Option<Timestamp>,
    timestamps: bool,
    left: u64,
    at_line_start: bool,
}

impl Renderer {
    pub(super) fn new(query: &Query) -> Self {
        Renderer {
            since: query.since,
            timestamps: query.timestamps,
            left: query.limit_bytes.unwrap_or(u64::MAX),
            at_line_start: true,
        }
    }

    /// The limit is reached.
    pub(super) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Appends the output of one record. Skips lines that are not records.
    pub(super) fn render(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some(record) = Record::parse(line) else { return };
        if self.since.is_some_and(|since| record.at < since) {
            return;
        }
        let from = out.len();
        if self.timestamps && self.at_line_start {
            out.extend_from_slice(time_stamp(record.at).as_bytes());
        }
        out.extend_from_slice(record.content);
        self.at_line_start = !record.partial && record.content.ends_with(b"\n");
        let written = (out.len() - from) as u64;
        if written > self.left {
            out.truncate(from + self.left as usize);
        }
        self.left -= written.min(self.left);
    }
}

/// A time stamp with exactly nine fractional digits, and a space.
fn time_stamp(at: Timestamp) -> String {
    let second = at.strftime("%Y-%m-%dT%H:%M:%S");
    format!("{second}.{:09}Z ", at.subsec_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(query: &Query, lines: &[&str]) -> String {
        let mut out = Vec::new();
        let mut renderer = Renderer::new(query);
        for line in lines {
            renderer.render(line.as_bytes(), &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    const LINES: &[&str] = &[
        "2026-01-02T03:04:05.000000123Z stdout P half \n",
        "2026-01-02T03:04:05.2Z stdout P:later:tags and \n",
        "2026-01-02T03:04:06Z stdout F whole\n",
        "nonsense\n",
        "2026-01-02T03:04:07Z stderr F \n",
        "2026-01-02T03:04:08+00:00 stderr F end",
    ];

    #[test]
    fn n_158_partial_records_are_joined_and_streams_keep_their_order() {
        assert_eq!(render(&Query::default(), LINES), "half and whole\n\nend");
    }

    #[test]
    fn n_162_timestamps_have_nine_digits_and_come_once_per_line() {
        let query = Query { timestamps: true, ..Query::default() };
        assert_eq!(
            render(&query, LINES),
            "2026-01-02T03:04:05.000000123Z half and whole\n\
             2026-01-02T03:04:07.000000000Z \n\
             2026-01-02T03:04:08.000000000Z end"
        );
    }

    #[test]
    fn n_162_since_drops_older_records() {
        let query = Query { since: "2026-01-02T03:04:06Z".parse().ok(), ..Query::default() };
        assert_eq!(render(&query, LINES), "whole\n\nend");
    }

    #[test]
    fn n_162_limit_bytes_cuts_exactly_and_counts_the_timestamp() {
        let query = Query { limit_bytes: Some(33), timestamps: true, ..Query::default() };
        assert_eq!(render(&query, LINES), "2026-01-02T03:04:05.000000123Z ha");
        let query = Query { limit_bytes: Some(6), ..Query::default() };
        assert_eq!(render(&query, LINES), "half a");
    }
}
