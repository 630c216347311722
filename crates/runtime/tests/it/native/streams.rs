//! Logs, exec, attach, terminals.

use super::world::{Log, SOON, script, until, world};
use bytes::Bytes;
use runtime::{Exec, Output, Runtime, Session, Size};
use std::time::Duration;

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Reads until the output contains a text.
async fn read_until(session: &mut Session, text: &str) -> String {
    let mut all = String::new();
    let reading = async {
        while !all.contains(text) {
            match session.output.recv().await {
                Some(Output::Stdout(more) | Output::Stderr(more)) => {
                    all.push_str(&String::from_utf8_lossy(&more));
                }
                None => break,
            }
        }
    };
    tokio::time::timeout(SOON, reading).await.expect("it says so");
    all
}

/// N-158: pieces of 16 KiB, and a last line that lacks its newline.
#[tokio::test]
async fn n_158_long_lines_are_cut_and_the_last_one_is_kept() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let text = "head -c 20000 /dev/zero | tr '\\0' x; echo; printf end";
    let (_, log) = world.run(&sandbox, &script(text)).await;
    let tags: Vec<(&str, usize)> = log
        .0
        .lines()
        .map(|line| {
            let mut parts = line.splitn(4, ' ').skip(2);
            (parts.next().unwrap(), parts.next().unwrap().len())
        })
        .collect();
    assert_eq!(tags, [("P", 16384), ("F", 20000 - 16384), ("F", 3)]);
    assert_eq!(log.stdout(), format!("{}\nend\n", "x".repeat(20000)));
    world.leave().await;
}

/// N-159: after a rename the log goes on in a new file of the old name.
#[tokio::test]
async fn n_159_a_renamed_log_is_reopened() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let text = "echo first; while ! test -e /tmp/go; do sleep 0.01; done; echo second";
    let container = world.started(&sandbox, &script(text)).await;
    world.wait_for_log(&container, "first").await;
    let old = container.log_path.with_extension("old");
    std::fs::rename(&container.log_path, &old).unwrap();
    world.native.reopen_log(&container.id).await.unwrap();
    world.exec(&container.id, &["touch", "/tmp/go"]).await;
    world.exit(&container.id).await;
    assert_eq!(Log(std::fs::read_to_string(old).unwrap()).stdout(), "first\n");
    assert_eq!(world.log(&container).stdout(), "second\n");
    world.leave().await;
}

/// N-164: exec inherits environment, user and namespaces; its exit code comes back.
#[tokio::test]
async fn n_164_exec_runs_in_the_container_and_returns_its_code() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let mut spec = script("sleep 1000");
    spec.env = vec![("WHO".into(), "me".into())];
    spec.security.user = runtime::User::Uid(1000);
    spec.security.seccomp = runtime::Seccomp::RuntimeDefault;
    spec.working_dir = Some("/tmp".into());
    let container = world.started(&sandbox, &spec).await;
    let (code, output) = world
        .exec(
            &container.id,
            &[
                "sh",
                "-c",
                "echo $WHO; id -u; id -G; pwd; grep -E 'Seccomp:|CapEff' /proc/self/status; exit 3",
            ],
        )
        .await;
    assert_eq!(code, 3);
    let tab = '\t';
    let expected =
        format!("me\n1000\n1000 50\n/tmp\nCapEff:{tab}0000000000000000\nSeccomp:{tab}2\n");
    assert_eq!(output, expected);
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let (_, groups) = world.exec(&container.id, &["cat", "/proc/self/cgroup"]).await;
    assert_ne!(groups, own);
    let missing = Exec { command: words("nope"), stdout: true, ..Exec::default() };
    let error = world.native.exec(&container.id, &missing).await.err().unwrap();
    assert!(error.to_string().contains("executable file not found in $PATH"), "{error}");
    world.leave().await;
}

#[tokio::test]
async fn exec_takes_input_and_keeps_outputs_apart() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let container = world.started(&sandbox, &script("sleep 1000")).await;
    let exec = Exec {
        command: vec!["sh".into(), "-c".into(), "cat; echo err >&2".into()],
        stdin: true,
        stdout: true,
        stderr: true,
        ..Exec::default()
    };
    let mut session = world.native.exec(&container.id, &exec).await.unwrap();
    let stdin = session.stdin.take().unwrap();
    stdin.send(Bytes::from_static(b"through")).await.unwrap();
    drop(stdin);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(output) = session.output.recv().await {
        match output {
            Output::Stdout(more) => out.extend(more),
            Output::Stderr(more) => err.extend(more),
        }
    }
    assert_eq!((out.as_slice(), err.as_slice()), (&b"through"[..], &b"err\n"[..]));
    assert_eq!(session.exit.await.unwrap(), Ok(0));
    world.leave().await;
}

/// A probe that takes too long is killed with everything it started.
#[tokio::test]
async fn exec_that_takes_too_long_is_killed_with_its_children() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let container = world.started(&sandbox, &script("sleep 1000")).await;
    let exec = Exec {
        command: vec!["sh".into(), "-c".into(), "sleep 777 & sleep 777; true".into()],
        stdout: true,
        timeout: Some(Duration::from_millis(100)),
        ..Exec::default()
    };
    let session = world.native.exec(&container.id, &exec).await.unwrap();
    let error = session.collect(100).await.unwrap_err();
    assert!(error.contains("timed out"), "{error}");
    let (_, processes) = world.exec(&container.id, &["ps"]).await;
    assert!(!processes.contains("777"), "{processes}");
    let unwanted = Exec { timeout: None, ..exec };
    let session = world.native.exec(&container.id, &unwanted).await.unwrap();
    let Session { kill, exit, .. } = session;
    drop(kill);
    assert_eq!(exit.await.unwrap(), Ok(137));
    world.leave().await;
}

#[tokio::test]
async fn exec_with_a_terminal_has_a_size_that_can_change() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let container = world.started(&sandbox, &script("sleep 1000")).await;
    let exec =
        Exec { command: words("sh"), stdin: true, stdout: true, tty: true, ..Exec::default() };
    let mut session = world.native.exec(&container.id, &exec).await.unwrap();
    let stdin = session.stdin.clone().unwrap();
    session.resize.as_ref().unwrap().send(Size { width: 91, height: 17 }).await.unwrap();
    let ask =
        "while ! stty size | grep -q '17 91'; do :; done; echo si''zed; readlink /proc/self/fd/0\n";
    stdin.send(Bytes::from(ask)).await.unwrap();
    let said = read_until(&mut session, "/dev/pts/").await;
    assert!(said.contains("sized"), "{said}");
    stdin.send(Bytes::from_static(b"exit 5\n")).await.unwrap();
    assert_eq!(session.exit.await.unwrap(), Ok(5));
    world.leave().await;
}

/// N-64, N-165: attach from now on, several clients, stdin stays open between them.
#[tokio::test]
async fn n_165_attach_shows_what_comes_and_stdin_outlives_its_clients() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let mut spec = script("echo before; while read line; do echo got $line; done; echo eof");
    spec.stdin = true;
    let container = world.started(&sandbox, &spec).await;
    world.wait_for_log(&container, "before").await;
    let exec = Exec { stdin: true, stdout: true, stderr: true, ..Exec::default() };
    let mut first = world.native.attach(&container.id, &exec).await.unwrap();
    let mut second = world.native.attach(&container.id, &exec).await.unwrap();
    first.stdin.as_ref().unwrap().send(Bytes::from_static(b"one\n")).await.unwrap();
    assert_eq!(read_until(&mut first, "one\n").await, "got one\n");
    assert_eq!(read_until(&mut second, "one\n").await, "got one\n");
    drop((first, second));
    let mut third = world.native.attach(&container.id, &exec).await.unwrap();
    third.stdin.as_ref().unwrap().send(Bytes::from_static(b"two\n")).await.unwrap();
    assert_eq!(read_until(&mut third, "two\n").await, "got two\n");
    world.native.kill_container(&container.id).await.unwrap();
    assert!(tokio::time::timeout(SOON, third.exit).await.unwrap().is_ok());
    assert_eq!(world.log(&container).stdout(), "before\ngot one\ngot two\n");
    world.leave().await;
}

/// N-64: no stdin is an immediate end of input; stdinOnce ends with the first client.
#[tokio::test]
async fn n_64_stdin_ends_when_it_should() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let (exit, log) = world.run(&sandbox, &script("cat; echo eof")).await;
    assert_eq!((exit.code, log.stdout().as_str()), (0, "eof\n"));
    let mut spec = script("cat; echo eof");
    (spec.stdin, spec.stdin_once) = (true, true);
    let container = world.started(&sandbox, &spec).await;
    let exec = Exec { stdin: true, stdout: true, stderr: true, ..Exec::default() };
    let session = world.native.attach(&container.id, &exec).await.unwrap();
    session.stdin.as_ref().unwrap().send(Bytes::from_static(b"in\n")).await.unwrap();
    drop(session);
    assert_eq!(world.exit(&container.id).await.code, 0);
    assert_eq!(world.log(&container).stdout(), "in\neof\n");
    world.leave().await;
}

/// N-64: a terminal of the container's own; stderr and stdout are one.
#[tokio::test]
async fn n_64_a_container_with_a_terminal_can_be_attached_and_resized() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let mut spec =
        script("echo up >&2; read x; while ! stty size | grep -q '17 91'; do :; done; echo sized");
    (spec.stdin, spec.tty) = (true, true);
    let container = world.started(&sandbox, &spec).await;
    world.wait_for_log(&container, "stdout F up").await;
    let exec = Exec { stdin: true, stdout: true, tty: true, ..Exec::default() };
    let mut session = world.native.attach(&container.id, &exec).await.unwrap();
    session.resize.as_ref().unwrap().send(Size { width: 91, height: 17 }).await.unwrap();
    session.stdin.as_ref().unwrap().send(Bytes::from_static(b"go\n")).await.unwrap();
    read_until(&mut session, "sized").await;
    assert_eq!(world.exit(&container.id).await.code, 0);
    world.leave().await;
}

/// N-166: localhost of the sandbox, over whichever network it has.
#[tokio::test]
async fn n_166_connect_reaches_a_port_inside_the_sandbox() {
    use tokio::io::AsyncReadExt;
    let world = world().await;
    let sandbox = world.sandbox().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let text = format!("echo hi | nc -l -p {port}");
    let container = world.started(&sandbox, &script(&text)).await;
    let row = format!(":{port:04X} 00000000:0000 0A");
    until(|| {
        std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&row)
            || std::fs::read_to_string("/proc/net/tcp6").unwrap().contains(&format!(":{port:04X} "))
    })
    .await;
    let mut stream = world.native.connect(&sandbox.id, port).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "hi\n");
    let nobody = world.native.connect(&sandbox.id, 9).await.unwrap_err().to_string();
    assert_eq!(
        nobody, "failed to connect to localhost:9: connection refused",
        "as upstream says it"
    );
    drop(container);
    world.leave().await;
}
