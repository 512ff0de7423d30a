//! A world for every seed: sizes, times, habits and faults drawn at random, each fault on or off.
//!
//! A run in which everything happens at once hides more than one in which a few things happen
//! often; so most seeds leave most faults out.

use conclave_protocol::lock::{Choice, Plant, Protocol, Restart};
use conclave_quorum::Prng;

use crate::net::Latency;
use crate::options::Options;
use crate::script::Script;

/// The systems that seeds draw from. Small ones more often: there quorums meet in fewer nodes.
const SYSTEMS: [&str; 12] = [
    "majority(3)",
    "majority(5)",
    "billiard(4)",
    "billiard(4)",
    "surficial(groups=2, n=4)",
    "surficial(groups=2, n=4)",
    "grid(9)",
    "tree(7)",
    "billiard(12)",
    "singleton(3)",
    "majority(7)",
    "grid(4)",
];

/// What `conclave demo` does, simulated: five nodes with the times of a real cluster, and as many
/// clients that fight for four locks while nodes are killed, frozen and stopped by its script.
pub fn demo(seed: u64, plant: Option<Plant>) -> Options {
    let mut options = Options {
        seed,
        plant,
        system: "majority(5)".to_owned(),
        clients: 14,
        names: 4,
        groups: 2,
        exclusive: 0.6,
        shared: 0.0,
        detach: 0.15,
        hold_ms: 2,
        think_ms: 1,
        act_ms: 1,
        ttl_low_ms: 2000,
        ttl_high_ms: 2000,
        link_ttl_ms: 1000,
        heartbeat_ms: 250,
        deadline: 1.0,
        deadline_ms: 20_000,
        latency: Latency::Uniform(50_000, 400_000),
        span_ms: 14_000,
        script: Script::demo(),
        ..Options::default()
    };
    calm(&mut options);
    options.cancel = 0.0;
    options.attempt = 0.0;
    options.together = 0.0;
    options
}

/// The options of a seed. A planted bug changes them so that what it breaks happens often.
pub fn swarm(protocol: Protocol, seed: u64, plant: Option<Plant>) -> Options {
    let mut rng = Prng::new(seed ^ 0x0073_7761_726d);
    let mut options = Options {
        seed,
        protocol,
        plant,
        ..Options::default()
    };
    draw_cluster(&mut options, &mut rng);
    draw_habits(&mut options, &mut rng);
    draw_faults(&mut options, &mut rng);
    if protocol == Protocol::Serial {
        keep_serial(&mut options);
    }
    if plant.is_none() {
        // Drawn apart, so that the worlds of older seeds stay what they were but for this.
        let mut own = Prng::new(seed ^ 0x7265_766f_6b65);
        options.revoke = one(&mut own, &[0.0, 0.0, 0.5, 3.0]);
    }
    if let Some(plant) = plant {
        bias(&mut options, plant, &mut rng);
    } else {
        // A watch would show the tokens that a planted bug spoils; it is not to be found by that.
        options.watchers = one(&mut rng, &[0, 1, 3]);
        // Drawn apart: what else a seed means stays as it was.
        let mut rng = Prng::new(seed ^ 0x0061_6e79);
        options.any = one(&mut rng, &[0.0, 0.0, 0.1, 0.5]);
        if rng.chance(0.2) {
            // TTLs that outlast the finding of a lost node, as people use them.
            options.ttl_low_ms = 4 * options.link_ttl_ms + 2000;
            options.ttl_high_ms = options.ttl_low_ms;
            options.ttl_max_ms = options.ttl_low_ms;
        }
        options.choice = one(&mut rng, &[Choice::Shared, Choice::Shared, Choice::Near]);
        // Links must still live through a round trip.
        let quick = matches!(
            options.latency,
            Latency::Constant(_) | Latency::Uniform(200_000, _)
        );
        if quick && options.spread <= 1.0 {
            options.regions = one(&mut rng, &[1, 2, 3]);
            (options.far, options.slow) = one(&mut rng, &[(5.0, 1.0), (1.0, 8.0)]);
        }
    }
    if plant.is_none() && protocol == Protocol::Parallel {
        let mut own = Prng::new(seed ^ 0x0062_6573_6964);
        options.serial_beside = own.chance(0.2);
        let mut own = Prng::new(seed ^ 0x746f_6b65_6e73);
        if own.chance(0.25) {
            spoil_tokens(&mut options, &mut own);
        }
    }
    options
}

fn one<T: Copy>(rng: &mut Prng, values: &[T]) -> T {
    values[rng.below(values.len())]
}

fn draw_cluster(options: &mut Options, rng: &mut Prng) {
    one(rng, &SYSTEMS).clone_into(&mut options.system);
    options.groups = one(rng, &[1, 2, 2, 3]);
    options.clients = 3 + rng.below(5) as u32;
    options.wishes = one(rng, &[1, 1, 1, 2]);
    options.names = one(rng, &[1, 2, 3, 8]);
    options.hot = one(rng, &[0.0, 0.5, 0.9]);
    options.max_inside = one(rng, &[0, 0, 1, 2, 3]);
    options.max_bypass = one(rng, &[16, 0, 1, 3]);
    options.restart = one(rng, &[Restart::Pause, Restart::Pause, Restart::Durable]);
    options.ttl_low_ms = one(rng, &[150, 300, 500]);
    options.ttl_high_ms = options.ttl_low_ms + one(rng, &[0, 400, 900]);
    options.ttl_max_ms = options.ttl_high_ms + one(rng, &[0, 500]);
    options.link_ttl_ms = one(rng, &[200, 400, 800]);
    options.heartbeat_ms = options.link_ttl_ms / 4;
    options.drift_ppm = one(rng, &[5_000, 5_000, 50_000]);
    options.lead_ms = one(rng, &[20, 200, 1000]);
    options.ceiling_ms = one(rng, &[50, 1000]);
    options.idle_locks = one(rng, &[0, 1, 4]);
    options.latency = match rng.below(5) {
        0 => Latency::Constant(1_000_000),
        1 => Latency::Uniform(200_000, 3_000_000),
        2 => Latency::Exponential(1_500_000),
        3 => Latency::Uniform(1_000_000, 25_000_000),
        _ => Latency::Tail {
            mean: 800_000,
            often: 50,
            times: 40,
        },
    };
    options.spread = one(rng, &[1.0, 1.0, 4.0]);
    options.skew_ms = one(rng, &[0, 5, 100]);
    options.disk_us = one(rng, &[50, 300, 3000]);
    options.disk_slow = one(rng, &[0.0, 0.0, 0.05]);
}

fn draw_habits(options: &mut Options, rng: &mut Prng) {
    (options.exclusive, options.shared) = one(
        rng,
        &[(1.0, 0.0), (0.5, 0.2), (0.2, 0.3), (0.3, 0.0), (0.1, 0.8)],
    );
    options.hold_ms = one(rng, &[5, 30, 100, 400]);
    options.think_ms = one(rng, &[5, 30, 150]);
    options.act_ms = one(rng, &[10, 30]);
    options.cancel = one(rng, &[0.0, 0.1, 0.4]);
    options.cancel_ms = one(rng, &[3, 20, 100]);
    options.deadline = one(rng, &[0.0, 0.1]);
    options.attempt = one(rng, &[0.0, 0.1]);
    options.together = one(rng, &[0.0, 0.0, 0.2]);
    options.detach = one(rng, &[0.0, 0.1, 0.4]);
    options.named = one(rng, &[0.0, 0.3, 0.6]);
}

fn draw_faults(options: &mut Options, rng: &mut Prng) {
    options.span_ms = one(rng, &[2000, 3000, 4000]);
    options.heal_ms = 20_000;
    let mut sometimes = |share: f64, rates: &[f64]| {
        if rng.chance(share) {
            one(rng, rates)
        } else {
            0.0
        }
    };
    options.reset = sometimes(0.5, &[1.0, 5.0, 20.0]);
    options.late = sometimes(0.6, &[0.3, 0.8]);
    options.stall = sometimes(0.4, &[1.0, 5.0]);
    options.partition = sometimes(0.3, &[0.3, 1.0]);
    options.loss = sometimes(0.3, &[0.05, 0.3]);
    options.crash = sometimes(0.5, &[0.3, 1.0, 3.0]);
    options.blackout = sometimes(0.2, &[0.3]);
    options.again = sometimes(0.4, &[0.5]);
    options.disk_lost = sometimes(0.3, &[0.3]);
    options.drain = sometimes(0.3, &[0.5, 2.0]);
    options.node_pause = sometimes(0.3, &[0.5, 2.0]);
    options.client_pause = sometimes(0.5, &[1.0, 4.0]);
    options.client_crash = sometimes(0.4, &[0.5, 3.0]);
    options.expire = sometimes(0.4, &[1.0, 6.0]);
    options.jump = sometimes(0.3, &[1.0, 5.0]);
    options.jump_ms = one(rng, &[50, 500, 20_000]);
    options.stall_ms = one(rng, &[50, 300, 800]);
    options.down_ms = one(rng, &[20, 200, 600]);
    options.pause_ms = one(rng, &[50, 300, 900]);
}

/// Faults of the serial protocol: cancel, reset, expiry, crash and restart. Its quorums do not
/// change and it has no handles.
fn keep_serial(options: &mut Options) {
    options.stall = 0.0;
    options.partition = 0.0;
    options.loss = 0.0;
    options.disk_lost = 0.0;
    options.drain = 0.0;
    options.node_pause = 0.0;
    options.jump = 0.0;
    options.detach = 0.0;
    if options.system.starts_with("billiard(12)") || options.system.starts_with("grid(9)") {
        "grid(4)".clone_into(&mut options.system);
    }
}

/// Makes what a planted bug breaks happen often.
fn bias(options: &mut Options, plant: Plant, rng: &mut Prng) {
    // Every bug shows best where conflicting holders follow each other quickly.
    options.names = 1 + rng.below(2) as u32;
    options.exclusive = one(rng, &[1.0, 0.6]);
    options.act_ms = 10;
    match plant {
        Plant::NoFloorOnExpiry => {
            options.expire = 8.0;
            options.client_crash = 3.0;
            options.client_pause = 4.0;
        }
        Plant::EnterBeforeRaised => {
            far_clocks(options);
            options.names = 2;
            options.link_ttl_ms = 800;
            options.latency = Latency::Uniform(1_000_000, 25_000_000);
            options.clients = 4;
            options.cancel = 0.4;
            options.expire = 10.0;
            options.crash = 0.0;
            options.client_crash = 0.0;
        }
        Plant::RaisedAboveCeiling => {
            far_clocks(options);
            // Nodes share a clock: it is attackers who make floors differ.
            options.attack = 10.0;
            options.idle_locks = 0;
            options.latency = Latency::Uniform(200_000, 3_000_000);
            options.restart = Restart::Pause;
            options.lead_ms = 1;
            options.ceiling_ms = 10;
            options.disk_us = 20_000;
            options.crash = 3.0;
            options.blackout = 0.0;
            options.disk_lost = 0.0;
            options.down_ms = 10;
            options.drain = 2.0;
            options.client_crash = 4.0;
            options.expire = 5.0;
        }
        Plant::AmnesiaZeroFloor | Plant::RecoverWithoutLimits => lose_disks(options),
        Plant::NoConnCheck => {
            options.names = 1;
            options.exclusive = 1.0;
            options.clients = 3;
            options.hold_ms = 100;
            options.cancel = 0.4;
            options.cancel_ms = 20;
            options.span_ms = 5000;
            options.latency = Latency::Uniform(200_000, 6_000_000);
            options.reset = 60.0;
            options.late = 0.9;
        }
        Plant::SilentExpiry => options.expire = 8.0,
        Plant::LeaveBeforeNoted => leave_nodes(options),
        Plant::NoWayBack => {
            leave_nodes(options);
            options.serial_beside = true;
            "majority(3)".clone_into(&mut options.system);
        }
        Plant::HandleWaits => {
            leave_nodes(options);
            options.detach = 1.0;
            options.named = 0.0;
            options.hold_ms = 20;
            options.stall = 8.0;
            options.stall_ms = 400;
        }
        Plant::HedgeStaysLate => {
            plain(options, "majority(3)", 2000);
            calm(options);
            options.restart = Restart::Pause;
            options.ttl_max_ms = 20_000;
            options.link_ttl_ms = 100;
            options.heartbeat_ms = 25;
            options.latency = Latency::Uniform(200_000, 3_000_000);
            options.names = 4;
            options.hold_ms = 5;
            options.crash = 2.0;
            options.down_ms = 400;
            options.span_ms = 6000;
        }
        Plant::LeaveOnRaise => {
            leave_nodes(options);
            // Floors that differ from node to node make a hold that moves take a larger token.
            options.lead_ms = 0;
            options.idle_locks = 0;
            options.names = 4;
        }
        Plant::SweepBeforePop => {
            crowd(options);
            "majority(3)".clone_into(&mut options.system);
            options.deadline = 0.9;
            options.deadline_ms = 5000;
            options.reset = 0.2;
            options.wishes = 3;
            options.hold_ms = 2;
        }
        Plant::WatchForgets => {
            options.watchers = 3;
            options.stall = 20.0;
            options.client_crash = 3.0;
        }
        Plant::YieldInside | Plant::NoRequestOnLocked => {
            options.hot = 0.5;
            options.cancel = 0.4;
            options.cancel_ms = 3;
            options.latency = Latency::Uniform(200_000, 6_000_000);
        }
        Plant::FailedRule => crowd(options),
        Plant::LiteralRefill => {
            options.max_inside = 1 + rng.below(2) as u32;
            options.exclusive = 0.1;
            options.cancel = 0.5;
            options.clients = 7;
            options.hold_ms = 30;
        }
        Plant::FreshnessPerQuorum => {
            options.stall = 8.0;
            options.partition = 2.0;
            options.stall_ms = 800;
            options.hold_ms = 400;
        }
        Plant::HeartbeatBeforeResume => break_early(options),
        Plant::KeepaliveLowersLimit => raise_while_moving(options),
        Plant::NoFreshnessAtEntry => {
            plain(options, "majority(3)", 300);
            options.latency = Latency::Uniform(5_000_000, 40_000_000);
            options.link_ttl_ms = 100;
            options.heartbeat_ms = 90;
            options.client_pause = 3.0;
            options.jump = 0.0;
            options.stall = 8.0;
            options.partition = 2.0;
            options.stall_ms = 50;
            options.hold_ms = 400;
        }
        Plant::SecondCrashForgetsPause => {
            plain(options, "singleton(1)", 600);
            options.restart = Restart::Pause;
            options.link_ttl_ms = 100;
            options.heartbeat_ms = 90;
            options.latency = Latency::Uniform(200_000, 6_000_000);
            options.detach = 0.9;
            options.hold_ms = 400;
            options.span_ms = 5000;
            options.crash = 3.0;
            options.again = 0.7;
            options.down_ms = 20;
            options.stall = 20.0;
            options.stall_ms = 50;
            options.client_crash = 0.0;
        }
        Plant::PauseTooShort => {
            options.restart = Restart::Pause;
            options.crash = 3.0;
            options.again = 0.7;
            options.down_ms = 20;
            options.hold_ms = 400;
            options.partition = 1.0;
        }
        Plant::CleanMarkKept => {
            options.restart = Restart::Pause;
            options.drain = 3.0;
            options.crash = 3.0;
            options.down_ms = 20;
        }
        Plant::ValidityFromReply | Plant::NoDriftMargin => {
            options.latency = Latency::Uniform(1_000_000, 40_000_000);
            // Links must still live through a round trip, or nothing ever ends.
            options.spread = 1.0;
            options.link_ttl_ms = 800;
            options.heartbeat_ms = 200;
            options.ttl_low_ms = 500;
            options.ttl_high_ms = 500;
            options.ttl_max_ms = 1000;
            options.drift_ppm = 100_000;
            options.stall = 6.0;
            options.partition = 2.0;
            options.stall_ms = 1500;
            options.hold_ms = 800;
            options.client_pause = 2.0;
        }
        Plant::ReclaimStale => return_late(options),
        Plant::MigrateWithoutFloor => move_after_spite(options),
        Plant::KeepsOtherSlots => {
            options.names = 2 + rng.below(2) as u32;
            options.hot = 0.0;
            options.any = 0.8;
            options.together = 0.0;
            options.clients = 5;
            options.hold_ms = 30;
        }
        Plant::OldGrantHandle => show_old_handles(options),
        Plant::FinishedMark => {
            options.detach = 0.8;
            options.named = 0.5;
            options.expire = 4.0;
            options.crash = 1.0;
            options.hold_ms = 400;
        }
        Plant::RevokeFreesEarly => {
            options.revoke = 20.0;
            options.hold_ms = 100;
            options.exclusive = 1.0;
            options.latency = Latency::Uniform(1_000_000, 25_000_000);
        }
        Plant::TokenClockIsWall
        | Plant::TokenClockStands
        | Plant::TokenClockAlone
        | Plant::TokenClockForgotten
        | Plant::RecoverWithoutClock
        | Plant::BoundFromCeiling
        | Plant::NoTokenBound
        | Plant::ReserveUncapped
        | Plant::EnteredUnchecked
        | Plant::DoneUnchecked
        | Plant::BelievesInside
        | Plant::RaiseOnce => spoil_tokens_of(options, plant, rng),
        Plant::SerialUnlockWithoutRequest => {
            options.cancel = 0.5;
            options.cancel_ms = 3;
            options.latency = Latency::Uniform(200_000, 6_000_000);
        }
    }
}

/// Clients do their worst with tokens while clocks are wrong. Nodes hear each other quickly, so
/// that whoever means well is served at once.
fn spoil_tokens(options: &mut Options, rng: &mut Prng) {
    options.latency = Latency::Uniform(200_000, 3_000_000);
    options.spread = 1.0;
    options.regions = 1;
    (options.far, options.slow) = (1.0, 1.0);
    options.partition = 0.0;
    options.loss = 0.0;
    options.node_pause = 0.0;
    // What attackers say of themselves is not for watchers to judge.
    options.watchers = 0;
    options.attack = one(rng, &[5.0, 50.0]);
    options.step = one(rng, &[0.0, 1.0, 4.0]);
    options.epoch = one(rng, &[0.0, 0.3, 1.0]);
    options.skew_ms = one(rng, &[0, 100, 5_000]);
    options.ahead_ms = one(rng, &[86_400_000, 86_400_000, 10_000]);
}

/// The same, so that one planted bug shows.
fn spoil_tokens_of(options: &mut Options, plant: Plant, rng: &mut Prng) {
    plain(options, one(rng, &["majority(3)", "majority(5)"]), 300);
    calm(options);
    spoil_tokens(options, rng);
    options.names = 3;
    options.idle_locks = one(rng, &[0, 1]);
    options.clients = 4;
    options.link_ttl_ms = 400;
    options.heartbeat_ms = 100;
    options.disk_us = 300;
    options.disk_slow = 0.0;
    options.hold_ms = 30;
    options.think_ms = 5;
    options.span_ms = 4000;
    options.attack = 50.0;
    options.down_ms = 20;
    options.restart = Restart::Pause;
    match plant {
        Plant::TokenClockForgotten => {
            options.crash = 2.0;
            options.blackout = 0.5;
            options.epoch = 1.0;
        }
        Plant::RecoverWithoutClock => {
            options.crash = 4.0;
            options.disk_lost = 1.0;
            options.epoch = 1.0;
            options.span_ms = 5000;
        }
        Plant::TokenClockIsWall | Plant::TokenClockStands => options.step = 4.0,
        Plant::TokenClockAlone => options.skew_ms = 5_000,
        Plant::RaiseOnce => {
            "majority(2)".clone_into(&mut options.system);
            options.skew_ms = 5_000;
            options.step = 4.0;
        }
        _ => options.crash = one(rng, &[0.0, 1.0]),
    }
}

/// One exclusive lock, nothing that ends a wish early, and this TTL for all.
fn plain(options: &mut Options, system: &str, ttl_ms: u64) {
    system.clone_into(&mut options.system);
    options.names = 1;
    options.exclusive = 1.0;
    options.ttl_low_ms = ttl_ms;
    options.ttl_high_ms = ttl_ms;
    options.ttl_max_ms = ttl_ms;
    options.together = 0.0;
    options.attempt = 0.0;
    options.deadline = 0.0;
    options.spread = 1.0;
}

/// Clocks that are far apart make raises common.
fn far_clocks(options: &mut Options) {
    plain(options, "majority(3)", 150);
    options.link_ttl_ms = 100;
    options.heartbeat_ms = 25;
    options.skew_ms = 1000;
    options.jump = 0.0;
    options.partition = 0.0;
    options.hold_ms = 30;
    options.think_ms = 5;
    options.reset = 20.0;
}

/// Connections break between the greeting and the resume that follows it.
fn break_early(options: &mut Options) {
    plain(options, "singleton(1)", 300);
    options.link_ttl_ms = 400;
    options.heartbeat_ms = 90;
    options.latency = Latency::Uniform(1_000_000, 40_000_000);
    options.hold_ms = 400;
    options.think_ms = 5;
    options.span_ms = 5000;
    options.reset = 150.0;
    options.late = 0.0;
    options.stall = 0.0;
    options.partition = 0.0;
    options.client_pause = 0.0;
    options.expire = 0.0;
    options.drain = 0.0;
}

/// The node that all quorums need loses its disk while a handle keeps a grant alive at another,
/// and rivals go where its token is not known.
fn lose_disks(options: &mut Options) {
    plain(options, "expr(1*2 + 1*3)", 300);
    calm(options);
    options.restart = Restart::Pause;
    options.link_ttl_ms = 200;
    options.heartbeat_ms = 50;
    options.latency = Latency::Uniform(200_000, 3_000_000);
    options.skew_ms = 0;
    options.idle_locks = 4;
    options.clients = 4;
    options.detach = 1.0;
    options.named = 0.0;
    options.overdue = 0.9;
    options.hold_ms = 800;
    options.think_ms = 5;
    options.span_ms = 5000;
    options.crash = 1.0;
    options.disk_lost = 1.0;
    options.down_ms = 10;
    options.reset = 150.0;
}

/// Many ask at once for what two nodes must both give, and messages overtake each other.
fn crowd(options: &mut Options) {
    plain(options, "majority(2)", 500);
    calm(options);
    options.link_ttl_ms = 400;
    options.heartbeat_ms = 100;
    options.latency = Latency::Uniform(1_000_000, 25_000_000);
    options.clients = 5;
    options.detach = 0.0;
    options.hold_ms = 5;
    options.think_ms = 5;
    // A waiting request that gave up would end the deadlock.
    options.cancel = 0.0;
}

/// Long TTLs on connections that live shortly, and nodes that come and go.
fn leave_nodes(options: &mut Options) {
    plain(options, "majority(5)", 2000);
    calm(options);
    options.link_ttl_ms = 100;
    options.heartbeat_ms = 25;
    options.latency = Latency::Uniform(200_000, 3_000_000);
    options.detach = 0.0;
    options.hold_ms = 800;
    options.span_ms = 5000;
    // All that wait have their turn, one after the other.
    options.heal_ms = 60_000;
    options.crash = 0.5;
    options.drain = 1.0;
    options.down_ms = 20;
}

/// Nothing goes wrong but what is set afterwards.
fn calm(options: &mut Options) {
    let rates = [
        &mut options.reset,
        &mut options.stall,
        &mut options.partition,
        &mut options.loss,
        &mut options.crash,
        &mut options.blackout,
        &mut options.again,
        &mut options.drain,
        &mut options.node_pause,
        &mut options.client_pause,
        &mut options.client_crash,
        &mut options.expire,
        &mut options.revoke,
        &mut options.jump,
        &mut options.step,
        &mut options.epoch,
        &mut options.attack,
    ];
    for rate in rates {
        *rate = 0.0;
    }
}

/// Holders move to nodes with higher floors before all nodes know that they are inside, and die.
fn raise_while_moving(options: &mut Options) {
    plain(options, "majority(3)", 300);
    options.names = 8;
    options.hot = 0.0;
    options.idle_locks = 0;
    options.restart = Restart::Pause;
    options.down_ms = 50;
    options.overdue = 0.8;
    options.link_ttl_ms = 400;
    options.heartbeat_ms = 10;
    options.spread = 4.0;
    options.latency = Latency::Uniform(2_000_000, 15_000_000);
    options.skew_ms = 0;
    options.jump = 0.0;
    options.crash = 0.0;
    options.clients = 6;
    options.wishes = 2;
    options.hold_ms = 200;
    options.think_ms = 5;
    options.detach = 0.5;
    options.named = 0.0;
    options.cancel = 0.0;
    options.stall = 5.0;
    options.stall_ms = 300;
    options.partition = 3.0;
    options.reset = 20.0;
    options.drain = 3.0;
    options.expire = 10.0;
    options.client_crash = 8.0;
}

/// Nodes crash while holders are away for longer than a TTL.
fn return_late(options: &mut Options) {
    plain(options, "singleton(1)", 300);
    options.restart = Restart::Pause;
    options.link_ttl_ms = 100;
    options.heartbeat_ms = 25;
    options.clients = 3;
    options.hold_ms = 400;
    options.crash = 2.0;
    options.down_ms = 20;
    options.stall = 10.0;
    options.stall_ms = 300;
    options.partition = 0.0;
}

/// Holders whose grant was taken by spite do not hear of it and move to where a rival has been.
fn move_after_spite(options: &mut Options) {
    plain(options, "majority(3)", 600);
    options.link_ttl_ms = 400;
    options.heartbeat_ms = 10;
    options.latency = Latency::Uniform(200_000, 6_000_000);
    options.lead_ms = 1;
    options.clients = 4;
    options.wishes = 2;
    options.detach = 0.0;
    options.cancel = 0.0;
    options.hold_ms = 400;
    options.span_ms = 5000;
    options.expire = 30.0;
    options.stall = 30.0;
    options.stall_ms = 200;
    options.reset = 30.0;
    options.crash = 0.0;
}

/// Handles that ran out are shown again, through several gateways, while others come and go.
fn show_old_handles(options: &mut Options) {
    plain(options, "singleton(1)", 150);
    options.ttl_max_ms = 650;
    options.latency = Latency::Uniform(5_000_000, 40_000_000);
    options.detach = 0.9;
    options.named = 0.0;
    options.overdue = 0.9;
    options.cancel = 0.4;
    options.hold_ms = 400;
    options.span_ms = 5000;
    options.reset = 20.0;
    options.expire = 0.0;
    options.crash = 0.0;
    options.node_pause = 0.0;
    options.loss = 0.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_makes_a_world_that_can_be_run_and_replayed() {
        for protocol in [Protocol::Parallel, Protocol::Serial] {
            let plants = Plant::ALL.iter().copied().map(Some).chain([None]);
            for plant in plants {
                for seed in 0..60 {
                    let options = swarm(protocol, seed, plant);
                    options.config(true).unwrap();
                    assert_eq!(options.to_string().parse(), Ok(options));
                }
            }
        }
    }

    #[test]
    fn every_fault_is_on_in_some_seeds_and_off_in_others() {
        let all: Vec<Options> = (0..200)
            .map(|seed| swarm(Protocol::Parallel, seed, None))
            .collect();
        let rates: [fn(&Options) -> f64; 7] = [
            |options| options.reset,
            |options| options.partition,
            |options| options.crash,
            |options| options.client_pause,
            |options| options.expire,
            |options| options.revoke,
            |options| options.detach,
        ];
        for rate in rates {
            let on = all.iter().filter(|options| rate(options) > 0.0).count();
            assert!((20..180).contains(&on), "{on}");
        }
    }
}
