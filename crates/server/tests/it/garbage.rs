//! Sends malformed requests: each gets a response, nothing panics, and a refused request changes nothing.
//!
//! Requests are made in-process and as an administrator, so that none is refused for missing rights. 5xx are
//! expected only if there is no agent (503: log, exec, attach, portforward, proxy), for a resource version of the
//! future (504, A-97), and where upstream reports a mistake of the client as its own (500 without a reason): a
//! create with a resource version, an apply that does not fit the schema, a strategic merge of items without their
//! key.
//!
//! A refused Service may have held addresses for a moment, as in upstream: for Services only the set of objects is
//! compared.
//!
//! tokio's clock is paused, so that waiting takes no time.

use crate::shapes::{self, Dice};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use serde_json::{Value, json};
use server::authn::User;
use server::{Config, InProcessService, Running, StoreChoice};
use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tower::Service as _;

/// Panics anywhere in the process, including background tasks.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// What the proxy answers if the Service has no pod or no such port, or if the port is not a number.
const NO_BACKEND_503: &[&str] =
    &["no endpoints available for service", "no service port", "unknown port"];

const UPSTREAMS_500: [&str; 4] = [
    // A watch from a resource version that is not a number.
    "strconv.ParseUint: parsing",
    "resourceVersion should not be set on objects to be created",
    "failed to create typed patch object",
    "does not contain declared merge key",
];

struct Bed {
    runtime: tokio::runtime::Runtime,
    running: Running,
    service: InProcessService,
    _home: tempfile::TempDir,
}

struct Reply {
    code: u16,
    body: Bytes,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Bed {
    fn new() -> Bed {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            hook(info);
        }));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let home = tempfile::tempdir().unwrap();
        let config = Config {
            data_dir: home.path().to_owned(),
            listen: "127.0.0.1:0".parse().unwrap(),
            store: StoreChoice::Embedded,
            service_ranges: Default::default(),
            audit_log: None,
            controllers: false,
        };
        let running = runtime.block_on(server::start(config)).unwrap();
        let service =
            running.server.in_process(User::authenticated("garbage", &["system:masters"]));
        Bed { runtime, running, service, _home: home }
    }

    /// Sends the request and reads the response; of a streamed one, such as a watch, only the beginning.
    fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        let mut service = self.service.clone();
        self.runtime.block_on(async move {
            let Ok(answer) = service.call(request).await;
            let code = answer.status().as_u16();
            let mut read = Vec::new();
            let mut body = answer.into_body();
            let ends = !matches!(body, server::Body::Stream(_));
            let patience = Duration::from_millis(if ends { 60_000 } else { 1 });
            while let Ok(Some(Ok(frame))) = tokio::time::timeout(patience, body.frame()).await {
                read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            }
            Reply { code, body: read.into() }
        })
    }

    fn get(&self, path: &str) -> Value {
        let reply = self.send(Request::get(path).body(Full::default()).unwrap());
        assert_eq!(reply.code, 200, "{path}");
        reply.json()
    }

    /// The store's revision, which every list contains.
    fn revision(&self) -> String {
        let list = self.get("/api/v1/namespaces/default/limitranges?limit=1");
        list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    }

    /// What must not change.
    fn state(&self, test: &TestRequest) -> String {
        if !test.target.contains("/services") {
            return self.revision();
        }
        let places = ["/api/v1/services", "/apis/networking.k8s.io/v1/ipaddresses"];
        places.map(|place| self.get(place)["items"].to_string()).join("\n")
    }

    /// Addresses of a refused Service are released in the background.
    fn is_again(&self, test: &TestRequest, before: &str) -> bool {
        (0..100).any(|_| {
            self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
            self.state(test) == before
        })
    }

    fn stop(self) {
        self.runtime.block_on(self.running.stop());
        assert_eq!(PANICS.load(Ordering::Relaxed), 0, "something panicked, see above");
    }

    /// Sends a request and checks what must hold for every request.
    fn check(&self, test: &TestRequest) -> Result<Reply, String> {
        let Some(request) = test.request() else {
            return Ok(Reply { code: 0, body: Bytes::new() }); // Not HTTP: never gets this far.
        };
        let before = self.state(test);
        let panics = PANICS.load(Ordering::Relaxed);
        let sent = std::panic::catch_unwind(AssertUnwindSafe(|| self.send(request)));
        let reply = sent.map_err(|_| "it panicked, see above".to_owned())?;
        let text = || format!("{} {}", reply.code, String::from_utf8_lossy(&reply.body));
        if !(200..600).contains(&reply.code) {
            return Err(format!("no such code: {}", text()));
        }
        let no_agent = reply.code == 503 && text().contains("node agent");
        let no_backend =
            reply.code == 503 && NO_BACKEND_503.iter().any(|known| text().contains(known));
        let future = reply.code == 504 && text().contains("Too large resource version");
        let upstreams =
            reply.code == 500 && UPSTREAMS_500.iter().any(|known| text().contains(known));
        if reply.code >= 500 && !no_agent && !no_backend && !future && !upstreams {
            return Err(format!("not the client's fault: {}", text()));
        }
        let head = test.method == "HEAD";
        if reply.code >= 400 && !head && reply.json()["kind"] != "Status" && !plain(&reply) {
            return Err(format!("not a Status: {}", text()));
        }
        if reply.code >= 400 && !self.is_again(test, &before) {
            return Err(format!("refused, and yet something was written: {}", text()));
        }
        if PANICS.load(Ordering::Relaxed) > panics {
            return Err("something beside it panicked, see above".to_owned());
        }
        Ok(reply)
    }
}

/// Responses that are plain text in upstream: unknown paths, too many requests. A Status may also be
/// requested as YAML.
fn plain(reply: &Reply) -> bool {
    reply.body.starts_with(b"404 page not found")
        || reply.body.starts_with(b"apiVersion: v1")
        || reply.body.starts_with(b"k8s\0")
        || reply.body.windows(12).any(|part| part == b"\"Status\",\n  ")
        || reply.body.windows(8).any(|part| part == b"\"Status\"")
}

#[derive(Debug, Clone)]
struct TestRequest {
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl TestRequest {
    fn new(
        method: &str,
        target: impl Into<String>,
        content_type: &str,
        body: &Value,
    ) -> TestRequest {
        TestRequest {
            method: method.into(),
            target: target.into(),
            headers: vec![("content-type".into(), content_type.into())],
            body: body.to_string().into_bytes(),
        }
    }

    /// None if it is not a valid HTTP request.
    fn request(&self) -> Option<Request<Full<Bytes>>> {
        let method = Method::from_bytes(self.method.as_bytes()).ok()?;
        let mut request = Request::builder().method(method).uri(&self.target);
        for (name, value) in &self.headers {
            request = request.header(name.as_str(), value.as_slice());
        }
        request.body(Full::new(Bytes::from(self.body.clone()))).ok()
    }
}

fn methods() -> impl Strategy<Value = String> {
    let known = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE"];
    prop_oneof![9 => prop::sample::select(known.to_vec()).prop_map(String::from), 1 => "[A-Z]{1,20}"]
}

fn segments() -> impl Strategy<Value = String> {
    let words = [
        "api",
        "apis",
        "v1",
        "apps",
        "batch",
        "policy",
        "v2",
        "namespaces",
        "default",
        "none",
        "pods",
        "configmaps",
        "deployments",
        "services",
        "nodes",
        "secrets",
        "status",
        "scale",
        "log",
        "exec",
        "proxy",
        "eviction",
        "binding",
        "token",
        "finalize",
        "watch",
        "kubernetes",
        "web",
        "openapi",
        "v3",
        "version",
        "metrics",
        "healthz",
        "readyz",
        "ping",
        "",
        "rbac.authorization.k8s.io",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "selfsubjectreviews",
        "componentstatuses",
        ".",
        "..",
        "%2e%2e",
        "%00",
        "%ff",
        "%2F",
        "%",
        "%zz",
        "a%20b",
        "POD",
        "~",
        ":",
        "@",
        "*",
        ";",
        "+",
        "xn--",
        "-",
        "default/../kube-system",
    ];
    prop_oneof![
        12 => prop::sample::select(words.to_vec()).prop_map(String::from),
        1 => "[!-~]{0,12}",
        1 => (1usize..4000).prop_map(|len| "l".repeat(len)),
    ]
}

fn paths() -> impl Strategy<Value = String> {
    let places = [
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/pods",
        "/apis/apps/v1/namespaces/default/deployments",
        "/api/v1/nodes",
        "/api/v1/namespaces",
        "/api/v1/namespaces/default/services/kubernetes",
        "/api/v1/namespaces/default",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ];
    let begun = (prop::sample::select(places.to_vec()), prop::collection::vec(segments(), 0..3))
        .prop_map(|(place, more)| more.iter().fold(place.to_owned(), |path, s| path + "/" + s));
    let free = prop::collection::vec(segments(), 0..8)
        .prop_map(|all| all.iter().fold(String::new(), |path, s| path + "/" + s) + "/");
    prop_oneof![3 => begun, 2 => free, 1 => "/[!-~]{0,40}"]
}

fn queries() -> impl Strategy<Value = String> {
    let keys = [
        "watch",
        "limit",
        "continue",
        "resourceVersion",
        "resourceVersionMatch",
        "labelSelector",
        "fieldSelector",
        "timeoutSeconds",
        "sendInitialEvents",
        "allowWatchBookmarks",
        "dryRun",
        "fieldManager",
        "fieldValidation",
        "force",
        "pretty",
        "gracePeriodSeconds",
        "propagationPolicy",
        "orphanDependents",
        "includeObject",
        "verbose",
        "exclude",
        "timeout",
        "command",
        "container",
        "tailLines",
        "%",
        "",
        "ignoreStoreReadErrorWithClusterBreakingPotential",
    ];
    let values = [
        "true",
        "false",
        "1",
        "0",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "99999999999999999999",
        "1e3",
        "NaN",
        "",
        "a",
        "a=b",
        "a==b,c!=d",
        "a in (b,c)",
        "a in (",
        "!a",
        "!",
        "a notin ()",
        "metadata.name=web",
        "metadata.name==",
        "status.phase!=Running",
        "spec.nodeName=",
        "a=b=c",
        ",,,",
        "((((((((",
        "All",
        "Exact",
        "NotOlderThan",
        "Background",
        "Foreground",
        "Orphan",
        "Nothing",
        "Strict",
        "Ignore",
        "Warn",
        "Metadata",
        "Object",
        "None",
        "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhIn0",
        "eyJ2IjoxfQ",
        "%00",
        "%ff",
        "%e2%82",
        "%",
        "0x10",
        "+1",
        "2026-01-01T00:00:00Z",
    ];
    let value = prop_oneof![
        8 => prop::sample::select(values.to_vec()).prop_map(String::from),
        1 => "[!-~]{0,30}",
        1 => (1usize..5000).prop_map(|len| "v,".repeat(len)),
    ];
    let pair = (prop::sample::select(keys.to_vec()), value).prop_map(|(k, v)| format!("{k}={v}"));
    prop::collection::vec(pair, 0..4).prop_map(|pairs| pairs.join("&").replace(' ', "%20"))
}

fn media() -> impl Strategy<Value = String> {
    let known = [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "text/html",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;charset=utf-8",
        "*/*",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "application/cbor",
        "",
        "application/json;q=2, text/*;q=-1",
        ";;;;",
        "application/json;stream=watch",
    ];
    prop_oneof![9 => prop::sample::select(known.to_vec()).prop_map(String::from), 1 => "[ -~]{0,30}"]
}

fn headers() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let names = [
        "accept",
        "content-type",
        "impersonate-user",
        "impersonate-group",
        "impersonate-uid",
        "impersonate-extra-%zz",
        "authorization",
        "user-agent",
        "accept-encoding",
        "audit-id",
        "if-none-match",
        "upgrade",
        "sec-websocket-protocol",
        "content-length",
        "connection",
    ];
    let other = (prop::sample::select(names.to_vec()), prop::collection::vec(any::<u8>(), 0..30))
        .prop_map(|(name, value)| (name.to_owned(), value));
    let accept = media().prop_map(|media| ("accept".to_owned(), media.into_bytes()));
    let content = media().prop_map(|media| ("content-type".to_owned(), media.into_bytes()));
    (accept, content, prop::collection::vec(other, 0..3)).prop_map(|(accept, content, mut more)| {
        more.push(accept);
        more.push(content);
        more
    })
}

fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let json = any::<u64>().prop_map(|seed| {
        let mut dice = Dice::new(seed);
        let mut object = json!({
            "kind": "ConfigMap", "apiVersion": "v1", "data": { "a": "b" },
            "metadata": { "name": "web", "namespace": "default", "labels": { "a": "b" } },
        });
        shapes::spoil(&mut dice, &mut object);
        object.to_string().into_bytes()
    });
    let patch = any::<u64>().prop_map(|seed| {
        let mut dice = Dice::new(seed);
        let ops = ["add", "remove", "replace", "move", "copy", "test", "", "ADD"];
        let places = ["", "/", "/data", "/data/a", "/data/~1~0~", "/metadata/labels/-", "a", "/-"];
        let one = |dice: &mut Dice| {
            let mut operation = json!({
                "op": dice.of(&ops), "path": dice.of(&places), "from": dice.of(&places),
                "value": shapes::anything(dice, 5),
            });
            if dice.roll(4) == 0 {
                shapes::spoil(dice, &mut operation);
            }
            operation
        };
        let all: Value = (0..dice.roll(4)).map(|_| one(&mut dice)).collect();
        all.to_string().into_bytes()
    });
    let deep =
        (0usize..100_000, prop::sample::select(vec!["[", "{\"a\":", "- ", "{a: ", "[{\"a\":"]))
            .prop_map(|(len, open)| open.repeat(len).into_bytes());
    let protobuf = prop::collection::vec(any::<u8>(), 0..200)
        .prop_map(|bytes| [b"k8s\0".as_slice(), &bytes].concat());
    prop_oneof![
        4 => json,
        2 => patch,
        1 => deep,
        2 => protobuf,
        2 => prop::collection::vec(any::<u8>(), 0..300),
        1 => "[ -~\n]{0,200}".prop_map(String::into_bytes),
    ]
}

fn requests() -> impl Strategy<Value = TestRequest> {
    (methods(), paths(), queries(), headers(), bodies()).prop_map(
        |(method, path, query, headers, body)| TestRequest {
            method,
            target: if query.is_empty() { path } else { format!("{path}?{query}") },
            headers,
            body,
        },
    )
}

#[test]
fn every_malformed_request_gets_a_response_and_a_refused_one_changes_nothing() {
    let bed = Bed::new();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 6000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result =
        runner.run(&requests(), |test| bed.check(&test).map(drop).map_err(TestCaseError::fail));
    result.unwrap();
    bed.stop();
}

/// A kind as discovery and OpenAPI describe it.
struct Described {
    collection: String,
    kind: String,
    api_version: String,
    schema: String,
    document: usize,
    can_patch: bool,
}

fn described(bed: &Bed) -> (Vec<Described>, Vec<Value>) {
    let (mut kinds, mut documents) = (Vec::new(), Vec::new());
    let index = bed.get("/openapi/v3");
    for (path, _) in index["paths"].as_object().unwrap() {
        let Some((group, version)) = group_version(path) else { continue };
        let schemas = bed.get(&format!("/openapi/v3/{path}"))["components"]["schemas"].clone();
        let list = bed.get(&format!("/{path}"));
        for resource in list["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            let verbs = resource["verbs"].to_string();
            if name.contains('/') || !verbs.contains("create") {
                continue;
            }
            let kind = resource["kind"].as_str().unwrap();
            let schema = schemas.as_object().unwrap().iter().find(|(_, schema)| {
                let own = json!({ "group": group, "kind": kind, "version": version });
                schema["x-kubernetes-group-version-kind"] == json!([own])
            });
            let Some((schema, _)) = schema else { panic!("{path} {kind} has no schema") };
            let within = if resource["namespaced"] == true { "namespaces/default/" } else { "" };
            kinds.push(Described {
                collection: format!("/{path}/{within}{name}"),
                kind: kind.to_owned(),
                api_version: list["groupVersion"].as_str().unwrap().to_owned(),
                schema: schema.clone(),
                document: documents.len(),
                can_patch: verbs.contains("patch"),
            });
        }
        documents.push(schemas);
    }
    (kinds, documents)
}

/// `api/v1` or `apis/apps/v1`.
fn group_version(path: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["api", version] => Some(("", version)),
        ["apis", group, version] => Some((group, version)),
        _ => None,
    }
}

/// Creates one object, reads it in all forms, changes it in all ways, and deletes it.
fn play(bed: &Bed, kind: &Described, schemas: &Value, seed: u64) -> Result<usize, String> {
    let mut dice = Dice::new(seed);
    let make = |dice: &mut Dice| {
        let mut object = shapes::object(dice, schemas, &kind.schema);
        object["kind"] = kind.kind.clone().into();
        object["apiVersion"] = kind.api_version.clone().into();
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        if dice.roll(3) != 0 {
            // Otherwise nearly every object would be refused because of its metadata.
            object["metadata"] = json!({});
        }
        object["metadata"]["name"] = "web".into();
        if dice.roll(20) == 0 {
            shapes::spoil(dice, &mut object);
        }
        object
    };
    let mut accepted = 0;
    let mut run = |test: TestRequest| -> Result<(), String> {
        let reply = bed.check(&test).map_err(|why| {
            let mut text = format!("{why}\n{} {} ", test.method, test.target);
            let _ = write!(text, "{}", String::from_utf8_lossy(&test.body));
            text
        })?;
        accepted += usize::from(reply.code < 300);
        Ok(())
    };
    let json = "application/json";
    let one = format!("{}/web", kind.collection);
    run(TestRequest::new("POST", &kind.collection, json, &make(&mut dice)))?;
    if !kind.can_patch {
        return Ok(accepted);
    }
    for accept in [json, "application/json;as=Table;v=v1;g=meta.k8s.io", "application/yaml"] {
        let mut test = TestRequest::new("GET", &kind.collection, json, &Value::Null);
        test.headers.push(("accept".into(), accept.into()));
        test.body.clear();
        run(test)?;
    }
    let forms = [
        ("PUT", json, ""),
        ("PATCH", "application/merge-patch+json", ""),
        ("PATCH", "application/strategic-merge-patch+json", ""),
        ("PATCH", "application/apply-patch+yaml", "?fieldManager=m&force=true"),
        ("PATCH", "application/apply-patch+yaml", "?fieldManager=n"),
        ("PATCH", "application/merge-patch+json", "?dryRun=All"),
    ];
    for (method, media, query) in forms {
        run(TestRequest::new(method, format!("{one}{query}"), media, &make(&mut dice)))?;
    }
    for _ in 0..3 {
        let (method, media, query) = *dice.of(&forms);
        let sub = dice.of(&["/status", "/scale", "/eviction", "/ephemeralcontainers", "/approval"]);
        run(TestRequest::new(method, format!("{one}{sub}{query}"), media, &make(&mut dice)))?;
    }
    run(TestRequest::new("DELETE", format!("{one}?gracePeriodSeconds=0"), json, &Value::Null))?;
    let finalizers = json!({ "metadata": { "finalizers": null } });
    run(TestRequest::new("PATCH", &one, "application/merge-patch+json", &finalizers))?;
    run(TestRequest::new("DELETE", &one, json, &json!({ "gracePeriodSeconds": 0 })))?;
    Ok(accepted)
}

#[test]
fn random_objects_of_every_kind_are_accepted_or_refused_without_a_panic() {
    let lives: u64 = std::env::var("LANDFALL_LIVES").map_or(12, |lives| lives.parse().unwrap());
    let bed = Bed::new();
    let (kinds, documents) = described(&bed);
    let given = std::env::var("LANDFALL_SEED").ok().and_then(|seed| seed.parse().ok());
    let start: u64 = given.unwrap_or_else(clock::random_u64);
    let mut accepted = 0;
    let mut failures = Vec::new();
    for kind in &kinds {
        for life in 0..lives {
            let seed = start.wrapping_add(life);
            match play(&bed, kind, &documents[kind.document], seed) {
                Ok(count) => accepted += count,
                Err(why) => {
                    failures
                        .push(format!("LANDFALL_SEED={start} life {life} {}: {why}", kind.kind));
                    break;
                }
            }
        }
    }
    println!("{} kinds, {lives} lives each, {accepted} requests accepted", kinds.len());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(accepted > kinds.len() * 10, "nearly everything was refused: {accepted}");
    bed.stop();
}
