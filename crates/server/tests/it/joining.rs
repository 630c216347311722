//! Joining a node: a token, two certificate signing requests, and what the certificates allow (C-148 to C-150, C-152, A-154).

use crate::cluster::{self, Client, Cluster, PODS, pod};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use server::authn::{User, user_of_certificate};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";
const TOKEN: &str = "abcdef.0123456789abcdef";
const AUTO_APPROVE: &str = "kubeadm:node-autoapprove-bootstrap";
const JOINERS: &str = "system:bootstrappers:kubeadm:default-node-token";

/// As `openssl req -newkey rsa:2048 -subj /O=crew/O=deck/CN=ana` makes it.
const PERSON: &str = "\
-----BEGIN CERTIFICATE REQUEST-----
MIICcTCCAVkCAQAwLDENMAsGA1UECgwEY3JldzENMAsGA1UECgwEZGVjazEMMAoG
A1UEAwwDYW5hMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA0wEovr3d
F6R47CRV55n5GyACK9mdFRkEvKCL6dVqaXCBVU8nscd01MkBPcmQJAxLZRVysm2H
nSn6GfCGj47G8ND4ljYlno2rUihWGeQgROrD3PKpoh+kT5E0SQ6Ft6Oxby9cysYI
+TOg/KTOyRCm/vLYy75zcm23iFG34KU2SGyo1EGOozUKaywvnzcCrh1V1afZbNpP
sk77jtS5MN8IAfSKw5FNUZ1WfRgjUOAAKhg/W21QlMeWB5bosSmFBkeFGZptHh0x
HsS4lopl72XdcrkbHOQGmWxfI25X4ZqoT8Qi6JIgt+HMxSytndjAjUgzBk3HB/cF
nfRIpZx73QKxxwIDAQABoAAwDQYJKoZIhvcNAQELBQADggEBABLOSAQ3r4g9yhZJ
JUuHT74RqvKlmzs/b/k3BsMcMR3cThv5JiTEshMdgzZ16qkk8gyrLVk7Vp16PDGo
IeVmPv7iaii5nwgm8LdMRW0OXDrmEHbWsXK88HoB+phykbXiqRjMjYP0tul01c3P
YK1Md7P3qXJ20AmDp7vJrl0ZB1dqtBdXHqYSKyb0eoB/rO38FrDVRUV0TEnsTGgg
pWibQOyF80q9L01/zoMQM5IldJdYfhcvsWEZU87rUC6eQgjn8nBEb5k37cspV4I0
Qrvi4Rww4yFftmnJBEAWUMvW0M2y1HbqeZ2+bINjau+x1959GY8QSUaBxLLTBive
zF9eKns=
-----END CERTIFICATE REQUEST-----
";

/// The Secret that `landfall token create` makes.
async fn make_token(cluster: &Cluster, expiration: &str) {
    let secret = json!({
        "metadata": {"name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef",
            "token-secret": "0123456789abcdef",
            "expiration": expiration,
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": JOINERS,
        },
    });
    cluster.make("/api/v1/namespaces/kube-system/secrets", secret).await;
}

fn joiner(cluster: &Cluster) -> Client {
    cluster.user(User::authenticated("system:bootstrap:abcdef", &["system:bootstrappers", JOINERS]))
}

struct Wish<'a> {
    signer: &'a str,
    name: &'a str,
    group: &'a str,
    names: &'a [&'a str],
    usages: &'a [&'a str],
}

impl Wish<'_> {
    fn client(name: &str) -> Wish<'_> {
        let usages = &["digital signature", "client auth"];
        Wish { signer: NODE_CLIENT, name, group: "system:nodes", names: &[], usages }
    }

    fn serving<'a>(name: &'a str, names: &'a [&'a str]) -> Wish<'a> {
        let usages = &["digital signature", "server auth"];
        Wish { signer: NODE_SERVING, name, group: "system:nodes", names, usages }
    }

    fn object(&self, key: &KeyPair) -> Value {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, self.name);
        params.distinguished_name.push(DnType::OrganizationName, self.group);
        for name in self.names {
            params.subject_alt_names.push(match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*name).try_into().unwrap()),
            });
        }
        let pem = params.serialize_request(key).unwrap().pem().unwrap();
        json!({"metadata": {"generateName": "csr-"}, "spec": {
            "request": BASE64_STANDARD.encode(pem), "signerName": self.signer,
            "usages": self.usages}})
    }

    /// Creates the request and waits for its result.
    async fn answered(&self, who: &Client, key: &KeyPair) -> Value {
        let made = who.make(REQUESTS, self.object(key)).await;
        let place = format!("{REQUESTS}/{}", made["metadata"]["name"].as_str().unwrap());
        let answered = tokio::time::timeout(Duration::from_secs(10), async {
            loop {
                let request = who.read(&place).await;
                if request["status"]["conditions"].is_array() {
                    return request["status"].clone();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        answered.await.expect("an answer")
    }

    /// Creates the request, which is left to a person, and returns its path.
    async fn left_to_a_person(&self, cluster: &Cluster, who: &Client) -> String {
        let made = who.make(REQUESTS, self.object(&KeyPair::generate().unwrap())).await;
        let place = format!("{REQUESTS}/{}", made["metadata"]["name"].as_str().unwrap());
        is_left_to_a_person(cluster, &place).await;
        place
    }
}

/// Requests are processed in order, so after a later one is done, this one was processed.
async fn is_left_to_a_person(cluster: &Cluster, place: &str) {
    let later = Wish::client("system:node:later");
    later.answered(&joiner(cluster), &KeyPair::generate().unwrap()).await;
    assert_eq!(cluster.read(place).await["status"], json!({}));
}

fn certificate(status: &Value) -> CertificateDer<'static> {
    let pem = BASE64_STANDARD.decode(status["certificate"].as_str().expect("it is signed"));
    CertificateDer::from_pem_slice(&pem.unwrap()).unwrap()
}

/// A request as it comes over the network, with a client certificate or without; also answers the
/// chain that the server showed.
async fn over_tls(
    cluster: &Cluster,
    headers: &str,
    identity: Option<(CertificateDer<'static>, &KeyPair)>,
) -> (String, Vec<CertificateDer<'static>>) {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority(cluster)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let tcp = tokio::net::TcpStream::connect(cluster.running.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = connector.connect(name, tcp).await.unwrap();
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    let chain = chain.iter().map(|one| one.clone().into_owned()).collect();
    let review = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    let request = format!(
        "POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nHost: x\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{review}",
        review.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    (String::from_utf8(answer).unwrap(), chain)
}

fn authority(cluster: &Cluster) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(cluster.dir.path().join("pki/ca.crt")).unwrap()
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[tokio::test]
async fn c_152_a_join_token_is_valid_while_its_secret_exists() {
    let cluster = Cluster::start().await;
    make_token(&cluster, "2099-01-01T00:00:00Z").await;
    let (reply, chain) = over_tls(&cluster, &bearer(TOKEN), None).await;
    assert!(reply.starts_with("HTTP/1.1 201"), "{reply}");
    assert!(reply.contains("\"username\":\"system:bootstrap:abcdef\""), "{reply}");
    assert!(chain.contains(&authority(&cluster)), "the authority is shown for its fingerprint");
    let refused = async |token: &str| {
        let (reply, _) = over_tls(&cluster, &bearer(token), None).await;
        assert!(reply.starts_with("HTTP/1.1 401"), "{reply}");
    };
    refused("abcdef.0123456789abcdee").await;
    refused("ghijkl.0123456789abcdef").await;
    let secret = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef";
    let past = json!({"stringData": {"expiration": "2020-01-01T00:00:00Z"}});
    cluster.patch(secret, past).await.ok();
    refused(TOKEN).await;
    let future = json!({"stringData": {"expiration": "2099-01-01T00:00:00Z"}});
    cluster.patch(secret, future).await.ok();
    let (reply, _) = over_tls(&cluster, &bearer(TOKEN), None).await;
    assert!(reply.starts_with("HTTP/1.1 201"), "{reply}");
    cluster.delete(secret).await.ok();
    refused(TOKEN).await;
}

/// C-148, C-149, C-150: approval, checks and lifetime of node certificates.
#[tokio::test]
async fn c_148_a_bootstrap_token_gets_only_node_certificates() {
    let cluster = Cluster::start().await;
    let joiner = joiner(&cluster);
    assert_eq!(joiner.get("/api/v1/nodes").await.code, 403);
    assert_eq!(joiner.get("/api/v1/namespaces/kube-system/secrets").await.code, 403);
    let key = KeyPair::generate().unwrap();
    let status = Wish::client("system:node:n2").answered(&joiner, &key).await;
    let condition = &status["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("Approved"), &json!("True")));
    assert_eq!(condition["reason"], "AutoApproved");
    assert_eq!(
        condition["message"],
        "Auto approving kubelet client certificate after SubjectAccessReview."
    );
    let der = certificate(&status);
    let user = user_of_certificate(&der).unwrap();
    assert_eq!(user.name, "system:node:n2");
    assert_eq!(user.groups, ["system:nodes", "system:authenticated"]);
    let (_, leaf) = X509Certificate::from_der(&der).unwrap();
    let life = leaf.validity().not_after.timestamp() - cluster::now();
    assert!((life - (365 * 24 * 3600 - 300)).abs() < 60, "{life}");
    assert!(!leaf.is_ca());
    let (reply, _) = over_tls(&cluster, "", Some((der, &key))).await;
    assert!(reply.contains("\"username\":\"system:node:n2\""), "{reply}");
}

/// C-148: nothing is denied, so a person can still approve; what the signer refuses then fails (C-149).
#[tokio::test]
async fn c_148_requests_are_never_denied_automatically() {
    let cluster = Cluster::start().await;
    let (joiner, n2) = (joiner(&cluster), "system:node:n2");
    for wish in [
        Wish::client("kubernetes-admin"),
        Wish { group: "system:masters", ..Wish::client(n2) },
        Wish { names: &["n2"], ..Wish::client(n2) },
        Wish { usages: &["client auth", "server auth"], ..Wish::client(n2) },
    ] {
        let place = wish.left_to_a_person(&cluster, &joiner).await;
        let failed = approved_by_hand(&cluster, &place).await["conditions"][1].clone();
        assert_eq!(failed["reason"], "SignerValidationFailure", "{failed}");
    }
    let named = Wish::serving(n2, &["n2", "node.example.com"]);
    let place = named.left_to_a_person(&cluster, &cluster.node("n2")).await;
    certificate(&approved_by_hand(&cluster, &place).await);
}

#[tokio::test]
async fn c_149_a_node_gets_a_serving_certificate_for_its_own_name() {
    let cluster = Cluster::start().await;
    let (node, key) = (cluster.node("n2"), KeyPair::generate().unwrap());
    let names = ["n2", "192.0.2.2"];
    let wish = Wish::serving("system:node:n2", &names);
    let status = wish.answered(&node, &key).await;
    let der = certificate(&status);
    let (_, leaf) = X509Certificate::from_der(&der).unwrap();
    let san = leaf.subject_alternative_name().unwrap().unwrap();
    assert_eq!(san.value.general_names.len(), 2);
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.server_auth && !usage.client_auth);

    let object = json!({"metadata": {"name": "n2"}, "status": {"addresses": [
        {"type": "InternalIP", "address": "192.0.2.2"}]}});
    node.make("/api/v1/nodes", object).await;
    wish.answered(&node, &key).await["certificate"].as_str().expect("its own address");
    for foreign in ["n1", "192.0.2.1"] {
        let names = ["n2", foreign];
        Wish::serving("system:node:n2", &names).left_to_a_person(&cluster, &node).await;
    }
}

/// C-148: every kubeconfig would trust the holder of such a certificate.
#[tokio::test]
async fn c_148_a_node_cannot_get_a_certificate_of_the_api_server_or_another_node() {
    let cluster = Cluster::start().await;
    let server = cluster.running.address.ip().to_string();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_lowercase();
    let node = |name: &str, address: &str| {
        json!({"metadata": {"name": name}, "status": {"addresses": [
            {"type": "InternalIP", "address": address}]}})
    };
    let (n1, n2, bold) = (cluster.node("n1"), cluster.node("n2"), cluster.node("bold"));
    n1.make("/api/v1/nodes", node("n1", "192.0.2.1")).await;
    n2.make("/api/v1/nodes", node("n2", &server)).await;
    let mapped = format!("::ffff:{server}");
    // It says that it is where the server is, and one that is not there yet says what it likes.
    for address in [server.as_str(), &mapped, "192.0.2.1", "::ffff:192.0.2.1", "10.96.0.1"] {
        let names = [address];
        Wish::serving("system:node:n2", &names).left_to_a_person(&cluster, &n2).await;
        Wish::serving("system:node:bold", &names).left_to_a_person(&cluster, &bold).await;
    }
    for name in ["kubernetes.default.svc", "localhost", host.as_str()] {
        let user = format!("system:node:{name}");
        let names = [name];
        let wish = Wish::serving(&user, &names);
        wish.left_to_a_person(&cluster, &cluster.node(name)).await;
    }
    n2.patch("/api/v1/nodes/n2/status", node("n2", "192.0.2.1")).await.ok();
    let names = ["192.0.2.1"];
    Wish::serving("system:node:n2", &names).left_to_a_person(&cluster, &n2).await;
}

#[tokio::test]
async fn c_148_a_request_that_a_person_approves_is_signed() {
    let cluster = Cluster::start().await;
    let key = KeyPair::generate().unwrap();
    let other = Wish::client("system:node:n1").object(&key);
    // A-154: a node cannot even ask for another's.
    let refused = cluster.node("n2").post(REQUESTS, other.clone()).await;
    let why = "can only create a node CSR with CN=system:node:n2";
    assert!(refused.refused(403, "Forbidden").ends_with(why));
    let carla = cluster.user(User::authenticated("carla", &[]));
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                      "name": "system:node-bootstrapper"});
    let binding = json!({"metadata": {"name": "carla"}, "roleRef": role,
                         "subjects": [{"kind": "User", "name": "carla"}]});
    cluster.make("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    let waiting = carla.make(REQUESTS, other).await;
    let place = format!("{REQUESTS}/{}", waiting["metadata"]["name"].as_str().unwrap());
    is_left_to_a_person(&cluster, &place).await;
    certificate(&approved_by_hand(&cluster, &place).await);
}

/// C-148, C-149: a request is retried, although it does not change itself.
#[tokio::test(start_paused = true)]
async fn c_148_a_request_that_came_too_early_is_retried() {
    let cluster = Cluster::on_simulated_time().await;
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let binding = cluster.read(&format!("{bindings}/{AUTO_APPROVE}")).await;
    cluster.delete(&format!("{bindings}/{AUTO_APPROVE}")).await.ok();
    let (n2, key) = (cluster.node("n2"), KeyPair::generate().unwrap());
    let addressed = |address: &str| {
        json!({"metadata": {"name": "n2"},
               "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
    };
    n2.make("/api/v1/nodes", addressed("192.0.2.1")).await;
    let mut places = Vec::new();
    for (who, wish) in [
        (joiner(&cluster), Wish::client("system:node:n3")),
        (n2.clone(), Wish::serving("system:node:n2", &["192.0.2.2"])),
    ] {
        let made = who.make(REQUESTS, wish.object(&key)).await;
        places.push(format!("{REQUESTS}/{}", made["metadata"]["name"].as_str().unwrap()));
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    for place in &places {
        assert_eq!(cluster.read(place).await["status"], json!({}));
    }
    let again = json!({"metadata": {"name": AUTO_APPROVE}, "roleRef": binding["roleRef"],
                       "subjects": binding["subjects"]});
    cluster.make(bindings, again).await;
    n2.patch("/api/v1/nodes/n2/status", addressed("192.0.2.2")).await.ok();
    // It was looked at for a minute, in ever longer pauses: the next is as long as all before.
    tokio::time::sleep(Duration::from_secs(120)).await;
    for place in &places {
        certificate(&cluster.read(place).await["status"]);
    }
}

/// The status after a person has approved it and the signer has signed.
async fn approved_by_hand(cluster: &Cluster, place: &str) -> Value {
    let approved = json!({"status": {"conditions": [
        {"type": "Approved", "status": "True", "reason": "ByHand", "message": "I know it"}]}});
    cluster.patch(&format!("{place}/approval"), approved).await.ok();
    let signed = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            let status = cluster.read(place).await["status"].clone();
            let failed = status["conditions"].as_array().is_some_and(|all| all.len() > 1);
            if failed || !status["certificate"].is_null() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    signed.await.expect("the signer's answer")
}

/// C-149, C-150: client certificates of users.
#[tokio::test]
async fn c_149_a_user_gets_a_certificate_after_approval() {
    let cluster = Cluster::start().await;
    let request = |name: &str, usages: &[&str]| {
        json!({"metadata": {"name": name}, "spec": {
            "request": BASE64_STANDARD.encode(PERSON), "usages": usages,
            "signerName": "kubernetes.io/kube-apiserver-client", "expirationSeconds": 3600}})
    };
    cluster.make(REQUESTS, request("good", &["client auth"])).await;
    let status = approved_by_hand(&cluster, &format!("{REQUESTS}/good")).await;
    let der = certificate(&status);
    let user = user_of_certificate(&der).unwrap();
    assert_eq!(
        (user.name.as_str(), &user.groups[..2]),
        ("ana", &["crew".into(), "deck".into()][..])
    );
    let (_, leaf) = X509Certificate::from_der(&der).unwrap();
    let (start, end) = (leaf.validity().not_before, leaf.validity().not_after);
    assert_eq!(end.timestamp() - start.timestamp(), 3600 + 300);

    cluster.make(REQUESTS, request("bad", &["client auth", "server auth"])).await;
    let status = approved_by_hand(&cluster, &format!("{REQUESTS}/bad")).await;
    let failed = &status["conditions"][1];
    assert_eq!(
        (&failed["type"], &failed["reason"]),
        (&json!("Failed"), &json!("SignerValidationFailure"))
    );
    assert!(status["certificate"].is_null());
}

/// The requester must hold the key.
#[tokio::test]
async fn a_request_with_an_invalid_signature_is_never_signed() {
    let cluster = Cluster::start().await;
    let wish = Wish::client("system:node:n2");
    let mut object = wish.object(&KeyPair::generate().unwrap());
    let pem = BASE64_STANDARD.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let mut der = pem.contents;
    *der.last_mut().unwrap() ^= 1;
    let pem = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
        BASE64_STANDARD.encode(der)
    );
    object["spec"]["request"] = BASE64_STANDARD.encode(pem).into();
    let made = joiner(&cluster).make(REQUESTS, object).await;
    let place = format!("{REQUESTS}/{}", made["metadata"]["name"].as_str().unwrap());
    is_left_to_a_person(&cluster, &place).await;
    let status = approved_by_hand(&cluster, &place).await;
    assert_eq!(status["conditions"][1]["type"], "Failed");
    assert_eq!(
        status["conditions"][1]["message"],
        "the signature of the request does not match its public key"
    );
    assert!(status["certificate"].is_null());
}

/// A-154, T-API-35: NodeRestriction.
#[tokio::test]
async fn a_154_a_node_cannot_write_objects_of_other_nodes() {
    let cluster = Cluster::start().await;
    let (n1, n2) = (cluster.node("n1"), cluster.node("n2"));
    n1.make("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    n1.make(leases, json!({"metadata": {"name": "n1"}, "spec": {}})).await;
    cluster.bound(pod("p")).await;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let ready = json!({"status": {"phase": "Failed"}});
    for reply in [
        n2.patch("/api/v1/nodes/n1", label.clone()).await,
        n2.patch("/api/v1/nodes/n1/status", ready.clone()).await,
        n2.delete("/api/v1/nodes/n1").await,
        n2.patch(&format!("{leases}/n1"), label.clone()).await,
        n2.delete(&format!("{leases}/n1")).await,
        n2.post(leases, json!({"metadata": {"name": "n3"}, "spec": {}})).await,
        n2.post(
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
            json!({"metadata": {"name": "n2"}, "spec": {}}),
        )
        .await,
        n2.patch(&format!("{PODS}/p/status"), ready.clone()).await,
        n2.patch(&format!("{PODS}/p"), label.clone()).await,
        n2.delete(&format!("{PODS}/p")).await,
        n2.delete(PODS).await,
        n2.post(&format!("{PODS}/p/eviction"), json!({"metadata": {"name": "p"}})).await,
        n2.post(&format!("{PODS}/p/binding"), json!({"target": {"name": "n2"}})).await,
        n2.post("/api/v1/nodes", json!({"metadata": {"name": "n3"}})).await,
    ] {
        reply.refused(403, "Forbidden");
    }
    n1.patch(&format!("{PODS}/p/status"), json!({"status": {"phase": "Running"}})).await.ok();
}

#[tokio::test]
async fn a_154_a_node_gets_tokens_of_its_own_pods_only() {
    let cluster = Cluster::start().await;
    cluster.make("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let bound = cluster.bound(pod("p")).await;
    let place = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let token = |bound: Value| json!({"spec": {"boundObjectRef": bound}});
    let uid = &bound["metadata"]["uid"];
    let own = json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid});
    let (n1, n2) = (cluster.node("n1"), cluster.node("n2"));
    n1.post(place, token(own.clone())).await.ok();
    let reply = |why: &str| format!("serviceaccounts \"default\" is forbidden: {why}");
    let stranger = n2.post(place, token(own.clone())).await;
    let why = stranger.refused(403, "Forbidden");
    assert!(why.ends_with("no relationship found between node 'n2' and this object"), "{why}");
    // With a pod of the same account on that node it is the pod that must be its own.
    let mut other = pod("q");
    other["spec"]["nodeName"] = "n2".into();
    cluster.make(PODS, other).await;
    assert_eq!(
        n2.post(place, token(own)).await.refused(403, "Forbidden"),
        reply("node requested token bound to a pod scheduled on a different node")
    );
    assert_eq!(
        n1.post(place, json!({"spec": {}})).await.refused(403, "Forbidden"),
        reply("node requested token not bound to a pod")
    );
    let nameless = json!({"kind": "Pod", "apiVersion": "v1", "name": "p"});
    assert_eq!(
        n1.post(place, token(nameless)).await.refused(403, "Forbidden"),
        reply("node requested token with a pod binding without a uid")
    );
}

/// A-154: a token for another audience would let the node act as the pod where the pod does not.
#[tokio::test]
async fn a_154_a_node_asks_for_tokens_only_with_audiences_of_its_pods() {
    let cluster = Cluster::start().await;
    cluster.make("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let mut with_vault = pod("p");
    let source = json!({"serviceAccountToken": {"path": "token", "audience": "vault"}});
    with_vault["spec"]["volumes"] = json!([{"name": "v", "projected": {"sources": [source]}}]);
    let bound = cluster.bound(with_vault).await;
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "name": "p",
                     "uid": bound["metadata"]["uid"]});
    let node = cluster.node("n1");
    let place = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let other = "audience \"other\" not found in pod spec volume, system:node:n1 is not authorized to \
                 request tokens for this audience";
    for (audiences, refusal) in [
        (json!([]), None),
        (json!(["vault"]), None),
        (json!(["other"]), Some(other)),
        (json!(["vault", "other"]), Some("node may only request 0 or 1 audiences")),
    ] {
        let request = json!({"spec": {"audiences": audiences, "boundObjectRef": pod}});
        let answer = node.post(place, request).await;
        match refusal {
            None => drop(answer.ok()),
            Some(why) => {
                assert!(answer.refused(403, "Forbidden").ends_with(why), "{}", answer.body)
            }
        }
    }
}

/// A-154: of its Node a node sets neither owners nor a source of configuration, and of a claim only what it
/// observes.
#[tokio::test]
async fn a_154_a_node_is_refused_config_sources_owners_and_claims_beyond_their_size() {
    let cluster = Cluster::start().await;
    let node = cluster.node("n1");
    let named = json!({"metadata": {"name": "n1"}});
    let source = json!({"spec": {"configSource": {"configMap": {
        "namespace": "kube-system", "name": "c", "kubeletConfigKey": "k"}}}});
    let refused = |answer: &cluster::Reply, why: &str| {
        assert!(answer.refused(403, "Forbidden").ends_with(why), "{}", answer.body);
    };
    let with_source = api::patch::merge(&named, &source).unwrap();
    let answer = node.post("/api/v1/nodes", with_source).await;
    refused(&answer, "is not allowed to create pods with a non-nil configSource");
    node.make("/api/v1/nodes", named).await;
    let answer = node.patch("/api/v1/nodes/n1", source).await;
    refused(&answer, "is not allowed to update configSource to a new non-nil configSource");
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"});
    let owned = json!({"metadata": {"ownerReferences": [owner]}});
    let answer = node.patch("/api/v1/nodes/n1", owned).await;
    refused(&answer, "is not allowed to modify ownerReferences");

    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    cluster.make(claims, claim).await;
    let mut user = pod("p");
    user["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    cluster.bound(user).await;
    let status = format!("{claims}/c/status");
    let grown = json!({"status": {"capacity": {"storage": "1Gi"}}});
    node.patch(&status, grown).await.ok();
    for beyond in [
        json!({"status": {"phase": "Lost"}}),
        json!({"metadata": {"labels": {"a": "b"}}, "status": {"capacity": {"storage": "2Gi"}}}),
    ] {
        let answer = node.patch(&status, beyond).await;
        refused(&answer, "fields other than status.quantity and status.conditions");
    }
}

/// A-154, A-7, A-187: a node may read what pods bound to it refer to, at once, with every verb.
#[tokio::test]
async fn a_154_a_node_reads_the_secrets_of_its_own_pods_only() {
    let cluster = Cluster::start().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    for name in ["mine", "other"] {
        cluster.make(secrets, json!({"metadata": {"name": name}})).await;
    }
    let n1 = cluster.node("n1");
    let mine = format!("{secrets}/mine");
    n1.get(&mine).await.refused(403, "Forbidden");
    let mut with_secret = pod("p");
    with_secret["spec"]["nodeName"] = "n1".into();
    with_secret["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "mine"}}]);
    cluster.make(PODS, with_secret).await;
    n1.get(&mine).await.ok();
    n1.get(&format!("{secrets}?fieldSelector=metadata.name%3Dmine")).await.ok();
    // It may read all pods: policies name pods of other nodes.
    n1.get(&format!("{PODS}?fieldSelector=spec.nodeName%3Dn1")).await.ok();
    n1.get(PODS).await.ok();
    for forbidden in [format!("{secrets}/other"), secrets.to_owned(), "/api/v1/secrets".to_owned()]
    {
        n1.get(&forbidden).await.refused(403, "Forbidden");
    }
    cluster.node("n2").get(&mine).await.refused(403, "Forbidden");
    let review = |node: &str| {
        json!({"spec": {
            "user": format!("system:node:{node}"), "groups": ["system:nodes"],
            "resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "default", "name": "mine"},
        }})
    };
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    for (node, yes) in [("n1", true), ("n2", false)] {
        let reply = cluster.make(reviews, review(node)).await;
        assert_eq!(reply["status"]["allowed"], yes, "{node}");
    }
    cluster.admin().delete(&format!("{PODS}/p?gracePeriodSeconds=0")).await.ok();
    n1.get(&mine).await.refused(403, "Forbidden");
}
