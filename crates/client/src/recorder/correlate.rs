//! Which events are the same, which are too many. Pure: time is an argument.
