//! When the node runs short: pressure conditions, and which pod has to go (N-115, N-137).
