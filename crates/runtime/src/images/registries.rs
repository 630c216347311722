//! The configuration of registries: mirrors and trusted certificates. Determines the servers for an image.

use super::image_name::ImageName;
use crate::{Credentials, Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The registry of Docker Hub has another host name.
const HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// `registries.json` in the store's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Registries {
    /// Mirrors by host as in image names (`docker.io`, `r.example:5000`, or `*` for all). A mirror is a URL such as
    /// `https://mirror.example` or `http://10.0.0.1:5000/hub`; its path is put before the repository. Mirrors are
    /// tried in order before the host itself. A mirror never gets the host's credentials; the URL may contain its own.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Files with additional trusted certificates (PEM).
    pub ca_files: Vec<PathBuf>,
}

/// A registry or a mirror.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `https://mirror.example`
    origin: String,
    /// `hub/`, which is put before the repository.
    prefix: String,
    /// For a mirror, the registry that it mirrors.
    namespace: Option<String>,
    /// The mirror's own credentials.
    pub(crate) credentials: Option<Credentials>,
}

impl Registries {
    /// Without the file, the configuration is empty.
    pub(crate) fn read(path: &Path) -> Result<Registries> {
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::Refused(format!("cannot parse {}: {e}", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Registries::default()),
            Err(error) => Err(Error::io("read", path)(error)),
        }
    }

    /// Mirrors first, the registry itself last.
    pub(crate) fn endpoints(&self, name: &ImageName) -> Result<Vec<Endpoint>> {
        let mirrors = self.mirrors.get(&name.registry).or_else(|| self.mirrors.get("*"));
        let mut endpoints = Vec::new();
        for address in mirrors.into_iter().flatten() {
            endpoints.push(Endpoint::mirror(address, &name.registry)?);
        }
        endpoints.push(Endpoint::of(&name.registry));
        Ok(endpoints)
    }

    pub(crate) fn certificates(&self) -> Result<Vec<reqwest::Certificate>> {
        let mut all = Vec::new();
        for path in &self.ca_files {
            let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
            let read = reqwest::Certificate::from_pem_bundle(&bytes).map_err(|e| {
                Error::Refused(format!("{} contains no certificates: {e}", path.display()))
            })?;
            all.extend(read);
        }
        Ok(all)
    }
}

impl Endpoint {
    /// Uses TLS except for a registry on this machine.
    fn of(registry: &str) -> Endpoint {
        let host = if registry == HUB.0 { HUB.1 } else { registry };
        let scheme = if is_loopback(host) { "http" } else { "https" };
        Endpoint {
            origin: format!("{scheme}://{host}"),
            prefix: String::new(),
            namespace: None,
            credentials: None,
        }
    }

    fn mirror(address: &str, registry: &str) -> Result<Endpoint> {
        let wrong = || Error::Refused(format!("{address:?} is not a valid URL of a mirror"));
        let url: reqwest::Url = address.parse().map_err(|_| wrong())?;
        let host = url.host_str().filter(|_| matches!(url.scheme(), "http" | "https"));
        let host = host.ok_or_else(wrong)?;
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let path = url.path().trim_matches('/');
        let path =
            path.strip_prefix("v2").filter(|p| p.is_empty() || p.starts_with('/')).unwrap_or(path);
        let path = path.trim_matches('/');
        let credentials = (!url.username().is_empty()).then(|| Credentials {
            username: url.username().to_owned(),
            password: url.password().unwrap_or_default().to_owned(),
            token: String::new(),
        });
        Ok(Endpoint {
            origin: format!("{}://{host}{port}", url.scheme()),
            prefix: if path.is_empty() { String::new() } else { format!("{path}/") },
            namespace: Some(registry.to_owned()),
            credentials,
        })
    }

    pub(crate) fn url(&self, repository: &str, path: &str) -> String {
        let namespace = self.namespace.as_ref().map(|ns| format!("?ns={ns}")).unwrap_or_default();
        format!("{}/v2/{}{repository}/{path}{namespace}", self.origin, self.prefix)
    }

    pub(crate) fn is_mirror(&self) -> bool {
        self.namespace.is_some()
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.origin.starts_with("https://")
    }

    pub(crate) fn is_loopback(&self) -> bool {
        self.origin.split_once("://").is_some_and(|(_, host)| is_loopback(host))
    }

    pub(crate) fn host(&self) -> &str {
        self.origin.split_once("://").map_or("", |(_, host)| host)
    }
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost"
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(registries: &Registries, name: &str) -> Vec<String> {
        let name = ImageName::parse(name).unwrap();
        let endpoints = registries.endpoints(&name).unwrap();
        endpoints.iter().map(|e| e.url(&name.repository, "tags")).collect()
    }

    #[test]
    fn registries_need_tls_unless_they_are_on_this_machine() {
        let none = Registries::default();
        for (name, url) in [
            ("busybox", "https://registry-1.docker.io/v2/library/busybox/tags"),
            ("r.example:5000/a", "https://r.example:5000/v2/a/tags"),
            ("localhost:5000/a", "http://localhost:5000/v2/a/tags"),
            ("127.0.0.9/a", "http://127.0.0.9/v2/a/tags"),
            ("[::1]:5000/a", "http://[::1]:5000/v2/a/tags"),
            ("localhost.example/a", "https://localhost.example/v2/a/tags"),
        ] {
            assert_eq!(urls(&none, name), [url]);
        }
    }

    #[test]
    fn mirrors_are_tried_first_and_get_the_registry_as_parameter() {
        let text = r#"{"mirrors": {"docker.io": ["http://10.0.0.1:5000/hub", "https://u:p@m.example/v2/"]}}"#;
        let registries: Registries = serde_json::from_str(text).unwrap();
        let expected = [
            "http://10.0.0.1:5000/v2/hub/a/b/tags?ns=docker.io",
            "https://m.example/v2/a/b/tags?ns=docker.io",
            "https://registry-1.docker.io/v2/a/b/tags",
        ];
        assert_eq!(urls(&registries, "a/b"), expected);
        assert_eq!(urls(&registries, "r.example/a").len(), 1);
        let endpoints = registries.endpoints(&ImageName::parse("a/b").unwrap()).unwrap();
        assert_eq!(endpoints[1].credentials.as_ref().unwrap().username, "u");
        assert!(serde_json::from_str::<Registries>(r#"{"mirorrs": {}}"#).is_err());
        let bad = Registries {
            mirrors: [("*".to_owned(), vec!["ftp://x".to_owned()])].into(),
            ..Registries::default()
        };
        assert!(bad.endpoints(&ImageName::parse("a").unwrap()).is_err());
    }
}
