//! Writes events to the API, one at a time, in the order they were told.

use super::Happening;
use crate::Client;
use tokio::sync::mpsc;

pub(super) async fn run(
    client: Client,
    component: String,
    instance: String,
    mut waiting: mpsc::Receiver<Happening>,
) {
    while let Some(happening) = waiting.recv().await {
        tracing::debug!(component, instance, ?happening, client = ?client.kube().default_namespace());
    }
}
