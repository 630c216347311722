//! `landfall token create`: a token with which nodes join, and the command that uses it.
//! `landfall token rotate`: a new token for the administrator.

use crate::command::TokenCommand;
use crate::control::{self, Request};
use crate::{block_on, data_dir, install_tls};
use anyhow::Context;
use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::{Endpoints, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use tokio::sync::mpsc;

/// How long nodes can join with a token.
const LIFETIME: jiff::SignedDuration = jiff::SignedDuration::from_hours(24);
/// The characters of bootstrap tokens, as upstream defines them.
const CHARACTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

pub(crate) fn run(command: &TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create { data_dir } => {
            install_tls()?;
            block_on(create(data_dir))
        }
        TokenCommand::Rotate { data_dir } => block_on(rotate(data_dir)),
    }
}

/// A running landfall replaces the token itself and accepts only the new one from then on. If none is
/// running, the file is replaced.
async fn rotate(data_dir: &Path) -> anyhow::Result<()> {
    data_dir::must_have_cluster(data_dir)?;
    let (_never_hurry, hurry) = mpsc::channel(1);
    let rotated = control::send(Request::RotateToken, data_dir, hurry, |line| println!("{line}"));
    let token = data_dir.join("admin.token");
    match rotated.await? {
        Some(()) => println!(
            "Replaced the administrator's token; the running landfall accepts only the new one, in {}",
            token.display()
        ),
        None => {
            server::rotate_admin_token(data_dir)?;
            println!(
                "Replaced the administrator's token; the next start accepts only the new one, in {}",
                token.display()
            );
        }
    }
    eprintln!(
        "{} stays valid: it contains a certificate, not this token.",
        data_dir.join("kubeconfig").display()
    );
    Ok(())
}

async fn create(data_dir: &Path) -> anyhow::Result<()> {
    data_dir::must_have_cluster(data_dir)?;
    let client = Client::from_kubeconfig(data_dir.join("kubeconfig")).await?;
    let (id, secret) = (random_text::<6>(), random_text::<16>());
    client
        .create(&bootstrap_secret(&id, &secret))
        .await
        .context("cannot create the token; is landfall running?")?;
    let ca = CertificateDer::from_pem_file(data_dir.join("pki/ca.crt"))
        .context("cannot read the cluster's certificate")?;
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
    eprintln!("The token is valid for 24 hours. Keep it secret: anyone who has it can add nodes.");
    Ok(())
}

/// The address that the server announces; the kubeconfig may name one that only this machine reaches.
async fn server(client: &Client) -> anyhow::Result<SocketAddr> {
    let key = ObjectKey::new("default", "kubernetes");
    let endpoints = client.get::<Endpoints>(&key).await?;
    let subset = endpoints.subsets.into_iter().flatten().next().unwrap_or_default();
    let ip = subset.addresses.and_then(|list| list.first()?.ip.parse::<IpAddr>().ok());
    let port = subset.ports.and_then(|list| u16::try_from(list.first()?.port).ok());
    let address = ip.zip(port).context("the API server announces no address")?;
    Ok(SocketAddr::from(address))
}

fn bootstrap_secret(id: &str, secret: &str) -> Secret {
    let expires = clock::now() + LIFETIME;
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

fn random_text<const N: usize>() -> String {
    let bytes: [u8; N] = clock::random_bytes();
    bytes.iter().map(|byte| char::from(CHARACTERS[usize::from(*byte) % CHARACTERS.len()])).collect()
}
