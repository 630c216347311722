//! Clients with bad credentials, without credentials or without rights learn nothing but that.

use crate::process::{self, Client, Landfall, Reach};
use bytes::Bytes;
use http::Method;
use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair};
use serde_json::json;
use server::authn::{Claims, ServiceAccountTokens, jwt::SigningKey};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// A text in an object that no client without rights may see.
const SECRET: &str = "the-treasure-is-under-the-palm";
/// Paths that are public (A-56, A-186).
const OPEN: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

async fn start() -> (Landfall, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let landfall = Landfall::start(&home.path().join("data")).await;
    let mut client = landfall.client().await;
    let kept = json!({ "metadata": { "name": "kept" }, "data": { "a": SECRET } });
    assert_eq!(client.post(MAPS, &kept).await.unwrap().code(), 201);
    (landfall, home)
}

async fn end(mut landfall: Landfall) {
    assert!(landfall.is_alive());
    let dir = landfall.dir.clone();
    landfall.stop().await;
    process::assert_no_panic(&dir);
}

/// A-171: bad credentials are rejected and not treated as anonymous.
#[tokio::test]
async fn a_171_bad_tokens_are_401_and_never_anonymous() {
    let (landfall, _home) = start().await;
    let mut admin = landfall.client().await;
    let account = "/api/v1/namespaces/default/serviceaccounts";
    let made = admin.post(account, &json!({ "metadata": { "name": "robot" } })).await.unwrap();
    let uid = made.json()["metadata"]["uid"].as_str().unwrap().to_owned();
    let requests = json!({ "spec": { "expirationSeconds": 3600 } });
    let good = admin.post(&format!("{account}/robot/token"), &requests).await.unwrap().json();
    let good = good["status"]["token"].as_str().unwrap().to_owned();

    // Tokens of the right account with another error.
    let now = clock::now().as_second();
    let claims = Claims {
        aud: vec![ISSUER.to_owned()],
        exp: now + 3600,
        iat: now - 10,
        iss: ISSUER.to_owned(),
        jti: clock::uuid(),
        kubernetes: serde_json::from_value(json!({
            "namespace": "default", "serviceaccount": { "name": "robot", "uid": uid },
        }))
        .unwrap(),
        nbf: now - 10,
        sub: "system:serviceaccount:default:robot".to_owned(),
    };
    let key = std::fs::read_to_string(landfall.dir.join("pki/sa.key")).unwrap();
    let ours = ServiceAccountTokens::new(&key, ISSUER, &[]).unwrap();
    let foreign = ServiceAccountTokens::with_key(SigningKey::generate().unwrap(), ISSUER, &[]);
    let parts: Vec<&str> = good.split('.').collect();
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0"; // {"alg":"none","typ":"JWT"}
    let mut other_uid = claims.clone();
    other_uid.kubernetes.serviceaccount.uid = "1-2-3".to_owned();
    let bad: Vec<(&str, String)> = vec![
        ("nonsense", "nonsense".into()),
        ("dots", "...".into()),
        ("a long one", "x".repeat(10_000)),
        ("not UTF-8 inside", "/////.////.////".into()),
        ("cut", good[..good.len() - 5].into()),
        ("another signature", format!("{}.{}.{}", parts[0], parts[1], "A".repeat(86))),
        ("no signature", format!("{}.{}.", parts[0], parts[1])),
        ("alg none", format!("{none}.{}.", parts[1])),
        ("alg none, signed", format!("{none}.{}.{}", parts[1], parts[2])),
        ("expired", ours.sign(&Claims { exp: now - 1, ..claims.clone() })),
        ("not yet", ours.sign(&Claims { nbf: now + 600, ..claims.clone() })),
        ("for another audience", ours.sign(&Claims { aud: vec!["x".into()], ..claims.clone() })),
        ("by another issuer", ours.sign(&Claims { iss: "https://x".into(), ..claims.clone() })),
        ("another account's uid", ours.sign(&other_uid)),
        ("a foreign key", foreign.sign(&claims)),
        ("the administrator's, changed", format!("{}x", landfall.reach().token.unwrap())),
    ];
    for (what, token) in &bad {
        let mut client = landfall.reach().with_token(token).connect().await.unwrap();
        for path in [MAPS, "/version", "/apis", "/nothing"] {
            let reply = client.get(path).await.unwrap();
            assert_eq!(
                (reply.code(), reply.reason().as_str()),
                (401, "Unauthorized"),
                "{what} {path}"
            );
            assert!(!reply.text().contains(SECRET));
        }
        let create = client.post(MAPS, &json!({ "metadata": { "name": "bad" } })).await.unwrap();
        assert_eq!(create.code(), 401, "{what}");
    }
    // Valid credentials work, so that the rejections prove something.
    for token in [&good, &ours.sign(&claims)] {
        let mut client = landfall.reach().with_token(token).connect().await.unwrap();
        assert_eq!(client.get("/apis").await.unwrap().code(), 200);
        assert_eq!(client.get(MAPS).await.unwrap().code(), 403);
    }
    // A token becomes invalid when its account is deleted.
    assert_eq!(admin.delete(&format!("{account}/robot")).await.unwrap().code(), 200);
    let mut client = landfall.reach().with_token(&good).connect().await.unwrap();
    assert_eq!(client.get("/apis").await.unwrap().code(), 401);
    end(landfall).await;
}

#[tokio::test]
async fn client_certificates_that_are_foreign_or_old_get_no_connection() {
    let (landfall, _home) = start().await;
    let read = |name: &str| std::fs::read_to_string(landfall.dir.join("pki").join(name)).unwrap();
    let authority = KeyPair::from_pem(&read("ca.key")).unwrap();
    let ours = Issuer::from_ca_cert_pem(&read("ca.crt"), &authority).unwrap();
    let foreign_key = KeyPair::generate().unwrap();
    let foreign = Issuer::new(administrator(2025, 2035), &foreign_key);
    let key = KeyPair::generate().unwrap();
    let issue = |params: CertificateParams, issuer: &Issuer<&KeyPair>| {
        params.signed_by(&key, issuer).unwrap().pem()
    };
    let good = issue(administrator(2025, 2035), &ours);
    let bad = [
        ("of a foreign authority", issue(administrator(2025, 2035), &foreign)),
        ("signed by itself", administrator(2025, 2035).self_signed(&key).unwrap().pem()),
        ("expired", issue(administrator(2015, 2016), &ours)),
        ("not valid yet", issue(administrator(2090, 2095), &ours)),
    ];
    for (what, certificate) in bad {
        let reach = landfall.reach().with_identity(&certificate, &key.serialize_pem());
        // With TLS 1.3 the client gets the error with the first response.
        let refused = match reach.connect().await {
            Err(_) => true,
            Ok(mut client) => client.get(MAPS).await.is_err(),
        };
        assert!(refused, "{what}: it was let in");
    }
    let reach = landfall.reach().with_identity(&good, &key.serialize_pem());
    assert_eq!(reach.connect().await.unwrap().get(MAPS).await.unwrap().code(), 200);
    end(landfall).await;
}

/// A certificate with the name of the administrator.
fn administrator(from: i32, to: i32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.distinguished_name.push(DnType::CommonName, "kubernetes-admin");
    params.not_before = rcgen::date_time_ymd(from, 1, 1);
    params.not_after = rcgen::date_time_ymd(to, 1, 1);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// Every verb on every resource, and paths that do not exist.
async fn everything(admin: &mut Client) -> Vec<(Method, String)> {
    let mut versions = vec!["/api/v1".to_owned()];
    let groups = admin.get("/apis").await.unwrap().json();
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            versions.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    let mut requests = Vec::new();
    for version in &versions {
        let list = admin.get(version).await.unwrap().json();
        for resource in list["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            let within = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
            let (plural, sub) = name.split_once('/').unwrap_or((name, ""));
            let sub = if sub.is_empty() { String::new() } else { format!("/{sub}") };
            for object in ["kept", "default", "missing"] {
                let one = format!("{version}{within}/{plural}/{object}{sub}");
                for method in [Method::GET, Method::PUT, Method::PATCH, Method::DELETE] {
                    requests.push((method, one.clone()));
                }
                requests.push((Method::POST, one));
            }
            if sub.is_empty() {
                let all = format!("{version}{within}/{plural}");
                for method in [Method::GET, Method::POST, Method::DELETE] {
                    requests.push((method, all.clone()));
                }
                requests.push((Method::GET, format!("{all}?watch=1&timeoutSeconds=1")));
                requests.push((Method::GET, format!("{version}/{plural}")));
                requests.push((Method::GET, format!("{version}/watch/{plural}")));
            }
        }
    }
    let paths = [
        "/",
        "/api",
        "/apis",
        "/apis/apps",
        "/openapi/v2",
        "/openapi/v3",
        "/metrics",
        "/openid/v1/jwks",
        "/.well-known/openid-configuration",
        "/healthz/store",
        "/nothing",
        "/api/v1/nothing",
        "/debug/pprof",
        "//api/v1/secrets",
        "/api//v1/secrets",
        "/api/v1/./secrets",
        "/healthz/../api/v1/secrets",
        "/%61pi/v1/secrets",
        "/version/../metrics",
        "/healthz/",
        "/version/x",
    ];
    for path in paths {
        requests.push((Method::GET, path.to_owned()));
        requests.push((Method::POST, path.to_owned()));
    }
    requests.extend(versions.into_iter().map(|version| (Method::GET, version)));
    requests
}

async fn ask(client: &mut Client, reach: &Reach, method: &Method, path: &str) -> process::Reply {
    let (media, body) = match *method {
        Method::PATCH => ("application/merge-patch+json", "{}"),
        Method::POST | Method::PUT => ("application/json", r#"{"metadata":{"name":"new"}}"#),
        _ => ("", ""),
    };
    let body = Bytes::from_static(body.as_bytes());
    match client.call(method.clone(), path, media, body.clone()).await {
        Ok(reply) => reply,
        Err(_) => {
            *client = reach.connect().await.unwrap();
            client.call(method.clone(), path, media, body).await.unwrap()
        }
    }
}

#[tokio::test]
async fn a_186_anonymous_clients_can_read_only_health_and_version() {
    let (landfall, _home) = start().await;
    let mut admin = landfall.client().await;
    let requests = everything(&mut admin).await;
    let before = admin.get(MAPS).await.unwrap().json()["items"].clone();
    let reach = landfall.reach().anonymous();
    let mut client = reach.connect().await.unwrap();
    for path in OPEN {
        assert_eq!(client.get(path).await.unwrap().code(), 200, "{path}");
    }
    let mut failures = Vec::new();
    for (method, path) in &requests {
        let reply = ask(&mut client, &reach, method, path).await;
        let text = reply.text();
        if !matches!(reply.code(), 401 | 403) || reply.json()["kind"] != "Status" {
            failures.push(format!("{method} {path}: {} {text}", reply.code()));
        }
        assert!(!text.contains(SECRET), "{method} {path}");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{} anonymous requests refused", requests.len());
    assert_eq!(admin.get(MAPS).await.unwrap().json()["items"], before);
    end(landfall).await;
}

#[tokio::test]
async fn a_user_without_rights_cannot_tell_whether_an_object_exists() {
    let (landfall, _home) = start().await;
    let mut admin = landfall.client().await;
    let requests = everything(&mut admin).await;
    let account = json!({ "metadata": { "name": "nobody" } });
    admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await.unwrap();
    let path = "/api/v1/namespaces/default/serviceaccounts/nobody/token";
    let token = admin.post(path, &json!({ "spec": {} })).await.unwrap().json();
    let reach = landfall.reach().with_token(token["status"]["token"].as_str().unwrap());
    let before = admin.get(MAPS).await.unwrap().json()["items"].clone();
    let mut client = reach.connect().await.unwrap();
    let (mut refused, mut failures) = (0, Vec::new());
    for (method, path) in requests {
        // Every user may ask about itself and read discovery (A-186).
        let open = !path.contains("/api/v1/") && path.split('/').count() <= 4
            || path.contains("/selfsubject")
            || path.matches('/').count() == 2;
        let reply = ask(&mut client, &reach, &method, &path).await;
        assert!(!reply.text().contains(SECRET), "{method} {path}");
        if open {
            continue;
        }
        if reply.code() != 403 || reply.reason() != "Forbidden" {
            failures.push(format!("{method} {path}: {} {}", reply.code(), reply.text()));
            continue;
        }
        refused += 1;
    }
    // The response is the same whether the object exists or not.
    for method in [Method::GET, Method::PUT, Method::PATCH, Method::DELETE, Method::POST] {
        let mut output = Vec::new();
        for name in ["kept", "missing"] {
            let reply = ask(&mut client, &reach, &method, &format!("{MAPS}/{name}")).await;
            output.push((reply.code(), reply.text().replace(name, "it")));
        }
        assert_eq!(output[0], output[1], "{method}");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{refused} requests of a user without rights refused");
    assert_eq!(admin.get(MAPS).await.unwrap().json()["items"], before);
    end(landfall).await;
}
