//! Planted bugs of all protocols under one roof.

use conclave_protocol::lease::plant::Plant as LeasePlant;
use conclave_protocol::lock::{Plant, Protocol};
use conclave_protocol::multilevel::LevelPlant;
use conclave_protocol::object::plant::Plant as ObjectPlant;
use conclave_sim::fuzz::{FuzzReport, Sweep, run_caught};
use conclave_sim::{Fuzz, Options};

use super::Machines;
use super::lease::Leases;
use super::multilevel::Hierarchies;
use super::object::Objects;
use crate::cli::Failure;

/// A planted bug of any protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Planted {
    Lock(Plant),
    Lease(LeasePlant),
    Object(ObjectPlant),
    Level(LevelPlant),
}

impl Planted {
    /// All of them.
    pub(crate) fn all() -> Vec<Self> {
        let locks = Plant::ALL.iter().copied().map(Self::Lock);
        let leases = LeasePlant::ALL.iter().copied().map(Self::Lease);
        let objects = ObjectPlant::ALL.iter().copied().map(Self::Object);
        let levels = LevelPlant::ALL.iter().copied().map(Self::Level);
        locks.chain(leases).chain(objects).chain(levels).collect()
    }

    /// The one of this name.
    pub(crate) fn named(name: &str) -> Result<Self, Failure> {
        let mut all = Self::all().into_iter();
        all.find(|plant| plant.name() == name).ok_or_else(|| {
            Failure::Input(format!(
                "there is no planted bug '{name}': 'conclave sim plants' lists them"
            ))
        })
    }

    /// The one of this name, which must show in the protocol.
    pub(crate) fn named_in(name: &str, machines: Machines) -> Result<Self, Failure> {
        let plant = Self::named(name)?;
        if plant.protocol() == machines.name() {
            return Ok(plant);
        }
        Err(Failure::Input(format!(
            "'{name}' is a bug of {0}: use --protocol {0}",
            plant.protocol()
        )))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lock(plant) => plant.name(),
            Self::Lease(plant) => plant.name(),
            Self::Object(plant) => plant.name(),
            Self::Level(plant) => plant.name(),
        }
    }

    pub(crate) fn protocol(self) -> &'static str {
        match self {
            Self::Lock(plant) => plant.protocol(),
            Self::Lease(_) => "lease",
            Self::Object(_) => "object",
            Self::Level(_) => "multilevel",
        }
    }

    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Lock(plant) => plant.what(),
            Self::Lease(plant) => plant.what(),
            Self::Object(plant) => plant.what(),
            Self::Level(plant) => plant.what(),
        }
    }

    /// Looks for it with the seeds.
    pub(crate) fn hunt(self, seeds: Sweep, progress: &(dyn Fn(u64) + Sync)) -> FuzzReport {
        match self {
            Self::Lock(plant) => {
                let protocol = if plant.protocol() == "lock" {
                    Protocol::Parallel
                } else {
                    Protocol::Serial
                };
                let what = Fuzz {
                    protocol,
                    seeds: seeds.seeds,
                    plant: Some(plant),
                    threads: seeds.threads,
                    stop_at_first: seeds.stop_at_first,
                };
                conclave_sim::fuzz(&what, progress)
            }
            Self::Lease(plant) => Leases::planted(plant).fuzz(&seeds, progress),
            Self::Object(plant) => Objects::planted(plant).fuzz(&seeds, progress),
            Self::Level(plant) => Hierarchies::planted(plant).fuzz(&seeds, progress),
        }
    }

    /// What the world of a finding breaks without the bug: nothing, or it has proved nothing.
    pub(crate) fn control(self, replay: &str) -> Option<&'static str> {
        let outcome = match self {
            Self::Lock(_) => {
                let mut options: Options = replay.parse().ok()?;
                options.plant = None;
                run_caught(&options)
            }
            Self::Lease(_) => super::lease::without_plant(replay)?,
            Self::Object(_) => super::object::without_plant(replay)?,
            Self::Level(_) => super::multilevel::without_plant(replay)?,
        };
        outcome.violation.map(|broken| broken.property)
    }
}
