//! Containers cannot escape through namespaces that they share with the node or with other containers.

use super::fixture::{Fixture, fixture, script, shims_of};
use runtime::{Container, ContainerSpec, Namespace, Runtime, Sandbox};

/// A pod whose containers share a PID namespace.
async fn sandbox_with_shared_pid(fixture: &Fixture) -> Sandbox {
    let mut spec = fixture.sandbox_spec();
    spec.pid = Namespace::Pod;
    fixture.native.run_sandbox(&spec).await.unwrap()
}

/// With the capability that `kubectl debug --profile=general` adds.
fn with_ptrace(text: &str) -> ContainerSpec {
    let mut spec = script(text);
    spec.security.capabilities.add = vec!["SYS_PTRACE".into()];
    spec
}

/// N-123: the pause process has no privileges that a container could take over.
#[tokio::test]
async fn n_123_the_pause_process_has_no_privileges() {
    let fixture = fixture().await;
    let sandbox = sandbox_with_shared_pid(&fixture).await;
    let text = "ls -A /proc/1/root/ | wc -l; ls -A /proc/1/cwd/ | wc -l; ls /proc/1/fd | wc -l; \
                touch /proc/1/root/x 2>/dev/null || echo read-only; grep -c . /proc/1/mountinfo; \
                grep -E '^(Uid|Gid|Groups|Cap...|NoNewPrivs|Seccomp):' /proc/1/status | tr -d '\\t '";
    let (exit, log) = fixture.run(&sandbox, &with_ptrace(text)).await;
    assert_eq!(exit.code, 0, "{}", log.0);
    let none = "0000000000000000";
    let expected = format!(
        "0\n0\n0\nread-only\n1\n\
         Uid:65535655356553565535\nGid:65535655356553565535\nGroups:\n\
         CapInh:{none}\nCapPrm:{none}\nCapEff:{none}\nCapBnd:{none}\nCapAmb:{none}\n\
         NoNewPrivs:1\nSeccomp:2\n"
    );
    assert_eq!(log.stdout(), expected);
    fixture.clean_up().await;
}

/// Prints what it can access through any process that it sees, in a loop.
fn watcher(fixture: &Fixture) -> ContainerSpec {
    let marker = fixture.directory.path().join("layer");
    let marker = marker.display();
    with_ptrace(&format!(
        "echo watching; while :; do for p in /proc/[0-9]*; do \
           if test -e $p/root{marker}; then echo reached the node; fi; \
           while read key value; do case $key in CapPrm:) case $value in \
             0000000000000000|00000000a80425fb|00000000a80c25fb) ;; *) echo capabilities $value ;; \
           esac ;; esac; done < $p/status; \
           for fd in 3 4 5 6 7 8 9; do case $(readlink $p/fd/$fd) in \
             *.log|*socket*|*signalfd*) echo descriptor $fd ;; esac; done; \
         done 2>/dev/null; done"
    ))
}

/// Stops the watcher and returns its output.
async fn found(fixture: &Fixture, watcher: &Container) -> String {
    fixture.native.kill_container(&watcher.id).await.unwrap();
    fixture.exit(&watcher.id).await;
    fixture.log(watcher).stdout()
}

/// N-123: a process that enters the namespace has no access to the node at any time.
#[tokio::test]
async fn n_123_processes_that_enter_a_shared_namespace_have_no_access_to_the_node() {
    let fixture = fixture().await;
    let sandbox = sandbox_with_shared_pid(&fixture).await;
    let watcher = fixture.started(&sandbox, &watcher(&fixture)).await;
    fixture.wait_for_log(&watcher, "watching").await;
    for _ in 0..5 {
        let other = fixture.started(&sandbox, &script("exec sleep 1000")).await;
        assert_eq!(fixture.exec(&other.id, &["true"]).await.0, 0);
        fixture.native.kill_container(&other.id).await.unwrap();
    }
    assert_eq!(found(&fixture, &watcher).await, "watching\n");
    fixture.clean_up().await;
}

/// N-123: the same for an ephemeral container and its target.
#[tokio::test]
async fn n_123_ephemeral_containers_have_no_access_to_the_node() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let watcher = fixture.started(&sandbox, &watcher(&fixture)).await;
    fixture.wait_for_log(&watcher, "watching").await;
    for _ in 0..5 {
        let mut joining = script("ps | grep -q [w]atching && test $$ != 1 && echo joined");
        joining.pid_of = Some(watcher.id.clone());
        let (exit, log) = fixture.run(&sandbox, &joining).await;
        assert_eq!((exit.code, log.stdout().as_str()), (0, "joined\n"), "{}", log.0);
        assert_eq!(fixture.exec(&watcher.id, &["true"]).await.0, 0);
    }
    assert_eq!(found(&fixture, &watcher).await, "watching\n");
    fixture.clean_up().await;
}

/// The terminal is opened while the process enters the namespace.
#[tokio::test]
async fn a_container_in_a_shared_pid_namespace_can_have_a_terminal() {
    let fixture = fixture().await;
    let sandbox = sandbox_with_shared_pid(&fixture).await;
    let mut spec = script("test -t 0 && test -c /dev/console && echo on > /dev/tty");
    spec.tty = true;
    let (exit, log) = fixture.run(&sandbox, &spec).await;
    assert_eq!(exit.code, 0, "{}", log.0);
    assert_eq!(log.stdout(), "on\n");
    fixture.clean_up().await;
}

/// CVE-2019-5736: the file that a shim runs cannot be changed, not even when it no longer runs.
#[tokio::test]
async fn the_shim_binary_cannot_be_opened_for_writing() {
    let fixture = fixture().await;
    let sandbox = sandbox_with_shared_pid(&fixture).await;
    let shims = shims_of(fixture.directory.path().to_str().unwrap());
    let exe = |pid: i32| format!("/proc/{pid}/exe");
    let kept: Vec<_> = shims.iter().map(|pid| std::fs::File::open(exe(*pid)).unwrap()).collect();
    // The shim and the pause process.
    assert_eq!(kept.len(), 2);
    let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert!(shims.iter().all(|pid| name(pid) == "landfall-shim-t\n"), "{shims:?}");
    let open_error = |path: String| {
        let outcome = std::fs::File::options().write(true).open(path);
        outcome.unwrap_err().raw_os_error()
    };
    for pid in &shims {
        assert_eq!(open_error(exe(*pid)), Some(libc::EROFS));
    }
    fixture.native.remove_sandbox(&sandbox.id).await.unwrap();
    for file in &kept {
        use std::os::fd::AsRawFd;
        assert_eq!(open_error(format!("/proc/self/fd/{}", file.as_raw_fd())), Some(libc::EROFS));
    }
    fixture.clean_up().await;
}

/// Containers can create setuid files. Other users of the node must not reach them, even if the directory existed
/// before with another mode.
#[tokio::test]
async fn only_root_can_enter_the_state_directory() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = fixture().await;
    let run = fixture.directory.path().join("run");
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755)).unwrap();
    let fixture = fixture.restart().await;
    assert_eq!(std::fs::metadata(&run).unwrap().permissions().mode() & 0o777, 0o700);
    fixture.clean_up().await;
}
