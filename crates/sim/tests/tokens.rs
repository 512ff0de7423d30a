//! Clients that do their worst with tokens lock nobody out, whatever clocks do.

use conclave_protocol::lock::{Plant, Protocol};
use conclave_sim::{run_checked, swarm};

/// How many worlds of attackers are run.
const SEEDS: u64 = 40;

/// Every world in which clients spoil tokens and clocks step by days or begin in 1970 is clean.
#[test]
fn attackers_and_wrong_clocks_lock_nobody_out() {
    let (mut worlds, mut grants) = (0, 0);
    for plant in [
        Plant::TokenClockForgotten,
        Plant::RecoverWithoutClock,
        Plant::TokenClockIsWall,
        Plant::TokenClockAlone,
        Plant::DoneUnchecked,
    ] {
        for seed in 1..=SEEDS / 5 {
            let mut options = swarm(Protocol::Parallel, 1000 + seed, Some(plant));
            options.plant = None;
            let outcome = run_checked(&options).expect("every seed makes a run");
            assert_eq!(outcome.violation, None, "{options}");
            worlds += 1;
            grants += outcome.grants;
        }
    }
    assert!(grants > 50 * worlds, "{grants} grants in {worlds} worlds");
}
