//! Logs, exec, attach and terminals.

use super::fixture::{Log, TIMEOUT, fixture, script, until};
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
    tokio::time::timeout(TIMEOUT, reading).await.expect("the output does not contain the text");
    all
}

/// N-158: long lines are split after 16 KiB; a last line without newline is kept.
#[tokio::test]
async fn n_158_long_lines_are_split_and_the_last_one_is_kept() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let text = "head -c 20000 /dev/zero | tr '\\0' x; echo; printf end";
    let (_, log) = fixture.run(&sandbox, &script(text)).await;
    let tags: Vec<(&str, usize)> = log
        .0
        .lines()
        .map(|line| {
            let mut parts = line.splitn(4, ' ').skip(2);
            (parts.next().unwrap(), parts.next().unwrap().len())
        })
        .collect();
    assert_eq!(tags, [("P", 16384), ("F", 20000 - 16384), ("P", 3)]);
    assert_eq!(log.stdout(), format!("{}\nend", "x".repeat(20000)));
    fixture.clean_up().await;
}

/// N-159: after a rename, the log continues in a new file of the old name.
#[tokio::test]
async fn n_159_a_renamed_log_is_reopened() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let text = "echo first; while ! test -e /tmp/go; do sleep 0.01; done; echo second";
    let container = fixture.started(&sandbox, &script(text)).await;
    fixture.wait_for_log(&container, "first").await;
    let old = container.log_path.with_extension("old");
    std::fs::rename(&container.log_path, &old).unwrap();
    fixture.native.reopen_log(&container.id).await.unwrap();
    fixture.exec(&container.id, &["touch", "/tmp/go"]).await;
    fixture.exit(&container.id).await;
    assert_eq!(Log(std::fs::read_to_string(old).unwrap()).stdout(), "first\n");
    assert_eq!(fixture.log(&container).stdout(), "second\n");
    fixture.clean_up().await;
}

/// N-164: exec inherits environment, user and namespaces; its exit code comes back.
#[tokio::test]
async fn n_164_exec_runs_in_the_container_and_returns_its_code() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let mut spec = script("sleep 1000");
    spec.env = vec![("WHO".into(), "me".into())];
    spec.security.user = runtime::User::Uid(1000);
    spec.security.seccomp = runtime::Seccomp::RuntimeDefault;
    spec.working_dir = Some("/tmp".into());
    let container = fixture.started(&sandbox, &spec).await;
    let (code, output) = fixture
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
    let (_, groups) = fixture.exec(&container.id, &["cat", "/proc/self/cgroup"]).await;
    assert_ne!(groups, own);
    let missing = Exec { command: words("nope"), stdout: true, ..Exec::default() };
    let error = fixture.native.exec(&container.id, &missing).await.err().unwrap();
    assert!(error.to_string().contains("executable file not found in $PATH"), "{error}");
    fixture.clean_up().await;
}

#[tokio::test]
async fn exec_reads_stdin_and_separates_stdout_from_stderr() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let container = fixture.started(&sandbox, &script("sleep 1000")).await;
    let exec = Exec {
        command: vec!["sh".into(), "-c".into(), "cat; echo err >&2".into()],
        stdin: true,
        stdout: true,
        stderr: true,
        ..Exec::default()
    };
    let mut session = fixture.native.exec(&container.id, &exec).await.unwrap();
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
    fixture.clean_up().await;
}

/// For example a probe that times out.
#[tokio::test]
async fn an_exec_that_times_out_is_killed_with_its_children() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let container = fixture.started(&sandbox, &script("sleep 1000")).await;
    let exec = Exec {
        command: vec!["sh".into(), "-c".into(), "sleep 777 & sleep 777; true".into()],
        stdout: true,
        timeout: Some(Duration::from_millis(100)),
        ..Exec::default()
    };
    let session = fixture.native.exec(&container.id, &exec).await.unwrap();
    let error = session.collect(100).await.unwrap_err();
    assert!(error.contains("timed out"), "{error}");
    let (_, processes) = fixture.exec(&container.id, &["ps"]).await;
    assert!(!processes.contains("777"), "{processes}");
    let without_timeout = Exec { timeout: None, ..exec };
    let session = fixture.native.exec(&container.id, &without_timeout).await.unwrap();
    let Session { kill, exit, .. } = session;
    drop(kill);
    assert_eq!(exit.await.unwrap(), Ok(137));
    fixture.clean_up().await;
}

#[tokio::test]
async fn the_terminal_of_an_exec_can_be_resized() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let container = fixture.started(&sandbox, &script("sleep 1000")).await;
    let exec =
        Exec { command: words("sh"), stdin: true, stdout: true, tty: true, ..Exec::default() };
    let mut session = fixture.native.exec(&container.id, &exec).await.unwrap();
    let stdin = session.stdin.clone().unwrap();
    session.resize.as_ref().unwrap().send(Size { width: 91, height: 17 }).await.unwrap();
    let command =
        "while ! stty size | grep -q '17 91'; do :; done; echo si''zed; readlink /proc/self/fd/0\n";
    stdin.send(Bytes::from(command)).await.unwrap();
    let output = read_until(&mut session, "/dev/pts/").await;
    assert!(output.contains("sized"), "{output}");
    stdin.send(Bytes::from_static(b"exit 5\n")).await.unwrap();
    assert_eq!(session.exit.await.unwrap(), Ok(5));
    fixture.clean_up().await;
}

/// N-64, N-165: attach shows new output to several clients; stdin stays open when they disconnect.
#[tokio::test]
async fn n_165_attach_shows_new_output_and_stdin_stays_open() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let mut spec = script("echo before; while read line; do echo got $line; done; echo eof");
    spec.stdin = true;
    let container = fixture.started(&sandbox, &spec).await;
    fixture.wait_for_log(&container, "before").await;
    let exec = Exec { stdin: true, stdout: true, stderr: true, ..Exec::default() };
    let mut first = fixture.native.attach(&container.id, &exec).await.unwrap();
    let mut second = fixture.native.attach(&container.id, &exec).await.unwrap();
    first.stdin.as_ref().unwrap().send(Bytes::from_static(b"one\n")).await.unwrap();
    assert_eq!(read_until(&mut first, "one\n").await, "got one\n");
    assert_eq!(read_until(&mut second, "one\n").await, "got one\n");
    drop((first, second));
    let mut third = fixture.native.attach(&container.id, &exec).await.unwrap();
    third.stdin.as_ref().unwrap().send(Bytes::from_static(b"two\n")).await.unwrap();
    assert_eq!(read_until(&mut third, "two\n").await, "got two\n");
    fixture.native.kill_container(&container.id).await.unwrap();
    assert!(tokio::time::timeout(TIMEOUT, third.exit).await.unwrap().is_ok());
    assert_eq!(fixture.log(&container).stdout(), "before\ngot one\ngot two\n");
    fixture.clean_up().await;
}

/// N-64: without stdin, input is at its end; with stdinOnce, it ends with the first client.
#[tokio::test]
async fn n_64_stdin_is_closed_as_requested() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let (exit, log) = fixture.run(&sandbox, &script("cat; echo eof")).await;
    assert_eq!((exit.code, log.stdout().as_str()), (0, "eof\n"));
    let mut spec = script("cat; echo eof");
    (spec.stdin, spec.stdin_once) = (true, true);
    let container = fixture.started(&sandbox, &spec).await;
    let exec = Exec { stdin: true, stdout: true, stderr: true, ..Exec::default() };
    let session = fixture.native.attach(&container.id, &exec).await.unwrap();
    session.stdin.as_ref().unwrap().send(Bytes::from_static(b"in\n")).await.unwrap();
    drop(session);
    assert_eq!(fixture.exit(&container.id).await.code, 0);
    assert_eq!(fixture.log(&container).stdout(), "in\neof\n");
    fixture.clean_up().await;
}

/// N-64: with a terminal, stdout and stderr are one stream.
#[tokio::test]
async fn n_64_a_container_with_a_terminal_can_be_attached_and_resized() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let mut spec =
        script("echo up >&2; read x; while ! stty size | grep -q '17 91'; do :; done; echo sized");
    (spec.stdin, spec.tty) = (true, true);
    let container = fixture.started(&sandbox, &spec).await;
    fixture.wait_for_log(&container, "stdout F up").await;
    let exec = Exec { stdin: true, stdout: true, tty: true, ..Exec::default() };
    let mut session = fixture.native.attach(&container.id, &exec).await.unwrap();
    session.resize.as_ref().unwrap().send(Size { width: 91, height: 17 }).await.unwrap();
    session.stdin.as_ref().unwrap().send(Bytes::from_static(b"go\n")).await.unwrap();
    read_until(&mut session, "sized").await;
    assert_eq!(fixture.exit(&container.id).await.code, 0);
    fixture.clean_up().await;
}

/// N-166: connects to localhost of the sandbox's network.
#[tokio::test]
async fn n_166_connect_reaches_a_port_inside_the_sandbox() {
    use tokio::io::AsyncReadExt;
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let text = format!("echo hi | nc -l -p {port}");
    let container = fixture.started(&sandbox, &script(&text)).await;
    let row = format!(":{port:04X} 00000000:0000 0A");
    until(|| {
        std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&row)
            || std::fs::read_to_string("/proc/net/tcp6").unwrap().contains(&format!(":{port:04X} "))
    })
    .await;
    let mut stream = fixture.native.connect(&sandbox.id, port).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "hi\n");
    let error = fixture.native.connect(&sandbox.id, 9).await.unwrap_err().to_string();
    assert_eq!(
        error, "failed to connect to localhost:9: connection refused",
        "upstream's error text"
    );
    drop(container);
    fixture.clean_up().await;
}
