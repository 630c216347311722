//! Debian's `docker-registry` on a free port, for tests that pull images. It ends with the test.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// bcrypt of "secret", for the user "user".
const HTPASSWD: &str = "user:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

pub struct DockerRegistry {
    child: Child,
    /// `localhost:PORT`
    pub host: String,
}

#[derive(Default)]
pub struct Options {
    /// Requires the user "user" with the password "secret".
    pub password: bool,
    /// Certificate and key, PEM.
    pub tls: Option<(String, String)>,
}

impl DockerRegistry {
    /// Stores everything below `directory`.
    pub fn start(directory: &Path, options: &Options) -> DockerRegistry {
        let directory = directory.join("registry");
        std::fs::create_dir_all(&directory).unwrap();
        let path_of = |name: &str| directory.join(name).display().to_string();
        let mut config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {:?}}}}}\n",
            path_of("data")
        );
        if options.password {
            std::fs::write(path_of("htpasswd"), HTPASSWD).unwrap();
            config +=
                &format!("auth: {{htpasswd: {{realm: r, path: {:?}}}}}\n", path_of("htpasswd"));
        }
        let mut http = "http: {addr: \"127.0.0.1:0\"".to_owned();
        if let Some((certificate, key)) = &options.tls {
            std::fs::write(path_of("cert"), certificate).unwrap();
            std::fs::write(path_of("key"), key).unwrap();
            http += &format!(
                ", tls: {{certificate: {:?}, key: {:?}}}",
                path_of("cert"),
                path_of("key")
            );
        }
        std::fs::write(path_of("config.yml"), format!("{config}{http}}}\n")).unwrap();
        let mut child = Command::new("docker-registry")
            .args(["serve", &path_of("config.yml")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry is installed: run `scripts/install all`");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, after) = line.split_once("listening on 127.0.0.1:")?;
            Some(after.split(['"', ',']).next().unwrap().to_owned())
        });
        // If nobody reads its output, the registry blocks on writing it and stops serving.
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
