//! The files of configMap, secret, downwardAPI and projected volumes (N-139 to N-142).

use crate::atomic::{File, Payload};
use crate::tokens::Tokens;
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource, Secret,
    ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use podconfig::{NodeFacts, Objects};
use std::collections::BTreeMap;

const DEFAULT_MODE: i32 = 0o644;
/// Mode of a token that only its owner and group may read.
const PRIVATE_MODE: u32 = 0o600;

/// Where the files of volumes come from.
pub(crate) struct PayloadSources<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) tokens: &'a Tokens,
    pub(crate) facts: &'a NodeFacts,
}

impl PayloadSources<'_> {
    /// None if the node does not write the files of this kind of volume.
    pub(crate) async fn payload(
        &self,
        pod: &Pod,
        volume: &Volume,
    ) -> Option<Result<Payload, String>> {
        if let Some(it) = &volume.config_map {
            let keys = KeySelection::new(&it.name, &it.items, it.optional, it.default_mode);
            return Some(self.config_map(pod, keys).await);
        }
        if let Some(it) = &volume.secret {
            let name = it.secret_name.as_deref().unwrap_or_default();
            let keys = KeySelection::new(name, &it.items, it.optional, it.default_mode);
            return Some(self.secret(pod, keys).await);
        }
        if let Some(it) = &volume.downward_api {
            let items = it.items.as_deref().unwrap_or_default();
            return Some(downward(pod, items, it.default_mode, self.facts));
        }
        match &volume.projected {
            Some(it) => Some(self.projected(pod, it).await),
            None => None,
        }
    }

    async fn config_map(&self, pod: &Pod, keys: KeySelection<'_>) -> Result<Payload, String> {
        let found = self.objects.config_map(podconfig::namespace(pod), keys.name).await?;
        keys.files("configmap", found.as_deref().map(config_map_data))
    }

    async fn secret(&self, pod: &Pod, keys: KeySelection<'_>) -> Result<Payload, String> {
        let found = self.objects.secret(podconfig::namespace(pod), keys.name).await?;
        keys.files("secret", found.as_deref().map(secret_data))
    }

    /// Merges all sources; later ones win (N-141).
    async fn projected(&self, pod: &Pod, it: &ProjectedVolumeSource) -> Result<Payload, String> {
        let mut payload = Payload::new();
        let mut errors = Vec::new();
        for source in it.sources.iter().flatten() {
            match self.projection(pod, source, it.default_mode).await {
                Ok(files) => payload.extend(files),
                Err(error) => errors.push(error),
            }
        }
        match errors.as_slice() {
            [] => Ok(payload),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }

    async fn projection(
        &self,
        pod: &Pod,
        source: &VolumeProjection,
        mode: Option<i32>,
    ) -> Result<Payload, String> {
        if let Some(it) = &source.config_map {
            return self
                .config_map(pod, KeySelection::new(&it.name, &it.items, it.optional, mode))
                .await;
        }
        if let Some(it) = &source.secret {
            return self
                .secret(pod, KeySelection::new(&it.name, &it.items, it.optional, mode))
                .await;
        }
        if let Some(it) = &source.downward_api {
            return downward(pod, it.items.as_deref().unwrap_or_default(), mode, self.facts);
        }
        if let Some(it) = &source.service_account_token {
            return self.token(pod, it, mode).await;
        }
        if source.cluster_trust_bundle.is_some() {
            return Err("ClusterTrustBundle projection is not supported in this node".into());
        }
        Err("unsupported projected volume source".into())
    }

    async fn token(
        &self,
        pod: &Pod,
        it: &ServiceAccountTokenProjection,
        mode: Option<i32>,
    ) -> Result<Payload, String> {
        let token = self.tokens.get(pod, it.audience.as_deref(), it.expiration_seconds).await;
        let data = token.map_err(|error| format!("failed to fetch token: {error}"))?.into_bytes();
        let owner = shared_user(pod);
        let has_group = fs_group(pod).is_some();
        let mode = match owner.is_some() || has_group {
            true => PRIVATE_MODE,
            false => file_mode(None, mode),
        };
        Ok(BTreeMap::from([(it.path.clone(), File { data, mode, owner })]))
    }
}

pub(crate) fn fs_group(pod: &Pod) -> Option<u32> {
    let context = pod.spec.as_ref()?.security_context.as_ref()?;
    u32::try_from(context.fs_group?).ok()
}

/// The user that all containers run as, if it is the same for all (N-142).
fn shared_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec.as_ref()?.security_context.as_ref().and_then(|it| it.run_as_user);
    let containers = podconfig::containers(pod);
    let mut users = containers.iter().map(|container| {
        let own = container.security_context.as_ref().and_then(|it| it.run_as_user);
        own.or(of_pod)
    });
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok()).flatten()
}

type Data<'a> = BTreeMap<&'a str, &'a [u8]>;

fn config_map_data(object: &ConfigMap) -> Data<'_> {
    let text = object.data.iter().flatten().map(|(key, value)| (key, value.as_bytes()));
    let binary = object.binary_data.iter().flatten().map(|(key, value)| (key, value.0.as_slice()));
    text.chain(binary).map(|(key, value)| (key.as_str(), value)).collect()
}

fn secret_data(object: &Secret) -> Data<'_> {
    let data = object.data.iter().flatten();
    data.map(|(key, value)| (key.as_str(), value.0.as_slice())).collect()
}

/// Which keys of a ConfigMap or a Secret become files of a volume.
struct KeySelection<'a> {
    name: &'a str,
    /// Empty means every key, with its name as path.
    items: &'a [KeyToPath],
    optional: bool,
    mode: Option<i32>,
}

impl<'a> KeySelection<'a> {
    fn new(
        name: &'a str,
        items: &'a Option<Vec<KeyToPath>>,
        optional: Option<bool>,
        mode: Option<i32>,
    ) -> KeySelection<'a> {
        let items = items.as_deref().unwrap_or_default();
        KeySelection { name, items, optional: optional == Some(true), mode }
    }

    /// `kind` is for messages; `data` is None if there is no such object.
    fn files(&self, kind: &str, data: Option<Data<'_>>) -> Result<Payload, String> {
        let data = match data {
            Some(data) => data,
            None if self.optional => return Ok(Payload::new()),
            None => return Err(format!("{kind} {:?} not found", self.name)),
        };
        let file = |data: &[u8], own: Option<i32>| File {
            data: data.to_owned(),
            mode: file_mode(own, self.mode),
            owner: None,
        };
        if self.items.is_empty() {
            let whole = data.into_iter();
            return Ok(whole.map(|(key, value)| (key.to_owned(), file(value, None))).collect());
        }
        let mut payload = Payload::new();
        for item in self.items {
            match data.get(item.key.as_str()) {
                Some(value) => drop(payload.insert(item.path.clone(), file(value, item.mode))),
                None if self.optional => {}
                None if kind == "secret" => {
                    return Err(format!("references non-existent secret key: {}", item.key));
                }
                None => {
                    let key = &item.key;
                    return Err(format!("{kind} references non-existent config key: {key}"));
                }
            }
        }
        Ok(payload)
    }
}

fn downward(
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    mode: Option<i32>,
    facts: &NodeFacts,
) -> Result<Payload, String> {
    let mut payload = Payload::new();
    for item in items {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => podconfig::field(pod, &field.field_path)?,
            (_, Some(resource)) => podconfig::resource(pod, None, resource, facts)?,
            (None, None) => String::new(),
        };
        let file = File { data: text.into(), mode: file_mode(item.mode, mode), owner: None };
        payload.insert(item.path.clone(), file);
    }
    Ok(payload)
}

fn file_mode(own: Option<i32>, default: Option<i32>) -> u32 {
    u32::try_from(own.or(default).unwrap_or(DEFAULT_MODE)).unwrap_or(0o644) & 0o777
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn shown(payload: &Payload) -> Vec<String> {
        let file = |(path, file): (&String, &File)| {
            format!("{path} {:o} {}", file.mode, String::from_utf8_lossy(&file.data))
        };
        payload.iter().map(file).collect()
    }

    fn items(items: Value) -> Option<Vec<KeyToPath>> {
        serde_json::from_value(items).unwrap()
    }

    #[test]
    fn n_139_every_key_becomes_a_file_and_items_select_and_rename_keys() {
        let map: ConfigMap = typed::from_value(json!({
            "data": { "a": "1", "b": "2" }, "binaryData": { "c": "Mw==" },
        }))
        .unwrap();
        let of_map =
            |keys: KeySelection<'_>| keys.files("configmap", Some(config_map_data(&map))).unwrap();
        let all = of_map(KeySelection::new("m", &None, None, None));
        assert_eq!(shown(&all), ["a 644 1", "b 644 2", "c 644 3"]);
        let some = items(
            json!([{ "key": "c", "path": "x/y", "mode": 0o400 }, { "key": "a", "path": "z" }]),
        );
        let some = of_map(KeySelection::new("m", &some, None, Some(0o440)));
        assert_eq!(shown(&some), ["x/y 400 3", "z 440 1"]);
    }

    #[test]
    fn n_139_a_listed_key_must_exist_unless_the_source_is_optional() {
        let none = items(json!([{ "key": "k", "path": "k" }]));
        let (empty, strict) = (Some(Data::new()), KeySelection::new("o", &none, None, None));
        let map = strict.files("configmap", empty.clone());
        assert_eq!(map.unwrap_err(), "configmap references non-existent config key: k");
        let secret = strict.files("secret", empty.clone());
        assert_eq!(secret.unwrap_err(), "references non-existent secret key: k");
        assert_eq!(strict.files("secret", None).unwrap_err(), "secret \"o\" not found");
        let lenient = KeySelection::new("o", &none, Some(true), None);
        assert!(lenient.files("secret", empty).unwrap().is_empty());
        assert!(lenient.files("configmap", None).unwrap().is_empty());
    }

    #[test]
    fn n_142_a_user_is_shared_only_if_all_containers_have_it() {
        let pod = |of_pod: Value, users: &[Value]| -> Pod {
            let containers: Vec<Value> = users
                .iter()
                .map(|user| json!({ "name": "c", "securityContext": { "runAsUser": user } }))
                .collect();
            let spec =
                json!({ "securityContext": { "runAsUser": of_pod }, "containers": containers });
            typed::from_value(json!({ "spec": spec })).unwrap()
        };
        let no = json!(null);
        assert_eq!(shared_user(&pod(no.clone(), std::slice::from_ref(&no))), None);
        assert_eq!(shared_user(&pod(json!(7), std::slice::from_ref(&no))), Some(7));
        assert_eq!(shared_user(&pod(json!(7), &[no.clone(), json!(8)])), None);
        assert_eq!(shared_user(&pod(json!(7), &[json!(8), json!(8)])), Some(8));
        assert_eq!(shared_user(&pod(no.clone(), &[json!(8), no])), None);
    }

    #[test]
    fn n_55_n_56_downward_api_files_contain_fields_and_resources_of_the_pod() {
        let pod: Pod = typed::from_value(json!({
            "metadata": { "name": "p", "labels": { "a": "1" } },
            "spec": { "containers": [{ "name": "c", "resources": { "limits": { "cpu": "1250m" } } }] },
        }))
        .unwrap();
        let items: Vec<DownwardAPIVolumeFile> = serde_json::from_value(json!([
            { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
            { "path": "cpu", "mode": 0o400, "resourceFieldRef": { "containerName": "c", "resource": "limits.cpu" } },
        ]))
        .unwrap();
        let payload = downward(&pod, &items, None, &NodeFacts::new("n", "/tmp")).unwrap();
        assert_eq!(shown(&payload), ["cpu 400 2", "labels 644 a=\"1\""]);
    }
}
