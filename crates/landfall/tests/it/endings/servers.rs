//! Typical servers in real containers with real requests: whether requests in flight are answered when the pod is
//! deleted depends on how the server handles its stop signal.

use super::node::{Node, on_a_node};
use super::witness::{GONE, Place, with};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

/// A request in flight: the body of the response, or why it failed.
type Request = JoinHandle<Result<String, String>>;

fn get(address: &str, path: &str) -> Request {
    let (address, path) = (address.parse::<SocketAddr>().unwrap(), path.to_owned());
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("it can be set");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(format!("cut: {answer:?}"))?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        match length {
            Some(length) if length == body.len() && head.contains("200 OK") => Ok(body.to_owned()),
            _ => Err(format!("{} of {length:?} bytes came", body.len())),
        }
    })
}

fn address(node: &Node, pod: &str, port: u16) -> String {
    format!("{}:{port}", node.get(pod, "{.status.podIP}"))
}

/// Sends responses at 20 KB per second.
const NGINX: &str = "
user www-data; daemon off; worker_processes 2; pid /run/nginx.pid; error_log /dev/stderr notice;
events { worker_connections 64; }
http { server { listen 80; location / { root /out/www; limit_rate 20k; } } }
";

/// On SIGTERM it accepts no new connections, answers open requests, closes the database and exits.
const NODE: &str = "
const http = require('http'), fs = require('fs');
const say = (what) => fs.appendFileSync(process.env.P, what + '\\n');
const db = { close() { say('db-closed'); } };
const server = http.createServer((request, response) => {
  say('got');
  setTimeout(() => { const body = 'done'; response.writeHead(200, {'Content-Length': body.length}); response.end(body); }, Number(request.url.slice(1)));
});
server.listen(8080, () => say('start'));
process.on('SIGTERM', () => {
  say('SIGTERM');
  server.close(() => { db.close(); process.exit(0); });
  setTimeout(() => process.exit(1), 25000);
});
";

/// On SIGTERM it waits for open requests and exits. Without HANDLER it does not handle the signal.
const PYTHON: &str = "
import http.server, os, signal, sys, threading, time
def say(what):
    with open(os.environ['P'], 'w') as pipe: pipe.write(what + '\\n')
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        say('got')
        time.sleep(float(self.path[1:]) / 1000)
        self.send_response(200); self.send_header('Content-Length', '4'); self.end_headers()
        self.wfile.write(b'done')
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('', 8080), Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
def handler(number, frame):
    say('SIGTERM')
    server.shutdown()
    time.sleep(float(os.environ['HANDLER']))
    say('db-closed')
    sys.exit(0)
if 'HANDLER' in os.environ: signal.signal(signal.SIGTERM, handler)
say('start')
while True: signal.pause()
";

fn server(
    place: &Place,
    name: &str,
    image: &str,
    command: &[&str],
    handler: Option<&str>,
) -> Value {
    let mut container = with(place.shell(name, image, ""), json!({}));
    container["command"] = json!(command);
    if let Some(seconds) = handler {
        let env = container["env"].as_array_mut().expect("it has a pipe");
        env.push(json!({"name": "HANDLER", "value": seconds}));
    }
    container
}

/// W-35, W-36, W-38, W-58, W-59: nginx with its usual hook and the Node.js and Python servers answer all requests in
/// flight and exit with 0 within their grace period; a process without a handler drops its requests; if one request is
/// longer than the grace period and one is shorter, only the longer one is cut off.
#[test]
fn requests_in_flight_are_answered_if_the_server_handles_its_signal() {
    on_a_node(&["nginx", "python", "node"], &[], |node| {
        let place = &node.place;
        std::fs::create_dir(place.path().join("www")).unwrap();
        std::fs::write(place.path().join("www/slow"), "x".repeat(60 << 10)).unwrap();
        std::fs::write(place.path().join("nginx.conf"), NGINX).unwrap();
        let quit = "nginx -s quit; while killall -0 nginx; do sleep 1; done";
        let nginx = json!({"name": "nginx", "image": "nginx:1",
            "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", quit]}}},
            "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 1},
            "volumeMounts": [{"name": "out", "mountPath": "/out"},
                             {"name": "out", "mountPath": "/etc/nginx/nginx.conf", "subPath": "nginx.conf"}]});
        let python = ["python3", "-c", PYTHON];
        let pods = [
            place.pod("nginx", 30, vec![nginx], json!({})),
            place.pod(
                "node",
                30,
                vec![server(place, "node", "node:1", &["node", "-e", NODE], None)],
                json!({}),
            ),
            place.pod(
                "python",
                30,
                vec![server(place, "python", "python:1", &python, Some("3"))],
                json!({}),
            ),
            place.pod(
                "none",
                30,
                vec![server(place, "none", "python:1", &python, None)],
                json!({"shareProcessNamespace": true}),
            ),
            place.pod(
                "short",
                3,
                vec![server(place, "short", "python:1", &python, Some("30"))],
                json!({}),
            ),
        ];
        let watch = node.watch();
        node.run(&pods, &["node", "python", "none", "short"]);
        node.kubectl.ok("kubectl wait --for=condition=Ready pod/nginx --timeout=60s");
        let slow = address(node, "nginx", 80);
        let in_nginx: Vec<Request> = (0..4).map(|_| get(&slow, "/slow")).collect();
        let ask = |pod: &str, milliseconds: u64| {
            get(&address(node, pod, 8080), &format!("/{milliseconds}"))
        };
        let answered: Vec<Request> =
            ["node", "node", "python", "python", "short"].map(|pod| ask(pod, 2000)).into();
        let cut = [ask("none", 60_000), ask("short", 60_000)];
        for (pod, requests) in [("node", 2), ("python", 2), ("none", 1), ("short", 2)] {
            place.nth(pod, "got", requests - 1);
        }
        node.delete("nginx node python none short");
        for request in in_nginx {
            assert_eq!(request.join().unwrap().map(|body| body.len()), Ok(60 << 10), "W-58");
        }
        for request in answered {
            assert_eq!(request.join().unwrap(), Ok("done".to_owned()), "W-36, W-59");
        }
        for request in cut {
            assert!(request.join().unwrap().is_err(), "W-35, W-38");
        }
        for (pod, code) in [("nginx", 0), ("node", 0), ("python", 0), ("none", 143), ("short", 137)]
        {
            assert_eq!(watch.end_of(pod, pod)["exitCode"], code, "{pod}");
        }
        for pod in ["node", "python"] {
            let words: Vec<String> =
                place.words(pod).into_iter().filter(|word| word != GONE).collect();
            assert_eq!(words, ["start", "got", "got", "SIGTERM", "db-closed"], "W-59");
        }
    });
}
