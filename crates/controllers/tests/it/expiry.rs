//! Deletion of expired objects, with a real server and a simulated clock.

use client::{Cache, ObjectKey};
use controllers::Options;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use std::time::Duration;
use testbed::TestServer;

const HOUR: Duration = Duration::from_secs(3600);

/// C-151, C-152: expired objects are deleted on time, and not earlier.
#[tokio::test(start_paused = true)]
async fn signing_requests_and_tokens_are_deleted_when_they_expire() {
    clock::simulate(jiff::Timestamp::new(1_800_000_000, 0).unwrap(), 5);
    let server = TestServer::start().await;
    let client = server.admin();
    let controllers = controllers::start(&client, Options::default());
    let end = clock::rfc3339(clock::now() + 2 * HOUR);
    let token: Secret = typed::from_value(json!({
        "metadata": {"namespace": "kube-system", "name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": end},
    }))
    .unwrap();
    client.create(&token).await.unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let request: CertificateSigningRequest = typed::from_value(json!({
        "metadata": {"name": "asked"},
        "spec": {
            "request": base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pem),
            "signerName": "example.com/signer", "usages": ["client auth"],
        },
    }))
    .unwrap();
    client.create(&request).await.unwrap();

    let tokens = Cache::<Secret>::builder(&client).namespace("kube-system").start();
    let requests = Cache::<CertificateSigningRequest>::start(&client);
    tokens.synced().await;
    requests.synced().await;
    let token = ObjectKey::new("kube-system", "bootstrap-token-abcdef");
    let request = ObjectKey::cluster("asked");
    // Large steps: nothing else happens in these hours.
    let minute = Duration::from_secs(60);
    tokio::time::advance(2 * HOUR - minute).await;
    settle().await;
    assert!(tokens.get(&token).is_some(), "not before its time");
    tokio::time::advance(2 * minute).await;
    let gone = async || {
        while tokens.get(&token).is_some() {
            settle().await;
        }
    };
    tokio::time::timeout(minute, gone()).await.expect("the token has expired");
    tokio::time::advance(22 * HOUR - 10 * minute).await;
    settle().await;
    assert!(requests.get(&request).is_some(), "not before its time");
    tokio::time::advance(20 * minute).await;
    let gone = async || {
        while requests.get(&request).is_some() {
            settle().await;
        }
    };
    tokio::time::timeout(minute, gone()).await.expect("the request is too old");
    controllers.stop().await;
    server.stop().await;
}

/// Lets all tasks do what is due.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}
