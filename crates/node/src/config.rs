//! From a pod's words to a container in the kernel's terms: environment, mounts, identity, limits.
