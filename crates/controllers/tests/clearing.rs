//! What has ended is cleared away, on a whole server and a simulated clock.

use client::{Cache, Client, ObjectKey};
use controllers::Options;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use server::authn::User;
use server::{Config, StoreChoice};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// C-151, C-152: at its time, and not before.
#[tokio::test(start_paused = true)]
async fn requests_and_tokens_go_when_their_time_has_come() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    clock::simulate(jiff::Timestamp::new(1_800_000_000, 0).unwrap(), 5);
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        data_dir: dir.path().into(),
        listen: ([127, 0, 0, 1], 0).into(),
        store: StoreChoice::Embedded,
        audit_log: None,
        controllers: false,
    };
    let running = server::start(config).await.unwrap();
    let admin = User::authenticated("tester", &["system:masters"]);
    let client = Client::in_process(running.server.door(admin));
    let controllers = controllers::start(&client, Options::default());
    let end = clock::rfc3339(clock::now() + 2 * HOUR);
    let token: Secret = serde_json::from_value(json!({
        "metadata": {"namespace": "kube-system", "name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": end},
    }))
    .unwrap();
    client.create(&token).await.unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let request: CertificateSigningRequest = serde_json::from_value(json!({
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
    let started = tokio::time::Instant::now();
    assert!(tokens.get(&token).is_some() && requests.get(&request).is_some());
    let gone = async {
        let mut changes = tokens.subscribe();
        while tokens.get(&token).is_some() {
            let _ = changes.next().await;
        }
        let token_after = started.elapsed();
        let mut changes = requests.subscribe();
        while requests.get(&request).is_some() {
            let _ = changes.next().await;
        }
        (token_after, started.elapsed())
    };
    let (token_after, request_after) = tokio::time::timeout(30 * HOUR, gone).await.unwrap();
    let minute = Duration::from_secs(60);
    assert!(token_after > 2 * HOUR - minute && token_after < 2 * HOUR + minute, "{token_after:?}");
    let day = 24 * HOUR;
    assert!(request_after > day - minute && request_after < day + minute, "{request_after:?}");
    controllers.stop().await;
    running.stop().await;
}
