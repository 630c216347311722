//! Controllers with their own service accounts and the roles that the server gives them.

use client::Client;
use controllers::{Accounts, Options};
use serde_json::Value;
use server::authn::User;
use std::path::Path;
use testbed::TestServer;

/// Adds accounts to the options, so that a test fails if a controller lacks rights (C-197).
pub(crate) fn with_accounts(server: &TestServer, options: Options) -> Options {
    let server = server.running.server.clone();
    let accounts = Accounts::new(move |account| {
        Client::in_process(server.in_process(User::of_controller(account)))
    });
    Options { accounts: Some(accounts), ..options }
}

/// The client that lists and watches for all controllers, with the account of upstream's controller manager.
pub(crate) fn manager(server: &TestServer) -> Client {
    server.client_of(User::authenticated("system:kube-controller-manager", &[]))
}

/// The completed requests in the audit log.
pub(crate) fn answered(audit: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(audit).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["stage"] == "ResponseComplete").collect()
}

/// Asserts that no request of a controller was forbidden.
pub(crate) fn assert_rights_suffice(audit: &Path) {
    let refused: Vec<String> = answered(audit)
        .iter()
        .filter(|line| line["annotations"]["authorization.k8s.io/decision"] == "forbid")
        .map(|line| format!("{} {}", line["user"]["username"], line["responseStatus"]["message"]))
        .filter(|message| message.contains("kube-"))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}
