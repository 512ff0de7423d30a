//! Peers and the messages between them, delivered as a test or a seed says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::fmt::Debug;

use conclave_protocol::baseline::{
    BaselineEffects, Event, GroupNo, Input, Named, Peer, backup, central, maekawa, ricart,
};
use conclave_protocol::{Machine, Now};
use conclave_quorum::Prng;

/// Machines, and one queue of messages for each ordered pair of peers.
pub(crate) struct Net<T, M> {
    pub(crate) sites: Vec<T>,
    pairs: BTreeMap<(Peer, Peer), VecDeque<M>>,
    pub(crate) inside: BTreeMap<Peer, GroupNo>,
    pub(crate) asked: BTreeMap<Peer, GroupNo>,
    pub(crate) sent: BTreeMap<&'static str, usize>,
    pub(crate) entries: usize,
    pub(crate) inside_max: usize,
}

impl<T, M> Net<T, M>
where
    T: Machine<Input = Input<M>, Address = Peer, Message = M, Record = Infallible, Event = Event>,
    M: Named + Debug,
{
    pub(crate) fn new(sites: Vec<T>) -> Self {
        Self {
            sites,
            pairs: BTreeMap::new(),
            inside: BTreeMap::new(),
            asked: BTreeMap::new(),
            sent: BTreeMap::new(),
            entries: 0,
            inside_max: 0,
        }
    }

    pub(crate) fn feed(&mut self, who: Peer, input: Input<M>) {
        let mut out = BaselineEffects::new();
        self.sites[who.index()].handle(Now::default(), input, &mut out);
        for envelope in out.send_now {
            *self.sent.entry(envelope.message.kind()).or_default() += 1;
            let pair = self.pairs.entry((who, envelope.to)).or_default();
            pair.push_back(envelope.message);
        }
        for event in out.events {
            match event {
                Event::Entered => {
                    let group = self.asked.remove(&who).unwrap();
                    assert_eq!(self.inside.insert(who, group), None);
                    self.inside_max = self.inside_max.max(self.inside.len());
                    self.entries += 1;
                }
                Event::Left => assert!(self.inside.remove(&who).is_some()),
            }
        }
    }

    pub(crate) fn ask(&mut self, who: u32, group: u32) {
        self.asked.insert(Peer(who), GroupNo(group));
        let group = GroupNo(group);
        self.feed(Peer(who), Input::Ask { group });
    }

    pub(crate) fn leave(&mut self, who: u32) {
        self.feed(Peer(who), Input::Leave);
    }

    /// Delivers the oldest message from one peer to another.
    pub(crate) fn deliver(&mut self, from: u32, to: u32) {
        let (from, to) = (Peer(from), Peer(to));
        let pair = self.pairs.get_mut(&(from, to)).unwrap();
        let message = pair.pop_front().unwrap();
        self.feed(to, Input::Receive { from, message });
    }

    /// The pairs with a message under way.
    pub(crate) fn ready(&self) -> Vec<(Peer, Peer)> {
        let busy = self.pairs.iter().filter(|(_, pair)| !pair.is_empty());
        busy.map(|(pair, _)| *pair).collect()
    }

    pub(crate) fn deliver_all(&mut self) {
        while let Some((from, to)) = self.ready().first().copied() {
            self.deliver(from.0, to.0);
        }
    }

    pub(crate) fn inside(&self) -> Vec<u32> {
        self.inside.keys().map(|peer| peer.0).collect()
    }

    pub(crate) fn total(&self) -> usize {
        self.sent.values().sum()
    }

    /// Any schedule that the seed says: asks, leaves and deliveries in any order, `check` after
    /// each. Returns whether everybody who asked got in.
    pub(crate) fn shake(
        &mut self,
        processes: u32,
        groups: usize,
        mut asks: usize,
        rng: &mut Prng,
        check: impl Fn(&BTreeMap<Peer, GroupNo>),
    ) -> bool {
        loop {
            let ready = self.ready();
            let free: Vec<u32> = (0..processes)
                .filter(|it| !self.asked.contains_key(&Peer(*it)))
                .filter(|it| !self.inside.contains_key(&Peer(*it)))
                .collect();
            let can_ask = asks > 0 && !free.is_empty();
            if ready.is_empty() && self.inside.is_empty() && !can_ask {
                return self.asked.is_empty();
            }
            match rng.below(12) {
                0 if can_ask => {
                    asks -= 1;
                    let who = free[rng.below(free.len())];
                    self.ask(who, rng.below(groups) as u32);
                }
                1 if !self.inside.is_empty() => {
                    let inside = self.inside();
                    self.leave(inside[rng.below(inside.len())]);
                }
                2.. if !ready.is_empty() => {
                    let (from, to) = ready[rng.below(ready.len())];
                    self.deliver(from.0, to.0);
                }
                _ => {}
            }
            check(&self.inside);
        }
    }
}

pub(crate) fn alone(inside: &BTreeMap<Peer, GroupNo>) {
    assert!(inside.len() <= 1, "together inside: {inside:?}");
}

pub(crate) fn one_group(inside: &BTreeMap<Peer, GroupNo>) {
    let groups: BTreeSet<GroupNo> = inside.values().copied().collect();
    assert!(groups.len() <= 1, "together inside: {inside:?}");
}

/// Processes with these quorums over the nodes that follow them.
pub(crate) fn quorums(
    variant: maekawa::Variant,
    nodes: u32,
    sets: &[&[u32]],
) -> Net<maekawa::Site, maekawa::Message> {
    let processes = sets.len() as u32;
    let mut sites = Vec::new();
    for (me, set) in (0..).zip(sets) {
        let members = set.iter().map(|node| Peer(processes + node));
        let requester = maekawa::Requester::new(Peer(me), variant, members);
        sites.push(maekawa::Site::Process(requester));
    }
    for _ in 0..nodes {
        let arbiter = maekawa::Arbiter::new(variant, processes);
        sites.push(maekawa::Site::Node(arbiter));
    }
    Net::new(sites)
}

pub(crate) fn everybody(
    processes: u32,
    variant: ricart::Variant,
) -> Net<ricart::Process, ricart::Message> {
    let all = (0..processes).map(Peer);
    Net::new(
        all.map(|me| ricart::Process::new(me, processes, variant))
            .collect(),
    )
}

pub(crate) fn server(processes: u32, max_bypass: u32) -> Net<central::Site, central::Message> {
    let client = central::Site::Process(central::Client::new(Peer(processes)));
    let mut sites = vec![client; processes as usize];
    sites.push(central::Site::Server(central::Book::new(
        processes, max_bypass,
    )));
    Net::new(sites)
}

pub(crate) fn pair(processes: u32, max_bypass: u32) -> Net<backup::Site, backup::Message> {
    let (first, second) = (Peer(processes), Peer(processes + 1));
    let client = backup::Site::Process(central::Client::new(first));
    let mut sites = vec![client; processes as usize];
    let primary = backup::Primary::new(second, processes, max_bypass);
    sites.push(backup::Site::Primary(primary));
    sites.push(backup::Site::Backup(backup::Backup::new(first, processes)));
    Net::new(sites)
}
