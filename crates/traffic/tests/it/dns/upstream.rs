//! A resolver whose replies the test determines.

use super::bed::{framed, read_reply};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    asked: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Upstream {
    /// Replies to each request with the messages that `reply` returns; the flag says whether it came over TCP.
    pub(super) async fn start(
        reply: impl Fn(Message, bool) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> Upstream {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        let (reply, asked) = (Arc::new(reply), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        let (over_udp, count) = (reply.clone(), asked.clone());
        tasks.spawn(async move {
            let mut buffer = vec![0; 4096];
            while let Ok((length, client)) = udp.recv_from(&mut buffer).await {
                count.fetch_add(1, Ordering::SeqCst);
                for reply in over_udp(Message::from_vec(&buffer[..length]).unwrap(), false) {
                    udp.send_to(&reply, client).await.unwrap();
                }
            }
        });
        let count = asked.clone();
        tasks.spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                while let Some(request) = read_reply(&mut stream).await {
                    count.fetch_add(1, Ordering::SeqCst);
                    for reply in reply(Message::from_vec(&request).unwrap(), true) {
                        stream.write_all(&framed(&reply)).await.unwrap();
                    }
                }
            }
        });
        Upstream { address, asked, _tasks: tasks }
    }

    /// How many requests arrived.
    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// The reply with these IPv4 addresses.
pub(super) fn answer(request: Message, addresses: &[[u8; 4]]) -> Message {
    let mut reply = request.into_response();
    let name = reply.queries[0].name.clone();
    for [a, b, c, d] in addresses {
        reply.add_answer(Record::from_rdata(name.clone(), 60, RData::A(A::new(*a, *b, *c, *d))));
    }
    reply
}

pub(super) fn failure(request: Message, code: ResponseCode) -> Message {
    let mut reply = request.into_response();
    reply.metadata.response_code = code;
    reply
}
