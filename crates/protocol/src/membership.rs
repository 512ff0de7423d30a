//! From one configuration to the next while nothing is served.
//!
//! A node keeps the configuration that it serves on disk and serves no other. To change it, every
//! node is stopped and started with the new cluster file as one that *adopts* it: it first writes
//! that it serves nothing but the new configuration from now on, waits until whatever it had
//! granted under the old one has run out, and asks all nodes of the old one how they stand. It
//! serves once each of them has written the same and waited as well. A node that does not answer
//! may still serve the old one, so nothing happens without it, unless the operator says that it is
//! gone for good.
//!
//! **Why no two configurations are served.** Let i serve X and k serve Y, both from the same old
//! configuration. i heard from k that it had adopted X, at a time a after i itself had adopted X;
//! k heard from i that it had adopted Y, at a time b after k itself had adopted Y. Until it serves
//! X, i says nothing but X from its adoption on, so b was before that, and so before a; and a was
//! before b by the same argument. So a word counts only if it was asked for after the own
//! adoption was on disk, and an operator may change his mind at any time: of two files that are
//! adopted by turns at most one is ever served.
//!
//! **Tokens.** A holder's token is known to every member of its quorum. Each node tells the largest
//! that it can have known once it serves no more, and serves with the largest of all as its floor.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{Incarnation, NodeId, Token};
use crate::lock::{ConfigId, Record, Snapshot, Stored, StoredConfig};
use crate::machine::{EffectsOf, Machine};
use crate::multilevel::LevelRecord;
use crate::time::{Instant, Now, Wake};

/// How often a node that has not said what is needed is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// What a node finds when it compares its disk with the cluster file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// It never served: whatever the file says is its configuration.
    New,
    /// It served before configurations were kept on disk: the file is taken as what it served.
    Unknown,
    /// It served what the file says.
    Same(&'a StoredConfig),
    /// It served something else.
    Other(&'a StoredConfig),
    /// It has said that it will serve this one, and not that it does.
    Adopting(&'a StoredConfig),
}

/// Compares what is on disk with the configuration of the cluster file. `served` says whether the
/// node ever served leases or objects.
pub fn find(stored: Option<&Stored>, served: bool, file: ConfigId) -> Found<'_> {
    let config = stored.and_then(|stored| stored.config.as_deref());
    if let Some(adopting) = stored.and_then(|stored| stored.adopting.as_deref()) {
        return Found::Adopting(adopting);
    }
    if !served && stored.is_none_or(|stored| stored.incarnation.is_none()) {
        return Found::New;
    }
    match config {
        None => Found::Unknown,
        Some(config) if config.id == file => Found::Same(config),
        Some(config) => Found::Other(config),
    }
}

/// How a node stands, as it says when it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The configuration that it serves, or that it has adopted.
    pub config: ConfigId,
    /// How far it has come with it.
    pub stage: Stage,
    /// No token above this one was ever given away by it.
    pub floor: Token,
    /// No lease with a larger token had its vote.
    pub mark: Token,
    /// So many objects it keeps.
    pub objects: u64,
    /// How many nodes the configuration before had; 0 if there was none.
    pub before: u32,
    /// The last life of the asking node that it knows of.
    pub life: Incarnation,
}

/// How far a node has come with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It serves it.
    Serving,
    /// It has adopted it, and something that it granted before may still be in use.
    Waiting,
    /// It has adopted it, and nothing that it granted before is in use any more.
    Waited,
    /// It has adopted it and knows of nothing before: it is new, or has lost its disk.
    Joining,
}

/// Why a node's word does not count yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It has not answered: it may serve the old configuration.
    Silent,
    /// It serves or has adopted another one.
    Other(ConfigId),
    /// It waits until its old grants have run out.
    Waiting,
    /// It knows of nothing before, so it cannot tell what it granted.
    Joining,
}

/// What a node that adopts a configuration has to know.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which node it is.
    pub id: NodeId,
    /// The configuration to adopt.
    pub to: StoredConfig,
    /// How many nodes it has.
    pub nodes: usize,
    /// How many nodes the configuration in force has; none if nothing is on disk.
    pub old: Option<usize>,
    /// Nodes of the configuration in force that are gone for good, as the operator says.
    pub abandoned: BTreeSet<NodeId>,
    /// How long something that was granted before may be in use.
    pub wait: Duration,
    /// Whether a hierarchy serves the locks.
    pub hierarchy: bool,
    /// Whether objects can stay where they are: as many nodes keep them as before, and as many may
    /// lie.
    pub objects_stay: bool,
    /// The largest token of a lease that the node voted for, and how many objects it has.
    pub keeper: (Token, u64),
    /// For a hierarchy: so far ahead of its clock a node that forgot what it promised may have
    /// promised tokens.
    pub lead: Duration,
}

/// What an adopting node is told.
#[derive(Clone, Debug)]
pub enum AdoptionInput {
    /// What it wrote is on disk.
    Durable,
    /// Another node says how it stands, having been asked.
    Heard(NodeId, Standing),
    /// The time of [`Machine::next_wake`] has come, or may have.
    Wake,
}

/// The question that is sent to other nodes: how do you stand?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HowDoYouStand;

/// What comes of an adoption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdoptionEvent {
    /// The configuration is the one in force once the records of this step are on disk.
    Done {
        /// No lease with a larger token was ever voted for by anybody.
        mark: Token,
        /// Whether the node has lost leases and objects that the others still know of.
        lost: bool,
    },
    /// It cannot be: this node keeps objects, which cannot be kept by other nodes.
    Objects(NodeId, u64),
}

/// A node on the way from one configuration to the next.
#[derive(Debug)]
pub struct Adoption {
    plan: Plan,
    opens: Instant,
    floor: Token,
    life: Incarnation,
    /// What remains of grants on disk, to be ended.
    ends: Vec<Record>,
    durable: bool,
    over: bool,
    heard: BTreeMap<NodeId, Standing>,
    ask_at: Instant,
}

type Out = EffectsOf<Adoption>;

impl Adoption {
    /// Begins to adopt a configuration: `stored` is what is on disk. Nothing may be said before
    /// the record in `out` is there too.
    pub fn new(plan: Plan, stored: &Stored, now: Now, out: &mut Out) -> Self {
        let grants = stored.grants.keys();
        let grants = grants.map(|(session, request)| Record::GrantEnded(*session, *request));
        let levels = stored.levels.grants.keys();
        let levels = levels.map(|lock| Record::Level(Box::new(LevelRecord::Free(lock.clone()))));
        out.persist
            .push(Record::Adopting(Box::new(plan.to.clone())));
        Self {
            opens: now.mono + plan.wait,
            floor: stored.highest(),
            life: stored.incarnation.unwrap_or_default(),
            ends: grants.chain(levels).collect(),
            durable: false,
            over: false,
            heard: BTreeMap::new(),
            ask_at: now.mono,
            plan,
        }
    }

    /// How this node stands; nothing is said before that is on disk.
    pub fn standing(&self, now: Now) -> Option<Standing> {
        let stage = match self.plan.old {
            None => Stage::Joining,
            Some(_) if self.opens <= now.mono => Stage::Waited,
            Some(_) => Stage::Waiting,
        };
        let (mark, objects) = self.plan.keeper;
        self.durable.then_some(Standing {
            config: self.plan.to.id,
            stage,
            floor: self.floor,
            mark,
            objects,
            before: self.plan.to.before,
            life: Incarnation::default(),
        })
    }

    /// How long its own grants of before may still be in use.
    pub fn left(&self, now: Now) -> Duration {
        self.opens.since(now.mono)
    }

    /// Whether the new configuration has this node at all. One that it has not only lets the
    /// others go on.
    pub fn stays(&self) -> bool {
        self.plan.id.index() < self.plan.nodes
    }

    /// The nodes whose word is missing, and why. A node that has nothing on disk needs that of one
    /// that serves, whichever.
    pub fn missing(&self) -> Vec<(NodeId, Missing)> {
        let why = |node: NodeId| match self.heard.get(&node) {
            None => Some((node, Missing::Silent)),
            Some(heard) => self.lacks(heard).map(|why| (node, why)),
        };
        self.asked().filter_map(why).collect()
    }

    /// Whether all have said what is needed.
    fn is_agreed(&self) -> bool {
        match self.plan.old {
            Some(_) => self.missing().is_empty(),
            None => self.heard.values().any(|heard| self.counts(heard)),
        }
    }

    fn counts(&self, heard: &Standing) -> bool {
        self.lacks(heard).is_none()
    }

    fn lacks(&self, heard: &Standing) -> Option<Missing> {
        match heard.stage {
            _ if heard.config != self.plan.to.id => Some(Missing::Other(heard.config)),
            Stage::Serving => None,
            Stage::Joining => Some(Missing::Joining),
            Stage::Waited if self.plan.old.is_some() => None,
            Stage::Waited | Stage::Waiting => Some(Missing::Waiting),
        }
    }

    /// All that are asked: the nodes of the configuration in force but for those that are gone, or
    /// those of the new one if none is known.
    fn asked(&self) -> impl Iterator<Item = NodeId> {
        let nodes = self.plan.old.unwrap_or(self.plan.nodes);
        let nodes = (0..u32::try_from(nodes).unwrap_or(u32::MAX)).map(NodeId);
        nodes.filter(|node| *node != self.plan.id && !self.plan.abandoned.contains(node))
    }

    fn go(&mut self, now: Now, out: &mut Out) {
        if !self.durable || self.over || !self.stays() {
            return;
        }
        let objects = self.heard.iter().map(|(node, it)| (*node, it.objects));
        let own = (self.plan.id, self.plan.keeper.1);
        let mut objects = std::iter::once(own).chain(objects);
        if let Some((node, count)) = objects.find(|(_, count)| *count > 0)
            && self.plan.old.is_some()
            && !self.plan.objects_stay
        {
            self.over = true;
            out.events.push(AdoptionEvent::Objects(node, count));
            return;
        }
        if self.opens <= now.mono && self.is_agreed() {
            self.finish(now, out);
            return;
        }
        if self.ask_at <= now.mono {
            self.ask_at = now.mono + ASK_AGAIN;
            for node in self.asked().collect::<Vec<_>>() {
                if !self.heard.get(&node).is_some_and(|it| self.counts(it)) {
                    out.send(node, HowDoYouStand);
                }
            }
        }
    }

    fn finish(&mut self, now: Now, out: &mut Out) {
        self.over = true;
        let counted = self.heard.values().filter(|heard| self.counts(heard));
        let (mut floor, mut mark, mut life) = (self.floor, self.plan.keeper.0, self.life);
        let mut before = self.plan.to.before;
        for heard in counted {
            floor = floor.max(heard.floor);
            mark = mark.max(heard.mark);
            life = life.max(heard.life);
            before = before.max(heard.before);
        }
        let clock = Token(now.wall.0);
        if !self.plan.abandoned.is_empty() {
            // What only they knew is bounded by the clock, as for nodes that begin anew.
            floor = floor.max(clock);
            mark = mark.max(clock);
        }
        let joins = self.plan.old.is_none();
        if joins && self.plan.hierarchy {
            floor = floor.max(Token(now.wall.plus(self.plan.lead).0));
        }
        out.persist.append(&mut self.ends);
        out.persist.push(Record::DefaultFloor(floor));
        if self.plan.hierarchy {
            out.persist
                .push(Record::Level(Box::new(LevelRecord::Promise {
                    ceiling: floor,
                    lease: Duration::ZERO,
                })));
        }
        // What it granted has run out, so it need not pause again.
        out.persist.push(Record::Clean(Box::new(Snapshot {
            floor,
            ..Snapshot::default()
        })));
        if joins {
            out.persist.push(Record::LongestTtl(self.plan.wait));
            let life = life.max(Incarnation(now.wall.0));
            out.persist.push(Record::Incarnation(life));
        }
        // Last: a disk that has it has all that it rests on.
        let to = StoredConfig {
            before,
            ..self.plan.to.clone()
        };
        out.persist.push(Record::Config(Box::new(to)));
        let lost = joins && self.plan.id.index() < before as usize;
        out.events.push(AdoptionEvent::Done { mark, lost });
    }
}

impl Machine for Adoption {
    type Input = AdoptionInput;
    type Address = NodeId;
    type Message = HowDoYouStand;
    type Record = Record;
    type Event = AdoptionEvent;

    fn handle(&mut self, now: Now, input: AdoptionInput, out: &mut Out) {
        match input {
            AdoptionInput::Durable => self.durable = true,
            AdoptionInput::Heard(node, standing) => {
                // What was said before the own adoption was on disk proves nothing.
                if self.durable && self.asked().any(|asked| asked == node) {
                    self.heard.insert(node, standing);
                }
            }
            AdoptionInput::Wake => {}
        }
        self.go(now, out);
    }

    fn next_wake(&self) -> Option<Wake> {
        let waits = self.durable && !self.over && self.stays();
        waits.then_some(Wake {
            at: self.ask_at,
            reason: "to ask how the others stand",
        })
    }
}
