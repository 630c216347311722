//! Leader election by a Lease: the holder of the Lease leads and renews it.
//!
//! Several servers may share one etcd, but each controller must run only once. Clocks of different machines are
//! never compared: as in upstream, a lease has expired when *this* process has observed no change of it for its
//! duration. Unlike upstream, candidates also watch the lease, so they take over as soon as it is released or expires.

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

/// How long a lease is valid without renewal. Upstream: `--leader-elect-lease-duration`.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);

/// A leader that could not renew for this long stops leading, well before another may start.
/// Upstream: `--leader-elect-renew-deadline`.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// The wait between two tries. Upstream: `--leader-elect-retry-period`.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Candidates spread their tries over this many additional periods. Upstream: `JitterFactor`.
const JITTER: f64 = 1.2;

/// Calls `run` whenever `identity`, which must be unique, holds the lease, until `stopped` resolves. The future that
/// `run` gets resolves when it must end: when the lease is lost, or at the stop. The lease is released after that.
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
        let record = |what: &str| {
            recorder.normal(&leadership.reference, "LeaderElection", format!("{identity} {what}"));
        };
        record("became leader");
        let (lost, stopped) = (leadership.lost(), stopped.clone());
        let over = async move {
            tokio::select! {
                biased;
                () = lost => (),
                () = stopped => (),
            }
        };
        run(over.boxed()).await;
        record("stopped leading");
        // If this fails, the lease expires by itself.
        let release = async { tokio::join!(leadership.release(), recorder.flush()).0 };
        match tokio::time::timeout(RETRY_PERIOD, release).await {
            Ok(Ok(())) => (),
            Ok(Err(error)) => tracing::debug!(%error, "cannot release the lease; it will expire"),
            Err(_) => tracing::debug!("releasing the lease timed out; it will expire"),
        }
    }
}

/// Holds a lease until [`Leadership::lost`] resolves. If this is dropped without [`Leadership::release`], the lease
/// expires by itself.
#[derive(Debug)]
pub struct Leadership {
    candidate: Candidate,
    leads: watch::Receiver<bool>,
    renewal: JoinHandle<()>,
    /// For events about the lease.
    reference: ObjectReference,
}

impl Leadership {
    /// Waits until `identity`, which must be unique, holds the lease.
    pub async fn acquire(client: &Client, lease: &ObjectKey, identity: &str) -> Leadership {
        let candidate =
            Candidate { client: client.clone(), lease: lease.clone(), identity: identity.into() };
        let mut observed = None;
        let watched = candidate.watch();
        let mut changes = watched.subscribe();
        let since = loop {
            let since = Instant::now();
            match candidate.attempt(&mut observed).await {
                Ok(true) => break since,
                Ok(false) => (),
                Err(error) => {
                    let error = crate::error::chain(&error);
                    tracing::warn!(%lease, error, "cannot acquire the lease; retrying");
                }
            }
            pause(observed.as_ref(), &mut changes).await;
        };
        tracing::info!(%lease, identity, "became leader");
        let (leading, leads) = watch::channel(true);
        let reference =
            observed.as_ref().map(|observed| reference(&observed.lease)).unwrap_or_default();
        let renewal = tokio::spawn(candidate.clone().renew(observed, since, leading));
        Leadership { candidate, leads, renewal, reference }
    }

    pub fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Resolves when the lease is lost. Everything that only a leader may do must stop then.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut leads = self.leads.clone();
        async move { drop(leads.wait_for(|leads| !leads).await) }
    }

    /// Stops leading and releases the lease, so that another can take over before it expires.
    pub async fn release(mut self) -> Result<()> {
        self.renewal.abort();
        // Wait for the task, so that no renewal comes after the release.
        let _ = (&mut self.renewal).await;
        self.candidate.release_lease().await
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Waits until the lease changes, expires, or the retry period is over. If it has already expired, the attempt to
/// take it has just failed, so only the retry period counts.
async fn pause(observed: Option<&ObservedLease>, changes: &mut Changes) {
    let retry = Instant::now() + RETRY_PERIOD.mul_f64(1.0 + JITTER * clock::random_fraction());
    let ahead = observed.map(ObservedLease::expires).filter(|at| *at > Instant::now());
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

/// The lease, and when this process first observed this version of it.
#[derive(Debug, Clone)]
struct ObservedLease {
    lease: Lease,
    since: Instant,
}

impl ObservedLease {
    fn expires(&self) -> Instant {
        let spec = self.lease.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        self.since + Duration::from_secs(seconds.max(0).unsigned_abs().into())
    }
}

#[derive(Debug, PartialEq)]
enum Step {
    Create,
    /// We hold it.
    Renew,
    /// Nobody holds it, or it has expired.
    Take,
    Wait,
}

/// What to do, given the observed lease.
fn decide(observed: Option<&ObservedLease>, identity: &str, now: Instant) -> Step {
    let Some(observed) = observed else {
        return Step::Create;
    };
    let spec = observed.lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    match holder {
        holder if holder == identity => Step::Renew,
        "" => Step::Take,
        _ if observed.expires() <= now => Step::Take,
        _ => Step::Wait,
    }
}

/// The spec of the lease as `identity` writes it at `now`.
fn new_spec(observed: Option<&Lease>, identity: &str, step: &Step, now: MicroTime) -> LeaseSpec {
    let before = observed.and_then(|lease| lease.spec.clone()).unwrap_or_default();
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
    async fn attempt(&self, observed: &mut Option<ObservedLease>) -> Result<bool> {
        let now = Instant::now();
        self.observe(observed, now).await?;
        let step = decide(observed.as_ref(), &self.identity, now);
        if step == Step::Wait {
            return Ok(false);
        }
        let before = observed.as_ref().map(|observed| &observed.lease);
        let spec = new_spec(before, &self.identity, &step, MicroTime(clock::now()));
        let lease = Lease { spec: Some(spec), ..before.cloned().unwrap_or_default() };
        match self.write(lease, &step).await {
            Ok(lease) => {
                *observed = Some(ObservedLease { lease, since: now });
                Ok(true)
            }
            // Another candidate was faster.
            Err(error) if error.is_conflict() || error.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn observe(&self, observed: &mut Option<ObservedLease>, now: Instant) -> Result<()> {
        let lease: Option<Lease> = self.client.find(&self.lease).await?;
        let Some(lease) = lease else {
            *observed = None;
            return Ok(());
        };
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        match observed {
            Some(observed) if version(&observed.lease) == version(&lease) => (),
            _ => *observed = Some(ObservedLease { lease, since: now }),
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

    /// Renews until that fails, then sets `leading` to false. `since` is the start of the last successful attempt;
    /// other candidates count the lease duration from no earlier time.
    async fn renew(
        self,
        mut observed: Option<ObservedLease>,
        mut since: Instant,
        leading: watch::Sender<bool>,
    ) {
        let lease = &self.lease;
        loop {
            let deadline = since + RENEW_DEADLINE;
            let _ = timeout_at(deadline, sleep(RETRY_PERIOD)).await;
            let begun = Instant::now();
            match timeout_at(deadline, self.attempt(&mut observed)).await {
                Ok(Ok(true)) => since = begun,
                Ok(Ok(false)) if self.is_held_by_other(&observed) => {
                    tracing::error!(%lease, "another process holds the lease; this one stops leading");
                    break;
                }
                Ok(Ok(false)) => (),
                Ok(Err(error)) => {
                    let error = crate::error::chain(&error);
                    tracing::warn!(%lease, error, "cannot renew the lease; retrying");
                }
                Err(_) => {
                    tracing::error!(%lease, "the lease was not renewed in time; this process stops leading");
                    break;
                }
            }
        }
        leading.send_replace(false);
    }

    fn is_held_by_other(&self, observed: &Option<ObservedLease>) -> bool {
        let spec = observed.as_ref().and_then(|observed| observed.lease.spec.as_ref());
        spec.and_then(|spec| spec.holder_identity.as_ref())
            .is_some_and(|holder| !holder.is_empty() && *holder != self.identity)
    }

    async fn release_lease(&self) -> Result<()> {
        let Some(mut lease) = self.client.find::<Lease>(&self.lease).await? else {
            return Ok(());
        };
        let now = MicroTime(clock::now());
        match lease.spec.as_mut() {
            Some(spec) if spec.holder_identity.as_ref() == Some(&self.identity) => {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1); // Zero is invalid.
                spec.acquire_time = Some(now.clone());
                spec.renew_time = Some(now);
            }
            _ => return Ok(()), // Another process holds it.
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

    fn observed(holder: &str, seconds: i32, since: Instant) -> ObservedLease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(seconds),
            lease_transitions: Some(4),
            acquire_time: Some(MicroTime(Default::default())),
            ..LeaseSpec::default()
        };
        ObservedLease { lease: Lease { spec: Some(spec), ..Lease::default() }, since }
    }

    #[test]
    fn a_lease_is_taken_only_when_free_or_expired() {
        let since = Instant::now();
        let check = |story: &str, observed: Option<ObservedLease>, after: u64, step: Step| {
            let now = since + Duration::from_secs(after);
            assert_eq!(decide(observed.as_ref(), "me", now), step, "{story}");
        };
        check("there is none", None, 0, Step::Create);
        check("we hold it", Some(observed("me", 15, since)), 3, Step::Renew);
        check("we hold it, expired", Some(observed("me", 15, since)), 99, Step::Renew);
        check("another holds it", Some(observed("you", 15, since)), 14, Step::Wait);
        check("another's, expired", Some(observed("you", 15, since)), 15, Step::Take);
        check("released", Some(observed("", 1, since)), 0, Step::Take);
        check("an invalid duration", Some(observed("you", -3, since)), 0, Step::Take);
    }

    #[test]
    fn transitions_count_changes_of_the_holder() {
        let now = || MicroTime(clock::now());
        let before = observed("you", 15, Instant::now()).lease;
        let taken = new_spec(Some(&before), "me", &Step::Take, now());
        assert_eq!(
            (taken.lease_transitions, taken.holder_identity.as_deref()),
            (Some(5), Some("me"))
        );
        let ours = Lease { spec: Some(taken.clone()), ..Lease::default() };
        let renewed = new_spec(Some(&ours), "me", &Step::Renew, now());
        assert_eq!(renewed.lease_transitions, Some(5));
        assert_eq!(renewed.acquire_time, taken.acquire_time);
        assert_eq!(new_spec(None, "me", &Step::Create, now()).lease_transitions, Some(0));
    }

    #[test]
    fn renew_deadline_is_well_before_the_end_of_the_lease() {
        assert!(RENEW_DEADLINE + RETRY_PERIOD < LEASE_DURATION);
    }
}
