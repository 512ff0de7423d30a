//! How a node that lost its disk comes back.
//!
//! It has forgotten its votes, its ranks and its proposals, so it says nothing but that at first: a
//! silent node can mislead nobody. It waits until every lease that it may have voted for has
//! ended, and until whatever it had a part in has reached the others or was given up. Then it
//! asks the others which objects there are, orders each of them anew without changing it, and
//! holds what came of that as if it had been asked under that rank.
//!
//! If no node ever kept anything there is nothing to come back to: each says so when it asks and
//! when it is asked, and begins when all but those that may lie have said it too.
//!
//! Tokens: a lease with its vote also had the votes of others, and each of those knows a mark
//! above it. So the node takes the largest mark that as many name as surely tell the truth, and
//! its own clock at least. It would have voted for nothing further ahead than a day, so where the
//! nodes are so few that a liar has a say, it can push the mark no further.
//!
//! While it is silent the loss counts as a crash and not as a lie. What it promised before and has
//! forgotten could only matter to an attempt whose messages are still under way after the wait; if
//! some are, the loss counts as one of the b lies.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Ask};
use crate::fault::Faults;
use crate::id::{Name, NodeId, Token};
use crate::machine::{EffectsOf, Machine};
use crate::object::ObjectConfig;
use crate::time::{Instant, Now, Wake};

/// A question without an answer is asked again after this.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait for more lists once there are enough.
const GRACE: Duration = Duration::from_secs(2);
/// How many objects are ordered at once.
const AT_ONCE: usize = 8;
/// An object that could not be ordered is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);
/// No question has this number.
const UNASKED: u64 = 0;
/// No node votes for a token further ahead of its clock than this.
const TOKEN_AHEAD: Duration = Duration::from_hours(24);

/// What a node that rejoins is told.
#[derive(Clone, Debug)]
pub enum RejoinInput {
    /// A connection to another node is open.
    Opened(NodeId),
    /// A connection to another node is gone.
    Closed(NodeId),
    /// Another node says something.
    Heard(NodeId, Answer),
    /// Another node asked something, and said that it never kept anything.
    New(NodeId),
    /// The object was ordered anew, and its keeper has it.
    Refreshed(Name),
    /// The object could not be ordered.
    Failed(Name),
    /// The time of [`Machine::next_wake`] has come, or may have.
    Wake,
}

/// What a node that rejoins asks of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejoinEvent {
    /// Order this object anew, as a client of the others, without an operation of its own.
    Refresh(Name),
    /// No node ever kept anything: the keeper may begin as a new one.
    Begin,
    /// All is done: the keeper may serve.
    Rejoined {
        /// No lease with a larger token can have had this node's vote.
        mark: Token,
    },
}

/// How far a node has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Listing,
    Ordering,
    Done,
}

/// A node on its way back.
#[derive(Debug)]
pub struct Rejoin {
    faults: Faults,
    quorum: usize,
    objects_max: usize,
    opens: Instant,
    stage: Stage,
    lists: BTreeMap<NodeId, List>,
    /// Whether this node has anything on its disk that it may have kept.
    blank: bool,
    /// Nodes that never kept anything, as they said themselves.
    new: BTreeSet<NodeId>,
    /// When there were enough lists.
    enough: Option<Instant>,
    todo: VecDeque<Name>,
    running: BTreeSet<Name>,
    again: BTreeMap<Name, Instant>,
    tickets: u64,
}

/// What another node has told of its objects.
#[derive(Debug, Default)]
struct List {
    objects: BTreeSet<Name>,
    token: Token,
    open: bool,
    /// Whether it was told to the end.
    whole: bool,
    after: Option<Name>,
    asked: Option<(u64, Instant)>,
}

type Out = EffectsOf<Rejoin>;

impl Rejoin {
    /// A node whose keeper gives no votes before `opens`; `blank` if its disk shows no trace of
    /// anything kept.
    pub fn new(
        faults: Faults,
        objects: Option<&Arc<ObjectConfig>>,
        opens: Instant,
        blank: bool,
    ) -> Self {
        Self {
            faults,
            quorum: objects.map_or(0, |config| config.quorum),
            objects_max: objects.map_or(0, |config| config.objects_max),
            opens,
            stage: Stage::Waiting,
            lists: BTreeMap::new(),
            blank,
            new: BTreeSet::new(),
            enough: None,
            todo: VecDeque::new(),
            running: BTreeSet::new(),
            again: BTreeMap::new(),
            tickets: 0,
        }
    }

    /// How many objects must still be ordered anew, once it is known.
    pub fn left(&self) -> Option<usize> {
        let left = self.todo.len() + self.running.len() + self.again.len();
        matches!(self.stage, Stage::Ordering | Stage::Done).then_some(left)
    }

    /// How many others must tell what they have: all but those that may be silent.
    fn needed(&self) -> usize {
        let others = self.faults.nodes() - 1;
        others.saturating_sub(self.faults.liars())
    }

    /// So many must say something that was said to this node and `size` of all: so many honest
    /// ones are surely among those whose lists are whole. More than b+1 are never needed; if
    /// there are fewer, a liar can make the node order what is not there, or take too large a
    /// mark, and no more than that.
    fn vouch(&self, size: usize) -> usize {
        let whole = self.lists.values().filter(|list| list.whole).count();
        let missing = (self.faults.nodes() - 1).saturating_sub(whole);
        let honest = size.saturating_sub(1 + self.faults.liars() + missing);
        honest.clamp(1, self.faults.vouch())
    }

    fn ask(&mut self, now: Instant, out: &mut Out) {
        for (node, list) in &mut self.lists {
            list.asked.take_if(|(_, until)| *until <= now);
            if !list.open || list.whole || list.asked.is_some() {
                continue;
            }
            self.tickets += 1;
            let ticket = self.tickets;
            list.asked = Some((ticket, now + PATIENCE));
            let after = list.after.clone();
            let new = self.blank;
            out.send(*node, Ask::Survey { ticket, after, new });
        }
    }

    fn heard(&mut self, now: Now, from: NodeId, answer: Answer, out: &mut Out) {
        let Answer::Surveyed {
            ticket,
            objects,
            token,
            last,
            lost,
            new,
        } = answer
        else {
            return;
        };
        let most = self.objects_max;
        let Some(list) = self.lists.get_mut(&from) else {
            return;
        };
        if list.asked.is_none_or(|(asked, _)| asked != ticket) {
            return;
        }
        if new {
            self.new.insert(from);
        }
        if lost || self.stage != Stage::Listing {
            // It is asked again in a while: it may serve by then.
            list.asked = Some((UNASKED, now.mono + AGAIN));
            self.go(now, out);
            return;
        }
        list.asked = None;
        list.token = list.token.max(token);
        let end = objects.last().map(|(name, _)| name.clone());
        // A list that goes round in circles, or on for ever, ends here.
        let on = end.is_some() && end > list.after && list.objects.len() < most;
        list.objects
            .extend(objects.into_iter().map(|(name, _)| name));
        list.whole = last || !on;
        list.after = end;
        self.go(now, out);
    }

    fn go(&mut self, now: Now, out: &mut Out) {
        if matches!(self.stage, Stage::Waiting | Stage::Listing) {
            self.ask(now.mono, out);
            // Whoever begins has asked all others before, and said that it is new: so what it
            // keeps from then on does not hold up those that begin after it.
            if self.blank && self.new.len() >= self.needed() {
                self.stage = Stage::Done;
                out.events.push(RejoinEvent::Begin);
                return;
            }
        }
        if self.stage == Stage::Waiting && now.mono >= self.opens {
            self.stage = Stage::Listing;
        }
        if self.stage == Stage::Listing {
            let whole = self.lists.values().filter(|list| list.whole).count();
            if whole >= self.needed() {
                let since = *self.enough.get_or_insert(now.mono);
                let all = whole + 1 >= self.faults.nodes();
                if all || now.mono.since(since) >= GRACE {
                    self.decide();
                }
            }
        }
        if self.stage == Stage::Ordering {
            self.order(now, out);
        }
    }

    /// Which objects to order anew.
    fn decide(&mut self) {
        let mut known: BTreeMap<&Name, usize> = BTreeMap::new();
        for list in self.lists.values() {
            for object in &list.objects {
                *known.entry(object).or_default() += 1;
            }
        }
        let enough = self.vouch(self.quorum);
        let known = known.into_iter().filter(|(_, count)| *count >= enough);
        self.todo = known.map(|(object, _)| object.clone()).collect();
        self.stage = Stage::Ordering;
    }

    fn order(&mut self, now: Now, out: &mut Out) {
        let due = self.again.iter().filter(|(_, at)| **at <= now.mono);
        for object in due.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.again.remove(&object);
            self.todo.push_back(object);
        }
        while self.running.len() < AT_ONCE {
            let Some(object) = self.todo.pop_front() else {
                break;
            };
            self.running.insert(object.clone());
            out.events.push(RejoinEvent::Refresh(object));
        }
        if self.running.is_empty() && self.again.is_empty() {
            self.stage = Stage::Done;
            let mut named: Vec<Token> = self.lists.values().map(|list| list.token).collect();
            named.sort_unstable_by(|a, b| b.cmp(a));
            let named = named.get(self.vouch(self.faults.free()) - 1).copied();
            let clock = Token(now.wall.0);
            let cap = Token(now.wall.plus(TOKEN_AHEAD).0);
            let mark = named.unwrap_or_default().clamp(clock, cap);
            out.events.push(RejoinEvent::Rejoined { mark });
        }
    }
}

impl Machine for Rejoin {
    type Input = RejoinInput;
    type Address = NodeId;
    type Message = Ask;
    type Record = ();
    type Event = RejoinEvent;

    fn handle(&mut self, now: Now, input: RejoinInput, out: &mut Out) {
        match input {
            RejoinInput::Opened(node) => {
                let list = self.lists.entry(node).or_default();
                list.open = true;
                list.asked = None;
            }
            RejoinInput::Closed(node) => {
                if let Some(list) = self.lists.get_mut(&node) {
                    list.open = false;
                    list.asked = None;
                }
            }
            RejoinInput::Heard(node, answer) => self.heard(now, node, answer, out),
            RejoinInput::New(node) => {
                self.new.insert(node);
            }
            RejoinInput::Refreshed(object) => {
                self.running.remove(&object);
            }
            RejoinInput::Failed(object) => {
                if self.running.remove(&object) {
                    self.again.insert(object, now.mono + AGAIN);
                }
            }
            RejoinInput::Wake => {}
        }
        self.go(now, out);
    }

    fn next_wake(&self) -> Option<Wake> {
        let at = match self.stage {
            Stage::Waiting => {
                let asked = self.lists.values().filter_map(|list| list.asked);
                let asked = asked.map(|(_, until)| until);
                asked.chain([self.opens]).min()
            }
            Stage::Listing => {
                let asked = self.lists.values().filter_map(|list| list.asked);
                let asked = asked.map(|(_, until)| until);
                asked.chain(self.enough.map(|since| since + GRACE)).min()
            }
            Stage::Ordering => self.again.values().copied().min(),
            Stage::Done => None,
        };
        at.map(|at| Wake {
            at,
            reason: "to rejoin",
        })
    }
}
