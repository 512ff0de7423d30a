//! A server that tells a second one first, as a baseline: clients ask the server that stands in
//! for the service, and ask again while none answers.

use std::collections::{BTreeMap, VecDeque};

use conclave_quorum::Prng;

use super::draws::{Normal, exponential};
use super::scenario::{Measured, Scenario};
use crate::engine::Queue;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Somebody wants the lock.
    Wish,
    /// A client asks, for the first time or again.
    Ask(u64),
    /// Its request reaches the service.
    Arrives(u64),
    Enters(u64),
    Leaves,
    /// The release reaches the service.
    Freed,
    /// A server fails or is back.
    Turns(usize),
    /// A server stands in, if nothing has changed since.
    StandsIn(usize, u64),
}

#[derive(Clone, Copy, Debug)]
struct Client {
    asked: u64,
    /// Whether a server knows of it.
    known: bool,
}

struct Service<'a> {
    scenario: &'a Scenario,
    retry: u64,
    failover: u64,
    queue: Queue<Event>,
    rng: Prng,
    ways: Normal,
    sends: Normal,
    up: [bool; 2],
    acting: Option<usize>,
    changes: u64,
    failovers: u64,
    held: bool,
    line: VecDeque<u64>,
    clients: BTreeMap<u64, Client>,
    next: u64,
    waits: Vec<u64>,
    requests: u64,
    grants: u64,
    releases: u64,
    updates: u64,
}

pub(super) fn run(scenario: &Scenario, retry: u64, failover: u64) -> Measured {
    let mut service = Service {
        scenario,
        retry: retry.max(1),
        failover,
        queue: Queue::new(),
        rng: Prng::new(scenario.seed ^ 0x7072_696d),
        ways: Normal::new(scenario.way.0, scenario.way.1),
        sends: Normal::new(scenario.send.0, scenario.send.1),
        up: [true; 2],
        acting: Some(0),
        changes: 0,
        failovers: 0,
        held: false,
        line: VecDeque::new(),
        clients: BTreeMap::new(),
        next: 0,
        waits: Vec::new(),
        requests: 0,
        grants: 0,
        releases: 0,
        updates: 0,
    };
    service.go();
    service.measured()
}

impl Service<'_> {
    fn go(&mut self) {
        self.queue.push_in(1, Event::Wish);
        if self.scenario.up < 1.0 {
            for server in 0..2 {
                self.next_turn(server);
            }
        }
        let scenario = self.scenario;
        while let Some((at, event)) = self.queue.pop() {
            let done = if scenario.span > 0 {
                at.0 > scenario.span
            } else {
                self.waits.len() as u64 >= scenario.entries
            };
            if done {
                return;
            }
            self.happen(event);
        }
    }

    /// One message's time.
    fn trip(&mut self) -> u64 {
        self.sends.draw(&mut self.rng) + self.ways.draw(&mut self.rng)
    }

    /// The server that is told before an answer leaves, if it is up.
    fn second(&self) -> bool {
        self.acting.is_some_and(|acting| self.up[1 - acting])
    }

    fn next_turn(&mut self, server: usize) {
        let (up, recovery) = (self.scenario.up, self.scenario.recovery as f64);
        let mean = if self.up[server] {
            recovery * up / (1.0 - up)
        } else {
            recovery
        };
        let after = exponential(mean, &mut self.rng);
        self.queue.push_in(after, Event::Turns(server));
    }

    fn happen(&mut self, event: Event) {
        let now = self.queue.now().0;
        match event {
            Event::Wish => {
                let nodes = self.scenario.system.nodes() as f64;
                let gap = exponential(self.scenario.gap as f64 / nodes, &mut self.rng);
                self.queue.push_in(gap, Event::Wish);
                let number = self.next;
                self.next += 1;
                let client = Client {
                    asked: now,
                    known: false,
                };
                self.clients.insert(number, client);
                self.ask(number);
            }
            Event::Ask(number) => self.ask(number),
            Event::Arrives(number) => self.arrives(number),
            Event::Enters(number) => {
                if let Some(client) = self.clients.remove(&number) {
                    self.waits.push(now - client.asked);
                    self.queue.push_in(self.scenario.hold, Event::Leaves);
                }
            }
            Event::Leaves => {
                self.releases += 1;
                let trip = self.trip();
                self.queue.push_in(trip, Event::Freed);
            }
            Event::Freed => {
                if self.second() {
                    self.updates += 1;
                }
                self.held = false;
                self.serve();
            }
            Event::Turns(server) => self.turns(server),
            Event::StandsIn(server, changes) => {
                if self.changes == changes && self.up[server] {
                    self.acting = Some(server);
                    self.failovers += 1;
                    self.serve();
                }
            }
        }
    }

    fn ask(&mut self, number: u64) {
        if self.clients.get(&number).is_none_or(|client| client.known) {
            return;
        }
        self.requests += 1;
        let trip = self.trip();
        self.queue.push_in(trip, Event::Arrives(number));
        self.queue.push_in(self.retry, Event::Ask(number));
    }

    fn arrives(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        if self.acting.is_none() || client.known {
            return;
        }
        client.known = true;
        self.line.push_back(number);
        self.serve();
    }

    fn serve(&mut self) {
        if self.held || self.acting.is_none() {
            return;
        }
        let Some(number) = self.line.pop_front() else {
            return;
        };
        self.held = true;
        self.grants += 1;
        let mut after = self.trip();
        if self.second() {
            self.updates += 1;
            after += self.trip() + self.trip();
        }
        self.queue.push_in(after, Event::Enters(number));
    }

    fn turns(&mut self, server: usize) {
        self.up[server] = !self.up[server];
        self.next_turn(server);
        if self.up[server] {
            if self.acting.is_none() && !self.up[1 - server] {
                self.acting = Some(server);
                self.changes += 1;
                self.serve();
            }
            return;
        }
        if self.acting != Some(server) {
            return;
        }
        self.acting = None;
        self.changes += 1;
        if self.up[1 - server] {
            let event = Event::StandsIn(1 - server, self.changes);
            self.queue.push_in(self.failover, event);
        }
        // Nobody answers those in the line: they ask again.
        for number in std::mem::take(&mut self.line) {
            if let Some(client) = self.clients.get_mut(&number) {
                client.known = false;
                self.queue.push_in(self.retry, Event::Ask(number));
            }
        }
    }

    fn measured(mut self) -> Measured {
        self.waits.sort_unstable();
        let entries = self.waits.len() as u64;
        let per = |count: u64| count as f64 / entries.max(1) as f64;
        let rank = |share: f64| {
            let place = (self.waits.len() as f64 * share) as usize;
            self.waits.get(place).map_or(0.0, |wait| *wait as f64)
        };
        let parts = [
            ("Request", self.requests),
            ("Reply", self.grants),
            ("Release", self.releases),
            ("Update", self.updates),
            ("Ack", self.updates),
        ];
        let all: u64 = parts.iter().map(|(_, count)| count).sum();
        let nodes = self.scenario.system.nodes() as u64;
        Measured {
            messages_per_entry: per(all),
            without_self: per(all),
            until_consent: per(self.requests + self.grants + self.updates),
            waiting_mean: per(self.waits.iter().sum()),
            waiting_p50: rank(0.5),
            waiting_p99: rank(0.99),
            entries,
            events: self.queue.taken(),
            // Every client is told who stands in.
            elections_per_entry: per(self.failovers * nodes),
            by_kind: parts.map(|(kind, count)| (kind, per(count))).to_vec(),
            concurrency: 1.0,
            up: self.scenario.up,
            span: self.queue.now().0,
            predicted: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use conclave_protocol::multilevel::Topology;
    use conclave_quorum::construct::multilevel::Clusters;

    use super::*;
    use crate::multilevel::Kind;

    fn measured(up: f64, retry: u64) -> Measured {
        let topology = Topology::trees(Clusters::build(1200, 0).unwrap());
        let mut scenario = Scenario::new(Arc::new(topology), up);
        scenario.entries = 40_000;
        scenario.kind = Kind::PrimaryBackup {
            retry,
            failover: 200,
        };
        run(&scenario, retry, 200)
    }

    #[test]
    fn seven_messages_and_four_ways_when_nothing_fails() {
        let calm = measured(1.0, 500);
        assert!((calm.messages_per_entry - 7.0).abs() < 0.01, "{calm:?}");
        assert!((calm.waiting_mean - 82.0).abs() < 3.0, "{calm:?}");
    }

    #[test]
    fn clients_wait_long_and_ask_often_when_both_servers_are_down() {
        let (slow, quick) = (measured(0.75, 500), measured(0.75, 50));
        assert!((1500.0..6000.0).contains(&slow.waiting_mean), "{slow:?}");
        assert!((7.0..20.0).contains(&slow.messages_per_entry), "{slow:?}");
        assert!(quick.messages_per_entry > 3.0 * slow.messages_per_entry);
    }
}
