//! Stand-in until the real quantities land.
