//! `landfall token create`: a token by which nodes join, and the command that uses it.

use crate::command::TokenCommand;
use anyhow::Context;
use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::{Endpoints, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// How long nodes can join with it.
const LIFE: jiff::SignedDuration = jiff::SignedDuration::from_hours(24);
/// The letters of tokens, as upstream has them.
const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

pub(crate) fn run(command: &TokenCommand) -> anyhow::Result<()> {
    let TokenCommand::Create { data_dir } = command;
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("the TLS library was set up twice"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime could not be started")?;
    runtime.block_on(create(data_dir))
}

async fn create(data_dir: &Path) -> anyhow::Result<()> {
    let kubeconfig = data_dir.join("kubeconfig");
    anyhow::ensure!(
        kubeconfig.is_file(),
        "there is no cluster in {}; is --data-dir right?",
        data_dir.display()
    );
    let client = Client::from_kubeconfig(&kubeconfig).await?;
    let (id, secret) = (letters::<6>(), letters::<16>());
    client
        .create(&bootstrap_secret(&id, &secret))
        .await
        .context("the token was not made; is landfall running?")?;
    let ca = CertificateDer::from_pem_file(data_dir.join("pki/ca.crt"))
        .context("the cluster's certificate cannot be read")?;
    let server = server(&client).await?;
    println!(
        "sudo landfall node --server https://{server} --token {id}.{secret}.{}",
        node::fingerprint(&ca)
    );
    if server.ip().is_loopback() {
        eprintln!(
            "Only this machine can reach {server}: for nodes elsewhere, start landfall with \
             --listen 0.0.0.0:{}",
            server.port()
        );
    }
    eprintln!("The token can be used for 24 hours. It is a secret: whoever has it can add nodes.");
    Ok(())
}

/// Where the server says it is found; its kubeconfig may name an address of this machine only.
async fn server(client: &Client) -> anyhow::Result<SocketAddr> {
    let key = ObjectKey::new("default", "kubernetes");
    let endpoints = client.get::<Endpoints>(&key).await?;
    let subset = endpoints.subsets.into_iter().flatten().next().unwrap_or_default();
    let ip = subset.addresses.and_then(|list| list.first()?.ip.parse::<IpAddr>().ok());
    let port = subset.ports.and_then(|list| u16::try_from(list.first()?.port).ok());
    let address = ip.zip(port).context("the API server does not say where it is")?;
    Ok(SocketAddr::from(address))
}

fn bootstrap_secret(id: &str, secret: &str) -> Secret {
    let expires = clock::now() + LIFE;
    let data = [
        ("token-id", id.to_owned()),
        ("token-secret", secret.to_owned()),
        ("expiration", clock::rfc3339(expires)),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("auth-extra-groups", "system:bootstrappers:kubeadm:default-node-token".to_owned()),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(format!("bootstrap-token-{id}")),
            namespace: Some("kube-system".into()),
            ..ObjectMeta::default()
        },
        type_: Some("bootstrap.kubernetes.io/token".into()),
        string_data: Some(BTreeMap::from(data.map(|(name, value)| (name.to_owned(), value)))),
        ..Secret::default()
    }
}

fn letters<const N: usize>() -> String {
    let bytes: [u8; N] = clock::random_bytes();
    bytes.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect()
}
