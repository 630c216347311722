//! Probes and lifecycle handlers: workers, thresholds, HTTP, TCP, gRPC, exec (N-89 to N-104).
