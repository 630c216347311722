//! Bad requests get a clear Status, change nothing, and do not harm the process.
//!
//! Bodies, patches, queries and headers are rows of a table. Not here: input that is not HTTP and clients that hold
//! connections (`siege.rs`), and clients without rights (`strangers.rs`).

use crate::process::{self, Client, Landfall};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MAP: &str = "/api/v1/namespaces/default/configmaps/kept";
const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// How much memory hostile requests may cost, in a debug build.
const MEMORY_MAX_KIB: u64 = 400 * 1024;

/// A server with one object that must not change.
struct Bed {
    landfall: Landfall,
    client: Client,
    before: Value,
    memory: u64,
    _home: tempfile::TempDir,
}

impl Bed {
    async fn new() -> Bed {
        let home = tempfile::tempdir().unwrap();
        let landfall = Landfall::start(&home.path().join("data")).await;
        let mut client = landfall.client().await;
        let kept = json!({ "metadata": { "name": "kept" }, "data": { "a": "1", "list": "x" } });
        assert_eq!(client.post(MAPS, &kept).await.unwrap().code(), 201);
        settle(&mut client).await;
        let before = client.get(MAPS).await.unwrap().json();
        let memory = landfall.memory("VmHWM");
        Bed { landfall, client, before, memory, _home: home }
    }

    /// Checks that objects, revision, process and memory are unchanged.
    async fn check(mut self) {
        let mut client = self.landfall.client().await;
        assert_eq!(client.get(MAPS).await.unwrap().json(), self.before, "something was written");
        assert!(self.landfall.is_alive());
        let grown = self.landfall.memory("VmHWM").saturating_sub(self.memory);
        println!("memory at its highest grew by {} MiB", grown / 1024);
        assert!(grown < MEMORY_MAX_KIB, "memory grew by {grown} KiB");
        let dir = self.landfall.dir.clone();
        self.landfall.stop().await;
        process::assert_no_panic(&dir);
    }

    async fn revision(&mut self) -> Value {
        self.client.get(MAPS).await.unwrap().json()["metadata"]["resourceVersion"].clone()
    }
}

/// Waits until the server has written its first objects.
async fn settle(client: &mut Client) {
    let (mut last, mut same) = (Value::Null, 0);
    for _ in 0..100 {
        let now = client.get(MAPS).await.unwrap().json()["metadata"]["resourceVersion"].clone();
        same = if now == last { same + 1 } else { 0 };
        // On a busy machine there may be pauses between these writes.
        if same == 10 {
            return;
        }
        last = now;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// A description, the request, and the expected code and reason.
type Row = (&'static str, Method, String, &'static str, Vec<u8>, u16, &'static str);

fn row(
    what: &'static str,
    method: Method,
    path: impl Into<String>,
    media: &'static str,
    body: impl Into<Vec<u8>>,
    code: u16,
    reason: &'static str,
) -> Row {
    (what, method, path.into(), media, body.into(), code, reason)
}

async fn run(bed: &mut Bed, rows: Vec<Row>) {
    let before = bed.revision().await;
    let mut failures = Vec::new();
    for (what, method, path, media, body, code, reason) in rows {
        let answer = bed.client.call(method, &path, media, Bytes::from(body)).await;
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => {
                failures.push(format!("{what}: no answer: {error}"));
                bed.client = bed.landfall.client().await;
                continue;
            }
        };
        let status = reply.json();
        let text: String = reply.text().chars().take(300).collect();
        if (reply.code(), reply.reason().as_str()) != (code, reason) {
            failures.push(format!("{what}: wanted {code} {reason}, got {} {text}", reply.code()));
        } else if !reason.is_empty() && (status["kind"] != "Status" || status["code"] != code) {
            failures.push(format!("{what}: not a Status: {text}"));
        }
        if bed.revision().await != before {
            failures.push(format!("{what}: something was written"));
            break;
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

fn deep(open: &str, close: &str, levels: usize) -> Vec<u8> {
    format!("{}{}", open.repeat(levels), close.repeat(levels)).into_bytes()
}

/// Nine levels of nine aliases, which expand to four hundred million leaves.
fn alias_bomb() -> Vec<u8> {
    let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(",");
        text += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    (text + "metadata: {name: bomb}\ndata: *a9\n").into_bytes()
}

/// A-91: every error is a Status.
#[tokio::test]
async fn a_91_bad_bodies_get_a_clear_status_and_change_nothing() {
    let mut bed = Bed::new().await;
    let post =
        |what, media, body: Vec<u8>| row(what, Method::POST, MAPS, media, body, 400, "BadRequest");
    let object = |data: &str| format!(r#"{{"metadata":{{"name":"bad"}},"data":{data}}}"#).into();
    let rows = vec![
        post("no body", JSON, vec![]),
        post("half an object", JSON, br#"{"metadata":{"name":"bad"},"da"#.to_vec()),
        post("two objects", JSON, br#"{"metadata":{"name":"bad"}}{"metadata":{}}"#.to_vec()),
        post("a list", JSON, b"[]".to_vec()),
        post("a number", JSON, b"42".to_vec()),
        post("a string", JSON, b"\"x\"".to_vec()),
        post("not UTF-8", JSON, b"{\"metadata\":{\"name\":\"b\xff\xfed\"}}".to_vec()),
        post(
            "not UTF-8 in a value",
            JSON,
            b"{\"metadata\":{\"name\":\"bad\"},\"data\":{\"a\":\"\xc3\x28\"}}".to_vec(),
        ),
        post("zero bytes", JSON, vec![0; 1000]),
        post("a number for a string", JSON, object(r#"{"a":1}"#)),
        post("a list for a map", JSON, object(r#"["a"]"#)),
        post("a huge number", JSON, object(r#"{"a":1e999999}"#)),
        post("a long number", JSON, object(&format!(r#"{{"a":{}}}"#, "9".repeat(100_000)))),
        post("deep JSON", JSON, deep("[", "]", 100_000)),
        post("deep JSON objects", JSON, deep("{\"a\":", "}", 100_000)),
        post("deep JSON, never closed", JSON, "[".repeat(1_000_000).into_bytes()),
        post(
            "deep in an unknown field",
            JSON,
            object(&format!("{{\"a\":{}}}", "[".repeat(100_000))),
        ),
        post(
            "a wrong apiVersion",
            JSON,
            br#"{"apiVersion":"v9","metadata":{"name":"bad"}}"#.to_vec(),
        ),
        post(
            "another kind",
            JSON,
            br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"}}"#.to_vec(),
        ),
        post(
            "no such kind",
            JSON,
            br#"{"apiVersion":"v1","kind":"Nothing","metadata":{"name":"bad"}}"#.to_vec(),
        ),
        post("YAML that is none", YAML, b"a: [b\n  c: }".to_vec()),
        post("deep YAML", YAML, deep("[", "]", 100_000)),
        post("deep YAML maps", YAML, deep("{a: ", "}", 100_000)),
        post("deep YAML lists", YAML, "- ".repeat(100_000).into_bytes()),
        post("a YAML alias bomb", YAML, alias_bomb()),
        post("a YAML alias to itself", YAML, b"metadata: &m {name: bad, labels: *m}".to_vec()),
        post("YAML that is not UTF-8", YAML, b"metadata: {name: \xff\xfe}".to_vec()),
        post("protobuf without its mark", PROTOBUF, b"{}".to_vec()),
        post("protobuf cut short", PROTOBUF, b"k8s\0\x0a\xff\xff\xff\xff\x0f".to_vec()),
        post("protobuf garbage", PROTOBUF, [b"k8s\0".as_slice(), &[0xff; 4000]].concat()),
    ];
    run(&mut bed, rows).await;
    bed.check().await;
}

/// A-91: bodies that can be read, but not accepted.
#[tokio::test]
async fn a_91_bad_contents_get_a_clear_status_and_change_nothing() {
    let mut bed = Bed::new().await;
    let mut rows = Vec::new();
    rows.push(row("only protobuf's mark", Method::POST, MAPS, PROTOBUF, "k8s\0", 422, "Invalid"));
    rows.push(row(
        "an unknown media type",
        Method::POST,
        MAPS,
        "text/html",
        "<p>",
        415,
        "UnsupportedMediaType",
    ));
    rows.push(row(
        "over 3 MiB",
        Method::POST,
        MAPS,
        JSON,
        vec![b' '; 3 * 1024 * 1024 + 1],
        413,
        "RequestEntityTooLarge",
    ));
    let double = r#"{"metadata":{"name":"bad","name":"worse"},"data":{"a":"1","a":"2"}}"#;
    let strict = format!("{MAPS}?fieldValidation=Strict");
    rows.push(row(
        "a key twice, strictly",
        Method::POST,
        &*strict,
        JSON,
        double,
        400,
        "BadRequest",
    ));
    let unknown = r#"{"metadata":{"name":"bad"},"nonsense":1}"#;
    rows.push(row(
        "an unknown field, strictly",
        Method::POST,
        &*strict,
        JSON,
        unknown,
        400,
        "BadRequest",
    ));
    let large = json!({ "metadata": { "name": "bad" }, "data": { "a": "x".repeat(1_100_000) } });
    rows.push(row(
        "A-94 over 1 MiB of data",
        Method::POST,
        MAPS,
        JSON,
        large.to_string(),
        422,
        "Invalid",
    ));
    let named = |name: &str| json!({ "metadata": { "name": name } }).to_string();
    for name in ["../../etc", "A", "a b", "a\u{0}b", "😀", "", &"n".repeat(300)] {
        rows.push(row(
            "a name that is none",
            Method::POST,
            MAPS,
            JSON,
            named(name),
            422,
            "Invalid",
        ));
    }
    rows.push(row("a number too large", Method::POST, PODS, JSON, r#"{"metadata":{"name":"p"},"spec":{"terminationGracePeriodSeconds":99999999999999999999}}"#, 400, "BadRequest"));
    rows.push(row(
        "a fraction",
        Method::POST,
        PODS,
        JSON,
        r#"{"metadata":{"name":"p"},"spec":{"terminationGracePeriodSeconds":1.5}}"#,
        400,
        "BadRequest",
    ));
    run(&mut bed, rows).await;
    bed.check().await;
}

#[tokio::test]
async fn bad_patches_of_all_kinds_are_refused_and_change_nothing() {
    let mut bed = Bed::new().await;
    let patch = |what, media, body: Vec<u8>, code, reason| {
        row(what, Method::PATCH, MAP, media, body, code, reason)
    };
    let ops = |ops: &str| ops.as_bytes().to_vec();
    let many = vec![r#"{"op":"test","path":"/data/a","value":"1"}"#; 10_001].join(",");
    // A list that doubles with every step.
    let doubling = vec![r#"{"op":"copy","from":"/data","path":"/data/more"}"#; 60].join(",");
    let rows = vec![
        patch("an unknown kind of patch", JSON, ops("{}"), 415, "UnsupportedMediaType"),
        patch(
            "A-17 too many operations",
            JSON_PATCH,
            format!("[{many}]").into(),
            413,
            "RequestEntityTooLarge",
        ),
        patch(
            "an operation that is none",
            JSON_PATCH,
            ops(r#"[{"op":"explode","path":"/a"}]"#),
            422,
            "Invalid",
        ),
        patch(
            "an operation without a path",
            JSON_PATCH,
            ops(r#"[{"op":"add","value":1}]"#),
            422,
            "Invalid",
        ),
        patch(
            "a path that is not there",
            JSON_PATCH,
            ops(r#"[{"op":"remove","path":"/nothing/here"}]"#),
            422,
            "Invalid",
        ),
        patch(
            "a test that fails",
            JSON_PATCH,
            ops(r#"[{"op":"test","path":"/data/a","value":"2"}]"#),
            422,
            "Invalid",
        ),
        patch("an object for a list", JSON_PATCH, ops("{}"), 400, "BadRequest"),
        patch(
            "a patch of the whole",
            JSON_PATCH,
            ops(r#"[{"op":"replace","path":"","value":7}]"#),
            422,
            "Invalid",
        ),
        patch(
            "a wrong type",
            JSON_PATCH,
            ops(r#"[{"op":"add","path":"/data/a","value":{"b":1}}]"#),
            422,
            "Invalid",
        ),
        patch("a merge that is a list", MERGE, ops("[]"), 400, "BadRequest"),
        patch("a merge that is cut", MERGE, ops(r#"{"data":"#), 400, "BadRequest"),
        patch("a merge of a wrong type", MERGE, ops(r#"{"data":{"a":{"b":1}}}"#), 422, "Invalid"),
        patch(
            "a merge of the name",
            MERGE,
            ops(r#"{"metadata":{"name":"other"}}"#),
            400,
            "BadRequest",
        ),
        patch(
            "a merge of another uid",
            MERGE,
            ops(r#"{"metadata":{"uid":"1-2-3"}}"#),
            409,
            "Conflict",
        ),
        patch(
            "a merge of an old version",
            MERGE,
            ops(r#"{"metadata":{"resourceVersion":"1"}}"#),
            409,
            "Conflict",
        ),
        patch("deep merge", MERGE, deep("{\"a\":", "}", 100_000), 400, "BadRequest"),
        patch("deep strategic merge", STRATEGIC, deep("{\"a\":", "}", 100_000), 400, "BadRequest"),
        patch("deep JSON patch", JSON_PATCH, deep("[", "]", 100_000), 400, "BadRequest"),
        patch("strategic merge cut", STRATEGIC, ops(r#"{"data"#), 400, "BadRequest"),
    ];
    run(&mut bed, rows).await;

    // A patch that copies a list onto itself must not fill the memory, whatever its result.
    let before = bed.revision().await;
    let bomb = format!("[{doubling}]");
    let reply = bed.client.call(Method::PATCH, MAP, JSON_PATCH, bomb.into()).await.unwrap();
    assert!((400..500).contains(&reply.code()), "a copy bomb: {}", reply.code());
    assert_eq!(bed.revision().await, before);
    bed.check().await;
}

#[tokio::test]
async fn bad_applies_are_refused_and_change_nothing() {
    let mut bed = Bed::new().await;
    let mut rows = Vec::new();
    for (what, body) in [
        ("apply that is no YAML", b"a: [b\n c: }".to_vec()),
        ("apply that is deep", deep("[", "]", 100_000)),
        ("apply with an alias bomb", alias_bomb()),
        ("apply that is empty", vec![]),
        ("apply that is no object", b"- a".to_vec()),
    ] {
        let path = format!("{MAP}?fieldManager=me&force=true");
        rows.push(row(what, Method::PATCH, path, APPLY, body, 400, "BadRequest"));
    }
    rows.push(row("apply without a manager", Method::PATCH, MAP, APPLY, "{}", 422, "Invalid"));
    run(&mut bed, rows).await;
    bed.check().await;
}

#[tokio::test]
async fn absurd_queries_paths_and_options_are_refused_and_change_nothing() {
    let mut bed = Bed::new().await;
    let get =
        |what, path: String, code, reason| row(what, Method::GET, path, "", vec![], code, reason);
    let list = |query: &str| format!("{MAPS}?{query}");
    let nested = "%28".repeat(2000);
    let mut rows = vec![
        get("a selector that is none", list("labelSelector=%28%28%28"), 400, "BadRequest"),
        get(
            "a selector of brackets",
            list(&format!("labelSelector=a+in+{nested}")),
            400,
            "BadRequest",
        ),
        get("a field that cannot be selected", list("fieldSelector=data.a%3D1"), 400, "BadRequest"),
        get("a field selector that is none", list("fieldSelector=%3D%3D"), 400, "BadRequest"),
        get("a limit that is none", list("limit=many"), 400, "BadRequest"),
        get("a limit too large", list("limit=99999999999999999999"), 400, "BadRequest"),
        get("a token that is none", list("continue=nonsense"), 400, "BadRequest"),
        get("a token of JSON", list("continue=e30"), 400, "BadRequest"),
        get("a version that is none", list("resourceVersion=abc"), 400, "BadRequest"),
        get("a negative version", list("resourceVersion=-1"), 400, "BadRequest"),
        get("a match without a version", list("resourceVersionMatch=Exact"), 422, "Invalid"),
        get("A-97 a future version", list("resourceVersion=18446744073709551615"), 504, "Timeout"),
        get("a watch of no version", list("watch=1&resourceVersion=abc"), 500, ""),
        get("a timeout that is none", list("watch=1&timeoutSeconds=soon"), 400, "BadRequest"),
        get("no such view", format!("{MAP}/nothing"), 404, ""),
        get("no such object", format!("{MAP}x"), 404, "NotFound"),
        get("no such path", "/apis/nothing/v1/things".into(), 404, ""),
        get("out of the tree", "/api/v1/../../../etc/passwd".into(), 404, ""),
        get(
            "out of the tree, encoded",
            format!("{MAPS}/%2e%2e%2f%2e%2e%2fsecrets"),
            404,
            "NotFound",
        ),
        get("a zero byte", format!("{MAPS}/a%00b"), 404, "NotFound"),
        get("a long name", format!("{MAPS}/{}", "n".repeat(20_000)), 404, "NotFound"),
    ];
    let options = |what, body: &str, code, reason| {
        row(what, Method::DELETE, MAP, JSON, body.as_bytes().to_vec(), code, reason)
    };
    rows.extend([
        options("options that are none", "nonsense", 400, "BadRequest"),
        options(
            "options of another kind",
            r#"{"kind":"Pod","apiVersion":"v1"}"#,
            400,
            "BadRequest",
        ),
        options("another uid", r#"{"preconditions":{"uid":"1"}}"#, 409, "Conflict"),
        options("a policy that is none", r#"{"propagationPolicy":"Slowly"}"#, 422, "Invalid"),
        options("deep options", &"[".repeat(100_000), 400, "BadRequest"),
    ]);
    let create = r#"{"metadata":{"name":"bad"}}"#;
    for query in [
        "dryRun=Some",
        "fieldValidation=Harsh",
        "fieldManager=%00",
        &format!("fieldManager={}", "m".repeat(200)),
    ] {
        let path = format!("{MAPS}?{query}");
        rows.push(row("an option that is none", Method::POST, path, JSON, create, 422, "Invalid"));
    }
    for method in [Method::TRACE, Method::OPTIONS, Method::from_bytes(b"FROB").unwrap()] {
        rows.push(row("a method that is none", method, MAP, "", vec![], 405, "MethodNotAllowed"));
    }
    run(&mut bed, rows).await;
    bed.check().await;
}

#[tokio::test]
async fn extreme_headers_and_timeouts_are_handled_and_change_nothing() {
    let mut bed = Bed::new().await;
    let create = r#"{"metadata":{"name":"bad"}}"#;
    // A write whose response format is not supported does not happen.
    let writes = [
        (Method::POST, MAPS, JSON, create),
        (Method::PUT, MAP, JSON, r#"{"metadata":{"name":"kept"}}"#),
        (Method::PATCH, MAP, MERGE, r#"{"data":{"a":"2"}}"#),
        (Method::DELETE, MAP, JSON, "{}"),
    ];
    for (method, path, media, body) in writes {
        for (query, accept, code) in [("", "text/html", 406), ("?includeObject=All", "*/*", 400)] {
            if method == Method::DELETE && code == 400 {
                continue; // It takes no such option.
            }
            let request = Request::builder()
                .method(&method)
                .uri(format!("{path}{query}"))
                .header("content-type", media)
                .header("accept", accept)
                .body(Full::new(Bytes::from_static(body.as_bytes())));
            let reply = bed.client.send(request.unwrap()).await.unwrap();
            assert_eq!(reply.code(), code, "{method} {query}: {}", reply.text());
        }
    }
    assert_eq!(bed.client.get(MAPS).await.unwrap().json(), bed.before);

    // Extreme values: a watch with a huge timeout starts, and an invalid header is rejected.
    let forever = format!("{MAPS}?watch=1&timeoutSeconds=9223372036854775807&resourceVersion=0");
    let request = Request::get(forever).body(Full::default()).unwrap();
    assert_eq!(bed.landfall.client().await.open(request).await.unwrap().status(), 200);
    for (name, value, code) in [
        ("impersonate-group", "nobody", 400),
        ("impersonate-user", "", 200),
        ("accept", "text/html;q=banana", 406),
        ("accept", ";;;,,,", 406),
        ("accept-encoding", "gzip;q=9e999, \u{1}", 200),
        ("content-type", "a/b;c=\"", 200),
        ("authorization", "Bearer", 403),
        ("authorization", "Basic eDp4", 403),
    ] {
        let Ok(value) = http::HeaderValue::from_bytes(value.as_bytes()) else { continue };
        let request = Request::get(MAP).header(name, value).body(Full::default()).unwrap();
        let reply = bed.client.send(request).await.unwrap();
        assert_eq!(reply.code(), code, "{name}: {}", reply.text());
    }
    bed.check().await;
}
