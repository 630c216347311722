//! Containers from creation to removal.

use super::fixture::{fixture, fixture_with, script};
use runtime::{ContainerState, Error, ImageConfig, Runtime};
use std::time::Duration;

#[tokio::test]
async fn a_container_runs_and_its_output_is_in_the_log() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let (exit, log) = fixture.run(&sandbox, &script("echo hello; echo oh >&2")).await;
    assert_eq!((exit.code, exit.signal, exit.reason.as_str()), (0, None, ""));
    assert!(exit.started_at.unwrap() <= exit.finished_at);
    assert_eq!(log.of("stdout"), "hello\n");
    assert_eq!(log.of("stderr"), "oh\n");
    fixture.clean_up().await;
}

/// T-NODE-47: exit codes are those of the process, or 128 + signal.
#[tokio::test]
async fn t_node_47_exit_codes_and_signals_are_reported() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    // Process 1 of a namespace ignores signals without a handler, so the script signals a child.
    for (text, code) in [
        ("true", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("sh -c 'kill -TERM $$'; exit $?", 143),
        ("sh -c 'kill -KILL $$'; exit $?", 137),
    ] {
        let (exit, _) = fixture.run(&sandbox, &script(text)).await;
        assert_eq!(exit.code, code, "{text}");
    }
    let container = fixture.started(&sandbox, &script("sleep 1000")).await;
    fixture.native.kill_container(&container.id).await.unwrap();
    let exit = fixture.exit(&container.id).await;
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    // Real-time signals have no names.
    let mut spec = fixture.sandbox_spec();
    spec.pid = runtime::Namespace::Host;
    let sandbox = fixture.native.run_sandbox(&spec).await.unwrap();
    let mut spec = script("exec sleep 1000");
    spec.stop_signal = Some("SIGRTMIN+3".into());
    let container = fixture.started(&sandbox, &spec).await;
    fixture.native.stop_container(&container.id, Duration::from_secs(1)).await.unwrap();
    let exit = fixture.exit(&container.id).await;
    assert_eq!((exit.code, exit.signal), (165, Some(37)));
    fixture.clean_up().await;
}

/// T-NODE-21, T-NODE-22: the stop signal is that of the spec, else of the image, else SIGTERM. Stopping again is not
/// an error.
#[tokio::test]
async fn stop_sends_the_signal_of_the_spec_or_the_image() {
    let image = ImageConfig { stop_signal: Some("SIGUSR1".into()), ..ImageConfig::default() };
    let fixture = fixture_with(image).await;
    let sandbox = fixture.sandbox().await;
    let text = "trap 'exit 21' USR1; trap 'exit 22' USR2; echo up; while :; do sleep 0.02; done";
    for (signal, code) in [(None, 21), (Some("USR2"), 22)] {
        let mut spec = script(text);
        spec.stop_signal = signal.map(str::to_owned);
        let container = fixture.started(&sandbox, &spec).await;
        fixture.wait_for_log(&container, "up").await;
        fixture.native.stop_container(&container.id, Duration::from_secs(1)).await.unwrap();
        assert_eq!(fixture.exit(&container.id).await.code, code);
        fixture.native.stop_container(&container.id, Duration::from_secs(1)).await.unwrap();
    }
    fixture.clean_up().await;
}

/// N-45: if the command cannot be run, the container exits with 128 and reason StartError.
#[tokio::test]
async fn n_45_a_missing_command_is_a_start_error() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    for (command, text) in [
        ("nope", "exec: \"nope\": executable file not found in $PATH"),
        ("/nope", "exec: \"/nope\": stat /nope: no such file or directory"),
        ("/etc/passwd", "exec: \"/etc/passwd\": permission denied"),
    ] {
        let mut spec = script("");
        spec.command = Some(vec![command.into()]);
        let container = fixture.created(&sandbox, &spec).await;
        let error = fixture.native.start_container(&container.id).await.unwrap_err();
        assert!(matches!(error, Error::Start(_)), "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
        let exit = fixture.exit(&container.id).await;
        assert_eq!((exit.code, exit.reason.as_str()), (128, "StartError"));
        assert_eq!(exit.started_at, None);
        assert!(exit.message.contains(text), "{}", exit.message);
    }
    fixture.clean_up().await;
}

/// N-49, N-207: command and args override the image's ENTRYPOINT and CMD.
#[tokio::test]
async fn n_49_command_and_args_override_the_image() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let image = ImageConfig {
        entrypoint: words("/bin/echo entry"),
        cmd: words("cmd"),
        env: vec![("FROM".into(), "image".into()), ("KEPT".into(), "yes".into())],
        working_dir: Some("/made/by/us".into()),
        ..ImageConfig::default()
    };
    let fixture = fixture_with(image).await;
    let sandbox = fixture.sandbox().await;
    for (command, args, output) in [
        (None, None, "entry cmd\n"),
        (None, Some("args"), "entry args\n"),
        (Some("/bin/echo command"), None, "command\n"),
        (Some("/bin/echo command"), Some("args"), "command args\n"),
    ] {
        let mut spec = script("");
        (spec.command, spec.args) = (command.map(words), args.map(words));
        let (_, log) = fixture.run(&sandbox, &spec).await;
        assert_eq!(log.stdout(), output);
    }
    let mut spec = script("pwd; echo $FROM $KEPT $HOME");
    spec.env = vec![("FROM".into(), "pod".into())];
    let (_, log) = fixture.run(&sandbox, &spec).await;
    assert_eq!(log.stdout(), "/made/by/us\npod yes /root\n");
    spec.working_dir = Some("/tmp/other".into());
    spec.log_path = "c/other.log".into();
    let (_, log) = fixture.run(&sandbox, &spec).await;
    assert!(log.stdout().starts_with("/tmp/other\n"), "{}", log.0);
    fixture.clean_up().await;
}

#[tokio::test]
async fn n_49_a_container_without_a_command_is_rejected() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let mut spec = script("");
    spec.command = None;
    let error = fixture.native.create_container(&sandbox.id, &spec).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(text) if text == "no command specified"), "{error:?}");
    fixture.clean_up().await;
}

#[tokio::test]
async fn n_49_image_volumes_are_writable_and_start_with_the_images_content() {
    let image = ImageConfig { volumes: vec!["/data".into()], ..ImageConfig::default() };
    let fixture = fixture_with(image).await;
    let sandbox = fixture.sandbox().await;
    let mut spec =
        script("cat /data/from-image; echo; touch /data/x && grep ' /data ' /proc/mounts | wc -l");
    spec.security.read_only_root = true;
    let (exit, log) = fixture.run(&sandbox, &spec).await;
    assert_eq!((exit.code, log.stdout().as_str()), (0, "image\n1\n"), "{}", log.0);
    fixture.clean_up().await;
}

#[tokio::test]
async fn removing_an_exited_container_keeps_its_log() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let container = fixture.started(&sandbox, &script("echo stays")).await;
    fixture.exit(&container.id).await;
    fixture.native.remove_container(&container.id).await.unwrap();
    fixture.native.remove_container(&container.id).await.unwrap();
    let sandboxes = fixture.native.sandboxes_of(&fixture.uid).await.unwrap();
    assert!(sandboxes[0].containers.is_empty());
    assert_eq!(fixture.log(&container).stdout(), "stays\n");
    let running = fixture.started(&sandbox, &script("sleep 1000")).await;
    assert!(fixture.native.remove_container(&running.id).await.is_err());
    assert!(matches!(fixture.container(&running.id).await.state, ContainerState::Running { .. }));
    fixture.clean_up().await;
}

/// T-NODE-72: stopping a sandbox also kills background processes of its containers.
#[tokio::test]
async fn t_node_72_stopping_a_sandbox_kills_all_its_processes() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let spec = script("(sleep 1000 &) ; (sleep 1000 &) ; echo up; sleep 1000");
    let container = fixture.started(&sandbox, &spec).await;
    fixture.wait_for_log(&container, "up").await;
    fixture.native.stop_sandbox(&sandbox.id).await.unwrap();
    fixture.native.stop_sandbox(&sandbox.id).await.unwrap();
    let stopped = &fixture.native.sandboxes_of(&fixture.uid).await.unwrap()[0];
    assert_eq!(stopped.state, runtime::SandboxState::NotReady);
    assert_eq!(stopped.message, "");
    assert_eq!(fixture.exit(&container.id).await.code, 137);
    let error = fixture.native.create_container(&sandbox.id, &spec).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    fixture.clean_up().await;
}
