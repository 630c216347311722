#![doc = include_str!("../README.md")]

mod error;
mod interrupt;
mod options;
mod progress;

mod hook;
mod manifest;
mod service;
mod target;
mod workload;

mod connection;
mod load;
mod outcome;
mod saturation;
mod schedule;

mod attribution;
mod observer;
mod pod_timeline;

mod restore;
mod rollout;

mod advice;
mod confidence;
mod search;

mod drill;
mod experiment;
mod forecast;
mod report;

pub use drill::{Drilled, Recommendation, apply, configured, run, settled, why_no_search};
pub use error::{Error, Result, chain};
pub use forecast::{Forecast, RolloutModel, STARTUP_ASSUMED};
pub use interrupt::{Interrupt, Stopper};
pub use options::{LEVELS, Options, ProxyDelay};
pub use outcome::ConnectionKind;
pub use progress::{Progress, Report};
pub use report::{forecast_json, forecast_text, html, json, junit, text};
pub use restore::{ANNOTATION, Original, Restored, restore};
pub use rollout::Setting;
pub use target::Target;
pub use workload::{Kind, Workload, WorkloadRef};
