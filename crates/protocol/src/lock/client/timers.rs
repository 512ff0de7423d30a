//! A client's timers: when connections, requests and watches have something to do next.
//!
//! Each of them says in `armed` when its timer comes, and a timer of that time is then in the
//! heap. Timers that were set for later before stay there until they are met or swept.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::request::Requester;
use super::{LockClient, Timer};
use crate::lock::api::ClientEffects;
use crate::lock::plant::Plant;
use crate::time::Instant;

impl LockClient {
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
            let waits = match timer {
                Timer::Request(place, _) if !stale => self.may_put_off(place, at),
                _ => false,
            };
            if !stale && !waits {
                break;
            }
            // It is out of the heap before another one is set: that may sweep the heap.
            let late = waits && self.config.rules.has(Plant::SweepBeforePop);
            if !late {
                self.timers.pop();
            }
            if let Timer::Request(place, _) = timer
                && waits
            {
                self.put_off(place);
            }
            if late {
                self.timers.pop();
            }
        }
        // Looking is worth it where it costs little; the simulator looks always.
        let large = self.timers.len() > 64 || self.config.rules.has(Plant::SweepBeforePop);
        debug_assert!(large || self.lost_timer().is_none());
    }

    pub(super) fn arm(&mut self, at: Instant, timer: Timer) {
        self.timers.push(Reverse((at, timer)));
        self.sweep_timers();
    }

    pub(super) fn wake(&mut self, out: &mut ClientEffects) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            if at > self.now.mono {
                break;
            }
            self.timers.pop();
            match timer {
                Timer::Link(node) => self.link_timer(node, out),
                Timer::Request(place, serial) => self.request_timer(place, serial, out),
                Timer::Watch(key) => self.watch_timer(key, out),
                Timer::Finish(key) => self.finish_timer(key, out),
            }
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
            Timer::Watch(key) => self.watches.get(key).map(super::watch::Watching::armed),
            Timer::Finish(key) => self.finishing.get(&key).map(|_| None),
        };
        armed.is_none_or(|armed| armed.is_some_and(|armed| armed > at))
    }

    /// Forgets all timers that would find nothing to do once they are most of all: those of
    /// requests that ended long before their deadlines would else stay until these.
    fn sweep_timers(&mut self) {
        let live = self.requests.len() + self.links.len() + self.watches.len();
        let live = live + self.finishing.len();
        let many = self.config.limits.stale_timers.max(2 * live);
        if self.timers.len() > many {
            let mut timers = std::mem::take(&mut self.timers);
            timers.retain(|Reverse((at, timer))| !self.is_stale(*at, *timer));
            self.timers = timers;
        }
    }

    /// Something that waits for a timer which is not in the heap, if there is such a thing: it
    /// would wait for ever. For checks.
    pub fn lost_timer(&self) -> Option<String> {
        let set: BTreeSet<(Instant, Timer)> = self.timers.iter().map(|timer| timer.0).collect();
        let links = self.config.quorums.all();
        let links = links.filter_map(|node| Some((self.link(node)?.armed()?, Timer::Link(node))));
        let requests = self.requests.iter();
        let requests = requests.filter_map(|(place, request)| {
            Some((request.armed?, Timer::Request(place, request.serial)))
        });
        let watches = self.watches.iter();
        let watches = watches.filter_map(|(key, watch)| Some((watch.armed()?, Timer::Watch(*key))));
        let mut armed = links.chain(requests).chain(watches);
        let lost = armed.find(|timer| !set.contains(timer))?;
        Some(format!(
            "{:?} is set for {:?} but not in the heap",
            lost.1, lost.0
        ))
    }

    /// A request that a silent node could stop for good, if there is one: it waits for the word of
    /// a node, and no time is set to look whether that node is there. For checks.
    pub fn stuck_request(&self) -> Option<String> {
        let stuck = |request: &&Requester| {
            let waits = request.is_unanswered() || request.is_half_way() || request.short;
            waits && request.hedge_at.is_none()
        };
        let request = self
            .requests
            .iter()
            .map(|(_, request)| request)
            .find(stuck)?;
        Some(format!("{:?} waits for a node without end", request.ask))
    }
}
