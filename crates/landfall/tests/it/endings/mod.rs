//! How pods end, seen by the processes that end: on a real node, with kubectl as people type it.
//!
//! Processes (`witness.py`) say when they get which signal; the end of their pipes is when the last of
//! them is gone. Graces are short and pods of one test end side by side, so that all of it takes less
//! than a minute. What takes its true time is ignored unless asked for: `make test-endings-long`.

mod node;
mod witness;

mod asked;
mod causes;
mod forced;
mod graces;
mod hangs;
mod load;
mod orders;
mod restarts;
mod servers;
mod signals;
mod told;
