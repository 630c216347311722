//! Runs seeds of a scenario and prints what went wrong: `seed SCENARIO FROM TO [story]`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let scenario = sim::Scenario::find(&args[0]).ok_or("no such scenario")?;
    let (from, to): (u64, u64) = (args[1].parse()?, args[2].parse()?);
    let story = args.get(3).is_some();
    let began = clock::now();
    let ground = sim::Ground::lay()?;
    println!("ground laid in {}", clock::now().duration_since(began));
    let options = sim::Options { story, ..sim::Options::default() };
    let began = clock::now();
    let mut bad = 0;
    for seed in from..to {
        let outcome = sim::run(&ground, scenario, seed, &options)?;
        if story {
            outcome.story.iter().for_each(|line| println!("{line}"));
        }
        if let Some(violation) = outcome.violation {
            bad += 1;
            println!("seed {seed}: {violation:?} ({} pods)", outcome.pods);
        }
    }
    let took = clock::now().duration_since(began);
    println!("{} seeds, {bad} bad, {took}", to - from);
    Ok(())
}
