//! The environment of a container: service variables, envFrom, env (N-52 to N-58).
//!
//! What must be read from the API is collected first ([`Sources::read`]); making the variables out of
//! it is a plain function.

use super::identity::namespace;
use super::{ConfigError, NodeFacts, Objects, PodContainer, downward, env_file, expansion};
use crate::volumes::{Mounted, beneath};
use k8s_openapi::api::core::v1::{
    ConfigMap, EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, Pod, Secret, Service,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Names of variables in files, and their values, are not longer than this.
const FILE_KEY_MAX: usize = 128;
const FILE_VALUE_MAX: usize = 32 * 1024;

pub(crate) type Variables = BTreeMap<String, String>;

/// The objects that the environment is made of. None: there is no such object.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    pub(crate) secrets: BTreeMap<String, Option<Arc<Secret>>>,
    pub(crate) services: Vec<Arc<Service>>,
}

/// What else is known when the container is made.
pub(crate) struct Surroundings<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) facts: &'a NodeFacts,
    pub(crate) pod_ips: &'a [IpAddr],
    pub(crate) volumes: &'a Mounted,
}

impl Sources {
    pub(crate) async fn read(
        pod: &Pod,
        container: &PodContainer<'_>,
        objects: &Objects,
    ) -> Result<Sources, ConfigError> {
        let mut sources = Sources::default();
        match objects.services(namespace(pod)) {
            Some(services) => sources.services = services,
            None if is_static(pod) => {}
            None => {
                return Err(ConfigError::new(
                    "services have not yet been read at least once, cannot construct envvars",
                ));
            }
        }
        for (kind, name) in references(container) {
            match kind {
                "configmap" => {
                    let found = objects.config_map(namespace(pod), name).await;
                    sources.config_maps.insert(name.into(), found.map_err(ConfigError::new)?);
                }
                _ => {
                    let found = objects.secret(namespace(pod), name).await;
                    sources.secrets.insert(name.into(), found.map_err(ConfigError::new)?);
                }
            }
        }
        Ok(sources)
    }

    fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        self.config_maps.get(name)?.as_deref()
    }

    fn secret(&self, name: &str) -> Option<&Secret> {
        self.secrets.get(name)?.as_deref()
    }
}

/// From a file or URL: nobody waits for the API to start it.
fn is_static(pod: &Pod) -> bool {
    let source =
        pod.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/config.source"));
    source.is_some_and(|source| source != "api")
}

/// The ConfigMaps and Secrets that a container's environment names, by kind and name.
pub(crate) fn references<'a>(
    container: &'a PodContainer<'_>,
) -> impl Iterator<Item = (&'static str, &'a str)> {
    let whole = container.env_from.iter().flatten().flat_map(|from| {
        let config_map = from.config_map_ref.as_ref().map(|it| ("configmap", it.name.as_str()));
        let secret = from.secret_ref.as_ref().map(|it| ("secret", it.name.as_str()));
        config_map.into_iter().chain(secret)
    });
    let keys = container.env.iter().flatten().filter_map(|env| env.value_from.as_ref());
    let keys = keys.flat_map(|from| {
        let config_map = from.config_map_key_ref.as_ref().map(|it| ("configmap", it.name.as_str()));
        let secret = from.secret_key_ref.as_ref().map(|it| ("secret", it.name.as_str()));
        config_map.into_iter().chain(secret)
    });
    whole.chain(keys).filter(|(_, name)| !name.is_empty())
}

/// All variables of a container, each name once (N-52).
pub(crate) fn variables(
    container: &PodContainer<'_>,
    sources: &Sources,
    around: &Surroundings<'_>,
) -> Result<Variables, ConfigError> {
    let services = super::service_env::variables(around.pod, &sources.services);
    let mut variables = Variables::new();
    for from in container.env_from.iter().flatten() {
        add_all(&mut variables, from, sources)?;
    }
    for env in container.env.iter().flatten() {
        let known = |name: &str| variables.get(name).or_else(|| services.get(name)).cloned();
        if let Some(value) = value(env, known, container, sources, around)? {
            variables.insert(env.name.clone(), value);
        }
    }
    for (name, value) in services {
        variables.entry(name).or_insert(value);
    }
    Ok(variables)
}

/// Every key of an object, with a prefix (N-53).
fn add_all(
    variables: &mut Variables,
    from: &EnvFromSource,
    sources: &Sources,
) -> Result<(), ConfigError> {
    let prefix = from.prefix.as_deref().unwrap_or_default();
    if let Some(reference) = &from.config_map_ref {
        match sources.config_map(&reference.name) {
            Some(found) => {
                for (key, value) in found.data.iter().flatten() {
                    variables.insert(format!("{prefix}{key}"), value.clone());
                }
            }
            None if reference.optional == Some(true) => {}
            None => return Err(not_found("configmap", &reference.name)),
        }
    }
    if let Some(reference) = &from.secret_ref {
        match sources.secret(&reference.name) {
            Some(found) => {
                for (key, value) in found.data.iter().flatten() {
                    variables.insert(format!("{prefix}{key}"), text(&value.0));
                }
            }
            None if reference.optional == Some(true) => {}
            None => return Err(not_found("secret", &reference.name)),
        }
    }
    Ok(())
}

/// None: the variable is not set (N-54).
fn value(
    env: &EnvVar,
    known: impl FnMut(&str) -> Option<String>,
    container: &PodContainer<'_>,
    sources: &Sources,
    around: &Surroundings<'_>,
) -> Result<Option<String>, ConfigError> {
    let literal = env.value.as_deref().unwrap_or_default();
    match &env.value_from {
        Some(from) if literal.is_empty() => value_from(from, container, sources, around),
        _ => Ok(Some(expansion::expand(literal, known))),
    }
}

fn value_from(
    from: &EnvVarSource,
    container: &PodContainer<'_>,
    sources: &Sources,
    around: &Surroundings<'_>,
) -> Result<Option<String>, ConfigError> {
    let pod = around.pod;
    if let Some(field) = &from.field_ref {
        let value = downward::runtime_field(pod, &field.field_path, around.facts, around.pod_ips);
        return value.map(Some).map_err(ConfigError::new);
    }
    if let Some(resource) = &from.resource_field_ref {
        let value = downward::resource(pod, Some(&container.name), resource, around.facts);
        return value.map(Some).map_err(ConfigError::new);
    }
    if let Some(reference) = &from.config_map_key_ref {
        let optional = reference.optional == Some(true);
        let Some(found) = sources.config_map(&reference.name) else {
            return absent(optional, not_found("configmap", &reference.name));
        };
        return match found.data.as_ref().and_then(|data| data.get(&reference.key)) {
            Some(value) => Ok(Some(value.clone())),
            None => absent(optional, no_key(pod, "ConfigMap", &reference.name, &reference.key)),
        };
    }
    if let Some(reference) = &from.secret_key_ref {
        let optional = reference.optional == Some(true);
        let Some(found) = sources.secret(&reference.name) else {
            return absent(optional, not_found("secret", &reference.name));
        };
        return match found.data.as_ref().and_then(|data| data.get(&reference.key)) {
            Some(value) => Ok(Some(text(&value.0))),
            None => absent(optional, no_key(pod, "Secret", &reference.name, &reference.key)),
        };
    }
    match &from.file_key_ref {
        Some(reference) => from_file(reference, around.volumes),
        None => Ok(Some(String::new())),
    }
}

/// A key of a file that another container wrote into a volume.
fn from_file(
    reference: &FileKeySelector,
    volumes: &Mounted,
) -> Result<Option<String>, ConfigError> {
    let FileKeySelector { key, path, volume_name, .. } = reference;
    let optional = reference.optional == Some(true);
    let Some(volume) = volumes.volumes.get(volume_name) else {
        return Err(ConfigError::new(format!(
            "cannot find the volume {volume_name:?} referenced by FileKeyRef"
        )));
    };
    if key.len() > FILE_KEY_MAX {
        return Err(ConfigError::new(format!(
            "environment variable key {key:?} exceeds maximum length of {FILE_KEY_MAX} characters"
        )));
    }
    let missing =
        || ConfigError::new(format!("environment variable key {key:?} not found in file {path:?}"));
    let file = match beneath::read(&volume.path, path, env_file::FILE_MAX) {
        Ok(file) => String::from_utf8(file).ok(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return absent(optional, missing());
        }
        Err(_) => None,
    };
    let parsed = file.and_then(|text| env_file::value(&text, key).ok());
    // What a container wrote is not repeated in the pod's status.
    let parsed = parsed.ok_or_else(|| ConfigError::new("couldn't parse env file"))?;
    match parsed.filter(|value| !value.is_empty()) {
        Some(value) if value.len() > FILE_VALUE_MAX => Err(ConfigError::new(format!(
            "environment variable value for key {key:?} exceeds maximum size of 32KB"
        ))),
        Some(value) => Ok(Some(value)),
        None => absent(optional, missing()),
    }
}

fn absent(optional: bool, error: ConfigError) -> Result<Option<String>, ConfigError> {
    if optional { Ok(None) } else { Err(error) }
}

fn not_found(kind: &str, name: &str) -> ConfigError {
    ConfigError::new(format!("{kind} {name:?} not found"))
}

fn no_key(pod: &Pod, kind: &str, name: &str, key: &str) -> ConfigError {
    ConfigError::new(format!("couldn't find key {key} in {kind} {}/{name}", namespace(pod)))
}

/// Variables are text; what is not is shown as such.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::containers;
    use crate::volumes::MountedVolume;
    use serde_json::{Value, json};

    fn sources() -> Sources {
        let config_map = json!({ "data": { "k": "from map", "ODD.name-1": "odd" },
            "binaryData": { "bin": "AAAA" } });
        let secret = json!({ "data": { "k": "ZnJvbSBzZWNyZXQ=", "pass": "aHVudGVyMg==" } });
        let service = json!({ "metadata": { "namespace": "ns", "name": "db" },
            "spec": { "clusterIP": "10.0.0.9", "ports": [{ "port": 1 }] } });
        Sources {
            config_maps: BTreeMap::from([
                ("cm".into(), Some(Arc::new(typed::from_value(config_map).unwrap()))),
                ("gone".into(), None),
            ]),
            secrets: BTreeMap::from([(
                "s".into(),
                Some(Arc::new(typed::from_value(secret).unwrap())),
            )]),
            services: vec![Arc::new(typed::from_value(service).unwrap())],
        }
    }

    fn made(container: Value, volumes: &Mounted) -> Result<Variables, String> {
        let mut container = container;
        container["name"] = "c".into();
        let pod: Pod = typed::from_value(json!({
            "metadata": { "namespace": "ns", "name": "p" }, "spec": { "containers": [container] },
        }))
        .unwrap();
        let facts = NodeFacts::new("n", "/tmp");
        let ips = ["10.1.2.3".parse().unwrap()];
        let around = Surroundings { pod: &pod, facts: &facts, pod_ips: &ips, volumes };
        variables(&containers(&pod)[0], &sources(), &around).map_err(|error| error.message)
    }

    fn check(container: Value, wanted: &[(&str, &str)]) {
        let made = made(container.clone(), &Mounted::default()).unwrap();
        let made: Vec<_> = made.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let services = made.iter().filter(|(name, _)| name.starts_with("DB_")).count();
        assert_eq!(made.len() - services, wanted.len(), "{container}: {made:?}");
        wanted.iter().for_each(|pair| assert!(made.contains(pair), "{container}: {made:?}"));
    }

    /// N-52
    #[test]
    fn later_entries_win_and_may_refer_to_earlier_ones() {
        check(
            json!({ "env": [
                { "name": "LATE", "value": "$(B)" },
                { "name": "A", "value": "1" },
                { "name": "B", "value": "$(A)2 $$(A) $(NONE)" },
                { "name": "A", "value": "again" },
                { "name": "SVC", "value": "$(DB_SERVICE_HOST)" },
                { "name": "EMPTY", "value": "" },
            ] }),
            &[
                ("LATE", "$(B)"),
                ("A", "again"),
                ("B", "12 $(A) $(NONE)"),
                ("SVC", "10.0.0.9"),
                ("EMPTY", ""),
            ],
        );
    }

    /// N-52
    #[test]
    fn a_services_variable_is_lowest() {
        let env = json!({ "env": [{ "name": "DB_SERVICE_HOST", "value": "mine" }] });
        let made = made(env, &Mounted::default()).unwrap();
        assert_eq!(made["DB_SERVICE_HOST"], "mine");
        assert_eq!(made["DB_SERVICE_PORT"], "1");
    }

    /// N-52, N-53
    #[test]
    fn env_from_takes_every_key_and_the_last_wins() {
        check(
            json!({ "envFrom": [
                { "configMapRef": { "name": "cm" } },
                { "secretRef": { "name": "s" } },
                { "prefix": "P_", "configMapRef": { "name": "cm" } },
                { "configMapRef": { "name": "gone", "optional": true } },
            ], "env": [{ "name": "pass", "value": "[$(P_k)]" }] }),
            &[
                ("k", "from secret"),
                ("ODD.name-1", "odd"),
                ("pass", "[from map]"),
                ("P_k", "from map"),
                ("P_ODD.name-1", "odd"),
            ],
        );
    }

    /// N-54, N-55, N-56
    #[test]
    fn values_come_from_everywhere() {
        let from = |name: &str, kind: &str, what: Value| json!({ "name": name, "valueFrom": { kind: what } });
        check(
            json!({ "env": [
                from("M", "configMapKeyRef", json!({ "name": "cm", "key": "k" })),
                from("S", "secretKeyRef", json!({ "name": "s", "key": "pass" })),
                from("F", "fieldRef", json!({ "fieldPath": "status.podIP" })),
                from("R", "resourceFieldRef", json!({ "resource": "requests.cpu" })),
                from("O1", "configMapKeyRef", json!({ "name": "cm", "key": "no", "optional": true })),
                from("O2", "secretKeyRef", json!({ "name": "no", "key": "no", "optional": true })),
            ] }),
            &[("M", "from map"), ("S", "hunter2"), ("F", "10.1.2.3"), ("R", "0")],
        );
    }

    /// N-54: the texts of CreateContainerConfigError.
    #[test]
    fn what_is_missing_is_named() {
        let from = |kind: &str, what: Value| json!({ "env": [{ "name": "X", "valueFrom": { kind: what } }] });
        for (container, wanted) in [
            (
                from("configMapKeyRef", json!({ "name": "gone", "key": "k" })),
                "configmap \"gone\" not found",
            ),
            (from("secretKeyRef", json!({ "name": "no", "key": "k" })), "secret \"no\" not found"),
            (
                from("configMapKeyRef", json!({ "name": "cm", "key": "K" })),
                "couldn't find key K in ConfigMap ns/cm",
            ),
            (
                from("secretKeyRef", json!({ "name": "s", "key": "K" })),
                "couldn't find key K in Secret ns/s",
            ),
            (
                json!({ "envFrom": [{ "configMapRef": { "name": "gone" } }] }),
                "configmap \"gone\" not found",
            ),
            (json!({ "envFrom": [{ "secretRef": { "name": "no" } }] }), "secret \"no\" not found"),
            (
                from("fileKeyRef", json!({ "volumeName": "v", "path": "f", "key": "k" })),
                "cannot find the volume \"v\" referenced by FileKeyRef",
            ),
        ] {
            let made = made(container.clone(), &Mounted::default());
            assert_eq!(made, Err(wanted.to_owned()), "{container}");
        }
    }

    /// N-54
    #[test]
    fn a_variable_is_read_from_a_file_in_a_volume() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("vars"), "TOKEN='abc'\n").unwrap();
        std::fs::write(folder.path().join("broken"), "TOKEN=abc\n").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("hostile")).unwrap();
        let volume = MountedVolume::writable(folder.path());
        let volumes = Mounted { volumes: BTreeMap::from([("v".into(), volume)]) };
        let from = |path: &str, key: &str, optional: bool| {
            let reference =
                json!({ "volumeName": "v", "path": path, "key": key, "optional": optional });
            let env = json!({ "env": [{ "name": "X", "valueFrom": { "fileKeyRef": reference } }] });
            made(env, &volumes).map(|made| made.get("X").cloned())
        };
        assert_eq!(from("vars", "TOKEN", false), Ok(Some("abc".into())));
        let missing = "environment variable key \"NO\" not found in file \"vars\"";
        assert_eq!(from("vars", "NO", false), Err(missing.into()));
        assert_eq!(from("vars", "NO", true), Ok(None));
        assert_eq!(from("nowhere", "TOKEN", true), Ok(None));
        assert_eq!(from("broken", "TOKEN", true), Err("couldn't parse env file".into()));
        assert_eq!(from("hostile", "TOKEN", true), Err("couldn't parse env file".into()));
    }
}
