//! exec: a command in the container, killed when its time is over (N-102).

use super::handler::{Outcome, Target, go_seconds};
use k8s_openapi::api::core::v1::ExecAction;
use runtime::Exec;
use std::collections::BTreeMap;
use std::time::Duration;

/// Of what the command says, as much as is kept.
const OUTPUT_MAX: usize = 10 * 1024;

pub(super) async fn probe(action: &ExecAction, target: &Target, timeout: Duration) -> Outcome {
    let env = target.spec().and_then(|container| container.env.as_deref()).unwrap_or_default();
    // Only what is written out in the spec: what comes from elsewhere expands to nothing.
    let known: BTreeMap<&str, &str> = env
        .iter()
        .map(|var| (var.name.as_str(), var.value.as_deref().unwrap_or_default()))
        .collect();
    let command = action.command.iter().flatten().map(|word| expand(word, &known)).collect();
    let exec = exec(command, Some(timeout));
    // Dropping the session ends the command's processes.
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

/// Exit code and the beginning of the output.
pub(super) async fn run(target: &Target, exec: &Exec) -> Result<(i32, Vec<u8>), String> {
    let session = target.runtime.exec(&target.container_id, exec).await;
    session.map_err(|error| error.to_string())?.collect(OUTPUT_MAX).await
}

pub(super) fn exec(command: Vec<String>, timeout: Option<Duration>) -> Exec {
    Exec { command, stdout: true, stderr: true, timeout, ..Exec::default() }
}

/// `$(NAME)` becomes the variable if it is known and stays as it is if not; `$$` is one `$`.
fn expand(text: &str, known: &BTreeMap<&str, &str>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        match name.and_then(|(name, after)| Some((known.get(name)?, after))) {
            Some((value, after)) => {
                expanded.push_str(value);
                rest = after;
            }
            None => expanded.push('$'),
        }
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_102_variables_of_the_spec_are_expanded_and_others_expand_to_nothing() {
        let known = BTreeMap::from([("A", "1"), ("FROM", "")]);
        for (text, expected) in [
            ("echo $(A)", "echo 1"),
            ("$(FROM)x", "x"),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$$(A) $ $(A", "$(A) $ $(A"),
        ] {
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }
}
