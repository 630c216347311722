//! Requests on new connections, from the network namespaces of several machines at the same time.

use crate::several_nodes::{Machine, Network};
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Every answer takes milliseconds. After this time a request has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client counts its requests after this many in a row were answered.
const ANSWERED_FIRST: usize = 50;

/// Clients that send requests until [`Load::stop`].
pub(super) struct Load {
    done: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    /// One client per machine. Each begins when its machine sends connections to all pods: slow nodes learn late of the
    /// first endpoints.
    pub(super) fn start(network: &Network, machines: &[Machine], to: SocketAddr) -> Load {
        let (done, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients = machines.iter().map(|machine| {
            let space = File::open(network.namespace(*machine)).expect("the namespace exists");
            let (done, sent, name) = (done.clone(), sent.clone(), machine.name());
            std::thread::spawn(move || {
                // Only this thread enters the namespace.
                setns(&space, CloneFlags::CLONE_NEWNET).expect("root may enter namespaces");
                send(name, to, &done, &sent)
            })
        });
        let clients = clients.collect();
        Load { done, sent, clients }
    }

    /// Waits until this many requests have been sent.
    pub(super) fn reach(&self, count: usize) {
        while self.sent.load(Ordering::Relaxed) < count {
            assert!(self.clients.iter().all(|client| !client.is_finished()), "a client has failed");
            std::thread::yield_now();
        }
    }

    /// How many requests were sent, and which have failed.
    pub(super) fn stop(self) -> (usize, Vec<String>) {
        self.done.store(true, Ordering::Relaxed);
        let failed = self.clients.into_iter().flat_map(|client| client.join().expect("a client"));
        let failed = failed.collect();
        (self.sent.load(Ordering::Relaxed), failed)
    }
}

fn send(machine: &str, to: SocketAddr, done: &AtomicBool, sent: &AtomicUsize) -> Vec<String> {
    let mut failed = Vec::new();
    let mut answered = 0;
    while answered < ANSWERED_FIRST && !done.load(Ordering::Relaxed) {
        answered = if get(to).is_ok() { answered + 1 } else { 0 };
    }
    while !done.load(Ordering::Relaxed) {
        if let Err(error) = get(to) {
            failed.push(format!("from {machine}: {error}"));
        }
        sent.fetch_add(1, Ordering::Relaxed);
    }
    failed
}

/// The server closes the connection, so that the client's port is free at once.
fn get(to: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.starts_with("HTTP/1.1 200 ") {
        true => Ok(()),
        false => Err(std::io::Error::new(ErrorKind::InvalidData, format!("answer {answer:?}"))),
    }
}
