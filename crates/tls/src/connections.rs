//! How many connections a listener keeps, and for how long.
//!
//!     accepted ─▶ Admitted ─▶ handshake ─▶ requests ─▶ idle ─▶ closed
//!
//! A connection without a first request, and one that is idle for too long, is closed. When there are too many, in total
//! or from one address, the oldest connection that serves no request is closed in favour of the new one, so idle
//! connections cannot lock out other clients.
//!
//! Not here: how many requests one user may have (`server::flow`).

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The time from accepting a connection to its first request, including the handshake.
const FIRST_REQUEST_MAX: Duration = Duration::from_secs(15);
/// Upstream: `IdleTimeout` of the secure listener, the keep-alive time of Go's clients. A
/// response that the client does not read counts as idle; a watch does not.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// The deadline of an ordinary request. After that, the client does not read the response.
const BUSY_MAX: Duration = Duration::from_secs(60);

/// The maximum number of connections, because each costs memory.
const CONNECTIONS_MAX: usize = 10_000;
/// When there are too many, one in this many is closed at once, so that not every new connection has to search.
const EVICTED_AT_ONCE: usize = 64;

/// How many connections a server of this process may keep: half of the limit of open files. The rest is for the store,
/// pods, and connections to nodes.
pub fn connections_max() -> usize {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    let files = limit.map_or(1024, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX));
    (files / 2).clamp(1, CONNECTIONS_MAX)
}

/// The connections of one listener.
#[derive(Clone)]
pub struct Connections(Arc<Registry>);

struct Registry {
    total: usize,
    per_address: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// By age.
    connections: BTreeMap<u64, Arc<Connection>>,
    by_address: HashMap<IpAddr, usize>,
}

/// The state of one connection.
struct Connection {
    address: IpAddr,
    since: Instant,
    /// Whether its first request has arrived.
    had_request: AtomicBool,
    /// The number of requests in progress.
    active: AtomicUsize,
    /// Those of them that stream a response without end.
    streaming: AtomicUsize,
    /// The time of the last activity, in milliseconds after `since`.
    touched: AtomicU64,
    /// It is being closed, or was upgraded and cannot be closed from here.
    leaving: AtomicBool,
    evicted: Notify,
}

/// A connection within the limits, counted until this is dropped.
pub struct Admitted {
    registry: Arc<Registry>,
    connection: Arc<Connection>,
    number: u64,
}

/// The same connection for the code that serves it.
#[derive(Clone)]
pub struct Usage(Arc<Connection>);

/// A request in progress, until this is dropped.
pub struct ActiveRequest {
    connection: Arc<Connection>,
    streaming: bool,
}

impl Connections {
    pub fn new(total: usize) -> Connections {
        Connections(Arc::new(Registry {
            total,
            // One machine with many clients must not take all.
            per_address: (total / 2).max(1),
            open: Mutex::default(),
        }))
    }

    /// None if there are too many connections and all are busy.
    pub fn admit(&self, address: IpAddr) -> Option<Admitted> {
        let address = client(address);
        let mut open = self.0.open();
        let own = open.by_address.get(&address).copied().unwrap_or(0);
        if own >= self.0.per_address && !open.evict(Some(address), self.0.per_address) {
            return None;
        }
        if open.connections.len() >= self.0.total && !open.evict(None, self.0.total) {
            return None;
        }
        let connection = Arc::new(Connection {
            address,
            since: Instant::now(),
            had_request: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            streaming: AtomicUsize::new(0),
            touched: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            evicted: Notify::new(),
        });
        let number = open.next;
        open.next += 1;
        open.connections.insert(number, connection.clone());
        *open.by_address.entry(address).or_insert(0) += 1;
        drop(open);
        Some(Admitted { registry: self.0.clone(), connection, number })
    }

    /// The number of open connections.
    pub fn count(&self) -> usize {
        self.0.open().connections.len()
    }
}

/// An IPv6 client counts by its /64 network, because it can use all addresses of that.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)))
        }
        address => address,
    }
}

impl Registry {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Closes some connections: first those without a request, then idle ones, the oldest first. False if all are busy.
    fn evict(&mut self, address: Option<IpAddr>, limit: usize) -> bool {
        let mut count = (limit / EVICTED_AT_ONCE).max(1);
        let mut found = false;
        for had_request in [false, true] {
            for connection in self.connections.values() {
                let matches = address.is_none_or(|address| address == connection.address);
                if count > 0
                    && matches
                    && connection.had_request() == had_request
                    && connection.can_be_closed()
                {
                    connection.leaving.store(true, Ordering::Relaxed);
                    connection.evicted.notify_one();
                    (found, count) = (true, count - 1);
                }
            }
        }
        found
    }
}

impl Connection {
    fn had_request(&self) -> bool {
        self.had_request.load(Ordering::Relaxed)
    }

    fn touch(&self) {
        let now = self.since.elapsed().as_millis() as u64;
        self.touched.store(now, Ordering::Relaxed);
    }

    fn quiet_since(&self) -> Instant {
        self.since + Duration::from_millis(self.touched.load(Ordering::Relaxed))
    }

    fn can_be_closed(&self) -> bool {
        let busy = self.active.load(Ordering::Relaxed) > 0
            && self.quiet_since().elapsed() < BUSY_MAX
            || self.streaming.load(Ordering::Relaxed) > 0;
        !busy && !self.leaving.load(Ordering::Relaxed)
    }

    /// When it expires without further activity; None while a stream is open.
    fn due(&self) -> Option<Instant> {
        if self.streaming.load(Ordering::Relaxed) > 0 {
            return None;
        }
        Some(match self.had_request() {
            false => self.since + FIRST_REQUEST_MAX,
            true => self.quiet_since() + IDLE_MAX,
        })
    }
}

impl Admitted {
    pub fn usage(&self) -> Usage {
        Usage(self.connection.clone())
    }

    /// Wraps the connection, so that it is counted until it is closed.
    pub fn count_until_closed<S>(self, stream: S) -> CountedStream<S> {
        CountedStream { stream, _admitted: self }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.registry.open();
        open.connections.remove(&self.number);
        let Some(count) = open.by_address.get_mut(&self.connection.address) else { return };
        *count -= 1;
        if *count == 0 {
            open.by_address.remove(&self.connection.address);
        }
    }
}

impl Usage {
    /// Called when a request arrives.
    pub fn begin(&self) -> ActiveRequest {
        self.0.had_request.store(true, Ordering::Relaxed);
        self.0.active.fetch_add(1, Ordering::Relaxed);
        self.0.touch();
        ActiveRequest { connection: self.0.clone(), streaming: false }
    }

    /// Resolves when the connection should be closed: no first request, idle for too long, or evicted.
    pub async fn expired(&self) {
        loop {
            let now = Instant::now();
            let due = self.0.due();
            if due.is_some_and(|due| due <= now) {
                return;
            }
            let next_check = due.unwrap_or(now + IDLE_MAX);
            tokio::select! {
                () = self.0.evicted.notified() => return,
                () = tokio::time::sleep_until(next_check) => {}
            }
        }
    }

    /// The connection was upgraded to another protocol, and [`Self::expired`] is no longer awaited.
    pub fn upgraded(&self) {
        self.0.leaving.store(true, Ordering::Relaxed);
    }
}

impl ActiveRequest {
    /// The response is a stream without end, such as a watch, which may be silent for long.
    pub fn stream(mut self) -> ActiveRequest {
        if !std::mem::replace(&mut self.streaming, true) {
            self.connection.streaming.fetch_add(1, Ordering::Relaxed);
        }
        self
    }

    /// Part of the response was sent.
    pub fn touch(&self) {
        self.connection.touch();
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.connection.touch();
        self.connection.active.fetch_sub(1, Ordering::Relaxed);
        if self.streaming {
            self.connection.streaming.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A connection that is counted until it is dropped, even after an upgrade.
pub struct CountedStream<S> {
    stream: S,
    _admitted: Admitted,
}

impl<S> CountedStream<S> {
    pub fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// The body of a response; the request is in progress until it is sent.
pub struct ActiveBody<B> {
    body: B,
    request: ActiveRequest,
}

impl<B> ActiveBody<B> {
    pub fn new(body: B, request: ActiveRequest) -> Self {
        ActiveBody { body, request }
    }
}

impl<B: http_body::Body + Unpin> http_body::Body for ActiveBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<B::Data>, B::Error>>> {
        self.request.touch();
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    async fn seconds_until_expired(usage: &Usage) -> Option<u64> {
        let started = Instant::now();
        let day = Duration::from_secs(24 * 3600);
        tokio::time::timeout(day, usage.expired()).await.ok()?;
        Some(started.elapsed().as_secs())
    }

    /// idle connections are closed after 90 s, those without a request earlier, watches never.
    #[tokio::test(start_paused = true)]
    async fn idle_connections_expire_and_streams_do_not() {
        let connections = Connections::new(10);
        let silent = connections.admit(HERE).unwrap();
        assert_eq!(seconds_until_expired(&silent.usage()).await, Some(15));

        let idle = connections.admit(HERE).unwrap();
        drop(idle.usage().begin());
        assert_eq!(seconds_until_expired(&idle.usage()).await, Some(90));

        let watching = connections.admit(HERE).unwrap();
        let watch = watching.usage().begin().stream();
        assert_eq!(seconds_until_expired(&watching.usage()).await, None);
        drop(watch);
        assert_eq!(seconds_until_expired(&watching.usage()).await, Some(90));

        let unread = connections.admit(HERE).unwrap();
        let answer = unread.usage().begin();
        tokio::time::sleep(Duration::from_secs(50)).await;
        answer.touch();
        assert_eq!(seconds_until_expired(&unread.usage()).await, Some(90), "after its last byte");
    }

    /// Which of these connections were evicted.
    async fn evicted(admitted: &[Admitted]) -> Vec<usize> {
        let mut evicted = Vec::new();
        for (index, one) in admitted.iter().enumerate() {
            let soon = tokio::time::timeout(Duration::from_millis(1), async {
                one.usage().expired().await;
            });
            if soon.await.is_ok() {
                evicted.push(index);
            }
        }
        evicted
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_evicts_the_oldest_one_that_serves_no_request() {
        let connections = Connections::new(4);
        let all: Vec<Admitted> = (1..=4).map(|i| connections.admit(address(i)).unwrap()).collect();
        let _busy = all[0].usage().begin();
        drop(all[1].usage().begin());
        // The first is busy, the second idle; the third and fourth had no request.
        let next = connections.admit(address(5)).unwrap();
        assert_eq!(evicted(&all).await, [2]);
        let _watch = next.usage().begin().stream();
        let _more = connections.admit(address(6)).unwrap();
        assert_eq!(evicted(&all).await, [3]);
        let _last = connections.admit(address(7)).unwrap();
        assert!(evicted(&all).await.is_empty(), "the newest one without a request was evicted");
    }

    #[tokio::test(start_paused = true)]
    async fn busy_connections_are_never_evicted_but_unread_responses_are() {
        let connections = Connections::new(2);
        let all: Vec<Admitted> = (1..=2).map(|i| connections.admit(address(i)).unwrap()).collect();
        let _watch = all[0].usage().begin().stream();
        let _answer = all[1].usage().begin();
        assert!(connections.admit(address(3)).is_none());
        tokio::time::sleep(BUSY_MAX).await;
        assert!(connections.admit(address(3)).is_some());
        assert_eq!(evicted(&all).await, [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_cannot_take_all_connections() {
        let connections = Connections::new(8);
        let own: Vec<Admitted> = (0..4).map(|_| connections.admit(HERE).unwrap()).collect();
        let held: Vec<ActiveRequest> = own.iter().map(|one| one.usage().begin()).collect();
        assert!(connections.admit(HERE).is_none(), "all four are busy");
        assert!(connections.admit("::ffff:127.0.0.1".parse().unwrap()).is_none());
        let _others: Vec<Admitted> =
            (1..=4).map(|i| connections.admit(address(i)).unwrap()).collect();
        drop(held);
        assert!(connections.admit(HERE).is_some());
        drop(own);
        assert_eq!(connections.count(), 4);
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let one = |text: &str| client(text.parse().unwrap());
        assert_eq!(one("2001:db8::1"), one("2001:db8::ffff:2"));
        assert_ne!(one("2001:db8::1"), one("2001:db8:0:1::1"));
        assert_eq!(one("::1"), "::1".parse::<IpAddr>().unwrap());
    }
}
