//! A world for every seed: sizes, habits, lies and faults drawn at random.

use conclave_protocol::object::plant::Plant;
use conclave_quorum::Prng;

use super::liar::Habit;
use super::options::{Family, Options};
use crate::net::Latency;

/// What is the same in all worlds of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Nodes and liars among them; none draws from the usual pairs.
    pub size: Option<(u32, u32)>,
    /// Whether attempts are given up by time-outs alone.
    pub timed: bool,
    /// Whether the protocol is the one that was published.
    pub paper: bool,
    /// A bug planted on purpose.
    pub plant: Option<Plant>,
}

/// Nodes and liars of worlds whose size is not given.
const SIZES: [(u32, u32); 4] = [(7, 1), (7, 1), (8, 1), (13, 2)];

/// The options of a seed. A planted bug changes them so that what it breaks happens often.
pub fn swarm(frame: Frame, seed: u64) -> Options {
    let mut rng = Prng::new(seed ^ 0x6f62_6a65_6374);
    let (nodes, byzantine) = frame.size.unwrap_or_else(|| one(&mut rng, &SIZES));
    let mut options = Options {
        seed,
        nodes,
        byzantine,
        liars: byzantine,
        timed: frame.timed,
        paper: frame.paper,
        plant: frame.plant,
        ..Options::default()
    };
    draw(&mut options, &mut rng);
    if let Some(plant) = frame.plant {
        bias(&mut options, plant, frame.size.is_none(), &mut rng);
    }
    options
}

fn one<T: Copy>(rng: &mut Prng, choices: &[T]) -> T {
    choices[rng.below(choices.len())]
}

fn draw(options: &mut Options, rng: &mut Prng) {
    let most = options.byzantine;
    if rng.chance(0.1) {
        options.liars = rng.below(most as usize + 1) as u32;
    }
    options.lie = one(rng, &Habit::ALL[1..]);
    options.clients = one(rng, &[2, 3, 3, 4, 6]);
    options.ops = one(rng, &[2, 3, 3, 5, 8]);
    options.toy = one(rng, &Family::ALL);
    options.ledger = one(rng, &[0.5, 0.8]);
    options.reads = one(rng, &[0.0, 0.2, 0.5]);
    options.random = one(rng, &[0.0, 0.5]);
    options.think_ms = one(rng, &[0, 5, 30, 100]);
    options.duel = rng.chance(0.6);
    options.duel_ms = one(rng, &[0, 5, 40]);
    options.delay_ms = one(rng, &[20, 100, 200]);
    options.order_ms = options.delay_ms * 10;
    options.latency = one(
        rng,
        &[
            Latency::Constant(10_000_000),
            Latency::Uniform(0, 20_000_000),
            Latency::Uniform(1_000_000, 100_000_000),
            Latency::Exponential(10_000_000),
            Latency::Tail {
                mean: 5_000_000,
                often: 10,
                times: 30,
            },
        ],
    );
    options.slow = one(rng, &[0.0, 0.0, 0.2, 0.4]);
    options.loss = one(rng, &[0.0, 0.0, 0.02, 0.1]);
    options.raw = rng.chance(0.3);
    options.crash = one(rng, &[0.0, 0.08, 0.08, 0.3]);
    options.kill = one(rng, &[0.0, 0.0, 0.01, 0.05]);
    options.down_ms = one(rng, &[5, 50, 300]);
    options.disk_us = one(rng, &[100, 1000, 10_000]);
    options.skew_ms = one(rng, &[0, 0, 50, 5000]);
    options.span_ms = one(rng, &[1000, 3000]);
    options.intruder = options.plant.is_none() && rng.chance(0.15);
}

/// What shows a planted bug.
fn bias(options: &mut Options, plant: Plant, free: bool, rng: &mut Prng) {
    if free {
        (options.nodes, options.byzantine, options.liars) = (7, 1, 1);
    }
    options.clients = options.clients.max(4);
    options.ops = options.ops.max(4);
    match plant {
        Plant::SmallQuorum => {
            if free {
                (options.nodes, options.timed) = (6, true);
            }
            duel(options, rng);
            apart(options, rng);
        }
        Plant::NoProposerInSort => {
            duel(options, rng);
            apart(options, rng);
            options.crash = 0.3;
        }
        Plant::GetAtEqualRank => {
            options.same_client = true;
            duel(options, rng);
        }
        Plant::OneResponse | Plant::OneVoucher => options.lie = Habit::Forge,
        Plant::MoreLiars => {
            duel(options, rng);
            options.liars = options.byzantine + 1;
            options.lie = Habit::Back;
        }
        Plant::AclIgnored => {
            options.intruder = true;
            options.loss = 0.0;
        }
        Plant::ForgetRank | Plant::CommitBeforeDisk => {
            duel(options, rng);
            options.kill = 0.1;
            options.disk_us = 10_000;
            options.down_ms = 5;
        }
        Plant::ReadFromVouched => {
            options.reads = 0.6;
            options.lie = Habit::Stale;
            options.toy = Family::None;
        }
        Plant::RunAgain => {
            options.toy = Family::None;
            options.latency = Latency::Uniform(0, 60_000_000);
            (options.delay_ms, options.order_ms) = (100, 1000);
            options.slow = 0.5;
            options.think_ms = 300;
            options.span_ms = 8000;
            options.clients = 6;
        }
        Plant::AuthorForgotten => {
            options.toy = Family::None;
            options.loss = 0.1;
        }
        _ => duel(options, rng),
    }
}

/// Some nodes are far from some clients: each hears from a quorum of its own.
fn apart(options: &mut Options, rng: &mut Prng) {
    options.latency = Latency::Uniform(0, 12_000_000);
    options.slow = one(rng, &[0.2, 0.35]);
    options.delay_ms = 20;
    options.order_ms = 400;
    options.loss = 0.0;
    options.kill = 0.0;
    options.ops = 6;
}

/// Clients get in each other's way all the time, and liars back whoever loses.
fn duel(options: &mut Options, rng: &mut Prng) {
    options.duel = true;
    options.duel_ms = one(rng, &[1, 5, 20]);
    options.lie = one(rng, &[Habit::Back, Habit::Forget, Habit::Stale, Habit::Mix]);
    options.crash = one(rng, &[0.1, 0.3]);
    options.think_ms = 5;
    options.loss = one(rng, &[0.0, 0.02]);
    options.raw = true;
    options.latency = Latency::Uniform(0, 60_000_000);
    options.delay_ms = 100;
    options.order_ms = 1000;
    options.clients = options.clients.max(5);
    options.toy = Family::None;
    options.reads = 0.0;
}
