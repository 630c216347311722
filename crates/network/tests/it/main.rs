//! Tests of the network, on the real kernel, each in a world of its own (`world`). They need root.

mod world;

mod nft;
mod pods;
mod speed;
