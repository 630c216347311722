//! Debian's `docker-registry` on a port of its own, for tests that pull; ended with the test. Other
//! crates' tests take this file too.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// bcrypt of "secret", for the user "user".
const HTPASSWD: &str = "user:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

pub(crate) struct DockerRegistry {
    child: Child,
    /// `localhost:PORT`
    pub(crate) host: String,
}

#[derive(Default)]
pub(crate) struct Options {
    pub(crate) password: bool,
    /// Certificate and key, PEM.
    pub(crate) tls: Option<(String, String)>,
}

impl DockerRegistry {
    /// Keeps everything below `directory`.
    pub(crate) fn start(directory: &Path, options: &Options) -> DockerRegistry {
        let directory = directory.join("registry");
        std::fs::create_dir_all(&directory).unwrap();
        let at = |name: &str| directory.join(name).display().to_string();
        let mut config =
            format!("version: 0.1\nstorage: {{filesystem: {{rootdirectory: {:?}}}}}\n", at("data"));
        if options.password {
            std::fs::write(at("htpasswd"), HTPASSWD).unwrap();
            config += &format!("auth: {{htpasswd: {{realm: r, path: {:?}}}}}\n", at("htpasswd"));
        }
        let mut http = "http: {addr: \"127.0.0.1:0\"".to_owned();
        if let Some((certificate, key)) = &options.tls {
            std::fs::write(at("cert"), certificate).unwrap();
            std::fs::write(at("key"), key).unwrap();
            http += &format!(", tls: {{certificate: {:?}, key: {:?}}}", at("cert"), at("key"));
        }
        std::fs::write(at("config.yml"), format!("{config}{http}}}\n")).unwrap();
        let mut child = Command::new("docker-registry")
            .args(["serve", &at("config.yml")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry is there: `scripts/install all` installs it");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, after) = line.split_once("listening on 127.0.0.1:")?;
            Some(after.split(['"', ',']).next().unwrap().to_owned())
        });
        // Somebody has to read what it says, or it stops saying and serving.
        std::thread::spawn(move || lines.for_each(drop));
        DockerRegistry { child, host: format!("localhost:{}", port.expect("it listens")) }
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
