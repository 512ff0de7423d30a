//! The network: how long a message takes, and connections that keep order, stall and break.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use conclave_protocol::id::ConnNo;
use conclave_quorum::Prng;

/// How long a message takes on its way, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Latency {
    /// Always the same.
    Constant(u64),
    /// Anything between two bounds.
    Uniform(u64, u64),
    /// Exponential with this mean.
    Exponential(u64),
    /// Exponential with this mean, but one message of `1/often` takes `times` as long.
    Tail {
        /// The mean of most messages.
        mean: u64,
        /// One of this many is late.
        often: u32,
        /// How many times longer it takes.
        times: u32,
    },
}

impl Latency {
    /// Draws the time of one message.
    pub fn draw(self, rng: &mut Prng) -> u64 {
        match self {
            Self::Constant(nanos) => nanos,
            Self::Uniform(low, high) => low + rng.below((high - low) as usize + 1) as u64,
            Self::Exponential(mean) => exponential(mean, rng),
            Self::Tail { mean, often, times } => {
                let nanos = exponential(mean, rng);
                if rng.below(often as usize) == 0 {
                    nanos * u64::from(times)
                } else {
                    nanos
                }
            }
        }
    }

    /// The mean time of a message.
    pub fn mean(self) -> f64 {
        match self {
            Self::Constant(nanos) | Self::Exponential(nanos) => nanos as f64,
            Self::Uniform(low, high) => f64::midpoint(low as f64, high as f64),
            Self::Tail { mean, often, times } => {
                let late = 1.0 / f64::from(often.max(1));
                mean as f64 * (1.0 - late + late * f64::from(times))
            }
        }
    }

    /// The same distribution, `factor` times as slow: pairs of processes are not equally near.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let scale = |nanos: u64| (nanos as f64 * factor) as u64;
        match self {
            Self::Constant(nanos) => Self::Constant(scale(nanos)),
            Self::Uniform(low, high) => Self::Uniform(scale(low), scale(high)),
            Self::Exponential(mean) => Self::Exponential(scale(mean)),
            Self::Tail { mean, often, times } => Self::Tail {
                mean: scale(mean),
                often,
                times,
            },
        }
    }
}

/// A number drawn with an exponential distribution of this mean.
pub fn exponential(mean: u64, rng: &mut Prng) -> u64 {
    (-(1.0 - rng.unit()).ln() * mean as f64) as u64
}

impl fmt::Display for Latency {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(nanos) => write!(out, "constant:{}", nanos / 1000),
            Self::Uniform(low, high) => write!(out, "uniform:{}:{}", low / 1000, high / 1000),
            Self::Exponential(mean) => write!(out, "exponential:{}", mean / 1000),
            Self::Tail { mean, often, times } => {
                write!(out, "tail:{}:{often}:{times}", mean / 1000)
            }
        }
    }
}

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is no latency; give constant:US, uniform:US:US, exponential:US or \
                 tail:US:OFTEN:TIMES, in microseconds up to ten minutes"
            )
        };
        let mut parts = text.split(':');
        let kind = parts.next().unwrap_or_default();
        let numbers: Result<Vec<u32>, _> = parts.map(str::parse).collect();
        let numbers = numbers.map_err(|_| wrong())?;
        let micros = |number: u32| u64::from(number) * 1000;
        let latency = match (kind, numbers.as_slice()) {
            ("constant", [one]) => Self::Constant(micros(*one)),
            ("uniform", [low, high]) if low <= high => Self::Uniform(micros(*low), micros(*high)),
            ("exponential", [mean]) => Self::Exponential(micros(*mean)),
            ("tail", [mean, often, times]) if *often > 0 && (1..=1000).contains(times) => {
                Self::Tail {
                    mean: micros(*mean),
                    often: *often,
                    times: *times,
                }
            }
            _ => return Err(wrong()),
        };
        if numbers[0] > 600_000_000 {
            return Err(wrong());
        }
        Ok(latency)
    }
}

/// The two ways of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the node.
    Up,
    /// From the node to the client.
    Down,
}

/// One way of a connection: what is sent on it arrives in order or not at all.
#[derive(Debug)]
pub struct Stream<M> {
    /// When the last message sent will arrive at the earliest possible order.
    last: u64,
    /// Nothing arrives before this time.
    hold: u64,
    /// What arrived meanwhile.
    held: VecDeque<M>,
    /// Whether what is under way is lost.
    lost: bool,
}

impl<M> Default for Stream<M> {
    fn default() -> Self {
        Self {
            last: 0,
            hold: 0,
            held: VecDeque::new(),
            lost: false,
        }
    }
}

/// What happens to a message that has come to the end of its way.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<M> {
    /// It is there.
    Now(M),
    /// It waits for the stall to end; the first to wait tells when to call [`Stream::release`].
    Held(Option<u64>),
    /// It is lost.
    Lost,
}

impl<M> Stream<M> {
    /// When a message sent now with this latency arrives: never before an earlier one.
    pub fn depart(&mut self, now: u64, latency: u64) -> u64 {
        self.last = self.last.max(now + latency);
        self.last
    }

    /// Whether a message that comes to the end of its way now is there at once.
    pub fn is_clear(&self, now: u64) -> bool {
        self.held.is_empty() && self.hold <= now && !self.lost
    }

    /// A message comes to the end of its way.
    pub fn arrive(&mut self, now: u64, message: M) -> Arrival<M> {
        if self.lost {
            return Arrival::Lost;
        }
        if self.held.is_empty() && self.hold <= now {
            return Arrival::Now(message);
        }
        self.held.push_back(message);
        Arrival::Held((self.held.len() == 1).then_some(self.hold))
    }

    /// Stops the stream until a time, or longer if it is stopped longer already.
    pub fn stall(&mut self, until: u64) {
        self.hold = self.hold.max(until);
    }

    /// Ends a stall now: the messages held come at the next release.
    pub fn resume(&mut self, now: u64) {
        self.hold = self.hold.min(now);
    }

    /// Loses what is under way and what will be sent.
    pub fn lose(&mut self) {
        self.lost = true;
        self.held.clear();
    }

    /// What was held, in order, if the stall has ended; else when to ask again.
    pub fn release(&mut self, now: u64) -> Result<VecDeque<M>, u64> {
        if now < self.hold {
            return Err(self.hold);
        }
        Ok(std::mem::take(&mut self.held))
    }

    /// Whether something waits for a stall to end.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }
}

/// A connection of a client to a node. Its number in the world is the node's name for it.
#[derive(Debug)]
pub struct Link<M> {
    /// The client's index.
    pub client: u32,
    /// Which life of the client's process.
    pub client_life: u32,
    /// The node's index.
    pub node: u32,
    /// Which life of the node's process took the connection.
    pub node_life: u32,
    /// The client's number for it.
    pub conn: ConnNo,
    /// How long messages take.
    pub latency: Latency,
    /// Whether the client was told that it is open.
    pub opened: bool,
    /// Whether the client still uses it.
    pub client_open: bool,
    /// Whether the node still uses it.
    pub node_open: bool,
    /// From the client to the node.
    pub up: Stream<M>,
    /// From the node to the client.
    pub down: Stream<M>,
}

impl<M> Link<M> {
    /// One of its ways.
    pub fn way(&mut self, way: Way) -> &mut Stream<M> {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_have_their_mean_and_their_text() {
        let mut rng = Prng::new(5);
        for text in [
            "constant:700",
            "uniform:100:900",
            "exponential:400",
            "tail:300:50:20",
        ] {
            let latency: Latency = text.parse().unwrap();
            assert_eq!(latency.to_string(), text);
            let draws = 200_000;
            let sum: f64 = (0..draws).map(|_| latency.draw(&mut rng) as f64).sum();
            let mean = sum / f64::from(draws);
            assert!((mean / latency.mean() - 1.0).abs() < 0.03, "{text} {mean}");
        }
        for text in [
            "constant",
            "uniform:9:1",
            "tail:1:0:2",
            "fast:1",
            "constant:-4",
        ] {
            assert!(text.parse::<Latency>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stream_keeps_order_through_a_stall() {
        let mut stream = Stream::default();
        assert_eq!(stream.depart(0, 50), 50);
        assert_eq!(stream.depart(10, 5), 50, "never overtakes");
        stream.stall(100);
        assert_eq!(stream.arrive(50, 'a'), Arrival::Held(Some(100)));
        assert_eq!(stream.arrive(50, 'b'), Arrival::Held(None));
        assert_eq!(stream.release(90), Err(100));
        // One that arrives exactly when the stall ends still comes after those before it.
        assert_eq!(stream.arrive(100, 'c'), Arrival::Held(None));
        assert_eq!(stream.release(100), Ok(VecDeque::from(['a', 'b', 'c'])));
        assert_eq!(stream.arrive(100, 'd'), Arrival::Now('d'));
        stream.lose();
        assert_eq!(stream.arrive(120, 'e'), Arrival::Lost);
    }
}
