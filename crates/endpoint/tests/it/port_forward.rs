//! Port-forward with kubectl: 1.32 tunnels SPDY in a WebSocket, 1.20 speaks SPDY.

use crate::cluster::{Cluster, TIMEOUT, dead_port};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Starts a server that sends a greeting and then echoes its input. Returns its port.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let _ = write.write_all(b"hello ").await;
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    port
}

/// The port in `Forwarding from 127.0.0.1:40123 -> 80`.
fn local_port(line: &str) -> u16 {
    let rest = line.split("127.0.0.1:").nth(1).unwrap_or_else(|| panic!("{line}"));
    rest.split(' ').next().unwrap().parse().unwrap()
}

async fn exchange(port: u16, text: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut read, mut write) = socket.split();
    let sending = async {
        write.write_all(text).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut response = Vec::new();
    let reading = read.read_to_end(&mut response);
    let (_, read) = tokio::time::timeout(TIMEOUT, async { tokio::join!(sending, reading) })
        .await
        .expect("a response in time");
    read.unwrap();
    response
}

/// Pairs of streams, tunnelled in a WebSocket, to the pod's network (N-166).
#[tokio::test(flavor = "multi_thread")]
async fn a_240_kubectl_port_forward_forwards_several_connections_at_once() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let port = echo().await;
    for kubectl in cluster.kubectls() {
        let forwarding =
            kubectl.spawn(&format!("exec kubectl port-forward --address=127.0.0.1 pod/p :{port}"));
        let local = local_port(&forwarding.line("127.0.0.1:", TIMEOUT));
        let large = vec![b'x'; 1_000_000];
        let (small, large_back) = tokio::join!(exchange(local, b"there"), exchange(local, &large));
        assert_eq!(small, b"hello there", "{kubectl:?}");
        assert_eq!(large_back.len(), large.len() + 6, "{kubectl:?}");
        assert_eq!(exchange(local, b"again").await, b"hello again", "{kubectl:?}");
    }
}

/// N-166: kubectl reports the error, and the tunnel stays open.
#[tokio::test(flavor = "multi_thread")]
async fn n_166_a_closed_port_is_an_error_of_that_connection_only() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let (_held, dead) = dead_port();
    for kubectl in cluster.kubectls() {
        let forwarding = kubectl
            .spawn(&format!("exec kubectl port-forward --address=127.0.0.1 pod/p :{dead} 2>&1"));
        let local = local_port(&forwarding.line("127.0.0.1:", TIMEOUT));
        assert_eq!(exchange(local, b"").await, b"", "{kubectl:?}");
        forwarding.line(&format!("error forwarding port {dead} to pod p, uid "), TIMEOUT);
    }
}
