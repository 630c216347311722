//! Questions about pods that all components must answer in the same way.
//!
//! The server has pods as JSON, all other components have typed objects. The answers are computed once, in this
//! module and in [`resources`]; [`json`] reads the fields of JSON pods and `lifecycle::resources` those of typed
//! pods. A property test in `lifecycle` compares the two readers.

pub mod json;
pub mod resources;

/// Whether all containers of a pod in this phase have terminated for good.
pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}
