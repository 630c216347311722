//! `landfall sim`: a whole cluster without machines, on simulated time; what a seed tells, and whether
//! it kept the rules.

use crate::command::SimOptions;
use anyhow::Context;
use sim::{Ground, Options, Outcome, Phase, SCENARIOS, Scenario, Size, Summary};
use std::io::{IsTerminal, Write};
use std::ops::Range;

pub(crate) fn run(options: &SimOptions) -> anyhow::Result<()> {
    if options.list {
        list();
        return Ok(());
    }
    let name = options.scenario.as_str();
    if name == sim::SCALE.0 {
        return scale(Size { nodes: options.nodes, pods: options.pods });
    }
    let scenario = Scenario::find(name).with_context(|| {
        format!("there is no scenario {name:?}; `landfall sim --list` shows those that there are")
    })?;
    let ground = Ground::lay()?;
    match &options.seeds {
        Some(seeds) => many(&ground, scenario, seeds.clone(), options.twice),
        None => one(&ground, scenario, options.seed, options.story),
    }
}

fn list() {
    for scenario in SCENARIOS {
        println!("{:12} {}", scenario.name, scenario.about);
    }
    println!("{:12} {}", sim::SCALE.0, sim::SCALE.1);
}

/// Rolled, there are a quarter more for a while.
const PODS_PER_NODE: u32 = 110;

fn scale(size: Size) -> anyhow::Result<()> {
    let room = u32::from(size.nodes) * PODS_PER_NODE;
    anyhow::ensure!(
        size.pods + size.pods / 4 <= room,
        "{} nodes have room for {room} pods, and while {} are rolled there are a quarter more",
        size.nodes,
        size.pods,
    );
    let ground = Ground::lay()?;
    println!("{} nodes, {} pods", size.nodes, size.pods);
    println!(
        "phase       simulated      CPU   CPU per pod     writes  CPU per write      peak memory"
    );
    sim::scale(&ground, size, &show)?;
    Ok(())
}

fn show(phase: &Phase) {
    let cpu = phase.cpu.as_secs_f64();
    let each = |count: u64| match count {
        0 => "-".to_owned(),
        count => format!("{:.0} µs", cpu * 1e6 / count as f64),
    };
    println!(
        "{:10} {:>8.0} s {cpu:>7.2} s {:>13} {:>10} {:>14} {:>13} MB{}",
        phase.name,
        phase.simulated.as_secs_f64(),
        each(phase.pods.into()),
        phase.writes,
        each(phase.writes),
        phase.peak_bytes / 1_000_000,
        if phase.unfinished { "  did not end" } else { "" },
    );
}

fn one(ground: &Ground, scenario: &'static Scenario, seed: u64, story: bool) -> anyhow::Result<()> {
    let began = clock::now();
    let outcome = sim::run(ground, scenario, seed, &Options { story, ..Options::default() })?;
    let took = clock::now().duration_since(began);
    if outcome.violation.is_some() {
        return fail(scenario, &outcome);
    }
    outcome.story.iter().for_each(|line| println!("{line}"));
    println!(
        "seed {seed} of {}: {} pods and {} containers in {:.0} simulated seconds, every rule kept \
         ({took:.3})",
        scenario.name,
        outcome.pods,
        outcome.containers,
        outcome.simulated.as_secs_f64(),
    );
    Ok(())
}

fn many(
    ground: &Ground,
    scenario: &'static Scenario,
    seeds: Range<u64>,
    twice: bool,
) -> anyhow::Result<()> {
    let began = clock::now();
    let options = Options { twice, ..Options::default() };
    let count = seeds.end.saturating_sub(seeds.start);
    let show = std::io::stderr().is_terminal();
    let progress = |done: u64| {
        if show && done.is_multiple_of(50) {
            eprint!("\r{done} of {count} seeds");
            let _ = std::io::stderr().flush();
        }
    };
    let summary = sim::run_many(ground, scenario, seeds, &options, &progress)?;
    if show {
        eprint!("\r\x1b[K");
    }
    let seconds = clock::now().duration_since(began).as_secs_f64().max(0.001);
    match &summary.failure {
        Some(outcome) => fail(scenario, outcome),
        None => {
            report(scenario, &summary, seconds);
            Ok(())
        }
    }
}

fn report(scenario: &Scenario, summary: &Summary, seconds: f64) {
    println!(
        "{} seeds of {}: {} pods and {} containers ended, every rule kept; {:.0} simulated hours in \
         {seconds:.0} s ({:.0} seeds a second)",
        summary.seeds,
        scenario.name,
        summary.pods,
        summary.containers,
        summary.simulated.as_secs_f64() / 3600.0,
        summary.seeds as f64 / seconds,
    );
}

/// Says everything that is needed to understand it and to see it again.
fn fail(scenario: &Scenario, outcome: &Outcome) -> anyhow::Result<()> {
    outcome.story.iter().for_each(|line| println!("{line}"));
    let (name, seed) = (scenario.name, outcome.seed);
    if let Some(violation) = &outcome.violation {
        let (rule, why) = (violation.broken.rule, &violation.broken.why);
        println!("\nseed {seed} of {name} breaks a rule after {:?}: {rule}", violation.at);
        println!("  {why}");
        println!("see it again: landfall sim {name} --seed {seed} --story");
    }
    anyhow::bail!("seed {seed} of scenario {name} breaks a rule")
}
