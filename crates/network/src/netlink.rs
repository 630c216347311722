//! Messages to the kernel and its answers. See `message` for how they are built.
