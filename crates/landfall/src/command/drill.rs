//! The options of `landfall drill`.

use super::values::{data_dir, exact_duration, positive_duration};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct DrillCommand {
    /// The workload, such as deploy/web or statefulset/db
    #[arg(value_name = "KIND/NAME", required_unless_present = "file")]
    pub(crate) workload: Option<String>,
    /// Namespace of the workload [default: the kubeconfig's]
    #[arg(short, long, value_name = "NS")]
    pub(crate) namespace: Option<String>,
    /// Kubeconfig of the cluster [default: $KUBECONFIG, ~/.kube/config, or the one of `landfall up`]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Use the kubeconfig in this data directory
    #[arg(long, value_name = "DIR", value_parser = data_dir(), conflicts_with = "kubeconfig")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Share of requests that must be answered, in percent. Decides the exit code
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "99.9")]
    pub(crate) target: f64,
    /// Restarts per measured value
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100), default_value = "1")]
    pub(crate) restarts: u32,
    /// Requests per second, all kinds together
    #[arg(long, value_name = "R", value_parser = rate, default_value = "100")]
    pub(crate) rate: f64,
    /// Kinds of requests: `new` opens a connection for each, `keepalive` reuses connections, `slow` requests
    /// --slow-path
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "new,keepalive")]
    pub(crate) connections: Vec<Connections>,
    /// Path to request
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub(crate) path: String,
    /// Path whose answer takes long, for `slow` requests
    #[arg(long, value_name = "PATH")]
    pub(crate) slow_path: Option<String>,
    /// A request without an answer has failed after this time
    #[arg(long, value_name = "TIME", value_parser = exact_duration, default_value = "10s")]
    pub(crate) timeout: Duration,
    /// The Service to send requests through [default: the one that selects the workload's pods]
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<String>,
    /// Port of the Service, by name or number [default: http, 80, or its first]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<String>,
    /// Send requests to http://HOST[:PORT], such as a load balancer in front of the Service
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Send the requests from inside a pod (not supported yet)
    #[arg(long)]
    pub(crate) from_pod: bool,
    /// Delay the packet rules of all nodes of a landfall cluster by this time during the drill, such as
    /// 400ms or 100ms-2s, to imitate slow proxies
    #[arg(long, value_name = "TIME[-TIME]", value_parser = proxy_delay)]
    pub(crate) proxy_delay: Option<drill::ProxyDelay>,
    /// End the search after this time and report what is known by then
    #[arg(long = "for", value_name = "TIME", value_parser = positive_duration, default_value = "10m")]
    pub(crate) time_limit: Duration,
    /// Only restart and measure; do not vary preStop hook and grace period
    #[arg(long)]
    pub(crate) no_search: bool,
    /// The longest preStop sleep to try, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600), default_value = "60")]
    pub(crate) prestop_max: u32,

    /// Set the recommended values for good at the end, after confirmation
    #[arg(long, conflicts_with = "no_search")]
    pub(crate) apply: bool,
    /// Do not ask for confirmation. Needed where there is no terminal
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Put back what a killed drill has left changed, and do nothing else
    #[arg(long, conflicts_with_all = ["apply", "forecast"])]
    pub(crate) restore: bool,

    /// Compute the course of a rollout from the manifest; change nothing
    #[arg(long)]
    pub(crate) forecast: bool,
    /// With --forecast: read the workload from this file instead of a cluster (`-` is standard input)
    #[arg(short, long, value_name = "FILE", requires = "forecast")]
    pub(crate) file: Option<PathBuf>,
    /// With --forecast: time from a pod's creation until its server listens
    #[arg(long, value_name = "TIME", value_parser = exact_duration, requires = "forecast")]
    pub(crate) startup: Option<Duration>,

    /// What to print
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Format,
    /// Write a report with plots to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write a JUnit report to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
    Junit,
    Html,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Connections {
    New,
    Keepalive,
    Slow,
}

impl Connections {
    pub(crate) fn kind(self) -> drill::ConnectionKind {
        match self {
            Connections::New => drill::ConnectionKind::New,
            Connections::Keepalive => drill::ConnectionKind::Keepalive,
            Connections::Slow => drill::ConnectionKind::Slow,
        }
    }
}

/// `99.9` or `99.9%`, as a share.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim().parse::<f64>();
    match number {
        // Rounded, so that 999 of 1,000 answered requests reach 99.9 %.
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok((percent * 1e9).round() / 1e11),
        _ => Err("write a percentage above 0 and up to 100, such as 99.9".to_owned()),
    }
}

/// Requests per second that one machine can be asked for.
const RATE_MAX: f64 = 20_000.0;

fn rate(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(rate) if (1.0..=RATE_MAX).contains(&rate) => Ok(rate),
        _ => Err(format!("write a number of requests per second from 1 to {RATE_MAX}")),
    }
}

fn proxy_delay(text: &str) -> Result<drill::ProxyDelay, String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (exact_duration(from)?, exact_duration(to)?);
    match from <= to {
        true => Ok(drill::ProxyDelay { text: text.trim().to_owned(), longest: to }),
        false => Err("write the shorter time first, such as 100ms-2s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_become_shares() {
        assert_eq!(percent("99.9"), Ok(0.999));
        assert_eq!(percent("100%"), Ok(1.0));
        for bad in ["0", "-1", "101", "x", "NaN", ""] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn delays_and_rates_are_checked() {
        let delay = proxy_delay("100ms-2s").unwrap();
        assert_eq!((delay.text.as_str(), delay.longest), ("100ms-2s", Duration::from_secs(2)));
        assert!(proxy_delay("2s-1s").is_err());
        assert!(rate("0").is_err() && rate("1e9").is_err() && rate("50") == Ok(50.0));
    }
}
