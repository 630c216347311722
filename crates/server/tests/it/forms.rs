//! The forms of requests and responses: URLs, encodings, views, headers, and the documents that
//! describe the API (A-2 to A-28, A-35 to A-47, A-52, A-56).

use crate::cluster::{
    self, Client, Cluster, DEPLOYMENTS, MAPS, PODS, deployment, map, names, pod, version,
};
use serde_json::{Value, json};
use std::io::Read as _;

const JSON: &str = "application/json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

async fn accepting(client: &Client, path: &str, accept: &str) -> cluster::Reply {
    client.get_with(path, &[("accept", accept)]).await
}

#[tokio::test]
async fn a_2_to_9_existing_and_missing_paths() {
    let cluster = Cluster::start().await;
    for path in
        ["/api/", "/apis/", "/apis/apps/", "/apis/apps/v1/", "/api/v1/pods/", &format!("{PODS}/")]
    {
        assert_eq!(cluster.get(path).await.code, 200, "{path}");
    }
    for path in [
        "/nothing",
        "/api/v2",
        "/apis/none",
        "/apis/apps/v9/deployments",
        "/api/v1/widgets",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/pods/p",
        "/api/v1/namespaces/default/pods/p/nothing",
    ] {
        let reply = cluster.get(path).await;
        assert_eq!((reply.code, reply.text()), (404, "404 page not found\n"), "{path}");
        assert!(reply.header("content-type").starts_with("text/plain"));
    }
    // A-4, A-8: a wrong verb is answered with a Status.
    for (method, path) in [
        ("PUT", PODS),
        ("PATCH", PODS),
        ("POST", "/api/v1/pods"),
        ("DELETE", "/api/v1/pods"),
        ("POST", &format!("{PODS}/p")),
        ("DELETE", "/api/v1/namespaces"),
        ("PUT", "/version"),
    ] {
        let headers = [("content-type", "application/json")];
        let reply = cluster.send(method, path, &headers, "{}").await;
        let message = reply.refused(405, "MethodNotAllowed");
        assert_eq!(
            message, "the server does not allow this method on the requested resource",
            "{path}"
        );
    }
    let head = cluster.send("HEAD", PODS, &[], "").await;
    assert_eq!(head.code, 200);
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
    field.extend_from_slice(bytes);
    field
}

/// A ConfigMap in protobuf: an envelope that names the type, around the message.
fn protobuf(name: &str, key: &str, value: &str) -> Vec<u8> {
    let metadata = field(1, &field(1, name.as_bytes()));
    let entry = [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
    let message = [metadata, field(2, &entry)].concat();
    let kind = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
    [b"k8s\0".to_vec(), field(1, &kind), field(2, &message)].concat()
}

/// A-11, A-14: accepted media types of bodies.
#[tokio::test]
async fn a_11_and_14_bodies_come_as_json_yaml_or_protobuf() {
    let cluster = Cluster::start().await;
    let json =
        |name: &str| format!("{{\"metadata\":{{\"name\":\"{name}\"}},\"data\":{{\"a\":\"1\"}}}}");
    let yaml = "metadata:\n  name: yaml\ndata:\n  a: \"1\"\n";
    let rows: [(&str, Option<&str>, Vec<u8>); 5] = [
        ("json", Some("application/json"), json("json").into()),
        ("charset", Some("application/json; charset=utf-8"), json("charset").into()),
        ("none", None, json("none").into()),
        ("yaml", Some("application/yaml"), yaml.into()),
        ("proto", Some("application/vnd.kubernetes.protobuf"), protobuf("proto", "a", "1")),
    ];
    for (name, media, body) in rows {
        let headers: Vec<_> = media.iter().map(|media| ("content-type", *media)).collect();
        let reply = cluster.send("POST", MAPS, &headers, body).await;
        assert_eq!(
            (reply.code, &reply.body["data"]),
            (201, &json!({"a": "1"})),
            "{name}: {}",
            reply.body
        );
        assert_eq!(reply.body["metadata"]["name"], name);
    }
    for media in ["text/plain", "application/cbor", "application/xml"] {
        let reply = cluster.send("POST", MAPS, &[("content-type", media)], json("x")).await;
        let text = "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf";
        assert_eq!(reply.refused(415, "UnsupportedMediaType"), text);
    }
}

#[tokio::test]
async fn a_15_a_body_must_have_the_kind_and_version_of_the_url() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.post(MAPS, json!({"metadata": {"name": "m"}})).await.code, 201);
    for body in [
        json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}),
        json!({"kind": "ConfigMap", "apiVersion": "v2", "metadata": {"name": "x"}}),
        json!({"kind": "Nothing", "metadata": {"name": "x"}}),
    ] {
        cluster.post(MAPS, body).await.refused(400, "BadRequest");
    }
    let body = json!({"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "metadata": {"name": "x"}});
    let reply = cluster
        .post("/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", body)
        .await;
    let text = "the API version in the data (autoscaling/v2) does not match the expected API version (autoscaling/v1)";
    assert_eq!(reply.refused(400, "BadRequest"), text);
    // Of duplicate keys, the last one counts.
    let body = r#"{"metadata": {"name": "n"}, "data": {"a": "1", "a": "2"}}"#;
    let reply = cluster.send("POST", MAPS, &[("content-type", JSON)], body).await;
    assert_eq!(reply.ok()["data"], json!({"a": "2"}));
}

#[tokio::test]
async fn a_17_a_body_over_three_mebibytes_is_refused() {
    let cluster = Cluster::start().await;
    let long = " ".repeat(3 * 1024 * 1024 + 1);
    let reply = cluster.send("POST", MAPS, &[("content-type", JSON)], long).await;
    assert_eq!(
        reply.refused(413, "RequestEntityTooLarge"),
        "Request entity too large: limit is 3145728"
    );
}

#[tokio::test]
async fn a_18_to_23_responses_have_the_preferred_form() {
    let cluster = Cluster::start().await;
    cluster.make(MAPS, map("m")).await;
    let m = format!("{MAPS}/m");
    let rows = [
        ("application/json", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        ("application/yaml", "application/yaml"),
        ("application/json;q=0.1, application/yaml;q=0.9", "application/yaml"),
        ("application/vnd.kubernetes.protobuf,application/json", JSON),
        ("application/json;unknown=parameter", JSON),
        (TABLE, JSON),
    ];
    for (accept, wanted) in rows {
        let reply = accepting(&cluster, &m, accept).await;
        assert_eq!((reply.code, reply.header("content-type")), (200, wanted), "{accept}");
    }
    let yaml = accepting(&cluster, &m, "application/yaml").await;
    assert!(yaml.text().contains("kind: ConfigMap\n"), "{}", yaml.text());
    let list = accepting(&cluster, MAPS, "application/yaml").await;
    assert!(list.text().contains("kind: ConfigMapList\n"));
    for accept in [
        "text/csv",
        "application/vnd.kubernetes.protobuf",
        "application/json;as=Chair;v=v1;g=meta.k8s.io",
    ] {
        let reply = accepting(&cluster, &m, accept).await;
        reply.refused(406, "NotAcceptable");
    }
    // A request whose response cannot be encoded is refused before anything is written.
    let before = cluster.read(&m).await;
    let data = json!({"data": {"a": "b"}}).to_string();
    for (accept, query) in [("text/csv", ""), (TABLE, "?includeObject=Half")] {
        for (method, media) in [("PUT", JSON), ("PATCH", cluster::MERGE)] {
            let headers = [("accept", accept), ("content-type", media)];
            let reply = cluster.send(method, &format!("{m}{query}"), &headers, data.clone()).await;
            assert!(matches!(reply.code, 400 | 406), "{}", reply.body);
        }
        let headers = [("accept", accept), ("content-type", JSON)];
        let body = map("n").to_string();
        let reply = cluster.send("POST", &format!("{MAPS}{query}"), &headers, body).await;
        assert!(matches!(reply.code, 400 | 406), "{}", reply.body);
    }
    assert_eq!(cluster.read(&m).await, before);
    assert_eq!(cluster.get(&format!("{MAPS}/n")).await.code, 404);
    // A-23: an error is sent even if its encoding was not accepted.
    let reply = accepting(&cluster, &format!("{MAPS}/none"), "text/csv").await;
    assert_eq!((reply.header("content-type"), &reply.body["kind"]), (JSON, &"Status".into()));
}

#[tokio::test]
async fn a_20_and_21_metadata_views_of_objects_and_lists() {
    let cluster = Cluster::start().await;
    let mut wanted = map("m");
    wanted["data"] = json!({"a": "b"});
    let made = cluster.make(MAPS, wanted).await;
    let m = format!("{MAPS}/m");
    let shown = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": made["metadata"]});
    assert_eq!(accepting(&cluster, &m, PARTIAL).await.ok(), shown);
    let list = accepting(&cluster, &format!("{MAPS}?limit=1"), PARTIAL_LIST).await.ok();
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&"PartialObjectMetadataList".into(), &"meta.k8s.io/v1".into())
    );
    assert_eq!(list["metadata"]["remainingItemCount"], 1);
    assert!(
        list["metadata"]["continue"].is_string() && list["metadata"]["resourceVersion"].is_string()
    );
    assert!(list["items"][0].get("data").is_none());
    for (path, accept) in [(m.as_str(), PARTIAL_LIST), (MAPS, PARTIAL)] {
        accepting(&cluster, path, accept).await.refused(406, "NotAcceptable");
    }
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let body =
        json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}).to_string();
    let accepted = [("accept", TABLE), ("content-type", JSON)];
    cluster.send("POST", review, &accepted, body.clone()).await.refused(406, "NotAcceptable");
    let both = format!("{TABLE},application/json");
    let accepted = [("accept", both.as_str()), ("content-type", JSON)];
    assert_eq!(cluster.send("POST", review, &accepted, body).await.code, 201);
}

#[tokio::test]
async fn a_192_to_194_tables_have_columns_and_rows() {
    let cluster = Cluster::start().await;
    let made = cluster.make(PODS, pod("p")).await;
    let table = accepting(&cluster, PODS, TABLE).await.ok();
    assert_eq!((&table["kind"], &table["apiVersion"]), (&"Table".into(), &"meta.k8s.io/v1".into()));
    let columns = table["columnDefinitions"].as_array().unwrap();
    let row = &table["rows"][0];
    assert_eq!(columns.len(), row["cells"].as_array().unwrap().len());
    assert_eq!((&columns[0]["name"], &columns[0]["format"]), (&"Name".into(), &"name".into()));
    assert_eq!(
        (&row["cells"][0], &row["cells"][1], &row["cells"][2]),
        (&"p".into(), &"0/1".into(), &"Pending".into())
    );
    assert_eq!(row["object"]["metadata"], made["metadata"]);
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    let whole = accepting(&cluster, &format!("{PODS}?includeObject=Object"), TABLE).await.ok();
    assert_eq!(whole["rows"][0]["object"], made);
    let none = accepting(&cluster, &format!("{PODS}?includeObject=None"), TABLE).await.ok();
    assert_eq!(none["rows"][0]["object"], Value::Null);
    let one = accepting(&cluster, &format!("{PODS}/p"), TABLE).await.ok();
    assert_eq!(one["rows"].as_array().unwrap().len(), 1);
    let old = accepting(&cluster, PODS, &TABLE.replace("v=v1", "v=v1beta1")).await.ok();
    assert_eq!(
        (&old["apiVersion"], &old["rows"][0]["cells"][0]),
        (&"meta.k8s.io/v1beta1".into(), &"p".into())
    );
    accepting(&cluster, &format!("{PODS}?includeObject=Half"), TABLE)
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn a_24_browsers_and_curl_get_indented_json() {
    let cluster = Cluster::start().await;
    cluster.make(MAPS, map("m")).await;
    let m = format!("{MAPS}/m");
    type Row<'a> = (String, &'a [(&'a str, &'a str)], bool);
    let rows: [Row; 7] = [
        (m.clone(), &[], false),
        (format!("{m}?pretty=true"), &[], true),
        (m.clone(), &[("user-agent", "curl/8.0")], true),
        (m.clone(), &[("user-agent", "Mozilla/5.0 (X11)")], true),
        (m.clone(), &[("user-agent", "kubectl/1.36")], false),
        (m.clone(), &[("accept", "application/json;pretty=1")], true),
        (format!("{m}?pretty=false"), &[("user-agent", "curl/8.0")], false),
    ];
    for (path, headers, pretty) in rows {
        let reply = cluster.get_with(&path, headers).await;
        assert_eq!(reply.text().trim_end().contains("\n  "), pretty, "{path} {headers:?}");
    }
    let reply = cluster.get_with(MAPS, &[("user-agent", "curl/8.0")]).await;
    assert!(reply.text().contains("\n  "));
}

#[tokio::test]
async fn a_25_large_responses_are_compressed_on_request() {
    let cluster = Cluster::start().await;
    let mut big = map("big");
    big["data"] = json!({"text": "landfall ".repeat(30_000)});
    let made = cluster.make(MAPS, big).await;
    cluster.make(MAPS, map("small")).await;
    let accepted = [("accept-encoding", "gzip")];
    for path in [format!("{MAPS}/big"), MAPS.to_owned()] {
        let plain = cluster.get(&path).await;
        assert_eq!(plain.header("content-encoding"), "");
        let reply = cluster.get_with(&path, &accepted).await;
        assert_eq!(
            (reply.header("content-encoding"), reply.header("vary")),
            ("gzip", "Accept-Encoding")
        );
        assert!(reply.bytes.len() < plain.bytes.len() / 10);
        let mut text = String::new();
        flate2::read::GzDecoder::new(&reply.bytes[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, plain.text());
    }
    assert_eq!(
        cluster.get_with(&format!("{MAPS}/small"), &accepted).await.header("content-encoding"),
        ""
    );
    assert_eq!(made["kind"], "ConfigMap");
}

#[tokio::test]
async fn a_26_every_response_has_an_audit_id_and_is_not_cached() {
    let cluster = Cluster::start().await;
    let reply = cluster.get(PODS).await;
    assert_eq!(
        (reply.header("audit-id").len(), reply.header("cache-control")),
        (36, "no-cache, private")
    );
    assert_ne!(cluster.get(PODS).await.header("audit-id"), reply.header("audit-id"));
    let reply = cluster.get_with("/nothing", &[("audit-id", "mine")]).await;
    assert_eq!(
        (reply.header("audit-id"), reply.header("cache-control")),
        ("mine", "no-cache, private")
    );
}

/// A-27, A-28: the form of lists, times and quantities.
#[tokio::test]
async fn a_27_and_28_lists_times_and_quantities_have_upstreams_form() {
    let cluster = Cluster::start().await;
    let list = cluster.read("/api/v1/namespaces/default/secrets").await;
    assert_eq!(
        (&list["kind"], &list["apiVersion"], &list["items"]),
        (&"SecretList".into(), &"v1".into(), &json!([]))
    );
    let mut wanted = deployment("d");
    wanted["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"cpu": 2}});
    let made = cluster.make(DEPLOYMENTS, wanted).await;
    let template = &made["spec"]["template"];
    assert_eq!(
        template["spec"]["containers"][0]["resources"],
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}})
    );
    assert_eq!(template["metadata"].get("creationTimestamp"), None);
    let list = cluster.read(DEPLOYMENTS).await;
    assert_eq!(list["items"][0].get("kind"), None);
    assert_eq!(list["items"][0].get("apiVersion"), None);
    assert_eq!(names(&list), ["d"]);
    let lease = json!({"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-02T04:04:05.500000+01:00"}});
    let made = cluster.make("/apis/coordination.k8s.io/v1/namespaces/default/leases", lease).await;
    assert_eq!(made["spec"]["renewTime"], "2026-01-02T03:04:05.500000Z");
    assert!(!version(&made).is_empty());
    let time = made["metadata"]["creationTimestamp"].as_str().unwrap();
    assert_eq!((time.len(), &time[19..]), (20, "Z"));
}

/// A-35, A-36: /version and the root path.
#[tokio::test]
async fn a_35_and_36_version_and_root_paths() {
    let cluster = Cluster::start().await;
    let reply = cluster.read("/version").await;
    assert_eq!((&reply["major"], &reply["minor"]), (&"1".into(), &"36".into()));
    for field in [
        "gitVersion",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ] {
        assert!(reply[field].is_string(), "{field}");
    }
    assert!(reply["gitVersion"].as_str().unwrap().starts_with("v1.36."));
    let paths = cluster.read("/").await["paths"].clone();
    for path in paths.as_array().unwrap() {
        let path = path.as_str().unwrap();
        assert_eq!(cluster.get(path).await.code, 200, "{path}");
    }
}

/// A-37, A-38: legacy discovery.
#[tokio::test]
async fn a_37_and_38_legacy_discovery_documents() {
    let cluster = Cluster::start().await;
    let api = cluster.read("/api").await;
    assert_eq!((&api["kind"], &api["versions"]), (&"APIVersions".into(), &json!(["v1"])));
    assert_eq!(api["serverAddressByClientCIDRs"][0]["clientCIDR"], "0.0.0.0/0");
    let groups = cluster.read("/apis").await;
    assert_eq!((&groups["kind"], &groups["apiVersion"]), (&"APIGroupList".into(), &"v1".into()));
    let listed: Vec<_> = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| group["name"].as_str().unwrap())
        .collect();
    assert!(listed.contains(&"apps") && !listed.contains(&""));
    // Groups are sorted by priority (A-44).
    let first: Vec<_> = listed.iter().take(6).copied().collect();
    assert_eq!(
        first,
        [
            "apiregistration.k8s.io",
            "apps",
            "events.k8s.io",
            "authentication.k8s.io",
            "authorization.k8s.io",
            "autoscaling"
        ]
    );
    let group = cluster.read("/apis/autoscaling").await;
    assert_eq!(
        (&group["kind"], &group["preferredVersion"]["version"]),
        (&"APIGroup".into(), &"v2".into())
    );
    let core = cluster.read("/api/v1").await;
    let find = |name: &str| {
        core["resources"].as_array().unwrap().iter().find(|r| r["name"] == name).unwrap().clone()
    };
    let pods = find("pods");
    assert_eq!(
        (&pods["singularName"], &pods["kind"], &pods["namespaced"]),
        (&"pod".into(), &"Pod".into(), &true.into())
    );
    assert_eq!((&pods["shortNames"], &pods["categories"]), (&json!(["po"]), &json!(["all"])));
    // A-39: eight bytes of a hash.
    assert_eq!(pods["storageVersionHash"], "xPOwRZ+Yhw8=");
    let eviction = find("pods/eviction");
    assert_eq!(
        (&eviction["group"], &eviction["version"], &eviction["kind"]),
        (&"policy".into(), &"v1".into(), &"Eviction".into())
    );
    assert_eq!((&eviction["singularName"], eviction.get("storageVersionHash")), (&"".into(), None));
}

#[tokio::test]
async fn a_40_to_43_aggregated_discovery() {
    let cluster = Cluster::start().await;
    for path in ["/api", "/apis"] {
        let reply = accepting(&cluster, path, &format!("{AGGREGATED},application/json")).await;
        assert_eq!(reply.header("content-type"), AGGREGATED);
        assert_eq!((reply.header("cache-control"), reply.header("vary")), ("public", "Accept"));
        assert_eq!(
            (&reply.body["kind"], &reply.body["apiVersion"]),
            (&"APIGroupDiscoveryList".into(), &"apidiscovery.k8s.io/v2".into())
        );
        for group in reply.body["items"].as_array().unwrap() {
            for version in group["versions"].as_array().unwrap() {
                assert_eq!(version["freshness"], "Current");
                for resource in version["resources"].as_array().unwrap() {
                    assert!(
                        !resource["responseKind"]["kind"].as_str().unwrap().is_empty(),
                        "{resource}"
                    );
                    assert!(matches!(resource["scope"].as_str(), Some("Namespaced" | "Cluster")));
                }
            }
        }
        let tag = reply.header("etag").to_owned();
        assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag}");
        let headers = [("accept", AGGREGATED), ("if-none-match", tag.as_str())];
        let again = cluster.get_with(path, &headers).await;
        assert_eq!((again.code, again.bytes.len(), again.header("etag")), (304, 0, tag.as_str()));
        // A-42: the older format is not served.
        let old = AGGREGATED.replace("v=v2", "v=v2beta1");
        let reply = accepting(&cluster, path, &format!("{old},application/json")).await;
        assert_eq!(reply.header("content-type"), JSON);
    }
}

/// A-46, A-47: the index and its documents.
#[tokio::test]
async fn a_46_and_47_openapi_v3_documents_are_fetched_by_hash() {
    let cluster = Cluster::start().await;
    let index = cluster.read("/openapi/v3").await;
    let place = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    assert!(place.starts_with("/openapi/v3/apis/apps/v1?hash="), "{place}");
    let reply = cluster.get(&place).await;
    assert_eq!((reply.code, reply.header("content-type")), (200, JSON));
    assert_eq!(
        (reply.header("cache-control"), reply.header("vary")),
        ("public, immutable", "Accept")
    );
    assert!(reply.header("expires").ends_with(" GMT"), "{:?}", reply.headers);
    assert!(reply.body["openapi"].as_str().unwrap().starts_with("3.0"));
    assert!(
        reply.body["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
            .is_object()
    );
    let tag = reply.header("etag").to_owned();
    let again =
        cluster.get_with("/openapi/v3/apis/apps/v1", &[("if-none-match", tag.as_str())]).await;
    assert_eq!(again.code, 304);
    let stale = cluster.get("/openapi/v3/apis/apps/v1?hash=OLD").await;
    assert_eq!((stale.code, stale.header("location")), (301, place.as_str()));
    assert_eq!(cluster.get("/openapi/v3/apis/none/v1").await.code, 404);
}

#[tokio::test]
async fn a_52_openapi_v2_is_served_for_old_clients() {
    let cluster = Cluster::start().await;
    let reply = accepting(&cluster, "/openapi/v2", JSON).await;
    assert_eq!((reply.header("content-type"), &reply.body["swagger"]), (JSON, &"2.0".into()));
    let tag = reply.header("etag").to_owned();
    assert_eq!(cluster.get_with("/openapi/v2", &[("if-none-match", tag.as_str())]).await.code, 304);
    let accepted = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let reply = accepting(&cluster, "/openapi/v2", accepted).await;
    let content_type = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    assert_eq!((reply.code, reply.header("content-type")), (200, content_type));
    accepting(&cluster, "/openapi/v2", "text/csv").await.refused(406, "NotAcceptable");
}

#[tokio::test]
async fn a_45_a_new_kind_is_in_all_documents_immediately() {
    let cluster = Cluster::start().await;
    let definition = json!({"metadata": {"name": "ships.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "ships", "kind": "Ship"},
        "versions": [{"name": "v1", "served": true, "storage": true,
                      "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let before = accepting(&cluster, "/apis", AGGREGATED).await.header("etag").to_owned();
    cluster.make(definitions, definition).await;
    let after = accepting(&cluster, "/apis", AGGREGATED).await;
    assert_ne!(after.header("etag"), before);
    assert!(after.text().contains("\"example.com\""));
    assert_eq!(cluster.read("/apis/example.com/v1").await["resources"][0]["name"], "ships");
    assert!(cluster.read("/openapi/v3").await["paths"]["apis/example.com/v1"].is_object());
    let open = cluster.read("/openapi/v3/apis/example.com/v1").await;
    assert!(open["components"]["schemas"]["com.example.v1.Ship"].is_object());
    cluster.delete(&format!("{definitions}/ships.example.com")).await.ok();
    assert!(cluster.until("/apis/example.com/v1", 404).await);
    assert!(!accepting(&cluster, "/apis", AGGREGATED).await.text().contains("\"example.com\""));
}

#[tokio::test]
async fn a_56_health_checks_need_no_credentials() {
    let cluster = Cluster::start().await;
    for path in ["/healthz", "/livez", "/readyz"] {
        let reply = cluster.get(path).await;
        assert_eq!((reply.code, reply.text()), (200, "ok"), "{path}");
        let reply = cluster.get(&format!("{path}?verbose")).await;
        assert!(reply.text().starts_with("[+]ping ok\n"), "{}", reply.text());
        assert!(
            reply.text().ends_with(&format!("{} check passed\n", &path[1..])),
            "{}",
            reply.text()
        );
        assert_eq!(cluster.get(&format!("{path}/ping")).await.text(), "ok");
    }
}

/// A-91: some clients and scripts compare responses byte for byte.
#[tokio::test]
async fn a_91_responses_end_with_a_newline_and_statuses_have_upstreams_field_order() {
    let cluster = Cluster::start().await;
    cluster.make(MAPS, map("a")).await;
    let one = format!("{MAPS}/a");
    for path in [MAPS, &one, "/apis/apps/v1", "/apis"] {
        let reply = cluster.get(path).await;
        assert!(reply.text().ends_with("}\n") && !reply.text().ends_with("\n\n"), "{path}");
    }
    let missing = cluster.get(&format!("{MAPS}/b")).await;
    assert_eq!(
        missing.text(),
        "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"configmaps \\\"b\\\" not found\",\"reason\":\"NotFound\",\"details\":{\"name\":\"b\",\"kind\":\"configmaps\"},\"code\":404}\n"
    );
    let uid = cluster.read(&one).await["metadata"]["uid"].as_str().unwrap().to_owned();
    let gone = cluster.delete(&one).await;
    let receipt = format!(
        "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"status\":\"Success\",\"details\":{{\"name\":\"a\",\"kind\":\"configmaps\",\"uid\":\"{uid}\"}}}}\n"
    );
    assert_eq!(gone.text(), receipt);
}
