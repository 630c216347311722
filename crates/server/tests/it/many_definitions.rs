//! The cost of writing a CustomResourceDefinition does not depend on how many there are.

use crate::cluster::Cluster;
use serde_json::{Map, Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const COUNT: usize = 60;
/// The first and the last writes that are compared.
const COMPARED: usize = 15;
/// Definitions of real projects have up to several hundred kilobytes.
const BYTES_MIN: usize = 50_000;

/// About as large and as nested as the definitions of real projects.
fn definition(number: usize) -> Value {
    let text =
        "What this field is for, in a sentence or two, as real definitions have it. ".repeat(3);
    let fields = |prefix: &str, of: &dyn Fn() -> Value| -> Map<String, Value> {
        (0..14).map(|i| (format!("{prefix}{i}"), of())).collect()
    };
    let leaf = || json!({ "type": "string", "description": text, "maxLength": 64 });
    let group =
        || json!({ "type": "object", "description": text, "properties": fields("leaf", &leaf) });
    let spec = json!({ "type": "object", "properties": fields("group", &group) });
    let (plural, kind) = (format!("things{number}"), format!("Thing{number}"));
    json!({
        "metadata": { "name": format!("{plural}.example.com") },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": plural, "kind": kind },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": spec } } } }],
        },
    })
}

/// CPU time of this process in milliseconds. The test has a process of its own.
fn cpu_time() -> i64 {
    let used = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
    [used.user_time(), used.system_time()]
        .iter()
        .map(|t| t.tv_sec() * 1000 + t.tv_usec() / 1000)
        .sum()
}

/// The CPU time of the first and of the last writes.
async fn first_and_last(mut write: impl AsyncFnMut(usize)) -> (i64, i64) {
    let mut times = vec![cpu_time()];
    for number in 0..COUNT {
        write(number).await;
        times.push(cpu_time());
    }
    (times[COMPARED] - times[0], times[COUNT] - times[COUNT - COMPARED])
}

#[tokio::test]
async fn a_206_the_cost_of_a_definition_does_not_depend_on_the_number_of_definitions() {
    let cluster = Cluster::start().await;
    assert!(definition(0).to_string().len() > BYTES_MIN);
    let created = first_and_last(async |number| {
        let reply = cluster.post(DEFINITIONS, definition(number)).await;
        assert_eq!(reply.code, 201, "{}", reply.body);
    });
    let (first, last) = created.await;
    println!("creating {COMPARED}: {first} ms of CPU time at first, {last} ms at last");
    assert!(last <= 2 * first, "{first} ms, then {last} ms");

    let version = cluster.version(DEFINITIONS).await;
    let mut events = cluster.watch(&format!("{DEFINITIONS}?resourceVersion={version}")).await;
    let deleted = first_and_last(async |number| {
        cluster.delete(&format!("{DEFINITIONS}/things{number}.example.com")).await.ok();
        while events.next().await["type"] != "DELETED" {}
    });
    let (first, last) = deleted.await;
    println!("deleting {COMPARED}: {first} ms of CPU time at first, {last} ms at last");
    // The number of definitions decreases.
    assert!(first <= 2 * last, "{first} ms, then {last} ms");
}
