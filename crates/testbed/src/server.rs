//! An API server for one test: an empty data directory, a free port, and clients of it.
//!
//! Clients are in-process unless a test asks for HTTPS. Not here: controllers, a scheduler and nodes, which tests
//! start themselves if they need them.

use client::Client;
use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::json;
use server::authn::User;
use server::{AuditConfig, Config, Running, ServiceRanges, StoreChoice};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A running API server. Its data is removed when this is dropped.
pub struct TestServer {
    pub running: Running,
    options: Options,
    data_dir: TempDir,
}

/// What differs between the servers of tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The server creates the `default` service account of every namespace and signs certificates of nodes.
    pub controllers: bool,
    /// The server logs all requests to [`TestServer::audit_log`].
    pub audit: bool,
    /// The ranges of cluster IPs.
    pub service_ranges: ServiceRanges,
}

impl Options {
    /// A server whose cluster IPs are of these ranges, which are written as in `--service-cidr`.
    pub fn with_service_ranges(text: &str) -> Options {
        let service_ranges = ServiceRanges::from_option(text).expect("valid ranges");
        Options { service_ranges, ..Options::default() }
    }
}

impl TestServer {
    /// A server without the objects that controllers create.
    pub async fn start() -> TestServer {
        TestServer::with(Options::default()).await
    }

    /// A server that creates the `default` service account of every namespace.
    pub async fn with_controllers() -> TestServer {
        TestServer::with(Options { controllers: true, ..Options::default() }).await
    }

    /// A server in whose namespace `default` pods can be created, although no controllers run.
    pub async fn with_service_account() -> TestServer {
        TestServer::with_service_account_and(Options::default()).await
    }

    /// The same, with other options.
    pub async fn with_service_account_and(options: Options) -> TestServer {
        let server = TestServer::with(options).await;
        let account = json!({ "metadata": { "namespace": "default", "name": "default" } });
        let account: ServiceAccount = typed::from_value(account).expect("a valid service account");
        server.admin().create(&account).await.expect("the service account is created");
        server
    }

    pub async fn with(options: Options) -> TestServer {
        let data_dir = tempfile::tempdir().expect("a directory for the server");
        TestServer::open(data_dir, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), options).await
    }

    async fn open(data_dir: TempDir, listen: SocketAddr, options: Options) -> TestServer {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = Config {
            data_dir: data_dir.path().into(),
            listen,
            store: StoreChoice::Embedded,
            service_ranges: options.service_ranges,
            audit_log: options.audit.then(|| AuditConfig::at(audit_log(data_dir.path()))),
            controllers: options.controllers,
        };
        let running = server::start(config).await.expect("the server starts");
        TestServer { running, options, data_dir }
    }

    /// An in-process client that may do everything.
    pub fn admin(&self) -> Client {
        self.client_of(User::authenticated("tester", &["system:masters"]))
    }

    /// An in-process client with the rights of this node's agent.
    pub fn node(&self, name: &str) -> Client {
        self.client_of(User::authenticated(format!("system:node:{name}"), &["system:nodes"]))
    }

    pub fn client_of(&self, user: User) -> Client {
        Client::in_process(self.running.server.in_process(user))
    }

    /// A client that may do everything, over HTTPS.
    pub async fn over_https(&self) -> Client {
        let client = Client::from_kubeconfig(&self.running.kubeconfig).await;
        client.expect("the kubeconfig is valid")
    }

    /// The URL, the token and the certificate of the authority that the kubeconfig of the admin names.
    pub fn credentials(&self) -> (String, String, String) {
        let config = kube::config::Kubeconfig::read_from(&self.running.kubeconfig);
        let cluster = config.expect("the kubeconfig is valid").clusters.remove(0).cluster;
        let url = cluster.and_then(|cluster| cluster.server).expect("the kubeconfig names a URL");
        let read = |name: &str| {
            let text = std::fs::read_to_string(self.data_dir().join(name));
            text.unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        (url, read("admin.token").trim().to_owned(), read("pki/ca.crt"))
    }

    pub fn data_dir(&self) -> &Path {
        self.data_dir.path()
    }

    pub fn audit_log(&self) -> PathBuf {
        audit_log(self.data_dir())
    }

    /// Stops the server, runs `meanwhile`, and starts the server again with the same data, keys and address.
    pub async fn restart(self, meanwhile: impl AsyncFnOnce()) -> TestServer {
        let options = self.options;
        self.restart_with(options, meanwhile).await
    }

    /// The same, with other options.
    pub async fn restart_with(self, options: Options, meanwhile: impl AsyncFnOnce()) -> TestServer {
        let address = self.running.address;
        self.running.stop().await;
        meanwhile().await;
        TestServer::open(self.data_dir, address, options).await
    }

    /// Returns the data directory, which the server leaves complete.
    pub async fn stop(self) -> TempDir {
        self.running.stop().await;
        self.data_dir
    }
}

/// Where a server with this data directory logs requests.
pub fn audit_log(data_dir: &Path) -> PathBuf {
    data_dir.join("audit")
}
