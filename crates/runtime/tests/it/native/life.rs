//! A container from create to remove: what runs, how it ends, what stays.

use super::world::{script, world, world_with};
use runtime::{ContainerState, Error, ImageConfig, Runtime};
use std::time::Duration;

#[tokio::test]
async fn a_container_runs_and_its_output_is_in_the_log() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let (exit, log) = world.run(&sandbox, &script("echo hello; echo oh >&2")).await;
    assert_eq!((exit.code, exit.signal, exit.reason.as_str()), (0, None, ""));
    assert!(exit.started_at.unwrap() <= exit.finished_at);
    assert_eq!(log.of("stdout"), "hello\n");
    assert_eq!(log.of("stderr"), "oh\n");
    world.leave().await;
}

/// T-NODE-47: codes are the process's own, or 128 and the signal.
#[tokio::test]
async fn t_node_47_exit_codes_and_signals_are_told_apart() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    // Process 1 of a namespace ignores signals it has no handler for, so a child is signalled.
    for (text, code) in [
        ("true", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("sh -c 'kill -TERM $$'; exit $?", 143),
        ("sh -c 'kill -KILL $$'; exit $?", 137),
    ] {
        let (exit, _) = world.run(&sandbox, &script(text)).await;
        assert_eq!(exit.code, code, "{text}");
    }
    let container = world.started(&sandbox, &script("sleep 1000")).await;
    world.native.kill_container(&container.id).await.unwrap();
    let exit = world.exit(&container.id).await;
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    // Real-time signals have numbers only; they end processes all the same.
    let mut spec = world.sandbox_spec();
    spec.pid = runtime::Namespace::Host;
    let sandbox = world.native.run_sandbox(&spec).await.unwrap();
    let mut spec = script("exec sleep 1000");
    spec.stop_signal = Some("SIGRTMIN+3".into());
    let container = world.started(&sandbox, &spec).await;
    world.native.stop_container(&container.id, Duration::from_secs(1)).await.unwrap();
    let exit = world.exit(&container.id).await;
    assert_eq!((exit.code, exit.signal), (165, Some(37)));
    world.leave().await;
}

/// T-NODE-21, T-NODE-22: the stop signal is the spec's, else the image's, else TERM; to stop what has
/// stopped is fine.
#[tokio::test]
async fn stop_sends_the_signal_that_was_asked_for() {
    let image = ImageConfig { stop_signal: Some("SIGUSR1".into()), ..ImageConfig::default() };
    let world = world_with(image).await;
    let sandbox = world.sandbox().await;
    let text = "trap 'exit 21' USR1; trap 'exit 22' USR2; echo up; while :; do sleep 0.02; done";
    for (signal, code) in [(None, 21), (Some("USR2"), 22)] {
        let mut spec = script(text);
        spec.stop_signal = signal.map(str::to_owned);
        let container = world.started(&sandbox, &spec).await;
        world.wait_for_log(&container, "up").await;
        world.native.stop_container(&container.id, Duration::from_secs(1)).await.unwrap();
        assert_eq!(world.exit(&container.id).await.code, code);
        world.native.stop_container(&container.id, Duration::from_secs(1)).await.unwrap();
    }
    world.leave().await;
}

/// N-45: a command that cannot be run ends the container with 128 and StartError.
#[tokio::test]
async fn n_45_a_command_that_is_not_there_is_a_start_error() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    for (command, text) in [
        ("nope", "exec: \"nope\": executable file not found in $PATH"),
        ("/nope", "exec: \"/nope\": stat /nope: no such file or directory"),
        ("/etc/passwd", "exec: \"/etc/passwd\": permission denied"),
    ] {
        let mut spec = script("");
        spec.command = Some(vec![command.into()]);
        let container = world.created(&sandbox, &spec).await;
        let error = world.native.start_container(&container.id).await.unwrap_err();
        assert!(matches!(error, Error::Start(_)), "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
        let exit = world.exit(&container.id).await;
        assert_eq!((exit.code, exit.reason.as_str()), (128, "StartError"));
        assert_eq!(exit.started_at, None);
        assert!(exit.message.contains(text), "{}", exit.message);
    }
    world.leave().await;
}

/// N-49, N-207: command and args against the image's ENTRYPOINT and CMD.
#[tokio::test]
async fn n_49_command_and_args_replace_the_images() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let image = ImageConfig {
        entrypoint: words("/bin/echo entry"),
        cmd: words("cmd"),
        env: vec![("FROM".into(), "image".into()), ("KEPT".into(), "yes".into())],
        working_dir: Some("/made/by/us".into()),
        ..ImageConfig::default()
    };
    let world = world_with(image).await;
    let sandbox = world.sandbox().await;
    for (command, args, output) in [
        (None, None, "entry cmd\n"),
        (None, Some("args"), "entry args\n"),
        (Some("/bin/echo command"), None, "command\n"),
        (Some("/bin/echo command"), Some("args"), "command args\n"),
    ] {
        let mut spec = script("");
        (spec.command, spec.args) = (command.map(words), args.map(words));
        let (_, log) = world.run(&sandbox, &spec).await;
        assert_eq!(log.stdout(), output);
    }
    let mut spec = script("pwd; echo $FROM $KEPT $HOME");
    spec.env = vec![("FROM".into(), "pod".into())];
    let (_, log) = world.run(&sandbox, &spec).await;
    assert_eq!(log.stdout(), "/made/by/us\npod yes /root\n");
    spec.working_dir = Some("/tmp/other".into());
    spec.log_path = "c/other.log".into();
    let (_, log) = world.run(&sandbox, &spec).await;
    assert!(log.stdout().starts_with("/tmp/other\n"), "{}", log.0);
    world.leave().await;
}

#[tokio::test]
async fn n_49_no_command_at_all_is_refused() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let mut spec = script("");
    spec.command = None;
    let error = world.native.create_container(&sandbox.id, &spec).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(text) if text == "no command specified"), "{error:?}");
    world.leave().await;
}

#[tokio::test]
async fn n_49_volumes_of_the_image_are_writable_and_begin_with_its_content() {
    let image = ImageConfig { volumes: vec!["/data".into()], ..ImageConfig::default() };
    let world = world_with(image).await;
    let sandbox = world.sandbox().await;
    let mut spec =
        script("cat /data/from-image; echo; touch /data/x && grep ' /data ' /proc/mounts | wc -l");
    spec.security.read_only_root = true;
    let (exit, log) = world.run(&sandbox, &spec).await;
    assert_eq!((exit.code, log.stdout().as_str()), (0, "image\n1\n"), "{}", log.0);
    world.leave().await;
}

#[tokio::test]
async fn an_ended_container_is_forgotten_and_its_log_stays() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let container = world.started(&sandbox, &script("echo stays")).await;
    world.exit(&container.id).await;
    world.native.remove_container(&container.id).await.unwrap();
    world.native.remove_container(&container.id).await.unwrap();
    let sandboxes = world.native.sandboxes_of(&world.uid).await.unwrap();
    assert!(sandboxes[0].containers.is_empty());
    assert_eq!(world.log(&container).stdout(), "stays\n");
    let running = world.started(&sandbox, &script("sleep 1000")).await;
    assert!(world.native.remove_container(&running.id).await.is_err());
    assert!(matches!(world.container(&running.id).await.state, ContainerState::Running { .. }));
    world.leave().await;
}

/// T-NODE-72: a process that has run away from its container dies with the sandbox.
#[tokio::test]
async fn t_node_72_stopping_a_sandbox_ends_every_process_in_it() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let spec = script("(sleep 1000 &) ; (sleep 1000 &) ; echo up; sleep 1000");
    let container = world.started(&sandbox, &spec).await;
    world.wait_for_log(&container, "up").await;
    world.native.stop_sandbox(&sandbox.id).await.unwrap();
    world.native.stop_sandbox(&sandbox.id).await.unwrap();
    let stopped = &world.native.sandboxes_of(&world.uid).await.unwrap()[0];
    assert_eq!(stopped.state, runtime::SandboxState::NotReady);
    assert_eq!(stopped.message, "");
    assert_eq!(world.exit(&container.id).await.code, 137);
    let error = world.native.create_container(&sandbox.id, &spec).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    world.leave().await;
}
