//! Two resources are served in two forms and stored in one: events (core and events.k8s.io, A-148) and
//! autoscalers (autoscaling/v1 and v2, A-201). Every other built-in kind is stored as it is served.
//!
//! Not here: conversion of custom resources, which needs webhooks.

use api::kind::Kind;
use serde_json::Value;

pub(crate) mod autoscaler;
pub(crate) mod event;

/// Whether objects of this kind are stored as they are served.
pub fn is_identity(kind: &Kind) -> bool {
    View::of(kind).is_none()
}

/// A stored object in the form of this kind.
pub fn from_storage(kind: &Kind, stored: &Value) -> Value {
    match View::of(kind) {
        Some(View::Event) => event::from_core(stored),
        Some(View::Autoscaler) => autoscaler::to_version_1(stored),
        None => stored.clone(),
    }
}

/// An object of this kind in the form in which it is stored.
pub fn to_storage(kind: &Kind, value: &Value) -> Value {
    match View::of(kind) {
        Some(View::Event) => event::to_core(value),
        Some(View::Autoscaler) => autoscaler::to_version_2(value),
        None => value.clone(),
    }
}

/// The kinds that are stored in another form.
enum View {
    Event,
    Autoscaler,
}

impl View {
    fn of(kind: &Kind) -> Option<View> {
        match (kind.group.as_str(), kind.version.as_str(), kind.kind.as_str()) {
            ("events.k8s.io", _, "Event") => Some(View::Event),
            ("autoscaling", "v1", "HorizontalPodAutoscaler") => Some(View::Autoscaler),
            _ => None,
        }
    }
}
