//! A runtime without containers: what the endpoint asks of one, answered from memory.
//!
//! `sh` and friends run as plain processes of this machine, so that what kubectl shows is what a
//! program said. With a terminal a small stand-in answers, because there is none here.

use async_trait::async_trait;
use bytes::Bytes;
use runtime::{
    Change, Container, ContainerSpec, ContainerState, ContainerUsage, Credentials, Error, Exec,
    Exit, Identity, Image, ImageReference, Images, Output, PodNetwork, PullProgress, Resources,
    Result, Runtime, Sandbox, SandboxSpec, SandboxState, Session, Size, Version,
};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::{broadcast, mpsc, oneshot};

pub(crate) struct Double {
    sandboxes: Mutex<Vec<Sandbox>>,
    changes: broadcast::Sender<Change>,
    /// Commands that have ended, and how.
    pub(crate) ended: broadcast::Sender<(Vec<String>, i32)>,
}

impl Default for Double {
    fn default() -> Self {
        let (changes, ended) = (broadcast::Sender::new(16), broadcast::Sender::new(16));
        Double { sandboxes: Mutex::default(), changes, ended }
    }
}

impl Double {
    /// One sandbox with these running containers, whose ids are `<container>-id`.
    pub(crate) fn run(&self, pod: Identity, containers: &[&str], logs: &Path) {
        let sandbox = format!("{}-sandbox", pod.uid);
        let containers = containers.iter().map(|name| Container {
            id: format!("{name}-id"),
            sandbox: sandbox.clone(),
            name: (*name).to_owned(),
            attempt: 0,
            state: ContainerState::Running { started_at: clock::now() },
            created_at: clock::now(),
            image_name: "busybox".into(),
            image: "sha256:b".into(),
            resources: Resources::default(),
            user: None,
            mounts: Vec::new(),
            log_path: logs.join(name).join("0.log"),
            labels: Default::default(),
            annotations: Default::default(),
        });
        self.sandboxes.lock().unwrap().push(Sandbox {
            containers: containers.collect(),
            id: sandbox,
            pod,
            attempt: 0,
            state: SandboxState::Ready,
            message: String::new(),
            created_at: clock::now(),
            network: PodNetwork::Host,
            addresses: Vec::new(),
            labels: Default::default(),
            annotations: Default::default(),
        });
    }

    /// The container has exited.
    pub(crate) fn end(&self, container: &str) {
        let mut pod = String::new();
        for sandbox in self.sandboxes.lock().unwrap().iter_mut() {
            for known in sandbox.containers.iter_mut().filter(|known| known.name == container) {
                pod.clone_from(&sandbox.pod.uid);
                known.state = ContainerState::Exited(Exit {
                    code: 0,
                    signal: None,
                    reason: String::new(),
                    message: String::new(),
                    started_at: None,
                    finished_at: clock::now(),
                });
            }
        }
        let _ = self.changes.send(Change { pod });
    }

    fn no<T>(&self) -> Result<T> {
        Err(Error::Refused("the double does not do that".into()))
    }
}

#[async_trait]
impl Runtime for Double {
    async fn version(&self) -> Result<Version> {
        Ok(Version { name: "double".into(), version: "1".into() })
    }
    async fn ready(&self) -> Result<()> {
        Ok(())
    }
    fn brings_network(&self) -> bool {
        false
    }
    async fn run_sandbox(&self, _: &SandboxSpec) -> Result<Sandbox> {
        self.no()
    }
    async fn stop_sandbox(&self, _: &str) -> Result<()> {
        self.no()
    }
    async fn remove_sandbox(&self, _: &str) -> Result<()> {
        self.no()
    }
    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        Ok(self.sandboxes.lock().unwrap().clone())
    }
    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>> {
        let all = self.sandboxes.lock().unwrap();
        Ok(all.iter().filter(|sandbox| sandbox.pod.uid == pod).cloned().collect())
    }
    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }
    async fn create_container(&self, _: &str, _: &ContainerSpec) -> Result<Container> {
        self.no()
    }
    async fn start_container(&self, _: &str) -> Result<()> {
        self.no()
    }
    async fn stop_container(&self, _: &str, _: Duration) -> Result<()> {
        self.no()
    }
    async fn stop_signal(&self, _: &str) -> Option<i32> {
        None
    }
    async fn kill_container(&self, _: &str) -> Result<()> {
        self.no()
    }
    async fn remove_container(&self, _: &str) -> Result<()> {
        self.no()
    }
    async fn update_container(&self, _: &str, _: &Resources) -> Result<()> {
        self.no()
    }
    async fn limit_group(&self, _: &str, _: &Resources) -> Result<()> {
        self.no()
    }

    async fn exec(&self, _: &str, exec: &Exec) -> Result<Session> {
        if exec.tty {
            return Ok(terminal());
        }
        process(exec, self.ended.clone())
    }

    /// Says two lines and ends, as a container does that is about to exit.
    async fn attach(&self, _: &str, exec: &Exec) -> Result<Session> {
        let (said, output) = mpsc::channel(4);
        let (exited, exit) = oneshot::channel();
        let (stdin, mut input) = mpsc::channel::<Bytes>(4);
        let wants_input = exec.stdin;
        tokio::spawn(async move {
            let _ = said.send(Output::Stdout("attached\n".into())).await;
            while let Some(bytes) = input.recv().await {
                let _ = said.send(Output::Stdout(bytes)).await;
            }
            let _ = said.send(Output::Stderr("over\n".into())).await;
            let _ = exited.send(Ok(137));
        });
        let stdin = wants_input.then_some(stdin);
        Ok(Session { stdin, output, resize: None, exit, kill: None })
    }

    /// As a runtime does: the name is renamed away, a new file begins.
    async fn reopen_log(&self, container: &str) -> Result<()> {
        for sandbox in self.sandboxes.lock().unwrap().iter() {
            for known in sandbox.containers.iter().filter(|known| known.id == container) {
                let made = std::fs::File::create(&known.log_path);
                made.map_err(Error::io("create", &known.log_path))?;
            }
        }
        Ok(())
    }

    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        let all = self.sandboxes.lock().unwrap();
        let usage = |sandbox: &Sandbox, container: &Container| ContainerUsage {
            pod: sandbox.pod.uid.clone(),
            container_id: container.id.clone(),
            container: container.name.clone(),
            at: clock::now(),
            cpu_nanoseconds: 1_500_000_000,
            memory_bytes: 2 << 20,
            working_set_bytes: 1 << 20,
            ..ContainerUsage::default()
        };
        let of = |sandbox: &Sandbox| -> Vec<ContainerUsage> {
            sandbox.containers.iter().map(|container| usage(sandbox, container)).collect()
        };
        Ok(all.iter().flat_map(of).collect())
    }

    async fn connect(&self, _: &str, port: u16) -> Result<tokio::net::TcpStream> {
        let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        connected.map_err(|error| {
            Error::Refused(format!(
                "failed to connect to localhost:{port} inside namespace: {error}"
            ))
        })
    }

    fn images(&self) -> &dyn Images {
        self
    }
}

#[async_trait]
impl Images for Double {
    async fn find(&self, _: &ImageReference) -> Result<Option<Image>> {
        self.no()
    }
    async fn list(&self) -> Result<Vec<Image>> {
        self.no()
    }
    async fn pull(
        &self,
        _: &ImageReference,
        _: &[Credentials],
        _: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        self.no()
    }
    async fn remove(&self, _: &str) -> Result<()> {
        self.no()
    }
    fn directory(&self) -> PathBuf {
        "/tmp".into()
    }
    async fn mount(&self, _: &str, _: &Path) -> Result<()> {
        self.no()
    }
}

fn process(exec: &Exec, ended: broadcast::Sender<(Vec<String>, i32)>) -> Result<Session> {
    let Some((program, args)) = exec.command.split_first() else {
        return Err(Error::Start("no command".into()));
    };
    let mut child = Command::new(program)
        .args(args)
        .stdin(if exec.stdin { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Error::Start(format!("exec: {program:?}: {error}")))?;
    let (said, output) = mpsc::channel(4);
    let out = read(child.stdout.take().unwrap(), said.clone(), Output::Stdout);
    let err = read(child.stderr.take().unwrap(), said, Output::Stderr);
    let stdin = child.stdin.take().map(|mut pipe| {
        let (stdin, mut input) = mpsc::channel::<Bytes>(4);
        tokio::spawn(async move {
            while let Some(bytes) = input.recv().await {
                if pipe.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        stdin
    });
    let (exited, exit) = oneshot::channel();
    let (kill, mut killed) = oneshot::channel::<()>();
    let command = exec.command.clone();
    tokio::spawn(async move {
        let status = tokio::select! {
            status = child.wait() => status,
            _ = &mut killed => {
                let _ = child.kill().await;
                child.wait().await
            }
        };
        let _ = tokio::join!(out, err);
        let code = status.ok().and_then(|status| status.code()).unwrap_or(137);
        let _ = exited.send(Ok(code));
        let _ = ended.send((command, code));
    });
    Ok(Session { stdin, output, resize: None, exit, kill: Some(kill) })
}

fn read(
    mut pipe: impl AsyncRead + Unpin + Send + 'static,
    said: mpsc::Sender<Output>,
    as_what: fn(Bytes) -> Output,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut piece = vec![0; 8192];
        while let Ok(count @ 1..) = pipe.read(&mut piece).await {
            if said.send(as_what(Bytes::copy_from_slice(&piece[..count]))).await.is_err() {
                return;
            }
        }
    })
}

/// Says its size whenever it learns it, and ends at the first line.
fn terminal() -> Session {
    let (said, output) = mpsc::channel(4);
    let (exited, exit) = oneshot::channel();
    let (stdin, mut input) = mpsc::channel::<Bytes>(4);
    let (resize, mut sizes) = mpsc::channel::<Size>(4);
    tokio::spawn(async move {
        let mut sized = true;
        loop {
            let text = tokio::select! {
                size = sizes.recv(), if sized => match size {
                    Some(size) => format!("size {}x{}\r\n", size.width, size.height),
                    None => { sized = false; continue }
                },
                bytes = input.recv() => match bytes {
                    Some(bytes) if bytes.iter().any(|byte| matches!(byte, b'\n' | b'\r')) => break,
                    Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                    None => break,
                },
            };
            let _ = said.send(Output::Stdout(text.into())).await;
        }
        let _ = said.send(Output::Stdout("bye\r\n".into())).await;
        let _ = exited.send(Ok(0));
    });
    Session { stdin: Some(stdin), output, resize: Some(resize), exit, kill: None }
}
