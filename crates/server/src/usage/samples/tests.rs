//! Tables: successive metrics pages of an agent, and the resulting usage.

use super::*;

fn page(text: &str) -> Vec<ParsedSample> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut whole = String::new();
    let mut last = "";
    for line in &lines {
        let name = line.split(['{', ' ']).next().unwrap();
        if name != last {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            whole += &format!("# TYPE {name} {kind}\n");
            last = name;
        }
        whole += &format!("{line}\n");
    }
    metrics::parse(&whole).unwrap()
}

/// A sample at `at` (seconds) of container `c` of pod `n/p`, which started at `started`.
fn container(started: i64, at: i64, cpu: f64, memory: u64) -> Vec<ParsedSample> {
    let of = "container=\"c\",namespace=\"n\",pod=\"p\"";
    page(&format!(
        "container_cpu_usage_seconds_total{{{of}}} {cpu} {at}000
         container_memory_working_set_bytes{{{of}}} {memory} {at}000
         container_start_time_seconds{{{of}}} {started}"
    ))
}

/// Nanocores, window in seconds and bytes of `n/p` after these pages.
fn after(pages: &[Vec<ParsedSample>]) -> Option<(u64, i64, u64)> {
    let all = pages.iter().fold(NodeSamples::default(), |known, page| known.after(page));
    let used = all.pod("n/p")?;
    let [("c", used)] = used[..] else { panic!("{used:?}") };
    Some((used.cpu_nanocores, used.window.as_secs(), used.memory_bytes))
}

#[test]
fn c_138_cpu_is_the_rate_between_the_last_two_samples() {
    let old = |at, cpu| container(1000, at, cpu, 4096);
    for (case, pages, expected) in [
        ("one sample is no rate", vec![old(2000, 5.0)], None),
        (
            "half a core for 15 s",
            vec![old(2000, 5.0), old(2015, 12.5)],
            Some((500_000_000, 15, 4096)),
        ),
        (
            "the first of three is forgotten",
            vec![old(2000, 0.0), old(2015, 15.0), old(2030, 15.0)],
            Some((0, 15, 4096)),
        ),
        (
            "the same sample again changes nothing",
            vec![old(2000, 5.0), old(2010, 10.0), old(2010, 10.0)],
            Some((500_000_000, 10, 4096)),
        ),
        (
            "restarted: no rate across two runs",
            vec![old(2000, 5.0), container(2010, 2015, 6.0, 4096)],
            None,
        ),
        (
            "restarted between two samples: the counter decreased",
            vec![old(2000, 5.0), old(2015, 1.0)],
            None,
        ),
        (
            "it has just started: one sample is enough",
            vec![container(2000, 2012, 6.0, 4096)],
            Some((500_000_000, 12, 4096)),
        ),
        ("but not too just", vec![container(2000, 2009, 6.0, 4096)], None),
        (
            "with a sample before, that one counts",
            vec![container(2000, 2005, 1.0, 4096), container(2000, 2015, 2.0, 8192)],
            Some((100_000_000, 10, 8192)),
        ),
        (
            "what is not told any more is not known",
            vec![old(2000, 5.0), vec![], old(2030, 6.0)],
            None,
        ),
        ("no memory: it has ended", vec![container(2000, 2012, 6.0, 0)], None),
    ] {
        assert_eq!(after(&pages), expected, "{case}");
    }
}

#[test]
fn c_138_a_pod_has_no_usage_until_all_its_containers_are_measured() {
    let both = |at: i64, second: &str| {
        let mut text = String::new();
        for name in ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes"] {
            for container in ["a", second] {
                text += &format!(
                    "{name}{{container=\"{container}\",namespace=\"n\",pod=\"p\"}} 7 {at}000\n"
                );
            }
        }
        page(&text)
    };
    let known = NodeSamples::default().after(&both(100, "b")).after(&both(115, "b"));
    let names: Vec<&str> = known.pod("n/p").unwrap().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(known.after(&both(130, "new")).pod("n/p"), None);
}

#[test]
fn c_138_the_node_is_measured_as_a_whole() {
    let at = |at: i64, cpu: f64| {
        page(&format!(
            "node_cpu_usage_seconds_total {cpu} {at}000
             node_memory_working_set_bytes 1048576 {at}000"
        ))
    };
    let known = NodeSamples::default().after(&at(100, 50.0));
    assert_eq!(known.node(), None);
    let used = known.after(&at(110, 65.0)).node().unwrap();
    assert_eq!((used.cpu_nanocores, used.memory_bytes), (1_500_000_000, 1_048_576));
}
