//! Packet rules, spoken to the kernel directly.
