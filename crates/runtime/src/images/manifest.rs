//! Indexes, manifests and configurations of images, in the formats of OCI and Docker.

use super::digest::Digest;
use super::limits::LAYERS_MAX;
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Accepts `null` as the default value.
fn null_as_default<'de, D, T>(deserializer: D) -> std::result::Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + serde::Deserialize<'de>,
{
    Ok(<Option<T> as serde::Deserialize>::deserialize(deserializer)?.unwrap_or_default())
}

/// Entries without a platform come after all that match.
const UNKNOWN_PLATFORM_RANK: u32 = 100;

#[derive(Debug, Clone, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) platform: Option<Platform>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, serde::Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) variant: String,
}

#[derive(Debug)]
pub(crate) enum Document {
    Index(Vec<Descriptor>),
    Manifest { config: Descriptor, layers: Vec<Descriptor> },
}

impl Document {
    pub(crate) fn read(bytes: &[u8]) -> Result<Document> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Either {
            #[serde(default)]
            schema_version: u32,
            manifests: Option<Vec<Descriptor>>,
            config: Option<Descriptor>,
            layers: Option<Vec<Descriptor>>,
        }
        let found: Either = serde_json::from_slice(bytes)
            .map_err(|e| Error::Refused(format!("cannot parse the manifest: {e}")))?;
        match found {
            Either { schema_version: 1, .. } => {
                Err(refused("the image has the obsolete Docker format \"schema 1\""))
            }
            // Reject documents that are both, because one digest could then stand for two images.
            Either { manifests: Some(_), config: Some(_), .. } => {
                Err(refused("the manifest is also an index"))
            }
            Either { manifests: Some(manifests), .. } => Ok(Document::Index(manifests)),
            Either { config: Some(config), layers: Some(layers), .. } => {
                check_layers(&layers)?;
                Ok(Document::Manifest { config, layers })
            }
            _ => Err(refused("the document is neither a manifest nor an index")),
        }
    }
}

fn check_layers(layers: &[Descriptor]) -> Result<()> {
    if layers.len() > LAYERS_MAX {
        return Err(Error::Refused(format!("the image has more than {LAYERS_MAX} layers")));
    }
    for layer in layers {
        if layer.media_type.contains("+encrypted") {
            return Err(refused("the image is encrypted"));
        }
        if !layer.media_type.contains(".tar") && !layer.media_type.is_empty() {
            let kind = &layer.media_type;
            return Err(Error::Refused(format!(
                "a layer of the image is not a tar archive but {kind:?}"
            )));
        }
    }
    Ok(())
}

/// The suitable entries of an index, best first: those for this platform, then those without a platform (N-173).
pub(crate) fn choose(entries: &[Descriptor]) -> Vec<&Descriptor> {
    let mut ranked: Vec<(u32, &Descriptor)> = entries
        .iter()
        .filter_map(|entry| {
            Some((entry.platform.as_ref().map_or(Some(UNKNOWN_PLATFORM_RANK), rank)?, entry))
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, entry)| entry).collect()
}

/// How suitable a platform is; 0 is best, `None` is unsuitable.
fn rank(platform: &Platform) -> Option<u32> {
    if platform.os.is_empty() && platform.architecture.is_empty() {
        return Some(UNKNOWN_PLATFORM_RANK);
    }
    if platform.os != "linux" || platform.architecture != architecture() {
        return None;
    }
    match (architecture(), platform.variant.as_str()) {
        (_, "") | ("amd64", "v1") | ("arm64", "v8") | ("arm", "v7") => Some(0),
        // Machines of the last ten years can run these.
        ("amd64", "v2") | ("arm", "v6") => Some(1),
        ("amd64", "v3") | ("arm", "v5") => Some(2),
        _ => None,
    }
}

/// The name that Go uses, as in image indexes.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

pub(crate) fn no_platform() -> Error {
    Error::Pull(format!("no match for platform linux/{} in manifest: not found", architecture()))
}

fn refused(message: &str) -> Error {
    Error::Refused(message.to_owned())
}

/// The defaults that an image has for its containers.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageConfig {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// In the image's order.
    pub env: Vec<(String, String)>,
    pub working_dir: Option<String>,
    /// `uid`, `name`, `uid:gid` and so on; empty means root.
    pub user: String,
    pub stop_signal: Option<String>,
    pub volumes: Vec<String>,
}

/// The defaults for containers, and the digests of the uncompressed layers, the lowest first.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) config: ImageConfig,
    pub(crate) layers: Vec<Digest>,
}

impl Configuration {
    pub(crate) fn read(bytes: &[u8]) -> Result<Configuration> {
        let file: ConfigFile = serde_json::from_slice(bytes)
            .map_err(|e| Error::Refused(format!("cannot parse the image's configuration: {e}")))?;
        if !file.os.is_empty() && file.os != "linux" {
            return Err(Error::Refused(format!("the image is for {:?}, not for linux", file.os)));
        }
        let rootfs =
            file.rootfs.ok_or_else(|| refused("the image's configuration has no layers"))?;
        if rootfs.diff_ids.len() > LAYERS_MAX {
            return Err(Error::Refused(format!("the image has more than {LAYERS_MAX} layers")));
        }
        let section = file.config.unwrap_or_default();
        let env = section.env.iter().filter_map(|line| line.split_once('='));
        let config = ImageConfig {
            env: env.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            entrypoint: section.entrypoint,
            cmd: section.cmd,
            working_dir: Some(section.working_dir).filter(|dir| !dir.is_empty()),
            user: section.user,
            stop_signal: Some(section.stop_signal).filter(|signal| !signal.is_empty()),
            volumes: section.volumes.into_keys().collect(),
        };
        Ok(Configuration { config, layers: rootfs.diff_ids })
    }
}

#[derive(serde::Deserialize)]
struct ConfigFile {
    #[serde(default)]
    os: String,
    config: Option<ConfigSection>,
    rootfs: Option<RootFs>,
}

#[derive(serde::Deserialize)]
struct RootFs {
    #[serde(default, deserialize_with = "null_as_default")]
    diff_ids: Vec<Digest>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ConfigSection {
    #[serde(deserialize_with = "null_as_default")]
    entrypoint: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    cmd: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    env: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    working_dir: String,
    #[serde(deserialize_with = "null_as_default")]
    user: String,
    #[serde(deserialize_with = "null_as_default")]
    stop_signal: String,
    #[serde(deserialize_with = "null_as_default")]
    volumes: BTreeMap<String, serde_json::Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(os: &str, architecture: &str, variant: &str, n: u8) -> Descriptor {
        let platform =
            Platform { os: os.into(), architecture: architecture.into(), variant: variant.into() };
        Descriptor {
            media_type: String::new(),
            digest: Digest::of(&[n]),
            size: 1,
            platform: Some(platform),
            annotations: BTreeMap::new(),
        }
    }

    #[test]
    fn the_manifest_for_this_platform_is_chosen_n_173() {
        let here = architecture();
        let silent = Descriptor { platform: None, ..entry("", "", "", 5) };
        let entries = [
            entry("windows", here, "", 1),
            entry("linux", "s390x-not-here", "", 2),
            entry("unknown", "unknown", "", 3),
            silent,
            entry("linux", here, "", 4),
        ];
        let chosen: Vec<Digest> = choose(&entries).iter().map(|e| e.digest.clone()).collect();
        assert_eq!(chosen, [Digest::of(&[4]), Digest::of(&[5])]);
    }

    #[test]
    fn entries_for_other_platforms_are_ignored_n_173() {
        assert!(choose(&[entry("windows", "amd64", "", 1)]).is_empty());
    }

    #[test]
    fn a_manifest_that_is_also_an_index_is_rejected() {
        let digest = Digest::of(b"");
        let one = format!(r#"{{"digest":"{digest}","size":1}}"#);
        let both = format!(r#"{{"config":{one},"layers":[],"manifests":[{one}]}}"#);
        assert!(Document::read(both.as_bytes()).is_err());
        let image = format!(r#"{{"config":{one},"layers":[{one}]}}"#);
        assert!(matches!(Document::read(image.as_bytes()), Ok(Document::Manifest { .. })));
        assert!(Document::read(br#"{"schemaVersion":1}"#).is_err());
    }

    #[test]
    fn a_configuration_of_docker_with_nulls_is_parsed() {
        let text = r#"{"os":"linux","config":{"Entrypoint":null,"Cmd":["sh"],"Env":["A=b=c","B="],
            "WorkingDir":"","User":"1000:5","StopSignal":"SIGQUIT","Volumes":{"/data":{}}},
            "rootfs":{"type":"layers","diff_ids":null}}"#;
        let read = Configuration::read(text.as_bytes()).unwrap();
        let expected = ImageConfig {
            cmd: vec!["sh".into()],
            env: vec![("A".into(), "b=c".into()), ("B".into(), String::new())],
            user: "1000:5".into(),
            stop_signal: Some("SIGQUIT".into()),
            volumes: vec!["/data".into()],
            ..ImageConfig::default()
        };
        assert_eq!(read.config, expected);
        assert!(Configuration::read(br#"{"os":"windows","rootfs":{"diff_ids":[]}}"#).is_err());
    }
}
