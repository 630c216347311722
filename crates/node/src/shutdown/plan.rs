//! Decides in which order pods terminate in a shutdown, and with which grace period (T-NODE-87). Pure.
//!
//!     pods ──▶ groups by priority, the lowest first ──▶ each pod: its own grace period, or less
//!
//! Not here: terminating them (`shutdown`), and the report afterwards (`shortened`).

use crate::static_pods::{CRITICAL, is_critical};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::termination::pod_grace;
use std::sync::Arc;
use std::time::Duration;

/// The shutdown waits at least this long for a pod, however short its grace period is (T-NODE-84).
const WAIT_MIN: Duration = Duration::from_secs(10);

/// Grace periods when the node shuts down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Periods {
    /// Every pod has its own grace period. Critical pods terminate last.
    #[default]
    Own,
    /// One group per priority, the lowest first; no pod gets more time than its group.
    ByPriority(Vec<Period>),
}

/// Pods from this priority up to the next period's terminate within `length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    pub priority: i32,
    pub length: Duration,
}

impl Periods {
    /// The last part of `total` is for critical pods. Upstream: `shutdownGracePeriod` and
    /// `shutdownGracePeriodCriticalPods`.
    pub fn two(total: Duration, critical: Duration) -> Result<Periods, String> {
        let Some(others) = total.checked_sub(critical) else {
            return Err(format!(
                "the time for critical pods ({critical:?}) is longer than the time for all pods ({total:?})"
            ));
        };
        Periods::by_priority(vec![
            Period { priority: 0, length: others },
            Period { priority: CRITICAL, length: critical },
        ])
    }

    /// Upstream: `shutdownGracePeriodByPodPriority`.
    pub fn by_priority(mut periods: Vec<Period>) -> Result<Periods, String> {
        periods.sort_by_key(|period| period.priority);
        if periods.is_empty() {
            return Err("at least one period is needed".to_owned());
        }
        if let Some(pair) = periods.windows(2).find(|pair| pair[0].priority == pair[1].priority) {
            return Err(format!("priority {} has two periods", pair[0].priority));
        }
        Ok(Periods::ByPriority(periods))
    }

    /// How long the host has to wait at most. None: not limited.
    pub fn total(&self) -> Option<Duration> {
        match self {
            Periods::Own => None,
            Periods::ByPriority(periods) => Some(periods.iter().map(|period| period.length).sum()),
        }
    }
}

/// Pods that terminate at the same time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Group {
    pub(crate) pods: Vec<Arc<Pod>>,
    /// None: every pod has its own grace period.
    pub(crate) period: Option<Duration>,
}

impl Group {
    pub(crate) fn grace(&self, pod: &Pod) -> Duration {
        let own = pod_grace(pod, None, false);
        self.period.map_or(own, |period| own.min(period))
    }

    /// How long the next group waits for this one.
    pub(crate) fn wait(&self) -> Duration {
        let longest = || self.pods.iter().map(|pod| pod_grace(pod, None, false)).max();
        self.period.unwrap_or_else(|| wait_for(longest().unwrap_or_default()))
    }
}

/// How long the shutdown waits for a pod with this grace period (T-NODE-84).
pub(crate) fn wait_for(grace: Duration) -> Duration {
    WAIT_MIN.max(grace.mul_f64(1.5))
}

/// The groups in the order in which they terminate, without empty ones.
pub(crate) fn groups(periods: &Periods, pods: Vec<Arc<Pod>>) -> Vec<Group> {
    let mut groups = match periods {
        Periods::Own => {
            let (last, first) = pods.into_iter().partition(|pod| is_critical(pod));
            vec![Group { pods: first, period: None }, Group { pods: last, period: None }]
        }
        Periods::ByPriority(periods) => {
            let group = |p: &Period| Group { pods: Vec::new(), period: Some(p.length) };
            let mut groups: Vec<Group> = periods.iter().map(group).collect();
            for pod in pods {
                if let Some(group) = groups.get_mut(period_of(periods, &pod)) {
                    group.pods.push(pod);
                }
            }
            groups
        }
    };
    groups.retain(|group| !group.pods.is_empty());
    groups
}

/// The highest period not above the pod's priority; a pod below all of them is in the lowest.
fn period_of(periods: &[Period], pod: &Pod) -> usize {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
    periods.iter().rposition(|period| period.priority <= priority).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    const fn seconds(amount: u64) -> Duration {
        Duration::from_secs(amount)
    }

    fn pod(name: &str, priority: impl Into<Option<i32>>, grace: i64) -> Arc<Pod> {
        Arc::new(Pod {
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            spec: Some(PodSpec {
                priority: priority.into(),
                termination_grace_period_seconds: Some(grace),
                ..PodSpec::default()
            }),
            ..Pod::default()
        })
    }

    /// Names, in groups, with what each pod gets.
    fn plan(periods: &Periods, pods: Vec<Arc<Pod>>) -> Vec<Vec<(String, u64)>> {
        let name = |pod: &Arc<Pod>| pod.metadata.name.clone().unwrap();
        let given = |group: &Group| -> Vec<_> {
            group.pods.iter().map(|pod| (name(pod), group.grace(pod).as_secs())).collect()
        };
        groups(periods, pods).iter().map(given).collect()
    }

    fn by_priority(rows: &[(i32, u64)]) -> Periods {
        let period = |(priority, length): &(i32, u64)| Period {
            priority: *priority,
            length: seconds(*length),
        };
        Periods::by_priority(rows.iter().map(period).collect()).unwrap()
    }

    fn row(entries: &[(&str, u64)]) -> Vec<(String, u64)> {
        entries.iter().map(|(name, grace)| ((*name).to_owned(), *grace)).collect()
    }

    #[test]
    fn t_node_87_a_pod_gets_the_period_of_the_highest_priority_not_above_its_own() {
        let periods = by_priority(&[(1000, 50), (10_000, 60), (-10, 20)]);
        let pods = vec![
            pod("low", -11, 600),
            pod("none", None, 600),
            pod("at", 1000, 600),
            pod("between", 9_999, 600),
            pod("above", 20_000, 600),
        ];
        assert_eq!(
            plan(&periods, pods),
            [
                row(&[("low", 20), ("none", 20)]),
                row(&[("at", 50), ("between", 50)]),
                row(&[("above", 60)]),
            ]
        );
    }

    #[test]
    fn t_node_87_with_two_values_critical_pods_get_the_rest() {
        let periods = Periods::two(seconds(30), seconds(10)).unwrap();
        let pods = vec![pod("critical", CRITICAL, 600), pod("web", 0, 600), pod("quick", 5, 3)];
        assert_eq!(
            plan(&periods, pods),
            [row(&[("web", 20), ("quick", 3)]), row(&[("critical", 10)])]
        );
        assert_eq!(periods.total(), Some(seconds(30)));
        assert!(Periods::two(seconds(5), seconds(10)).is_err());
    }

    #[test]
    fn without_periods_every_pod_has_its_own_grace_period_and_critical_ones_are_last() {
        let pods = vec![pod("critical", CRITICAL, 40), pod("web", 100, 90), pod("job", -5, 0)];
        let plan = plan(&Periods::Own, pods);
        assert_eq!(plan, [row(&[("web", 90), ("job", 1)]), row(&[("critical", 40)])]);
    }

    #[test]
    fn t_node_84_no_wait_is_longer_than_one_and_a_half_grace_periods() {
        let group = |grace| Group { pods: vec![pod("p", 0, grace)], period: None };
        assert_eq!(group(1).wait(), seconds(10));
        assert_eq!(group(60).wait(), seconds(90));
        assert_eq!(Group { period: Some(seconds(4)), ..group(60) }.wait(), seconds(4));
    }

    #[test]
    fn empty_groups_are_not_waited_for() {
        let periods = by_priority(&[(0, 50), (100, 60)]);
        assert_eq!(groups(&periods, vec![pod("p", 200, 5)]).len(), 1);
    }

    #[test]
    fn a_priority_has_one_period() {
        let two = vec![Period { priority: 1, length: seconds(1) }; 2];
        assert!(Periods::by_priority(two).unwrap_err().contains("priority 1"));
        assert!(Periods::by_priority(Vec::new()).is_err());
    }
}
