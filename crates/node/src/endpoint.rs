//! The agent's HTTPS endpoint: logs, exec, attach, port-forward, stats (N-157 to N-171).
