//! A pod's volumes on this node: set up, kept up to date, taken away (N-132 to N-156).
