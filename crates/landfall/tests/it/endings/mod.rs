//! Terminations of pods as their processes see them: on a real node, with kubectl.
//!
//! Processes (`witness.py`) report which signal they get and when; the end of their pipes is the exit of the last one.
//! Grace periods are short and pods of one test terminate in parallel, so that all tests take less than a minute. Tests
//! with realistic durations run only with `make test-endings-long`.

mod node;
mod witness;

mod api_view;
mod causes;
mod forced;
mod grace_periods;
mod hangs;
mod load;
mod manifests;
mod order;
mod restarts;
mod servers;
mod signals;
