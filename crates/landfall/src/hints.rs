//! What landfall tells people beyond the bare facts: what is missing, and what to type next.

use crate::command::DATA_DIR;
use crate::shutdown::StopCause;
use std::io::Write;
use std::path::Path;

/// Containers need root. Without this check the first step that needs it would fail in its own words,
/// after others have written to the data directory.
pub(crate) fn require_root(command: &str) -> anyhow::Result<()> {
    check_root(nix::unistd::geteuid().is_root(), command)
}

fn check_root(is_root: bool, command: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        is_root,
        "`{command}` runs containers, which needs root: try `sudo {command}`. Without root you can run \
         the API server, controllers and scheduler, but no pods: `landfall server --data-dir DIR`"
    );
    Ok(())
}

/// A remedy for an error that has to do with permissions. None: the error is about something else.
pub(crate) fn permission_remedy(error: &anyhow::Error) -> Option<&'static str> {
    let denied = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    let root = nix::unistd::geteuid().is_root();
    (!root && error.chain().any(denied)).then_some(
        "Run it with sudo, or use a directory of your own: --data-dir DIR (`landfall server` needs no root)",
    )
}

/// After Ctrl-C or SIGTERM: says that landfall has stopped, and how to end the pods that keep running.
pub(crate) fn stopped(cause: &StopCause, pods: usize, data_dir: &Path) {
    if matches!(cause, StopCause::Signal) {
        // The reader of the output may be gone by now.
        let _ = writeln!(std::io::stdout(), "{}", stop_message(pods, data_dir));
    }
}

fn stop_message(pods: usize, data_dir: &Path) -> String {
    let (pods, them, each) = match pods {
        0 => return "landfall has stopped".to_owned(),
        1 => ("1 pod keeps".to_owned(), "it", "it"),
        _ => (format!("{pods} pods keep"), "them", "each"),
    };
    let option = data_dir_option(data_dir);
    format!(
        "landfall has stopped; {pods} running, and the next start finds {them}. To end {them}: landfall \
         down{option} (gracefully while landfall runs; otherwise {each} gets 2 s and no preStop hook)"
    )
}

/// The user who called sudo may prefer a context to another kubeconfig.
pub(crate) fn merge_kubeconfig(data_dir: &Path) {
    let option = data_dir_option(data_dir);
    println!("to add a context to your ~/.kube/config: sudo landfall kubeconfig --merge{option}");
}

/// ` --data-dir DIR`, or nothing for the default directory.
fn data_dir_option(data_dir: &Path) -> String {
    match data_dir == Path::new(DATA_DIR) {
        true => String::new(),
        false => format!(" --data-dir {}", data_dir.display()),
    }
}

/// landfall brings no kubectl; a first user may not have one.
pub(crate) fn missing_kubectl() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join("kubectl").is_file()) {
        println!(
            "no kubectl found in PATH. On Debian: apt-get install kubernetes-client. Elsewhere: \
             https://kubernetes.io/docs/tasks/tools/"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_root_the_error_suggests_sudo_and_the_server_alone() {
        assert!(check_root(true, "landfall up").is_ok());
        let error = check_root(false, "landfall up").unwrap_err().to_string();
        assert!(error.contains("sudo landfall up") && error.contains("landfall server"), "{error}");
    }

    #[test]
    fn the_hint_names_the_number_of_pods_and_the_command() {
        assert_eq!(stop_message(0, Path::new(DATA_DIR)), "landfall has stopped");
        let line = stop_message(1, Path::new(DATA_DIR));
        assert!(line.contains("1 pod keeps running") && line.contains("landfall down ("), "{line}");
        let line = stop_message(3, Path::new("/x"));
        assert!(line.contains("3 pods keep") && line.contains("down --data-dir /x ("), "{line}");
    }
}
