//! Deadlines on a busy machine.

use super::node::on_a_node;
use super::witness::GONE;
use crate::harness::Background;
use serde_json::json;
use std::process::Command;

/// How late or early the median kill may be. On an idle machine it is one or two milliseconds, which
/// `scripts/bench-pods` measures; here other tests run in parallel.
const OFF_MAX: f64 = 0.25;

/// W-5, T-EDGE-6: with two busy processes per core, a kill comes when it is due.
#[test]
fn deadlines_are_kept_on_a_busy_machine() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let names: Vec<String> = (0..6).map(|number| format!("w{number}")).collect();
        let pods: Vec<_> = names
            .iter()
            .map(|name| {
                place.pod(name, 3, vec![place.witness(name, "--term ignore", json!({}))], json!({}))
            })
            .collect();
        node.run(&pods, &names.iter().map(String::as_str).collect::<Vec<_>>());
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let spin = || Background::spawn(Command::new("sh").args(["-c", "while :; do :; done"]));
        let busy: Vec<Background> = (0..2 * cores).map(|_| spin()).collect();
        node.delete(&names.join(" "));
        let mut off: Vec<f64> =
            names.iter().map(|name| place.between((name, "SIGTERM"), (name, GONE)) - 3.0).collect();
        drop(busy);
        off.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
        eprintln!("kills were off by {off:.4?} s");
        assert!(off[off.len() / 2].abs() < OFF_MAX, "off by {off:.3?} s");
    });
}
