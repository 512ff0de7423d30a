//! Everything a run of leases depends on, and its one-line text form: the token that replays it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::fault::{FaultError, Faults};
use conclave_protocol::lease::plant::{Plant, Rules};
use conclave_protocol::lease::{Backoff, LeaseConfig, Terms};
use conclave_quorum::Prng;
use thiserror::Error;

use super::liar::Strategy;
use crate::net::exponential;

/// How long messages take, as parts of the longest delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delays {
    /// No time at all.
    Instant,
    /// Always the longest delay.
    Constant,
    /// Nothing, half of it, or all of it.
    Three,
    /// Anything up to it.
    Uniform,
    /// Mostly a quarter, but one in ten takes five times the longest delay in the mean.
    Tail,
}

impl Delays {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Instant, "instant"),
        (Self::Constant, "constant"),
        (Self::Three, "three"),
        (Self::Uniform, "uniform"),
        (Self::Tail, "tail"),
    ];

    /// Whether no message takes longer than the longest delay.
    pub fn bounded(self) -> bool {
        self != Self::Tail
    }

    /// Draws the nanoseconds of one message.
    pub fn draw(self, longest: u64, rng: &mut Prng) -> u64 {
        match self {
            Self::Instant => 0,
            Self::Constant => longest,
            Self::Three => longest / 2 * rng.below(3) as u64,
            Self::Uniform => rng.below(longest as usize + 1) as u64,
            Self::Tail if rng.below(10) == 0 => exponential(longest * 5, rng),
            Self::Tail => exponential(longest / 4, rng),
        }
    }
}

/// How waits grow, by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth(pub Backoff);

/// The cap of growth in runs: after so many failures waits grow no more.
const GROWTH_CAP: u32 = 12;
const GROWTH_CAP_POLYNOMIAL: u32 = 1000;

impl Growth {
    /// Waits that double.
    pub fn exponential() -> Self {
        Self(Backoff::Exponential { cap: GROWTH_CAP })
    }

    /// Waits that grow with this power of the failures.
    pub fn power(power: f64) -> Self {
        Self(Backoff::Polynomial {
            power,
            cap: GROWTH_CAP_POLYNOMIAL,
        })
    }
}

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
}

impl Value for f64 {
    fn show(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Result<Self, String> {
        let number = text.parse().ok();
        number
            .filter(|number: &Self| number.is_finite() && (0.0..=1e6).contains(number))
            .ok_or_else(|| format!("'{text}' is not a number between zero and a million"))
    }
}

impl Value for Delays {
    fn show(&self) -> String {
        let mut all = Self::ALL.iter();
        let name = all.find(|(delays, _)| delays == self);
        name.map_or("", |(_, name)| name).to_owned()
    }

    fn read(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(delays, _)| *delays).ok_or_else(|| {
            format!("'{text}' is no delay; give instant, constant, three, uniform or tail")
        })
    }
}

impl Value for Strategy {
    fn show(&self) -> String {
        self.name().to_owned()
    }

    fn read(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = Self::ALL.iter().map(|lie| lie.name()).collect();
        Self::named(text)
            .ok_or_else(|| format!("'{text}' is no lie; give one of {}", names.join(", ")))
    }
}

impl Value for Growth {
    fn show(&self) -> String {
        match self.0 {
            Backoff::Exponential { .. } => "exponential".to_owned(),
            Backoff::Polynomial { power, .. } => power.to_string(),
        }
    }

    fn read(text: &str) -> Result<Self, String> {
        if text == "exponential" {
            return Ok(Self::exponential());
        }
        let power = text.parse().ok();
        let power = power.filter(|power: &f64| (0.0..=8.0).contains(power));
        power
            .map(Self::power)
            .ok_or_else(|| format!("'{text}' is no growth; give exponential or a power up to 8"))
    }
}

impl Value for Option<Plant> {
    fn show(&self) -> String {
        self.map_or("none", Plant::name).to_owned()
    }

    fn read(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(None);
        }
        let plant = Plant::named(text);
        plant
            .map(Some)
            .ok_or_else(|| format!("'{text}' is no planted bug of leases; see `sim plants`"))
    }
}

/// Why a text is no run of leases.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LeaseOptionsError {
    /// An option without a value.
    #[error("'{part}' is no option; give key=value, separated by ';'")]
    NoValue {
        /// What was given.
        part: String,
    },
    /// No such option.
    #[error("there is no option '{key}' for leases")]
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
    /// Too few nodes.
    #[error(transparent)]
    Faults(#[from] FaultError),
}

macro_rules! options {
    ($($(#[$doc:meta])* $field:ident: $kind:ty = $default:expr,)*) => {
        /// Everything a run of leases depends on. `_ms` are milliseconds, rates are events per
        /// second of true time over the whole world, a plain fraction is a probability.
        #[derive(Clone, Debug, PartialEq)]
        pub struct LeaseOptions {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl Default for LeaseOptions {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl LeaseOptions {
            /// Sets one option from its text.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), LeaseOptionsError> {
                match key {
                    $(stringify!($field) => {
                        self.$field = Value::read(value).map_err(|what| {
                            LeaseOptionsError::Value { key: key.to_owned(), what }
                        })?;
                    })*
                    _ => return Err(LeaseOptionsError::Unknown { key: key.to_owned() }),
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
    plant: Option<Plant> = None,
    /// Whether the protocol is the one that was first published.
    paper: bool = false,
    /// How many nodes.
    nodes: u32 = 6,
    /// How many of them lie.
    byzantine: u32 = 1,
    /// How they lie.
    lie: Strategy = Strategy::Any,
    /// How many clients.
    clients: u32 = 3,
    /// How many leases each of them gets before it stops.
    goal: u32 = 4,
    /// How long a lease lasts.
    span_ms: u64 = 1000,
    /// How many times as long it lasts for every second client.
    longer: u32 = 1,
    /// The longest delay of a message that clients and nodes allow for.
    delay_ms: u64 = 100,
    /// How long messages really take.
    delays: Delays = Delays::Uniform,
    /// How many honest nodes are slow.
    slow: u32 = 0,
    /// How many times as long messages to and from slow nodes take.
    slower: u32 = 20,
    /// The share of messages that are lost.
    loss: f64 = 0.0,
    /// The share of attempts in which a connection breaks and is made anew.
    reopen: f64 = 0.0,
    /// How long nodes may keep a request.
    patience_ms: u64 = 0,
    /// How waits grow.
    growth: Growth = Growth::exponential(),
    /// The shortest wait between attempts; zero takes the shortest that makes sense.
    floor_ms: u64 = 0,
    /// Whether votes are given back after failures.
    release: bool = true,
    /// Whether the first client tries again without waiting.
    designated: bool = false,
    /// The share of leases that are given back early.
    early: f64 = 0.5,
    /// If not zero: how long holders use their leases before they give them back.
    use_ms: u64 = 0,
    /// The share of leases that are renewed once or more.
    renew: f64 = 0.0,
    /// The share of leases whose holders crash.
    crash: f64 = 0.0,
    /// The share of attempts that are given up in the middle.
    cancel: f64 = 0.0,
    /// How long a client rests between leases.
    think_ms: u64 = 500,
    /// Whether all clients begin at once.
    together: bool = false,
    /// If not zero: clients come one by one, so many per span in the mean.
    arrive: f64 = 0.0,
    /// How often a node restarts.
    restart: f64 = 0.0,
    /// How long it is down.
    down_ms: u64 = 100,
    /// How long a write takes to become durable.
    disk_ms: u64 = 0,
    /// The rate error that clients and nodes allow for, in millionths.
    drift_ppm: u32 = 0,
    /// How far rates are really off.
    rate_ppm: u32 = 0,
    /// By how much the clocks of nodes are fast beyond that.
    fast_ppm: u32 = 0,
    /// How far wall clocks are off.
    skew_ms: u64 = 0,
    /// How long the run lasts at most.
    limit_s: u64 = 40_000,
}

impl LeaseOptions {
    /// Whether the world keeps what liveness needs: every message in time and no restarts.
    pub fn synchronous(&self) -> bool {
        self.delays.bounded()
            && self.slow == 0
            && self.loss == 0.0
            && self.restart == 0.0
            && self.reopen == 0.0
    }

    /// How many nodes really lie.
    pub fn liars(&self) -> u32 {
        self.byzantine + u32::from(self.plant == Some(Plant::MoreLiars))
    }

    /// By how many millionths the clocks of nodes are fast.
    pub fn fast(&self) -> u32 {
        if self.plant == Some(Plant::FastNodes) {
            return self.fast_ppm.max(200_000);
        }
        self.fast_ppm
    }

    /// What clients and nodes agree on.
    pub fn config(&self) -> Result<Arc<LeaseConfig>, LeaseOptionsError> {
        let faults = Faults::new(self.nodes as usize, self.byzantine as usize)?;
        if self.paper {
            faults.mutex()?;
        }
        let within = |key: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(LeaseOptionsError::Value {
                key: key.to_owned(),
                what: format!("{value} is not between {least} and {most}"),
            })
        };
        within("nodes", u64::from(self.nodes), 1, 200)?;
        within("clients", u64::from(self.clients), 1, 10_000)?;
        within("goal", u64::from(self.goal), 1, 100_000)?;
        within("span_ms", self.span_ms, 1, 3_600_000)?;
        within("longer", u64::from(self.longer), 1, 100)?;
        within("delay_ms", self.delay_ms, 1, 3_600_000)?;
        within("slower", u64::from(self.slower), 1, 1000)?;
        within("slow", u64::from(self.slow), 0, u64::from(self.nodes))?;
        within("patience_ms", self.patience_ms, 0, 3_600_000)?;
        within("use_ms", self.use_ms, 0, 3_600_000)?;
        within("floor_ms", self.floor_ms, 0, 3_600_000)?;
        within("think_ms", self.think_ms, 0, 3_600_000)?;
        within("down_ms", self.down_ms, 0, 3_600_000)?;
        within("disk_ms", self.disk_ms, 0, 3_600_000)?;
        within("skew_ms", self.skew_ms, 0, 3_600_000)?;
        within("limit_s", self.limit_s, 1, 10_000_000)?;
        within("drift_ppm", u64::from(self.drift_ppm), 0, 900_000)?;
        within("rate_ppm", u64::from(self.rate_ppm), 0, 900_000)?;
        within("fast_ppm", u64::from(self.fast_ppm), 0, 900_000)?;
        let millis = Duration::from_millis;
        Ok(Arc::new(LeaseConfig {
            delay: millis(self.delay_ms),
            drift_ppm: self.drift_ppm,
            span_max: millis(self.span_ms) * self.longer,
            rules: Rules {
                paper: self.paper,
                broken: self.plant,
            },
            ..LeaseConfig::new(faults)
        }))
    }

    /// How a client asks for its leases.
    pub fn terms(&self, client: usize) -> Terms {
        let span = Duration::from_millis(self.span_ms);
        let longer = if client % 2 == 1 { self.longer } else { 1 };
        Terms {
            span: span * longer,
            patience: Duration::from_millis(self.patience_ms),
            backoff: self.growth.0,
            floor: (self.floor_ms > 0).then(|| Duration::from_millis(self.floor_ms)),
            release: self.release,
            designated: self.designated && client == 0,
            least: span / 4,
        }
    }
}

impl fmt::Display for LeaseOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("protocol=lease")?;
        if self.seed == Self::default().seed {
            write!(out, ";seed={}", self.seed)?;
        }
        for (key, value) in self.changed() {
            write!(out, ";{key}={value}")?;
        }
        Ok(())
    }
}

impl FromStr for LeaseOptions {
    type Err = LeaseOptionsError;

    fn from_str(text: &str) -> Result<Self, LeaseOptionsError> {
        let mut options = Self::default();
        for part in text.split(';').filter(|part| !part.trim().is_empty()) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(LeaseOptionsError::NoValue {
                    part: part.to_owned(),
                });
            };
            let (key, value) = (key.trim(), value.trim());
            if key == "protocol" && value == "lease" {
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
        let options = LeaseOptions {
            seed: 9,
            plant: Some(Plant::LateFree),
            lie: Strategy::Huge,
            delays: Delays::Tail,
            growth: Growth::power(1.5),
            loss: 0.25,
            ..LeaseOptions::default()
        };
        let token = options.to_string();
        assert!(token.starts_with("protocol=lease;seed=9;"), "{token}");
        assert_eq!(token.parse(), Ok(options));
        let plain = LeaseOptions::default();
        assert_eq!(plain.to_string().parse(), Ok(plain));
    }

    #[test]
    fn what_no_run_can_be_made_of_is_refused() {
        for wrong in [
            "x=1", "loss=-1", "loss=NaN", "lie=yes", "growth=9", "seed", "delays=1",
        ] {
            assert!(wrong.parse::<LeaseOptions>().is_err(), "{wrong}");
        }
        for wrong in [
            "nodes=3",
            "nodes=1000",
            "nodes=5;paper=true",
            "span_ms=0",
            "clients=0",
            "limit_s=99999999",
        ] {
            let options: LeaseOptions = wrong.parse().unwrap();
            assert!(options.config().is_err(), "{wrong}");
        }
    }
}
