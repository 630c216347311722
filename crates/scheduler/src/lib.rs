//! Which node for this pod: filter, score, preempt, bind. See README.md.

mod amounts;
mod node;
mod places;
mod pod;

mod census;
mod neighbourhood;
mod view;
mod world;

mod filters;
mod scores;

mod decide;
mod preempt;
mod text;
mod volumes;
mod workloads;

mod queue;

mod act;
mod figures;
mod run;

pub use run::{Handle, run, start};
