//! A world made of answers, for the tests of the checkers.

use std::collections::BTreeMap;
use std::sync::Arc;

use conclave_protocol::Wall;
use conclave_protocol::id::{ClientId, GrantNo, Key, Name, NodeId, RequestNo, SessionId, Token};
use conclave_protocol::lock::{Ask, Bond, Config, End, EntryView, Group, LockView, Mode, Priority};

use super::book::Book;
use super::grounded::Grounded;
use crate::fact::{Checker, Eyes, Fact, Holder, True};

/// What the checkers see.
pub(super) struct Fake {
    pub(super) until: BTreeMap<Holder, u64>,
    pub(super) fresh: BTreeMap<Holder, Vec<(NodeId, GrantNo)>>,
    pub(super) awake: BTreeMap<Holder, u64>,
    pub(super) views: BTreeMap<(NodeId, Name), LockView>,
    pub(super) waiting: Vec<Holder>,
    pub(super) kept: [usize; 4],
    pub(super) serving: bool,
    pub(super) servable: bool,
    pub(super) patience: u64,
    pub(super) keepable: bool,
    pub(super) kept_holds: Vec<(Holder, u64, u64)>,
    pub(super) tokens: Option<(Token, Wall)>,
}

impl Eyes for Fake {
    fn believes_until(&self, holder: &Holder) -> Option<True> {
        self.until.get(holder).map(|&until| True(until))
    }

    fn view(&self, node: NodeId, name: &Name) -> Option<LockView> {
        self.views.get(&(node, name.clone())).cloned()
    }

    fn fresh_members(&self, holder: &Holder) -> Vec<(NodeId, GrantNo)> {
        self.fresh.get(holder).cloned().unwrap_or_default()
    }

    fn awake_since(&self, holder: &Holder) -> Option<True> {
        self.awake.get(holder).map(|&since| True(since))
    }

    fn serving(&self, _: NodeId) -> bool {
        self.serving
    }

    fn waiting(&self) -> Vec<Holder> {
        self.waiting.clone()
    }

    fn kept(&self, _: NodeId) -> Option<[usize; 4]> {
        Some(self.kept)
    }

    fn tokens(&self, _: NodeId) -> Option<(Token, Wall)> {
        self.tokens
    }

    fn wall(&self, _: NodeId) -> Option<Wall> {
        None
    }

    fn nodes(&self) -> usize {
        3
    }

    fn servable(&self, _: &Holder) -> bool {
        self.servable
    }

    fn patience(&self) -> u64 {
        self.patience
    }

    fn keepable(&self, _: &Holder) -> bool {
        self.keepable
    }

    fn kept_holds(&self) -> Vec<(Holder, u64, u64)> {
        self.kept_holds.clone()
    }
}

/// Facts told one after another to the keeper of the book and to the checkers under test.
pub(super) struct Story {
    pub(super) eyes: Fake,
    pub(super) at: u64,
    checkers: Vec<Box<dyn Checker>>,
}

impl Story {
    pub(super) fn new(make: impl FnOnce(&Book) -> Vec<Box<dyn Checker>>) -> Self {
        let book = Book::default();
        let mut checkers: Vec<Box<dyn Checker>> = vec![Box::new(Grounded::new(book.clone()))];
        checkers.extend(make(&book));
        Self::told_to(checkers)
    }

    pub(super) fn all(config: &Arc<Config>) -> Self {
        Self::told_to(super::all(config))
    }

    fn told_to(checkers: Vec<Box<dyn Checker>>) -> Self {
        let eyes = Fake {
            until: BTreeMap::new(),
            fresh: BTreeMap::new(),
            awake: BTreeMap::new(),
            views: BTreeMap::new(),
            waiting: Vec::new(),
            kept: [0; 4],
            serving: true,
            servable: false,
            patience: u64::MAX,
            keepable: false,
            kept_holds: Vec::new(),
            tokens: None,
        };
        Self {
            eyes,
            at: 0,
            checkers,
        }
    }

    /// The property that this fact breaks, and how.
    pub(super) fn tell(&mut self, fact: &Fact) -> Option<(&'static str, String)> {
        let mut found = None;
        for checker in &mut self.checkers {
            if let Err(violation) = checker.watch(True(self.at), fact, &self.eyes) {
                assert_eq!(violation.property, checker.property());
                assert_eq!(violation.at, True(self.at));
                found = found.or(Some((violation.property, violation.what)));
            }
        }
        found
    }

    #[expect(clippy::needless_pass_by_value, reason = "facts are made in place")]
    pub(super) fn holds(&mut self, fact: Fact) {
        assert_eq!(self.tell(&fact), None, "{fact:?}");
    }

    /// Returns the message.
    #[expect(clippy::needless_pass_by_value, reason = "facts are made in place")]
    pub(super) fn breaks(&mut self, property: &str, fact: Fact) -> String {
        let found = self.tell(&fact);
        assert_eq!(
            found.as_ref().map(|(name, _)| *name),
            Some(property),
            "{fact:?}"
        );
        found.map(|(_, what)| what).unwrap_or_default()
    }

    pub(super) fn believes(&mut self, client: u32, until: u64) {
        self.eyes.until.insert(holder(client), until);
    }

    /// What a node shows of the lock.
    pub(super) fn shows(&mut self, node: u32, has_priority: bool, entries: Vec<EntryView>) {
        let view = LockView {
            entries,
            has_priority,
            bypassed: 0,
        };
        self.eyes.views.insert((NodeId(node), lock()), view);
    }
}

pub(super) fn lock() -> Name {
    Name::new("lock")
}

pub(super) fn mode(group: &str) -> Mode {
    Mode::group(group)
}

/// The only request of a client; smaller clients have better priorities.
pub(super) fn ask(client: u32, mode: &Mode) -> Arc<Ask> {
    Arc::new(Ask {
        name: lock(),
        mode: mode.clone(),
        session: SessionId(u128::from(client)),
        request: RequestNo(1),
        priority: Priority {
            t: u64::from(client),
            client: ClientId(u128::from(client)),
            request: RequestNo(1),
        },
        bond: Bond::Attached,
    })
}

pub(super) fn holder(client: u32) -> Holder {
    Holder {
        client,
        life: 0,
        key: Key(1),
        name: lock(),
    }
}

pub(super) fn members(pairs: &[(u32, u64)]) -> Vec<(NodeId, GrantNo)> {
    let pairs = pairs.iter();
    pairs.map(|&(n, g)| (NodeId(n), GrantNo(g))).collect()
}

pub(super) fn entry(ask: &Arc<Ask>, grant: u64) -> EntryView {
    EntryView {
        ask: ask.clone(),
        grant: GrantNo(grant),
        limit: Token(0),
        inquired: false,
        inside: false,
        entered: None,
    }
}

pub(super) fn granted(node: u32, ask: &Arc<Ask>, grant: u64) -> Fact {
    Fact::Granted {
        node: NodeId(node),
        ask: ask.clone(),
        grant: GrantNo(grant),
        floor: Token(0),
        limit: Token(0),
        bypass: false,
        inside: false,
    }
}

pub(super) fn entered(holder: &Holder, ask: &Ask, token: u64, on: &[(u32, u64)]) -> Fact {
    Fact::Entered {
        holder: holder.clone(),
        group: ask.group(),
        token: Token(token),
        members: members(on),
    }
}

pub(super) fn moved(holder: &Holder, token: u64, on: &[(u32, u64)]) -> Fact {
    Fact::Moved {
        holder: holder.clone(),
        token: Token(token),
        members: members(on),
    }
}

pub(super) fn ended(node: u32, ask: &Arc<Ask>, grant: u64, why: End) -> Fact {
    Fact::NodeEnded {
        node: NodeId(node),
        ask: ask.clone(),
        grant: GrantNo(grant),
        why,
    }
}

pub(super) fn spite(node: u32, client: u32) -> Fact {
    Fact::ExpiredBySpite {
        node: NodeId(node),
        session: SessionId(u128::from(client)),
    }
}

pub(super) fn acted(client: u32, group: Group, token: u64, admitted: bool) -> Fact {
    Fact::Acted {
        holder: holder(client),
        group,
        token: Token(token),
        admitted,
    }
}

pub(super) fn released(client: u32) -> Fact {
    Fact::Released {
        holder: holder(client),
    }
}
