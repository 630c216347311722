//! Resource usage of nodes and pods, printed as by metrics-server: `kubectl get podmetrics`.

use super::column::{NAME, Printed, text};
use super::subject::Subject;
use crate::quantity::Quantity;
use serde_json::Value;

const CPU: &str = "Cores in use, averaged over the window.";
const MEMORY: &str = "Memory in use that cannot be given back easily.";

pub(super) const NODE: &[Printed] = &[
    NAME,
    text("cpu", CPU, |o| o.text("usage.cpu").into()),
    text("memory", MEMORY, |o| o.text("usage.memory").into()),
    WINDOW,
];

pub(super) const POD: &[Printed] = &[
    NAME,
    text("cpu", CPU, |o| sum(o, "cpu")),
    text("memory", MEMORY, |o| sum(o, "memory")),
    WINDOW,
];

const WINDOW: Printed =
    text("Window", "The time over which the use was measured.", |o| o.text("window").into());

fn sum(o: &Subject, resource: &str) -> Value {
    let amounts = o.list("containers").iter();
    let amounts = amounts.filter_map(|one| Quantity::from_value(&one["usage"][resource]));
    amounts.fold(Quantity::ZERO, |sum, amount| sum + amount).to_string().into()
}
