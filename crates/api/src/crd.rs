//! Custom resources: kinds that a CustomResourceDefinition adds at run time (A-204 on).

use serde_json::Value;

/// What a custom kind has beyond a built-in one.
#[derive(Debug, Clone)]
pub struct Custom {
    /// The CRD's name, `<plural>.<group>`.
    pub definition: String,
    pub list_kind: String,
    /// The version's openAPIV3Schema as the CRD gives it.
    pub open_api: Value,
    pub has_status: bool,
    pub scale: Option<Value>,
    /// additionalPrinterColumns
    pub columns: Vec<Value>,
}

impl Custom {
    pub fn validate(
        &self,
        _new: &crate::At,
        _old: Option<&crate::At>,
        _errors: &mut crate::Errors,
    ) {
    }

    pub fn default(&self, _object: &mut Value) {}

    pub fn selects(&self, _field: &str) -> bool {
        false
    }
}
