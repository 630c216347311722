//! Pulls from a real registry and from a scripted one that misbehaves.

use super::TestStore;
use super::fixture::{Layer, Layout, digest, go_arch, gzip, zstd};
use super::server::{Answer, Options, RecordedRequest, Registry, Scripted};
use base64::Engine;
use runtime::{Credentials, Error, Image, ImageReference, Images, PullProgress, Result};
use serde_json::json;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

async fn pull(test: &TestStore, name: &str, credentials: &[Credentials]) -> Result<Image> {
    test.store.pull(&ImageReference(name.to_owned()), credentials, &|_| {}).await
}

fn user(password: &str) -> Credentials {
    Credentials { username: "user".into(), password: password.into(), token: String::new() }
}

/// An index with an image of two layers with different compression.
fn layout() -> Layout {
    let mut layout = Layout::default();
    let one = Layer::new().file("one", &"1".repeat(100_000)).build();
    let two = Layer::new().file("two", "2").file(".wh.gone", "").build();
    let layers = [(one.clone(), gzip(&one)), (two.clone(), zstd(&two))];
    let mut manifest = layout.manifest(&layers, json!({"Cmd": ["one"]}));
    manifest["platform"] = json!({"os": "linux", "architecture": go_arch()});
    let mut other = manifest.clone();
    other["platform"] = json!({"os": "linux", "architecture": "s390x"});
    let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [other, manifest]});
    let index = layout.blob("application/vnd.oci.image.index.v1+json", index.to_string().into());
    layout.index.push(index);
    layout
}

#[tokio::test]
async fn an_image_is_pulled_by_tag_and_by_digest_n_173_n_178() {
    let test = TestStore::new();
    let registry = Registry::start(test.path(), &Options::default());
    let layout = layout();
    registry.push("a/b", "1", &layout).await;
    let name = format!("{}/a/b:1", registry.host);
    let reported = Mutex::new(Vec::<PullProgress>::new());
    let image = ImageReference(name.clone());
    let image = test
        .store
        .pull(&image, &[], &|progress| reported.lock().unwrap().push(progress))
        .await
        .unwrap();

    let index = layout.index[0]["digest"].as_str().unwrap();
    let by_digest = format!("{}/a/b@{index}", registry.host);
    assert_eq!(image.tags, std::slice::from_ref(&name));
    assert_eq!(image.digests, std::slice::from_ref(&by_digest));
    assert_eq!(test.store.config(&name).unwrap().cmd, ["one"]);
    let layers = test.store.layers(&name).unwrap();
    assert_eq!(std::fs::read_to_string(layers[0].join("two")).unwrap(), "2");
    let reported = reported.into_inner().unwrap();
    assert_eq!(reported[0].done, 0);
    assert_eq!(Some(reported.last().unwrap().done), reported[0].total);
    assert!(reported[0].total.unwrap() > 0);

    let other = TestStore::new();
    let again = pull(&other, &by_digest, &[]).await.unwrap();
    assert_eq!((again.id, again.tags.len()), (image.id, 0));
    let absent = format!("{}/a/b@{}", registry.host, digest(b"else"));
    let error = pull(&other, &absent, &[]).await.unwrap_err();
    assert!(matches!(&error, Error::Pull(text) if text.contains("not found")), "{error:?}");
    assert_eq!(other.leftovers(), (2, 0));
}

#[tokio::test]
async fn a_pull_downloads_only_missing_layers_n_65() {
    let test = TestStore::new();
    let registry = Registry::start(test.path(), &Options::default());
    registry.push("a/b", "1", &layout()).await;
    let name = format!("{}/a/b:1", registry.host);
    pull(&test, &name, &[]).await.unwrap();
    // Only the changed layer is downloaded.
    let mut changed = Layout::default();
    let one = Layer::new().file("one", &"1".repeat(100_000)).build();
    let new = Layer::new().file("new", "n").build();
    let manifest =
        changed.manifest(&[(one.clone(), gzip(&one)), (new.clone(), new.clone())], json!({}));
    changed.index.push(manifest);
    registry.push("a/b", "1", &changed).await;
    let reported = Mutex::new(Vec::<PullProgress>::new());
    let image = ImageReference(name.clone());
    let image = test.store.pull(&image, &[], &|p| reported.lock().unwrap().push(p)).await.unwrap();
    assert_eq!(reported.into_inner().unwrap()[0].total, Some(new.len() as u64));
    assert_eq!(test.store.find(&ImageReference(name)).await.unwrap().unwrap().id, image.id);
}

#[tokio::test]
async fn credentials_are_tried_in_order_n_175() {
    let test = TestStore::new();
    let registry = Registry::start(test.path(), &Options { password: true, ..Options::default() });
    registry.push("a/b", "1", &layout()).await;
    let name = format!("{}/a/b:1", registry.host);
    for credentials in [&[][..], &[user("wrong")]] {
        let error = pull(&test, &name, credentials).await.unwrap_err();
        assert!(matches!(error, Error::Pull(_)), "{error:?}");
        assert!(error.to_string().contains("pull access denied"), "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    pull(&test, &name, &[user("wrong"), user("secret")]).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_registry_is_a_pull_error_n_67() {
    let test = TestStore::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap();
    drop(listener);
    let error = pull(&test, &format!("{host}/a/b:1"), &[]).await.unwrap_err();
    assert!(matches!(error, Error::Pull(_)), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn mirrors_are_tried_in_order_and_may_have_their_own_certificate() {
    let test = TestStore::new();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
    let mirror = Registry::start(
        test.path(),
        &Options { tls: Some((certificate.clone(), key)), ..Options::default() },
    );
    mirror.push("hub/library/x", "1", &layout()).await;
    let ca = test.path().join("ca.pem");
    std::fs::write(&ca, certificate).unwrap();
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mirrors = json!([
        format!("http://{}", dead.local_addr().unwrap()),
        format!("https://{}/hub", mirror.host)
    ]);
    drop(dead);
    let registries = json!({"mirrors": {"docker.io": mirrors}, "ca_files": [ca]});
    std::fs::write(test.path().join("store/registries.json"), registries.to_string()).unwrap();
    let image = pull(&test, "x:1", &[]).await.unwrap();
    assert_eq!(image.tags, ["docker.io/library/x:1"]);
}

/// Answers like a registry that has this layout.
fn serve(layout: &Layout, request: &RecordedRequest) -> Answer {
    let path = request.path.split('?').next().unwrap();
    let digest = path.rsplit('/').next().unwrap();
    let tagged = path.contains("/manifests/") && !digest.starts_with("sha256:");
    let digest = if tagged { layout.index[0]["digest"].as_str().unwrap() } else { digest };
    match layout.blobs.iter().find(|(found, _)| found == digest) {
        Some((_, bytes)) => Answer::ok(bytes.clone()),
        None => Answer::status(404),
    }
}

#[tokio::test]
async fn a_token_is_requested_from_the_registrys_token_server() {
    let test = TestStore::new();
    let tokens = Scripted::start(|_| Answer::ok(r#"{"access_token": "t0ken"}"#)).await;
    let layout = layout();
    let realm = format!(r#"Bearer realm="http://{}/token?a=b",service="me""#, tokens.host);
    let registry = Scripted::start(move |request| match request.header("authorization") {
        Some("Bearer t0ken") => serve(&layout, request),
        _ => Answer { headers: vec![("www-authenticate", realm.clone())], ..Answer::status(401) },
    })
    .await;
    pull(&test, &format!("{}/a/b:1", registry.host), &[user("secret")]).await.unwrap();
    let token_requests = tokens.requests();
    assert_eq!(token_requests.len(), 1, "one token is enough for a pull");
    assert_eq!(token_requests[0].path, "/token?a=b&scope=repository%3Aa%2Fb%3Apull&service=me");
    let basic = base64::engine::general_purpose::STANDARD.encode("user:secret");
    assert_eq!(token_requests[0].header("authorization"), Some(format!("Basic {basic}").as_str()));
}

#[tokio::test]
async fn a_given_token_is_used_directly() {
    let test = TestStore::new();
    let layout = layout();
    let registry = Scripted::start(move |request| match request.header("authorization") {
        Some("Bearer given") => serve(&layout, request),
        _ => Answer::status(403),
    })
    .await;
    let given =
        Credentials { username: String::new(), password: String::new(), token: "given".into() };
    pull(&test, &format!("{}/a/b:1", registry.host), &[given]).await.unwrap();
}

#[tokio::test]
async fn a_mirror_does_not_get_the_registrys_credentials() {
    let test = TestStore::new();
    let basic = vec![("www-authenticate", "Basic realm=x".to_owned())];
    let mirror =
        Scripted::start(move |_| Answer { headers: basic.clone(), ..Answer::status(401) }).await;
    let layout = layout();
    let registry = Scripted::start(move |request| serve(&layout, request)).await;
    let mirrors = json!({"mirrors": {&registry.host: [format!("http://{}", mirror.host)]}});
    std::fs::write(test.path().join("store/registries.json"), mirrors.to_string()).unwrap();
    pull(&test, &format!("{}/a/b:1", registry.host), &[user("secret")]).await.unwrap();
    assert!(!mirror.requests().is_empty());
    assert!(mirror.requests().iter().all(|request| request.header("authorization").is_none()));
}

#[tokio::test]
async fn an_interrupted_download_is_resumed() {
    let test = TestStore::new();
    let layout = layout();
    let big = layout.blobs.iter().map(|(_, bytes)| bytes).max_by_key(|bytes| bytes.len()).unwrap();
    let big = digest(big);
    let times = AtomicUsize::new(0);
    let big_blob = big.clone();
    let registry = Scripted::start(move |request| {
        let mut answer = serve(&layout, request);
        if request.path.ends_with(&big_blob) {
            if let Some(range) = request.header("range") {
                let from: usize =
                    range.strip_prefix("bytes=").unwrap().trim_end_matches('-').parse().unwrap();
                let all = answer.body.len();
                answer.body.drain(..from);
                answer.status = 206;
                answer.headers.push(("content-range", format!("bytes {from}-{}/{all}", all - 1)));
            }
            if times.fetch_add(1, Ordering::SeqCst) < 2 {
                answer.cut = Some(answer.body.len() / 2);
            }
        }
        answer
    })
    .await;
    pull(&test, &format!("{}/a/b:1", registry.host), &[]).await.unwrap();
    let requests = registry.requests();
    let ranges: Vec<_> =
        requests.iter().filter(|a| a.path.ends_with(&big)).map(|a| a.header("range")).collect();
    assert_eq!(ranges.len(), 3);
    assert!(ranges[0].is_none() && ranges[1].is_some() && ranges[2].is_some(), "{ranges:?}");
    let downloads = test.path().join("store/downloads").read_dir().unwrap().count();
    assert_eq!(downloads, 0);
}

#[tokio::test]
async fn a_corrupt_partial_download_is_discarded() {
    let test = TestStore::new();
    let plain = Layer::new().file("a", &"x".repeat(5000)).build();
    let mut layout = Layout::default();
    let manifest = layout.manifest(&[(plain.clone(), plain.clone())], json!({}));
    layout.index.push(manifest);
    let name = digest(&plain).replace(':', "-");
    let half = test.path().join("store/downloads").join(format!("{name}.{name}"));
    std::fs::write(&half, vec![b'?'; 1000]).unwrap();
    let registry = Registry::start(test.path(), &Options::default());
    registry.push("a/b", "1", &layout).await;
    pull(&test, &format!("{}/a/b:1", registry.host), &[]).await.unwrap();
    assert!(!half.exists());
}

#[tokio::test]
async fn invalid_answers_of_a_registry_are_rejected() {
    type Fault = fn(&Layout, &RecordedRequest, Answer) -> Answer;
    let faults: [(&str, &str, Fault); 5] = [
        ("an endless manifest", "longer than", |_, request, mut answer| {
            if request.path.contains("/manifests/1") {
                answer.body.extend(vec![b' '; 9 << 20]);
            }
            answer
        }),
        ("another manifest", "does not match its digest", |_, request, mut answer| {
            if request.path.contains("/manifests/sha256:") {
                answer.body.push(b' ');
            }
            answer
        }),
        ("another layer", "checksum", |layout, request, mut answer| {
            if request.path.ends_with(&layout.blobs[1].0) {
                let last = answer.body.len() - 1;
                answer.body[last] ^= 1;
            }
            answer
        }),
        ("a longer layer", "longer than its manifest says", |layout, request, mut answer| {
            if request.path.ends_with(&layout.blobs[1].0) {
                answer.body.push(0);
            }
            answer
        }),
        ("no manifest at all", "cannot parse the manifest", |_, request, answer| {
            if request.path.contains("/manifests/1") { Answer::ok("<html>") } else { answer }
        }),
    ];
    for (name, words, fault) in faults {
        let test = TestStore::new();
        let layout = layout();
        let registry =
            Scripted::start(move |request| fault(&layout, request, serve(&layout, request))).await;
        let error = pull(&test, &format!("{}/a/b:1", registry.host), &[]).await.expect_err(name);
        assert!(matches!(error, Error::Pull(_)), "{name}: {error:?}");
        assert!(error.to_string().contains(words), "{name}: {error}");
        assert!(test.store.list().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn parallel_pulls_of_an_image_download_its_layers_once() {
    let test = TestStore::new();
    let layout = layout();
    let blobs = layout.blobs.clone();
    let registry = Scripted::start(move |request| serve(&layout, request)).await;
    let name = format!("{}/a/b:1", registry.host);
    let pulls = (0..6).map(|_| pull(&test, &name, &[]));
    for image in futures::future::join_all(pulls).await {
        image.unwrap();
    }
    for (layer, _) in &blobs[1..3] {
        let requests = registry.requests();
        let times =
            requests.iter().filter(|request| request.path.contains(&format!("/blobs/{layer}")));
        assert_eq!(times.count(), 1, "{layer}");
    }
}
