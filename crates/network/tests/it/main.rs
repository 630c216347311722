//! Tests on the real kernel. Each runs in network and mount namespaces of its own (`isolated`). They need root.

mod isolated;
mod three_nodes;

mod census;
mod dual_stack;
mod instances;
mod nft;
mod overlay;
mod pods;
mod policies;
mod routes;
mod services;
mod speed;
