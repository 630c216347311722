//! Requests to servers on loopback that behave badly in known ways.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const PATIENCE: Duration = Duration::from_secs(5);

/// What a server does with one connection: the answer to each request, then it closes.
async fn serve(listener: TcpListener, connections: Vec<Vec<&'static [u8]>>) {
    for answers in connections {
        let (mut stream, _) = listener.accept().await.unwrap();
        for answer in answers {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).await.unwrap_or(0) == 0 {
                    return;
                }
                head.push(byte[0]);
            }
            stream.write_all(answer).await.unwrap();
        }
    }
}

async fn listen() -> (TcpListener, Requester) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = Address { host: "127.0.0.1".into(), port };
    (listener, Requester::new(address, PATIENCE))
}

async fn get(requester: &Requester, kind: ConnectionKind) -> Finished {
    requester.get(kind, "/", Instant::now() + PATIENCE).await
}

#[tokio::test]
async fn a_port_without_a_listener_refuses() {
    let (listener, requester) = listen().await;
    drop(listener);
    let got = get(&requester, ConnectionKind::New).await;
    assert_eq!(got, Finished { reused: false, result: Err(Failure::Refused) });
}

#[tokio::test]
async fn answers_and_server_errors_are_told_apart() {
    let (listener, requester) = listen().await;
    let bad = b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n";
    tokio::spawn(serve(listener, vec![vec![ANSWER], vec![bad], vec![b"hello\r\n\r\n"]]));
    assert_eq!(get(&requester, ConnectionKind::New).await.result, Ok(200));
    assert_eq!(get(&requester, ConnectionKind::New).await.result, Err(Failure::ServerError));
    assert_eq!(get(&requester, ConnectionKind::New).await.result, Err(Failure::Garbled));
}

#[tokio::test]
async fn a_closed_connection_is_cut_or_reset_on_reuse() {
    let (listener, requester) = listen().await;
    let half = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf";
    tokio::spawn(serve(listener, vec![vec![b""], vec![half], vec![ANSWER, b""]]));
    let cut = Finished { reused: false, result: Err(Failure::Cut) };
    assert_eq!(get(&requester, ConnectionKind::New).await, cut, "before the answer");
    assert_eq!(get(&requester, ConnectionKind::New).await, cut, "within the answer");
    assert_eq!(get(&requester, ConnectionKind::Keepalive).await.result, Ok(200));
    let again = get(&requester, ConnectionKind::Keepalive).await;
    assert_eq!(again, Finished { reused: true, result: Err(Failure::ResetOnReuse) });
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_replaced_without_a_loss() {
    let (listener, requester) = listen().await;
    let closes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    tokio::spawn(serve(listener, vec![vec![closes], vec![ANSWER, ANSWER]]));
    let reused = [false, false, true];
    for reused in reused {
        let got = get(&requester, ConnectionKind::Keepalive).await;
        assert_eq!(got, Finished { reused, result: Ok(200) });
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_times_out() {
    let (listener, requester) = listen().await;
    let _silent = tokio::spawn(async move {
        let accepted = listener.accept().await;
        std::future::pending::<()>().await;
        drop(accepted);
    });
    assert_eq!(get(&requester, ConnectionKind::New).await.result, Err(Failure::Timeout));
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_a_dns_failure() {
    let address = Address { host: "no-such-name.invalid".into(), port: 80 };
    let requester = Requester::new(address, PATIENCE);
    assert_eq!(get(&requester, ConnectionKind::New).await.result, Err(Failure::Dns));
}

#[test]
fn the_host_header_brackets_ipv6_addresses() {
    let address = |host: &str| Address { host: host.into(), port: 80 }.authority();
    assert_eq!(address("10.0.0.1"), "10.0.0.1:80");
    assert_eq!(address("fd00::1"), "[fd00::1]:80");
}
