//! Lifecycle hooks: postStart and preStop, with the handlers of probes but rules of their own.
//!
//! A hook has no timeout here; whoever runs it stops waiting when the grace period is over, and a
//! command that runs then goes on running (T-NODE-28).

use super::handler::{Handler, Target};
use super::http::{Follow, PLAIN_ANSWER};
use super::http_request::{self, Request};
use super::{exec, http};
use client::Recorder;
use k8s_openapi::api::core::v1::LifecycleHandler;
use std::time::Duration;

/// What a hook said on its way, for the record of the ending. It never reaches events or logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) exit_code: Option<i32>,
    pub(crate) http_status: Option<i32>,
    pub(crate) output: String,
}

/// Why a hook failed. Events say only that it did; this is for logs and the container's state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct HookFailure {
    pub(crate) message: String,
    pub(crate) said: Said,
}

impl From<String> for HookFailure {
    fn from(message: String) -> Self {
        let said = Said { output: message.clone(), ..Said::default() };
        HookFailure { message, said }
    }
}

/// What kind of hook it is, as the spec calls it.
pub(crate) fn hook_word(hook: &LifecycleHandler) -> &'static str {
    match Handler::of_hook(hook) {
        Handler::Exec(_) => "exec",
        Handler::Http(_) => "httpGet",
        Handler::Sleep(_) => "sleep",
        Handler::Tcp(_) => "tcpSocket",
        Handler::Grpc(_) | Handler::Missing => "unknown",
    }
}

/// Runs to its end. Dropping the future stops waiting, not the hook's command.
pub(crate) async fn run_hook(
    hook: &LifecycleHandler,
    target: &Target,
    recorder: &Recorder,
) -> Result<Said, HookFailure> {
    match Handler::of_hook(hook) {
        Handler::Exec(action) => in_container(action.command.clone(), target).await,
        Handler::Http(action) => {
            let request = http_request::of_action(action, target, "kube-lifecycle")?;
            Ok(get(request, target, recorder).await?)
        }
        Handler::Sleep(action) => {
            let seconds = u64::try_from(action.seconds).unwrap_or_default();
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(Said::default())
        }
        Handler::Tcp(_) | Handler::Grpc(_) | Handler::Missing => {
            Err("invalid handler: missing handler implementation".to_owned().into())
        }
    }
}

/// In a task of its own: the session must not be dropped with the caller's patience.
async fn in_container(command: Option<Vec<String>>, target: &Target) -> Result<Said, HookFailure> {
    let command = command.unwrap_or_default();
    let words = command.join(" ");
    let target = target.clone();
    let task = tokio::spawn(async move { exec::run(&target, &exec::exec(command, None)).await });
    let (code, output) = task.await.map_err(|error| error.to_string())??;
    let output = String::from_utf8_lossy(&output).into_owned();
    let said = Said { exit_code: Some(code), http_status: None, output };
    match code {
        0 => Ok(said),
        _ => {
            let message = format!("command '{words}' exited with {code}: {}", said.output);
            Err(HookFailure { message, said })
        }
    }
}

/// Any answer will do, 500 included (T-NODE-31).
async fn get(request: Request, target: &Target, recorder: &Recorder) -> Result<Said, String> {
    let failed = match http::get(request.clone(), Follow::Anywhere).await {
        Ok(answer) => return Ok(answered(&answer)),
        Err(failed) => failed,
    };
    if !request.tls || !failed.contains(PLAIN_ANSWER) {
        return Err(failed);
    }
    let mut plain = Request { tls: false, ..request };
    plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    let answer = http::get(plain.clone(), Follow::Anywhere).await?;
    let host = super::dial::authority(&plain.host, plain.port);
    recorder.warning(
        &client::reference(&*target.pod),
        "LifecycleHTTPFallback",
        format!(
            "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
        ),
    );
    Ok(answered(&answer))
}

fn answered(answer: &http::Answer) -> Said {
    let output = String::from_utf8_lossy(&answer.body).into_owned();
    Said { exit_code: None, http_status: Some(i32::from(answer.status)), output }
}
