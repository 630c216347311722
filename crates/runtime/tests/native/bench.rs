//! Times, printed; run by hand: `cargo nextest run -p runtime --run-ignored only --no-capture`.

use crate::world::{script, shims_of, world};
use runtime::Runtime;
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints times for people"]
async fn how_long_things_take() {
    let Some(world) = world().await else { return };
    for _ in 0..3 {
        let begin = Instant::now();
        let sandbox = world.sandbox().await;
        let up = begin.elapsed();
        let begin = Instant::now();
        let container = world.created(&sandbox, &script("sleep 1000")).await;
        let created = begin.elapsed();
        let begin = Instant::now();
        world.native.start_container(&container.id).await.unwrap();
        let started = begin.elapsed();
        let begin = Instant::now();
        world.exec(&container.id, &["true"]).await;
        let exec = begin.elapsed();
        let begin = Instant::now();
        world.native.kill_container(&container.id).await.unwrap();
        let exit = world.exit(&container.id).await;
        let told = clock::now().duration_since(exit.finished_at);
        let ended = begin.elapsed();
        let shim = shims_of(world.directory.path().to_str().unwrap());
        let memory = std::fs::read_to_string(format!("/proc/{}/status", shim[0])).unwrap();
        let rss =
            memory.lines().filter(|line| line.starts_with("Rss") || line.starts_with("VmRSS"));
        println!("{}", rss.collect::<Vec<_>>().join(" ").replace('\t', " "));
        let begin = Instant::now();
        world.native.remove_sandbox(&sandbox.id).await.unwrap();
        println!(
            "sandbox {up:?}, create {created:?}, start {started:?}, exec {exec:?}, kill to exit {ended:?}, seen to told {told:?}, remove {:?}",
            begin.elapsed()
        );
    }
    let begin = Instant::now();
    let pods = (0..30).map(|_| async {
        let sandbox = world.sandbox().await;
        world.started(&sandbox, &script("sleep 1000")).await;
    });
    futures::future::join_all(pods).await;
    println!("30 pods {:?}", begin.elapsed());
    world.leave().await;
}
