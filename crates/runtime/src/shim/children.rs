//! The shim's child processes: how their start went and how they exited.
//!
//! A helper process starts each container and exec, and reports the PID or an error through a pipe. The
//! process may exit before that report was read; its exit status is then kept as unclaimed.

use super::connection::Connection;
use super::message::{Reply, ShimEvent, frame, frame_bytes};
use super::serve::{Shim, forward_output};
use super::sys;
use crate::Exit;
use std::io::Read;
use std::os::fd::OwnedFd;

/// Limit of unclaimed exits. There are never more processes starting at the same time.
const UNCLAIMED_MAX: usize = 256;
/// Exit code of a container that could not be started, as upstream reports it.
const START_ERROR_CODE: i32 = 128;
/// Lines of a start report begin with one of these.
const REPORT_PID: char = 'P';
const REPORT_ERROR: char = 'E';

/// A process that is being started. Its helper writes to `report`.
pub(super) struct Starting {
    pub(super) report: std::fs::File,
    text: Vec<u8>,
    target: StartTarget,
    caller: Caller,
}

pub(super) enum StartTarget {
    Container(String),
    Exec(u64),
}

/// Who gets the answer to a request.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) connection: u64,
    pub(super) request: u64,
}

pub(super) struct Exec {
    pub(super) id: u64,
    pub(super) pid: i32,
    /// The connection that is notified of its exit.
    pub(super) connection: u64,
}

#[derive(Clone, Copy)]
pub(super) struct ChildExit {
    pid: i32,
    code: i32,
    signal: Option<i32>,
}

impl Shim {
    pub(super) fn await_start(&mut self, report: OwnedFd, target: StartTarget, caller: Caller) {
        self.starting.push(Starting { report: report.into(), text: Vec::new(), target, caller });
    }

    /// Reads a part of a start report. At its end, the start has succeeded or failed.
    pub(super) fn read_report(&mut self, index: usize, buffer: &mut [u8]) {
        let starting = &mut self.starting[index];
        match starting.report.read(buffer) {
            Ok(length) if length > 0 => {
                starting.text.extend_from_slice(&buffer[..length]);
                return;
            }
            _ => {}
        }
        let starting = self.starting.swap_remove(index);
        let text = String::from_utf8_lossy(&starting.text).into_owned();
        let line = |tag: char| text.lines().find_map(|line| line.strip_prefix(tag));
        let pid = line(REPORT_PID).and_then(|pid| pid.parse::<i32>().ok());
        // Another process could take over the pipe just before the exec and report a false PID.
        let ours =
            |pid: i32| self.unclaimed.iter().any(|exit| exit.pid == pid) || sys::is_child(pid);
        let outcome = match (pid, line(REPORT_ERROR)) {
            (Some(pid), None) if ours(pid) => Ok(pid),
            (Some(pid), None) => Err(format!("{pid} is not a process of this pod")),
            (_, Some(why)) => Err(why.to_owned()),
            (None, None) => Err("the helper process that starts it died".to_owned()),
        };
        match starting.target {
            StartTarget::Container(id) => {
                self.container_started(&id, outcome, starting.caller, buffer);
            }
            StartTarget::Exec(id) => self.exec_started(id, outcome, starting.caller),
        }
    }

    fn container_started(
        &mut self,
        id: &str,
        outcome: Result<i32, String>,
        caller: Caller,
        buffer: &mut [u8],
    ) {
        let Some(index) = self.containers.iter().position(|container| container.id == id) else {
            return;
        };
        let container = &mut self.containers[index];
        let now = clock::now();
        let reply = match outcome {
            Ok(pid) => {
                container.pid = Some(pid);
                container.started_at = Some(now);
                let started = container.directory.join("started");
                let _ = crate::durable::replace(&started, now.to_string().as_bytes());
                if container.console.is_some() {
                    container.take_console();
                }
                Reply::Started { at: now }
            }
            Err(why) => {
                container.cgroup.kill();
                container.drain(buffer, |_, _| ());
                let exit = container.record_exit(Exit {
                    code: START_ERROR_CODE,
                    signal: None,
                    reason: "StartError".into(),
                    message: format!(
                        "failed to start container: unable to start container process: {why}"
                    ),
                    started_at: None,
                    finished_at: now,
                });
                Reply::NotStarted { exit }
            }
        };
        let pid = container.pid;
        self.notify(
            caller.connection,
            &ShimEvent::Answer { id: caller.request, outcome: Ok(reply) },
        );
        if let Some(exit) = pid.and_then(|pid| self.claim(pid)) {
            self.child_exited(exit, buffer);
        }
    }

    fn exec_started(&mut self, id: u64, outcome: Result<i32, String>, caller: Caller) {
        let pid = outcome.as_ref().ok().copied();
        let outcome = outcome.map(|_| Reply::Done);
        self.notify(caller.connection, &ShimEvent::Answer { id: caller.request, outcome });
        let Some(pid) = pid else { return };
        self.execs.push(Exec { id, pid, connection: caller.connection });
        if let Some(exit) = self.claim(pid) {
            self.child_exited(exit, &mut []);
        }
    }

    /// Reaps all children that have exited, including orphans of containers.
    pub(super) fn reap(&mut self, buffer: &mut [u8]) {
        while let Some((pid, status)) = sys::reap_one() {
            let exit = match status {
                Ok(code) => ChildExit { pid, code, signal: None },
                Err(signal) => ChildExit { pid, code: 128 + signal, signal: Some(signal) },
            };
            self.child_exited(exit, buffer);
        }
    }

    fn claim(&mut self, pid: i32) -> Option<ChildExit> {
        let index = self.unclaimed.iter().position(|exit| exit.pid == pid)?;
        Some(self.unclaimed.swap_remove(index))
    }

    fn child_exited(&mut self, child: ChildExit, buffer: &mut [u8]) {
        if let Some(index) =
            self.containers.iter().position(|c| c.pid == Some(child.pid) && c.exit.is_none())
        {
            self.container_exited(index, child, buffer);
        } else if let Some(index) = self.execs.iter().position(|exec| exec.pid == child.pid) {
            let exec = self.execs.swap_remove(index);
            let event = ShimEvent::ExecExited { exec: exec.id, code: child.code };
            self.notify(exec.connection, &event);
        } else if self.pause == Some(child.pid) {
            self.pause = None;
            let message = "process 1 of the pod's PID namespace has exited".to_owned();
            self.broken = Some(message.clone());
            self.notify_all(&ShimEvent::Broken { message });
        } else if !self.starting.is_empty() && self.unclaimed.len() < UNCLAIMED_MAX {
            self.unclaimed.push(child);
        }
        if self.starting.is_empty() {
            self.unclaimed.clear();
        }
    }

    fn container_exited(&mut self, index: usize, child: ChildExit, buffer: &mut [u8]) {
        let finished_at = clock::now();
        let (containers, connections) = (&mut self.containers, &mut self.connections);
        let container = &mut containers[index];
        if !container.plan.own_pid {
            // Without a PID namespace of its own, other processes of the container may still run.
            container.cgroup.kill();
        }
        let id = container.id.clone();
        let mut local = [0; 4096];
        let buffer = if buffer.is_empty() { &mut local[..] } else { buffer };
        container.drain(buffer, |source, read| forward_output(connections, &id, source, read));
        let out_of_memory = container.cgroup.oom_kills() > 0;
        let exit = container.record_exit(Exit {
            code: child.code,
            signal: child.signal,
            reason: if out_of_memory { "OOMKilled".into() } else { String::new() },
            message: String::new(),
            started_at: container.started_at,
            finished_at,
        });
        self.notify_all(&ShimEvent::Exited { container: id.clone(), exit });
        let attached = |c: &&mut Connection| {
            c.attached.as_ref().is_some_and(|attached| attached.container == id)
        };
        for connection in self.connections.iter_mut().filter(attached) {
            connection.send(&frame_bytes(frame::ENDED, &[]));
            connection.closing = true;
        }
    }
}
