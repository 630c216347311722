//! Runs a test in network and mount namespaces of its own, which end with the test. Also clients and servers
//! that run inside any pod's network.

use network::{Attachment, Cidr, HostPort, Pods, PodsConfig, Protocol};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Every answer takes milliseconds. After this time the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// How long to wait for an answer that must not come.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

pub(crate) const POD_RANGE: &str = "10.77.3.0/24";

/// Runs `test` in new network and mount namespaces.
pub(crate) fn isolated<F: Future<Output = ()>>(test: impl FnOnce(PathBuf) -> F + Send + 'static) {
    // The directory is removed outside of the mount namespace, where the test's mounts are not visible.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_path_buf();
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("this test needs root: run `make test` as root");
        let none: Option<&str> = None;
        let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(none, "/", none, flags, none).unwrap();
        run("ip link set lo up");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(path));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub(crate) fn config(directory: &Path) -> PodsConfig {
    PodsConfig {
        state_dir: directory.join("state"),
        netns_dir: directory.join("netns"),
        link: "lf0".into(),
        cidrs: vec![cidr(POD_RANGE)],
        cluster_cidrs: vec![cidr("10.77.0.0/16")],
        table: "landfall-pods".into(),
        mtu: 1500,
    }
}

pub(crate) async fn open(directory: &Path) -> Pods {
    Pods::open(config(directory)).await.unwrap()
}

pub(crate) fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn host_port(
    protocol: Protocol,
    host_ip: Option<&str>,
    host: u16,
    pod: u16,
) -> HostPort {
    HostPort { protocol, host_ip: host_ip.map(ip), host_port: host, container_port: pod }
}

/// Runs a shell command in this network namespace and returns its output.
pub(crate) fn run(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).to_string();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}{text}");
    text
}

pub(crate) fn rules() -> String {
    run("nft list ruleset")
}

/// Runs `work` in another network namespace.
pub(crate) fn inside<T: Send + 'static>(
    netns: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let file = File::open(netns).unwrap();
    let thread = std::thread::spawn(move || {
        setns(file, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    });
    thread.join().unwrap()
}

/// A network namespace that represents a host outside the cluster, with the address `192.0.2.2`. The node is
/// `192.0.2.1` for it. It has no route to pods.
pub(crate) fn outside(directory: &Path) -> PathBuf {
    let path = directory.join("outside");
    File::create(&path).unwrap();
    let bind = path.clone();
    std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let none: Option<&str> = None;
        mount(Some("/proc/thread-self/ns/net"), &bind, none, MsFlags::MS_BIND, none).unwrap();
    })
    .join()
    .unwrap();
    run("ip link add up0 type veth peer name down0");
    run("ip address add 192.0.2.1/24 dev up0 && ip link set up0 up");
    run(&format!("ip link set down0 netns {}", path.display()));
    inside(&path, || {
        run("ip link set lo up; ip address add 192.0.2.2/24 dev down0; ip link set down0 up");
    });
    path
}

/// Answers every connection with `name` and the client's address.
pub(crate) fn serve_tcp(netns: Option<&Path>, port: u16, name: &str) {
    let address = SocketAddr::new(ip("::"), port);
    let listener = match netns {
        Some(netns) => inside(netns, move || TcpListener::bind(address)).unwrap(),
        None => TcpListener::bind(address).unwrap(),
    };
    let name = name.to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let seen = stream.peer_addr().unwrap().ip().to_canonical();
            let _ = write!(stream, "{name} {seen}");
        }
    });
}

pub(crate) fn serve_udp(netns: &Path, port: u16, name: &str) {
    let address = SocketAddr::new(ip("0.0.0.0"), port);
    let socket = inside(netns, move || UdpSocket::bind(address)).unwrap();
    let name = name.to_string();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(format!("{name} {}", from.ip()).as_bytes(), from);
        }
    });
}

/// Returns the answer of a TCP server.
pub(crate) fn call_tcp(netns: Option<&Path>, to: &str) -> Result<String, std::io::ErrorKind> {
    call_tcp_within(netns, to, PATIENCE)
}

pub(crate) fn call_tcp_within(
    netns: Option<&Path>,
    to: &str,
    within: Duration,
) -> Result<String, std::io::ErrorKind> {
    let to: SocketAddr = to.parse().unwrap();
    let call = move || {
        let mut stream = TcpStream::connect_timeout(&to, within)?;
        stream.set_read_timeout(Some(within))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    let answer = match netns {
        Some(netns) => inside(netns, call),
        None => call(),
    };
    answer.map_err(|error| error.kind())
}

pub(crate) fn call_udp(netns: Option<&Path>, to: &str, bytes: usize) -> Option<String> {
    let to: SocketAddr = to.parse().unwrap();
    let call = move || {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).ok()?;
        socket.set_read_timeout(Some(SHORT)).ok()?;
        socket.send_to(&vec![b'x'; bytes], to).ok()?;
        let mut buffer = [0; 4096];
        let (length, _) = socket.recv_from(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).to_string())
    };
    match netns {
        Some(netns) => inside(netns, call),
        None => call(),
    }
}

pub(crate) fn address(attachment: &Attachment) -> String {
    attachment.addresses[0].to_string()
}
