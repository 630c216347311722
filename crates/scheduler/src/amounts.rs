//! Amounts of resources of nodes and pods.
//!
//! Not here: how the containers of a pod are added up (`lifecycle::resources`).

use api::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::api::resource;
use std::collections::BTreeMap;

pub(crate) type List = BTreeMap<String, resource::Quantity>;

pub(crate) const CPU: &str = "cpu";
pub(crate) const MEMORY: &str = "memory";
pub(crate) const STORAGE: &str = "ephemeral-storage";
pub(crate) const PODS: &str = "pods";

/// An amount of each resource: CPU in thousandths, everything else in its base unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) cpu: i64,
    pub(crate) memory: i64,
    pub(crate) storage: i64,
    /// Huge pages and extended resources.
    pub(crate) others: BTreeMap<String, i64>,
}

impl Amounts {
    pub(crate) fn of(list: Option<&List>) -> Amounts {
        let mut amounts = Amounts::default();
        for (name, quantity) in list.into_iter().flatten() {
            amounts.set(name, amount(name, quantity));
        }
        amounts
    }

    /// From the sums of `lifecycle`.
    pub(crate) fn counted(list: &BTreeMap<String, Quantity>) -> Amounts {
        let mut amounts = Amounts::default();
        for (name, quantity) in list {
            amounts.set(name, in_units(name, *quantity));
        }
        amounts
    }

    fn set(&mut self, name: &str, amount: i64) {
        match name {
            CPU => self.cpu = amount,
            MEMORY => self.memory = amount,
            STORAGE => self.storage = amount,
            PODS => (),
            _ => drop(self.others.insert(name.to_owned(), amount)),
        }
    }

    pub(crate) fn get(&self, name: &str) -> i64 {
        match name {
            CPU => self.cpu,
            MEMORY => self.memory,
            STORAGE => self.storage,
            _ => self.others.get(name).copied().unwrap_or_default(),
        }
    }

    pub(crate) fn add(&mut self, more: &Amounts) {
        self.combine(more, i64::saturating_add);
    }

    pub(crate) fn subtract(&mut self, less: &Amounts) {
        self.combine(less, i64::saturating_sub);
        self.others.retain(|_, amount| *amount != 0);
    }

    fn combine(&mut self, other: &Amounts, with: fn(i64, i64) -> i64) {
        self.cpu = with(self.cpu, other.cpu);
        self.memory = with(self.memory, other.memory);
        self.storage = with(self.storage, other.storage);
        for (name, amount) in &other.others {
            let mine = self.others.entry(name.clone()).or_default();
            *mine = with(*mine, *amount);
        }
    }

    /// All resources with a positive amount.
    pub(crate) fn positive(&self) -> impl Iterator<Item = (&str, i64)> {
        let named = [(CPU, self.cpu), (MEMORY, self.memory), (STORAGE, self.storage)];
        let others = self.others.iter().map(|(name, amount)| (name.as_str(), *amount));
        named.into_iter().chain(others).filter(|(_, amount)| *amount > 0)
    }
}

pub(crate) fn amount(name: &str, quantity: &resource::Quantity) -> i64 {
    // The API rejects invalid quantities.
    in_units(name, Quantity::parse(&quantity.0).unwrap_or(Quantity::ZERO))
}

fn in_units(name: &str, quantity: Quantity) -> i64 {
    if name == CPU { quantity.milli_value() } else { quantity.value() }
}
