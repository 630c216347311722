//! Pods from a directory, and their mirrors in the API (N-23 to N-25).
