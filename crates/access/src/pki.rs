//! The cluster's keys and certificates: created at the first start, stored in files, renewed in time.
//!
//!     <dir>/pki/ca.crt ca.key            signs the certificates below
//!     <dir>/pki/serving.crt serving.key  the API server's certificate
//!     <dir>/pki/admin.crt admin.key      kubernetes-admin in system:masters
//!     <dir>/pki/sa.key                   signs service-account tokens
//!     <dir>/admin.token                  the administrator's bearer token
//!
//! Serving and admin certificates are replaced when they are old or do not match the configuration: no client
//! notices. The CA and `sa.key`, which clients rely on, are never replaced silently: a damaged file is an error that
//! says what to do. [`Pki::renew`] does the same while the server runs, without a restart (`tls`).

mod authority;
mod certificate_order;
mod files;
mod node_client;
mod subject;

pub use authority::Identity;
pub use certificate_order::CertificateOrder;
pub use files::{make_private_dir, write_secret};

use arc_swap::ArcSwap;
use authority::{Authority, Purpose};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::ServerConfig;
use rustls::time_provider::TimeProvider;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tls::RenewableCertificate;

pub const ADMIN: &str = "kubernetes-admin";

/// The file of the administrator's token, in the data directory.
const ADMIN_TOKEN: &str = "admin.token";

const DAY: Duration = Duration::from_secs(24 * 3600);
const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Certificates are renewed when less than this is left, at the start and while the server runs.
const LEAF_RENEWAL: Duration = Duration::from_secs(60 * 24 * 3600);

/// Names by which clients reach the API server, besides the configured ones.
const NAMES: &[&str] = &[
    "localhost",
    "127.0.0.1",
    "::1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} is damaged ({why}); {advice}", path.display())]
    Damaged { path: PathBuf, why: String, advice: &'static str },
    #[error("cannot create a certificate: {0}")]
    Certificate(String),
}

const START_OVER: &str = "restore it from a backup, or delete the whole pki directory to start over \
                          with a new identity: every existing kubeconfig and token stops working";
const CREATED_AGAIN: &str = "delete it; the next start creates a new one";

pub struct Pki {
    /// The directory of the files.
    dir: PathBuf,
    /// Names and addresses by which clients reach the API server.
    names: ArcSwap<BTreeSet<String>>,
    authority: Authority,
    leaves: ArcSwap<Leaves>,
    /// Held while certificates are renewed.
    renewal: Mutex<()>,
    /// The API server's own certificate.
    serving: Arc<RenewableCertificate>,
    /// The certificate with which it calls nodes.
    node_client: Arc<RenewableCertificate>,
    service_account_key: String,
    admin_token: ArcSwap<String>,
}

impl Pki {
    /// Loads the files in `dir`; creates what is missing and renews what is old. `sans` are further names and
    /// addresses by which clients reach the API server, such as the address of the Service `kubernetes`.
    pub fn load_or_create(dir: &Path, sans: &[String]) -> Result<Pki, Error> {
        let pki = dir.join("pki");
        files::private_dir(&pki).map_err(|source| Error::File {
            doing: "create",
            path: pki.clone(),
            source,
        })?;
        let authority = Authority::load_or_create(&pki)?;
        let names = serving_names(sans);
        let leaves = Leaves::load_or_issue(&authority, &pki, &names)?;
        let node_client = node_client::issue(&authority)?;
        Ok(Pki {
            names: ArcSwap::from_pointee(names),
            serving: RenewableCertificate::new(
                &chain(&leaves.serving, &authority),
                &leaves.serving.key,
            )?,
            node_client: RenewableCertificate::new(&node_client.certificate, &node_client.key)?,
            authority,
            leaves: ArcSwap::from_pointee(leaves),
            renewal: Mutex::default(),
            service_account_key: service_account_key(&pki.join("sa.key"))?,
            admin_token: ArcSwap::from_pointee(admin_token(&dir.join(ADMIN_TOKEN))?),
            dir: pki,
        })
    }

    /// Adds an address by which clients reach the API server: the serving certificate is replaced if it does not have it.
    pub fn add_address(&self, address: IpAddr) -> Result<(), Error> {
        let address = address.to_string();
        self.names.rcu(|names| {
            let mut names = BTreeSet::clone(names);
            names.insert(address.clone());
            names
        });
        self.renew().map(drop)
    }

    /// Renews certificates that are old and uses the new ones from now on. Returns whether the kubeconfig changed.
    pub fn renew(&self) -> Result<bool, Error> {
        let _one_at_a_time = self.renewal.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = self.leaves.load();
        let leaves = Leaves::load_or_issue(&self.authority, &self.dir, &self.names.load())?;
        if leaves.serving.certificate != before.serving.certificate {
            self.serving.replace(&chain(&leaves.serving, &self.authority), &leaves.serving.key)?;
        }
        if self.node_client.validity().is_none_or(is_old) {
            let renewed = node_client::issue(&self.authority)?;
            self.node_client.replace(&renewed.certificate, &renewed.key)?;
        }
        let changed = leaves.admin.certificate != before.admin.certificate;
        self.leaves.store(Arc::new(leaves));
        Ok(changed)
    }

    /// TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1. Client certificates of our CA are accepted, but not required.
    pub fn server_config(&self) -> Result<ServerConfig, Error> {
        self.server_config_by(Arc::new(tls::Clock))
    }

    fn server_config_by(&self, clock: Arc<dyn TimeProvider>) -> Result<ServerConfig, Error> {
        let alpn = ["h2", "http/1.1"];
        Ok(tls::server_config_by(clock, self.serving.clone(), self.authority.pem(), &alpn)?)
    }

    /// The administrator's kubeconfig, with embedded certificates.
    pub fn kubeconfig(&self, server: &str) -> String {
        self.kubeconfig_for(server, ADMIN, &self.admin())
    }

    /// A kubeconfig for another user, such as a component or a node.
    pub fn kubeconfig_for(&self, server: &str, user: &str, identity: &Identity) -> String {
        let data = |text: &str| BASE64_STANDARD.encode(text);
        // A JSON string is a YAML string: names with special characters stay names.
        let quote = |text: &str| serde_json::Value::from(text).to_string();
        let context = quote(&format!("{user}@landfall"));
        format!(
            "apiVersion: v1\nkind: Config\npreferences: {{}}\n\
             clusters:\n- name: landfall\n  cluster:\n    server: {}\n    \
             certificate-authority-data: {}\n\
             users:\n- name: {}\n  user:\n    client-certificate-data: {}\n    \
             client-key-data: {}\n\
             contexts:\n- name: {context}\n  context:\n    cluster: landfall\n    user: {}\n\
             current-context: {context}\n",
            quote(server),
            data(self.ca_certificate()),
            quote(user),
            data(&identity.certificate),
            data(&identity.key),
            quote(user),
        )
    }

    /// A client certificate: `name` becomes the user, `groups` its groups.
    pub fn issue_client(
        &self,
        name: &str,
        groups: &[&str],
        lifetime: Duration,
    ) -> Result<Identity, Error> {
        self.authority.issue(&Purpose::client(name, groups), lifetime)
    }

    /// A node's serving certificate for these names and addresses, and its client certificate as the user
    /// `system:node:<name>`.
    pub fn sign_node(
        &self,
        name: &str,
        addresses: &[String],
    ) -> Result<(Identity, Identity), Error> {
        let user = format!("system:node:{name}");
        let names = addresses
            .iter()
            .map(String::as_str)
            .chain([name])
            .filter(|name| is_dns_name(name) || name.parse::<IpAddr>().is_ok())
            .map(str::to_owned)
            .collect();
        let serving = Purpose::Serving { subject: user.clone(), names };
        let serving = self.authority.issue(&serving, LEAF_LIFETIME)?;
        let client = self.issue_client(&user, &["system:nodes"], LEAF_LIFETIME)?;
        Ok((serving, client))
    }

    /// The CA certificate in PEM, for `kube-root-ca.crt` and kubeconfigs.
    pub fn ca_certificate(&self) -> &str {
        self.authority.pem()
    }

    /// In PKCS#8 PEM, for [`crate::authn::ServiceAccountTokens`].
    pub fn service_account_key(&self) -> &str {
        &self.service_account_key
    }

    /// The bearer token of user [`ADMIN`] in group `system:masters`.
    pub fn admin_token(&self) -> Arc<String> {
        self.admin_token.load_full()
    }

    /// Creates and stores a new token. The caller has to replace it in the authenticator.
    pub fn replace_admin_token(&self) -> Result<Arc<String>, Error> {
        let dir = self.dir.parent().unwrap_or(&self.dir);
        let token = Arc::new(new_admin_token(&dir.join(ADMIN_TOKEN))?);
        self.admin_token.store(token.clone());
        Ok(token)
    }

    /// Names and addresses by which clients reach this server. No node may get a certificate for them.
    pub fn names(&self) -> Arc<BTreeSet<String>> {
        self.names.load_full()
    }

    pub fn admin(&self) -> Identity {
        self.leaves.load().admin.clone()
    }
}

/// Certificates that are replaced when they are old.
struct Leaves {
    serving: Identity,
    admin: Identity,
}

impl Leaves {
    fn load_or_issue(
        authority: &Authority,
        dir: &Path,
        names: &BTreeSet<String>,
    ) -> Result<Leaves, Error> {
        let subject = "kube-apiserver".to_owned();
        let serving = Purpose::Serving { subject, names: names.clone() };
        let admin = Purpose::client(ADMIN, &[crate::authn::MASTERS]);
        Ok(Leaves {
            serving: authority.load_or_issue(dir, "serving", &serving)?,
            admin: authority.load_or_issue(dir, "admin", &admin)?,
        })
    }
}

/// With the CA certificate: a joining node knows only its fingerprint, and finds the certificate here.
fn chain(serving: &Identity, authority: &Authority) -> String {
    format!("{}{}", serving.certificate, authority.pem())
}

fn is_old(life: tls::Validity) -> bool {
    Duration::try_from(life.until.duration_since(clock::now()))
        .is_ok_and(|left| left < LEAF_RENEWAL)
        || life.has_ended(clock::now())
}

impl From<tls::Error> for Error {
    fn from(error: tls::Error) -> Error {
        Error::Certificate(error.to_string())
    }
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").finish_non_exhaustive()
    }
}

fn serving_names(given: &[String]) -> BTreeSet<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    NAMES
        .iter()
        .map(|&name| name.to_owned())
        .chain(given.iter().cloned())
        .chain([host.trim().to_lowercase()])
        .filter(|name| is_dns_name(name) || name.parse::<IpAddr>().is_ok())
        .collect()
}

fn is_dns_name(name: &str) -> bool {
    let letters = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(letters)
}

fn service_account_key(path: &Path) -> Result<String, Error> {
    let file = |doing| move |source| Error::File { doing, path: path.to_owned(), source };
    if let Some(pem) = files::read_secret(path).map_err(file("read"))? {
        return match crate::authn::jwt::SigningKey::from_pem(&pem) {
            Ok(_) => Ok(pem),
            Err(why) => Err(Error::Damaged {
                path: path.to_owned(),
                why: why.to_string(),
                advice: "restore it from a backup, or delete it: the next start creates a new \
                         key, and existing service account tokens stop working",
            }),
        };
    }
    let pem = authority::new_key()?.serialize_pem();
    write_secret(path, pem.as_bytes()).map_err(file("write"))?;
    Ok(pem)
}

/// A shorter token could be guessed.
const TOKEN_MIN: usize = 20;

fn admin_token(path: &Path) -> Result<String, Error> {
    let file = |doing| move |source| Error::File { doing, path: path.to_owned(), source };
    if let Some(token) = files::read_secret(path).map_err(file("read"))? {
        let token = token.trim();
        let valid = token.len() >= TOKEN_MIN && token.bytes().all(|byte| byte.is_ascii_graphic());
        return match valid {
            true => Ok(token.to_owned()),
            false => Err(Error::Damaged {
                path: path.to_owned(),
                why: format!("expected one line of at least {TOKEN_MIN} printable characters"),
                advice: CREATED_AGAIN,
            }),
        };
    }
    new_admin_token(path)
}

/// Replaces the administrator's token of a server that does not run.
pub fn rotate_admin_token(data_dir: &Path) -> Result<(), Error> {
    new_admin_token(&data_dir.join(ADMIN_TOKEN)).map(drop)
}

fn new_admin_token(path: &Path) -> Result<String, Error> {
    let file = |doing| move |source| Error::File { doing, path: path.to_owned(), source };
    // Hexadecimal, so that it never looks like an option on a command line.
    let token: String =
        clock::random_bytes::<32>().iter().map(|byte| format!("{byte:02x}")).collect();
    write_secret(path, format!("{token}\n").as_bytes()).map_err(file("write"))?;
    Ok(token)
}

#[cfg(test)]
mod tests;
