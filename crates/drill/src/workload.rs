//! The workload that is restarted: a Deployment or a StatefulSet, read from the API.
//!
//! Not here: changing it (`rollout`), the Service in front of it (`service`).

use crate::error::{Error, Result};
use client::{Client, ObjectKey};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;
use std::collections::BTreeMap;

/// The grace period of a pod that names none.
pub(crate) const DEFAULT_GRACE: i64 = 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Deployment,
    StatefulSet,
}

impl Kind {
    fn parse(word: &str) -> Option<Kind> {
        match word.to_ascii_lowercase().as_str() {
            "deploy" | "deployment" | "deployments" | "deployment.apps" | "deployments.apps" => {
                Some(Kind::Deployment)
            }
            "sts" | "statefulset" | "statefulsets" | "statefulset.apps" | "statefulsets.apps" => {
                Some(Kind::StatefulSet)
            }
            _ => None,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Kind::Deployment => "Deployment",
            Kind::StatefulSet => "StatefulSet",
        }
    }

    pub fn plural(self) -> &'static str {
        match self {
            Kind::Deployment => "deployments",
            Kind::StatefulSet => "statefulsets",
        }
    }
}

/// Which workload: `deploy/web`.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadRef {
    pub kind: Kind,
    pub key: ObjectKey,
}

impl WorkloadRef {
    pub fn parse(text: &str, namespace: &str) -> Result<WorkloadRef> {
        let unknown = || Error::UnknownKind(text.to_owned());
        let (kind, name) = text.split_once('/').ok_or_else(unknown)?;
        let kind = Kind::parse(kind).filter(|_| !name.is_empty()).ok_or_else(unknown)?;
        Ok(WorkloadRef { kind, key: ObjectKey::new(namespace, name) })
    }
}

impl std::fmt::Display for WorkloadRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.word(), self.key)
    }
}

/// How a rollout replaces pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    Rolling {
        surge: i32,
        unavailable: i32,
    },
    Recreate,
    /// One pod after another, or `unavailable` at once; the last ordinal first.
    Ordered {
        unavailable: i32,
    },
}

/// The workload as it was read.
#[derive(Debug, Clone)]
pub struct Workload {
    pub id: WorkloadRef,
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) replicas: i32,
    /// Selects its pods.
    pub(crate) selector: String,
    pub(crate) template: PodTemplateSpec,
    pub(crate) min_ready: i32,
    /// None: its pods are not replaced by a change of the template; the text says why.
    pub(crate) strategy: Result<Strategy, String>,
    pub(crate) status: Status,
}

/// What the controller has achieved.
#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    pub(crate) observed_generation: i64,
    pub(crate) replicas: i32,
    pub(crate) updated: i32,
    pub(crate) available: i32,
    pub(crate) deadline_exceeded: Option<String>,
}

impl Workload {
    pub async fn load(client: &Client, id: &WorkloadRef) -> Result<Workload> {
        Workload::find(client, id).await?.ok_or_else(|| Error::NoWorkload {
            kind: id.kind.word(),
            plural: id.kind.plural(),
            namespace: id.key.namespace().to_owned(),
            name: id.key.name().to_owned(),
        })
    }

    pub(crate) async fn find(client: &Client, id: &WorkloadRef) -> Result<Option<Workload>> {
        Ok(match id.kind {
            Kind::Deployment => client.find(&id.key).await?.map(Workload::of_deployment),
            Kind::StatefulSet => client.find(&id.key).await?.map(Workload::of_stateful_set),
        })
    }

    /// Changes the workload by a strategic merge patch.
    pub(crate) async fn patch(
        client: &Client,
        id: &WorkloadRef,
        patch: &Value,
    ) -> Result<Workload> {
        Ok(match id.kind {
            Kind::Deployment => {
                Workload::of_deployment(client.patch_strategic(&id.key, patch).await?)
            }
            Kind::StatefulSet => {
                Workload::of_stateful_set(client.patch_strategic(&id.key, patch).await?)
            }
        })
    }

    pub(crate) fn of_deployment(deployment: Deployment) -> Workload {
        let meta = deployment.metadata;
        let spec = deployment.spec.unwrap_or_default();
        let status = deployment.status.unwrap_or_default();
        let replicas = spec.replicas.unwrap_or(1);
        let strategy = spec.strategy.unwrap_or_default();
        let rolling = strategy.rolling_update.unwrap_or_default();
        let quarter = IntOrString::String("25%".to_owned());
        let surge = resolve(rolling.max_surge.as_ref().unwrap_or(&quarter), replicas, true);
        let unavailable =
            resolve(rolling.max_unavailable.as_ref().unwrap_or(&quarter), replicas, false);
        // As the Deployment controller: with zero of both, nothing could ever be replaced.
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        let strategy = match (spec.paused, strategy.type_.as_deref()) {
            (Some(true), _) => Err("it is paused; `kubectl rollout resume` first".to_owned()),
            (_, Some("Recreate")) => Ok(Strategy::Recreate),
            _ => Ok(Strategy::Rolling { surge, unavailable: unavailable.min(replicas) }),
        };
        let exceeded = status.conditions.unwrap_or_default().into_iter().find(|condition| {
            condition.type_ == "Progressing"
                && condition.reason.as_deref() == Some("ProgressDeadlineExceeded")
        });
        Workload {
            strategy,
            min_ready: spec.min_ready_seconds.unwrap_or(0),
            status: Status {
                observed_generation: status.observed_generation.unwrap_or(0),
                replicas: status.replicas.unwrap_or(0),
                updated: status.updated_replicas.unwrap_or(0),
                available: status.available_replicas.unwrap_or(0),
                deadline_exceeded: exceeded.map(|condition| condition.message.unwrap_or_default()),
            },
            ..Workload::bare(Kind::Deployment, meta, replicas, &spec.selector, spec.template)
        }
    }

    pub(crate) fn of_stateful_set(set: StatefulSet) -> Workload {
        let meta = set.metadata;
        let spec = set.spec.unwrap_or_default();
        let status = set.status.unwrap_or_default();
        let replicas = spec.replicas.unwrap_or(1);
        let update = spec.update_strategy.unwrap_or_default();
        let rolling = update.rolling_update.unwrap_or_default();
        let one = IntOrString::Int(1);
        let unavailable =
            resolve(rolling.max_unavailable.as_ref().unwrap_or(&one), replicas, false).max(1);
        let strategy = match (update.type_.as_deref(), rolling.partition) {
            (Some("OnDelete"), _) => {
                Err("its update strategy is OnDelete, so a changed template restarts no pod".into())
            }
            (_, Some(partition)) if partition > 0 => {
                Err(format!("its partition is {partition}, so not all of its pods are restarted"))
            }
            _ => Ok(Strategy::Ordered { unavailable }),
        };
        Workload {
            strategy,
            min_ready: spec.min_ready_seconds.unwrap_or(0),
            status: Status {
                observed_generation: status.observed_generation.unwrap_or(0),
                replicas: status.replicas,
                updated: match status.update_revision == status.current_revision {
                    true => status.replicas,
                    false => status.updated_replicas.unwrap_or(0),
                },
                available: status.available_replicas.unwrap_or(0),
                deadline_exceeded: None,
            },
            ..Workload::bare(Kind::StatefulSet, meta, replicas, &spec.selector, spec.template)
        }
    }

    fn bare(
        kind: Kind,
        meta: ObjectMeta,
        replicas: i32,
        selector: &LabelSelector,
        template: PodTemplateSpec,
    ) -> Workload {
        let text = |field: Option<String>| field.unwrap_or_default();
        let key = ObjectKey::new(&text(meta.namespace), &text(meta.name));
        Workload {
            id: WorkloadRef { kind, key },
            uid: text(meta.uid),
            generation: meta.generation.unwrap_or(0),
            annotations: meta.annotations.unwrap_or_default(),
            replicas,
            selector: selector_text(selector),
            template,
            min_ready: 0,
            strategy: Err(String::new()),
            status: Status::default(),
        }
    }

    pub(crate) fn spec(&self) -> Option<&PodSpec> {
        self.template.spec.as_ref()
    }

    pub(crate) fn grace(&self) -> i64 {
        self.spec().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(DEFAULT_GRACE)
    }

    pub(crate) fn containers(&self) -> &[Container] {
        self.spec().map(|spec| spec.containers.as_slice()).unwrap_or_default()
    }

    pub(crate) fn container(&self, name: &str) -> Option<&Container> {
        self.containers().iter().find(|container| container.name == name)
    }

    pub(crate) fn template_annotation(&self, name: &str) -> Option<&String> {
        self.template.metadata.as_ref()?.annotations.as_ref()?.get(name)
    }

    /// The labels of its pods.
    pub(crate) fn pod_labels(&self) -> BTreeMap<String, String> {
        let meta = self.template.metadata.as_ref();
        meta.and_then(|meta| meta.labels.clone()).unwrap_or_default()
    }
}

/// A number, or a percentage of the replicas.
fn resolve(value: &IntOrString, replicas: i32, up: bool) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 =
                text.strip_suffix('%').and_then(|digits| digits.parse().ok()).unwrap_or(0);
            let scaled = percent.saturating_mul(replicas.into());
            let scaled = if up { scaled.saturating_add(99) / 100 } else { scaled / 100 };
            i32::try_from(scaled).unwrap_or(i32::MAX)
        }
    }
}

/// A selector as a query has it.
fn selector_text(selector: &LabelSelector) -> String {
    let labels =
        selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|expression| {
        let values = expression.values.as_deref().unwrap_or_default().join(",");
        let key = &expression.key;
        match expression.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn deployment(spec: Value) -> Workload {
        let mut whole = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "generation": 1},
            "spec": {
                "replicas": 4, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "server"}]}},
            },
        });
        for (key, value) in spec.as_object().unwrap() {
            whole["spec"][key] = value.clone();
        }
        Workload::of_deployment(serde_json::from_value(whole).unwrap())
    }

    #[test]
    fn workloads_are_named_as_kubectl_names_them() {
        for (text, kind) in [
            ("deploy/web", Kind::Deployment),
            ("Deployment/web", Kind::Deployment),
            ("deployment.apps/web", Kind::Deployment),
            ("sts/web", Kind::StatefulSet),
        ] {
            let id = WorkloadRef::parse(text, "shop").unwrap();
            assert_eq!((id.kind, id.key.to_string().as_str()), (kind, "shop/web"));
        }
        for bad in ["web", "ds/web", "deploy/", "/web", ""] {
            let message = WorkloadRef::parse(bad, "shop").unwrap_err().to_string();
            assert!(message.contains("deploy/web"), "{message}");
        }
    }

    #[test]
    fn percentages_of_a_rollout_are_rounded_as_the_controller_does() {
        let rolling = |surge: Value, unavailable: Value, replicas| {
            deployment(json!({"replicas": replicas, "strategy": {"rollingUpdate":
                {"maxSurge": surge, "maxUnavailable": unavailable}}}))
            .strategy
        };
        let expect = |surge, unavailable| Ok(Strategy::Rolling { surge, unavailable });
        assert_eq!(deployment(json!({"replicas": 3})).strategy, expect(1, 0));
        assert_eq!(deployment(json!({"replicas": 10})).strategy, expect(3, 2));
        assert_eq!(rolling(json!(0), json!("10%"), 3), expect(0, 1));
        assert_eq!(rolling(json!("100%"), json!(0), 3), expect(3, 0));
        assert_eq!(rolling(json!(0), json!(9), 3), expect(0, 3));
    }

    #[test]
    fn workloads_that_a_template_does_not_restart_are_refused() {
        assert!(deployment(json!({"paused": true})).strategy.unwrap_err().contains("paused"));
        let recreate = deployment(json!({"strategy": {"type": "Recreate"}}));
        assert_eq!(recreate.strategy, Ok(Strategy::Recreate));
    }

    #[test]
    fn selectors_are_written_as_a_query() {
        let selector =
            serde_json::from_value(json!({"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "c", "operator": "In", "values": ["d", "e"]},
            {"key": "f", "operator": "DoesNotExist"}, {"key": "g", "operator": "Exists"}]}));
        assert_eq!(selector_text(&selector.unwrap()), "a=b,c in (d,e),!f,g");
    }
}
