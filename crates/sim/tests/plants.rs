//! Every planted bug is found, by a property that it breaks, and the same world without it is
//! clean.

use conclave_protocol::lock::{Plant, Protocol};
use conclave_sim::fact::Violation;
use conclave_sim::{Options, run_checked, swarm};

/// Within how many seeds a planted bug must be found.
const SEEDS: u64 = 400;

/// What shows that a lock was given away too early.
const GIVEN_AWAY: &[&str] = &["lost-in-time", "exclusion", "structure", "token-order"];

/// The properties that a planted bug may break first.
fn symptoms(plant: Plant) -> &'static [&'static str] {
    match plant {
        Plant::NoFloorOnExpiry
        | Plant::EnterBeforeRaised
        | Plant::AmnesiaZeroFloor
        | Plant::RecoverWithoutLimits
        | Plant::KeepaliveLowersLimit
        | Plant::MigrateWithoutFloor => &["token-order", "admission"],
        Plant::SilentExpiry | Plant::FailedRule | Plant::FinishedMark => {
            &["no-forgotten", "served-in-time"]
        }
        Plant::RaisedAboveCeiling => &["token-order", "admission", "token-bound"],
        Plant::SweepBeforePop => &["next-step"],
        Plant::LeaveBeforeNoted | Plant::LeaveOnRaise | Plant::NoWayBack => &["kept"],
        Plant::HandleWaits => &["kept", "served-in-time"],
        Plant::HedgeStaysLate => &["served-in-time"],
        Plant::BoundFromCeiling
        | Plant::NoTokenBound
        | Plant::ReserveUncapped
        | Plant::EnteredUnchecked
        | Plant::DoneUnchecked
        | Plant::TokenClockIsWall
        | Plant::TokenClockForgotten
        | Plant::RecoverWithoutClock => &["token-bound", "tokens-serve"],
        Plant::TokenClockStands | Plant::TokenClockAlone | Plant::RaiseOnce => &["tokens-serve"],
        Plant::BelievesInside => &["migration"],
        Plant::KeepsOtherSlots => &["one-slot"],
        Plant::LiteralRefill => &["max-inside"],
        Plant::WatchForgets => &["watch"],
        Plant::NoRequestOnLocked => &["grounded", "structure", "exclusion", "token-order"],
        Plant::NoConnCheck => &[
            "structure",
            "lost-in-time",
            "exclusion",
            "no-forgotten",
            "served-in-time",
        ],
        Plant::YieldInside
        | Plant::FreshnessPerQuorum
        | Plant::HeartbeatBeforeResume
        | Plant::SecondCrashForgetsPause
        | Plant::CleanMarkKept
        | Plant::ValidityFromReply
        | Plant::NoDriftMargin
        | Plant::NoFreshnessAtEntry
        | Plant::PauseTooShort
        | Plant::ReclaimStale
        | Plant::OldGrantHandle
        | Plant::RevokeFreesEarly
        | Plant::SerialUnlockWithoutRequest => GIVEN_AWAY,
    }
}

fn violation(options: &Options) -> Option<Violation> {
    let outcome = run_checked(options);
    outcome.expect("every seed makes a run").violation
}

/// What is wrong with the hunt for a bug; none if it was found as it should be.
fn hunt(plant: Plant) -> Option<String> {
    let protocol = match plant.protocol() {
        "lock-serial" => Protocol::Serial,
        _ => Protocol::Parallel,
    };
    let name = plant.name();
    for seed in 1..=SEEDS {
        let mut options = swarm(protocol, seed, Some(plant));
        let Some(found) = violation(&options) else {
            continue;
        };
        options.plant = None;
        let control = violation(&options);
        if let Some(control) = control {
            return Some(format!("{name}: seed {seed} fails without it: {control:?}"));
        }
        if !symptoms(plant).contains(&found.property) {
            return Some(format!(
                "{name}: seed {seed} shows something else: {found:?}"
            ));
        }
        return None;
    }
    Some(format!("{name}: not found in {SEEDS} seeds"))
}

#[test]
fn every_planted_bug_is_found_and_only_there() {
    let wrong: Vec<String> = Plant::ALL.iter().copied().filter_map(hunt).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The worlds of planted bugs are harsh, not unfair: without the bug most seeds could be run too.
#[test]
fn worlds_made_for_planted_bugs_are_clean_without_them() {
    let mut wrong = Vec::new();
    for plant in Plant::ALL.iter().copied() {
        let protocol = match plant.protocol() {
            "lock-serial" => Protocol::Serial,
            _ => Protocol::Parallel,
        };
        for seed in 1..=CONTROLS {
            let mut options = swarm(protocol, seed, Some(plant));
            options.plant = None;
            if let Some(found) = violation(&options) {
                wrong.push(format!("{options}: {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// How many worlds of each bug are run without it.
const CONTROLS: u64 = 12;
