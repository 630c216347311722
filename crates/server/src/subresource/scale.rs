//! `scale`: the number of replicas in one form for all kinds that have them.

use crate::request::call::Call;
use crate::request::decode;
use crate::request::negotiate::{Offer, View};
use crate::response::error::{ApiError, Result};
use crate::response::views;
use crate::response::{self, ApiResponse};
use crate::verbs::patch::{self, Form};
use crate::verbs::update::{Changed, change};
use crate::verbs::write::Endpoint;
use api::apply::{self, FieldSet, Manager};
use api::selector::LabelSelector;
use api::value::ValueExt;
use api::{At, Errors};
use http::{Method, StatusCode};
use serde_json::{Value, json};

pub(crate) async fn scale(call: &Call, method: &Method) -> Result<ApiResponse> {
    let form = call.form(Offer::Object)?;
    let object = if matches!(*method, Method::GET | Method::HEAD) {
        call.server.barrier().await?;
        views::value(&call.kind, &*call.stored()?)
    } else {
        write(call, method).await?
    };
    let shown = of(call, &object);
    let shown = match form.view {
        View::Table { beta } => table(&shown, beta),
        View::Partial { beta } => views::partial(&shown, beta),
        _ => shown,
    };
    Ok(response::bytes(StatusCode::OK, form, views::encode(&shown, form)))
}

async fn write(call: &Call, method: &Method) -> Result<Value> {
    let dry_run = call.dry_run()?;
    let put = if *method == Method::PUT {
        Some(decode::other(call, "io.k8s.api.autoscaling.v1.Scale")?)
    } else {
        None
    };
    let patch_form = if put.is_none() { Some(patch::form(call)?) } else { None };
    let replicas_path = replicas_path(call);
    let made = change(call, Endpoint::Scale, dry_run, |old| {
        let scale = match (&put, patch_form) {
            (Some(scale), _) => scale.clone(),
            (None, Some(Form::Apply)) => applied(call)?,
            (None, Some(form)) => patch::patched(call, form, &of(call, old))?,
            (None, None) => return Err(ApiError::MethodNotAllowed),
        };
        check(call, &scale)?;
        let replicas = scale.at(&["spec", "replicas"]).and_then(Value::as_i64).unwrap_or(0);
        let mut object = old.clone();
        set(&mut object, &replicas_path, replicas.into());
        object["metadata"]["resourceVersion"] =
            match (&put, scale.at(&["metadata", "resourceVersion"])) {
                (Some(_), Some(version)) => version.clone(),
                _ => "".into(),
            };
        if patch_form == Some(Form::Apply) {
            return own(call, old, object, &replicas_path);
        }
        Ok(Changed::untracked(object))
    })
    .await?;
    Ok(made.value(call))
}

/// The Scale in an apply patch.
fn applied(call: &Call) -> Result<Value> {
    let scale = api::yaml::to_json(&call.body)
        .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))?;
    Ok(scale.value)
}

/// Applying a Scale makes the manager owner of the replicas only.
fn own(call: &Call, old: &Value, object: Value, path: &[String]) -> Result<Changed> {
    let manager = call.manager()?;
    let api_version = call.kind.api_version();
    let now = call.now();
    let writer =
        Manager { name: &manager, api_version: &api_version, subresource: "scale", now: &now };
    let mut partial = json!({
        "apiVersion": api_version,
        "kind": call.kind.kind,
        "metadata": { "name": call.target.name, "namespace": call.target.namespace },
    });
    let replicas = path.iter().try_fold(&object, |value, field| value.get(field)).cloned();
    set(&mut partial, path, replicas.unwrap_or(Value::Null));
    let force = call.query.flag("force");
    let none = FieldSet::default();
    let merged =
        apply::apply(&call.kind.schema, call.kind.ty, Some(old), &partial, &writer, &none, force)
            .map_err(|error| patch::refused(call, error))?;
    Ok(Changed { object: merged, tracked: true })
}

fn check(call: &Call, scale: &Value) -> Result<()> {
    let root = At::root(scale);
    let spec = root.field("spec");
    let replicas = spec.field("replicas");
    let mut errors = Errors::default();
    if replicas.int().unwrap_or(0) < 0 {
        errors.invalid(&replicas, "must be greater than or equal to 0");
    }
    if replicas.is_set() && replicas.int().is_none() {
        errors.invalid(&replicas, "must be a whole number");
    }
    if errors.is_empty() {
        return Ok(());
    }
    let status = api::Status::invalid("Scale", "autoscaling", &call.target.name, errors);
    Err(ApiError::Invalid(Box::new(status)))
}

fn set(object: &mut Value, path: &[String], value: Value) {
    if let [fields @ .., last] = path {
        let mut at = object;
        for field in fields {
            at = at.object(field);
        }
        at.map().insert(last.clone(), value);
    }
}

/// The path of the replicas: `spec.replicas`, or what the CRD defines.
fn replicas_path(call: &Call) -> Vec<String> {
    custom_path(call, "specReplicasPath").unwrap_or_else(|| vec!["spec".into(), "replicas".into()])
}

fn custom_path(call: &Call, name: &str) -> Option<Vec<String>> {
    let scale = call.kind.custom.as_ref()?.scale.as_ref()?;
    let path = scale.get(name)?.as_str()?;
    Some(path.trim_start_matches('.').split('.').map(str::to_owned).collect())
}

/// The Scale of an object. As in Go, zero replicas are omitted from the spec.
fn of(call: &Call, object: &Value) -> Value {
    let number = |path: &[String]| {
        path.iter()
            .try_fold(object, |value, field| value.get(field))
            .and_then(Value::as_i64)
            .unwrap_or(0)
    };
    let status_path = custom_path(call, "statusReplicasPath")
        .unwrap_or_else(|| vec!["status".into(), "replicas".into()]);
    let mut scale = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {},
        "spec": {},
        "status": { "replicas": number(&status_path) },
    });
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            scale["metadata"][field] = value.clone();
        }
    }
    let replicas = number(&replicas_path(call));
    if replicas != 0 {
        scale["spec"]["replicas"] = replicas.into();
    }
    let selector = selector(call, object);
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    scale
}

fn selector(call: &Call, object: &Value) -> String {
    if call.kind.custom.is_some() {
        let Some(path) = custom_path(call, "labelSelectorPath") else { return String::new() };
        let at = path.iter().try_fold(object, |value, field| value.get(field));
        return at.and_then(Value::as_str).unwrap_or_default().to_owned();
    }
    let selector = object.at(&["spec", "selector"]).cloned().unwrap_or(Value::Null);
    // A ReplicationController's selector is a plain map.
    let selector = if call.kind.kind == "ReplicationController" {
        json!({ "matchLabels": selector })
    } else {
        selector
    };
    LabelSelector::from_object(&selector).map(|selector| selector.to_string()).unwrap_or_default()
}

fn table(scale: &Value, beta: bool) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": if beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" },
        "metadata": { "resourceVersion": scale.text(&["metadata", "resourceVersion"]) },
        "columnDefinitions": api::table::scale_columns(),
        "rows": [{
            "cells": api::table::scale_cells(scale, clock::now()),
            "object": views::partial(scale, beta),
        }],
    })
}
