//! What a driver asks between steps.

use std::cmp::Reverse;

use super::{LockClient, Timer};
use crate::id::Key;
use crate::time::Instant;

/// So many timers are not worth a look.
const TIMERS_SPARE: usize = 256;

impl LockClient {
    /// Whether anything that was asked by this key goes on.
    pub fn knows(&self, key: Key) -> bool {
        self.jobs.get(&key).is_some() || self.watches.contains_key(&key)
    }

    /// How many timers are set, those among them that will find nothing to do.
    pub fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Forgets the timers at the front that would find nothing to do, so that
    /// [`next_wake`](crate::Machine::next_wake) names a time that matters. Most requests end long
    /// before their first timer: a driver that calls this sleeps through those.
    pub fn skip_stale_timers(&mut self) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            let stale = self.is_stale(at, timer);
            let put_off = match timer {
                Timer::Request(place, _) if !stale => self.put_off(place, at),
                _ => false,
            };
            if !stale && !put_off {
                break;
            }
            self.timers.pop();
        }
    }

    /// Whether a timer would find nothing to do: what it was set for is gone, or set for later,
    /// and then the timer of that time is in the heap too.
    fn is_stale(&self, at: Instant, timer: Timer) -> bool {
        let armed = match timer {
            Timer::Link(node) => self.link(node).map(super::link::Link::armed),
            Timer::Request(place, serial) => {
                let request = self.requests.get(place);
                let request = request.filter(|request| request.serial == serial);
                request.map(|request| request.armed)
            }
            Timer::Watch(key) => self.watches.get(&key).map(super::watch::Watching::armed),
        };
        armed.is_none_or(|armed| armed.is_some_and(|armed| armed > at))
    }

    /// Forgets all timers that would find nothing to do once they are most of all: those of
    /// requests that ended long before their deadlines would else stay until these.
    pub(super) fn sweep_timers(&mut self) {
        let live = self.requests.len() + self.links.len() + self.watches.len();
        if self.timers.len() > TIMERS_SPARE + 3 * live {
            let mut timers = std::mem::take(&mut self.timers);
            timers.retain(|Reverse((at, timer))| !self.is_stale(*at, *timer));
            self.timers = timers;
        }
    }
}
