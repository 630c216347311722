//! Capacity of the node, and how much of it pods may use (N-9, N-10, N-202).

use super::{Facts, Settings};
use api::quantity::Quantity as Parsed;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub(super) use super::Amounts as List;

/// Below this much memory pods are evicted (N-115), so it is not allocatable.
const MEMORY_RESERVE: i64 = 100 << 20;
/// The same for the filesystem: the reciprocal of the reserved fraction.
const STORAGE_RESERVE: i64 = 10;

/// The machine's resources, and extended resources that device plugins or tests have added.
pub(super) fn capacity(settings: &Settings, facts: &Facts, before: &List) -> List {
    let cores = whole(facts.machine.cores);
    let mut capacity: List = extended_resources(before);
    let per_core = settings.pods_per_core.saturating_mul(cores);
    let pods = if settings.pods_per_core > 0 {
        per_core.min(settings.pods_max)
    } else {
        settings.pods_max
    };
    let mut put =
        |name: &str, quantity: String| capacity.insert(name.to_owned(), Quantity(quantity));
    if cores > 0 {
        put("cpu", cores.to_string());
    }
    if facts.machine.memory > 0 {
        put("memory", binary(whole(facts.machine.memory)));
    }
    put("pods", pods.to_string());
    if let Some(storage) = facts.storage {
        put("ephemeral-storage", binary(whole(storage)));
    }
    for (size, pages) in &facts.machine.huge_pages {
        put(&huge_page_name(*size), binary(whole(size.saturating_mul(*pages))));
    }
    capacity
}

pub(super) fn allocatable(settings: &Settings, facts: &Facts, capacity: &List) -> List {
    let huge: i64 = facts
        .machine
        .huge_pages
        .iter()
        .map(|(size, pages)| whole(size.saturating_mul(*pages)))
        .sum();
    let reserved =
        |name: &str| settings.reserved.get(name).and_then(|text| Parsed::parse(text).ok());
    capacity
        .iter()
        .map(|(name, quantity)| {
            let Ok(all) = Parsed::parse(&quantity.0) else {
                return (name.clone(), quantity.clone());
            };
            let reserve = reserved(name).map_or(0, |it| it.value());
            let left = match name.as_str() {
                "cpu" => {
                    let reserve = reserved(name).map_or(0, |it| it.milli_value());
                    milli((all.milli_value() - reserve).max(0))
                }
                "memory" => binary((all.value() - reserve - MEMORY_RESERVE - huge).max(0)),
                "ephemeral-storage" => {
                    binary((all.value() - reserve - all.value() / STORAGE_RESERVE).max(0))
                }
                _ if reserve > 0 => binary((all.value() - reserve).max(0)),
                _ => quantity.0.clone(),
            };
            (name.clone(), Quantity(left))
        })
        .collect()
}

/// The required resources that are missing (N-15).
pub(super) fn missing(capacity: &List) -> Vec<&'static str> {
    let needed = ["cpu", "memory", "pods", "ephemeral-storage"];
    needed.into_iter().filter(|name| !capacity.contains_key(*name)).collect()
}

/// Extended resources, which have the domain of their owner.
fn extended_resources(list: &List) -> List {
    let is_extended = |name: &str| {
        let domain = name.split_once('/').map(|(domain, _)| domain);
        domain
            .is_some_and(|domain| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
    };
    list.iter().filter(|(name, _)| is_extended(name)).map(|(n, q)| (n.clone(), q.clone())).collect()
}

fn huge_page_name(size: u64) -> String {
    format!("hugepages-{}", binary(whole(size)))
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn milli(amount: i64) -> String {
    if amount % 1000 == 0 { (amount / 1000).to_string() } else { format!("{amount}m") }
}

/// Formats with the largest binary suffix that gives a whole number.
fn binary(bytes: i64) -> String {
    let suffixes = ["Ei", "Pi", "Ti", "Gi", "Mi", "Ki"];
    let fits = suffixes.iter().enumerate().find_map(|(i, suffix)| {
        let unit = 1i64 << (10 * (6 - i));
        (bytes != 0 && bytes % unit == 0).then(|| format!("{}{suffix}", bytes / unit))
    });
    fits.unwrap_or_else(|| bytes.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_object::Machine;

    fn facts() -> Facts {
        Facts {
            machine: Machine {
                cores: 2,
                memory: 4 << 30,
                huge_pages: vec![(2 << 20, 10), (1 << 30, 0)],
                ..Machine::default()
            },
            storage: Some(100 << 30),
            ..Facts::default()
        }
    }

    fn list(pairs: &[(&str, &str)]) -> List {
        pairs.iter().map(|(n, q)| (n.to_string(), Quantity(q.to_string()))).collect()
    }

    #[test]
    fn n_9_capacity_is_that_of_the_machine() {
        let settings = Settings::new("n", "/", "v");
        let expected = list(&[
            ("cpu", "2"),
            ("memory", "4Gi"),
            ("pods", "110"),
            ("ephemeral-storage", "100Gi"),
            ("hugepages-2Mi", "20Mi"),
            ("hugepages-1Gi", "0"),
        ]);
        assert_eq!(capacity(&settings, &facts(), &List::new()), expected);
        let few = Settings { pods_per_core: 10, ..settings };
        assert_eq!(capacity(&few, &facts(), &List::new())["pods"].0, "20");
    }

    #[test]
    fn n_10_allocatable_excludes_reservations_and_eviction_thresholds() {
        let reserved = [("cpu", "60m"), ("memory", "1Gi")];
        let reserved = reserved.map(|(n, q)| (n.to_owned(), q.to_owned())).into();
        let settings = Settings { reserved, ..Settings::new("n", "/", "v") };
        let capacity = capacity(&settings, &facts(), &List::new());
        let left = allocatable(&settings, &facts(), &capacity);
        assert_eq!(left["cpu"].0, "1940m");
        // 4096 − 1024 − 100 − 20 of huge pages.
        assert_eq!(left["memory"].0, "2952Mi");
        assert_eq!(left["ephemeral-storage"].0, "90Gi");
        assert_eq!(left["pods"].0, "110");
        let tiny = Facts { machine: Machine { memory: 1 << 20, ..facts().machine }, ..facts() };
        let capacity = super::capacity(&settings, &tiny, &List::new());
        assert_eq!(allocatable(&settings, &tiny, &capacity)["memory"].0, "0");
    }

    #[test]
    fn n_202_extended_resources_are_kept() {
        let settings = Settings::new("n", "/", "v");
        let before = list(&[("example.com/gpu", "3"), ("cpu", "99"), ("hugepages-64Ki", "1")]);
        let capacity = capacity(&settings, &facts(), &before);
        assert_eq!(capacity["example.com/gpu"].0, "3");
        assert_eq!(capacity["cpu"].0, "2");
        assert!(!capacity.contains_key("hugepages-64Ki"));
        assert_eq!(allocatable(&settings, &facts(), &capacity)["example.com/gpu"].0, "3");
    }
}
