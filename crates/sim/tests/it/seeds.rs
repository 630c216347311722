//! Some seeds of every scenario keep all rules, and every seed always gives the same run.

use sim::{Options, Scenario, SimulationSetup};

fn scenario(name: &str) -> &'static Scenario {
    Scenario::find(name).expect("the scenario exists")
}

/// T-INV-1 to T-INV-7 hold, and every deletion finishes. `make sim` runs ten thousand seeds.
#[test]
fn five_seeds_of_every_scenario_keep_every_rule() {
    let setup = SimulationSetup::prepare().unwrap();
    let summary =
        sim::run_many(&setup, scenario("mix"), 0..25, &Options::default(), &|_| true).unwrap();
    if let Some(outcome) = &summary.failure {
        panic!("{:?}\n{}", outcome.violation, outcome.trace.join("\n"));
    }
    assert_eq!(summary.seeds, 25);
    assert!(summary.containers > 100, "{summary:?}");
}

/// T-EDGE-3: a container gets its stop signal and its grace period even if the agent crashes between the decision to
/// stop it and the signal, and if the clock jumps meanwhile. Odd seeds keep deadlines across a restart.
#[test]
fn a_signal_that_was_not_sent_is_sent_by_the_next_agent() {
    let setup = SimulationSetup::prepare().unwrap();
    let summary =
        sim::run_many(&setup, scenario("unsent"), 0..60, &Options::default(), &|_| true).unwrap();
    if let Some(outcome) = &summary.failure {
        panic!("{:?}\n{}", outcome.violation, outcome.trace.join("\n"));
    }
}

/// Seeds that once broke a rule, and why.
#[test]
fn seeds_that_broke_a_rule_once_keep_it() {
    let setup = SimulationSetup::prepare().unwrap();
    for (name, seed, once) in [
        (
            "mix",
            3462,
            "T-INV-5: the server had just restarted, and an agent knew of a deletion before the checker did",
        ),
        (
            "mix",
            5257,
            "the server crashed between a removal and its record, so the node's signals could not be recorded",
        ),
        ("mix", 6858, "T-NODE-5: a completed pod was deleted; the checker took the later deadline"),
        (
            "mix",
            7809,
            "T-EDGE-2: the next agent ignored a shorter delete that came while no agent ran",
        ),
        (
            "mix",
            8254,
            "T-NODE-5: a completed pod was deleted; the checker gave its hooks more time",
        ),
        (
            "identity",
            2335,
            "T-NODE-57: the node reported Running for a pod that another client had set to Failed",
        ),
        (
            "identity",
            4020,
            "T-EDGE-13: the server crashed between the mark of a forced deletion and the removal, and the node removed the pod",
        ),
        (
            "identity",
            4932,
            "T-EDGE-13: the server crashed between a removal by another client and its record",
        ),
        (
            "identity",
            6519,
            "T-NODE-76: a pod that was removed while an agent started was neither cleaned up nor terminated",
        ),
        (
            "identity",
            6817,
            "the run ended while an agent was still down, and then its pods were evicted",
        ),
    ] {
        let outcome = sim::run(&setup, scenario(name), seed, &Options::default()).unwrap();
        assert!(outcome.violation.is_none(), "{once}: {:?}", outcome.violation);
    }
}

/// A seed gives the same run byte for byte. `make sim` checks a hundred.
#[test]
fn the_same_seed_gives_the_same_run() {
    let setup = SimulationSetup::prepare().unwrap();
    let options = Options { twice: true, ..Options::default() };
    let summary = sim::run_many(&setup, scenario("mix"), 0..5, &options, &|_| true).unwrap();
    assert!(summary.failure.is_none(), "{:?}", summary.failure.and_then(|found| found.violation));
    let outcome = sim::run(&setup, scenario("mix"), 0, &options).unwrap();
    assert!(outcome.log.len() > 10_000, "the run has a log");
}

#[test]
fn another_seed_gives_another_run() {
    let setup = SimulationSetup::prepare().unwrap();
    let options = Options { trace: true, ..Options::default() };
    let log_of = |seed| sim::run(&setup, scenario("endings"), seed, &options).unwrap().log;
    assert_ne!(log_of(1), log_of(2));
}
