//! kube-rs.

#[test]
fn later() {}
