//! Finds the credentials for an image in pull secrets and in the node's configuration (N-174, N-175).

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use k8s_openapi::api::core::v1::Secret;
use runtime::Credentials;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The name of Docker Hub that `docker login` uses.
const HUB_KEY: &str = "index.docker.io";

/// Credentials and their origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) credentials: Credentials,
    pub(super) from: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Secret {
        uid: String,
        namespace: String,
        name: String,
    },
    /// The node's configuration, for all pods.
    Node,
}

/// Logins by `host[:port][/path]`.
#[derive(Default)]
pub(super) struct Keyring {
    logins: BTreeMap<String, Vec<Login>>,
}

/// One entry of a docker configuration.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    /// `user:password` in base64; takes precedence over the other two.
    auth: String,
}

#[derive(serde::Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

impl Keyring {
    /// Ignores secrets of other types.
    pub(super) fn from_secrets(secrets: &[Arc<Secret>]) -> Result<Keyring, String> {
        let mut keyring = Keyring::default();
        for secret in secrets {
            let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
            let entries = match secret.type_.as_deref() {
                Some("kubernetes.io/dockerconfigjson") => {
                    let Some(bytes) = data(".dockerconfigjson") else { continue };
                    serde_json::from_slice::<Config>(&bytes.0).map(|config| config.auths)
                }
                Some("kubernetes.io/dockercfg") => {
                    let Some(bytes) = data(".dockercfg") else { continue };
                    serde_json::from_slice(&bytes.0)
                }
                _ => continue,
            };
            let text = |part: &Option<String>| part.clone().unwrap_or_default();
            let meta = &secret.metadata;
            let (uid, namespace, name) = (text(&meta.uid), text(&meta.namespace), text(&meta.name));
            let failed = |why: &dyn std::fmt::Display| {
                format!("secret {namespace}/{name} cannot be read: {why}")
            };
            let entries = entries.map_err(|error| failed(&error))?;
            let from = Origin::Secret { uid, namespace: namespace.clone(), name: name.clone() };
            keyring.add(entries, &from).map_err(|why| failed(&why))?;
        }
        Ok(keyring)
    }

    pub(super) fn from_node(config: &[u8]) -> Result<Keyring, String> {
        let config: Config = serde_json::from_slice(config).map_err(|error| error.to_string())?;
        let mut keyring = Keyring::default();
        keyring.add(config.auths, &Origin::Node)?;
        Ok(keyring)
    }

    fn add(&mut self, entries: BTreeMap<String, Entry>, from: &Origin) -> Result<(), String> {
        for (registry, entry) in entries {
            let credentials = credentials(entry)?;
            let login = Login { credentials, from: from.clone() };
            self.logins.entry(key(&registry)).or_default().push(login);
        }
        Ok(())
    }

    /// All logins for a full repository name, the most specific first.
    pub(super) fn lookup(&self, repository: &str) -> Vec<Login> {
        let matching = self.logins.iter().rev().filter(|(key, _)| matches(key, repository));
        let found: Vec<Login> = matching.flat_map(|(_, logins)| logins.iter().cloned()).collect();
        if found.is_empty() && repository.starts_with("docker.io/") {
            return self.logins.get(HUB_KEY).cloned().unwrap_or_default();
        }
        found
    }
}

fn credentials(entry: Entry) -> Result<Credentials, String> {
    let (username, password) = if entry.auth.is_empty() {
        (entry.username, entry.password)
    } else {
        // Some tools write padding, others do not.
        let lenient =
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let decoded = GeneralPurpose::new(&STANDARD, lenient).decode(entry.auth.trim());
        let text = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = text.as_deref().and_then(|text| text.split_once(':'));
        let (username, password) = pair.ok_or("an auth field is not user:password in base64")?;
        (username.to_owned(), password.to_owned())
    };
    Ok(Credentials { username, password, token: String::new() })
}

/// Removes scheme and API version.
fn key(registry: &str) -> String {
    let bare = registry.strip_prefix("https://").or_else(|| registry.strip_prefix("http://"));
    let bare = bare.unwrap_or(registry);
    let (host, path) = bare.find('/').map_or((bare, ""), |at| bare.split_at(at));
    let path = match path.get(..4) {
        Some("/v1/" | "/v2/") => &path[3..],
        _ => path,
    };
    if path == "/" { host.to_owned() } else { format!("{host}{path}") }
}

/// The host must match label by label (`*.example.com`), the port exactly, the path as a prefix.
fn matches(key: &str, repository: &str) -> bool {
    let split = |text: &str| {
        let (host, path) = text.find('/').map_or((text, ""), |at| text.split_at(at));
        let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
        (name.to_owned(), port.to_owned(), path.to_owned())
    };
    let (pattern, port, path) = split(key);
    let (name, image_port, image_path) = split(repository);
    let labels: Vec<&str> = pattern.split('.').collect();
    let image_labels: Vec<&str> = name.split('.').collect();
    port == image_port
        && labels.len() == image_labels.len()
        && image_path.starts_with(&path)
        && labels
            .iter()
            .zip(&image_labels)
            .all(|(pattern, label)| glob(pattern.as_bytes(), label.as_bytes()))
}

/// `*` matches any number of characters, `?` one.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=text.len()).any(|taken| glob(rest, &text[taken..])),
        (Some((b'?', rest)), Some((_, text))) => glob(rest, text),
        (Some((expected, rest)), Some((found, text))) => expected == found && glob(rest, text),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub(in crate::images) fn secret(name: &str, auths: serde_json::Value) -> Arc<Secret> {
        let config = json!({ "auths": auths }).to_string();
        let data = base64::engine::general_purpose::STANDARD.encode(config);
        let secret = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": format!("uid-{name}") },
            "type": "kubernetes.io/dockerconfigjson",
            "data": { ".dockerconfigjson": data },
        });
        Arc::new(typed::from_value(secret).unwrap())
    }

    fn users(auths: serde_json::Value, repository: &str) -> Vec<String> {
        let keyring = Keyring::from_secrets(&[secret("s", auths)]).unwrap();
        let logins = keyring.lookup(repository);
        logins.into_iter().map(|login| login.credentials.username).collect()
    }

    fn user(name: &str) -> serde_json::Value {
        json!({ "username": name, "password": "p" })
    }

    #[test]
    fn n_175_keys_match_by_host_port_and_path() {
        for (key, repository, matches) in [
            ("r.example", "r.example/a", true),
            ("https://r.example", "r.example/a", true),
            ("http://r.example/v1/", "r.example/a", true),
            ("r.example/v2/", "r.example/a", true),
            ("r.example/", "r.example/a", true),
            ("r.example:5000", "r.example/a", false),
            ("r.example:5000", "r.example:5000/a", true),
            ("r.example/a", "r.example/a/b", true),
            ("r.example/a", "r.example/ab", true),
            ("r.example/b", "r.example/a", false),
            ("*.example", "r.example/a", true),
            ("*.example", "a.r.example/a", false),
            ("*.*.example", "a.r.example/a", true),
            ("r?.ex*le", "r1.example/a", true),
            ("*.example:80", "r.example/a", false),
            ("docker.io", "docker.io/library/busybox", true),
            ("https://index.docker.io/v1/", "docker.io/library/busybox", true),
            ("https://index.docker.io/v1/", "r.example/a", false),
        ] {
            let found = users(json!({ key: user("u") }), repository);
            assert_eq!(!found.is_empty(), matches, "{key} for {repository}");
        }
    }

    #[test]
    fn n_175_more_specific_keys_come_first_and_all_are_tried() {
        let auths = json!({
            "*.example": user("any"), "r.example": user("host"), "r.example/a": user("path"),
            "r.example/other": user("other"),
        });
        assert_eq!(users(auths, "r.example/a/b"), ["path", "host", "any"]);
        // The old key of Docker Hub is used only if no other matches.
        let hub = json!({ "index.docker.io": user("old"), "docker.io/me": user("new") });
        assert_eq!(users(hub.clone(), "docker.io/me/app"), ["new"]);
        assert_eq!(users(hub, "docker.io/library/x"), ["old"]);
    }

    #[test]
    fn both_kinds_from_secrets_and_both_ways_to_write_passwords_are_read_n_174() {
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let unpadded = encode("u:p:w").trim_end_matches('=').to_owned();
        let one = secret("one", json!({ "r.example": { "auth": unpadded, "username": "not me" } }));
        let old = json!({ "r.example": user("old") }).to_string();
        let old = json!({
            "metadata": { "name": "old", "namespace": "ns", "uid": "2" },
            "type": "kubernetes.io/dockercfg",
            "data": { ".dockercfg": encode(&old) },
        });
        let opaque = json!({ "metadata": { "name": "x" }, "type": "Opaque", "data": { "a": "" } });
        let secrets = [
            one,
            Arc::new(typed::from_value(old).unwrap()),
            Arc::new(typed::from_value(opaque).unwrap()),
        ];
        let logins = Keyring::from_secrets(&secrets).unwrap().lookup("r.example/a");
        assert_eq!(logins.len(), 2);
        assert_eq!(logins[0].credentials.username, "u");
        assert_eq!(logins[0].credentials.password, "p:w");
        assert_eq!(logins[1].credentials.username, "old");
        let bad = secret("bad", json!({ "r.example": { "auth": "?" } }));
        assert!(Keyring::from_secrets(&[bad]).is_err_and(|why| why.contains("ns/bad")));
    }
}
