//! What clients wish for: names, modes, times and the ways in which they change their minds.

use std::time::Duration;

use conclave_protocol::id::{Name, SessionId};
use conclave_protocol::lock::Mode;
use conclave_quorum::Prng;

use crate::net::exponential;
use crate::options::Options;

/// One wish, drawn.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// The locks, by number of their names, and how to share each.
    pub(crate) locks: Vec<(u32, Mode)>,
    /// Whether any one of them will do.
    pub(crate) any: bool,
    /// The TTL of the session.
    pub(crate) ttl: Duration,
    /// Nanoseconds after which to stop waiting.
    pub(crate) deadline: Option<u64>,
    /// Whether it only tries.
    pub(crate) attempt: bool,
    /// The session to detach to, and whether its caller named it.
    pub(crate) detach: Option<(SessionId, bool)>,
    /// Nanoseconds after which it is cancelled if it still waits.
    pub(crate) cancel: Option<u64>,
    /// Nanoseconds that it stays inside.
    pub(crate) hold: u64,
}

impl Wish {
    /// The session of one of its locks. All sessions that differ by a lock share a TTL.
    pub(crate) fn session(&self, place: usize) -> Option<(SessionId, bool)> {
        let (session, named) = self.detach?;
        let lock = if self.any { (place as u128) << 96 } else { 0 };
        Some((SessionId(session.0 ^ lock), named))
    }
}

/// Draws wishes.
#[derive(Debug)]
pub(crate) struct Workload {
    names: Vec<Name>,
    groups: Vec<Mode>,
    ttls: Vec<u64>,
    rng: Prng,
}

/// How many different TTLs a run asks for: a session has one TTL, and clients share sessions.
const TTLS: u64 = 3;
/// The most locks of which any one will do.
const SLOTS_MAX: u32 = 4;
/// Marks the sessions that callers name for slots: each slot has one of its own.
const SLOT_SESSIONS: u128 = 0x10_0000_0000_0000;
/// How many sessions callers name per lock: few, so that attempts of one session meet.
const NAMED: usize = 2;

impl Workload {
    /// The workload of a run.
    pub(crate) fn new(options: &Options) -> Self {
        let names = (0..options.names).map(|name| Name::new(format!("lock{name}")));
        let groups = options.group_names();
        let step = (options.ttl_high_ms - options.ttl_low_ms) / (TTLS - 1);
        Self {
            names: names.collect(),
            groups: groups.iter().map(Mode::group).collect(),
            ttls: (0..TTLS)
                .map(|place| options.ttl_low_ms + place * step)
                .collect(),
            rng: Prng::new(options.seed ^ 0x0077_6f72_6b6c_6f61),
        }
    }

    /// The name of this number.
    pub(crate) fn name(&self, name: u32) -> &Name {
        &self.names[name as usize]
    }

    /// The number of a name.
    pub(crate) fn number(name: &Name) -> Option<u32> {
        let digits = name.bytes().strip_prefix(b"lock")?;
        str::from_utf8(digits).ok()?.parse().ok()
    }

    /// The workload's own chance.
    pub(crate) fn rng(&mut self) -> &mut Prng {
        &mut self.rng
    }

    fn pick_name(&mut self, hot: f64) -> u32 {
        if self.names.len() == 1 || self.rng.chance(hot) {
            0
        } else {
            self.rng.below(self.names.len()) as u32
        }
    }

    fn pick_mode(&mut self, options: &Options) -> Mode {
        let draw = self.rng.unit();
        if draw < options.exclusive || self.groups.is_empty() && options.shared <= 0.0 {
            Mode::Exclusive
        } else if draw < options.exclusive + options.shared || self.groups.is_empty() {
            Mode::Shared
        } else {
            self.groups[self.rng.below(self.groups.len())].clone()
        }
    }

    /// A name that belongs to a client's own region, if there are such.
    fn local_name(&mut self, options: &Options, client: u32) -> Option<u32> {
        if options.local <= 0.0 || !self.rng.chance(options.local) {
            return None;
        }
        let (region, regions) = (options.region_of_client(client), options.regions);
        let own = options.names.saturating_sub(region).div_ceil(regions);
        (own > 0).then(|| region + regions * self.rng.below(own as usize) as u32)
    }

    /// Draws the next wish of a client.
    pub(crate) fn wish(&mut self, options: &Options, client: u32) -> Wish {
        let name = self.local_name(options, client);
        let name = name.unwrap_or_else(|| self.pick_name(options.hot));
        let mut locks = vec![(name, self.pick_mode(options))];
        let any = options.any > 0.0 && options.names > 1 && self.rng.chance(options.any);
        if any {
            // The first few names are slots: callers who name different numbers of them meet.
            let most = options.names.min(SLOTS_MAX);
            let slots = 2 + self.rng.below(most as usize - 1) as u32;
            let mode = locks[0].1.clone();
            locks = (0..slots).map(|name| (name, mode.clone())).collect();
        } else if options.names > 1 && self.rng.chance(options.together) {
            let more = 1 + self.rng.below(3);
            for _ in 0..more {
                let name = self.pick_name(options.hot);
                if locks.iter().all(|(other, _)| *other != name) {
                    let mode = self.pick_mode(options);
                    locks.push((name, mode));
                }
            }
        }
        let mut ttl = self.ttls[self.rng.below(self.ttls.len())];
        let mut detach = None;
        if (any || locks.len() == 1) && self.rng.chance(options.detach) {
            let (session, named) = self.session(options, locks[0].0, any);
            if named {
                // A session has one TTL, whoever uses it.
                ttl = self.ttls[session.0 as usize % self.ttls.len()];
            }
            detach = Some((session, named));
        }
        let after = |rng: &mut Prng, share: f64, ms: u64| {
            rng.chance(share)
                .then(|| exponential(ms * 1_000_000, rng) + 1000)
        };
        Wish {
            locks,
            any,
            ttl: Duration::from_millis(ttl),
            deadline: after(&mut self.rng, options.deadline, options.deadline_ms),
            attempt: self.rng.chance(options.attempt),
            detach,
            cancel: after(&mut self.rng, options.cancel, options.cancel_ms),
            hold: exponential(options.hold_ms * 1_000_000, &mut self.rng),
        }
    }

    fn session(&mut self, options: &Options, name: u32, any: bool) -> (SessionId, bool) {
        if self.rng.chance(options.named) {
            let which = self.rng.below(NAMED) as u128;
            let id = if any { SLOT_SESSIONS } else { 0 }
                | 0xa_0000_0000_0000
                | u128::from(name) << 8
                | which;
            return (SessionId(id), true);
        }
        let high = u128::from(self.rng.next_u64());
        (
            SessionId(high << 64 | u128::from(self.rng.next_u64())),
            false,
        )
    }
}
