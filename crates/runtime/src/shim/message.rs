//! The protocol between the agent and a shim, over the shim's socket.
//!
//! A message consists of its length (four bytes, little endian) and JSON. File descriptors are sent together
//! with the first byte of their message. After an attach request the connection carries frames instead.
//!
//! A new agent talks to shims that an older version has started, so names on the wire must not change.

use crate::{Exit, LogLimits};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A longer message is an error: the peer is not a landfall process.
pub(crate) const MESSAGE_MAX: usize = 4 << 20;

/// Size of the length in front of a message.
const LENGTH: usize = 4;

/// A request to the shim. The answer has the same id.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) id: u64,
    #[serde(rename = "ask")]
    pub(crate) kind: RequestKind,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RequestKind {
    /// List the running containers. Answered with [`Reply::Containers`].
    State,
    /// Start a container whose files are prepared.
    Start {
        container: String,
    },
    /// Send a signal to process 1 of a container.
    Signal {
        container: String,
        signal: i32,
    },
    /// Run another process in a container. With a terminal, the request carries one descriptor: a socket on
    /// which the shim sends back the terminal's master. Otherwise it carries stdin, stdout and stderr.
    Exec {
        exec: u64,
        container: String,
        command: Vec<String>,
        terminal: bool,
    },
    /// Send a signal to the process group of an exec.
    SignalExec {
        exec: u64,
        signal: i32,
    },
    Resize {
        container: String,
        width: u16,
        height: u16,
    },
    /// Write to a new log file of the same name.
    Reopen {
        container: String,
    },
    /// From now on this connection carries frames.
    Attach {
        container: String,
        stdin: bool,
        stdout: bool,
        stderr: bool,
    },
    /// Drop the state of a container that has exited.
    Forget {
        container: String,
    },
    /// Exit. The caller has killed all containers.
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ShimEvent {
    /// Sent once, to the agent that started the shim.
    Ready,
    Answer {
        id: u64,
        outcome: Result<Reply, String>,
    },
    Exited {
        container: String,
        exit: Exit,
    },
    ExecExited {
        exec: u64,
        code: i32,
    },
    /// No further containers can run, because the shim failed or the pause process died.
    Broken {
        message: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    Started {
        at: Timestamp,
    },
    /// The process could not be started. The container counts as exited.
    NotStarted {
        exit: Exit,
    },
    Containers {
        running: Vec<Running>,
        broken: Option<String>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) container: String,
    pub(crate) started_at: Timestamp,
}

/// The configuration of a shim: `shim.json` in its directory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ShimConfig {
    pub(crate) hostname: Option<String>,
    /// The network namespace; `None` for the node's.
    pub(crate) network: Option<PathBuf>,
    pub(crate) own_ipc: bool,
    pub(crate) shared_pid: bool,
    pub(crate) sysctls: Vec<(String, String)>,
    /// The user on the node that is root in the pod's user namespace, if it has one.
    #[serde(default)]
    pub(crate) users: Option<u32>,
    /// The cgroup of shims, if it exists.
    #[serde(default)]
    pub(crate) group: Option<PathBuf>,
}

/// How to run a container, in addition to its OCI `config.json`: `plan.json` in its directory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Layers of the image, topmost first.
    pub(crate) layers: Vec<PathBuf>,
    /// The root is mounted in the node's mount namespace, because a volume is shared with the node.
    pub(crate) visible_root: bool,
    pub(crate) cgroup: String,
    pub(crate) oom_score_adj: i32,
    /// The container has a PID namespace: its processes die with process 1. Otherwise the cgroup kills them.
    pub(crate) own_pid: bool,
    /// Created if it does not exist.
    pub(crate) working_dir: PathBuf,
    /// Volumes of the image: path in the container, directory on the node (N-49).
    pub(crate) volumes: Vec<(PathBuf, PathBuf)>,
    /// Bind mounts to make before the others, with private propagation: source and target.
    #[serde(default)]
    pub(crate) staged: Vec<(PathBuf, PathBuf)>,
    /// Targets of mounts whose file owners are mapped to the pod's users, if it has a user namespace.
    #[serde(default)]
    pub(crate) mapped: Vec<PathBuf>,
    /// The container whose PID namespace to join.
    pub(crate) pid_of: Option<String>,
    pub(crate) terminal: bool,
    pub(crate) stdin: bool,
    pub(crate) stdin_once: bool,
    pub(crate) log: PathBuf,
    #[serde(default)]
    pub(crate) log_limits: LogLimits,
}

/// Kinds of frames. A frame is its kind, two bytes of length (little endian) and the content.
pub(crate) mod frame {
    pub(crate) const STDIN: u8 = 0;
    pub(crate) const STDOUT: u8 = 1;
    pub(crate) const STDERR: u8 = 2;
    /// Width and height, two bytes each.
    pub(crate) const SIZE: u8 = 3;
    /// The container has exited.
    pub(crate) const ENDED: u8 = 4;
    pub(crate) const HEADER: usize = 3;
    pub(crate) const CONTENT_MAX: usize = 32 << 10;
}

pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    // Encoding data with string keys into memory cannot fail.
    let _ = serde_json::to_writer(&mut bytes, message);
    let length = (bytes.len() - LENGTH) as u32;
    bytes[..LENGTH].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Removes the first message from the buffer, if it is complete.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(
    buffer: &mut Vec<u8>,
) -> Result<Option<T>, String> {
    let Some(length) = buffer.first_chunk::<LENGTH>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MESSAGE_MAX {
        return Err(format!("a message of {length} bytes is too long"));
    }
    let Some(body) = buffer.get(LENGTH..LENGTH + length) else { return Ok(None) };
    let message = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    buffer.drain(..LENGTH + length);
    Ok(Some(message))
}

pub(crate) fn frame_bytes(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frame::HEADER + content.len());
    bytes.push(kind);
    bytes.extend_from_slice(&(content.len() as u16).to_le_bytes());
    bytes.extend_from_slice(content);
    bytes
}

/// Removes the first frame from the buffer, if it is complete.
pub(crate) fn take_frame(buffer: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let header = buffer.first_chunk::<{ frame::HEADER }>()?;
    let (kind, length) = (header[0], u16::from_le_bytes([header[1], header[2]]) as usize);
    let content = buffer.get(frame::HEADER..frame::HEADER + length)?.to_vec();
    buffer.drain(..frame::HEADER + length);
    Some((kind, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_messages_are_not_decoded() {
        let request = Request { id: 7, kind: RequestKind::Start { container: "c".into() } };
        let whole = encode(&request);
        for cut in 0..whole.len() {
            let mut buffer = whole[..cut].to_vec();
            assert!(matches!(decode::<Request>(&mut buffer), Ok(None)), "cut at {cut}");
        }
        let mut buffer = [whole.clone(), whole].concat();
        assert_eq!(decode::<Request>(&mut buffer).unwrap().unwrap().id, 7);
        assert_eq!(decode::<Request>(&mut buffer).unwrap().unwrap().id, 7);
        assert!(buffer.is_empty());
    }

    /// A new agent must understand shims of an older version, and they it.
    #[test]
    fn names_on_the_wire_are_stable() {
        let request = Request { id: 7, kind: RequestKind::Start { container: "c".into() } };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"id":7,"ask":{"Start":{"container":"c"}}}"#);
        let event = ShimEvent::Answer { id: 7, outcome: Ok(Reply::Done) };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"Answer":{"id":7,"outcome":{"Ok":"Done"}}}"#);
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error() {
        let mut buffer = u32::MAX.to_le_bytes().to_vec();
        assert!(decode::<Request>(&mut buffer).is_err());
    }

    #[test]
    fn frames_are_decoded_as_they_were_encoded() {
        let mut buffer = frame_bytes(frame::STDERR, b"oh");
        buffer.extend(frame_bytes(frame::STDIN, b""));
        assert_eq!(take_frame(&mut buffer), Some((frame::STDERR, b"oh".to_vec())));
        assert_eq!(take_frame(&mut buffer), Some((frame::STDIN, Vec::new())));
        assert_eq!(take_frame(&mut buffer), None);
    }
}
