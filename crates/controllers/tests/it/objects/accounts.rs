//! Token Secrets of service accounts.

use super::cluster::{Cluster, key};
use super::faulty_connection::FaultyConnection;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use controllers::Options;
use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use serde_json::{Value, json};

fn secret(name: &str, account: &str) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name,
                      "annotations": { "kubernetes.io/service-account.name": account } },
        "type": "kubernetes.io/service-account-token",
    })
}

fn text(secret: Option<&Secret>, field: &str) -> Option<String> {
    let bytes = secret?.data.as_ref()?.get(field)?;
    String::from_utf8(bytes.0.clone()).ok().filter(|text| !text.is_empty())
}

fn claims(token: &str) -> Value {
    let middle = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(middle).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn c_145_a_token_secret_is_filled_and_repaired() {
    let cluster = Cluster::start().await;
    let secrets = cluster.watch::<Secret>();
    let meta = json!({ "namespace": "default", "name": "robot" });
    let robot = cluster.create::<ServiceAccount>(json!({ "metadata": meta })).await;
    let made = cluster.create::<Secret>(secret("s", "robot")).await;
    let s = key("default", "s");
    let is_full = |secret: Option<&Secret>| {
        ["token", "ca.crt", "namespace"].iter().all(|field| text(secret, field).is_some())
    };
    secrets.when(&s, is_full).await;
    let filled = secrets.cache.get(&s).unwrap();
    let annotations = filled.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations.get("kubernetes.io/service-account.uid"), robot.metadata.uid.as_ref());
    assert_eq!(text(Some(&filled), "namespace").as_deref(), Some("default"));
    let token = text(Some(&filled), "token").unwrap();
    let claims = claims(&token);
    assert_eq!(claims["sub"], "system:serviceaccount:default:robot");
    assert_eq!(claims["kubernetes.io"]["secret"]["name"], "s");
    assert_eq!(claims["kubernetes.io"]["secret"]["uid"], json!(made.metadata.uid));
    let years = (claims["exp"].as_i64().unwrap() - clock::now().as_second()) / (365 * 24 * 3600);
    assert!(years > 100, "it practically never expires: {years} years");

    let authority: ConfigMap =
        cluster.client.get(&key("default", "kube-root-ca.crt")).await.unwrap();
    let wrong = json!({ "data": { "ca.crt": "Zm9yZ2Vk", "namespace": null, "token": null } });
    cluster.client.patch_merge::<Secret>(&s, &wrong).await.unwrap();
    let right = authority.data.unwrap()["ca.crt"].clone();
    secrets.when(&s, |now| is_full(now) && text(now, "ca.crt").as_ref() == Some(&right)).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_145_a_token_secret_is_deleted_with_its_account_and_removed_from_its_list() {
    let cluster = Cluster::start().await;
    let (secrets, accounts) = (cluster.watch::<Secret>(), cluster.watch::<ServiceAccount>());
    let meta = json!({ "namespace": "default", "name": "robot" });
    let listed = json!({ "metadata": meta, "secrets": [{ "name": "a" }, { "name": "b" }] });
    cluster.create::<ServiceAccount>(listed).await;
    for name in ["a", "b"] {
        cluster.create::<Secret>(secret(name, "robot")).await;
        secrets.when(&key("default", name), |now| text(now, "token").is_some()).await;
    }
    cluster.delete::<Secret>(&key("default", "a")).await;
    accounts
        .when(&key("default", "robot"), |now| {
            let listed = now.and_then(|now| now.secrets.clone()).unwrap_or_default();
            listed.iter().map(|one| one.name.as_deref()).collect::<Vec<_>>() == [Some("b")]
        })
        .await;
    // A Secret without an account, and one of an earlier account of the same name.
    cluster.create::<Secret>(secret("nobodys", "nobody")).await;
    let mut earlier = secret("earlier", "robot");
    earlier["metadata"]["annotations"]["kubernetes.io/service-account.uid"] = json!("another");
    cluster.create::<Secret>(earlier).await;
    for name in ["nobodys", "earlier"] {
        secrets.gone(&key("default", name)).await;
    }
    cluster.delete::<ServiceAccount>(&key("default", "robot")).await;
    secrets.gone(&key("default", "b")).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_145_a_token_secret_is_not_deleted_because_of_a_stale_cache() {
    let connection = FaultyConnection::default();
    let cluster = Cluster::through(Options::default(), |server| connection.client(server)).await;
    let secrets = cluster.watch::<Secret>();
    let robot = json!({ "metadata": { "namespace": "default", "name": "robot" } });
    cluster.create::<ServiceAccount>(robot.clone()).await;
    cluster.create::<Secret>(secret("first", "robot")).await;
    secrets.when(&key("default", "first"), |now| text(now, "token").is_some()).await;
    // The controller's cache still has the old account.
    connection.hold("serviceaccounts");
    cluster.delete::<ServiceAccount>(&key("default", "robot")).await;
    let robot: ServiceAccount = cluster.create(robot).await;
    let mut of_today = secret("s", "robot");
    of_today["metadata"]["annotations"]["kubernetes.io/service-account.uid"] =
        json!(robot.metadata.uid);
    cluster.create::<Secret>(of_today).await;
    secrets.when(&key("default", "s"), |now| text(now, "token").is_some()).await;
    // When the cache is current, the Secret of the old account is deleted, and this one stays.
    connection.release();
    secrets.gone(&key("default", "first")).await;
    assert!(secrets.cache.get(&key("default", "s")).is_some());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_145_a_deleted_secret_is_removed_from_its_account_despite_conflicts() {
    let connection = FaultyConnection::default();
    let cluster = Cluster::through(Options::default(), |server| connection.client(server)).await;
    let (secrets, accounts) = (cluster.watch::<Secret>(), cluster.watch::<ServiceAccount>());
    let meta = json!({ "namespace": "default", "name": "robot" });
    let listed = json!({ "metadata": meta, "secrets": [{ "name": "a" }] });
    cluster.create::<ServiceAccount>(listed).await;
    cluster.create::<Secret>(secret("a", "robot")).await;
    secrets.when(&key("default", "a"), |now| text(now, "token").is_some()).await;
    let path = "/api/v1/namespaces/default/serviceaccounts/robot";
    connection.fail(3, Method::PUT, path, (409, "Conflict"));
    cluster.delete::<Secret>(&key("default", "a")).await;
    let lists_none = |now: Option<&ServiceAccount>| {
        now.is_some_and(|now| now.secrets.as_ref().is_none_or(Vec::is_empty))
    };
    accounts.when(&key("default", "robot"), lists_none).await;
    assert_eq!(connection.left(), 0);
    cluster.stop().await;
}
