//! Locks on hierarchies hold under every seed, and cost what they should.

use conclave_sim::multilevel::{LevelOptions, swarm, world};

fn violation(options: &LevelOptions) -> Option<String> {
    let outcome = world::check(options, None).expect("every seed makes a world");
    let broken = outcome.violation?;
    Some(format!("{}: {}", broken.property, broken.what))
}

#[test]
#[ignore]
fn survey() {
    let from: u64 = std::env::var("FROM").map_or(1, |t| t.parse().unwrap());
    let to: u64 = std::env::var("TO").map_or(200, |t| t.parse().unwrap());
    let mut bad = 0;
    for seed in from..=to {
        let options = swarm(seed, 0..=3, false, None);
        let result = std::panic::catch_unwind(|| violation(&options));
        match result {
            Ok(None) => {}
            Ok(Some(what)) => {
                bad += 1;
                println!("{seed} {what}\n   {options}");
            }
            Err(_) => {
                bad += 1;
                println!("{seed} PANIC\n   {options}");
            }
        }
    }
    println!("bad {bad}");
}

#[test]
#[ignore]
fn replay() {
    let token = std::env::var("TOKEN").unwrap();
    let options: LevelOptions = token.parse().unwrap();
    let outcome = world::check(
        &options,
        Some(&mut |line: &conclave_sim::trace::Line| println!("{} {line}", line.at.0)),
    );
    println!("{:?}", outcome.unwrap().violation);
}

#[test]
#[ignore]
fn hunt() {
    let only = std::env::var("ONLY").unwrap_or_default();
    for plant in conclave_protocol::multilevel::LevelPlant::ALL {
        if !only.is_empty() && !only.contains(plant.name()) {
            continue;
        }
        let start = std::time::Instant::now();
        let found = (1..=100).find_map(|seed| {
            let options = swarm(seed, 0..=3, false, Some(plant));
            let result = std::panic::catch_unwind(|| violation(&options));
            let result = result.unwrap_or_else(|_| Some("PANIC".to_owned()));
            result.map(|what| (seed, options, what))
        });
        let took = start.elapsed().as_secs_f64();
        let Some((seed, mut options, what)) = found else {
            println!("{} NOT FOUND {took:.1}", plant.name());
            continue;
        };
        options.plant = None;
        let clean = violation(&options);
        println!("{} {seed} {what} {took:.1} clean {clean:?}", plant.name());
        if clean.is_some() {
            println!("   {options}");
        }
    }
}
