//! The line that shows how far a drill is. On a terminal it is overwritten; elsewhere only finished runs are printed.

use drill::Progress;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone)]
pub(crate) struct ProgressLine {
    terminal: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    run: usize,
    heading: String,
    /// The last line is to be overwritten.
    open: bool,
}

impl ProgressLine {
    pub(crate) fn new() -> ProgressLine {
        ProgressLine { terminal: std::io::stderr().is_terminal(), state: Arc::default() }
    }

    pub(crate) fn show(&self, event: Progress<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Progress::Installing { setting } => {
                let (hook, grace) = (setting.pre_stop_seconds, setting.grace_seconds);
                state.heading = format!("setting preStop {hook} s, grace {grace} s");
                self.overwrite(&mut state, "");
            }
            Progress::RunStarted { setting, attempt } => {
                state.run += usize::from(attempt == 1);
                let (hook, grace) = (setting.pre_stop_seconds, setting.grace_seconds);
                state.heading = format!("run {}: preStop {hook} s, grace {grace} s", state.run);
                self.overwrite(&mut state, "");
            }
            Progress::Tick { restart, failed, ended, state: waiting } => {
                let text =
                    format!(" | restart {restart} | {ended} requests, {failed} lost | {waiting}");
                self.overwrite(&mut state, &text);
            }
            Progress::RunDone { tally, .. } => {
                let text =
                    format!("{}: {} of {} requests lost", state.heading, tally.failed, tally.total);
                self.line(&mut state, &text);
            }
            Progress::Discarded { why } => {
                let text = format!("{}: discarded, because {why}", state.heading);
                self.line(&mut state, &text);
            }
            Progress::TimeOver => self.line(&mut state, "the time is over"),
            Progress::Restoring => self.line(&mut state, "putting back the original values"),
            Progress::Restored => self.line(&mut state, "the original values are back"),
        }
    }

    /// Removes an unfinished line.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.open {
            eprint!("\r\x1b[K");
            state.open = false;
        }
    }

    fn overwrite(&self, state: &mut State, text: &str) {
        if !self.terminal {
            return;
        }
        state.open = true;
        eprint!("\r\x1b[K{}{text}", state.heading);
        let _ = std::io::stderr().flush();
    }

    fn line(&self, state: &mut State, text: &str) {
        let clear = if state.open { "\r\x1b[K" } else { "" };
        state.open = false;
        eprintln!("{clear}{text}");
    }
}
