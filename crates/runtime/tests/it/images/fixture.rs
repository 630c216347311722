//! Creates archives of images, valid and invalid ones, without other programs.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tar::{EntryType, Header};

/// A layer under construction.
pub(crate) struct Layer {
    tar: tar::Builder<Vec<u8>>,
}

impl Layer {
    pub(crate) fn new() -> Layer {
        Layer { tar: tar::Builder::new(Vec::new()) }
    }

    /// Writes any header, including invalid ones.
    pub(crate) fn raw(
        mut self,
        kind: EntryType,
        name: &str,
        link: &str,
        mode: u32,
        data: &[u8],
    ) -> Layer {
        let mut header = Header::new_gnu();
        put(&mut header.as_old_mut().name, name);
        put(&mut header.as_old_mut().linkname, link);
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_700_000_000);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.tar.append(&header, data).unwrap();
        self
    }

    pub(crate) fn header(mut self, header: &Header, data: &[u8]) -> Layer {
        self.tar.append(header, data).unwrap();
        self
    }

    pub(crate) fn dir(self, name: &str, mode: u32) -> Layer {
        self.raw(EntryType::Directory, name, "", mode, b"")
    }

    pub(crate) fn file(self, name: &str, text: &str) -> Layer {
        self.raw(EntryType::Regular, name, "", 0o644, text.as_bytes())
    }

    pub(crate) fn symlink(self, name: &str, to: &str) -> Layer {
        self.raw(EntryType::Symlink, name, to, 0o777, b"")
    }

    pub(crate) fn hard_link(self, name: &str, to: &str) -> Layer {
        self.raw(EntryType::Link, name, to, 0o644, b"")
    }

    pub(crate) fn device(self, kind: EntryType, name: &str, major: u32, minor: u32) -> Layer {
        let mut header = Header::new_gnu();
        put(&mut header.as_old_mut().name, name);
        header.set_entry_type(kind);
        header.set_mode(0o600);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        header.set_device_major(major).unwrap();
        header.set_device_minor(minor).unwrap();
        header.set_cksum();
        self.header(&header, b"")
    }

    /// Adds a pax header for the next entry.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Layer {
        let mut data = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            data.extend(format!("{length} {key}=").as_bytes());
            data.extend(*value);
            data.push(b'\n');
        }
        self.raw(EntryType::XHeader, "pax", "", 0o644, &data)
    }

    pub(crate) fn build(self) -> Vec<u8> {
        self.tar.into_inner().unwrap()
    }
}

fn put(field: &mut [u8], text: &str) {
    field[..text.len()].copy_from_slice(text.as_bytes());
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// An OCI layout under construction: blobs and the entries of its index.
#[derive(Default, Clone)]
pub(crate) struct Layout {
    pub(crate) blobs: Vec<(String, Vec<u8>)>,
    pub(crate) index: Vec<Value>,
}

impl Layout {
    pub(crate) fn blob(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = digest(&bytes);
        let descriptor = json!({"mediaType": media_type, "digest": digest, "size": bytes.len()});
        self.blobs.push((digest, bytes));
        descriptor
    }

    /// Adds a manifest with layers, each uncompressed and compressed. Returns its descriptor.
    pub(crate) fn manifest(&mut self, layers: &[(Vec<u8>, Vec<u8>)], config: Value) -> Value {
        let diff_ids: Vec<String> = layers.iter().map(|(plain, _)| digest(plain)).collect();
        let config = json!({
            "os": "linux", "architecture": go_arch(), "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = self
            .blob("application/vnd.oci.image.config.v1+json", serde_json::to_vec(&config).unwrap());
        let layers: Vec<Value> = layers
            .iter()
            .map(|(_, packed)| self.blob("application/vnd.oci.image.layer.v1.tar", packed.clone()))
            .collect();
        let manifest = json!({"schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config, "layers": layers});
        self.blob(
            "application/vnd.oci.image.manifest.v1+json",
            serde_json::to_vec(&manifest).unwrap(),
        )
    }

    /// Adds an image of uncompressed layers with a name.
    pub(crate) fn image(mut self, name: &str, layers: &[Vec<u8>], config: Value) -> Layout {
        let layers: Vec<_> = layers.iter().map(|layer| (layer.clone(), layer.clone())).collect();
        let mut manifest = self.manifest(&layers, config);
        manifest["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        self.index.push(manifest);
        self
    }

    pub(crate) fn index_json(&self) -> Vec<u8> {
        serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": self.index})).unwrap()
    }

    /// As a tar.
    pub(crate) fn tar(&self) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, bytes).unwrap();
        };
        add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
        add("index.json", &self.index_json());
        for (digest, bytes) in &self.blobs {
            add(&format!("blobs/{}", digest.replace(':', "/")), bytes);
        }
        tar.into_inner().unwrap()
    }

    pub(crate) fn write(&self, directory: &Path) -> PathBuf {
        let path = directory.join("layout.tar");
        std::fs::write(&path, self.tar()).unwrap();
        path
    }

    /// As a directory.
    pub(crate) fn write_directory(&self, directory: &Path) -> PathBuf {
        let path = directory.join("layout");
        std::fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        std::fs::write(path.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        std::fs::write(path.join("index.json"), self.index_json()).unwrap();
        for (digest, bytes) in &self.blobs {
            std::fs::write(path.join("blobs").join(digest.replace(':', "/")), bytes).unwrap();
        }
        path
    }
}

pub(crate) fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
