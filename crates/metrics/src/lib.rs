//! Counts, gauges and histograms as Prometheus reads them. See README.md.

mod check;
mod family;
mod page;
mod registry;

pub use check::{Shown, check};
pub use family::{Family, Kind, counter, gauge, histogram};
pub use page::{CONTENT_TYPE, Labels, Page, text_of};
pub use registry::Registry;
