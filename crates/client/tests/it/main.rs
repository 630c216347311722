//! Tests of the client, against a real server (`cluster`) and against one that the tests play (`played`).

mod cluster;
mod played;

mod breaks;
mod controlling;
mod following;
mod leading;
mod living;
mod telling;
