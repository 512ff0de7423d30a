//! Everything a run depends on, and its one-line text form: the token that replays it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::fault::{Aborts, Faults};
use conclave_protocol::lease::LeaseConfig;
use conclave_protocol::object::ObjectConfig;
use conclave_protocol::object::plant::{Plant, Rules};

use super::liar::Habit;
use crate::net::Latency;
use crate::options::{OptionsError, Value, options};

/// What the second object of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// There is only the ledger.
    None,
    /// A register.
    Register,
    /// A counter.
    Counter,
    /// A map.
    Map,
    /// A queue.
    Queue,
    /// A log.
    Log,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::Register,
        Self::Counter,
        Self::Map,
        Self::Queue,
        Self::Log,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Register => "register",
            Self::Counter => "counter",
            Self::Map => "map",
            Self::Queue => "queue",
            Self::Log => "log",
        }
    }
}

impl Value for Family {
    fn show(&self) -> String {
        self.name().to_owned()
    }

    fn read(text: &str) -> Result<Self, String> {
        let family = Self::ALL.into_iter().find(|family| family.name() == text);
        family.ok_or_else(|| {
            format!("'{text}' is no kind; give none, register, counter, map, queue or log")
        })
    }
}

impl Value for Habit {
    fn show(&self) -> String {
        self.name().to_owned()
    }

    fn read(text: &str) -> Result<Self, String> {
        let habit = Self::ALL.iter().copied().find(|habit| habit.name() == text);
        habit.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|habit| habit.name()).collect();
            format!(
                "'{text}' is no way to lie; give one of {}",
                names.join(", ")
            )
        })
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
        let plant = Plant::named(text).map(Some);
        plant.ok_or_else(|| format!("'{text}' is no planted bug of objects; see `sim plants`"))
    }
}

options! {
    /// The seed of all chance in the run.
    seed: u64 = 1,
    /// How many nodes.
    nodes: u32 = 7,
    /// How many of them the protocol expects to lie.
    byzantine: u32 = 1,
    /// How many of them do.
    liars: u32 = 1,
    /// How they lie.
    lie: Habit = Habit::Mix,
    /// Whether attempts are given up by time-outs alone, so that fewer nodes do.
    timed: bool = false,
    /// A bug planted on purpose.
    plant: Option<Plant> = None,
    /// Whether the protocol is the one that was published.
    paper: bool = false,
    /// How many client processes at a time.
    clients: u32 = 3,
    /// How many operations each client makes.
    ops: u32 = 3,
    /// The share of operations on the ledger; the others go to the second object.
    ledger: f64 = 0.7,
    /// The second object.
    toy: Family = Family::None,
    /// The share of reads among operations.
    reads: f64 = 0.2,
    /// The share of operations on the ledger that ask for a random number.
    random: f64 = 0.3,
    /// How long a client rests between operations.
    think_ms: u64 = 20,
    /// When all clients but the first begin.
    late_ms: u64 = 0,
    /// Whether every node gives its vote to everybody, so that clients order at the same time.
    duel: bool = false,
    /// How long such a vote takes.
    duel_ms: u64 = 20,
    /// Whether the last client is one that the ledger's owner has not let in.
    intruder: bool = false,
    /// Whether all clients have the same identity.
    same_client: bool = false,
    /// How long a message takes.
    latency: Latency = Latency::Uniform(1_000_000, 10_000_000),
    /// The share of connections that are eight times as slow.
    slow: f64 = 0.0,
    /// The share of messages that are lost, with all that follows on the connection.
    loss: f64 = 0.0,
    /// Whether messages of one connection overtake each other, and are lost alone.
    raw: bool = false,
    /// How often a client dies when it begins to propose or to commit, having told some nodes.
    crash: f64 = 0.0,
    /// How often a node dies at a write, just before or just after it is on disk.
    kill: f64 = 0.0,
    /// The write at which one node dies, counted over all nodes; zero is none.
    kill_at: u64 = 0,
    /// How long a process stays down.
    down_ms: u64 = 50,
    /// How long a write takes to become durable.
    disk_us: u64 = 500,
    /// How long a message takes at most when all is well, as the protocol believes.
    delay_ms: u64 = 20,
    /// How long a lease for ordering lasts.
    order_ms: u64 = 200,
    /// By how many millionths rates of clocks may differ.
    drift_ppm: u32 = 200,
    /// How far wall clocks are off.
    skew_ms: u64 = 0,
    /// How long faults go on.
    span_ms: u64 = 2000,
    /// How long everything that waits may take to end afterwards.
    heal_ms: u64 = 60_000,
}

/// Most nodes of a run.
const NODES_MAX: u32 = 64;
/// Most clients of a run.
const CLIENTS_MAX: u32 = 2000;
/// Most operations of a client.
const OPS_MAX: u32 = 10_000;

impl Options {
    /// What nodes and clients agree on; refused if no run can be made.
    pub fn config(&self) -> Result<ObjectConfig, OptionsError> {
        let wrong = |key: &str, what: &str| {
            Err(OptionsError::Value {
                key: key.to_owned(),
                what: what.to_owned(),
            })
        };
        if !(1..=NODES_MAX).contains(&self.nodes) {
            return wrong("nodes", "give 1 to 64");
        }
        if self.liars >= self.nodes {
            return wrong("liars", "give fewer than there are nodes");
        }
        if !(1..=CLIENTS_MAX).contains(&self.clients) {
            return wrong("clients", "give 1 to 2000");
        }
        if self.intruder && self.clients < 2 {
            return wrong(
                "intruder",
                "give at least two clients, one of whom is let in",
            );
        }
        if !(1..=OPS_MAX).contains(&self.ops) {
            return wrong("ops", "give 1 to 10000");
        }
        if self.order_ms < 8 * self.delay_ms || self.delay_ms == 0 {
            return wrong(
                "order_ms",
                "give at least 8 times delay_ms, which is not zero",
            );
        }
        let day = 86_400_000;
        let spans = [
            self.think_ms,
            self.late_ms,
            self.duel_ms,
            self.down_ms,
            self.disk_us,
            self.order_ms,
            self.skew_ms,
            self.span_ms,
            self.heal_ms,
        ];
        if spans.iter().any(|span| *span > day) || self.drift_ppm > 100_000 {
            return wrong(
                "think_ms",
                "times are at most a day, drift_ppm at most 100000",
            );
        }
        self.agreed().map_err(|error| OptionsError::Value {
            key: "nodes".to_owned(),
            what: error.to_string(),
        })
    }

    /// The same world without its planted bug.
    #[must_use]
    pub fn without_plant(mut self) -> Self {
        match self.plant.take() {
            // These are bugs of the world, or need it to be so.
            Some(Plant::MoreLiars) => self.liars = self.byzantine,
            Some(Plant::GetAtEqualRank) => self.same_client = false,
            _ => {}
        }
        self
    }

    fn agreed(&self) -> Result<ObjectConfig, conclave_protocol::fault::FaultError> {
        let faults = Faults::new(self.nodes as usize, self.byzantine as usize)?;
        let mut lease = LeaseConfig::new(faults);
        lease.delay = Duration::from_millis(self.delay_ms);
        lease.drift_ppm = self.drift_ppm;
        lease.span_max = Duration::from_millis(self.order_ms);
        if self.paper {
            lease.rules = conclave_protocol::lease::plant::Rules::published();
        }
        let aborts = if self.timed {
            Aborts::Timed
        } else {
            Aborts::Vouched
        };
        let mut config = ObjectConfig::new(Arc::new(lease), aborts)?;
        config.order_span = Duration::from_millis(self.order_ms);
        let rules = match self.plant {
            Some(plant) => Rules::planted(plant),
            None if self.paper => Rules::paper(),
            None => Rules::default(),
        };
        Ok(config.ruled(rules))
    }
}

impl fmt::Display for Options {
    /// `protocol=object`, the seed, and the options that differ from their defaults.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "protocol=object;seed={}", self.seed)?;
        for (key, value) in self.changed() {
            if key != "seed" {
                write!(out, ";{key}={value}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Options {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        let mut options = Self::default();
        for part in text
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let Some((key, value)) = part.split_once('=') else {
                return Err(OptionsError::Shape {
                    part: part.to_owned(),
                });
            };
            let (key, value) = (key.trim(), value.trim());
            if (key, value) != ("protocol", "object") {
                options.set(key, value)?;
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_what_differs_and_reads_back() {
        let mut options = Options::default();
        assert_eq!(options.to_string(), "protocol=object;seed=1");
        options.plant = Some(Plant::OneVoucher);
        options.lie = Habit::Back;
        options.toy = Family::Queue;
        options.latency = Latency::Exponential(3_000_000);
        assert_eq!(options.to_string().parse(), Ok(options));
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        for token in [
            "nodes=6",
            "nodes=0",
            "nodes=65",
            "liars=7",
            "clients=0",
            "ops=0",
            "order_ms=10",
            "span_ms=99999999999",
        ] {
            let options: Options = token.parse().unwrap();
            assert!(options.config().is_err(), "{token}");
        }
        assert!(
            "nodes=6;timed=true"
                .parse::<Options>()
                .unwrap()
                .config()
                .is_ok()
        );
        assert!("lie=well".parse::<Options>().is_err());
    }
}
