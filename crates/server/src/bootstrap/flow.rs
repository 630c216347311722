//! The suggested and mandatory objects of API priority and fairness.
//!
//! They are served and restored, but landfall does not use them to queue requests.

use jiff::Timestamp;
use serde_json::{Value, json};

const API_VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";

const MANAGER: &str = "system:kube-controller-manager";
const SCHEDULER: &str = "system:kube-scheduler";
const EVERYBODY: &[Subject] =
    &[Subject::Group("system:unauthenticated"), Subject::Group("system:authenticated")];
const ANYTHING: &[Matched] = &[Matched::Resources("*", "*", "*", "*"), Matched::Paths("*", "*")];

enum Subject {
    Group(&'static str),
    User(&'static str),
    /// A service account in kube-system, or all of them.
    Account(&'static str),
}

enum Matched {
    /// Verbs, groups, resources, namespaces; `*` also covers what is in no namespace.
    Resources(&'static str, &'static str, &'static str, &'static str),
    /// Verbs, groups, resources that are in no namespace.
    Cluster(&'static str, &'static str, &'static str),
    /// Verbs, paths.
    Paths(&'static str, &'static str),
}

struct Schema {
    name: &'static str,
    level: &'static str,
    precedence: u32,
    /// How the flows of one schema are distinguished.
    by: Option<&'static str>,
    subjects: &'static [Subject],
    matched: &'static [Matched],
}

const BY_USER: Option<&str> = Some("ByUser");
const BY_NAMESPACE: Option<&str> = Some("ByNamespace");

#[rustfmt::skip]
const SCHEMAS: &[Schema] = &[
    Schema { name: "exempt", level: "exempt", precedence: 1, by: None,
        subjects: &[Subject::Group("system:masters")], matched: ANYTHING },
    Schema { name: "probes", level: "exempt", precedence: 2, by: None,
        subjects: EVERYBODY, matched: &[Matched::Paths("get", "/healthz /readyz /livez")] },
    Schema { name: "system-leader-election", level: "leader-election", precedence: 100, by: BY_USER,
        subjects: &[Subject::User(MANAGER), Subject::User(SCHEDULER), Subject::Account("*")],
        matched: &[Matched::Resources("get create update", "coordination.k8s.io", "leases", "kube-system")] },
    Schema { name: "endpoint-controller", level: "workload-high", precedence: 150, by: BY_USER,
        subjects: &[Subject::User(MANAGER), Subject::Account("endpoint-controller"),
               Subject::Account("endpointslicemirroring-controller")],
        matched: &[Matched::Resources("get create update", "core", "endpoints", "*")] },
    Schema { name: "workload-leader-election", level: "leader-election", precedence: 200, by: BY_USER,
        subjects: &[Subject::Account("*")],
        matched: &[Matched::Resources("get create update", "coordination.k8s.io", "leases", "*")] },
    Schema { name: "system-node-high", level: "node-high", precedence: 400, by: BY_USER,
        subjects: &[Subject::Group("system:nodes")],
        matched: &[Matched::Cluster("*", "core", "nodes nodes/status"),
                Matched::Resources("*", "coordination.k8s.io", "leases", "*")] },
    Schema { name: "system-nodes", level: "system", precedence: 500, by: BY_USER,
        subjects: &[Subject::Group("system:nodes")], matched: ANYTHING },
    Schema { name: "kube-controller-manager", level: "workload-high", precedence: 800, by: BY_NAMESPACE,
        subjects: &[Subject::User(MANAGER)], matched: ANYTHING },
    Schema { name: "kube-scheduler", level: "workload-high", precedence: 800, by: BY_NAMESPACE,
        subjects: &[Subject::User(SCHEDULER)], matched: ANYTHING },
    Schema { name: "kube-system-service-accounts", level: "workload-high", precedence: 900, by: BY_NAMESPACE,
        subjects: &[Subject::Account("*")], matched: ANYTHING },
    Schema { name: "service-accounts", level: "workload-low", precedence: 9000, by: BY_USER,
        subjects: &[Subject::Group("system:serviceaccounts")], matched: ANYTHING },
    Schema { name: "global-default", level: "global-default", precedence: 9900, by: BY_USER,
        subjects: EVERYBODY, matched: ANYTHING },
    Schema { name: "catch-all", level: "catch-all", precedence: 10000, by: BY_USER,
        subjects: EVERYBODY, matched: ANYTHING },
];

/// A limited level: name, shares, lendable percent, queues and hand size (no queues: reject).
type Level = (&'static str, u32, u32, Option<(u32, u32)>);

const LIMITED: &[Level] = &[
    ("system", 30, 33, Some((64, 6))),
    ("node-high", 40, 25, Some((64, 6))),
    ("leader-election", 10, 0, Some((16, 4))),
    ("workload-high", 40, 50, Some((128, 6))),
    ("workload-low", 100, 90, Some((128, 6))),
    ("global-default", 20, 50, Some((128, 6))),
    ("catch-all", 5, 0, None),
];

const QUEUE_LENGTH: u32 = 50;

pub(crate) fn flow_schemas(now: Timestamp) -> Vec<Value> {
    SCHEMAS.iter().map(|schema| schema.json(now)).collect()
}

pub(crate) fn priority_levels() -> Vec<Value> {
    let limited = LIMITED.iter().map(|&(name, shares, lendable, queues)| {
        let response = match queues {
            None => json!({"type": "Reject"}),
            Some((queues, hand)) => json!({
                "type": "Queue",
                "queuing":
                    {"queues": queues, "handSize": hand, "queueLengthLimit": QUEUE_LENGTH},
            }),
        };
        level(
            name,
            json!({"type": "Limited", "limited": {
                "nominalConcurrencyShares": shares, "lendablePercent": lendable,
                "limitResponse": response,
            }}),
        )
    });
    let exempt = json!({"type": "Exempt",
        "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    std::iter::once(level("exempt", exempt)).chain(limited).collect()
}

fn level(name: &str, spec: Value) -> Value {
    object("PriorityLevelConfiguration", name, spec, json!({}))
}

fn object(kind: &str, name: &str, spec: Value, status: Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": kind,
        "metadata": {
            "name": name,
            "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"},
        },
        "spec": spec,
        "status": status,
    })
}

impl Schema {
    fn json(&self, now: Timestamp) -> Value {
        let mut rule =
            json!({"subjects": self.subjects.iter().map(Subject::json).collect::<Vec<_>>()});
        for matched in self.matched {
            let (field, entry) = matched.json();
            match rule[field].as_array_mut() {
                Some(list) => list.push(entry),
                None => rule[field] = json!([entry]),
            }
        }
        let mut spec = json!({
            "priorityLevelConfiguration": {"name": self.level},
            "matchingPrecedence": self.precedence,
            "rules": [rule],
        });
        if let Some(by) = self.by {
            spec["distinguisherMethod"] = json!({"type": by});
        }
        let message = format!(
            "This FlowSchema references the PriorityLevelConfiguration object named {:?} and it \
             exists",
            self.level
        );
        let status = json!({"conditions": [{
            "type": "Dangling", "status": "False", "reason": "Found", "message": message,
            "lastTransitionTime": clock::rfc3339(now),
        }]});
        object("FlowSchema", self.name, spec, status)
    }
}

impl Subject {
    fn json(&self) -> Value {
        match self {
            Subject::Group(name) => json!({"kind": "Group", "group": {"name": name}}),
            Subject::User(name) => json!({"kind": "User", "user": {"name": name}}),
            Subject::Account(name) => json!({"kind": "ServiceAccount",
                "serviceAccount": {"name": name, "namespace": "kube-system"}}),
        }
    }
}

impl Matched {
    fn json(&self) -> (&'static str, Value) {
        match self {
            Matched::Resources(verbs, groups, resources, namespaces) => {
                let mut rule = resource_rule(verbs, groups, resources);
                rule["namespaces"] = words(namespaces);
                if *resources == "*" {
                    rule["clusterScope"] = true.into();
                }
                ("resourceRules", rule)
            }
            Matched::Cluster(verbs, groups, resources) => {
                let mut rule = resource_rule(verbs, groups, resources);
                rule["clusterScope"] = true.into();
                ("resourceRules", rule)
            }
            Matched::Paths(verbs, paths) => (
                "nonResourceRules",
                json!({"verbs": words(verbs), "nonResourceURLs": words(paths)}),
            ),
        }
    }
}

fn resource_rule(verbs: &str, groups: &str, resources: &str) -> Value {
    let group = if groups == "core" { json!([""]) } else { words(groups) };
    json!({"verbs": words(verbs), "apiGroups": group, "resources": words(resources)})
}

fn words(list: &str) -> Value {
    list.split_whitespace().collect()
}
