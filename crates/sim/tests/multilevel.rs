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
