//! Port-forward with kubectl: 1.32 tunnels SPDY in a WebSocket, 1.20 speaks SPDY.

use super::cluster::{Cluster, PATIENCE, dead_port};
use super::shell::shells;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Answers what it is told, after a greeting, until its caller has no more to say.
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

/// `Forwarding from 127.0.0.1:40123 -> 80`
fn local_port(line: &str) -> u16 {
    let rest = line.split("127.0.0.1:").nth(1).unwrap_or_else(|| panic!("{line}"));
    rest.split(' ').next().unwrap().parse().unwrap()
}

async fn ask(port: u16, text: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut read, mut write) = socket.split();
    let sending = async {
        write.write_all(text).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut answer = Vec::new();
    let reading = read.read_to_end(&mut answer);
    let (_, read) = tokio::time::timeout(PATIENCE, async { tokio::join!(sending, reading) })
        .await
        .expect("an answer in time");
    read.unwrap();
    answer
}

/// N-166
#[tokio::test(flavor = "multi_thread")]
async fn a_240_kubectl_port_forward_carries_several_connections_at_once() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let port = echo().await;
    for shell in shells(&cluster) {
        let mut forwarding =
            shell.spawn(&format!("port-forward --address=127.0.0.1 pod/p :{port}"));
        let local = local_port(&forwarding.line().await.unwrap());
        let large = vec![b'x'; 1_000_000];
        let (small, large_back) = tokio::join!(ask(local, b"there"), ask(local, &large));
        assert_eq!(small, b"hello there", "{shell:?}");
        assert_eq!(large_back.len(), large.len() + 6, "{shell:?}");
        assert_eq!(ask(local, b"again").await, b"hello again", "{shell:?}");
    }
}

/// N-166: the error is told and the tunnel stays, at least as far as the client lets it.
#[tokio::test(flavor = "multi_thread")]
async fn n_166_a_port_nobody_listens_on_is_an_error_of_that_connection() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let (_held, dead) = dead_port();
    for shell in shells(&cluster) {
        let mut forwarding =
            shell.spawn(&format!("port-forward --address=127.0.0.1 pod/p :{dead} 2>&1"));
        let local = local_port(&forwarding.line().await.unwrap());
        assert_eq!(ask(local, b"").await, b"", "{shell:?}");
        loop {
            let line = forwarding.line().await.expect("it says what happened");
            if line.contains(&format!("error forwarding port {dead} to pod p, uid ")) {
                break;
            }
        }
    }
}
