//! Timeline steps of one pod on disk: one line of JSON each, after a first line that names the pod.
//!
//! Lines are written at once and synced late. A written line survives a crash of the agent. A power failure
//! matters only once the pod's object is gone: until then the pod is found and terminated again. So a journal
//! is synced ([`Journal::synced`]) before the object is deleted, and only if the API, which keeps what it
//! acknowledges, does not have the steps by then. No signal ever waits for a sync.

use lifecycle::timeline::{STEPS_MAX, Step, Subject};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

const SUFFIX: &str = "steps";
/// Largest journal that is read; larger than any that is written.
const SIZE_MAX: u64 = 4 << 20;

pub(super) struct Journal {
    file: File,
    path: PathBuf,
    lines: usize,
}

#[derive(Serialize, Deserialize)]
struct Head {
    namespace: String,
    pod: Subject,
}

impl Journal {
    /// None if the file cannot be created: the termination goes on without it.
    pub(super) fn begin(directory: &Path, namespace: &str, pod: &Subject) -> Option<Journal> {
        // UIDs come from the API server, which is not trusted with file names.
        if pod.uid.is_empty() || !pod.uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return None;
        }
        let path = directory.join(format!("{}.{SUFFIX}", pod.uid));
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        let mut journal = match opened {
            Ok(file) => Journal { file, path, lines: 0 },
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "creating a timeline journal failed");
                return None;
            }
        };
        journal.line(&Head { namespace: namespace.to_owned(), pod: pod.clone() });
        Some(journal)
    }

    pub(super) fn write(&mut self, step: &Step) {
        if self.lines < STEPS_MAX {
            self.lines += 1;
            self.line(step);
        }
    }

    /// One write per line, so that a killed agent leaves whole lines.
    fn line(&mut self, content: &impl Serialize) {
        let Ok(mut line) = serde_json::to_vec(content) else { return };
        line.push(b'\n');
        if let Err(error) = self.file.write_all(&line) {
            tracing::warn!(%error, path = %self.path.display(), "writing to a timeline journal failed");
        }
    }

    /// Returns a function that makes the lines so far survive a power failure. It can run without the journal.
    pub(super) fn synced(&self) -> std::io::Result<impl FnOnce() -> std::io::Result<()> + use<>> {
        let (file, path) = (self.file.try_clone()?, self.path.clone());
        Ok(move || {
            file.sync_data()?;
            // The file's name is in the directory, which needs a sync of its own.
            path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
        })
    }

    pub(super) fn remove(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "removing a timeline journal failed");
        }
    }

    /// Journals that earlier agents left, by UID.
    pub(super) fn left_in(directory: &Path) -> Vec<(Journal, String, Subject, Vec<Step>)> {
        let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut paths: Vec<PathBuf> =
            paths.filter(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX)).collect();
        paths.sort();
        paths.into_iter().filter_map(Journal::read).collect()
    }

    fn read(path: PathBuf) -> Option<(Journal, String, Subject, Vec<Step>)> {
        let file = OpenOptions::new().read(true).append(true).open(&path).ok()?;
        let mut lines = BufReader::new((&file).take(SIZE_MAX)).lines().map_while(Result::ok);
        let head = lines.next().and_then(|line| serde_json::from_str::<Head>(&line).ok());
        let steps: Vec<Step> =
            lines.filter_map(|line| serde_json::from_str(&line).ok()).take(STEPS_MAX).collect();
        let journal = Journal { file, path, lines: steps.len() };
        match head {
            Some(head) => Some((journal, head.namespace, head.pod, steps)),
            None => {
                journal.remove();
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifecycle::timeline::{Stamp, StepKind};

    fn subject(uid: &str) -> Subject {
        Subject { name: "web".into(), uid: uid.into(), node: "n1".into(), owner: String::new() }
    }

    fn step(sequence: i64) -> Step {
        let at = Stamp { at: jiff::Timestamp::UNIX_EPOCH, monotonic: 1 };
        Step {
            at: at.at,
            monotonic: at.monotonic,
            actor: "node/n1".into(),
            incarnation: "a".into(),
            sequence,
            container: String::new(),
            what: StepKind::SandboxStopped,
            message: String::new(),
        }
    }

    #[test]
    fn the_next_agent_reads_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(dir.path(), "default", &subject("u-1")).unwrap();
        journal.write(&step(0));
        journal.write(&step(1));
        drop(journal);
        let mut left = Journal::left_in(dir.path());
        let (mut journal, namespace, pod, steps) = left.remove(0);
        assert_eq!((namespace.as_str(), pod), ("default", subject("u-1")));
        assert_eq!(steps, [step(0), step(1)]);
        journal.write(&step(2));
        journal.synced().unwrap()().unwrap();
        assert_eq!(Journal::left_in(dir.path())[0].3.len(), 3, "it continues the same file");
        journal.remove();
        assert!(Journal::left_in(dir.path()).is_empty());
    }

    #[test]
    fn a_damaged_line_is_skipped_and_a_damaged_journal_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(dir.path(), "default", &subject("u-1")).unwrap();
        journal.write(&step(0));
        journal.file.write_all(b"{\"at\":\"20").unwrap();
        std::fs::write(dir.path().join("u-2.steps"), "garbage").unwrap();
        let left = Journal::left_in(dir.path());
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].3, [step(0)]);
        assert!(!dir.path().join("u-2.steps").exists());
    }

    #[test]
    fn a_uid_with_path_characters_gets_no_journal() {
        let dir = tempfile::tempdir().unwrap();
        for uid in ["", "../x", "a/b", "."] {
            assert!(Journal::begin(dir.path(), "default", &subject(uid)).is_none(), "{uid}");
        }
    }
}
