//! One of several: who holds a Lease leads, and renews it for as long as it can.
//!
//! Several servers may share one etcd, but each controller must run once. Clocks are never compared:
//! a lease has run out when *we* have seen no change of it for its duration, as upstream does it. Unlike
//! upstream, who waits also watches the lease: it is followed the moment it is let go or has run out.

use crate::{Cache, Changes, Client, Error, ObjectKey, Recorder, Result, reference};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// How long a lease holds without being renewed. Upstream: `--leader-elect-lease-duration`.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);

/// A leader that could not renew for so long stops leading: well before another may start.
/// Upstream: `--leader-elect-renew-deadline`.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// The wait between two tries. Upstream: `--leader-elect-retry-period`.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Those who wait for a lease spread their tries over so many more periods. Upstream: `JitterFactor`.
const JITTER: f64 = 1.2;

/// Does `run` whenever `identity`, which must be nobody else's, holds the lease, until `stopped`. What
/// it is given resolves when it has to end: when the lease is lost, or at the stop, after which the
/// lease is let go.
pub async fn lead<F: Future<Output = ()>>(
    client: &Client,
    lease: &ObjectKey,
    identity: &str,
    stopped: impl Future<Output = ()> + Send + 'static,
    mut run: impl FnMut(BoxFuture<'static, ()>) -> F,
) {
    let stopped = stopped.boxed().shared();
    let recorder = Recorder::new(client, lease.name(), "");
    while stopped.peek().is_none() {
        let leadership = tokio::select! {
            biased;
            leadership = Leadership::acquire(client, lease, identity) => leadership,
            () = stopped.clone() => return,
        };
        let said = |what: &str| {
            recorder.normal(&leadership.held, "LeaderElection", format!("{identity} {what}"));
        };
        said("became leader");
        let (lost, stopped) = (leadership.lost(), stopped.clone());
        let over = async move {
            tokio::select! {
                biased;
                () = lost => (),
                () = stopped => (),
            }
        };
        run(over.boxed()).await;
        said("stopped leading");
        // Who cannot be told finds out: the lease runs out by itself.
        let farewell = async { tokio::join!(leadership.release(), recorder.flush()).0 };
        match tokio::time::timeout(RETRY_PERIOD, farewell).await {
            Ok(Ok(())) => (),
            Ok(Err(error)) => tracing::debug!(%error, "the lease could not be let go"),
            Err(_) => tracing::debug!("the lease could not be let go in time"),
        }
    }
}

/// We lead, until [`Leadership::lost`] says otherwise. Dropped without [`Leadership::release`], the
/// lease runs out by itself.
#[derive(Debug)]
pub struct Leadership {
    candidate: Candidate,
    leads: watch::Receiver<bool>,
    renewal: JoinHandle<()>,
    /// For what is said about it.
    held: ObjectReference,
}

impl Leadership {
    /// Waits until `identity`, which must be nobody else's, holds the lease.
    pub async fn acquire(client: &Client, lease: &ObjectKey, identity: &str) -> Leadership {
        let candidate =
            Candidate { client: client.clone(), lease: lease.clone(), identity: identity.into() };
        let mut seen = None;
        let watched = candidate.watch();
        let mut changes = watched.subscribe();
        let since = loop {
            let since = Instant::now();
            match candidate.attempt(&mut seen).await {
                Ok(true) => break since,
                Ok(false) => (),
                Err(error) => {
                    let error = crate::error::chain(&error);
                    tracing::warn!(%lease, error, "cannot try to lead");
                }
            }
            pause(seen.as_ref(), &mut changes).await;
        };
        tracing::info!(%lease, identity, "leading");
        let (leading, leads) = watch::channel(true);
        let held = seen.as_ref().map(|seen| reference(&seen.lease)).unwrap_or_default();
        let renewal = tokio::spawn(candidate.clone().renew(seen, since, leading));
        Leadership { candidate, leads, renewal, held }
    }

    pub fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Returns when we lead no more. Whatever only a leader may do must stop then.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut leads = self.leads.clone();
        async move { drop(leads.wait_for(|leads| !leads).await) }
    }

    /// Stops leading and lets another begin at once, not only when the lease has run out.
    pub async fn release(mut self) -> Result<()> {
        self.renewal.abort();
        // No renewal may come after the release.
        let _ = (&mut self.renewal).await;
        self.candidate.let_go().await
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Until it is worth another look: the lease has changed, will have run out, or simply after a while.
/// One that has run out already could not be taken just now; that is no reason to hurry.
async fn pause(seen: Option<&Seen>, changes: &mut Changes) {
    let chance = (clock::random_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let retry = Instant::now() + RETRY_PERIOD.mul_f64(1.0 + JITTER * chance);
    let ahead = seen.map(Seen::runs_out).filter(|at| *at > Instant::now());
    let due = ahead.map_or(retry, |at| retry.min(at));
    tokio::select! {
        biased;
        _ = changes.next() => (),
        () = sleep_until(due) => (),
    }
}

#[derive(Debug, Clone)]
struct Candidate {
    client: Client,
    lease: ObjectKey,
    identity: String,
}

/// The lease, and since when we have seen it like that.
#[derive(Debug, Clone)]
struct Seen {
    lease: Lease,
    since: Instant,
}

impl Seen {
    fn runs_out(&self) -> Instant {
        let spec = self.lease.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        self.since + Duration::from_secs(seconds.max(0).unsigned_abs().into())
    }
}

#[derive(Debug, PartialEq)]
enum Step {
    Create,
    /// Ours already: say that we are still here.
    Renew,
    /// Nobody's any more.
    Take,
    Wait,
}

/// What to do about the lease as we see it.
fn decide(seen: Option<&Seen>, identity: &str, now: Instant) -> Step {
    let Some(seen) = seen else {
        return Step::Create;
    };
    let spec = seen.lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    match holder {
        holder if holder == identity => Step::Renew,
        "" => Step::Take,
        _ if seen.runs_out() <= now => Step::Take,
        _ => Step::Wait,
    }
}

/// The lease as `identity` writes it, at `now`.
fn written(seen: Option<&Lease>, identity: &str, step: &Step, now: MicroTime) -> LeaseSpec {
    let before = seen.and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let renewal = *step == Step::Renew;
    let transitions = before.lease_transitions.unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(LEASE_DURATION.as_secs() as i32),
        acquire_time: before.acquire_time.filter(|_| renewal).or(Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(transitions + i32::from(*step == Step::Take)),
        ..before
    }
}

impl Candidate {
    fn watch(&self) -> Cache<Lease> {
        let name = format!("metadata.name={}", self.lease.name());
        Cache::builder(&self.client).namespace(self.lease.namespace()).fields(&name).start()
    }

    /// Reads the lease, and writes it if we may. True if we hold it now.
    async fn attempt(&self, seen: &mut Option<Seen>) -> Result<bool> {
        let now = Instant::now();
        self.look(seen, now).await?;
        let step = decide(seen.as_ref(), &self.identity, now);
        if step == Step::Wait {
            return Ok(false);
        }
        let before = seen.as_ref().map(|seen| &seen.lease);
        let spec = written(before, &self.identity, &step, MicroTime(clock::now()));
        let lease = Lease { spec: Some(spec), ..before.cloned().unwrap_or_default() };
        match self.write(lease, &step).await {
            Ok(lease) => {
                *seen = Some(Seen { lease, since: now });
                Ok(true)
            }
            // Another was faster.
            Err(error) if error.is_conflict() || error.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn look(&self, seen: &mut Option<Seen>, now: Instant) -> Result<()> {
        let lease: Option<Lease> = self.client.find(&self.lease).await?;
        let Some(lease) = lease else {
            *seen = None;
            return Ok(());
        };
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        match seen {
            Some(seen) if version(&seen.lease) == version(&lease) => (),
            _ => *seen = Some(Seen { lease, since: now }),
        }
        Ok(())
    }

    async fn write(&self, mut lease: Lease, step: &Step) -> Result<Lease> {
        if *step == Step::Create {
            lease.metadata.namespace = Some(self.lease.namespace().to_owned());
            lease.metadata.name = Some(self.lease.name().to_owned());
            return self.client.create(&lease).await;
        }
        self.client.update(&lease).await
    }

    /// Renews until it cannot, then says so. `since` is when the last good try began: from then on
    /// others count.
    async fn renew(self, mut seen: Option<Seen>, mut since: Instant, leading: watch::Sender<bool>) {
        let lease = &self.lease;
        loop {
            let deadline = since + RENEW_DEADLINE;
            let _ = timeout_at(deadline, sleep(RETRY_PERIOD)).await;
            let begun = Instant::now();
            match timeout_at(deadline, self.attempt(&mut seen)).await {
                Ok(Ok(true)) => since = begun,
                Ok(Ok(false)) if self.is_anothers(&seen) => {
                    tracing::error!(%lease, "another leads");
                    break;
                }
                Ok(Ok(false)) => (),
                Ok(Err(error)) => {
                    let error = crate::error::chain(&error);
                    tracing::warn!(%lease, error, "cannot renew; trying again");
                }
                Err(_) => {
                    tracing::error!(%lease, "could not renew in time; leading no more");
                    break;
                }
            }
        }
        leading.send_replace(false);
    }

    fn is_anothers(&self, seen: &Option<Seen>) -> bool {
        let spec = seen.as_ref().and_then(|seen| seen.lease.spec.as_ref());
        spec.and_then(|spec| spec.holder_identity.as_ref())
            .is_some_and(|holder| !holder.is_empty() && *holder != self.identity)
    }

    async fn let_go(&self) -> Result<()> {
        let Some(mut lease) = self.client.find::<Lease>(&self.lease).await? else {
            return Ok(());
        };
        let now = MicroTime(clock::now());
        match lease.spec.as_mut() {
            Some(spec) if spec.holder_identity.as_ref() == Some(&self.identity) => {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1); // Zero would not be valid.
                spec.acquire_time = Some(now.clone());
                spec.renew_time = Some(now);
            }
            _ => return Ok(()), // It is another's, and none of our business.
        }
        match self.client.update(&lease).await {
            Ok(_) => Ok(()),
            Err(Error::Refused { status, .. }) if status.reason == "Conflict" => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(holder: &str, seconds: i32, since: Instant) -> Seen {
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(seconds),
            lease_transitions: Some(4),
            acquire_time: Some(MicroTime(Default::default())),
            ..LeaseSpec::default()
        };
        Seen { lease: Lease { spec: Some(spec), ..Lease::default() }, since }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_nobodys_and_not_before() {
        let since = Instant::now();
        let check = |story: &str, seen: Option<Seen>, after: u64, step: Step| {
            let now = since + Duration::from_secs(after);
            assert_eq!(decide(seen.as_ref(), "me", now), step, "{story}");
        };
        check("there is none", None, 0, Step::Create);
        check("it is ours", Some(seen("me", 15, since)), 3, Step::Renew);
        check("it is ours, though late", Some(seen("me", 15, since)), 99, Step::Renew);
        check("another's, alive", Some(seen("you", 15, since)), 14, Step::Wait);
        check("another's, silent", Some(seen("you", 15, since)), 15, Step::Take);
        check("let go", Some(seen("", 1, since)), 0, Step::Take);
        check("nonsense holds nobody up", Some(seen("you", -3, since)), 0, Step::Take);
    }

    #[test]
    fn a_change_of_holder_is_counted_and_a_renewal_is_not() {
        let now = || MicroTime(clock::now());
        let before = seen("you", 15, Instant::now()).lease;
        let taken = written(Some(&before), "me", &Step::Take, now());
        assert_eq!(
            (taken.lease_transitions, taken.holder_identity.as_deref()),
            (Some(5), Some("me"))
        );
        let ours = Lease { spec: Some(taken.clone()), ..Lease::default() };
        let renewed = written(Some(&ours), "me", &Step::Renew, now());
        assert_eq!(renewed.lease_transitions, Some(5));
        assert_eq!(renewed.acquire_time, taken.acquire_time);
        assert_eq!(written(None, "me", &Step::Create, now()).lease_transitions, Some(0));
    }

    #[test]
    fn a_leader_stops_well_before_another_may_start() {
        assert!(RENEW_DEADLINE + RETRY_PERIOD < LEASE_DURATION);
    }
}
