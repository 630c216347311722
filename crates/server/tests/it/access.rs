//! Authentication and authorization of requests: credentials, RBAC, reviews and impersonation (A-7,
//!

use crate::cluster::{self, Client, Cluster, MAPS, PODS, Reply, map, pod};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use server::authn::User;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

fn user(name: &str) -> Value {
    json!({"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"})
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "name": name, "apiGroup": "rbac.authorization.k8s.io"})
}

fn rule(verbs: &[&str], resources: &[&str], names: &[&str]) -> Value {
    let mut rule = json!({"apiGroups": [""], "verbs": verbs, "resources": resources});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

/// Grants the rules to the subject in the namespace `default`.
async fn grant(cluster: &Cluster, name: &str, subject: Value, rules: Value) {
    cluster.make(ROLES, json!({"metadata": {"name": name}, "rules": rules})).await;
    let role = json!({"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"});
    bind(cluster, BINDINGS, name, subject, role).await;
}

/// Grants the rules to the subject in the whole cluster.
async fn grant_all(cluster: &Cluster, name: &str, subject: Value, rules: Value) {
    cluster
        .make(&format!("{RBAC}/clusterroles"), json!({"metadata": {"name": name}, "rules": rules}))
        .await;
    bind(cluster, &format!("{RBAC}/clusterrolebindings"), name, subject, cluster_role(name)).await;
}

fn cluster_role(name: &str) -> Value {
    json!({"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"})
}

async fn bind(cluster: &Cluster, place: &str, name: &str, subject: Value, role: Value) {
    let binding = json!({"metadata": {"name": name}, "subjects": [subject], "roleRef": role});
    cluster.make(place, binding).await;
}

fn ana(cluster: &Cluster) -> Client {
    cluster.user(User::authenticated("ana", &["crew"]))
}

/// A request as it comes over the network.
async fn over_tls(cluster: &Cluster, path: &str, headers: &str) -> (u16, String) {
    let ca = std::fs::read(cluster.dir.path().join("pki/ca.crt")).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = tokio::net::TcpStream::connect(cluster.running.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = connector.connect(name, tcp).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

#[tokio::test]
async fn a_171_without_credentials_a_user_is_anonymous_and_invalid_ones_are_refused() {
    let cluster = Cluster::start().await;
    let (code, reply) = over_tls(&cluster, PODS, "").await;
    assert_eq!(code, 403);
    assert!(
        reply.contains("User \\\"system:anonymous\\\" cannot list resource \\\"pods\\\""),
        "{reply}"
    );
    let (code, reply) = over_tls(&cluster, PODS, "Authorization: Bearer wrong\r\n").await;
    assert_eq!(code, 401);
    assert!(reply.contains("\"message\":\"Unauthorized\""), "{reply}");
    // health needs no credentials, the description of the API does.
    assert_eq!(over_tls(&cluster, "/healthz", "").await.0, 200);
    assert_eq!(over_tls(&cluster, "/version", "").await.0, 200);
    assert_eq!(over_tls(&cluster, "/openapi/v2", "").await.0, 403);
    let token = std::fs::read_to_string(cluster.dir.path().join("admin.token")).unwrap();
    let admin = format!("Authorization: bearer {}\r\n", token.trim());
    assert_eq!(over_tls(&cluster, PODS, &admin).await.0, 200);
}

#[tokio::test]
async fn a_rotated_admin_token_replaces_the_old_one_without_a_restart() {
    let cluster = Cluster::start().await;
    let path = cluster.dir.path().join("admin.token");
    let header =
        || format!("Authorization: Bearer {}\r\n", std::fs::read_to_string(&path).unwrap().trim());
    let old = header();
    assert_eq!(over_tls(&cluster, PODS, &old).await.0, 200);
    cluster.running.rotate_admin_token().unwrap();
    let new = header();
    assert_eq!(over_tls(&cluster, PODS, &old).await.0, 401);
    assert_eq!(over_tls(&cluster, PODS, &new).await.0, 200);
    let cluster = cluster.restart().await;
    assert_eq!(over_tls(&cluster, PODS, &old).await.0, 401);
    assert_eq!(over_tls(&cluster, PODS, &new).await.0, 200);
}

#[tokio::test]
async fn the_token_of_a_running_server_cannot_be_replaced_offline() {
    let cluster = Cluster::start().await;
    assert!(server::rotate_admin_token(cluster.dir.path()).is_err());
    let token = std::fs::read_to_string(cluster.dir.path().join("admin.token")).unwrap();
    cluster.running.stop().await;
    server::rotate_admin_token(cluster.dir.path()).unwrap();
    let next = std::fs::read_to_string(cluster.dir.path().join("admin.token")).unwrap();
    assert_ne!(token, next);
}

#[tokio::test]
async fn a_174_to_177_a_token_authenticates_a_service_account_while_it_exists() {
    let cluster = Cluster::start().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let made = cluster.make(accounts, json!({"metadata": {"name": "robot"}})).await;
    let account = json!({"kind": "ServiceAccount", "name": "robot", "namespace": "default"});
    grant(&cluster, "robots", account, json!([rule(&["list"], &["pods"], &[])])).await;
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let issued = cluster.make(&format!("{accounts}/robot/token"), request).await;
    let token = issued["status"]["token"].as_str().unwrap();
    let bearer = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(over_tls(&cluster, PODS, &bearer).await.0, 200);
    assert_eq!(over_tls(&cluster, MAPS, &bearer).await.0, 403);
    let review = json!({"spec": {"token": token}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let status = cluster.make(reviews, review.clone()).await["status"].clone();
    assert_eq!(status["authenticated"], true);
    let info = &status["user"];
    assert_eq!(info["username"], "system:serviceaccount:default:robot");
    assert_eq!(info["uid"], made["metadata"]["uid"]);
    assert_eq!(
        info["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"])
    );
    cluster.delete(&format!("{accounts}/robot")).await.ok();
    assert_eq!(over_tls(&cluster, PODS, &bearer).await.0, 401);
    let status = cluster.make(reviews, review).await["status"].clone();
    assert!(status["authenticated"].as_bool() != Some(true), "{status}");
}

#[tokio::test]
async fn a_7_a_list_that_selects_one_name_is_authorized_as_that_name() {
    let cluster = Cluster::start().await;
    let rules = json!([rule(&["list", "watch", "get"], &["configmaps"], &["mine"])]);
    grant(&cluster, "one", user("ana"), rules).await;
    cluster.make(MAPS, map("mine")).await;
    let ana = ana(&cluster);
    assert_eq!(ana.get(&format!("{MAPS}/mine")).await.code, 200);
    ana.get(MAPS).await.refused(403, "Forbidden");
    ana.get(&format!("{MAPS}/other")).await.refused(403, "Forbidden");
    assert_eq!(ana.names(&format!("{MAPS}?fieldSelector=metadata.name=mine")).await, ["mine"]);
    ana.get(&format!("{MAPS}?fieldSelector=metadata.name=other")).await.refused(403, "Forbidden");
    let mut watch = ana.watch(&format!("{MAPS}?fieldSelector=metadata.name=mine")).await;
    assert_eq!(watch.reply(1).await, ["ADDED mine"]);
}

#[tokio::test]
async fn a_93_authorization_comes_before_all_other_checks() {
    let cluster = Cluster::start().await;
    let reply = ana(&cluster).post(PODS, json!("nonsense")).await;
    let text = "pods is forbidden: User \"ana\" cannot create resource \"pods\" in API group \"\" in the namespace \"default\"";
    assert_eq!(reply.refused(403, "Forbidden"), text);
    assert_eq!(reply.body["details"], json!({"kind": "pods"}));
    let reply = ana(&cluster).get("/api/v1/nodes/n1").await;
    let text = "nodes \"n1\" is forbidden: User \"ana\" cannot get resource \"nodes\" in API group \"\" at the cluster scope";
    assert_eq!(reply.refused(403, "Forbidden"), text);
    let reply = ana(&cluster).get("/metrics").await;
    assert!(
        reply.refused(403, "Forbidden").ends_with("User \"ana\" cannot get path \"/metrics\""),
        "{}",
        reply.body
    );
}

/// Each row is verb, path, body and whether the rules in the test allow it.
#[tokio::test]
async fn a_182_and_183_rules_are_additive_and_match_exactly() {
    let cluster = Cluster::start().await;
    cluster.make("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
    grant(&cluster, "a", user("ana"), json!([rule(&["get", "list"], &["pods"], &[])])).await;
    grant(&cluster, "b", group("crew"), json!([rule(&["*"], &["pods/status"], &[])])).await;
    grant(&cluster, "c", user("ana"), json!([rule(&["delete"], &["pods"], &["p"])])).await;
    grant_all(
        &cluster,
        "d",
        user("ana"),
        json!([{"apiGroups": ["*"], "verbs": ["get"], "resources": ["*/scale"]},
        {"nonResourceURLs": ["/metrics", "/openapi/*"], "verbs": ["get"]}]),
    )
    .await;
    bind(&cluster, BINDINGS, "missing", user("ana"), cluster_role("not-there")).await;
    cluster.make(PODS, pod("p")).await;
    let shop = "/api/v1/namespaces/shop/pods";
    let rows = [
        ("GET", format!("{PODS}/p"), true),
        ("GET", PODS.to_owned(), true),
        ("GET", shop.to_owned(), false),
        ("GET", "/api/v1/pods".to_owned(), false),
        ("GET", format!("{PODS}?watch=1"), false),
        ("GET", format!("{PODS}/p/status"), true),
        ("PATCH", format!("{PODS}/p/status"), true),
        ("PATCH", format!("{PODS}/p"), false),
        ("GET", format!("{PODS}/p/log"), false),
        ("DELETE", format!("{PODS}/q"), false),
        ("DELETE", PODS.to_owned(), false),
        ("GET", "/apis/apps/v1/namespaces/shop/deployments/d/scale".to_owned(), true),
        ("GET", "/apis/apps/v1/namespaces/shop/deployments/d".to_owned(), false),
        ("GET", "/metrics".to_owned(), true),
        ("GET", "/openapi/v3".to_owned(), true),
        ("GET", "/apis/apps".to_owned(), true), // system:discovery, for all who are authenticated
        ("GET", "/logs".to_owned(), false),
        ("DELETE", format!("{PODS}/p"), true),
    ];
    let ana = ana(&cluster);
    for (method, path, allowed) in rows {
        let reply = ana
            .send(
                method,
                &path,
                &[("content-type", cluster::MERGE)],
                if method == "PATCH" { "{}" } else { "" },
            )
            .await;
        assert_eq!(reply.code != 403, allowed, "{method} {path}: {}", reply.body);
    }
    // A removed binding takes effect immediately.
    cluster.delete(&format!("{BINDINGS}/a")).await.ok();
    ana.get(PODS).await.refused(403, "Forbidden");
    // A group counts only for its members.
    let bob = cluster.user(User::authenticated("bob", &[]));
    bob.get(&format!("{PODS}/p/status")).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn a_67_and_118_creating_by_update_or_apply_needs_the_right_to_create() {
    let cluster = Cluster::start().await;
    let rules = json!([rule(&["update", "patch"], &["limitranges", "configmaps"], &[])]);
    grant(&cluster, "changes", user("ana"), rules).await;
    let ana = ana(&cluster);
    let ranges = "/api/v1/namespaces/default/limitranges";
    let range = json!({"metadata": {"name": "x"}, "spec": {"limits": []}});
    ana.put(&format!("{ranges}/x"), &range).await.refused(403, "Forbidden");
    ana.apply(&format!("{MAPS}/m"), "ana", map("m")).await.refused(403, "Forbidden");
    cluster.make(MAPS, map("m")).await;
    assert_eq!(ana.apply(&format!("{MAPS}/m"), "ana", map("m")).await.code, 200);
}

/// a review gives the same result as the request.
#[tokio::test]
async fn a_180_and_187_reviews_agree_with_real_requests() {
    let cluster = Cluster::start().await;
    grant(&cluster, "reader", user("ana"), json!([rule(&["get", "list"], &["pods"], &[])])).await;
    grant(&cluster, "crew", group("crew"), json!([rule(&["list"], &["configmaps"], &[])])).await;
    grant_all(
        &cluster,
        "paths",
        user("ana"),
        json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]),
    )
    .await;
    let ana = ana(&cluster);
    let rows = [
        (
            json!({"resourceAttributes": {"namespace": "default", "verb": "list", "resource": "pods"}}),
            PODS,
        ),
        (
            json!({"resourceAttributes": {"namespace": "default", "verb": "list", "resource": "configmaps"}}),
            MAPS,
        ),
        (json!({"resourceAttributes": {"verb": "list", "resource": "pods"}}), "/api/v1/pods"),
        (
            json!({"resourceAttributes": {"namespace": "default", "verb": "list", "resource": "secrets"}}),
            "/api/v1/namespaces/default/secrets",
        ),
        (
            json!({"resourceAttributes": {"verb": "get", "resource": "nodes", "name": "n1"}}),
            "/api/v1/nodes/n1",
        ),
        (json!({"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}), "/metrics"),
        (json!({"nonResourceAttributes": {"path": "/logs", "verb": "get"}}), "/logs"),
    ];
    for (spec, path) in rows {
        let met = ana.get(path).await.code != 403;
        let own =
            ana.make(&format!("{REVIEWS}/selfsubjectaccessreviews"), json!({"spec": spec})).await;
        assert_eq!(own["status"]["allowed"], met, "{path}");
        let mut about = spec.clone();
        about["user"] = "ana".into();
        about["groups"] = json!(["crew", "system:authenticated"]);
        let reply =
            cluster.make(&format!("{REVIEWS}/subjectaccessreviews"), json!({"spec": about})).await;
        assert_eq!(reply["status"]["allowed"], met, "{path}");
        if spec["resourceAttributes"]["namespace"] == "default" {
            let place = format!("{REVIEWS}/namespaces/default/localsubjectaccessreviews");
            let reply = cluster
                .make(&place, json!({"metadata": {"namespace": "default"}, "spec": about}))
                .await;
            assert_eq!(reply["status"]["allowed"], met, "{path}");
        }
        // the same holds for a user who impersonates her.
        let as_ana = [("impersonate-user", "ana"), ("impersonate-group", "crew")];
        assert_eq!(cluster.get_with(path, &as_ana).await.code != 403, met, "{path}");
    }
    let whoami = ana.make("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await;
    assert_eq!(
        whoami["status"]["userInfo"],
        json!({"username": "ana", "groups": ["crew", "system:authenticated"]})
    );
    let rules = ana
        .make(
            &format!("{REVIEWS}/selfsubjectrulesreviews"),
            json!({"spec": {"namespace": "default"}}),
        )
        .await;
    let text = rules["status"]["resourceRules"].to_string();
    assert!(text.contains("\"pods\"") && text.contains("\"configmaps\""), "{text}");
    assert!(rules["status"]["nonResourceRules"].to_string().contains("/metrics"));
}

#[tokio::test]
async fn a_181_a_review_has_exactly_one_attribute_block() {
    let cluster = Cluster::start().await;
    let place = format!("{REVIEWS}/selfsubjectaccessreviews");
    cluster.post(&place, json!({"spec": {}})).await.refused(422, "Invalid");
    let both = json!({"resourceAttributes": {"verb": "get", "resource": "pods"},
                      "nonResourceAttributes": {"path": "/x", "verb": "get"}});
    cluster.post(&place, json!({"spec": both})).await.refused(422, "Invalid");
    let other = json!({"spec": {"user": "ana", "resourceAttributes": {"namespace": "shop", "verb": "get", "resource": "pods"}}});
    let place = format!("{REVIEWS}/namespaces/default/localsubjectaccessreviews");
    let reply = cluster.post(&place, other).await;
    assert!(matches!(reply.code, 400 | 422), "{}", reply.body);
    cluster
        .get(&format!("{REVIEWS}/selfsubjectaccessreviews"))
        .await
        .refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn a_184_an_aggregated_role_has_the_rules_of_those_it_selects() {
    let cluster = Cluster::start().await;
    let roles = format!("{RBAC}/clusterroles");
    let part = json!({"metadata": {"name": "part", "labels": {"to": "whole"}},
                      "rules": [rule(&["list"], &["configmaps"], &[])]});
    let whole = json!({"metadata": {"name": "whole"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "whole"}}]}});
    cluster.make(&roles, whole).await;
    bind(&cluster, BINDINGS, "x", user("ana"), cluster_role("whole")).await;
    ana(&cluster).get(MAPS).await.refused(403, "Forbidden");
    cluster.make(&roles, part).await;
    assert_eq!(ana(&cluster).get(MAPS).await.code, 200);
}

#[tokio::test]
async fn a_185_a_user_cannot_grant_rights_that_it_does_not_have() {
    let cluster = Cluster::start().await;
    let all = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["create", "update"]},
        rule(&["get", "list"], &["pods"], &[]),
    ]);
    grant(&cluster, "manager", user("ana"), all).await;
    let ana = ana(&cluster);
    let role = |name: &str, rules: Value| json!({"metadata": {"name": name}, "rules": rules});
    ana.make(ROLES, role("less", json!([rule(&["get"], &["pods"], &[])]))).await;
    let reply = ana.post(ROLES, role("more", json!([rule(&["get"], &["secrets"], &[])]))).await;
    let message = reply.refused(403, "Forbidden");
    let text = "user \"ana\" (groups=[\"crew\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}";
    assert!(message.ends_with(text), "{message}");
    let binding = |name: &str, role: Value| json!({"metadata": {"name": name}, "subjects": [user("bob")], "roleRef": role});
    let own = json!({"kind": "Role", "name": "less", "apiGroup": "rbac.authorization.k8s.io"});
    ana.make(BINDINGS, binding("less", own)).await;
    ana.post(BINDINGS, binding("admin", cluster_role("cluster-admin")))
        .await
        .refused(403, "Forbidden");
    // With the verbs `escalate` and `bind` they may.
    let more = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["escalate"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["bind"], "resourceNames": ["view"]},
    ]);
    grant(&cluster, "trusted", user("ana"), more).await;
    ana.make(ROLES, role("more", json!([rule(&["get"], &["secrets"], &[])]))).await;
    ana.make(BINDINGS, binding("view", cluster_role("view"))).await;
    ana.post(BINDINGS, binding("edit", cluster_role("edit"))).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn a_186_default_roles_exist_and_are_restored() {
    let cluster = Cluster::start().await;
    let roles = format!("{RBAC}/clusterroles");
    let all = cluster.names(&roles).await;
    for role in [
        "cluster-admin",
        "admin",
        "edit",
        "view",
        "system:discovery",
        "system:node",
        "system:auth-delegator",
        "system:service-account-issuer-discovery",
        "system:basic-user",
    ] {
        assert!(all.iter().any(|name| name == role), "{role}");
    }
    let view = cluster.read(&format!("{roles}/view")).await;
    assert_eq!(view["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
    assert_eq!(
        view["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"],
        "true"
    );
    cluster.delete(&format!("{roles}/system:discovery")).await.ok();
    let cluster = cluster.restart().await;
    assert_eq!(cluster.get(&format!("{roles}/system:discovery")).await.code, 200);
    bind(&cluster, BINDINGS, "v", user("ana"), cluster_role("view")).await;
    assert_eq!(ana(&cluster).get(PODS).await.code, 200);
    ana(&cluster).get("/api/v1/namespaces/default/secrets").await.refused(403, "Forbidden");
}

async fn acting(client: &Client, path: &str, headers: &[(&str, &str)]) -> Reply {
    client.get_with(path, headers).await
}

#[tokio::test]
async fn a_188_impersonation_needs_the_right_to_impersonate() {
    let cluster = Cluster::start().await;
    grant(&cluster, "reader", user("bob"), json!([rule(&["list"], &["pods"], &[])])).await;
    let bob = [("impersonate-user", "bob")];
    assert_eq!(acting(&cluster, PODS, &bob).await.code, 200);
    let reply = acting(&cluster, MAPS, &bob).await;
    assert!(reply.refused(403, "Forbidden").contains("User \"bob\" cannot list"));
    let reply = acting(&ana(&cluster), PODS, &bob).await;
    let text = "users \"bob\" is forbidden: User \"ana\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope";
    assert_eq!(reply.refused(403, "Forbidden"), text);
    // Groups and extras without a user are invalid.
    acting(&cluster, PODS, &[("impersonate-group", "crew")]).await.refused(400, "BadRequest");
    acting(&cluster, PODS, &[("impersonate-uid", "u")]).await.refused(400, "BadRequest");

    let rules = json!([
        rule(&["impersonate"], &["users"], &["bob"]),
        rule(&["impersonate"], &["serviceaccounts"], &[])
    ]);
    grant_all(&cluster, "actor", user("ana"), rules).await;
    let ana = ana(&cluster);
    assert_eq!(acting(&ana, PODS, &bob).await.code, 200);
    let as_root = [("impersonate-user", "bob"), ("impersonate-group", "system:masters")];
    acting(&ana, PODS, &as_root).await.refused(403, "Forbidden");
    acting(&ana, PODS, &[("impersonate-user", "carl")]).await.refused(403, "Forbidden");
    for extra in [("impersonate-uid", "u"), ("impersonate-extra-scopes", "x")] {
        acting(&ana, PODS, &[bob[0], extra]).await.refused(403, "Forbidden");
    }
}

#[tokio::test]
async fn a_188_requests_run_as_the_impersonated_user() {
    let cluster = Cluster::start().await;
    let place = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let rows: [(&[(&str, &str)], Value); 3] = [
        (
            &[("impersonate-user", "bob")],
            json!({"username": "bob", "groups": ["system:authenticated"]}),
        ),
        (
            &[("impersonate-user", "system:serviceaccount:default:robot")],
            json!({"username": "system:serviceaccount:default:robot", "groups": ["system:serviceaccounts",
                "system:serviceaccounts:default", "system:authenticated"]}),
        ),
        (
            &[
                ("impersonate-user", "bob"),
                ("impersonate-group", "a"),
                ("impersonate-group", "b"),
                ("impersonate-uid", "u1"),
                ("impersonate-extra-example.com%2fscope", "x"),
            ],
            json!({"username": "bob", "uid": "u1", "groups": ["a", "b", "system:authenticated"],
                "extra": {"example.com/scope": ["x"]}}),
        ),
    ];
    for (headers, wanted) in rows {
        let headers: Vec<_> =
            headers.iter().copied().chain([("content-type", "application/json")]).collect();
        let reply = cluster.send("POST", place, &headers, "{}").await.ok();
        assert_eq!(reply["status"]["userInfo"], wanted);
    }
    let anonymous =
        [("impersonate-user", "system:anonymous"), ("content-type", "application/json")];
    let reply = cluster.send("POST", place, &anonymous, "{}").await;
    // Anonymous users may not even review themselves.
    reply.refused(403, "Forbidden");
}

/// the audit log contains the real user and the impersonated one.
#[tokio::test]
async fn a_188_the_audit_log_has_the_real_and_the_impersonated_user() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit.log");
    let config = server::Config {
        data_dir: dir.path().join("data"),
        listen: "127.0.0.1:0".parse().unwrap(),
        store: server::StoreChoice::Embedded,
        service_ranges: Default::default(),
        audit_log: Some(server::AuditConfig::at(log.clone())),
        controllers: false,
    };
    let running = server::start(config).await.unwrap();
    let admin = Client::of(&running, User::authenticated("boss", &["system:masters"]));
    let ana = Client::of(&running, User::authenticated("ana", &[]));
    admin.get(PODS).await.ok();
    acting(&admin, PODS, &[("impersonate-user", "ben")]).await.refused(403, "Forbidden");
    acting(&ana, PODS, &[("impersonate-user", "boss")]).await.refused(403, "Forbidden");
    running.stop().await;
    let text = std::fs::read_to_string(log).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let who: Vec<(Value, Value)> = lines
        .filter(|line| line["stage"] == "ResponseComplete")
        .map(|line| {
            (line["user"]["username"].clone(), line["impersonatedUser"]["username"].clone())
        })
        .collect();
    let expected = [("boss", None), ("boss", Some("ben")), ("ana", None)];
    assert_eq!(who, expected.map(|(user, acts_as)| (json!(user), json!(acts_as))));
}
