//! The arbiter of one lock at one node: who is granted, who waits, who is asked to yield.
//!
//! A normalised form of `Maekawa_M` (Joung's group locks on quorums): after *every* change of the
//! requests, [`Arbiter::schedule`] decides from scratch who should be granted. The published
//! handlers do the same step by step, but leave a door closed when the request that closed it is
//! cancelled, and refill one slot per event.
//!
//! | paper | here |
//! |---|---|
//! | `requests` | `entries`, best first |
//! | `lock_ps` | entries with a [`Grant`] |
//! | `inquired` | [`Grant::inquired`] |
//! | `lock_group` | the group of any granted entry |
//! | `has_priority` | the best request belongs to the group that is granted |
//! | `max[g]` | [`Policy::max_inside`] |

use std::collections::VecDeque;
use std::sync::Arc;

use super::api::{EntryView, LockView, Why};
use super::config::{Policy, Protocol};
use super::floor::Floors;
use super::mode::{Ask, Bond, Mode, Priority};
use super::plant::{Plant, Rules};
use super::serial::Way;
use crate::id::{GrantNo, RequestNo, SessionId, Token};
use crate::time::Instant;

/// The place of a request in the order: requesters that are inside and move come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Rank {
    waits_outside: bool,
    priority: Priority,
}

/// What a node gave to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Grant {
    pub(super) number: GrantNo,
    /// What its requester was told about tokens of other groups.
    pub(super) floor: Token,
    /// The largest token registered: no holder uses a larger one on this grant.
    pub(super) limit: Token,
    /// The largest token that its requester named.
    pub(super) named: Token,
    pub(super) inquired: bool,
    /// Whether its requester said that it is inside.
    pub(super) entered: bool,
    /// When it was given, or found again by this life of the node.
    pub(super) since: Instant,
}

/// A request at a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    rank: Rank,
    pub(super) ask: Arc<Ask>,
    pub(super) hint: Token,
    /// The client whose connection carries it.
    pub(super) peer: u32,
    pub(super) grant: Option<Grant>,
    /// What its holder wants others to read.
    pub(super) note: Option<Arc<[u8]>>,
    /// How often its holder has changed its note.
    pub(super) edition: u32,
    /// The token that its holder said it uses, for those who watch; zero if it did not say so
    /// here. A token that is being registered is not yet used.
    pub(super) used: Token,
    /// How it travels, if its lock is serial.
    pub(super) way: Option<Box<Way>>,
    /// Whether it keeps the door open, if its lock is serial.
    pub(super) reference: bool,
}

impl Entry {
    pub(super) fn new(ask: Arc<Ask>, hint: Token, inside: bool, peer: u32) -> Self {
        let rank = Rank {
            waits_outside: !inside,
            priority: ask.priority,
        };
        Self {
            rank,
            ask,
            hint,
            peer,
            grant: None,
            note: None,
            edition: 0,
            used: Token(0),
            way: None,
            reference: false,
        }
    }

    /// Whether its requester was inside when it asked.
    pub(super) fn inside(&self) -> bool {
        !self.rank.waits_outside
    }
}

/// What a schedule wants said.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// LOCKED to this request.
    Grant {
        peer: u32,
        ask: Arc<Ask>,
        number: GrantNo,
        floor: Token,
        limit: Token,
        bypass: bool,
        inside: bool,
        /// Whether it travels on instead.
        travels: bool,
    },
    /// INQUIRE for this grant.
    Inquire {
        peer: u32,
        ask: Arc<Ask>,
        number: GrantNo,
    },
}

/// How far a grant may reserve tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserve {
    /// The clock plus the lead.
    pub(super) reach: Token,
    /// At least this far above the largest known token.
    pub(super) margin: u64,
    /// The ceiling on disk: staying below it costs no write.
    pub(super) ceiling: Token,
    /// No limit is larger.
    pub(super) bound: Token,
}

impl Reserve {
    fn limit(self, need: Token) -> Token {
        let want = self.reach.max(Token(need.0.saturating_add(self.margin)));
        let want = want.min(self.bound);
        if want > self.ceiling && self.ceiling > need {
            self.ceiling
        } else {
            want
        }
    }
}

/// What a schedule may use.
pub(super) struct Scope<'a> {
    pub(super) policy: Policy,
    pub(super) rules: Rules,
    pub(super) reserve: Reserve,
    /// The last grant number given.
    pub(super) last: &'a mut GrantNo,
    pub(super) steps: &'a mut Vec<Step>,
    pub(super) now: Instant,
    /// Whether a request was just removed (only a planted bug asks).
    pub(super) removed: bool,
}

/// All requests for one lock at one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Arbiter {
    pub(super) entries: VecDeque<Entry>,
    pub(super) granted: u32,
    pub(super) has_priority: bool,
    pub(super) bypassed: u32,
    pub(super) floors: Floors,
}

impl Arbiter {
    pub(super) fn new(floors: Floors) -> Self {
        Self {
            entries: VecDeque::new(),
            granted: 0,
            has_priority: true,
            bypassed: 0,
            floors,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entries(&self) -> &VecDeque<Entry> {
        &self.entries
    }

    /// Whether the best request belongs to the group inside, and how many late ones passed.
    pub(super) fn door(&self) -> (bool, u32) {
        (self.has_priority, self.bypassed)
    }

    pub(super) fn position(&self, session: SessionId, request: RequestNo) -> Option<usize> {
        self.entries.iter().position(|entry| {
            entry.rank.priority.request == request && entry.ask.session == session
        })
    }

    pub(super) fn get(&self, session: SessionId, request: RequestNo) -> Option<&Entry> {
        let place = self.position(session, request)?;
        Some(&self.entries[place])
    }

    pub(super) fn get_mut(&mut self, session: SessionId, request: RequestNo) -> Option<&mut Entry> {
        let place = self.position(session, request)?;
        Some(&mut self.entries[place])
    }

    /// Puts a request in its place; one that is there already must not be put in again.
    pub(super) fn insert(&mut self, entry: Entry) {
        debug_assert!(self.get(entry.ask.session, entry.ask.request).is_none());
        self.granted += u32::from(entry.grant.is_some());
        if self.entries.capacity() == 0 {
            // Most locks only ever have one request: room for four would cost twice the rest.
            self.entries.reserve_exact(1);
        }
        let place = self
            .entries
            .partition_point(|other| other.rank < entry.rank);
        self.entries.insert(place, entry);
    }

    /// Takes a request out, granted or not.
    pub(super) fn remove(&mut self, session: SessionId, request: RequestNo) -> Option<Entry> {
        let place = self.position(session, request)?;
        let entry = self.entries.remove(place)?;
        self.granted -= u32::from(entry.grant.is_some());
        if self.entries.is_empty() {
            // An idle lock keeps no room: what it gives back is still in the processor's cache
            // when the next lock asks for it.
            self.entries = VecDeque::new();
        }
        Some(entry)
    }

    /// Takes the grant of a request away; the request waits again, in its old place.
    pub(super) fn take_back(&mut self, session: SessionId, request: RequestNo) -> Option<Grant> {
        let grant = self.get_mut(session, request)?.grant.take()?;
        self.granted -= 1;
        Some(grant)
    }

    /// Whether a request may join everything that is granted.
    pub(super) fn admits(&self, ask: &Ask) -> bool {
        let granted = self.entries.iter().filter(|entry| entry.grant.is_some());
        granted.into_iter().all(|entry| entry.ask.joins(ask))
    }

    /// Grants what may be granted and asks back what stands in the way of better requests.
    pub(super) fn schedule(&mut self, scope: &mut Scope<'_>) {
        if scope.policy.protocol == Protocol::Serial {
            self.schedule_serial(scope);
            return;
        }
        let Some(top) = self.entries.front() else {
            self.bypassed = 0;
            self.has_priority = true;
            return;
        };
        let group = if self.granted == 0 {
            self.bypassed = 0;
            &top.ask
        } else {
            let granted = self.entries.iter().find(|entry| entry.grant.is_some());
            &granted.expect("invariant: a grant is counted").ask
        };
        self.has_priority = top.ask.joins(group);
        if !self.has_priority {
            for place in 0..self.entries.len() {
                self.inquire(place, scope);
            }
            return;
        }
        if alone(group) {
            // Nobody can join an exclusive request: the best request is the whole group.
            if self.granted == 0 {
                self.grant(0, false, scope);
            }
            return;
        }
        let group = Arc::clone(group);
        self.admit_group(&group, scope);
    }

    /// Grants the group's requests, best first, and makes room for better ones.
    fn admit_group(&mut self, group: &Ask, scope: &mut Scope<'_>) {
        let max = scope.policy.max_inside.max(1);
        let mut refill = scope.removed && scope.rules.has(Plant::LiteralRefill);
        let mut passed = false;
        // The best `max` requests of the group that are not withheld, and how many of them wait.
        let (mut best, mut missing, mut last_best) = (0_u32, 0_u32, 0);
        for place in 0..self.entries.len() {
            let entry = &self.entries[place];
            if !entry.ask.joins(group) {
                passed |= entry.grant.is_none();
                continue;
            }
            if entry.grant.is_none() {
                let free = self.granted < max || std::mem::take(&mut refill);
                if passed && !entry.inside() && self.bypassed >= scope.policy.max_bypass {
                    continue;
                }
                if free {
                    let late = passed && !entry.inside();
                    self.bypassed += u32::from(late);
                    self.grant(place, passed, scope);
                } else if best < max {
                    missing += 1;
                }
            }
            if best < max {
                best += 1;
                last_best = place;
            }
        }
        let inquired = |entry: &&Entry| entry.grant.as_ref().is_some_and(|grant| grant.inquired);
        let mut asked = self.entries.iter().filter(inquired).count() as u32;
        for place in (last_best + 1..self.entries.len()).rev() {
            if asked >= missing {
                break;
            }
            asked += u32::from(self.inquire(place, scope));
        }
    }

    pub(super) fn grant(&mut self, place: usize, bypass: bool, scope: &mut Scope<'_>) {
        let entry = &mut self.entries[place];
        debug_assert!(entry.grant.is_none());
        scope.last.0 += 1;
        let number = *scope.last;
        let floor = self.floors.other(&entry.ask.group());
        let limit = scope.reserve.limit(self.floors.highest().max(entry.hint));
        entry.grant = Some(Grant {
            number,
            floor,
            limit,
            named: Token(0),
            inquired: false,
            entered: false,
            since: scope.now,
        });
        self.granted += 1;
        scope.steps.push(Step::Grant {
            peer: entry.peer,
            ask: entry.ask.clone(),
            number,
            floor,
            limit,
            bypass,
            inside: entry.inside(),
            travels: entry.way.is_some(),
        });
    }

    /// Asks for a grant back, once. A holder that said it is inside would not answer: it is
    /// marked, and spared the message.
    fn inquire(&mut self, place: usize, scope: &mut Scope<'_>) -> bool {
        let entry = &mut self.entries[place];
        let Some(grant) = entry.grant.as_mut().filter(|grant| !grant.inquired) else {
            return false;
        };
        grant.inquired = true;
        if !grant.entered {
            scope.steps.push(Step::Inquire {
                peer: entry.peer,
                ask: entry.ask.clone(),
                number: grant.number,
            });
        }
        true
    }

    /// Why each request waits, in their order; none for those that are granted.
    pub(super) fn whys(&self, policy: &Policy) -> impl Iterator<Item = Option<Why>> {
        let first = self.entries.iter().find(|entry| entry.grant.is_some());
        // The best request that waits for those inside to leave.
        let rival = first.and_then(|first| {
            let excluded = |entry: &Entry| entry.grant.is_none() && !entry.ask.joins(&first.ask);
            self.entries.iter().position(excluded)
        });
        let policy = *policy;
        self.entries.iter().enumerate().map(move |(place, entry)| {
            if entry.grant.is_some() {
                return None;
            }
            let Some(first) = first else {
                return Some(Why::Turn);
            };
            if !first.ask.joins(&entry.ask) {
                let (session, request) = (first.ask.session, first.ask.request);
                let held = first.grant.as_ref();
                let asked = held.is_some_and(|grant| grant.inquired && !grant.entered);
                return Some(if asked {
                    Why::AskedBack(session, request)
                } else {
                    Why::Held(session, request)
                });
            }
            let rival = rival.filter(|rival| *rival < place);
            Some(match rival.map(|rival| &self.entries[rival].ask) {
                Some(rival) if !self.has_priority => Why::DoorClosed(rival.session, rival.request),
                Some(_) if self.bypassed >= policy.max_bypass => {
                    Why::BypassLimit(policy.max_bypass)
                }
                _ if self.granted >= policy.max_inside => Why::MaxInside(policy.max_inside),
                Some(rival) => Why::DoorClosed(rival.session, rival.request),
                None => Why::Turn,
            })
        })
    }

    pub(super) fn view(&self) -> LockView {
        let entries = self.entries.iter().map(|entry| {
            let grant = entry.grant.as_ref();
            EntryView {
                ask: entry.ask.clone(),
                grant: grant.map_or(GrantNo(0), |grant| grant.number),
                limit: grant.map_or(Token(0), |grant| grant.limit),
                inquired: grant.is_some_and(|grant| grant.inquired),
                inside: entry.inside(),
                entered: grant.filter(|grant| grant.entered).map(|grant| grant.named),
            }
        });
        LockView {
            entries: entries.collect(),
            has_priority: self.has_priority,
            bypassed: self.bypassed,
        }
    }
}

/// Whether no other request can be of this one's group.
fn alone(ask: &Ask) -> bool {
    ask.mode == Mode::Exclusive && ask.bond != Bond::Named
}
