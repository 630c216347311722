//! Attacks a server with bodies that never arrive and connections that ask nothing, and prints how long
//! an administrator and a node wait meanwhile: `cargo run --release -p server --example flood -- 440 4000 500`

#[allow(dead_code, reason = "shared with the tests, which use all of it")]
#[path = "../tests/it/cluster.rs"]
mod cluster;
#[path = "../tests/it/flood.rs"]
mod flood;

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let mut next = |otherwise| numbers.next().unwrap_or(otherwise);
    let size = flood::Size { bodies: next(440), idle: next(4000), rounds: next(500) };
    let figures = flood::run(size).await;
    println!("administrator p99  {:?}", figures.admin_p99);
    println!("slowest lease      {:?}", figures.lease_max);
    println!("refused            {}", figures.refused);
    println!("attacker refused   {}", figures.attacker_refused);
}
