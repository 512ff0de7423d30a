//! A world of a hierarchy for every seed: sizes, loads, failures and habits drawn at random.

use std::ops::RangeInclusive;

use conclave_protocol::multilevel::LevelPlant;
use conclave_quorum::Prng;

use super::options::LevelOptions;

fn one<T: Copy>(rng: &mut Prng, from: &[T]) -> T {
    from[rng.below(from.len())]
}

/// The options of a seed. `levels` are the numbers of levels to draw from. A planted bug changes
/// the world so that what it breaks happens often.
pub fn swarm(
    seed: u64,
    levels: RangeInclusive<u8>,
    paper: bool,
    plant: Option<LevelPlant>,
) -> LevelOptions {
    let mut rng = Prng::new(seed ^ 0x7377_6c65_7665);
    let mut options = LevelOptions {
        seed,
        plant,
        paper,
        ..LevelOptions::default()
    };
    let depths: Vec<u8> = levels.collect();
    let mut shape = Shape::draw(&depths, &mut rng);
    load(&mut options, &shape, &mut rng);
    habits(&mut options, &mut rng);
    if !paper && rng.chance(0.45) {
        leases(&mut options, &mut rng);
        if shape.nodes > 30 {
            // Everybody who waits says so regularly: many must not wait for long.
            options.hold = options.hold.min(1000);
        }
    } else {
        oracle(&mut options, &mut rng);
    }
    if paper {
        // The published text knows neither groups nor networks that reorder.
        (options.groups, options.exclusive) = (0, 1.0);
        options.fifo = true;
        options.cancel = 0.0;
        options.limit = 5_000_000;
    }
    if let Some(plant) = plant {
        bias(&mut options, &mut shape, plant, &mut rng);
    }
    options.system = shape.text();
    fit(&mut options, shape.levels);
    if plant == Some(LevelPlant::OrphanPasses) {
        // Consent that is handed on outlives its promise soon.
        options.lease = options.hold + (u64::from(shape.levels) + 2) * options.way_max;
    }
    options
}

/// How large, and how deep.
struct Shape {
    coterie: &'static str,
    nodes: usize,
    levels: u8,
}

impl Shape {
    fn draw(depths: &[u8], rng: &mut Prng) -> Self {
        let nodes = if rng.chance(0.1) {
            60 + rng.below(91)
        } else {
            7 + rng.below(24)
        };
        Self {
            coterie: one(rng, &["tree", "tree", "tree", "majority"]),
            nodes,
            levels: if depths.is_empty() {
                1
            } else {
                one(rng, depths)
            },
        }
    }

    fn text(&self) -> String {
        let (coterie, nodes, levels) = (self.coterie, self.nodes, self.levels);
        format!("multilevel({coterie}, {nodes}, levels={levels})")
    }
}

fn load(options: &mut LevelOptions, shape: &Shape, rng: &mut Prng) {
    options.asks = one(rng, &[2, 4, 8]);
    if shape.nodes > 30 {
        options.asks = 2;
    }
    if rng.chance(0.4) {
        options.askers = 2 + rng.below(6) as u32;
        options.asks *= 2;
    }
    options.gap = one(rng, &[10, 100, 500, 3000, 20_000]);
    options.hold = one(rng, &[1, 10, 10, 100, 400]);
    options.hold_any = rng.chance(0.5);
    if rng.chance(0.4) {
        options.groups = one(rng, &[1, 2, 3]);
        options.exclusive = one(rng, &[0.0, 0.3, 0.7]);
    }
    options.cancel = one(rng, &[0.0, 0.0, 0.0, 0.1, 0.3]);
}

fn habits(options: &mut LevelOptions, rng: &mut Prng) {
    options.jitter = one(rng, &[0, 0, 10, 60, 200]);
    options.fifo = options.jitter == 0 || rng.chance(0.6);
    (options.send, options.send_sd) = one(rng, &[(8.0, 2.0), (8.0, 2.0), (1.0, 0.0)]);
    options.announce = rng.chance(0.85);
    options.sticky = rng.chance(0.5);
    options.spread = rng.chance(0.3);
    options.threshold = one(rng, &[20, 100, 100, 400]);
    options.threshold2 = one(rng, &[20, 100]);
    options.linger = one(rng, &[0.0, 0.0, 0.5, 1.0]);
    options.passes = one(rng, &[0, 1, 3, 8]);
}

/// Failures that are noticed without error.
fn oracle(options: &mut LevelOptions, rng: &mut Prng) {
    options.shared = rng.chance(0.3);
    options.blank = rng.chance(0.2);
    if rng.chance(0.35) {
        return;
    }
    options.up = one(rng, &[0.6, 0.8, 0.9, 0.95]);
    options.recovery = one(rng, &[200, 1000, 5000]);
    options.quick = one(rng, &[0.0, 0.3, 0.9]);
    options.detect = one(rng, &[0, 20, 100, 400]);
    options.guard = rng.chance(0.5);
    options.faults_until = one(rng, &[5_000, 20_000, 60_000]);
}

/// Wrong suspicions, broken connections, clocks that drift, slow disks.
fn leases(options: &mut LevelOptions, rng: &mut Prng) {
    options.leases = true;
    options.fifo = true;
    options.guard = false;
    options.drift_ppm = one(rng, &[0, 1000, 50_000]);
    options.disk = one(rng, &[0, 0, 20, 200]);
    options.durable = rng.chance(0.5);
    // Renewals must not fill the time of those who send them.
    (options.send, options.send_sd) = (1.0, 0.0);
    options.hold = one(rng, &[1, 10, 1000, 10_000, 30_000]);
    options.hold_any = rng.chance(0.7);
    options.span = one(rng, &[0, 1000, 5000]);
    options.lease = one(rng, &[4000, 10_000]);
    if rng.chance(0.25) {
        return;
    }
    options.faults_until = one(rng, &[20_000, 100_000]);
    options.detect = one(rng, &[5, 50, 500]);
    if rng.chance(0.7) {
        options.cut = one(rng, &[30, 200, 1000]);
        options.cut_for = one(rng, &[10, 300, 6000]);
    }
    if rng.chance(0.6) {
        options.up = one(rng, &[0.7, 0.9]);
        options.recovery = one(rng, &[200, 2000]);
        options.quick = one(rng, &[0.0, 0.5]);
    }
}

/// Makes consent hold long enough to be of use.
fn fit(options: &mut LevelOptions, levels: u8) {
    options.way_max = 60 + options.jitter + (options.send * 15.0) as u64 + options.disk;
    if !options.leases {
        let least = options.hold + (u64::from(levels) + 2) * options.way_max;
        let mut rng = Prng::new(options.seed);
        options.lease = least * (11 + rng.below(20) as u64) / 10;
    }
}

/// Nothing fails, and nobody gives up.
fn calm(options: &mut LevelOptions) {
    options.leases = false;
    (options.up, options.cut, options.cancel) = (1.0, 0, 0.0);
    (options.span, options.disk, options.durable) = (0, 0, true);
    options.hold = options.hold.min(100);
}

/// Nodes fail and come back, which is noticed without error.
fn failing(options: &mut LevelOptions, rng: &mut Prng) {
    calm(options);
    options.up = one(rng, &[0.7, 0.85]);
    options.recovery = one(rng, &[200, 1000]);
    options.quick = one(rng, &[0.3, 0.9]);
    options.detect = one(rng, &[0, 20, 100]);
    options.guard = rng.chance(0.5);
    options.faults_until = 60_000;
}

/// Many ask at once, for the exclusive lock.
fn crowded(options: &mut LevelOptions, rng: &mut Prng) {
    options.askers = 0;
    options.asks = options.asks.max(6);
    options.gap = one(rng, &[10, 100]);
    (options.groups, options.exclusive) = (0, 1.0);
}

/// Promises are leases, and connections and nodes fail.
fn leased(options: &mut LevelOptions, rng: &mut Prng) {
    leases(options, rng);
    options.up = 0.8;
    options.recovery = 500;
    options.quick = 0.7;
    options.faults_until = 100_000;
    options.hold = one(rng, &[1000, 10_000]);
    options.gap = 100;
}

fn bias(options: &mut LevelOptions, shape: &mut Shape, plant: LevelPlant, rng: &mut Prng) {
    shape.nodes = shape.nodes.min(30);
    let deeper = |shape: &mut Shape, least: u8| shape.levels = shape.levels.max(least);
    match plant {
        LevelPlant::ConsentAtOnce
        | LevelPlant::TimeoutAtLeaf
        | LevelPlant::TimerStays
        | LevelPlant::AnnounceRestarts => {
            deeper(shape, 1);
            calm(options);
            crowded(options, rng);
            options.announce = true;
            options.hold = one(rng, &[10, 100]);
            options.threshold = 20;
        }
        LevelPlant::AnyYield => {
            calm(options);
            crowded(options, rng);
            (shape.levels, options.hold) = (0, 1);
            options.jitter = one(rng, &[60, 200]);
            options.fifo = true;
        }
        LevelPlant::NoBound => {
            (shape.coterie, shape.nodes, shape.levels) = ("tree", 16, 1);
            calm(options);
            crowded(options, rng);
            (options.gap, options.asks, options.hold) = (1, 60, 10);
            (options.sticky, options.spread) = (true, false);
            (options.passes, options.lease) = (1, 100_000);
        }
        LevelPlant::AnyGroup => {
            calm(options);
            crowded(options, rng);
            (options.groups, options.exclusive, options.hold) = (3, 0.2, 100);
        }
        LevelPlant::AnyReply
        | LevelPlant::OldLives
        | LevelPlant::QueueOfTheDead
        | LevelPlant::HolderOfTheDead
        | LevelPlant::LostArbiter => {
            failing(options, rng);
            crowded(options, rng);
            options.jitter = one(rng, &[60, 200]);
            if plant == LevelPlant::OldLives {
                options.quick = 0.9;
                options.fifo = false;
            }
            if plant == LevelPlant::AnyReply {
                options.fifo = rng.chance(0.5);
                options.cancel = 0.3;
            }
        }
        LevelPlant::ForgetGrants => {
            failing(options, rng);
            crowded(options, rng);
            deeper(shape, 1);
            (options.quick, options.hold) = (0.9, 100);
        }
        LevelPlant::ReleaseAfterRestart => {
            deeper(shape, 1);
            leased(options, rng);
            crowded(options, rng);
            (options.quick, options.detect, options.hold_any) = (0.9, 50, false);
            options.hold = 10_000;
        }
        LevelPlant::AnyDone
        | LevelPlant::NoWaitAtRoot
        | LevelPlant::DeadChild
        | LevelPlant::LostParent => {
            failing(options, rng);
            crowded(options, rng);
            deeper(shape, 1);
            options.hold = 100;
            if plant == LevelPlant::AnyDone {
                options.cancel = 0.3;
            }
        }
        LevelPlant::NoWaitForChild => {
            failing(options, rng);
            crowded(options, rng);
            deeper(shape, 2);
            (options.hold, options.sticky) = (100, true);
        }
        LevelPlant::OrphanPasses => {
            failing(options, rng);
            crowded(options, rng);
            (shape.nodes, shape.levels) = (27, 2);
            (options.hold, options.hold_any, options.sticky) = (100, false, true);
            (options.jitter, options.send, options.send_sd) = (0, 1.0, 0.0);
            (options.passes, options.asks, options.gap) = (40, 20, 10);
        }
        LevelPlant::LeaseFromAnswer => {
            leased(options, rng);
            crowded(options, rng);
            options.jitter = 200;
            options.lease = 2000;
            (options.span, options.hold, options.hold_any) = (1000, 10_000, false);
        }
        LevelPlant::NoPause => {
            leased(options, rng);
            crowded(options, rng);
            options.durable = false;
        }
        LevelPlant::TokensAgain => {
            leased(options, rng);
            crowded(options, rng);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_makes_a_world_that_its_token_makes_again() {
        for seed in 1..300 {
            let plant = LevelPlant::ALL[seed as usize % LevelPlant::ALL.len()];
            for options in [
                swarm(seed, 0..=3, false, None),
                swarm(seed, 0..=3, true, None),
                swarm(seed, 2..=2, false, None),
                swarm(seed, 0..=3, false, Some(plant)),
            ] {
                let nodes = options.topology().unwrap().nodes();
                assert_eq!(options.checked(nodes), Ok(()), "{options}");
                assert_eq!(options.to_string().parse(), Ok(options));
            }
        }
    }
}
