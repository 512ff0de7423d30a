//! When a client asks again what its cluster is, and what it believes of the answers.
//!
//! A client learns the cluster once and may live for years: nodes move to other addresses, and the
//! cluster is given another configuration. So nodes that cannot be reached, or that serve another
//! configuration, make it ask again whoever may know, with growing pauses.
//!
//! Addresses are taken for nodes that cannot be reached, and only from answers about the same
//! configuration. Another configuration is taken as a whole, and only one of a later epoch: a node
//! serves it only when the old one is served no more. Where b nodes may lie, b+1 that say the same
//! are believed: among the endpoints that were given, or among the nodes, for a liar might be one
//! of each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::Instant;
use crate::id::NodeId;
use crate::lock::ConfigId;

/// A node that moved is noticed by so many failures in a row: one may be a restart.
const FAILURES: u32 = 2;
/// The pauses between rounds of questions.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Where a node is: its address for peers and clients, and that of its API.
pub type Place = (Arc<str>, Arc<str>);

/// Who describes the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The operator's own file.
    File,
    /// An endpoint that the client was given.
    Endpoint,
    /// The API of a node of the present configuration.
    Node(NodeId),
}

/// A description of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Who gave it.
    pub source: Source,
    /// Which configuration it is.
    pub config: ConfigId,
    /// How many nodes may lie.
    pub byzantine: usize,
    /// Where each node is.
    pub places: Vec<Place>,
}

/// What the machine is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RediscoveryInput {
    /// A node could not be reached.
    Failed(NodeId),
    /// A node serves another configuration, or another node is at its address.
    Refused(NodeId),
    /// A node has taken the client in.
    Reached(NodeId),
    /// Everyone who was asked has answered or had the time to.
    Told(Vec<Told>),
}

/// What the machine wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RediscoveryEvent {
    /// Ask everyone who may know what the cluster is.
    Ask,
    /// A node is at this place now.
    Moved(NodeId, Place),
    /// The description at this place of the answers is that of the cluster now; this machine is
    /// done, and another one begins with it.
    Adopt(usize),
}

/// The machine of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rediscovery {
    config: ConfigId,
    byzantine: usize,
    places: Vec<Place>,
    /// Whether another configuration may be taken.
    adopts: bool,
    /// How often each node failed in a row.
    failures: Vec<u32>,
    asking: bool,
    not_before: Instant,
    pause: Duration,
}

impl Rediscovery {
    /// For a client that knows this. One that may not adopt follows addresses only.
    pub fn new(known: &Told, adopts: bool) -> Self {
        Self {
            config: known.config,
            byzantine: known.byzantine,
            places: known.places.clone(),
            adopts,
            failures: vec![0; known.places.len()],
            asking: false,
            not_before: Instant::ZERO,
            pause: PAUSE_MIN,
        }
    }

    /// Whether answers are waited for.
    pub fn is_asking(&self) -> bool {
        self.asking
    }

    /// Where a node is.
    pub fn place(&self, node: NodeId) -> Option<&Place> {
        self.places.get(node.index())
    }

    /// Tells the machine something; what it wants is added to `out`.
    pub fn handle(
        &mut self,
        now: Instant,
        input: RediscoveryInput,
        out: &mut Vec<RediscoveryEvent>,
    ) {
        match input {
            RediscoveryInput::Failed(node) => {
                if self.fails(node, 1) >= FAILURES {
                    self.ask(now, out);
                }
            }
            RediscoveryInput::Refused(node) => {
                self.fails(node, FAILURES);
                self.ask(now, out);
            }
            RediscoveryInput::Reached(node) => {
                if let Some(failures) = self.failures.get_mut(node.index()) {
                    *failures = 0;
                }
                if self.failures.iter().all(|failures| *failures == 0) {
                    self.pause = PAUSE_MIN;
                }
            }
            RediscoveryInput::Told(told) => {
                self.asking = false;
                self.not_before = now + self.pause;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
                self.judge(&told, out);
            }
        }
    }

    fn fails(&mut self, node: NodeId, times: u32) -> u32 {
        let Some(failures) = self.failures.get_mut(node.index()) else {
            return 0;
        };
        *failures = failures.saturating_add(times);
        *failures
    }

    fn ask(&mut self, now: Instant, out: &mut Vec<RediscoveryEvent>) {
        if !self.asking && self.not_before <= now {
            self.asking = true;
            out.push(RediscoveryEvent::Ask);
        }
    }

    fn judge(&mut self, told: &[Told], out: &mut Vec<RediscoveryEvent>) {
        let later = told.iter().enumerate();
        let later = later.filter(|(_, one)| one.config.epoch > self.config.epoch);
        let believed = later.filter(|(_, one)| {
            let same = told
                .iter()
                .filter(|other| other.config == one.config && other.places == one.places);
            // It may fear more liars than the present one, never fewer. What others fear does not
            // count: a single liar could else keep everybody from being believed.
            let liars = self.byzantine.max(one.byzantine);
            is_believed(same.map(|other| other.source), liars)
        });
        if self.adopts
            && let Some((at, _)) = believed.max_by_key(|(_, one)| one.config.epoch)
        {
            out.push(RediscoveryEvent::Adopt(at));
            return;
        }
        for at in 0..self.places.len() {
            if self.failures[at] >= FAILURES
                && let Some(place) = self.moved(at, told)
            {
                self.places[at] = place.clone();
                self.failures[at] = 0;
                out.push(RediscoveryEvent::Moved(NodeId::at(at), place));
            }
        }
    }

    /// Another place of a node, if one is known. Of several each has its turn.
    fn moved(&self, at: usize, told: &[Told]) -> Option<Place> {
        let present = &self.places[at];
        let same = || told.iter().filter(|told| told.config == self.config);
        let named: BTreeSet<&Place> = same().filter_map(|told| told.places.get(at)).collect();
        let believed = |place: &&Place| {
            let who = same().filter(|told| told.places.get(at) == Some(place));
            place.0 != present.0 && is_believed(who.map(|told| told.source), self.byzantine)
        };
        let mut others = named.into_iter().filter(believed).peekable();
        let first = others.peek().copied();
        let next = others.find(|place| *place > present);
        next.or(first).cloned()
    }
}

/// Whether enough say the same.
fn is_believed(sources: impl Iterator<Item = Source>, liars: usize) -> bool {
    let (mut endpoints, mut nodes) = (0, BTreeSet::new());
    for source in sources {
        match source {
            Source::File => return true,
            Source::Endpoint => endpoints += 1,
            Source::Node(node) => {
                nodes.insert(node);
            }
        }
    }
    endpoints > liars || nodes.len() > liars
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(epoch: u64) -> ConfigId {
        ConfigId {
            epoch,
            digest: [epoch as u8; 16],
        }
    }

    fn places(names: &[&str]) -> Vec<Place> {
        let place = |name: &&str| (Arc::from(*name), Arc::from(format!("http://{name}")));
        names.iter().map(place).collect()
    }

    fn told(source: Source, epoch: u64, names: &[&str]) -> Told {
        Told {
            source,
            config: config(epoch),
            byzantine: 0,
            places: places(names),
        }
    }

    fn machine(byzantine: usize) -> Rediscovery {
        let mut known = told(Source::File, 1, &["a1", "b1", "c1"]);
        known.byzantine = byzantine;
        Rediscovery::new(&known, true)
    }

    fn node(at: u32) -> Source {
        Source::Node(NodeId(at))
    }

    fn say(it: &mut Rediscovery, now: Instant, input: RediscoveryInput) -> Vec<RediscoveryEvent> {
        let mut out = Vec::new();
        it.handle(now, input, &mut out);
        out
    }

    /// Makes the first node fail until the others are asked.
    fn fail(it: &mut Rediscovery, now: Instant) {
        let failed = RediscoveryInput::Failed(NodeId(0));
        for _ in 0..FAILURES {
            say(it, now, failed.clone());
        }
        assert!(it.is_asking());
    }

    #[test]
    fn a_failure_may_be_a_restart_but_a_refusal_is_asked_about_at_once() {
        let now = Instant::ZERO;
        let mut it = machine(0);
        let failed = RediscoveryInput::Failed(NodeId(0));
        assert_eq!(say(&mut it, now, failed.clone()), []);
        say(&mut it, now, RediscoveryInput::Reached(NodeId(0)));
        assert_eq!(say(&mut it, now, failed.clone()), []);
        assert_eq!(say(&mut it, now, failed.clone()), [RediscoveryEvent::Ask]);
        assert_eq!(say(&mut it, now, failed), [], "it is being asked");
        let refused = RediscoveryInput::Refused(NodeId(1));
        assert_eq!(say(&mut machine(0), now, refused), [RediscoveryEvent::Ask]);
    }

    #[test]
    fn questions_that_bring_nothing_become_rare() {
        let mut it = machine(0);
        let (mut now, mut gaps) = (Instant::ZERO, Vec::new());
        let failed = RediscoveryInput::Failed(NodeId(0));
        let mut last = now;
        while gaps.len() < 9 {
            if say(&mut it, now, failed.clone()) == [RediscoveryEvent::Ask] {
                gaps.push(now.since(last).as_secs());
                last = now;
                assert_eq!(say(&mut it, now, RediscoveryInput::Told(Vec::new())), []);
            }
            now = now + Duration::from_secs(1);
        }
        assert_eq!(gaps, [1, 1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn a_node_that_cannot_be_reached_is_looked_for_where_others_say() {
        let mut it = machine(0);
        let now = Instant::ZERO;
        fail(&mut it, now);
        // Whoever was not told stays with the old address, and so does another configuration.
        let answers = vec![
            told(node(1), 1, &["a1", "b1", "c1"]),
            told(node(2), 1, &["a2", "b1", "c9"]),
        ];
        let out = say(&mut it, now, RediscoveryInput::Told(answers));
        let place = places(&["a2"]).remove(0);
        assert_eq!(out, [RediscoveryEvent::Moved(NodeId(0), place)]);
        assert_eq!(&*it.place(NodeId(2)).unwrap().0, "c1", "it is reached");
    }

    #[test]
    fn of_several_places_each_has_its_turn() {
        let mut it = machine(0);
        let (mut seen, mut now) = (BTreeSet::new(), Instant::ZERO);
        for _ in 0..3 {
            fail(&mut it, now);
            let answers = ["a1", "a2", "a3"].map(|a| told(Source::Endpoint, 1, &[a, "b1", "c1"]));
            say(&mut it, now, RediscoveryInput::Told(answers.to_vec()));
            seen.insert(it.place(NodeId(0)).unwrap().0.clone());
            now = now + PAUSE_MAX;
        }
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn a_later_configuration_is_adopted_and_an_earlier_one_is_not() {
        for (epoch, adopted) in [(2, vec![RediscoveryEvent::Adopt(0)]), (1, vec![])] {
            let mut it = machine(0);
            it.config.epoch = 1;
            it.config.digest = [9; 16];
            fail(&mut it, Instant::ZERO);
            let answers = vec![told(node(1), epoch, &["a1", "b1"])];
            let out = say(&mut it, Instant::ZERO, RediscoveryInput::Told(answers));
            assert_eq!(out, adopted);
        }
    }

    #[test]
    fn who_follows_addresses_only_adopts_nothing() {
        let mut it = Rediscovery::new(&told(Source::File, 1, &["a1"]), false);
        fail(&mut it, Instant::ZERO);
        let answers = vec![told(Source::File, 2, &["a2"])];
        assert_eq!(
            say(&mut it, Instant::ZERO, RediscoveryInput::Told(answers)),
            []
        );
    }

    #[test]
    fn liars_are_believed_in_nothing() {
        let new = ["a2", "b2", "c2"];
        let (one, two) = (told(node(0), 2, &new), told(node(1), 2, &new));
        let given = told(Source::Endpoint, 2, &new);
        let file = told(Source::File, 2, &new);
        let cases = [
            (vec![one.clone()], false),
            (vec![one.clone(), one.clone()], false),
            // The endpoint may be the node.
            (vec![one.clone(), given.clone()], false),
            (vec![one, two], true),
            (vec![given.clone(), given], true),
            (vec![file], true),
        ];
        for (answers, believed) in cases {
            for epoch in [1, 2] {
                let mut answers = answers.clone();
                for told in &mut answers {
                    told.config = config(epoch);
                }
                let mut it = machine(1);
                fail(&mut it, Instant::ZERO);
                let out = say(
                    &mut it,
                    Instant::ZERO,
                    RediscoveryInput::Told(answers.clone()),
                );
                assert_eq!(!out.is_empty(), believed, "{answers:?}");
            }
        }
    }

    #[test]
    fn a_configuration_that_fears_more_liars_needs_more_voices() {
        let now = Instant::ZERO;
        let mut it = machine(0);
        fail(&mut it, now);
        let mut fearful = told(node(1), 2, &["a2", "b1", "c1"]);
        fearful.byzantine = 1;
        assert_eq!(say(&mut it, now, RediscoveryInput::Told(vec![fearful])), []);
    }

    #[test]
    fn a_liar_that_fears_many_keeps_nobody_from_being_believed() {
        let now = Instant::ZERO;
        let mut it = machine(1);
        fail(&mut it, now);
        let mut liar = told(node(0), 9, &["x", "y", "z"]);
        liar.byzantine = 1000;
        let mut all = vec![liar];
        all.extend((1..3).map(|at| told(node(at), 2, &["a2", "b1", "c1"])));
        let told = RediscoveryInput::Told(all);
        assert_eq!(say(&mut it, now, told), [RediscoveryEvent::Adopt(2)]);
    }
}
