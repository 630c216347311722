//! A container's log file in the CRI format (N-158): `<time> stdout|stderr F|P <content>`.
//!
//! Lines longer than 16 KiB are split into records with the tag `P`. The last record of a line has the tag `F`,
//! which stands for the newline. A last line without a newline has the tag `P`, so that readers get exactly the
//! bytes that the container wrote. If a write fails, for example because the disk is full, the output is lost,
//! as it is upstream.

use super::rotation::Rotation;
use crate::LogLimits;
use jiff::Timestamp;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// N-158: longer lines are split.
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

/// Splits one stream into records. Buffers at most `PIECE` bytes.
#[derive(Default)]
pub(crate) struct Lines {
    unfinished: Vec<u8>,
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
            let room = PIECE - self.unfinished.len();
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
                    self.unfinished.extend_from_slice(input);
                    return;
                }
            }
        }
    }

    /// At the end of the stream: writes a last line without newline.
    pub(crate) fn finish(&mut self, at: Timestamp, source: Source, records: &mut Vec<u8>) {
        if !self.unfinished.is_empty() {
            self.record(at, source, "P", &[], records);
        }
        self.unfinished = Vec::new();
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
        records.extend_from_slice(&self.unfinished);
        records.extend_from_slice(rest);
        records.push(b'\n');
        self.unfinished.clear();
    }
}

pub(crate) struct Log {
    path: PathBuf,
    file: Option<File>,
    rotation: Rotation,
}

impl Log {
    /// Opens the file for appending. Creates its directory if needed.
    pub(crate) fn open(path: PathBuf, limits: LogLimits) -> io::Result<Log> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let mut log = Log { path, file: None, rotation: Rotation::new(limits) };
        log.reopen()?;
        Ok(log)
    }

    /// After a rename of the file: continues in a new file with the old name (N-159).
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        let file = File::options().create(true).append(true).mode(0o640).open(&self.path)?;
        self.rotation.start_file(file.metadata()?.len());
        self.file = Some(file);
        Ok(())
    }

    /// Creates the new file right after renaming the old one: a client may open the log at any time.
    fn rotate(&mut self) -> io::Result<()> {
        Rotation::rename(&self.path, clock::now())?;
        self.reopen()?;
        self.rotation.remove_oldest(&self.path)
    }

    /// Writes complete records, so that no record is split between two files.
    pub(crate) fn write(&mut self, records: &[u8]) {
        if self.rotation.is_due(records.len()) {
            // If rotation fails, a log that is too long is better than none.
            let _ = self.rotate();
        }
        self.rotation.add(records.len());
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

    /// N-159: the number and size of log files stay within the limits even if a container writes fast, and no
    /// record is lost.
    #[test]
    fn n_159_a_log_is_rotated_while_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c/0.log");
        let limits = LogLimits { max_bytes: 1000, max_files: 3 };
        let mut log = Log::open(path.clone(), limits).unwrap();
        let record = |number: usize| format!("{number:099}\n");
        for number in 0..95 {
            log.write(record(number).as_bytes());
        }
        let files = || {
            let entries = std::fs::read_dir(dir.path().join("c")).unwrap();
            let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
            files.sort();
            files.rotate_left(1); // The current file last.
            files
        };
        let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
        let texts: Vec<String> = files().iter().map(read).collect();
        assert_eq!(texts.iter().map(String::len).collect::<Vec<_>>(), [1000, 1000, 500]);
        assert_eq!(texts.concat(), (70..95).map(record).collect::<String>());

        // The agent rotates too: it renames the file, then asks for a reopen.
        std::fs::rename(&path, dir.path().join("c/0.log.99999999-000000")).unwrap();
        log.reopen().unwrap();
        for number in 0..11 {
            log.write(record(number).as_bytes());
        }
        assert_eq!(files().len(), 3);
        assert_eq!(read(&path), record(10), "the new file starts empty");

        // The size of an existing file counts.
        let mut again = Log::open(path.clone(), limits).unwrap();
        (0..10).for_each(|number| again.write(record(number).as_bytes()));
        assert_eq!(read(&path), record(9));
    }

    fn row(tag: &str, length: usize) -> (String, usize) {
        (tag.to_owned(), length)
    }

    /// N-158: a table of how a stream becomes records.
    #[test]
    fn n_158_lines_become_records_and_long_lines_are_split() {
        assert_eq!(records(&[b"one\ntwo\n"]), [row("F", 3), row("F", 3)]);
        assert_eq!(records(&[b"on", b"e\n"]), [row("F", 3)]);
        assert_eq!(records(&[b"no newline"]), [row("P", 10)]);
        assert_eq!(records(&[b"one\nno newline"]), [row("F", 3), row("P", 10)]);
        assert_eq!(records(&[b"\n\n"]), [row("F", 0), row("F", 0)]);
        let long = vec![b'x'; PIECE + 10];
        assert_eq!(records(&[&long, b"\n"]), [row("P", PIECE), row("F", 10)]);
        assert_eq!(records(&[&long]), [row("P", PIECE), row("P", 10)]);
        let exact = vec![b'x'; PIECE];
        assert_eq!(records(&[&exact, b"\n"]), [row("F", PIECE)]);
        assert_eq!(records(&[&exact]), [row("P", PIECE)]);
        assert_eq!(records(&[&long, &long]), [row("P", PIECE), row("P", PIECE), row("P", 20)]);
    }
}
