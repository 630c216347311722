//! Fills Secrets of type `kubernetes.io/service-account-token` for the account that they name, and deletes them when
//! the account is gone (C-145). Only users create such Secrets.
//!
//! The token comes from the TokenRequest API and is bound to the Secret: it is valid as long as the Secret exists.

use crate::start::Cluster;
use crate::workload::{annotation, name, namespace, uid};
use client::{Cache, DeleteOptions, Next, ObjectKey, Queue, run_controller};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use serde_json::json;

const WORKERS: usize = 5;
const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const ROOT_CA: &str = "kube-root-ca.crt";
const CA: &str = "ca.crt";

/// The longest lifetime that can be requested. Effectively the token expires with its Secret.
const EXPIRATION_MAX: i64 = 1 << 32;

/// Index of Secrets by `namespace/account`.
const BY_ACCOUNT: &str = "account";

struct Caches {
    secrets: Cache<Secret>,
    accounts: Cache<ServiceAccount>,
    authorities: Cache<ConfigMap>,
}

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    let caches = Caches {
        secrets: Cache::builder(&cluster.client)
            .fields(&format!("type={TYPE}"))
            .index(BY_ACCOUNT, |secret: &Secret| {
                account_of(secret).map(|key| key.to_string()).into_iter().collect()
            })
            .start(),
        accounts: Cache::start(&cluster.client),
        authorities: Cache::builder(&cluster.client)
            .fields(&format!("metadata.name={ROOT_CA}"))
            .start(),
    };
    caches.secrets.feed_keys(&queue);
    let secrets = caches.secrets.clone();
    caches.accounts.feed(&queue, move |account| {
        keys(secrets.by_index(BY_ACCOUNT, &ObjectKey::of(account).to_string()))
    });
    let secrets = caches.secrets.clone();
    caches.authorities.feed(&queue, move |map| keys(secrets.in_namespace(namespace(map))));
    caches.secrets.synced().await;
    caches.accounts.synced().await;
    caches.authorities.synced().await;
    run_controller("token-secrets", &queue, WORKERS, |key| reconcile(cluster, &caches, key)).await;
}

fn keys(secrets: Vec<std::sync::Arc<Secret>>) -> Vec<ObjectKey> {
    secrets.iter().map(|secret| ObjectKey::of(secret.as_ref())).collect()
}

fn account_of(secret: &Secret) -> Option<ObjectKey> {
    let account = annotation(secret, ACCOUNT).filter(|account| !account.is_empty())?;
    Some(ObjectKey::new(namespace(secret), account))
}

async fn reconcile(cluster: &Cluster, caches: &Caches, key: ObjectKey) -> client::Result<Next> {
    let done = match caches.secrets.get(&key) {
        Some(secret) => match fill(cluster, caches, &secret).await {
            // The watch brings the new version and queues the Secret again.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            done => done,
        },
        // No later event queues a deleted Secret again, so all errors are retried.
        None => remove_from_accounts(cluster, caches, &key).await,
    };
    done.map(|()| Next::Change)
}

async fn fill(cluster: &Cluster, caches: &Caches, secret: &Secret) -> client::Result<()> {
    let Some(account) = account_of(secret) else { return Ok(()) };
    let expected = annotation(secret, ACCOUNT_UID).filter(|expected| !expected.is_empty());
    let is_expected = |one: &ServiceAccount| expected.is_none_or(|expected| expected == uid(one));
    // The cache may lag behind a new account, so ask the server before the Secret is deleted.
    let account = match caches.accounts.get(&account).filter(|one| is_expected(one)) {
        Some(account) => Some(account.as_ref().clone()),
        None => cluster.client.find::<ServiceAccount>(&account).await?.filter(is_expected),
    };
    let Some(account) = account else {
        let only = DeleteOptions::only(secret);
        return cluster.client.delete::<Secret>(&ObjectKey::of(secret), &only).await.map(drop);
    };
    let authority = caches.authorities.get(&ObjectKey::new(namespace(secret), ROOT_CA));
    let authority = authority.and_then(|map| map.data.as_ref()?.get(CA).cloned());
    let mut filled = secret.clone();
    let data = filled.data.get_or_insert_default();
    let mut put = |field: &str, value: String| {
        data.insert(field.to_owned(), ByteString(value.into_bytes()));
    };
    put("namespace", namespace(secret).to_owned());
    if let Some(authority) = authority {
        put(CA, authority);
    }
    if !has_token(secret) {
        put("token", token(cluster, secret, &account).await?);
    }
    let annotations = filled.metadata.annotations.get_or_insert_default();
    annotations.insert(ACCOUNT_UID.to_owned(), uid(&account).to_owned());
    if filled == *secret {
        return Ok(());
    }
    cluster.client.update(&filled).await.map(drop)
}

fn has_token(secret: &Secret) -> bool {
    let token = secret.data.as_ref().and_then(|data| data.get("token"));
    token.is_some_and(|token| !token.0.is_empty())
}

async fn token(
    cluster: &Cluster,
    secret: &Secret,
    account: &ServiceAccount,
) -> client::Result<String> {
    let bound = json!({ "apiVersion": "v1", "kind": "Secret", "name": name(secret),
                        "uid": uid(secret) });
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "expirationSeconds": EXPIRATION_MAX, "boundObjectRef": bound },
    });
    let key = ObjectKey::of(account);
    let response = cluster.client.post::<ServiceAccount>(&key, "token", &request).await?;
    Ok(response["status"]["token"].as_str().unwrap_or_default().to_owned())
}

/// Removes a deleted Secret from the accounts that list it.
async fn remove_from_accounts(
    cluster: &Cluster,
    caches: &Caches,
    key: &ObjectKey,
) -> client::Result<()> {
    for account in caches.accounts.in_namespace(key.namespace()) {
        let mut after = account.as_ref().clone();
        let Some(listed) = &mut after.secrets else { continue };
        listed.retain(|one| one.name.as_deref() != Some(key.name()));
        if after == *account {
            continue;
        }
        // A new Secret of that name may exist, even of another type.
        if cluster.client.find::<Secret>(key).await?.is_none() {
            match cluster.client.update(&after).await {
                Err(error) if error.is_not_found() => (), // The account is gone.
                written => drop(written?),
            }
        }
    }
    Ok(())
}
