//! What a simulated container does. The script is written into the container's arguments, so that it survives
//! restarts of the agent and can be read in the trace.
//!
//!     args: ["start=500", "term=ignore", "run=9000:1"]        hook: ["hook", "2000", "0"]

use std::time::Duration;

/// Arguments contain times in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Script {
    /// How long it takes to start.
    pub(crate) start: Duration,
    /// What a stop signal does to it.
    pub(crate) term: OnTerm,
    /// It exits without a signal after this time, with this code.
    pub(crate) run: Option<(Duration, i32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnTerm {
    Exit { after: Duration, code: i32 },
    Ignore,
}

impl Default for Script {
    fn default() -> Script {
        let term = OnTerm::Exit { after: Duration::ZERO, code: 0 };
        Script { start: Duration::ZERO, term, run: None }
    }
}

impl Script {
    pub(crate) fn args(&self) -> Vec<String> {
        let mut args = vec![format!("start={}", self.start.as_millis())];
        args.push(match self.term {
            OnTerm::Exit { after, code } => format!("term={}:{code}", after.as_millis()),
            OnTerm::Ignore => "term=ignore".to_owned(),
        });
        args.extend(self.run.map(|(after, code)| format!("run={}:{code}", after.as_millis())));
        args
    }

    /// Ignores unknown arguments.
    pub(crate) fn read(args: &[String]) -> Script {
        let mut script = Script::default();
        for (name, value) in args.iter().filter_map(|arg| arg.split_once('=')) {
            match name {
                "start" => script.start = millis(value),
                "term" if value == "ignore" => script.term = OnTerm::Ignore,
                "term" => {
                    let (after, code) = timed(value);
                    script.term = OnTerm::Exit { after, code };
                }
                "run" => script.run = Some(timed(value)),
                _ => {}
            }
        }
        script
    }
}

/// What a hook's command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hook {
    /// None: it hangs.
    pub(crate) takes: Option<Duration>,
    pub(crate) code: i32,
}

impl Hook {
    pub(crate) fn command(&self) -> Vec<String> {
        let takes = self.takes.map_or("hang".to_owned(), |takes| takes.as_millis().to_string());
        vec!["hook".to_owned(), takes, self.code.to_string()]
    }

    /// None: the command is not a hook of a script.
    pub(crate) fn read(command: &[String]) -> Option<Hook> {
        match command {
            [word, takes, code] if word == "hook" => Some(Hook {
                takes: (takes != "hang").then(|| millis(takes)),
                code: code.parse().unwrap_or_default(),
            }),
            _ => None,
        }
    }
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap_or_default())
}

/// Reads milliseconds and an exit code, such as `300:1`.
fn timed(text: &str) -> (Duration, i32) {
    let (after, code) = text.split_once(':').unwrap_or((text, "0"));
    (millis(after), code.parse().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_decoded_as_it_was_encoded() {
        let script = Script {
            start: Duration::from_millis(5),
            term: OnTerm::Exit { after: Duration::from_secs(3), code: 143 },
            run: Some((Duration::from_secs(9), 1)),
        };
        assert_eq!(Script::read(&script.args()), script);
        let stubborn = Script { term: OnTerm::Ignore, ..Script::default() };
        assert_eq!(Script::read(&stubborn.args()), stubborn);
        for takes in [None, Some(Duration::from_millis(70))] {
            let hook = Hook { takes, code: 1 };
            assert_eq!(Hook::read(&hook.command()), Some(hook));
        }
        assert_eq!(Hook::read(&["sh".to_owned()]), None);
    }
}
