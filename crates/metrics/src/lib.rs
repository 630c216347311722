#![doc = include_str!("../README.md")]

mod family;
mod page;
mod parse;
mod registry;

pub use family::{Family, Kind, counter, gauge, histogram};
pub use page::{CONTENT_TYPE, Labels, Page, text_of};
pub use parse::{ParsedSample, parse};
pub use registry::Registry;
