//! Exec, attach and connections into a pod.

use super::fixture::{TIMEOUT, until, with_containerd};
use runtime::{Exec, Output, Runtime as _, Session, Size};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn sh(script: &str) -> Exec {
    Exec {
        command: ["/bin/sh", "-c", script].map(String::from).to_vec(),
        stdout: true,
        stderr: true,
        ..Exec::default()
    }
}

/// The output of a session by stream, and its exit code.
async fn all(mut session: Session) -> (String, String, Result<i32, String>) {
    let reading = async {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(output) = session.output.recv().await {
            match output {
                Output::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                Output::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            }
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (text(stdout), text(stderr), session.exit.await.unwrap())
    };
    tokio::time::timeout(TIMEOUT, reading).await.expect("the session does not end")
}

#[test]
fn exec_returns_output_and_exit_code() {
    with_containerd(|fixture| async move {
        let (_, container) = fixture.run("web", "sleep 1000").await;
        let exec =
            async |exec: &Exec| all(fixture.cri.exec(&container.id, exec).await.unwrap()).await;
        let (out, err, code) = exec(&sh("echo $GREETING; echo no >&2; exit 5")).await;
        assert_eq!((out.as_str(), err.as_str(), code), ("hello\n", "no\n", Ok(5)));
        assert_eq!(exec(&sh("true")).await.2, Ok(0));
        // Much more than any buffer holds.
        let (out, _, code) = exec(&sh("i=0; while [ $i -lt 20000 ]; do echo 0123456789012345678901234567890123456789012345678; i=$((i+1)); done")).await;
        assert_eq!((out.len(), code), (1_000_000, Ok(0)));
        let missing = Exec { command: vec!["/no/such".into()], ..sh("") };
        let error = exec(&missing).await.2.unwrap_err();
        assert!(error.contains("no such file"), "{error}");
    });
}

#[test]
fn closing_stdin_reaches_the_command() {
    with_containerd(|fixture| async move {
        let (_, container) = fixture.run("web", "sleep 1000").await;
        let mut session =
            fixture.cri.exec(&container.id, &Exec { stdin: true, ..sh("wc -c") }).await.unwrap();
        let stdin = session.stdin.take().unwrap();
        for _ in 0..100 {
            stdin.send(vec![b'x'; 10_000].into()).await.unwrap();
        }
        drop(stdin);
        let (out, _, code) = all(session).await;
        assert_eq!((out.trim(), code), ("1000000", Ok(0)));
    });
}

#[test]
fn a_terminal_has_a_size_and_one_output_stream() {
    with_containerd(|fixture| async move {
        let (_, container) = fixture.run("web", "sleep 1000").await;
        let exec = Exec { stdin: true, tty: true, ..sh("read x; stty size; echo err >&2; exit 2") };
        let mut session = fixture.cri.exec(&container.id, &exec).await.unwrap();
        let resize = session.resize.take().unwrap();
        resize.send(Size { width: 132, height: 43 }).await.unwrap();
        // The size is sent on a separate stream: wait until it has arrived.
        until("the size is known", async || {
            let list_sizes = sh("for t in /dev/pts/*; do stty -F $t size 2>/dev/null; done");
            let (out, _, _) = all(fixture.cri.exec(&container.id, &list_sizes).await.ok()?).await;
            out.contains("43 132").then_some(())
        })
        .await;
        session.stdin.as_ref().unwrap().send("\n".into()).await.unwrap();
        let (out, err, code) = all(session).await;
        assert!(out.contains("43 132") && out.contains("err"), "{out}");
        assert_eq!((err.as_str(), code), ("", Ok(2)));
    });
}

#[test]
fn a_command_is_killed_after_its_timeout() {
    with_containerd(|fixture| async move {
        let (_, container) = fixture.run("web", "sleep 1000").await;
        let quick = Exec { timeout: Some(Duration::from_secs(5)), ..sh("echo ok; exit 1") };
        let (out, _, code) = all(fixture.cri.exec(&container.id, &quick).await.unwrap()).await;
        assert_eq!((out.as_str(), code), ("ok\n", Ok(1)));
        let slow = Exec { timeout: Some(Duration::from_secs(1)), ..sh("sleep 555") };
        let (_, _, code) = all(fixture.cri.exec(&container.id, &slow).await.unwrap()).await;
        assert!(code.unwrap_err().contains("timeout 1s exceeded"));
        let count = sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep [5]55'");
        until("the command was killed", async || {
            let (out, _, _) = all(fixture.cri.exec(&container.id, &count).await.ok()?).await;
            (out.trim() != "1").then_some(())
        })
        .await;
    });
}

#[test]
fn attach_connects_to_the_containers_stdio() {
    with_containerd(|fixture| async move {
        let sandbox = fixture.cri.run_sandbox(&fixture.sandbox("web")).await.unwrap();
        let mut spec = fixture.container("cat; echo bye; exit 4").await;
        (spec.stdin, spec.stdin_once) = (true, true);
        let container = fixture.cri.create_container(&sandbox.id, &spec).await.unwrap();
        fixture.cri.start_container(&container.id).await.unwrap();
        let exec = Exec { stdin: true, stdout: true, stderr: true, ..Exec::default() };
        let mut session = fixture.cri.attach(&container.id, &exec).await.unwrap();
        let stdin = session.stdin.take().unwrap();
        stdin.send("hello\n".into()).await.unwrap();
        let first = tokio::time::timeout(TIMEOUT, session.output.recv()).await.unwrap();
        assert_eq!(first, Some(Output::Stdout("hello\n".into())));
        drop(stdin);
        let (out, _, code) = all(session).await;
        assert_eq!((out.as_str(), code), ("bye\n", Ok(0)));
        assert_eq!(fixture.exit("web", &container.id).await.code, 4);
    });
}

#[test]
fn a_connection_reaches_a_server_on_the_pods_loopback() {
    with_containerd(|fixture| async move {
        let (sandbox, _) = fixture.run("web", "httpd -f -p 127.0.0.1:8080 -h /etc").await;
        let listens = async || fixture.cri.connect(&sandbox.id, 8080).await.ok();
        let mut stream = until("the server listens", listens).await;
        stream.write_all(b"GET /passwd HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("nina"), "{answer}");
        let error = fixture.cri.connect(&sandbox.id, 9).await.unwrap_err().to_string();
        assert!(error.contains("failed to connect to localhost:9 inside the pod"), "{error}");
    });
}
