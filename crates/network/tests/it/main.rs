//! Tests on the real kernel. Each runs in network and mount namespaces of its own (`isolated`). They need root.

mod isolated;

mod instances;
mod nft;
mod pods;
mod services;
mod speed;
