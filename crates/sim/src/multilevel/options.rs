//! Everything a world of a hierarchy depends on, and its one-line text form: the token that
//! replays it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::lock::Restart;
use conclave_protocol::multilevel::{
    LevelConfig, LevelPlant, LevelRules, Representation, Topology, Trust,
};
use conclave_quorum::construct::multilevel::Clusters;
use conclave_quorum::text::{self, ClustersSize, Spec};
use thiserror::Error;

/// The most nodes of a simulated hierarchy.
pub const NODES_MAX: usize = 4_000_000;
/// The most nodes of one in which pairs of nodes have a state.
pub const PAIRED_MAX: usize = 2_000;

/// A value of an option, as text and back.
trait Value: Sized {
    fn show(&self) -> String;
    fn read(text: &str) -> Result<Self, String>;
}

macro_rules! plain_value {
    ($($kind:ty, $what:literal;)*) => {$(
        impl Value for $kind {
            fn show(&self) -> String {
                self.to_string()
            }

            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("'{text}' is not {}", $what))
            }
        }
    )*};
}

plain_value! {
    u64, "a whole number";
    u32, "a whole number below 2^32";
    bool, "true or false";
    String, "a text";
}

impl Value for f64 {
    fn show(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Result<Self, String> {
        let number = text.parse().ok();
        number
            .filter(|number: &Self| number.is_finite() && (0.0..=1e9).contains(number))
            .ok_or_else(|| format!("'{text}' is not a number between zero and a billion"))
    }
}

impl Value for Option<LevelPlant> {
    fn show(&self) -> String {
        self.map_or("none", LevelPlant::name).to_owned()
    }

    fn read(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(None);
        }
        let plant = LevelPlant::ALL
            .into_iter()
            .find(|plant| plant.name() == text);
        plant
            .map(Some)
            .ok_or_else(|| format!("'{text}' is no planted bug of hierarchies; see `sim plants`"))
    }
}

/// Why a text is no world of a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LevelOptionsError {
    /// An option without a value.
    #[error("'{part}' is no option; give key=value, separated by ';'")]
    NoValue {
        /// What was given.
        part: String,
    },
    /// No such option.
    #[error("there is no option '{key}' for hierarchies")]
    Unknown {
        /// Its name.
        key: String,
    },
    /// A value that it cannot have.
    #[error("option {key}: {what}")]
    Value {
        /// The option.
        key: String,
        /// What is wrong.
        what: String,
    },
    /// No hierarchy.
    #[error("'{text}' is no hierarchy: {what}; give for example 'multilevel(tree, 30, levels=1)'")]
    System {
        /// What was given.
        text: String,
        /// What is wrong.
        what: String,
    },
}

macro_rules! options {
    ($($(#[$doc:meta])* $field:ident: $kind:ty = $default:expr,)*) => {
        /// Everything a world of a hierarchy depends on. Times are in units of one nanosecond
        /// of the machines' clocks; a plain fraction is a probability.
        #[derive(Clone, Debug, PartialEq)]
        pub struct LevelOptions {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl Default for LevelOptions {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl LevelOptions {
            /// Sets one option from its text.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), LevelOptionsError> {
                match key {
                    $(stringify!($field) => {
                        self.$field = Value::read(value).map_err(|what| {
                            LevelOptionsError::Value { key: key.to_owned(), what }
                        })?;
                    })*
                    _ => return Err(LevelOptionsError::Unknown { key: key.to_owned() }),
                }
                Ok(())
            }

            /// Key and value of every option that differs from its default.
            fn changed(&self) -> Vec<(&'static str, String)> {
                let plain = Self::default();
                let mut changed = Vec::new();
                $(if self.$field != plain.$field {
                    changed.push((stringify!($field), Value::show(&self.$field)));
                })*
                changed
            }
        }
    };
}

options! {
    /// The seed of all chance in the run.
    seed: u64 = 1,
    /// A bug planted on purpose.
    plant: Option<LevelPlant> = None,
    /// Whether the rules are those that were published.
    paper: bool = false,
    /// The clusters and their coteries.
    system: String = "multilevel(tree, 13, levels=1)".to_owned(),
    /// Whether promises are leases: suspicions may be wrong and clocks share no origin.
    leases: bool = false,
    /// Whether requests come whatever became of earlier ones; otherwise a node asks again some
    /// time after its last wish has ended.
    open: bool = false,
    /// How many nodes ask; 0: all.
    askers: u32 = 0,
    /// How often each of them asks, unless requests come by themselves.
    asks: u32 = 5,
    /// If requests come by themselves: after so many entries the run ends.
    entries: u64 = 1000,
    /// The mean time between two requests of a node, or between its leaving and asking again.
    gap: u64 = 500,
    /// How long a holder stays inside at most.
    hold: u64 = 10,
    /// Whether holders stay for any time up to that.
    hold_any: bool = false,
    /// How many groups wishes may be for.
    groups: u32 = 0,
    /// The share of wishes that are exclusive.
    exclusive: f64 = 1.0,
    /// The share of wishes that are given up after a while.
    cancel: f64 = 0.0,
    /// The mean way of a message; every pair of nodes has its own.
    way: f64 = 12.0,
    /// The standard deviation of ways.
    way_sd: f64 = 2.449_489_742_783_178,
    /// The most that a message may take beyond that, each its own.
    jitter: u64 = 0,
    /// Whether messages of two nodes keep their order all the same.
    fifo: bool = true,
    /// The mean time to prepare and send a message.
    send: f64 = 8.0,
    /// The standard deviation of that.
    send_sd: f64 = 2.0,
    /// The share of time that a node is up.
    up: f64 = 1.0,
    /// The mean time that a node is down.
    recovery: u64 = 100_000,
    /// The share of failures after which the node is back almost at once.
    quick: f64 = 0.0,
    /// Whether a failure is left out if it would leave a cluster without a quorum.
    guard: bool = true,
    /// When failures and broken connections stop; 0: never.
    faults_until: u64 = 0,
    /// How long a failure goes unnoticed, at most.
    detect: u64 = 20,
    /// Whether all nodes share one view, so that they notice failures at the same time; otherwise
    /// each notices after any time up to that.
    shared: bool = false,
    /// Whether nodes know nothing of the others at first.
    blank: bool = false,
    /// If not zero: the mean time between two broken connections in the whole world.
    cut: u64 = 0,
    /// The mean time until a broken connection is open again.
    cut_for: u64 = 100,
    /// By how many millionths the rates of two clocks may differ.
    drift_ppm: u32 = 0,
    /// How long a write takes to become durable.
    disk: u64 = 0,
    /// Whether the root's arbiters keep every grant on disk; otherwise they pause after a restart.
    durable: bool = true,
    /// Whether children announce themselves.
    announce: bool = true,
    /// Whether a child always asks the same representing node while that is up.
    sticky: bool = false,
    /// Whether the layout of trees depends on the lock.
    spread: bool = false,
    /// How long a representing node with consent waits for a child that announced itself.
    threshold: u64 = 100,
    /// How long it waits after a child is done, if others have announced themselves.
    threshold2: u64 = 100,
    /// The base of the probability of that wait.
    linger: f64 = 0.0,
    /// How many more children one consent may serve.
    passes: u32 = 8,
    /// How long the root's consent holds.
    lease: u64 = 1000,
    /// How long one message may take, as representing nodes reckon.
    way_max: u64 = 40,
    /// With leases: for how long a holder wants consent at a time; 0: for as long as it stays.
    span: u64 = 0,
    /// How long the run lasts at most.
    limit: u64 = 200_000_000,
}

impl LevelOptions {
    /// The clusters and their coteries.
    pub fn topology(&self) -> Result<Arc<Topology>, LevelOptionsError> {
        topology(&self.system).map(Arc::new)
    }

    /// Whether nothing ever fails and nobody gives up.
    pub fn calm(&self) -> bool {
        self.up >= 1.0 && self.cut == 0 && self.cancel == 0.0
    }

    /// Refuses worlds that would not end or fit.
    pub fn checked(&self, nodes: usize) -> Result<(), LevelOptionsError> {
        let within = |key: &str, value: f64, least: f64, most: f64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(LevelOptionsError::Value {
                key: key.to_owned(),
                what: format!("{value} is not between {least} and {most}"),
            })
        };
        let most = if self.leases || (self.jitter > 0 && self.fifo) {
            PAIRED_MAX
        } else {
            NODES_MAX
        };
        within("system", nodes as f64, 1.0, most as f64)?;
        within("up", self.up, 0.05, 1.0)?;
        within("gap", self.gap as f64, 0.0, 1e12)?;
        within("hold", self.hold as f64, 0.0, 1e9)?;
        within("way", self.way, 0.0, 1e9)?;
        within("way_sd", self.way_sd, 0.0, 1e9)?;
        within("send", self.send, 0.0, 1e9)?;
        within("send_sd", self.send_sd, 0.0, 1e9)?;
        within("jitter", self.jitter as f64, 0.0, 1e9)?;
        within("recovery", self.recovery as f64, 1.0, 1e12)?;
        within("detect", self.detect as f64, 0.0, 1e9)?;
        within("cut_for", self.cut_for as f64, 0.0, 1e9)?;
        within("disk", self.disk as f64, 0.0, 1e9)?;
        within("lease", self.lease as f64, 1.0, 1e9)?;
        within("span", self.span as f64, 0.0, 1e9)?;
        within("threshold", self.threshold as f64, 0.0, 1e9)?;
        within("threshold2", self.threshold2 as f64, 0.0, 1e9)?;
        within("way_max", self.way_max as f64, 0.0, 1e9)?;
        within("drift_ppm", f64::from(self.drift_ppm), 0.0, 500_000.0)?;
        within("groups", f64::from(self.groups), 0.0, 10_000.0)?;
        within("exclusive", self.exclusive, 0.0, 1.0)?;
        within("asks", f64::from(self.asks), 1.0, 1e6)?;
        Ok(())
    }

    /// What all nodes agree on.
    pub fn config(&self, topology: Arc<Topology>) -> LevelConfig {
        let units = Duration::from_nanos;
        let mut rules = if self.paper {
            LevelRules::paper()
        } else {
            LevelRules::default()
        };
        if let Some(plant) = self.plant {
            rules = rules.with(plant);
        }
        LevelConfig {
            announce: self.announce,
            choice: if self.sticky {
                Representation::Sticky
            } else {
                Representation::Random
            },
            spread: self.spread,
            threshold: units(self.threshold),
            threshold2: units(self.threshold2),
            linger: self.linger,
            passes: Some(self.passes),
            trust: if self.leases {
                Trust::Leases
            } else {
                Trust::Oracle
            },
            inside_max: units(self.hold),
            way_max: units(self.way_max),
            lease: units(self.lease),
            lease_max: units(self.lease.max(self.wanted_span()) * 4),
            drift_ppm: self.drift_ppm,
            restart: if self.durable {
                Restart::Durable
            } else {
                Restart::Pause
            },
            tombstones: !self.fifo,
            rules,
            ..LevelConfig::paper(topology)
        }
    }

    /// For how long a holder wants consent at a time.
    pub fn wanted_span(&self) -> u64 {
        if self.span == 0 {
            self.hold + 1
        } else {
            self.span
        }
    }
}

/// The clusters and coteries of a hierarchy's text.
pub fn topology(system: &str) -> Result<Topology, LevelOptionsError> {
    let refuse = |what: String| LevelOptionsError::System {
        text: system.to_owned(),
        what,
    };
    let parsed = text::parse(system).map_err(|error| refuse(error.to_string()))?;
    // Trees are walked, not listed: they may be larger than the toolbox takes.
    if let Spec::Multilevel {
        inner,
        clusters: ClustersSize::Even {
            n: Some(nodes),
            levels,
        },
    } = &parsed
        && inner.iter().all(|inner| *inner == Spec::Tree { n: None })
    {
        let clusters = Clusters::build(*nodes, *levels);
        let clusters = clusters.map_err(|error| refuse(error.to_string()))?;
        return Ok(Topology::trees(clusters));
    }
    let known = Topology::parse(system, None).map_err(|error| refuse(error.to_string()))?;
    known.ok_or_else(|| refuse("it has no levels".to_owned()))
}

impl fmt::Display for LevelOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("protocol=multilevel")?;
        if self.seed == Self::default().seed {
            write!(out, ";seed={}", self.seed)?;
        }
        for (key, value) in self.changed() {
            write!(out, ";{key}={value}")?;
        }
        Ok(())
    }
}

impl FromStr for LevelOptions {
    type Err = LevelOptionsError;

    fn from_str(text: &str) -> Result<Self, LevelOptionsError> {
        let mut options = Self::default();
        for part in text.split(';').filter(|part| !part.trim().is_empty()) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(LevelOptionsError::NoValue {
                    part: part.to_owned(),
                });
            };
            let (key, value) = (key.trim(), value.trim());
            if key == "protocol" && value == "multilevel" {
                continue;
            }
            options.set(key, value)?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let options = LevelOptions {
            seed: 9,
            plant: Some(LevelPlant::AnyYield),
            system: "multilevel(majority, 20, levels=2)".to_owned(),
            leases: true,
            linger: 0.25,
            ..LevelOptions::default()
        };
        let token = options.to_string();
        assert!(token.starts_with("protocol=multilevel;seed=9;"), "{token}");
        assert_eq!(token.parse(), Ok(options));
        let plain = LevelOptions::default();
        assert_eq!(plain.to_string().parse(), Ok(plain));
    }

    #[test]
    fn what_no_world_can_be_made_of_is_refused() {
        for wrong in ["x=1", "linger=-1", "up=NaN", "seed", "fifo=1", "plant=x"] {
            assert!(wrong.parse::<LevelOptions>().is_err(), "{wrong}");
        }
        for wrong in [
            "majority(5)",
            "multilevel(tree",
            "multilevel(tree, 0, levels=1)",
        ] {
            assert!(topology(wrong).is_err(), "{wrong}");
        }
        for wrong in ["up=0", "lease=0", "drift_ppm=900000"] {
            let options: LevelOptions = wrong.parse().unwrap();
            assert!(options.checked(13).is_err(), "{wrong}");
        }
        let paired: LevelOptions = "leases=true".parse().unwrap();
        assert!(paired.checked(PAIRED_MAX + 1).is_err());
    }
}
