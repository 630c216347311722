//! The environment of a container: service variables, envFrom, env (N-52 to N-58).
//!
//! [`Sources::read`] collects the objects from the API first; building the variables is a pure function.

use crate::identity::namespace;
use crate::{ConfigError, NodeFacts, Objects, PodContainer, downward, env_file, expansion};
use crate::{MountedVolumes, beneath};
use k8s_openapi::api::core::v1::{
    ConfigMap, EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, Pod, Secret, Service,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Limits of variables that are read from files.
const FILE_KEY_MAX: usize = 128;
const FILE_VALUE_MAX: usize = 32 * 1024;

pub(crate) type Variables = BTreeMap<String, String>;

/// The objects that the environment refers to. None means that there is no such object.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    pub(crate) secrets: BTreeMap<String, Option<Arc<Secret>>>,
    pub(crate) services: Vec<Arc<Service>>,
}

/// What else the values of variables depend on.
pub(crate) struct Context<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) facts: &'a NodeFacts,
    pub(crate) pod_ips: &'a [IpAddr],
    pub(crate) volumes: &'a MountedVolumes,
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

/// A static pod must start even if the API server does not answer.
fn is_static(pod: &Pod) -> bool {
    let source =
        pod.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/config.source"));
    source.is_some_and(|source| source != "api")
}

/// The ConfigMaps and Secrets that a container's environment refers to, as kind and name.
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
    context: &Context<'_>,
) -> Result<Variables, ConfigError> {
    let services = crate::service_env::variables(context.pod, &sources.services);
    let mut variables = Variables::new();
    for from in container.env_from.iter().flatten() {
        add_all(&mut variables, from, sources)?;
    }
    for env in container.env.iter().flatten() {
        let known = |name: &str| variables.get(name).or_else(|| services.get(name)).cloned();
        if let Some(value) = value(env, known, container, sources, context)? {
            variables.insert(env.name.clone(), value);
        }
    }
    for (name, value) in services {
        variables.entry(name).or_insert(value);
    }
    Ok(variables)
}

/// Adds every key of an object, with a prefix (N-53).
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

/// None means that the variable is not set (N-54).
fn value(
    env: &EnvVar,
    known: impl FnMut(&str) -> Option<String>,
    container: &PodContainer<'_>,
    sources: &Sources,
    context: &Context<'_>,
) -> Result<Option<String>, ConfigError> {
    let literal = env.value.as_deref().unwrap_or_default();
    match &env.value_from {
        Some(from) if literal.is_empty() => value_from(from, container, sources, context),
        _ => Ok(Some(expansion::expand(literal, known))),
    }
}

fn value_from(
    from: &EnvVarSource,
    container: &PodContainer<'_>,
    sources: &Sources,
    context: &Context<'_>,
) -> Result<Option<String>, ConfigError> {
    let pod = context.pod;
    if let Some(field) = &from.field_ref {
        let value = downward::runtime_field(pod, &field.field_path, context.facts, context.pod_ips);
        return value.map(Some).map_err(ConfigError::new);
    }
    if let Some(resource) = &from.resource_field_ref {
        let value = downward::resource(pod, Some(&container.name), resource, context.facts);
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
        Some(reference) => from_file(reference, context.volumes),
        None => Ok(Some(String::new())),
    }
}

/// A key of a file that another container wrote into a volume.
fn from_file(
    reference: &FileKeySelector,
    volumes: &MountedVolumes,
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
    // The message must not repeat what a container wrote: it ends up in the pod's status.
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

/// Variables are text: invalid UTF-8 becomes replacement characters.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountedVolume;
    use crate::containers;
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

    fn build(mut container: Value, volumes: &MountedVolumes) -> Result<Variables, String> {
        container["name"] = "c".into();
        let pod: Pod = typed::from_value(json!({
            "metadata": { "namespace": "ns", "name": "p" }, "spec": { "containers": [container] },
        }))
        .unwrap();
        let facts = NodeFacts::new("n", "/tmp");
        let ips = ["10.1.2.3".parse().unwrap()];
        let context = Context { pod: &pod, facts: &facts, pod_ips: &ips, volumes };
        variables(&containers(&pod)[0], &sources(), &context).map_err(|error| error.message)
    }

    fn check(container: Value, expected: &[(&str, &str)]) {
        let built = build(container.clone(), &MountedVolumes::default()).unwrap();
        let built: Vec<_> = built.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let services = built.iter().filter(|(name, _)| name.starts_with("DB_")).count();
        assert_eq!(built.len() - services, expected.len(), "{container}: {built:?}");
        expected.iter().for_each(|pair| assert!(built.contains(pair), "{container}: {built:?}"));
    }

    #[test]
    fn n_52_later_entries_win_and_may_refer_to_earlier_ones() {
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

    #[test]
    fn n_52_service_variables_have_the_lowest_precedence() {
        let env = json!({ "env": [{ "name": "DB_SERVICE_HOST", "value": "mine" }] });
        let built = build(env, &MountedVolumes::default()).unwrap();
        assert_eq!(built["DB_SERVICE_HOST"], "mine");
        assert_eq!(built["DB_SERVICE_PORT"], "1");
    }

    #[test]
    fn n_52_n_53_env_from_adds_every_key_and_the_last_source_wins() {
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

    /// Keys of objects (N-54), fields (N-55) and resources (N-56).
    #[test]
    fn values_come_from_objects_fields_and_resources() {
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

    /// N-54: the messages of CreateContainerConfigError.
    #[test]
    fn the_error_names_what_is_missing() {
        let from = |kind: &str, what: Value| json!({ "env": [{ "name": "X", "valueFrom": { kind: what } }] });
        for (container, expected) in [
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
            let built = build(container.clone(), &MountedVolumes::default());
            assert_eq!(built, Err(expected.to_owned()), "{container}");
        }
    }

    #[test]
    fn n_54_a_variable_is_read_from_a_file_in_a_volume() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("vars"), "TOKEN='abc'\n").unwrap();
        std::fs::write(folder.path().join("broken"), "TOKEN=abc\n").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("hostile")).unwrap();
        let volume = MountedVolume::writable(folder.path());
        let volumes = MountedVolumes { volumes: BTreeMap::from([("v".into(), volume)]) };
        let from = |path: &str, key: &str, optional: bool| {
            let reference =
                json!({ "volumeName": "v", "path": path, "key": key, "optional": optional });
            let env = json!({ "env": [{ "name": "X", "valueFrom": { "fileKeyRef": reference } }] });
            build(env, &volumes).map(|built| built.get("X").cloned())
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
