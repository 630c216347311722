//! The whole way once: a secret, a registry that wants it, a store on disk.

use super::{on, pod};
use crate::images::keyring::tests::secret;
use crate::images::{ImageManager, Source};
use client::Recorder;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// bcrypt of "secret".
const HTPASSWD: &str = "user:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

struct Registry {
    child: Child,
    host: String,
}

impl Registry {
    fn start(directory: &Path) -> Registry {
        let at = |name: &str| directory.join(name).display().to_string();
        std::fs::write(at("htpasswd"), HTPASSWD).unwrap();
        let config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {:?}}}}}\n\
             auth: {{htpasswd: {{realm: r, path: {:?}}}}}\nhttp: {{addr: \"127.0.0.1:0\"}}\n",
            at("data"),
            at("htpasswd")
        );
        std::fs::write(at("config.yml"), config).unwrap();
        let mut child = Command::new("docker-registry")
            .args(["serve", &at("config.yml")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry is installed");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, after) = line.split_once("listening on 127.0.0.1:")?;
            Some(after.split(['"', ',']).next().unwrap().to_owned())
        });
        // Somebody has to read what it says, or it stops saying and serving.
        std::thread::spawn(move || lines.for_each(drop));
        Registry { child, host: format!("localhost:{}", port.expect("it listens")) }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_pull_secret_opens_a_real_registry_n_65_n_174_n_176() {
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::start(directory.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/images");
    run(Command::new(script).arg(directory.path()).arg("busybox"));
    let name = format!("{}/tools/busybox:1", registry.host);
    let archive = directory.path().join("busybox.tar");
    run(Command::new("skopeo")
        .args(["copy", "--dest-tls-verify=false", "--dest-creds", "user:secret"])
        .arg(format!("oci-archive:{}:docker.io/library/busybox:1", archive.display()))
        .arg(format!("docker://{name}")));

    let store = runtime::ImageStore::open(directory.path().join("store")).unwrap();
    let (recorder, mut told) = Recorder::collecting();
    let source = Source::Images(Arc::new(store.clone()));
    let manager = ImageManager::of(source, recorder, directory.path().join("pulls"));
    let auths = json!({ &registry.host: { "username": "user", "password": "secret" } });
    let secrets = [secret("pull", auths)];

    let denied = manager.ensure(&pod("1"), &on(), &name, "IfNotPresent", &[]).await.unwrap_err();
    assert_eq!(denied.reason, "ErrImagePull");
    assert!(denied.message.contains("pull access denied"), "{denied:?}");
    let image = manager.ensure(&pod("2"), &on(), &name, "IfNotPresent", &secrets).await.unwrap();
    assert_eq!(store.config(&image.id).unwrap().cmd, ["sh"]);
    assert_eq!(image.tags, std::slice::from_ref(&name));
    let mut pulled = false;
    while let Ok(happening) = told.try_recv() {
        pulled |=
            happening.message.starts_with(&format!("Successfully pulled image \"{name}\" in"));
    }
    assert!(pulled);
    let other = manager.ensure(&pod("3"), &on(), &name, "Never", &[]).await.unwrap_err();
    assert_eq!(other.reason, "ErrImageNeverPull");
}
