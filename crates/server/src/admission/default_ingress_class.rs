//! DefaultIngressClass: an Ingress that names no class gets the default one.

use super::newest_default;
use crate::request::call::{Call, name_of};
use api::value::ValueExt;
use serde_json::Value;

/// The name of the class before there was a field for it.
const OLD_ANNOTATION: &str = "kubernetes.io/ingress.class";
const DEFAULT_ANNOTATION: &str = "ingressclass.kubernetes.io/is-default-class";

pub(super) fn admit(call: &Call, ingress: &mut Value) {
    if ingress.at(&["spec", "ingressClassName"]).is_some()
        || ingress.at(&["metadata", "annotations", OLD_ANNOTATION]).is_some()
    {
        return;
    }
    if let Some(class) =
        newest_default(call, "networking.k8s.io/ingressclasses", &[DEFAULT_ANNOTATION])
    {
        ingress.object("spec")["ingressClassName"] = name_of(&class).into();
    }
}
