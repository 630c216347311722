//! Jobs and CronJobs compared with answers of a real v1.36 server.

use super::super::rules;
use api::field::{At, Errors};
use serde_json::{Value, json};

fn job(more: Value) -> Value {
    let mut job = json!({
        "metadata": {"name": "job", "uid": "u"},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "app", "image": "nginx:1.27"}],
        }}},
    });
    api::patch::merge_into(&mut job["spec"], &more);
    (rules("Job").default)(&mut job);
    (rules("Job").prepare_create)(&mut job);
    job
}

fn messages(kind: &str, object: &Value) -> Vec<String> {
    let mut errors = Errors::default();
    (rules(kind).validate)(&At::root(object), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn a_147_a_job_selects_its_pods_by_its_own_uid() {
    let job = job(json!({}));
    let labels = json!({
        "batch.kubernetes.io/controller-uid": "u",
        "batch.kubernetes.io/job-name": "job",
        "controller-uid": "u",
        "job-name": "job",
    });
    assert_eq!(job["metadata"]["labels"], labels);
    assert_eq!(job["spec"]["template"]["metadata"]["labels"], labels);
    let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}});
    assert_eq!(job["spec"]["selector"], selector);
    let mut spec = job["spec"].clone();
    for name in ["template", "selector"] {
        spec.as_object_mut().unwrap().remove(name);
    }
    assert_eq!(
        spec,
        json!({"backoffLimit": 6, "completionMode": "NonIndexed", "completions": 1,
               "manualSelector": false, "parallelism": 1, "suspend": false,
               "podReplacementPolicy": "TerminatingOrFailed"})
    );
}

#[test]
fn a_92_invalid_jobs_are_rejected_with_upstreams_messages() {
    let cases: &[(Value, &[&str])] = &[
        (json!({}), &[]),
        (
            json!({"template": {"spec": {"restartPolicy": "Always"}}}),
            &[
                "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
            ],
        ),
        (
            json!({"completionMode": "Indexed", "parallelism": 1}),
            &["spec.completions: Required value: when completion mode is Indexed"],
        ),
        (
            json!({"parallelism": -1}),
            &["spec.parallelism: Invalid value: -1: must be greater than or equal to 0"],
        ),
        (
            json!({"backoffLimitPerIndex": 1}),
            &["spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode"],
        ),
    ];
    for (more, expected) in cases {
        assert_eq!(messages("Job", &job(more.clone())), *expected, "{more}");
    }
}

#[test]
fn a_77_c_119_scheduling_fields_of_a_suspended_job_may_change() {
    let update = |old: Value, new: Value| {
        let mut errors = Errors::default();
        (rules("Job").validate_update)(&At::root(&job(new)), &At::root(&job(old)), &mut errors);
        errors.iter().map(|error| error.field.clone()).collect::<Vec<_>>()
    };
    let node = json!({"template": {"spec": {"nodeSelector": {"zone": "a"}}}});
    let suspended = json!({"suspend": true});
    let none: [&str; 0] = [];
    assert_eq!(update(suspended.clone(), node.clone()), none);
    let more = json!({"template": {"spec": {
        "affinity": {"nodeAffinity": {}}, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "app", "image": "nginx:1.27", "resources": {"limits": {"cpu": "2"}}}],
    }}});
    assert_eq!(update(suspended.clone(), more), none);
    for fixed in [
        json!({"template": {"spec": {"affinity": {"podAffinity": {}}}}}),
        json!({"template": {"spec": {"containers": [{"name": "app", "image": "nginx:1.28"}]}}}),
    ] {
        assert_eq!(update(suspended.clone(), fixed), ["spec.template"]);
    }
    assert_eq!(update(json!({}), node), ["spec.template"]);
    assert_eq!(update(json!({}), json!({"completions": 3})), ["spec.completions"]);
    let indexed = |n: i64| json!({"completionMode": "Indexed", "completions": n, "parallelism": n});
    assert_eq!(update(indexed(3), indexed(5)), none);
}

fn cron(spec: Value) -> Value {
    let mut cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "*/5 * * * *",
        "jobTemplate": {"spec": {"template": {"spec": {
            "containers": [{"name": "app", "image": "nginx:1.27"}], "restartPolicy": "OnFailure"}}}}}});
    api::patch::merge_into(&mut cron["spec"], &spec);
    (rules("CronJob").default)(&mut cron);
    cron
}

#[test]
fn a_147_a_cron_job_gets_its_defaults() {
    let cron = cron(json!({}));
    assert_eq!(cron["spec"]["concurrencyPolicy"], "Allow");
    assert_eq!(cron["spec"]["suspend"], false);
    assert_eq!(cron["spec"]["successfulJobsHistoryLimit"], 3);
    assert_eq!(cron["spec"]["failedJobsHistoryLimit"], 1);
    assert_eq!(cron["spec"]["jobTemplate"]["metadata"], json!({}));
    assert_eq!(cron["spec"]["jobTemplate"]["spec"].as_object().unwrap().len(), 1);
}

#[test]
fn a_92_invalid_cron_jobs_are_rejected_with_upstreams_messages() {
    let cases: &[(Value, &[&str])] = &[
        (json!({}), &[]),
        (
            json!({"schedule": "often"}),
            &[
                "spec.schedule: Invalid value: \"often\": expected exactly 5 fields, found 1: [often]",
            ],
        ),
        (
            json!({"schedule": "TZ=UTC 0 * * * *"}),
            &[
                "spec.schedule: Invalid value: \"TZ=UTC 0 * * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            ],
        ),
        (
            json!({"concurrencyPolicy": "Queue"}),
            &[
                "spec.concurrencyPolicy: Unsupported value: \"Queue\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
            ],
        ),
        (
            json!({"timeZone": ""}),
            &["spec.timeZone: Invalid value: \"\": timeZone must be nil or non-empty string"],
        ),
        (
            json!({"timeZone": "Mars/Olympus"}),
            &["spec.timeZone: Invalid value: \"Mars/Olympus\": unknown time zone Mars/Olympus"],
        ),
    ];
    for (more, expected) in cases {
        assert_eq!(messages("CronJob", &cron(more.clone())), *expected, "{more}");
    }
}

/// Upstream's `validateCronJobSpec` validates the zone on create and when it changes.
#[test]
fn a_92_a_stored_time_zone_is_not_validated_again() {
    let update = |old: Value, new: Value| {
        let [old, mut new] = [old, new].map(cron);
        new["metadata"]["resourceVersion"] = "7".into();
        let mut errors = Errors::default();
        (rules("CronJob").validate)(&At::root(&new), &mut errors);
        (rules("CronJob").validate_update)(&At::root(&new), &At::root(&old), &mut errors);
        errors.iter().map(|error| error.field.clone()).collect::<Vec<_>>()
    };
    let (mars, berlin) =
        (json!({"timeZone": "Mars/Olympus"}), json!({"timeZone": "Europe/Berlin"}));
    let kept = json!({"timeZone": "Mars/Olympus", "suspend": true});
    for (old, new, refused) in [
        (&mars, &kept, &[][..]),
        (&mars, &berlin, &[]),
        (&mars, &json!({}), &[]),
        (&berlin, &mars, &["spec.timeZone"]),
        (&json!({}), &mars, &["spec.timeZone"]),
    ] {
        assert_eq!(update(old.clone(), new.clone()), refused, "{old} -> {new}");
    }
}

#[test]
fn a_75_a_cron_jobs_name_leaves_room_for_its_jobs() {
    let mut cron = cron(json!({}));
    cron["metadata"]["name"] = json!("c".repeat(53));
    let new = messages("CronJob", &cron);
    assert!(new[0].ends_with("must be no more than 52 characters"), "{new:?}");
    cron["metadata"]["resourceVersion"] = "7".into();
    assert!(messages("CronJob", &cron).is_empty(), "a stored zone is accepted");
}
