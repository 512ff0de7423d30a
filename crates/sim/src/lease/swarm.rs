//! A world of leases for every seed: sizes, lies, delays and habits drawn at random.

use conclave_protocol::lease::plant::Plant;
use conclave_quorum::Prng;

use super::liar::Strategy;
use super::options::{Delays, Growth, LeaseOptions};

/// The nodes and liars that seeds draw from.
pub const PAIRS: [(u32, u32); 10] = [
    (4, 1),
    (4, 1),
    (5, 1),
    (6, 1),
    (6, 1),
    (7, 1),
    (7, 2),
    (11, 2),
    (3, 0),
    (10, 3),
];

/// Where the protocol as it was published can run.
const PAPER_PAIRS: [(u32, u32); 4] = [(6, 1), (11, 1), (11, 2), (11, 1)];

fn one<T: Copy>(rng: &mut Prng, from: &[T]) -> T {
    from[rng.below(from.len())]
}

/// The options of a seed. `size` gives nodes and liars; otherwise they are drawn. A planted bug
/// changes them so that what it breaks happens often.
pub fn swarm(
    seed: u64,
    size: Option<(u32, u32)>,
    paper: bool,
    plant: Option<Plant>,
) -> LeaseOptions {
    let mut rng = Prng::new(seed ^ 0x7377_6c65_6173);
    let mut options = LeaseOptions {
        seed,
        plant,
        paper,
        ..LeaseOptions::default()
    };
    let pairs: &[(u32, u32)] = if paper { &PAPER_PAIRS } else { &PAIRS };
    let drawn = match plant {
        // It shows where few votes are enough.
        Some(Plant::RenewRegranted) => (4, 1),
        _ => one(&mut rng, pairs),
    };
    (options.nodes, options.byzantine) = size.unwrap_or(drawn);
    draw(&mut options, &mut rng);
    if paper {
        as_published(&mut options, &mut rng);
    }
    if let Some(plant) = plant {
        bias(&mut options, plant, &mut rng);
    }
    if !options.synchronous() {
        options.limit_s = 60;
    }
    options
}

fn draw(options: &mut LeaseOptions, rng: &mut Prng) {
    options.lie = one(rng, &Strategy::ALL);
    options.clients = one(rng, &[1, 2, 2, 3, 3, 4, 5, 8]);
    options.goal = one(rng, &[3, 5, 8]);
    options.delay_ms = one(rng, &[20, 100, 200]);
    options.longer = one(rng, &[1, 1, 1, 5]);
    options.delays = one(
        rng,
        &[
            Delays::Constant,
            Delays::Three,
            Delays::Three,
            Delays::Uniform,
            Delays::Tail,
            Delays::Tail,
        ],
    );
    let power = one(rng, &[1.0, 1.5, 2.0]);
    options.growth = if rng.chance(0.4) {
        Growth::exponential()
    } else {
        Growth::power(power)
    };
    options.release = rng.chance(0.6);
    options.designated = rng.chance(0.2);
    options.early = one(rng, &[0.0, 0.3, 0.9]);
    options.renew = one(rng, &[0.0, 0.0, 0.3, 0.6]);
    options.crash = one(rng, &[0.0, 0.0, 0.1, 0.3]);
    options.cancel = one(rng, &[0.0, 0.0, 0.1]);
    options.think_ms = one(rng, &[0, 100, 500, 2000]);
    options.skew_ms = one(rng, &[0, 50, 5000]);
    options.patience_ms = one(rng, &[0, 0, 500, 3000]);
    let rate = one(rng, &[0, 100, 5000, 200_000]);
    options.rate_ppm = rate;
    options.drift_ppm = rate;
    if rng.chance(0.4) {
        options.loss = one(rng, &[0.0, 0.02, 0.2]);
        options.reopen = one(rng, &[0.0, 0.2]);
        options.restart = one(rng, &[0.0, 0.2, 1.0]);
        options.down_ms = one(rng, &[0, 50, 1000]);
        options.disk_ms = one(rng, &[0, 5]);
        options.slow = one(rng, &[0, 0, 1]);
    }
}

/// Leaves out what the protocol as it was published does not know.
fn as_published(options: &mut LeaseOptions, rng: &mut Prng) {
    let (nodes, liars) = (options.nodes, options.byzantine);
    let quorum = (nodes + 3 * liars + 1).div_ceil(2);
    let spare = nodes.saturating_sub(liars + quorum);
    *options = LeaseOptions {
        seed: options.seed,
        plant: options.plant,
        paper: true,
        nodes,
        byzantine: liars,
        lie: one(rng, &[Strategy::Free, Strategy::Collude, Strategy::Locked]),
        clients: one(rng, &[3, 5, 8]),
        goal: 12,
        delays: one(rng, &[Delays::Three, Delays::Uniform]),
        growth: Growth::exponential(),
        release: false,
        think_ms: one(rng, &[0, 100, 500]),
        limit_s: 400,
        ..LeaseOptions::default()
    };
    // Either requests are kept, or some honest nodes are slow; a quorum of quick ones is left.
    if spare == 0 || rng.chance(0.5) {
        options.patience_ms = 60_000;
    } else {
        options.slow = spare;
    }
}

fn bias(options: &mut LeaseOptions, plant: Plant, rng: &mut Prng) {
    options.clients = options.clients.max(3);
    options.goal = 12;
    match plant {
        Plant::BareSpan | Plant::ShortVote => {
            options.delays = one(rng, &[Delays::Instant, Delays::Three]);
            if plant == Plant::ShortVote {
                options.delays = Delays::Instant;
            }
            options.early = 0.0;
            options.longer = 1;
            quick(options);
        }
        Plant::LateFree | Plant::FromDecision | Plant::ReleaseAny => {
            options.delays = Delays::Tail;
            options.release = true;
            options.think_ms = 100;
            options.early = 0.1;
        }
        Plant::RequesterSpan => {
            options.longer = 5;
            options.early = 0.0;
        }
        Plant::HeldIgnored => {
            options.patience_ms = 4000;
            options.early = 0.0;
            options.release = false;
            quick(options);
        }
        Plant::NoQuarantine | Plant::RenewRegranted => {
            options.restart = 3.0;
            options.down_ms = 20;
            options.early = 0.0;
            quick(options);
            if plant == Plant::RenewRegranted {
                options.renew = 1.0;
                options.crash = 0.0;
                // One node after the other forgets its vote, slower than its quarantine lasts.
                options.restart = one(rng, &[0.3, 0.6]);
                options.lie = Strategy::Free;
                options.delays = Delays::Three;
                options.delay_ms = 20;
                options.longer = 1;
                options.cancel = 0.0;
                (options.loss, options.reopen, options.slow) = (0.0, 0.0, 0);
                (options.rate_ppm, options.drift_ppm) = (0, 0);
                options.patience_ms = 0;
                options.release = false;
                options.clients = 4;
            }
        }
        Plant::SmallFree | Plant::MoreLiars => {
            options.lie = one(rng, &[Strategy::Free, Strategy::Collude]);
            options.early = 0.0;
            quick(options);
        }
        Plant::MarkUnwritten | Plant::MarkLate => {
            options.restart = 3.0;
            options.down_ms = 20;
            options.skew_ms = 5000;
            options.span_ms = 200;
            options.longer = 1;
            options.disk_ms = if plant == Plant::MarkLate { 300 } else { 0 };
            options.delays = Delays::Three;
            options.delay_ms = 20;
            quick(options);
        }
        Plant::FastNodes => {
            (options.rate_ppm, options.drift_ppm) = (0, 0);
            options.delay_ms = 20;
            options.early = 0.0;
            quick(options);
        }
        Plant::RenewFromAnswer => {
            options.renew = 0.9;
            options.delays = Delays::Three;
            options.delay_ms = 200;
            options.early = 0.0;
            quick(options);
        }
        Plant::TokenUnchecked => {
            options.skew_ms = 5000;
        }
        Plant::TokenOfLargest => {
            options.skew_ms = 5000;
            options.lie = Strategy::Huge;
        }
    }
}

/// Attempts come one soon after the other.
fn quick(options: &mut LeaseOptions) {
    options.think_ms = 0;
    options.release = true;
    options.growth = Growth::power(0.5);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_makes_a_run_that_its_token_makes_again() {
        for seed in 1..300 {
            let plant = Plant::ALL[seed as usize % Plant::ALL.len()];
            for options in [
                swarm(seed, None, false, None),
                swarm(seed, None, true, None),
                swarm(seed, Some((7, 1)), false, None),
                swarm(seed, None, false, Some(plant)),
            ] {
                assert!(options.config().is_ok(), "{options}");
                assert_eq!(options.to_string().parse(), Ok(options));
            }
        }
    }
}
