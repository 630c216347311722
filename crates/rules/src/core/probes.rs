//! Probes and lifecycle hooks of containers.

use super::checks;
use api::field::{At, Errors};
use api::names;

/// Validates hooks and probes of containers that keep running.
pub(super) fn validate(container: &At, grace: Option<i64>, os: Option<&str>, errors: &mut Errors) {
    let lifecycle = container.field("lifecycle");
    stop_signal(&lifecycle.field("stopSignal"), os, errors);
    for hook in ["postStart", "preStop"] {
        let handler = lifecycle.field(hook);
        if handler.is_set() {
            self::handler(&handler, &["exec", "httpGet", "tcpSocket", "sleep"], grace, errors);
        }
    }
    let liveness = container.field("livenessProbe");
    if liveness.is_set() {
        probe(&liveness, errors);
        success_threshold_is_one(&liveness, errors);
    }
    let readiness = container.field("readinessProbe");
    if readiness.is_set() {
        probe(&readiness, errors);
        let grace = readiness.field("terminationGracePeriodSeconds");
        if grace.is_set() {
            errors.invalid(&grace, "must not be set for readinessProbes");
        }
    }
    let startup = container.field("startupProbe");
    if startup.is_set() {
        probe(&startup, errors);
        success_threshold_is_one(&startup, errors);
    }
}

/// A stop signal requires `spec.os.name`, because signals depend on the operating system (T-NODE-23).
fn stop_signal(signal: &At, os: Option<&str>, errors: &mut Errors) {
    if !signal.is_set() {
        return;
    }
    let known: Vec<&str> = match os {
        None => {
            let why = "may not be set for containers with empty `spec.os.name`";
            return errors.forbidden(signal, why);
        }
        Some("windows") => vec!["SIGKILL", "SIGTERM"],
        Some(_) => LINUX_SIGNALS.split_whitespace().collect(),
    };
    if !known.contains(&signal.text()) {
        errors.not_supported(signal, &known);
    }
}

/// Sorted, as in error messages.
pub(super) const LINUX_SIGNALS: &str = "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL \
    SIGINT SIGIO SIGIOT SIGKILL SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMAX-1 \
    SIGRTMAX-10 SIGRTMAX-11 SIGRTMAX-12 SIGRTMAX-13 SIGRTMAX-14 SIGRTMAX-2 SIGRTMAX-3 SIGRTMAX-4 \
    SIGRTMAX-5 SIGRTMAX-6 SIGRTMAX-7 SIGRTMAX-8 SIGRTMAX-9 SIGRTMIN SIGRTMIN+1 SIGRTMIN+10 \
    SIGRTMIN+11 SIGRTMIN+12 SIGRTMIN+13 SIGRTMIN+14 SIGRTMIN+15 SIGRTMIN+2 SIGRTMIN+3 SIGRTMIN+4 \
    SIGRTMIN+5 SIGRTMIN+6 SIGRTMIN+7 SIGRTMIN+8 SIGRTMIN+9 SIGSEGV SIGSTKFLT SIGSTOP SIGSYS \
    SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU \
    SIGXFSZ";

/// Init containers that are not sidecars may not have hooks or probes, because they run to completion.
pub(super) fn forbid(container: &At, errors: &mut Errors) {
    for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if container.field(field).is_set() {
            errors.forbidden(
                &container.field(field),
                "may not be set for init containers without restartPolicy=Always",
            );
        }
    }
}

fn probe(probe: &At, errors: &mut Errors) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], None, errors);
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        checks::non_negative(&probe.field(field), errors);
    }
    let grace = probe.field("terminationGracePeriodSeconds");
    if grace.int().is_some_and(|seconds| seconds <= 0) {
        errors.invalid(&grace, "must be greater than 0");
    }
}

fn success_threshold_is_one(probe: &At, errors: &mut Errors) {
    let threshold = probe.field("successThreshold");
    if threshold.int() != Some(1) {
        errors.invalid(&threshold, "must be 1");
    }
}

/// A probe or hook has exactly one handler.
fn handler(handler: &At, kinds: &[&str], grace: Option<i64>, errors: &mut Errors) {
    let mut found = false;
    for kind in kinds {
        let action = handler.field(kind);
        if !action.is_set() {
            continue;
        }
        if found {
            errors.forbidden(&action, "may not specify more than 1 handler type");
            continue;
        }
        found = true;
        match *kind {
            "exec" => {
                if action.field("command").is_empty() {
                    errors.required(&action.field("command"), "");
                }
            }
            "httpGet" => http_get(&action, errors),
            "sleep" => sleep(&action, grace, errors),
            _ => checks::port(&action.field("port"), errors),
        }
    }
    if !found {
        errors.required(handler, "must specify a handler type");
    }
}

fn http_get(action: &At, errors: &mut Errors) {
    checks::required(&action.field("path"), errors);
    checks::port(&action.field("port"), errors);
    let scheme = action.field("scheme");
    if !["HTTP", "HTTPS"].contains(&scheme.text()) {
        errors.not_supported(&scheme, &["HTTP", "HTTPS"]);
    }
    let headers = action.field("httpHeaders");
    for header in headers.items() {
        for wrong in names::http_header_name(header.field("name").text()) {
            errors.invalid_value(&headers, header.field("name").text(), &wrong);
        }
    }
}

/// A sleep may not be longer than the grace period.
fn sleep(action: &At, grace: Option<i64>, errors: &mut Errors) {
    let seconds = action.field("seconds").int().unwrap_or_default();
    if let Some(grace) = grace
        && !(0..=grace).contains(&seconds)
    {
        errors.invalid_value(
            action,
            seconds,
            &format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})"),
        );
    }
}
