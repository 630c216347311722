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

/// Why a hook failed. Events say only that it did; this is for logs and the container's state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct HookFailure {
    pub(crate) message: String,
}

/// Runs to its end. Dropping the future stops waiting, not the hook's command.
pub(crate) async fn run_hook(
    hook: &LifecycleHandler,
    target: &Target,
    recorder: &Recorder,
) -> Result<(), HookFailure> {
    let done = match Handler::of_hook(hook) {
        Handler::Exec(action) => in_container(action.command.clone(), target).await,
        Handler::Http(action) => match http_request::of_action(action, target, "kube-lifecycle") {
            Ok(request) => get(request, target, recorder).await,
            Err(why) => Err(why),
        },
        Handler::Sleep(action) => {
            let seconds = u64::try_from(action.seconds).unwrap_or_default();
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(())
        }
        Handler::Tcp(_) | Handler::Grpc(_) | Handler::Missing => {
            Err("invalid handler: missing handler implementation".to_owned())
        }
    };
    done.map_err(|message| HookFailure { message })
}

/// In a task of its own: the session must not be dropped with the caller's patience.
async fn in_container(command: Option<Vec<String>>, target: &Target) -> Result<(), String> {
    let command = command.unwrap_or_default();
    let said = command.join(" ");
    let target = target.clone();
    let task = tokio::spawn(async move { exec::run(&target, &exec::exec(command, None)).await });
    match task.await.map_err(|error| error.to_string())? {
        Ok((0, _)) => Ok(()),
        Ok((code, output)) => {
            let output = String::from_utf8_lossy(&output).into_owned();
            Err(format!("command '{said}' exited with {code}: {output}"))
        }
        Err(why) => Err(why),
    }
}

/// Any answer will do, 500 included (T-NODE-31).
async fn get(request: Request, target: &Target, recorder: &Recorder) -> Result<(), String> {
    let failed = match http::get(request.clone(), Follow::Anywhere).await {
        Ok(_) => return Ok(()),
        Err(failed) => failed,
    };
    if !request.tls || !failed.contains(PLAIN_ANSWER) {
        return Err(failed);
    }
    let mut plain = Request { tls: false, ..request };
    plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    http::get(plain.clone(), Follow::Anywhere).await?;
    let host = super::dial::authority(&plain.host, plain.port);
    recorder.warning(
        &client::reference(&*target.pod),
        "LifecycleHTTPFallback",
        format!(
            "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
        ),
    );
    Ok(())
}
