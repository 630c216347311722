//! The image a container needs is here, or the pod says why not (N-65 to N-69, N-172 to N-177).
