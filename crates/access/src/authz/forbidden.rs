//! The message and Status of a denial (A-91, row Forbidden).

use super::Attributes;
use api::Status;
use api::status::Details;

/// `pods "p" is forbidden: User "u" cannot get resource "pods" in API group "" in the namespace "n"`
pub fn forbidden_message(attributes: &Attributes) -> String {
    forbidden_because(attributes, "")
}

/// The Status with code 403. `reason` comes from the decision and is usually empty.
pub fn forbidden_status(attributes: &Attributes, reason: &str) -> Status {
    let message = forbidden_because(attributes, reason);
    Status::failure(403, "Forbidden", message).with_details(Details {
        name: attributes.name.to_owned(),
        group: attributes.group.to_owned(),
        kind: attributes.resource.to_owned(),
        ..Details::default()
    })
}

fn forbidden_because(attributes: &Attributes, reason: &str) -> String {
    let Attributes { group, resource, name, .. } = attributes;
    let mut what = resource.to_string();
    if !group.is_empty() {
        what = format!("{what}.{group}");
    }
    let mut because = cannot(attributes);
    if !reason.is_empty() {
        because = format!("{because}: {reason}");
    }
    match (resource.is_empty(), name.is_empty()) {
        (true, _) => format!("forbidden: {because}"),
        (false, true) => format!("{what} is forbidden: {because}"),
        (false, false) => format!("{what} {name:?} is forbidden: {because}"),
    }
}

fn cannot(attributes: &Attributes) -> String {
    let Attributes { user, verb, group, resource, subresource, namespace, path, .. } = attributes;
    let message = if !attributes.is_resource() {
        format!("User {:?} cannot {verb} path {path:?}", user.name)
    } else {
        let slash = if subresource.is_empty() { "" } else { "/" };
        let scope = if namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {namespace:?}")
        };
        format!(
            "User {:?} cannot {verb} resource \"{resource}{slash}{subresource}\" in API group \
             {group:?} {scope}",
            user.name
        )
    };
    // As upstream: text that the client chose must not look like markup in a browser.
    message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
