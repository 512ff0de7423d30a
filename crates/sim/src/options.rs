//! Everything a run depends on, and its one-line text form: the token that replays it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::lock::{
    Choice, Config, Limits, Plant, Policy, Protocol, Quorums, QuorumsError, Restart, Rules, Times,
};
use conclave_quorum::build::{BuildError, build};
use conclave_quorum::{System, text};
use thiserror::Error;

use crate::net::Latency;
use crate::script::Script;

/// A value of an option, as text and back.
pub(crate) trait Value: Sized {
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
            .filter(|number: &Self| number.is_finite() && *number >= 0.0)
            .ok_or_else(|| format!("'{text}' is not a number that is zero or more"))
    }
}

impl Value for String {
    fn show(&self) -> String {
        self.clone()
    }

    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl Value for Latency {
    fn show(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl Value for Script {
    fn show(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl Value for Protocol {
    fn show(&self) -> String {
        match self {
            Self::Parallel => "lock".to_owned(),
            Self::Serial => "lock-serial".to_owned(),
        }
    }

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "lock" => Ok(Self::Parallel),
            "lock-serial" => Ok(Self::Serial),
            _ => Err(format!("'{text}' is no protocol; give lock or lock-serial")),
        }
    }
}

impl Value for Choice {
    fn show(&self) -> String {
        match self {
            Self::Shared => "shared".to_owned(),
            Self::Near => "near".to_owned(),
        }
    }

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "shared" => Ok(Self::Shared),
            "near" => Ok(Self::Near),
            _ => Err(format!("'{text}' is no choice; give shared or near")),
        }
    }
}

impl Value for Restart {
    fn show(&self) -> String {
        match self {
            Self::Pause => "pause".to_owned(),
            Self::Durable => "durable".to_owned(),
        }
    }

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "pause" => Ok(Self::Pause),
            "durable" => Ok(Self::Durable),
            _ => Err(format!("'{text}' is no restart; give pause or durable")),
        }
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
            .ok_or_else(|| format!("'{text}' is no planted bug; see `sim plants`"))
    }
}

macro_rules! options {
    ($($(#[$doc:meta])* $field:ident: $kind:ty = $default:expr,)*) => {
        /// Everything a run depends on. Rates are events per second of true time over the whole
        /// world; `_ms` and `_us` are milliseconds and microseconds, means where a time is drawn;
        /// a plain fraction is a probability.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Options {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl Default for Options {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Options {
            /// The names of all options, as in the text form.
            pub const KEYS: &'static [&'static str] = &[$(stringify!($field),)*];

            /// Sets one option from its text.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), OptionsError> {
                match key {
                    $(stringify!($field) => {
                        self.$field = Value::read(value).map_err(|what| OptionsError::Value {
                            key: key.to_owned(),
                            what,
                        })?;
                    })*
                    _ => return Err(OptionsError::Unknown { key: key.to_owned() }),
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

pub(crate) use options;

options! {
    /// The seed of all chance in the run.
    seed: u64 = 1,
    /// Which protocol serves the locks.
    protocol: Protocol = Protocol::Parallel,
    /// A bug planted on purpose.
    plant: Option<Plant> = None,
    /// The quorum system, as text.
    system: String = "majority(5)".to_owned(),
    /// How many groups clients ask for; the first of them own the cartels of a group system.
    groups: u32 = 2,
    /// How many client processes.
    clients: u32 = 6,
    /// How many clients watch locks: the first all of them, each other one lock.
    watchers: u32 = 0,
    /// How many wishes a client has at once.
    wishes: u32 = 1,
    /// How many lock names.
    names: u32 = 3,
    /// The share of wishes for the first name.
    hot: f64 = 0.3,
    /// The share of exclusive wishes.
    exclusive: f64 = 0.5,
    /// The share of shared wishes; the rest are wishes for a group.
    shared: f64 = 0.2,
    /// How many wishes a client makes before it stops; zero is no limit.
    asks: u64 = 0,
    /// The shortest TTL asked for.
    ttl_low_ms: u64 = 300,
    /// The longest TTL asked for.
    ttl_high_ms: u64 = 1200,
    /// How long a holder stays inside.
    hold_ms: u64 = 60,
    /// How long a client rests between wishes.
    think_ms: u64 = 80,
    /// How long between two uses of the resource by a holder.
    act_ms: u64 = 30,
    /// The share of wishes that are cancelled if they wait too long.
    cancel: f64 = 0.1,
    /// How long until a cancel.
    cancel_ms: u64 = 40,
    /// The share of wishes with a deadline.
    deadline: f64 = 0.1,
    /// How far away a deadline is.
    deadline_ms: u64 = 200,
    /// The share of wishes that only try.
    attempt: f64 = 0.05,
    /// The share of wishes for several locks at once.
    together: f64 = 0.1,
    /// The share of wishes for any one of several locks: the slots of a semaphore.
    any: f64 = 0.0,
    /// The share of wishes whose hold is detached to a handle.
    detach: f64 = 0.15,
    /// The share of detached wishes in a session that the caller named.
    named: f64 = 0.3,
    /// The share of handles that ran out whose holders try to renew them all the same.
    overdue: f64 = 0.0,
    /// How many holders a node lets in per group; zero is no limit.
    max_inside: u32 = 0,
    /// How many late members may pass a waiting request.
    max_bypass: u32 = 16,
    /// Whether the cluster also has a policy of serial locks, for names that nobody asks for.
    serial_beside: bool = false,
    /// What nodes keep on disk.
    restart: Restart = Restart::Pause,
    /// The longest TTL that nodes accept.
    ttl_max_ms: u64 = 2000,
    /// How long a connection lives without a heartbeat.
    link_ttl_ms: u64 = 400,
    /// How often a client sends a heartbeat.
    heartbeat_ms: u64 = 100,
    /// By how many millionths rates of steady clocks may differ.
    drift_ppm: u32 = 5000,
    /// How far above its clock a node reserves tokens.
    lead_ms: u64 = 1000,
    /// How far ahead a node writes its token ceiling.
    ceiling_ms: u64 = 1000,
    /// When a requester asks other nodes at the earliest.
    hedge_us: u64 = 2000,
    /// A client waits at least this long before it connects again.
    reconnect_ms: u64 = 20,
    /// And at most this long.
    reconnect_max_ms: u64 = 500,
    /// Idle locks whose exact floors a node remembers.
    idle_locks: u32 = 4,
    /// How long a message takes.
    latency: Latency = Latency::Constant(1_000_000),
    /// By how much pairs of processes differ in latency: each is drawn from one to this factor.
    spread: f64 = 1.0,
    /// Into how many regions nodes and clients are spread.
    regions: u32 = 1,
    /// How many times as long a message takes from one region to another.
    far: f64 = 1.0,
    /// How many times as long messages to and from the first node take.
    slow: f64 = 1.0,
    /// The share of wishes for names that belong to the client's own region.
    local: f64 = 0.0,
    /// How clients choose the quorum they ask first.
    choice: Choice = Choice::Shared,
    /// How far wall clocks are off.
    skew_ms: u64 = 0,
    /// How long a write takes to become durable.
    disk_us: u64 = 200,
    /// The share of writes that take a hundred times as long.
    disk_slow: f64 = 0.0,
    /// How long faults go on.
    span_ms: u64 = 4000,
    /// How long everything that waits may take to end afterwards.
    heal_ms: u64 = 30_000,
    /// How long the world runs on after everything has ended.
    linger_ms: u64 = 0,
    /// How often a connection is reset.
    reset: f64 = 0.0,
    /// The share of resets after which bytes of the old connection arrive late.
    late: f64 = 0.0,
    /// How often one way of one pair stalls.
    stall: f64 = 0.0,
    /// How long a stall or a partition lasts.
    stall_ms: u64 = 300,
    /// How often the network falls apart.
    partition: f64 = 0.0,
    /// The share of messages between nodes that are lost.
    loss: f64 = 0.0,
    /// How often a node crashes.
    crash: f64 = 0.0,
    /// The share of crashes that hit all nodes at once.
    blackout: f64 = 0.0,
    /// The share of crashes that are followed by another one soon after the restart.
    again: f64 = 0.0,
    /// The share of crashes that lose the disk.
    disk_lost: f64 = 0.0,
    /// How long a process stays down.
    down_ms: u64 = 200,
    /// How often a node is stopped cleanly.
    drain: f64 = 0.0,
    /// How often a node is paused.
    node_pause: f64 = 0.0,
    /// How often a client is paused.
    client_pause: f64 = 0.0,
    /// How long a pause lasts.
    pause_ms: u64 = 400,
    /// How often a client crashes.
    client_crash: f64 = 0.0,
    /// How often a live session is expired at one node.
    expire: f64 = 0.0,
    /// How often an operator revokes a live session, without force.
    revoke: f64 = 0.0,
    /// How often the wall clock of a process jumps.
    jump: f64 = 0.0,
    /// How far it jumps at most.
    jump_ms: u64 = 0,
    /// How often the wall clock of a node, or of all, is set wrong by days or right again.
    step: f64 = 0.0,
    /// The share of starts at which a node's wall clock begins in 1970.
    epoch: f64 = 0.0,
    /// How often a client does its worst with tokens.
    attack: f64 = 0.0,
    /// How far ahead of its token clock a node takes tokens.
    ahead_ms: u64 = 86_400_000,
    /// What happens to which nodes at fixed moments.
    script: Script = Script::default(),
}

/// The largest number of processes of one kind.
const PROCESSES_MAX: u32 = 100_000;

impl Options {
    /// Whether anything goes wrong in the run.
    pub fn has_faults(&self) -> bool {
        let rates = [
            self.reset,
            self.stall,
            self.partition,
            self.loss,
            self.crash,
            self.drain,
            self.node_pause,
            self.client_pause,
            self.client_crash,
            self.expire,
            self.revoke,
            self.jump,
            self.step,
            self.epoch,
            self.attack,
        ];
        rates.iter().any(|rate| *rate > 0.0) || !self.script.is_empty()
    }

    /// Clients are dealt to the regions in turn.
    pub(crate) fn region_of_client(&self, client: u32) -> u32 {
        client % self.regions
    }

    /// The names of the groups that clients ask for.
    pub fn group_names(&self) -> Vec<String> {
        (0..self.groups)
            .map(|group| format!("group{group}"))
            .collect()
    }

    /// The quorum system.
    pub fn build_system(&self) -> Result<System, OptionsError> {
        let spec = text::parse(&self.system).map_err(|why| OptionsError::System {
            text: self.system.clone(),
            why: why.to_string(),
        })?;
        let no_files = |_: &str| Err("a simulated system reads no files".to_owned());
        let built =
            build(&spec, None, &no_files).map_err(|why: BuildError| OptionsError::System {
                text: self.system.clone(),
                why: why.to_string(),
            })?;
        Ok(built.system)
    }

    /// The configuration of the cluster, and what cannot be run named.
    pub fn config(&self, observe: bool) -> Result<Arc<Config>, OptionsError> {
        self.check()?;
        let system = self.build_system()?;
        self.check_script(system.nodes())?;
        let names = self.group_names();
        let cartels = match &system {
            System::Groups(groups) => groups.cartels().len(),
            _ => 0,
        };
        let registered: Vec<&str> = names.iter().take(cartels).map(String::as_str).collect();
        let quorums = Quorums::new(&system, &registered)?;
        let millis = Duration::from_millis;
        let policy = Policy {
            max_inside: if self.max_inside == 0 {
                u32::MAX
            } else {
                self.max_inside
            },
            max_bypass: self.max_bypass,
            protocol: self.protocol,
            choice: self.choice,
        };
        let mut config = Config::new(quorums);
        config.times = Times {
            link_ttl: millis(self.link_ttl_ms),
            heartbeat: millis(self.heartbeat_ms),
            ttl_max: millis(self.ttl_max_ms),
            ttl_min: millis(self.ttl_low_ms.min(100)),
            drift_ppm: self.drift_ppm,
            lead: millis(self.lead_ms),
            ceiling_step: millis(self.ceiling_ms),
            hedge_min: Duration::from_micros(self.hedge_us),
            reconnect_min: millis(self.reconnect_ms),
            reconnect_max: millis(self.reconnect_max_ms),
            token_ahead: millis(self.ahead_ms),
            ..Times::default()
        };
        config.limits = Limits {
            idle_locks: self.idle_locks as usize,
            ..if self.has_faults() {
                small_limits()
            } else {
                Limits::default()
            }
        };
        config.restart = self.restart;
        config.policies = vec![(Vec::new(), policy)];
        if self.serial_beside {
            let serial = Policy {
                protocol: Protocol::Serial,
                ..policy
            };
            config.policies.push((b"serial/".to_vec(), serial));
        }
        config.rules = self.plant.map_or_else(Rules::default, Rules::planted);
        config.observe = observe;
        Ok(Arc::new(config))
    }

    /// A script says when nodes are down, and chance does not.
    fn check_script(&self, nodes: usize) -> Result<(), OptionsError> {
        let wrong = |what: String| {
            let key = "script".to_owned();
            Err(OptionsError::Value { key, what })
        };
        let last = self.script.last_node();
        if last as usize > nodes {
            return wrong(format!("there is no node {last} among {nodes}"));
        }
        if !self.script.is_empty() && self.crash + self.drain + self.node_pause > 0.0 {
            return wrong("leave out crash, drain and node_pause".to_owned());
        }
        Ok(())
    }

    /// Refuses what makes no run.
    fn check(&self) -> Result<(), OptionsError> {
        let wrong = |key: &str, what: &str| {
            Err(OptionsError::Value {
                key: key.to_owned(),
                what: what.to_owned(),
            })
        };
        let whole = [
            ("clients", self.clients),
            ("names", self.names),
            ("wishes", self.wishes),
        ];
        for (key, value) in whole {
            if !(1..=PROCESSES_MAX).contains(&value) {
                return wrong(key, "give 1 to 100000");
            }
        }
        if self.groups > 1000 {
            return wrong("groups", "give at most 1000");
        }
        if self.ttl_low_ms == 0
            || self.ttl_low_ms > self.ttl_high_ms
            || self.ttl_high_ms > self.ttl_max_ms
        {
            return wrong(
                "ttl_low_ms",
                "TTLs must satisfy 0 < ttl_low_ms <= ttl_high_ms <= ttl_max_ms",
            );
        }
        if self.heartbeat_ms == 0 || self.link_ttl_ms <= self.heartbeat_ms {
            return wrong("link_ttl_ms", "a link must outlive a heartbeat");
        }
        if self.drift_ppm >= 500_000 {
            return wrong("drift_ppm", "clocks must agree by half at least");
        }
        let factors = [
            ("spread", self.spread),
            ("far", self.far),
            ("slow", self.slow),
        ];
        for (key, value) in factors {
            if !(1.0..=1000.0).contains(&value) {
                return wrong(key, "give a factor from 1 to 1000");
            }
        }
        if !(1..=PROCESSES_MAX).contains(&self.regions) {
            return wrong("regions", "give 1 to 100000");
        }
        let day = 86_400_000;
        let spans = [
            ("span_ms", self.span_ms),
            ("heal_ms", self.heal_ms),
            ("linger_ms", self.linger_ms),
            ("ttl_max_ms", self.ttl_max_ms),
            ("link_ttl_ms", self.link_ttl_ms),
            ("hold_ms", self.hold_ms),
            ("think_ms", self.think_ms),
            ("stall_ms", self.stall_ms),
            ("pause_ms", self.pause_ms),
            ("down_ms", self.down_ms),
            ("skew_ms", self.skew_ms),
            ("jump_ms", self.jump_ms),
            ("ahead_ms", self.ahead_ms),
            ("deadline_ms", self.deadline_ms),
            ("cancel_ms", self.cancel_ms),
            ("disk_us", self.disk_us),
        ];
        for (key, value) in spans {
            if value > day {
                return wrong(key, "give at most a day");
            }
        }
        Ok(())
    }
}

impl fmt::Display for Options {
    /// The options that differ from their defaults; `seed` always, first.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "seed={}", self.seed)?;
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
            options.set(key.trim(), value.trim())?;
        }
        Ok(options)
    }
}

/// Why a run cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionsError {
    /// A part is not of the form key=value.
    #[error("'{part}' is not key=value; parts are separated by ';'")]
    Shape {
        /// The part.
        part: String,
    },
    /// No option has this name.
    #[error("there is no option '{key}'")]
    Unknown {
        /// The name.
        key: String,
    },
    /// A value does not fit.
    #[error("option {key}: {what}")]
    Value {
        /// The option.
        key: String,
        /// What is wrong.
        what: String,
    },
    /// The system cannot be built.
    #[error("the system '{text}' cannot be built: {why}")]
    System {
        /// Its text.
        text: String,
        /// Why.
        why: String,
    },
    /// The system serves no locks.
    #[error(transparent)]
    Quorums(#[from] QuorumsError),
}

/// Limits that a run with faults reaches: what only a busy client does in the service, a small
/// one does here.
fn small_limits() -> Limits {
    Limits {
        resume_part: 2,
        stale_timers: 4,
        early_heartbeat: 3,
        moves: 2,
        picks: 2,
        outbox: 8,
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_what_differs_and_reads_back() {
        let plain = Options::default();
        assert_eq!(plain.to_string(), "seed=1");
        let mut options = plain.clone();
        options.system = "surficial(groups=2, n=4)".to_owned();
        options.plant = Some(Plant::YieldInside);
        options.latency = "tail:300:50:20".parse().unwrap();
        options.restart = Restart::Durable;
        options.reset = 2.5;
        let token = options.to_string();
        assert_eq!(token.parse(), Ok(options), "{token}");
        assert_eq!(" seed=1 ; ".parse(), Ok(plain));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (token, part) in [
            ("seed", "'seed' is not key=value"),
            ("sede=1", "no option 'sede'"),
            ("seed=-1", "option seed: '-1'"),
            ("reset=nan", "option reset: 'nan'"),
            ("plant=weed", "no planted bug"),
            ("script=10:melt:1", "is no step"),
        ] {
            let error = token.parse::<Options>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        for (token, part) in [
            ("clients=0", "option clients"),
            ("ttl_low_ms=5000", "ttl_low_ms"),
            ("system=majority", "cannot be built"),
            ("link_ttl_ms=1", "outlive"),
            ("script=10:kill:6", "no node 6"),
            ("script=demo;crash=1", "leave out crash"),
        ] {
            let options: Options = token.parse().unwrap();
            let error = options.config(true).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
