//! exec probes: a command in the container, killed at its timeout (N-102).

use super::handler::{Outcome, Target, go_seconds};
use k8s_openapi::api::core::v1::ExecAction;
use podconfig::expand;
use runtime::Exec;
use std::time::Duration;

/// Bytes of the command's output that are kept.
const OUTPUT_MAX: usize = 10 * 1024;

pub(super) async fn probe(action: &ExecAction, target: &Target, timeout: Duration) -> Outcome {
    let env = target.spec().and_then(|container| container.env.as_deref()).unwrap_or_default();
    // Only literal values of the spec: a variable with valueFrom expands to nothing.
    let value = |name: &str| {
        let variable = env.iter().rfind(|variable| variable.name == name)?;
        Some(variable.value.clone().unwrap_or_default())
    };
    let command = action.command.iter().flatten().map(|word| expand(word, value)).collect();
    let exec = exec(command, Some(timeout));
    // Dropping the session kills the command's processes.
    match tokio::time::timeout(timeout, run(target, &exec)).await {
        Ok(Ok((0, _))) => Outcome::Success,
        Ok(Ok((_, output))) => Outcome::Failure(String::from_utf8_lossy(&output).into_owned()),
        Ok(Err(why)) => Outcome::Error(why),
        Err(_) => {
            let (command, after) = (exec.command.join(" "), go_seconds(timeout));
            Outcome::Failure(format!("command timed out: {command:?} timed out after {after}"))
        }
    }
}

/// Returns the exit code and the start of the output.
pub(super) async fn run(target: &Target, exec: &Exec) -> Result<(i32, Vec<u8>), String> {
    let session = target.runtime.exec(&target.container_id, exec).await;
    session.map_err(|error| error.to_string())?.collect(OUTPUT_MAX).await
}

pub(super) fn exec(command: Vec<String>, timeout: Option<Duration>) -> Exec {
    Exec { command, stdout: true, stderr: true, timeout, ..Exec::default() }
}
