//! A pull with a secret from a real registry into a store on disk.

use super::{on, pod};
use crate::images::keyring::tests::secret;
use crate::images::{ImageManager, Source};
use client::Recorder;
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use testbed::registry::{DockerRegistry, Options};

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|why| {
        panic!("{command:?} cannot be run: {why}; `scripts/install all` installs it")
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn n_65_n_174_n_176_a_pull_secret_gives_access_to_a_real_registry() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { password: true, ..Options::default() };
    let registry = DockerRegistry::start(directory.path(), &options);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/images");
    run(Command::new(script).arg(directory.path()).arg("busybox"));
    let name = format!("{}/tools/busybox:1", registry.host);
    let archive = directory.path().join("busybox.tar");
    run(Command::new("skopeo")
        .args(["copy", "--dest-tls-verify=false", "--dest-creds", "user:secret"])
        .arg(format!("oci-archive:{}:docker.io/library/busybox:1", archive.display()))
        .arg(format!("docker://{name}")));

    let store = runtime::ImageStore::open(directory.path().join("store")).unwrap();
    let (recorder, mut events) = Recorder::collecting();
    let source = Source::Images(Arc::new(store.clone()));
    let manager = ImageManager::with_source(source, recorder, directory.path().join("pulls"));
    let auths = json!({ &registry.host: { "username": "user", "password": "secret" } });
    let secrets = [secret("pull", auths)];

    let denied = manager.ensure(&pod("1"), &on(), &name, "IfNotPresent", &[]).await.unwrap_err();
    assert_eq!(denied.reason, "ErrImagePull");
    assert!(denied.message.contains("pull access denied"), "{denied:?}");
    let image = manager.ensure(&pod("2"), &on(), &name, "IfNotPresent", &secrets).await.unwrap();
    assert_eq!(store.config(&image.id).unwrap().cmd, ["sh"]);
    assert_eq!(image.tags, std::slice::from_ref(&name));
    let mut pulled = false;
    while let Ok(happening) = events.try_recv() {
        pulled |=
            happening.message.starts_with(&format!("Successfully pulled image \"{name}\" in"));
    }
    assert!(pulled);
    let other = manager.ensure(&pod("3"), &on(), &name, "Never", &[]).await.unwrap_err();
    assert_eq!(other.reason, "ErrImageNeverPull");
}
