//! Lifecycle hooks: postStart and preStop. They use the handlers of probes, with different rules.
//!
//! A hook has no timeout here. The caller stops waiting at the end of the grace period; a command
//! that still runs then keeps running (T-NODE-28).

use super::handler::{Handler, Target};
use super::http::{Follow, PLAIN_RESPONSE};
use super::http_request::{self, Request};
use super::{exec, http};
use client::Recorder;
use k8s_openapi::api::core::v1::LifecycleHandler;
use std::time::Duration;

/// The output of a hook, for the termination record. It is never in events or logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HookOutput {
    pub(crate) exit_code: Option<i32>,
    pub(crate) http_status: Option<i32>,
    pub(crate) text: String,
}

/// Why a hook failed, for logs and the container's state. Events only tell that it failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct HookFailure {
    pub(crate) message: String,
    pub(crate) output: HookOutput,
}

impl From<String> for HookFailure {
    fn from(message: String) -> Self {
        let output = HookOutput { text: message.clone(), ..HookOutput::default() };
        HookFailure { message, output }
    }
}

/// The name of the hook's handler in the spec.
pub(crate) fn hook_kind(hook: &LifecycleHandler) -> &'static str {
    match Handler::of_hook(hook) {
        Handler::Exec(_) => "exec",
        Handler::Http(_) => "httpGet",
        Handler::Sleep(_) => "sleep",
        Handler::Tcp(_) => "tcpSocket",
        Handler::Grpc(_) | Handler::Missing => "unknown",
    }
}

/// Runs the hook. Dropping the future stops waiting, but not the hook's command.
pub(crate) async fn run_hook(
    hook: &LifecycleHandler,
    target: &Target,
    recorder: &Recorder,
) -> Result<HookOutput, HookFailure> {
    match Handler::of_hook(hook) {
        Handler::Exec(action) => in_container(action.command.clone(), target).await,
        Handler::Http(action) => {
            let request = http_request::of_action(action, target, "kube-lifecycle")?;
            Ok(get(request, target, recorder).await?)
        }
        Handler::Sleep(action) => {
            let seconds = u64::try_from(action.seconds).unwrap_or_default();
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(HookOutput::default())
        }
        Handler::Tcp(_) | Handler::Grpc(_) | Handler::Missing => {
            Err("invalid handler: missing handler implementation".to_owned().into())
        }
    }
}

/// Runs in its own task: dropping the session with the caller's future would kill the command.
async fn in_container(
    command: Option<Vec<String>>,
    target: &Target,
) -> Result<HookOutput, HookFailure> {
    let command = command.unwrap_or_default();
    let command_line = command.join(" ");
    let target = target.clone();
    let task = tokio::spawn(async move { exec::run(&target, &exec::exec(command, None)).await });
    let (code, output) = task.await.map_err(|error| error.to_string())??;
    let text = String::from_utf8_lossy(&output).into_owned();
    let output = HookOutput { exit_code: Some(code), http_status: None, text };
    match code {
        0 => Ok(output),
        _ => {
            let message = format!("command '{command_line}' exited with {code}: {}", output.text);
            Err(HookFailure { message, output })
        }
    }
}

/// Every response counts as success, even 500 (T-NODE-31).
async fn get(request: Request, target: &Target, recorder: &Recorder) -> Result<HookOutput, String> {
    let failed = match http::get(request.clone(), Follow::Anywhere).await {
        Ok(response) => return Ok(hook_output(&response)),
        Err(failed) => failed,
    };
    if !request.tls || !failed.contains(PLAIN_RESPONSE) {
        return Err(failed);
    }
    let mut plain = Request { tls: false, ..request };
    plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    let response = http::get(plain.clone(), Follow::Anywhere).await?;
    let host = super::tcp::authority(&plain.host, plain.port);
    recorder.warning(
        &client::reference(&*target.pod),
        "LifecycleHTTPFallback",
        format!(
            "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
        ),
    );
    Ok(hook_output(&response))
}

fn hook_output(response: &http::Response) -> HookOutput {
    let text = String::from_utf8_lossy(&response.body).into_owned();
    HookOutput { exit_code: None, http_status: Some(i32::from(response.status)), text }
}
