//! The audit log: levels, stages and annotations by policy.

use crate::cluster::{Client, Cluster, PODS, pod};
use serde_json::{Value, json};
use server::authn::User;
use server::{AuditConfig, Config, Rotation, Running, StoreChoice};
use std::path::PathBuf;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const PASSWORD: &str = "aHVudGVyMg==";

struct Audited {
    running: Running,
    log: PathBuf,
    ana: Client,
    _dir: tempfile::TempDir,
}

impl Audited {
    async fn start(policy: Option<&str>) -> Audited {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("audit.log");
        let policy = policy.map(|text| {
            let path = dir.path().join("policy.yaml");
            std::fs::write(&path, text).unwrap();
            path
        });
        let config = Config {
            data_dir: dir.path().join("data"),
            listen: "127.0.0.1:0".parse().unwrap(),
            store: StoreChoice::Embedded,
            service_ranges: Default::default(),
            audit_log: Some(AuditConfig {
                path: log.clone(),
                policy,
                rotation: Rotation::default(),
            }),
            controllers: true,
        };
        let running = server::start(config).await.unwrap();
        let ana = User::authenticated("ana", &["system:masters", "team"]);
        let ana = Client::of(&running, ana);
        Audited { running, log, ana, _dir: dir }
    }

    /// The lines about ana's requests, after the server has stopped.
    async fn lines(self) -> Vec<Value> {
        drop(self.ana);
        self.running.stop().await;
        let text = std::fs::read_to_string(&self.log).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["user"]["username"] == "ana").collect()
    }
}

fn stages(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["stage"].as_str().unwrap()).collect()
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
           "data": {"password": PASSWORD}})
}

#[tokio::test]
async fn a_request_is_logged_before_and_after_it_is_served() {
    let server = Audited::start(None).await;
    let agent = [("user-agent", "kubectl/v1.36.4"), ("content-type", "application/json")];
    server.ana.send("POST", SECRETS, &agent, secret("one").to_string()).await;
    server.ana.get("/version").await;
    let lines = server.lines().await;
    assert_eq!(
        stages(&lines),
        ["RequestReceived", "ResponseComplete", "RequestReceived", "ResponseComplete"]
    );
    let (before, after) = (&lines[0], &lines[1]);
    assert_eq!(before["auditID"], after["auditID"]);
    assert!(before["responseStatus"].is_null());
    assert_eq!(after["level"], "Metadata");
    assert_eq!(after["verb"], "create");
    assert_eq!(after["userAgent"], "kubectl/v1.36.4");
    let groups = json!(["system:masters", "team", "system:authenticated"]);
    assert_eq!(after["user"], json!({"username": "ana", "groups": groups}));
    assert_eq!(after["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(after["annotations"]["authorization.k8s.io/decision"], "allow");
    let reference = json!({"resource": "secrets", "namespace": "default", "apiVersion": "v1"});
    assert_eq!(after["objectRef"], reference);
    assert!(after["stageTimestamp"].as_str() >= before["stageTimestamp"].as_str());
    assert!(lines[2]["objectRef"].is_null(), "{}", lines[2]);
    assert!(!format!("{lines:?}").contains(PASSWORD), "no bodies at level Metadata");
}

#[tokio::test]
async fn a_policy_decides_how_much_of_which_request_is_logged() {
    let server = Audited::start(Some(
        r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, resources: [{group: "", resources: [secrets]}]}
- {level: None, resources: [{group: "", resources: [configmaps]}]}
- {level: Request, verbs: [create], resources: [{group: "", resources: [pods]}]}
- {level: RequestResponse, omitManagedFields: true, resources: [{group: "", resources: [pods]}]}
"#,
    ))
    .await;
    let ana = &server.ana;
    ana.post(SECRETS, secret("one")).await.ok();
    ana.get("/api/v1/namespaces/default/configmaps").await.ok();
    ana.post(PODS, pod("web")).await.ok();
    ana.get(&format!("{PODS}/web")).await.ok();
    ana.get(&format!("{PODS}/none")).await.refused(404, "NotFound");
    ana.get("/version").await.ok();
    let lines = server.lines().await;
    assert_eq!(stages(&lines), ["ResponseComplete"; 4]);
    let (secret, created, read, missing) = (&lines[0], &lines[1], &lines[2], &lines[3]);
    assert!(!secret.to_string().contains(PASSWORD));
    assert_eq!(created["level"], "Request");
    assert_eq!(created["requestObject"]["metadata"]["name"], "web");
    assert!(created["responseObject"].is_null());
    assert_eq!(read["responseObject"]["metadata"]["name"], "web");
    assert!(read["responseObject"]["metadata"]["managedFields"].is_null());
    let status = &missing["responseStatus"];
    assert_eq!((&status["code"], &status["reason"]), (&json!(404), &json!("NotFound")));
    assert_eq!(status["message"], "pods \"none\" not found");
}

#[tokio::test]
async fn a_watch_is_logged_when_it_begins_and_when_it_ends() {
    let server = Audited::start(None).await;
    drop(server.ana.watch(PODS).await);
    let lines = server.lines().await;
    assert_eq!(stages(&lines), ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
    assert_eq!(lines[1]["verb"], "watch");
}

#[tokio::test]
async fn a_refused_request_is_logged_as_forbidden() {
    let server = Audited::start(None).await;
    let ben = Client::of(&server.running, User::authenticated("ben", &[]));
    ben.get(PODS).await.refused(403, "Forbidden");
    drop(ben);
    server.running.stop().await;
    let text = std::fs::read_to_string(&server.log).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["user"]["username"], "ben");
    assert_eq!(last["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(last["responseStatus"]["reason"], "Forbidden");
}

/// A-158: the mode `audit` of PodSecurity.
#[tokio::test]
async fn a_158_violations_of_the_audited_level_are_annotated() {
    let server = Audited::start(None).await;
    let labels = json!({"metadata": {"labels": {
        "pod-security.kubernetes.io/audit": "restricted",
        "pod-security.kubernetes.io/enforce": "baseline",
        "pod-security.kubernetes.io/enforce-version": "v1.30"}}});
    let ana = &server.ana;
    ana.patch("/api/v1/namespaces/default", labels).await.ok();
    ana.post(PODS, pod("web")).await.ok();
    let mut privileged = pod("root");
    privileged["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    ana.post(PODS, privileged).await.refused(403, "Forbidden");
    let lines = server.lines().await;
    let creates: Vec<&Value> = lines
        .iter()
        .filter(|line| line["verb"] == "create" && line["stage"] == "ResponseComplete")
        .map(|line| &line["annotations"])
        .collect();
    for annotations in &creates {
        assert_eq!(annotations["pod-security.kubernetes.io/enforce-policy"], "baseline:v1.30");
        let reply = annotations["pod-security.kubernetes.io/audit-violations"].as_str().unwrap();
        assert!(reply.starts_with("would violate PodSecurity \"restricted:latest\": "), "{reply}");
    }
    assert_eq!(creates.len(), 2);
}

#[tokio::test]
async fn an_invalid_policy_is_an_error_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.yaml");
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: []\n").unwrap();
    let path = dir.path().join("audit.log");
    let config = Config {
        data_dir: dir.path().join("data"),
        listen: "127.0.0.1:0".parse().unwrap(),
        store: StoreChoice::Embedded,
        service_ranges: Default::default(),
        audit_log: Some(AuditConfig { policy: Some(policy), ..AuditConfig::at(path) }),
        controllers: false,
    };
    let Err(error) = server::start(config).await else { panic!("it started") };
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("policy.yaml") && why.contains("no rules"), "{why}");
}

/// Responses have an audit ID even without an audit log.
#[tokio::test]
async fn a_server_without_an_audit_log_returns_an_audit_id() {
    let cluster = Cluster::start().await;
    assert!(!cluster.get(PODS).await.header("audit-id").is_empty());
}
