//! Tests of the scheduler, on a whole server (`cluster`).

mod cluster;

mod placing;
mod preempting;
