//! When a certificate is renewed: well before it expires, and not all certificates of a cluster at the same time.

use crate::Error;
use jiff::{SignedDuration, Timestamp};
use rustls_pki_types::CertificateDer;
use std::time::Duration;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The part of its lifetime after which a certificate is renewed: at random between the first and the sum of both.
/// Upstream: `jitteryDuration` of the certificate manager.
const DUE_AFTER: f64 = 0.7;
const DUE_SPREAD: f64 = 0.2;

/// The delays between failed attempts, doubling from the first to the maximum.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The minimum time between two renewals, however short the lifetime of the new certificate.
const PAUSE_MIN: Duration = Duration::from_secs(60);
/// How often the wall clock is checked, because a machine may have been suspended.
const CLOCK_CHECK: Duration = Duration::from_secs(600);

/// The time in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl Validity {
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Validity, Error> {
        let (_, read) = X509Certificate::from_der(certificate).map_err(Error::of)?;
        let time = |seconds| Timestamp::from_second(seconds).map_err(Error::of);
        let dates = read.validity();
        let from = time(dates.not_before.timestamp())?;
        Ok(Validity { from, until: time(dates.not_after.timestamp())? })
    }

    /// The validity of the first certificate in a PEM file.
    pub fn of_pem(pem: &str) -> Result<Validity, Error> {
        let chain = crate::certificates(pem)?;
        Validity::of(chain.first().ok_or_else(|| Error("there is no certificate".into()))?)
    }

    pub fn has_ended(&self, now: Timestamp) -> bool {
        self.until <= now
    }
}

/// When to renew. `chance` is at least 0 and less than 1.
pub fn due(life: Validity, chance: f64) -> Timestamp {
    let whole = life.until.duration_since(life.from).as_secs_f64().max(0.0);
    let part = SignedDuration::from_secs_f64(whole * (DUE_AFTER + DUE_SPREAD * chance));
    life.from.saturating_add(part).unwrap_or(life.until)
}

/// Renews a certificate for as long as this is polled. `renew` obtains the next one, puts it to use, and returns its
/// validity. Without a `first` certificate it is called at once. `whose` is for the log.
pub async fn keep<Renewed, Why>(
    whose: &str,
    first: Option<Validity>,
    mut renew: impl FnMut() -> Renewed,
) where
    Renewed: Future<Output = Result<Validity, Why>>,
    Why: std::fmt::Display,
{
    let mut life = first;
    loop {
        if let Some(life) = life {
            until(due(life, clock::random_fraction())).await;
        }
        let mut wait = RETRY_FIRST;
        let next = loop {
            match renew().await {
                Ok(life) => break life,
                Err(why) => {
                    let ends = life.map(|life| tracing::field::display(life.until));
                    tracing::warn!(%why, ends, "renewing the {whose} certificate failed");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(RETRY_MAX);
                }
            }
        };
        tracing::info!(until = %next.until, "renewed the {whose} certificate");
        life = Some(next);
        tokio::time::sleep(PAUSE_MIN).await;
    }
}

async fn until(moment: Timestamp) {
    loop {
        let left = moment.duration_since(clock::now());
        let Ok(left) = Duration::try_from(left) else { return };
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(CLOCK_CHECK)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const EPOCH: i64 = 1_800_000_000;
    const DAY: i64 = 24 * 3600;

    fn life(from: i64, until: i64) -> Validity {
        let time = |seconds| Timestamp::from_second(EPOCH + seconds).unwrap();
        Validity { from: time(from), until: time(until) }
    }

    /// N-3, C-150: a node renews its certificate before it expires.
    #[test]
    fn a_certificate_is_due_after_70_to_90_percent_of_its_lifetime() {
        for (chance, second) in [(0.0, 700), (0.5, 800), (0.999, 899)] {
            let due = due(life(0, 1000), chance).as_second() - EPOCH;
            assert_eq!(due, second, "{chance}");
        }
        assert!(due(life(10, 10), 0.5) == life(10, 10).from, "no life at all");
    }

    /// C-150: a year on a simulated clock. Every renewal is in its window, failures are retried, and a certificate without
    /// lifetime does not cause a busy loop.
    #[tokio::test(start_paused = true)]
    async fn certificates_are_renewed_in_their_window_even_after_failures() {
        clock::simulate(Timestamp::from_second(EPOCH).unwrap(), 7);
        let renewals = RefCell::new(Vec::new());
        let now = || clock::now().as_second() - EPOCH;
        let renew = || {
            let (at, count) = (now(), renewals.borrow().len());
            renewals.borrow_mut().push(at);
            async move {
                match count {
                    // The server is away for the second renewal's first three attempts.
                    1..=3 => Err("the server is unreachable"),
                    5 => Ok(life(at, at)),
                    _ => Ok(life(at, at + 30 * DAY)),
                }
            }
        };
        let kept = keep("node's client", Some(life(0, 100 * DAY)), renew);
        let _ = tokio::time::timeout(Duration::from_secs(365 * 24 * 3600), kept).await;
        let renewals = renewals.into_inner();
        let within = |at: i64, from: i64, days: i64| {
            let part = (at - from) as f64 / (days * DAY) as f64;
            assert!((0.7..0.91).contains(&part), "{at} of {days} days from {from}");
        };
        within(renewals[0], 0, 100);
        within(renewals[1], renewals[0], 30);
        assert_eq!(
            [renewals[2] - renewals[1], renewals[3] - renewals[2], renewals[4] - renewals[3]],
            [2, 4, 8]
        );
        within(renewals[5], renewals[4], 30);
        assert_eq!(renewals[6] - renewals[5], 60, "one without lifetime is replaced after a pause");
        renewals[6..].windows(2).for_each(|pair| within(pair[1], pair[0], 30));
        assert!(renewals.len() > 14, "{renewals:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_certificate_is_requested_at_once() {
        clock::simulate(Timestamp::from_second(EPOCH).unwrap(), 7);
        let renewals = RefCell::new(Vec::new());
        let renew = || {
            let at = clock::now().as_second() - EPOCH;
            renewals.borrow_mut().push(at);
            std::future::ready(Ok::<_, String>(life(at, at + 30 * DAY)))
        };
        let kept = keep("node's serving", None, renew);
        let _ = tokio::time::timeout(Duration::from_secs(3600), kept).await;
        assert_eq!(renewals.into_inner(), [0]);
    }
}
