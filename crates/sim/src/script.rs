//! What a simulated container does. The script is written into the container's arguments, so that it survives
//! restarts of the agent and can be read in the trace.
//!
//!     args: ["start=500", "term=ignore", "run=9000:1", "listen=8080:300:exit"]        hook: ["hook", "2000", "0"]

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
    /// It accepts requests.
    pub(crate) listen: Option<Listen>,
}

/// How a container accepts requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listen {
    pub(crate) port: u16,
    /// How long after its start it begins to listen.
    pub(crate) after: Duration,
    /// False: it stops listening at its stop signal, like a server that does not drain.
    pub(crate) until_exit: bool,
}

/// The command of a probe that succeeds while its container listens.
pub(crate) const IS_LISTENING: &str = "is-listening";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnTerm {
    Exit { after: Duration, code: i32 },
    Ignore,
}

impl Default for Script {
    fn default() -> Script {
        let term = OnTerm::Exit { after: Duration::ZERO, code: 0 };
        Script { start: Duration::ZERO, term, run: None, listen: None }
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
        args.extend(self.listen.map(|listen| {
            let until = if listen.until_exit { "exit" } else { "term" };
            format!("listen={}:{}:{until}", listen.port, listen.after.as_millis())
        }));
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
                "listen" => script.listen = Listen::read(value),
                _ => {}
            }
        }
        script
    }
}

impl Listen {
    /// Reads a port, milliseconds and an end, such as `8080:300:exit`.
    fn read(text: &str) -> Option<Listen> {
        let (port, rest) = text.split_once(':')?;
        let (after, until) = rest.split_once(':')?;
        let port = port.parse().ok()?;
        Some(Listen { port, after: millis(after), until_exit: until == "exit" })
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
            listen: None,
        };
        assert_eq!(Script::read(&script.args()), script);
        for until_exit in [true, false] {
            let listen = Listen { port: 8080, after: Duration::from_millis(300), until_exit };
            let server = Script { listen: Some(listen), ..Script::default() };
            assert_eq!(Script::read(&server.args()), server);
        }
        let stubborn = Script { term: OnTerm::Ignore, ..Script::default() };
        assert_eq!(Script::read(&stubborn.args()), stubborn);
        for takes in [None, Some(Duration::from_millis(70))] {
            let hook = Hook { takes, code: 1 };
            assert_eq!(Hook::read(&hook.command()), Some(hook));
        }
        assert_eq!(Hook::read(&["sh".to_owned()]), None);
    }
}
