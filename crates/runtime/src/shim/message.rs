//! What the agent and a shim say to each other over the shim's socket.
//!
//! Each message is four bytes of length (little endian) and JSON. Descriptors travel with the first
//! byte of the message they belong to. An attach turns its connection into a stream of small frames.

use crate::Exit;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// No message is longer; whoever says otherwise is not a peer.
pub(crate) const MESSAGE_MAX: usize = 4 << 20;

/// A question to the shim. The answer carries the same id.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: u64,
    pub(crate) ask: Ask,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// How is everything? Answered with [`Reply::Containers`].
    State,
    /// Run a container that was prepared on disk.
    Start {
        container: String,
    },
    /// To process 1 of a container.
    Signal {
        container: String,
        signal: i32,
    },
    /// Run one more process. With a terminal one descriptor comes along (a socket on which the
    /// terminal's master is sent back), otherwise three: its stdin, stdout and stderr.
    Exec {
        exec: u64,
        container: String,
        command: Vec<String>,
        terminal: bool,
    },
    /// To the process group of an exec.
    SignalExec {
        exec: u64,
        signal: i32,
    },
    Resize {
        container: String,
        width: u16,
        height: u16,
    },
    Reopen {
        container: String,
    },
    /// This connection becomes a stream of frames.
    Attach {
        container: String,
        stdin: bool,
        stdout: bool,
        stderr: bool,
    },
    /// A container that has ended will not be asked for again.
    Forget {
        container: String,
    },
    /// Let go of everything and end. The caller has killed what ran.
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// Said once, on the connection the shim was born with.
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
    /// What all containers depend upon has died.
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
    /// The process could not be run, and why; the container has ended.
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

/// How to run the sandbox; handed to a new shim as `shim.json` in its directory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pod {
    pub(crate) hostname: Option<String>,
    /// None: the node's.
    pub(crate) network: Option<PathBuf>,
    pub(crate) own_ipc: bool,
    pub(crate) shared_pid: bool,
    pub(crate) sysctls: Vec<(String, String)>,
    /// The cgroup of shims, where one was made.
    #[serde(default)]
    pub(crate) group: Option<PathBuf>,
}

/// How to run a container, beside what is in its OCI `config.json`; `plan.json` in its directory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Of the image, topmost first.
    pub(crate) layers: Vec<PathBuf>,
    /// The root is mounted where the node sees it, because a mount is to be shared with the node.
    pub(crate) visible_root: bool,
    pub(crate) cgroup: String,
    pub(crate) oom_score_adj: i32,
    /// Its processes die with process 1. Otherwise they are killed through the cgroup.
    pub(crate) own_pid: bool,
    /// Made if it is missing.
    pub(crate) working_dir: PathBuf,
    /// Where the image wants a volume, and the directory that becomes it (N-49).
    pub(crate) volumes: Vec<(PathBuf, PathBuf)>,
    /// Bound first, and made private: from where, and to where.
    #[serde(default)]
    pub(crate) staged: Vec<(PathBuf, PathBuf)>,
    /// Joins the process namespace of this container.
    pub(crate) pid_of: Option<String>,
    pub(crate) terminal: bool,
    pub(crate) stdin: bool,
    pub(crate) stdin_once: bool,
    pub(crate) log: PathBuf,
}

/// First byte of a frame on an attached connection; two bytes of length and the content follow.
pub(crate) mod frame {
    pub(crate) const STDIN: u8 = 0;
    pub(crate) const STDOUT: u8 = 1;
    pub(crate) const STDERR: u8 = 2;
    /// Width and height, two bytes each.
    pub(crate) const SIZE: u8 = 3;
    /// The container has ended.
    pub(crate) const ENDED: u8 = 4;
    pub(crate) const HEADER: usize = 3;
    pub(crate) const CONTENT_MAX: usize = 32 << 10;
}

pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    // Plain data with string keys: writing it to memory cannot fail.
    let _ = serde_json::to_writer(&mut bytes, message);
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Takes one whole message off the front, if there is one.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(
    buffer: &mut Vec<u8>,
) -> Result<Option<T>, String> {
    let Some(length) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MESSAGE_MAX {
        return Err(format!("a message of {length} bytes"));
    }
    let Some(body) = buffer.get(4..4 + length) else { return Ok(None) };
    let message = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    buffer.drain(..4 + length);
    Ok(Some(message))
}

pub(crate) fn frame_bytes(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frame::HEADER + content.len());
    bytes.push(kind);
    bytes.extend_from_slice(&(content.len() as u16).to_le_bytes());
    bytes.extend_from_slice(content);
    bytes
}

/// Takes one whole frame off the front, if there is one.
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
    fn a_message_is_read_only_when_it_is_whole() {
        let call = Call { id: 7, ask: Ask::Start { container: "c".into() } };
        let whole = encode(&call);
        for cut in 0..whole.len() {
            let mut buffer = whole[..cut].to_vec();
            assert!(matches!(decode::<Call>(&mut buffer), Ok(None)), "cut at {cut}");
        }
        let mut buffer = [whole.clone(), whole].concat();
        assert_eq!(decode::<Call>(&mut buffer).unwrap().unwrap().id, 7);
        assert_eq!(decode::<Call>(&mut buffer).unwrap().unwrap().id, 7);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_length_beyond_reason_is_refused() {
        let mut buffer = u32::MAX.to_le_bytes().to_vec();
        assert!(decode::<Call>(&mut buffer).is_err());
    }

    #[test]
    fn frames_come_apart_as_they_were_put_together() {
        let mut buffer = frame_bytes(frame::STDERR, b"oh");
        buffer.extend(frame_bytes(frame::STDIN, b""));
        assert_eq!(take_frame(&mut buffer), Some((frame::STDERR, b"oh".to_vec())));
        assert_eq!(take_frame(&mut buffer), Some((frame::STDIN, Vec::new())));
        assert_eq!(take_frame(&mut buffer), None);
    }
}
