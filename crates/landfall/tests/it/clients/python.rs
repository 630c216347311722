//! The official Python client.

use crate::harness::{Cluster, tool};
use std::path::Path;
use std::process::Command;

#[test]
fn the_official_python_client_works() {
    // The installation writes this file last.
    tool("venv/complete");
    let python = tool("venv/bin/python");
    let cluster = Cluster::start(&[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/clients/official.py");
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120"])
        .arg(python)
        .arg(script)
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("HOME", cluster.dir())
        .output()
        .expect("Python runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "--- stdout\n{stdout}\n--- stderr\n{stderr}");
    cluster.stop();
}
