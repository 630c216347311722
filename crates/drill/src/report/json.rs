//! The report for programs.

use super::{losses, patch_command};
use crate::confidence::{loss_lower_bound, loss_upper_bound};
use crate::drill::Drilled;
use crate::experiment::Run;
use crate::forecast::Forecast;
use crate::search::Tally;
use serde_json::{Value, json};

/// Failed requests that are listed one by one, per run.
const FAILURES_MAX: usize = 10_000;

pub fn json(drilled: &Drilled) -> Value {
    let (target, options) = (&drilled.target, &drilled.options);
    let id = &target.workload.id;
    let runs = drilled.runs.iter().zip(&drilled.forecasts).map(|(run, forecast)| {
        let mut value = run_json(run);
        value["forecastRolloutSeconds"] = json!(forecast);
        value
    });
    let levels = drilled.levels.iter().map(
        |(level, setting)| json!({ "successPercent": rounded(level * 100.0), "values": setting }),
    );
    let recommended = drilled.recommended.as_ref().map(|found| {
        let mut value = tally_json(found.tally);
        value["values"] = json!(found.setting);
        value["run"] = json!(found.run);
        value["patch"] = drilled.patch().unwrap_or_default();
        value["command"] = json!(patch_command(drilled));
        value
    });
    json!({
        "workload": { "kind": id.kind.word(), "namespace": id.key.namespace(), "name": id.key.name() },
        "container": target.container,
        "service": target.service,
        "address": target.address.to_string(),
        "via": target.via,
        "targetPercent": rounded(options.target * 100.0),
        "ratePerSecond": options.rate,
        "connections": options.connections,
        "restartsPerRun": options.restarts,
        "proxyDelay": options.proxy_delay.as_ref().map(|delay| &delay.text),
        "configured": drilled.configured,
        "targetReached": drilled.reached(),
        "levels": levels.collect::<Vec<_>>(),
        "recommended": recommended,
        "advice": drilled.advice,
        "notes": drilled.notes,
        "runs": runs.collect::<Vec<_>>(),
    })
}

/// Percentages such as 99.9 are not exact in binary.
fn rounded(percent: f64) -> f64 {
    (percent * 1e6).round() / 1e6
}

fn tally_json(tally: Tally) -> Value {
    json!({
        "requests": tally.total,
        "lost": tally.failed,
        "successPercent": rounded(tally.success() * 100.0),
        "lossPercentAtLeast": rounded(loss_lower_bound(tally.failed, tally.total) * 100.0),
        "lossPercentAtMost": rounded(loss_upper_bound(tally.failed, tally.total) * 100.0),
    })
}

fn run_json(run: &Run) -> Value {
    let losses = losses(run).into_iter().map(
        |((failure, step), count)| json!({ "failure": failure, "step": step, "count": count }),
    );
    let failures = run.counted().filter_map(|(index, sample)| {
        let loss = run.losses.get(&index)?;
        let pod = loss.pod.and_then(|pod| run.pods.get(pod)).map(|pod| &pod.name);
        Some(json!({
            "at": sample.due, "seconds": sample.latency, "connection": sample.kind,
            "reused": sample.reused, "failure": loss.failure, "step": loss.step, "pod": pod,
        }))
    });
    let restarts = run.restarts.iter().map(|restart| {
        json!({ "at": restart.at, "rolloutSeconds": restart.rollout, "settledSeconds": restart.settled })
    });
    let mut value = tally_json(run.tally());
    value["values"] = json!(run.setting);
    value["began"] = json!(clock::rfc3339_micros(run.began));
    value["seconds"] = json!(run.length);
    value["restarts"] = restarts.collect();
    value["losses"] = losses.collect();
    value["failures"] = failures.take(FAILURES_MAX).collect();
    value["pods"] = json!(run.pods);
    value
}

pub fn forecast_json(workload: &str, forecast: &Forecast) -> Value {
    let mut value = json!(forecast);
    value["workload"] = json!(workload);
    value
}
