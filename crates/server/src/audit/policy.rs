//! The audit policy (`audit.k8s.io/v1` Policy): which requests are logged, and how much of them.

use super::Stage;
use crate::request::summary::RequestSummary;
use serde::Deserialize;
use std::path::Path;

const API_VERSION: &str = "audit.k8s.io/v1";

/// How much of a request is logged. The order matters: each level contains those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) enum Level {
    None,
    /// User, request, time, source and result. No bodies.
    Metadata,
    /// Also the body of the request.
    Request,
    /// Also the body of the response.
    RequestResponse,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Policy {
    api_version: String,
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde_json::Value,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

/// An empty list matches everything.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// The policy's decision about one request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    pub(super) level: Level,
    pub(super) omitted: Vec<Stage>,
    pub(super) omit_managed_fields: bool,
}

impl Policy {
    /// The policy without a policy file: metadata of every request.
    pub(super) fn metadata_of_everything() -> Policy {
        Policy {
            api_version: API_VERSION.into(),
            kind: "Policy".into(),
            _metadata: serde_json::Value::Null,
            rules: vec![Rule::of(Level::Metadata)],
            omit_stages: Vec::new(),
            omit_managed_fields: false,
        }
    }

    pub(super) fn read(path: &Path) -> Result<Policy, String> {
        let text = std::fs::read(path).map_err(|error| error.to_string())?;
        Policy::parse(&text)
    }

    /// YAML or JSON.
    fn parse(text: &[u8]) -> Result<Policy, String> {
        let document = api::yaml::to_json(text).map_err(|error| error.to_string())?;
        let policy: Policy =
            serde_json::from_value(document.value).map_err(|error| error.to_string())?;
        policy.check()?;
        Ok(policy)
    }

    fn check(&self) -> Result<(), String> {
        if (self.api_version.as_str(), self.kind.as_str()) != (API_VERSION, "Policy") {
            return Err(format!(
                "it is a {} in {}, but must be a Policy in {API_VERSION}",
                self.kind, self.api_version
            ));
        }
        if self.rules.is_empty() {
            return Err("it has no rules, so nothing would be logged".into());
        }
        for (place, rule) in self.rules.iter().enumerate() {
            let resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
            if resources && !rule.non_resource_urls.is_empty() {
                return Err(format!(
                    "rules[{place}]: rules cannot apply to both regular resources and non-resource \
                     URLs"
                ));
            }
            for url in &rule.non_resource_urls {
                let inner = url.strip_suffix('*').unwrap_or(url);
                if url != "*" && (!url.starts_with('/') || inner.contains('*')) {
                    return Err(format!(
                        "rules[{place}].nonResourceURLs: {url:?} must begin with '/', and '*' may \
                         only be at its end"
                    ));
                }
            }
            for resources in &rule.resources {
                if !resources.resource_names.is_empty() && resources.resources.is_empty() {
                    return Err(format!(
                        "rules[{place}].resources: resourceNames need a list of resources"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The first rule that matches decides; without one nothing is logged.
    pub(super) fn decide(&self, summary: &RequestSummary) -> Verdict {
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(summary)) else {
            return Verdict { level: Level::None, omitted: Vec::new(), omit_managed_fields: false };
        };
        Verdict {
            level: rule.level,
            omitted: self.omit_stages.iter().chain(&rule.omit_stages).copied().collect(),
            omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
        }
    }
}

fn lists(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == wanted)
}

impl Rule {
    fn of(level: Level) -> Rule {
        Rule {
            level,
            users: Vec::new(),
            user_groups: Vec::new(),
            verbs: Vec::new(),
            resources: Vec::new(),
            namespaces: Vec::new(),
            non_resource_urls: Vec::new(),
            omit_stages: Vec::new(),
            omit_managed_fields: None,
        }
    }

    fn matches(&self, summary: &RequestSummary) -> bool {
        let user = summary.user.as_deref();
        let is_user = |name: &String| user.is_some_and(|user| user.name == *name);
        let in_group = |group: &String| user.is_some_and(|user| user.groups.contains(group));
        if !self.users.is_empty() && !self.users.iter().any(is_user) {
            return false;
        }
        if !self.user_groups.is_empty() && !self.user_groups.iter().any(in_group) {
            return false;
        }
        if !self.verbs.is_empty() && !lists(&self.verbs, summary.verb()) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return self.matches_resource(summary);
        }
        if !self.non_resource_urls.is_empty() {
            let fits = |url: &String| match url.strip_suffix('*') {
                Some(prefix) => summary.path().starts_with(prefix),
                None => summary.path() == url,
            };
            return !summary.is_resource() && self.non_resource_urls.iter().any(fits);
        }
        true
    }

    /// Cluster-scoped resources are in the namespace "".
    fn matches_resource(&self, summary: &RequestSummary) -> bool {
        if !summary.is_resource() {
            return false;
        }
        if !self.namespaces.is_empty() && !lists(&self.namespaces, &summary.namespace) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|wanted| wanted.matches(summary))
    }
}

impl GroupResources {
    fn matches(&self, summary: &RequestSummary) -> bool {
        if self.group != summary.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.resource_names.is_empty() && !lists(&self.resource_names, &summary.name) {
            return false;
        }
        let whole = match summary.subresource.as_str() {
            "" => summary.resource.clone(),
            subresource => format!("{}/{subresource}", summary.resource),
        };
        self.resources.iter().any(|wanted| {
            *wanted == whole
                || wanted == "*"
                || wanted.strip_suffix("/*") == Some(summary.resource.as_str())
                || (!summary.subresource.is_empty()
                    && wanted.strip_prefix("*/") == Some(summary.subresource.as_str()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use access::authn::User;
    use std::sync::Arc;

    fn summary(
        user: &str,
        verb: &'static str,
        group: &str,
        resource: &str,
        namespace: &str,
    ) -> RequestSummary {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        RequestSummary {
            user: Some(Arc::new(User::authenticated(user, &["team"]))),
            verb,
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: "one".into(),
            ..RequestSummary::default()
        }
    }

    const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:kube-proxy"]
  verbs: [watch]
  resources: [{group: "", resources: [endpoints, services]}]
- level: None
  nonResourceURLs: ["/healthz*", "/version"]
- level: Request
  resources: [{group: "", resources: [configmaps], resourceNames: [one]}]
  namespaces: [kube-system]
  omitStages: [ResponseStarted]
- level: RequestResponse
  userGroups: [team]
  resources: [{group: apps, resources: ["deployments/*", "*/scale"]}]
  omitManagedFields: true
- level: Metadata
  resources: [{group: "", resources: ["*"]}, {group: batch}]
"#;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = Policy::parse(POLICY.as_bytes()).unwrap();
        for (user, verb, group, resource, namespace, wanted) in [
            ("system:kube-proxy", "watch", "", "services", "a", Level::None),
            ("system:kube-proxy", "list", "", "services", "a", Level::Metadata),
            ("u", "get", "", "configmaps", "kube-system", Level::Request),
            ("u", "get", "", "configmaps", "default", Level::Metadata),
            ("u", "get", "apps", "deployments", "a", Level::RequestResponse),
            ("u", "get", "apps", "deployments/status", "a", Level::RequestResponse),
            ("u", "get", "apps", "statefulsets/scale", "a", Level::RequestResponse),
            ("u", "get", "apps", "statefulsets/status", "a", Level::None),
            ("u", "get", "", "pods/log", "a", Level::Metadata),
            ("u", "get", "batch", "jobs", "a", Level::Metadata),
            ("u", "get", "rbac.authorization.k8s.io", "roles", "a", Level::None),
        ] {
            let decided = policy.decide(&summary(user, verb, group, resource, namespace));
            assert_eq!(decided.level, wanted, "{user} {verb} {group}/{resource} in {namespace}");
        }
        let decided = policy.decide(&summary("u", "get", "", "configmaps", "kube-system"));
        assert_eq!(decided.omitted, [Stage::RequestReceived, Stage::ResponseStarted]);
        assert!(
            policy.decide(&summary("u", "get", "apps", "deployments", "a")).omit_managed_fields
        );
    }

    #[test]
    fn paths_match_exactly_or_by_prefix() {
        let policy = Policy::parse(POLICY.as_bytes()).unwrap();
        let everything = Policy::metadata_of_everything();
        for (path, none) in [("/healthz/ping", true), ("/version", true), ("/versions", false)] {
            let summary = RequestSummary::of_path("get", path);
            assert_eq!(policy.rules[1].matches(&summary), none, "{path}");
            assert_eq!(everything.decide(&summary).level, Level::Metadata);
        }
    }

    #[test]
    fn an_invalid_policy_is_refused_with_a_reason() {
        let whole =
            |rules: &str| format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}");
        for (text, wanted) in [
            ("kind: Policy\napiVersion: audit.k8s.io/v1\n".to_owned(), "no rules"),
            ("kind: Pod\napiVersion: v1\nrules: [{level: None}]".to_owned(), "must be a Policy"),
            (whole("- level: Everything\n"), "unknown variant"),
            (whole("- level: None\n  verb: [get]\n"), "unknown field `verb`"),
            (whole("- level: None\n  omitStages: [Later]\n"), "unknown variant"),
            (whole("- level: None\n  nonResourceURLs: [healthz]\n"), "must begin with '/'"),
            (
                whole("- level: None\n  namespaces: [a]\n  nonResourceURLs: [\"*\"]\n"),
                "cannot apply to both",
            ),
            (
                whole("- level: None\n  resources: [{group: \"\", resourceNames: [a]}]\n"),
                "need a list of resources",
            ),
        ] {
            let error = Policy::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
