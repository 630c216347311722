//! A container's log file in the CRI format (N-158): `<time> stdout|stderr F|P <content>`.
//!
//! Lines longer than 16 KiB are written in pieces (`P`); the last piece of a line is `F`. Writing
//! never fails the container: when the disk is full, output is lost as it would be upstream.

use jiff::Timestamp;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Where runtimes cut long lines (N-158).
const PIECE: usize = 16 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Source::Stdout => "stdout",
            Source::Stderr => "stderr",
        }
    }
}

/// Cuts one stream into records. Holds at most one piece.
#[derive(Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Appends the records that `input` completes to `records`.
    pub(crate) fn take(
        &mut self,
        at: Timestamp,
        source: Source,
        mut input: &[u8],
        records: &mut Vec<u8>,
    ) {
        while !input.is_empty() {
            let room = PIECE - self.begun.len();
            match input.iter().take(room + 1).position(|byte| *byte == b'\n') {
                Some(end) => {
                    self.record(at, source, "F", &input[..end], records);
                    input = &input[end + 1..];
                }
                None if input.len() > room => {
                    self.record(at, source, "P", &input[..room], records);
                    input = &input[room..];
                }
                None => {
                    self.begun.extend_from_slice(input);
                    return;
                }
            }
        }
    }

    /// The stream has ended: what is left is a line without its newline.
    pub(crate) fn finish(&mut self, at: Timestamp, source: Source, records: &mut Vec<u8>) {
        if !self.begun.is_empty() {
            self.record(at, source, "F", &[], records);
        }
        self.begun = Vec::new();
    }

    fn record(
        &mut self,
        at: Timestamp,
        source: Source,
        tag: &str,
        rest: &[u8],
        records: &mut Vec<u8>,
    ) {
        // Writing to memory cannot fail.
        let _ = write!(records, "{at:.9} {} {tag} ", source.name());
        records.extend_from_slice(&self.begun);
        records.extend_from_slice(rest);
        records.push(b'\n');
        self.begun.clear();
    }
}

pub(crate) struct Log {
    path: PathBuf,
    file: Option<File>,
}

impl Log {
    /// Opens the file to append, making its directory if need be.
    pub(crate) fn open(path: PathBuf) -> io::Result<Log> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let mut log = Log { path, file: None };
        log.reopen()?;
        Ok(log)
    }

    /// The file was renamed: go on in a new one of the old name (N-159).
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        let file = File::options().create(true).append(true).mode(0o640).open(&self.path)?;
        self.file = Some(file);
        Ok(())
    }

    pub(crate) fn write(&mut self, records: &[u8]) {
        if let Some(file) = &mut self.file {
            let _ = file.write_all(records);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(chunks: &[&[u8]]) -> Vec<(String, usize)> {
        let at = Timestamp::new(1_767_323_045, 120).unwrap();
        let (mut lines, mut records) = (Lines::default(), Vec::new());
        for chunk in chunks {
            lines.take(at, Source::Stdout, chunk, &mut records);
        }
        lines.finish(at, Source::Stdout, &mut records);
        let text = String::from_utf8(records).unwrap();
        text.lines()
            .map(|line| {
                let rest = line.strip_prefix("2026-01-02T03:04:05.000000120Z stdout ").unwrap();
                (rest[..1].to_owned(), rest.len() - 2)
            })
            .collect()
    }

    fn row(tag: &str, length: usize) -> (String, usize) {
        (tag.to_owned(), length)
    }

    /// N-158: a table of how a stream becomes records.
    #[test]
    fn n_158_lines_become_records_and_long_ones_pieces() {
        assert_eq!(records(&[b"one\ntwo\n"]), [row("F", 3), row("F", 3)]);
        assert_eq!(records(&[b"on", b"e\n"]), [row("F", 3)]);
        assert_eq!(records(&[b"no newline"]), [row("F", 10)]);
        assert_eq!(records(&[b"\n\n"]), [row("F", 0), row("F", 0)]);
        let long = vec![b'x'; PIECE + 10];
        assert_eq!(records(&[&long, b"\n"]), [row("P", PIECE), row("F", 10)]);
        assert_eq!(records(&[&long]), [row("P", PIECE), row("F", 10)]);
        let exact = vec![b'x'; PIECE];
        assert_eq!(records(&[&exact, b"\n"]), [row("F", PIECE)]);
        assert_eq!(records(&[&exact]), [row("F", PIECE)]);
        assert_eq!(records(&[&long, &long]), [row("P", PIECE), row("P", PIECE), row("F", 20)]);
    }
}
