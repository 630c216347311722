//! May this pod run here? What the node checks itself, once per pod (N-27 to N-30).
