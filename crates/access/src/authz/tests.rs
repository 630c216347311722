//! Decisions of policies, wording of denials, escalation checks and reviews.

use super::reviews::*;
use super::*;
use crate::authn::jwt::SigningKey;
use crate::authn::{Authenticator, BootstrapTokens, Bound, ServiceAccountTokens, StaticTokens};
use crate::default_roles;
use api::Status;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

fn role(namespace: &str, name: &str, rules: Value) -> Value {
    let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
    json!({"kind": kind, "metadata": {"name": name, "namespace": namespace}, "rules": rules})
}

fn binding(namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "subjects": subjects,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1}})
}

fn user(name: &str) -> User {
    User::authenticated(name, &[])
}

/// The default roles, with some users added.
fn policy() -> Policy {
    let mut cluster_roles = default_roles::cluster_roles();
    cluster_roles.push(role(
        "",
        "named",
        json!([{"verbs": ["get", "list"], "apiGroups": [""],
        "resources": ["configmaps"], "resourceNames": ["one"]}]),
    ));
    let to = |name: &str| json!([{"kind": "User", "name": name}]);
    let mut cluster_role_bindings = default_roles::cluster_role_bindings();
    cluster_role_bindings.extend([
        binding("", "root", ("ClusterRole", "cluster-admin"), to("root")),
        binding("", "named", ("ClusterRole", "named"), to("named")),
        binding("", "lost", ("ClusterRole", "gone"), to("lost")),
        binding("", "wrong", ("Role", "reader"), to("lost")),
    ]);
    let read = json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]);
    let roles = [role("golden", "reader", read)];
    let account = json!([{"kind": "ServiceAccount", "name": "default"}]);
    let role_bindings = [
        binding("golden", "rb", ("Role", "reader"), account),
        binding("golden", "viewers", ("ClusterRole", "view"), to("viewer")),
        binding("golden", "editors", ("ClusterRole", "edit"), to("editor")),
        binding("golden", "admins", ("ClusterRole", "admin"), to("admin")),
        binding("golden", "roots", ("ClusterRole", "cluster-admin"), to("local-root")),
    ];
    Policy::build(&cluster_roles, &cluster_role_bindings, &roles, &role_bindings)
}

/// `verb group/resource/subresource namespace name`, or `verb /path`; `-` is an empty part.
fn ask(policy: &Policy, user: &User, what: &str) -> Decision {
    let part = |text: &'static str| if text == "-" { "" } else { text };
    let words: Vec<&'static str> = what.to_owned().leak().split(' ').collect();
    match words.as_slice() {
        [verb, path] => policy.allows(&Attributes::path(user, verb, path)),
        [verb, target, namespace, name] => {
            let mut target = target.splitn(3, '/').map(part);
            let mut next = || target.next().unwrap_or_default();
            let (group, resource, subresource) = (next(), next(), next());
            let (namespace, name) = (part(namespace), part(name));
            let base = Attributes::resource(user, verb, group, resource);
            policy.allows(&Attributes { subresource, namespace, name, ..base })
        }
        _ => panic!("{what}"),
    }
}

#[test]
fn a_182_a_183_a_rule_matches_only_its_verbs_groups_resources_and_names() {
    let policy = policy();
    let account = User::authenticated("system:serviceaccount:golden:default", &[]);
    let masters = User::authenticated("x", &["system:masters"]);
    let monitor = User::authenticated("x", &["system:monitoring"]);
    let node = User::authenticated("system:node:n1", &["system:nodes"]);
    for (who, what, allowed) in [
        (&masters, "delete apps/deployments other x", true),
        (&masters, "put /anything", true),
        (&user("root"), "delete apps/deployments/scale - x", true),
        (&user("root"), "put /anything", true),
        // A RoleBinding counts in its namespace only, and never for paths.
        (&user("local-root"), "delete -/pods golden p", true),
        (&user("local-root"), "delete -/pods other p", false),
        (&user("local-root"), "delete -/nodes - n", false),
        (&user("local-root"), "get /metrics", false),
        // The default namespace of a service account is the binding's.
        (&account, "list -/pods golden -", true),
        (&account, "get -/pods golden p", true),
        (&account, "delete -/pods golden p", false),
        (&account, "get -/pods/log golden p", false),
        (&account, "list -/pods - -", false),
        // Named rules need the name.
        (&user("named"), "get -/configmaps any one", true),
        (&user("named"), "get -/configmaps any two", false),
        (&user("named"), "list -/configmaps any -", false),
        // aggregated roles work from the start.
        (&user("viewer"), "get -/pods/log golden p", true),
        (&user("viewer"), "watch apps/deployments golden -", true),
        (&user("viewer"), "get -/secrets golden s", false),
        (&user("viewer"), "create -/pods golden -", false),
        (&user("editor"), "create -/pods golden -", true),
        (&user("editor"), "get -/secrets golden s", true),
        (&user("editor"), "create -/pods/eviction golden p", true),
        (&user("editor"), "create rbac.authorization.k8s.io/roles golden -", false),
        (&user("admin"), "create rbac.authorization.k8s.io/roles golden -", true),
        (&user("admin"), "get -/pods golden p", true),
        (&user("admin"), "update -/resourcequotas golden q", false),
        // what everybody and nobody may do.
        (&User::anonymous(), "get /healthz", true),
        (&User::anonymous(), "get /version", true),
        (&User::anonymous(), "get /api", false),
        (&User::anonymous(), "list -/pods - -", false),
        (&user("jane"), "get /apis/apps/v1", true),
        (&user("jane"), "post /apis/apps/v1", false),
        (&user("jane"), "create authorization.k8s.io/selfsubjectaccessreviews - -", true),
        (&user("jane"), "create authorization.k8s.io/subjectaccessreviews - -", false),
        (&monitor, "get /readyz/ping", true),
        // Nodes have their role without a binding, but both name and group must be theirs.
        (&node, "patch -/pods/status golden p", true),
        (&node, "delete -/nodes - n1", false),
        (&user("system:node:n1"), "get -/pods golden p", false),
        (&User::authenticated("x", &["system:nodes"]), "patch -/pods/status golden p", false),
        // */scale
        (
            &user("system:serviceaccount:kube-system:horizontal-pod-autoscaler"),
            "update acme.com/widgets/scale ns w",
            true,
        ),
        (
            &user("system:serviceaccount:kube-system:horizontal-pod-autoscaler"),
            "update acme.com/widgets ns w",
            false,
        ),
    ] {
        assert_eq!(ask(&policy, who, what).allowed, allowed, "{} {what}", who.name);
    }
}

#[test]
fn a_182_the_reason_names_the_binding_or_the_missing_role() {
    let policy = policy();
    let reason = |who: &str, what: &str| ask(&policy, &user(who), what).reason;
    assert_eq!(
        reason("root", "get -/pods ns p"),
        "RBAC: allowed by ClusterRoleBinding \"root\" of ClusterRole \"cluster-admin\" to User \
         \"root\""
    );
    assert_eq!(
        reason("viewer", "get -/pods golden p"),
        "RBAC: allowed by RoleBinding \"viewers/golden\" of ClusterRole \"view\" to User \"viewer\""
    );
    assert_eq!(
        reason("lost", "get -/pods golden p"),
        "RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found"
    );
    assert_eq!(reason("jane", "get -/pods golden p"), "");
}

#[test]
fn a_184_aggregation_selects_by_label_and_terminates_on_cycles() {
    let around = |name: &str, into: &str, rules: Value| {
        json!({"metadata": {"name": name, "labels": {"to": into}}, "rules": rules,
            "aggregationRule": {"clusterRoleSelectors": [{"matchExpressions": [
                {"key": "to", "operator": "In", "values": [name]}]}]}})
    };
    let rule =
        |resource: &str| json!([{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]);
    let mut leaf = role("", "leaf", rule("pods"));
    leaf["metadata"]["labels"] = json!({"to": "a"});
    let roles = [around("a", "b", rule("stale")), around("b", "a", json!(null)), leaf];
    let to = json!([{"kind": "User", "name": "u"}]);
    let bindings = [binding("", "x", ("ClusterRole", "b"), to)];
    let policy = Policy::build(&roles, &bindings, [], []);
    assert!(ask(&policy, &user("u"), "get -/pods ns p").allowed);
    assert!(!ask(&policy, &user("u"), "get -/stale ns p").allowed);
}

#[test]
fn a_91_denials_are_worded_like_upstream() {
    let (anonymous, nobody) = (User::anonymous(), user("nobody"));
    let pods = Attributes::resource(&anonymous, "list", "", "pods");
    // The golden answers anon-pods, imp-denied and imp-sa-denied.
    assert_eq!(
        forbidden_message(&pods),
        "pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \
         \"\" at the cluster scope"
    );
    let secrets = Attributes { resource: "secrets", namespace: "golden", user: &nobody, ..pods };
    assert_eq!(
        forbidden_message(&secrets),
        "secrets is forbidden: User \"nobody\" cannot list resource \"secrets\" in API group \"\" \
         in the namespace \"golden\""
    );
    let status = forbidden_status(&Attributes { verb: "delete", name: "p3", ..secrets }, "");
    assert_eq!(
        status.message,
        "secrets \"p3\" is forbidden: User \"nobody\" cannot delete resource \"secrets\" in API \
         group \"\" in the namespace \"golden\""
    );
    let details = status.details.unwrap();
    assert_eq!((&*details.kind, &*details.name, &*details.group), ("secrets", "p3", ""));
    let scale = Attributes {
        subresource: "scale",
        name: "d",
        ..Attributes::resource(&nobody, "update", "apps", "deployments")
    };
    assert_eq!(
        forbidden_message(&scale),
        "deployments.apps \"d\" is forbidden: User \"nobody\" cannot update resource \
         \"deployments/scale\" in API group \"apps\" at the cluster scope"
    );
    let path = Attributes::path(&nobody, "get", "/metrics");
    assert_eq!(forbidden_message(&path), "forbidden: User \"nobody\" cannot get path \"/metrics\"");
    let markup = user("<b>");
    let path = Attributes { user: &markup, ..path };
    assert!(forbidden_message(&path).contains("User \"&lt;b&gt;\""));
}

#[test]
fn a_185_a_user_cannot_grant_rights_that_they_do_not_hold() {
    let policy = policy();
    let admin = user("admin");
    let more = role(
        "golden",
        "more",
        json!([
            {"verbs": ["get", "escalate"], "apiGroups": ["", "apps"], "resources": ["pods", "nodes"]},
        ]),
    );
    let refused = may_write_role(&policy, &admin, &more, None).unwrap_err();
    assert_eq!(
        refused.message,
        "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"admin\" \
         (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently \
         held:\n\
         {APIGroups:[\"\"], Resources:[\"nodes\"], Verbs:[\"get\" \"escalate\"]}\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"escalate\"]}\n\
         {APIGroups:[\"apps\"], Resources:[\"nodes\"], Verbs:[\"get\" \"escalate\"]}\n\
         {APIGroups:[\"apps\"], Resources:[\"pods\"], Verbs:[\"get\" \"escalate\"]}"
    );
    assert_eq!(refused.code, 403);
    let less = role(
        "golden",
        "less",
        json!([
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/log"], "resourceNames": ["x"]},
        ]),
    );
    let masters = User::authenticated("m", &["system:masters"]);
    let aggregator = user("system:serviceaccount:kube-system:clusterrole-aggregation-controller");
    let cluster = role("", "more", more["rules"].clone());
    let mut gathering = role("", "all", json!([]));
    gathering["aggregationRule"] = json!({"clusterRoleSelectors": [{}]});
    for (story, who, role, old, allowed) in [
        ("held", &admin, &less, None, true),
        ("unchanged", &admin, &more, Some(&more), true),
        ("masters", &masters, &more, None, true),
        ("escalate", &aggregator, &cluster, None, true),
        ("everything held", &user("root"), &cluster, None, true),
        ("held elsewhere", &admin, &cluster, None, false),
        ("a rule for all", &admin, &gathering, None, false),
        ("a rule for all, by root", &user("root"), &gathering, None, true),
    ] {
        assert_eq!(may_write_role(&policy, who, role, old).is_ok(), allowed, "{story}");
    }

    let to = json!([{"kind": "User", "name": "friend"}]);
    let bind = |namespace: &str, role: (&str, &str)| binding(namespace, "b", role, to.clone());
    for (story, who, binding, expected) in [
        ("held", &admin, bind("golden", ("ClusterRole", "view")), Ok(())),
        ("not held", &admin, bind("golden", ("ClusterRole", "cluster-admin")), Err(403)),
        ("not held there", &admin, bind("other", ("ClusterRole", "view")), Err(403)),
        ("missing", &admin, bind("golden", ("Role", "gone")), Err(404)),
        ("root", &user("root"), bind("", ("ClusterRole", "cluster-admin")), Ok(())),
        ("masters", &masters, bind("", ("ClusterRole", "gone")), Ok(())),
    ] {
        let said = may_write_binding(&policy, who, &binding, None).map_err(|status| status.code);
        assert_eq!(said, expected, "{story}");
    }
}

#[test]
fn a_185_a_rule_with_long_lists_is_refused_quickly() {
    let many: Vec<String> = (0..3000).map(|i| i.to_string()).collect();
    let rule = json!([{"verbs": many, "apiGroups": many, "resources": many}]);
    let long = role("golden", "long", rule);
    assert!(may_write_role(&policy(), &user("admin"), &long, None).is_err());
}

fn invalid(result: Result<Value, Box<Status>>) -> (u16, String) {
    let status = result.unwrap_err();
    (status.code, status.message)
}

#[test]
fn a_180_access_reviews_decide_as_the_request_would_be_decided() {
    let policy = policy();
    let spec = json!({"resourceAttributes":
        {"namespace": "golden", "resource": "pods", "verb": "delete"}});
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "metadata": {"name": ""}, "spec": spec});
    let masters = User::authenticated("m", &["system:masters"]);
    // The golden answer `ssar`.
    let answer = self_subject_access_review(&body, &masters, &policy).unwrap();
    assert_eq!(answer["kind"], "SelfSubjectAccessReview");
    assert_eq!(answer["spec"], spec);
    assert_eq!(answer["status"], json!({"allowed": true}));
    let answer = self_subject_access_review(&body, &user("viewer"), &policy).unwrap();
    assert_eq!(answer["status"], json!({"allowed": false}));

    let about = |name: &str, groups: Value, block: Value| {
        let mut spec = block;
        spec["user"] = name.into();
        spec["groups"] = groups;
        subject_access_review(&json!({"spec": spec}), &policy)
    };
    let editor = about("editor", json!([]), spec.clone()).unwrap();
    assert_eq!(editor["apiVersion"], "authorization.k8s.io/v1");
    assert_eq!(editor["status"]["allowed"], true);
    let path = json!({"nonResourceAttributes": {"path": "/healthz", "verb": "get"}});
    let granted =
        |groups| about("jane", groups, path.clone()).unwrap()["status"]["allowed"].clone();
    assert_eq!(granted(json!([])), false, "no group is added");
    assert_eq!(granted(json!(["system:authenticated"])), true);
    let empty = json!({"nonResourceAttributes": {"verb": "get"}});
    assert_eq!(about("jane", json!([]), empty).unwrap()["status"]["allowed"], false);
}

#[test]
fn a_181_a_review_needs_exactly_one_attribute_block_a_subject_and_no_name() {
    let policy = policy();
    let both = json!({"user": "u", "resourceAttributes": {"verb": "get"},
        "nonResourceAttributes": {"verb": "get"}});
    let review = |spec: Value| subject_access_review(&json!({"spec": spec}), &policy);
    let prefix = "SubjectAccessReview.authorization.k8s.io \"\" is invalid: ";
    assert_eq!(
        invalid(review(json!({"user": "u"}))),
        (
            422,
            format!(
                "{prefix}spec.resourceAttributes: Invalid value: null: exactly one of \
                 nonResourceAttributes or resourceAttributes must be specified"
            )
        )
    );
    let (code, message) = invalid(review(both));
    assert_eq!(code, 422);
    assert!(message.ends_with("cannot be specified in combination with resourceAttributes"));
    let (_, message) = invalid(review(json!({"resourceAttributes": {"verb": "get"}})));
    let expected =
        "spec.user: Invalid value: \"\": at least one of user or group must be specified";
    assert_eq!(message, format!("{prefix}{expected}"));
    let named = json!({"metadata": {"name": "x"}, "spec": {"resourceAttributes": {"verb": "get"}}});
    let (_, message) = invalid(self_subject_access_review(&named, &user("u"), &policy));
    assert!(message.contains("metadata: Invalid value"), "{message}");
}

#[test]
fn a_181_a_local_review_is_limited_to_its_namespace() {
    let policy = policy();
    let review = |namespace: &str| {
        let attributes = json!({"namespace": namespace, "resource": "pods", "verb": "get"});
        let body = json!({"spec": {"user": "viewer", "resourceAttributes": attributes}});
        local_subject_access_review(&body, "golden", &policy)
    };
    let answer = review("golden").unwrap();
    assert_eq!(answer["status"]["allowed"], true);
    assert_eq!(answer["metadata"], json!({"namespace": "golden"}));
    let (code, message) = invalid(review("other"));
    assert_eq!(code, 422);
    assert!(message.contains("must match metadata.namespace"), "{message}");
}

#[test]
fn a_180_a_user_can_review_its_own_rules_and_identity() {
    let policy = policy();
    let body = json!({"spec": {"namespace": "golden"}});
    let account = user("system:serviceaccount:golden:default");
    let answer = self_subject_rules_review(&body, &account, &policy).unwrap();
    let status = &answer["status"];
    assert_eq!(status["incomplete"], false);
    let expected = json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]});
    assert!(status["resourceRules"].as_array().unwrap().contains(&expected), "{status}");
    let paths = status["nonResourceRules"].as_array().unwrap();
    assert!(paths.iter().all(|rule| rule.get("resources").is_none()) && !paths.is_empty());
    assert_eq!(invalid(self_subject_rules_review(&json!({}), &account, &policy)).0, 400);

    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let answer = self_subject_review(&json!({}), &account, now).unwrap();
    assert_eq!(answer["kind"], "SelfSubjectReview");
    assert_eq!(answer["metadata"], json!({"creationTimestamp": "2027-01-15T08:00:00Z"}));
    assert_eq!(answer["status"]["userInfo"]["username"], "system:serviceaccount:golden:default");
}

#[test]
fn a_180_a_token_review_returns_user_and_audiences() {
    let key = SigningKey::generate().unwrap();
    let service_accounts = ServiceAccountTokens::with_key(key, "us", &["us".into(), "we".into()]);
    let mut static_tokens = StaticTokens::new();
    static_tokens.add("letmein", user("root"));
    let bootstrap_tokens = BootstrapTokens::new(|_| None);
    let authenticator = Authenticator { static_tokens, bootstrap_tokens, service_accounts };
    let there = |_: &str, _: &str, _: &str| Some(Bound { uid: "1".into(), deleted_since: None });
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let review = |token: &str, audiences: Value| {
        let body = json!({"spec": {"token": token, "audiences": audiences}});
        token_review(&body, &authenticator, now, &there)
    };
    let account = crate::authn::tokens::Account { namespace: "golden", name: "default", uid: "1" };
    let request = json!({"spec": {"audiences": ["vault", "us"]}});
    let issued = crate::authn::tokens::request(
        &request,
        account,
        &authenticator.service_accounts,
        now,
        &|_, _, _| None,
    )
    .unwrap();
    let token = issued["status"]["token"].as_str().unwrap();
    let status = |token, audiences| review(token, audiences).unwrap()["status"].clone();
    let ours = status(token, json!(null));
    assert_eq!(ours["authenticated"], true);
    assert_eq!(ours["user"]["username"], "system:serviceaccount:golden:default");
    assert_eq!(ours["audiences"], json!(["us"]));
    assert_eq!(status(token, json!(["vault", "x"]))["audiences"], json!(["vault"]));
    assert_eq!(status(token, json!(["x"])).get("authenticated"), None);
    assert_eq!(status("letmein", json!([]))["user"]["username"], "root");
    let bad = status("nonsense", json!([]));
    assert_eq!(bad, json!({"user": {}, "error": "invalid bearer token"}));
    assert_eq!(invalid(review("", json!([]))).0, 400);
}

proptest! {
    /// If `covers` accepts a rule, the policy allows everything that the rule covers.
    #[test]
    fn a_185_every_right_of_a_covered_rule_is_allowed(
        verb in "get|list|create|escalate|\\*",
        group in "|apps|\\*",
        resource in "pods|pods/log|secrets|deployments|\\*|\\*/log",
        name in "|x",
        who in "viewer|editor|admin|root|local-root|named|nobody",
    ) {
        let policy = policy();
        let who = user(&who);
        let names = if name.is_empty() { vec![] } else { vec![name.clone()] };
        let rule = Rule { verbs: vec![verb.clone()], api_groups: vec![group.clone()],
            resources: vec![resource.clone()], resource_names: names, ..Rule::default() };
        let covered = escalation::covers(&policy, &who, "golden", &[rule]).is_ok();
        let (plain, sub) = resource.split_once('/').unwrap_or((&resource, ""));
        let wanted = Attributes { namespace: "golden", name: &name, subresource: sub,
            ..Attributes::resource(&who, &verb, &group, plain) };
        let allowed = policy.allows(&wanted).allowed;
        prop_assert!(!covered || allowed);
    }

    #[test]
    fn reviews_of_anything_never_panic(text in "\\PC{0,20}", number in any::<i64>()) {
        let policy = policy();
        for body in [
            json!({"spec": {"user": text, "resourceAttributes": {"verb": number, "name": text}}}),
            json!({"spec": {"groups": [text], "nonResourceAttributes": {"path": text}}}),
            json!({"metadata": number, "spec": text}),
            json!({"metadata": {"name": ""}, "spec": {"resourceAttributes": {"labelSelector": {"requirements": [number]}}}}),
            json!(null),
        ] {
            let _ = subject_access_review(&body, &policy);
            let _ = local_subject_access_review(&body, &text, &policy);
            let _ = self_subject_access_review(&body, &user(&text), &policy);
            let _ = self_subject_rules_review(&body, &user(&text), &policy);
        }
        let garbage = [json!({"metadata": {"name": text}, "rules": [number, {"verbs": [text]}], "roleRef": text, "subjects": [text]})];
        let _ = Policy::build(&garbage, &garbage, &garbage, &garbage);
    }
}
