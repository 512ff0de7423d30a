//! The node's side of leases: one vote for every name, given to one attempt at a time.
//!
//! A vote lapses by itself, on the node's own clock, strictly after the time that its lease may
//! last. Nothing of it is on disk: a node that restarts gives no vote until every vote that it may
//! have given has lapsed. Only a mark above all tokens is durable, so tokens never go back.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::config::LeaseConfig;
use super::message::{
    Attempt, LeaseAnswer, LeaseAsk, LeaseKey, LeaseRefusal, LeaseReply, Seal, Secret, Try,
};
use super::plant::Plant;
use crate::id::{LinkId, Name, Token};
use crate::object::Rank;
use crate::table::Table;
use crate::time::{Instant, Now, Wake};

/// A token further ahead of the node's wall clock than this is refused.
const TOKEN_AHEAD: Duration = Duration::from_hours(24);
/// The mark on disk lies this far above the token that moved it.
const MARK_AHEAD: Token = Token(10_000_000);
/// Requests that wait at a node, for all names together.
const WAITING_IN_ALL_MAX: usize = 65_536;

/// How a node begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseStart {
    /// No vote is given before this time; see [`LeaseConfig::quarantine`].
    pub opens: Instant,
    /// The mark that was on disk.
    pub mark: Token,
}

/// What a step of the node's leases brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseOut {
    /// Answers, each to the connection it belongs to.
    pub answers: Vec<(LinkId, LeaseKey, LeaseReply)>,
    /// A new mark, which must be on disk before the answers leave.
    pub mark: Option<Token>,
    /// How long the longest vote lasts that was given or renewed.
    pub lasts: Option<Duration>,
}

/// A vote as a node shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Which lease.
    pub key: LeaseKey,
    /// Who has the vote, if anybody.
    pub holder: Option<Attempt>,
    /// How long it is given away for at most.
    pub remaining: Duration,
    /// The largest token that was voted for.
    pub token: Token,
    /// How many requests wait.
    pub waiting: usize,
}

/// The votes of one node.
#[derive(Debug)]
pub struct LeaseServer {
    votes: Table<LeaseKey, Lease>,
    /// Leases that nobody waits for, by the time their votes lapse.
    idle: BTreeSet<(Instant, LeaseKey)>,
    /// Leases that somebody waits for, by the time there is something to do.
    due: BTreeSet<(Instant, LeaseKey)>,
    /// Where the requests of a connection wait.
    links: BTreeSet<(LinkId, LeaseKey)>,
    waiting: usize,
    base: Base,
}

/// What all leases of a node share.
#[derive(Debug)]
struct Base {
    config: Arc<LeaseConfig>,
    opens: Instant,
    /// The largest token of any name that is not remembered.
    floor: Token,
    mark: Token,
    /// How long the longest vote lasts that this step has given.
    lasts: Option<Duration>,
}

/// The vote for one name.
#[derive(Debug)]
struct Lease {
    vote: Option<Vote>,
    token: Token,
    waiting: Vec<Waiter>,
    /// Where it stands in the order of times, and whether somebody waits for it.
    place: Option<(Instant, bool)>,
    /// How many of those who wait are counted.
    counted: usize,
}

/// A vote that was given.
#[derive(Clone, Copy, Debug)]
struct Vote {
    attempt: Attempt,
    sub: u32,
    seal: Seal,
    given: Instant,
    lasts: Duration,
    held: Duration,
}

/// A request that waits for the vote.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    link: LinkId,
    asked: Try,
    since: Instant,
}

impl Vote {
    /// The first time at which the vote is free again: strictly past what it lasts.
    fn lapses(&self) -> Instant {
        self.given + self.lasts + Duration::from_nanos(1)
    }
}

impl Waiter {
    fn gives_up(&self) -> Instant {
        self.since + self.asked.patience
    }
}

impl LeaseServer {
    /// A node that has given no vote in this life.
    pub fn new(config: Arc<LeaseConfig>, start: LeaseStart, seed: u64) -> Self {
        let opens = if config.rules.has(Plant::NoQuarantine) {
            Instant::ZERO
        } else {
            start.opens
        };
        Self {
            votes: Table::new(seed),
            idle: BTreeSet::new(),
            due: BTreeSet::new(),
            links: BTreeSet::new(),
            waiting: 0,
            base: Base {
                config,
                opens,
                floor: start.mark,
                mark: start.mark,
                lasts: None,
            },
        }
    }

    /// Above every token that was granted; what must be on disk.
    pub fn mark(&self) -> Token {
        self.base.mark
    }

    /// How many names the node remembers.
    pub fn names(&self) -> usize {
        self.votes.len()
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Votes that are given away or waited for, at most so many: those that lapse last first.
    pub fn views(&self, now: Now, limit: usize) -> Vec<LeaseView> {
        let given = |(_, key): &&(Instant, LeaseKey)| {
            let lease = self.votes.get(key);
            lease.is_some_and(|lease| !lease.free(now.mono) || !lease.waiting.is_empty())
        };
        let idle = self.idle.iter().rev();
        let idle = idle.take_while(|(lapses, _)| *lapses > now.mono);
        let keys = self.due.iter().rev().chain(idle);
        let keys = keys.filter(given).take(limit);
        let view = |(_, key): &(Instant, LeaseKey)| {
            let lease = self.votes.get(key)?;
            let vote = lease.vote.filter(|_| !lease.free(now.mono));
            Some(LeaseView {
                key: key.clone(),
                holder: vote.map(|vote| vote.attempt),
                remaining: vote.map_or(Duration::ZERO, |vote| vote.lapses().since(now.mono)),
                token: lease.token,
                waiting: lease.waiting.len(),
            })
        };
        keys.filter_map(view).collect()
    }

    /// When it must be woken.
    pub fn next_wake(&self) -> Option<Wake> {
        let (at, _) = self.due.first()?;
        Some(Wake {
            at: *at,
            reason: "a vote lapses or a request has waited enough",
        })
    }

    /// A contender asks something on a connection. `rank` is the largest rank that the node has
    /// seen, if the lease is an object's.
    pub fn ask(
        &mut self,
        now: Now,
        link: LinkId,
        key: &LeaseKey,
        ask: &LeaseAsk,
        rank: Option<Rank>,
        out: &mut LeaseOut,
    ) {
        let before = self.base.mark;
        let (attempt, sub, answer) = match ask {
            LeaseAsk::Try(asked) => {
                let answer = self.attempt(now, link, key, asked, rank, out);
                (asked.attempt, asked.sub, answer)
            }
            LeaseAsk::Release { attempt, secret } => {
                self.release(now, key, *attempt, secret, rank, out);
                (*attempt, 0, Some(LeaseAnswer::Released))
            }
            LeaseAsk::Renew {
                attempt,
                sub,
                secret,
            } => {
                let answer = self.renew(now, key, *attempt, secret, rank);
                (*attempt, *sub, Some(answer))
            }
        };
        if let Some(answer) = answer {
            out.answers.push((
                link,
                key.clone(),
                LeaseReply {
                    attempt,
                    sub,
                    answer,
                },
            ));
        }
        self.arrange(key);
        self.tell_mark(before, out);
    }

    /// A connection is gone: what waits on it is forgotten.
    pub fn closed(&mut self, link: LinkId) {
        let first = (
            link,
            LeaseKey {
                space: super::Space::Lease,
                name: Name::new([]),
            },
        );
        let theirs = self.links.range(first..).map_while(|(other, key)| {
            // The set is ordered by connection first.
            (*other == link).then(|| key.clone())
        });
        for key in theirs.collect::<Vec<_>>() {
            if let Some(lease) = self.votes.get_mut(&key) {
                lease.waiting.retain(|waiter| waiter.link != link);
            }
            self.links.remove(&(link, key.clone()));
            self.arrange(&key);
        }
    }

    /// Gives lapsed votes to those who wait, and forgets who has waited enough.
    pub fn wake(&mut self, now: Now, rank_of: &dyn Fn(&Name) -> Option<Rank>, out: &mut LeaseOut) {
        let before = self.base.mark;
        while let Some((_, key)) = self.due.first().filter(|(at, _)| *at <= now.mono).cloned() {
            let rank = match key.space {
                super::Space::Lease => None,
                super::Space::Object => rank_of(&key.name),
            };
            self.serve(now, &key, rank, out);
            self.arrange(&key);
        }
        self.tell_mark(before, out);
    }

    fn tell_mark(&mut self, before: Token, out: &mut LeaseOut) {
        out.lasts = out.lasts.max(self.base.lasts.take());
        if self.base.mark > before && !self.base.config.rules.has(Plant::MarkUnwritten) {
            out.mark = Some(self.base.mark);
        }
    }

    /// Answers a request for the vote; none if it is answered later.
    fn attempt(
        &mut self,
        now: Now,
        link: LinkId,
        key: &LeaseKey,
        asked: &Try,
        rank: Option<Rank>,
        out: &mut LeaseOut,
    ) -> Option<LeaseAnswer> {
        if let Some(refusal) = self.base.refusal(now, key, asked) {
            return Some(LeaseAnswer::Refused(refusal));
        }
        if now.mono < self.base.opens {
            return Some(LeaseAnswer::Locked {
                queued: false,
                remaining: self.base.opens.since(now.mono),
                token: self.base.floor,
                rank,
            });
        }
        // Those who wait come first, also when their wake-up is late.
        self.serve(now, key, rank, out);
        if self.votes.get(key).is_none() {
            if self.votes.len() >= self.base.config.leases_max && !self.forget_one(now) {
                return Some(LeaseAnswer::Refused(LeaseRefusal::Full));
            }
            let token = self.base.floor;
            self.votes.insert(key.clone(), Lease::new(token));
        }
        let lease = self
            .votes
            .get_mut(key)
            .expect("invariant: it was there or just put there");
        if !self.base.locked(now, lease, asked) {
            return Some(self.base.grant(now, lease, asked, Duration::ZERO, rank));
        }
        let queued = self.enqueue(now, link, key, asked);
        let lease = self.votes.get(key).expect("invariant: just found");
        if queued && self.base.config.rules.paper {
            return None;
        }
        Some(lease.locked(now, queued, rank))
    }

    /// Keeps a request until the vote is free; `false` if it does not want that or there are too
    /// many.
    fn enqueue(&mut self, now: Now, link: LinkId, key: &LeaseKey, asked: &Try) -> bool {
        let lease = self.votes.get_mut(key).expect("invariant: it is locked");
        let same = |waiter: &Waiter| waiter.asked.attempt == asked.attempt;
        if let Some(known) = lease.waiting.iter_mut().find(|waiter| same(waiter)) {
            let old = known.link;
            // A repeated request counts from when it came first; a new round from now.
            if known.asked.sub < asked.sub {
                known.since = now.mono;
                known.asked = *asked;
            }
            known.link = link;
            let moved = lease.waiting.iter().all(|waiter| waiter.link != old);
            if moved {
                self.links.remove(&(old, key.clone()));
            }
            self.links.insert((link, key.clone()));
            return true;
        }
        let room =
            lease.waiting.len() < self.base.config.waiting_max && self.waiting < WAITING_IN_ALL_MAX;
        if asked.patience.is_zero() || !room {
            return false;
        }
        lease.waiting.push(Waiter {
            link,
            asked: *asked,
            since: now.mono,
        });
        self.links.insert((link, key.clone()));
        true
    }

    fn release(
        &mut self,
        now: Now,
        key: &LeaseKey,
        attempt: Attempt,
        secret: &Secret,
        rank: Option<Rank>,
        out: &mut LeaseOut,
    ) {
        let any = self.base.config.rules.has(Plant::ReleaseAny);
        let seal = secret.seal();
        let Some(lease) = self.votes.get_mut(key) else {
            return;
        };
        let theirs = |other: Attempt, sealed: &Seal| other == attempt && *sealed == seal;
        if lease
            .vote
            .is_some_and(|vote| any || theirs(vote.attempt, &vote.seal))
        {
            lease.vote = None;
        }
        let gone: Vec<LinkId> = lease
            .waiting
            .iter()
            .filter(|waiter| theirs(waiter.asked.attempt, &waiter.asked.seal))
            .map(|waiter| waiter.link)
            .collect();
        lease
            .waiting
            .retain(|waiter| !theirs(waiter.asked.attempt, &waiter.asked.seal));
        for link in gone {
            self.unlink(link, key);
        }
        self.serve(now, key, rank, out);
    }

    fn renew(
        &mut self,
        now: Now,
        key: &LeaseKey,
        attempt: Attempt,
        secret: &Secret,
        rank: Option<Rank>,
    ) -> LeaseAnswer {
        let free = LeaseAnswer::Free {
            held: Duration::ZERO,
            rank,
        };
        let broken = self.base.config.rules.has(Plant::RenewRegranted);
        let Some(lease) = self.votes.get_mut(key) else {
            return Lease::new(self.base.floor).locked(now, false, rank);
        };
        match &mut lease.vote {
            Some(vote) if vote.attempt == attempt && vote.seal == secret.seal() => {
                vote.given = now.mono;
                self.base.lasts = self.base.lasts.max(Some(vote.lasts));
                free
            }
            Some(_) if broken => free,
            _ => lease.locked(now, false, rank),
        }
    }

    /// Gives the vote to whoever waits longest, if it has lapsed.
    fn serve(&mut self, now: Now, key: &LeaseKey, rank: Option<Rank>, out: &mut LeaseOut) {
        let Self {
            votes, base, links, ..
        } = self;
        let Some(lease) = votes.get_mut(key) else {
            return;
        };
        if lease.waiting.is_empty() {
            return;
        }
        let mut left: Vec<LinkId> = Vec::new();
        lease.waiting.retain(|waiter| {
            let stays = base.config.rules.paper || waiter.gives_up() > now.mono;
            if !stays {
                left.push(waiter.link);
            }
            stays
        });
        while lease.free(now.mono) {
            let Some(best) = base.best(now, lease) else {
                break;
            };
            let waiter = lease.waiting.swap_remove(best);
            left.push(waiter.link);
            let held = now.mono.since(waiter.since);
            let answer = base.grant(now, lease, &waiter.asked, held, rank);
            out.answers.push(waiter.reply(key, answer));
            if base.config.rules.paper {
                // As published, everybody else is sent away.
                for waiter in std::mem::take(&mut lease.waiting) {
                    left.push(waiter.link);
                    let answer = lease.locked(now, false, rank);
                    out.answers.push(waiter.reply(key, answer));
                }
            }
        }
        for link in left {
            if lease.waiting.iter().all(|waiter| waiter.link != link) {
                links.remove(&(link, key.clone()));
            }
        }
    }

    fn unlink(&mut self, link: LinkId, key: &LeaseKey) {
        let lease = self.votes.get(key);
        if lease.is_none_or(|lease| lease.waiting.iter().all(|waiter| waiter.link != link)) {
            self.links.remove(&(link, key.clone()));
        }
    }

    /// Forgets the name whose vote has lapsed first; its token becomes everybody's floor.
    fn forget_one(&mut self, now: Now) -> bool {
        let Some((_, key)) = self.idle.first().filter(|(at, _)| *at <= now.mono).cloned() else {
            return false;
        };
        self.idle.pop_first();
        if let Some(lease) = self.votes.remove(&key) {
            self.base.floor = self.base.floor.max(lease.token);
        }
        true
    }

    /// Puts a lease where it belongs in the order of times.
    fn arrange(&mut self, key: &LeaseKey) {
        let Some(lease) = self.votes.get_mut(key) else {
            return;
        };
        self.waiting = self.waiting - lease.counted + lease.waiting.len();
        lease.counted = lease.waiting.len();
        let lapses = lease.vote.map_or(Instant::ZERO, |vote| vote.lapses());
        let gives_up = lease.waiting.iter().map(Waiter::gives_up).min();
        let place = match gives_up {
            None => (lapses, false),
            Some(at) => (at.min(lapses), true),
        };
        if lease.place == Some(place) {
            return;
        }
        let old = lease.place.replace(place);
        if let Some((at, waited_for)) = old {
            let times = if waited_for {
                &mut self.due
            } else {
                &mut self.idle
            };
            times.remove(&(at, key.clone()));
        }
        let times = if place.1 {
            &mut self.due
        } else {
            &mut self.idle
        };
        times.insert((place.0, key.clone()));
    }
}

impl Base {
    /// Why a request is refused whatever the state of the lease is.
    fn refusal(&self, now: Now, key: &LeaseKey, asked: &Try) -> Option<LeaseRefusal> {
        let name = key.name.bytes().len();
        if name == 0 || name > self.config.name_max {
            return Some(LeaseRefusal::Name);
        }
        if asked.span.is_zero() || asked.span > self.config.span_max {
            return Some(LeaseRefusal::Span);
        }
        if asked.token.0 > now.wall.plus(TOKEN_AHEAD).0 {
            return Some(LeaseRefusal::TokenTooFar);
        }
        None
    }

    /// How long a vote for this span lasts.
    fn lasts(&self, span: Duration) -> Duration {
        let rules = self.config.rules;
        if rules.has(Plant::BareSpan) {
            return span;
        }
        if rules.has(Plant::ShortVote) {
            return span + self.config.delay * 19 / 10;
        }
        self.config.vote(span)
    }

    /// Whether somebody else has the vote.
    fn locked(&self, now: Now, lease: &Lease, asked: &Try) -> bool {
        let Some(vote) = &lease.vote else {
            return false;
        };
        if !self.config.rules.paper && vote.is_of(asked) {
            return false;
        }
        let lasts = if self.config.rules.has(Plant::RequesterSpan) {
            self.lasts(asked.span)
        } else {
            vote.lasts
        };
        now.mono.since(vote.given) <= lasts
    }

    /// Gives the vote, which is free or this attempt's, unless the token has been overtaken.
    fn grant(
        &mut self,
        now: Now,
        lease: &mut Lease,
        asked: &Try,
        held: Duration,
        rank: Option<Rank>,
    ) -> LeaseAnswer {
        let paper = self.config.rules.paper;
        let own = lease.vote.filter(|vote| !paper && vote.is_of(asked));
        if let Some(vote) = own {
            if asked.sub == vote.sub {
                // The question came twice: the vote was given when it came first.
                let held = vote.held;
                return LeaseAnswer::Free { held, rank };
            }
            if asked.sub < vote.sub {
                return LeaseAnswer::Stale { token: lease.token };
            }
        }
        let checked = !paper && !self.config.rules.has(Plant::TokenUnchecked);
        if checked && asked.token <= lease.token {
            return LeaseAnswer::Stale { token: lease.token };
        }
        lease.token = lease.token.max(asked.token);
        if asked.token > self.mark {
            self.mark = Token(asked.token.0.saturating_add(MARK_AHEAD.0));
        }
        let lasts = self.lasts(asked.span);
        self.lasts = self.lasts.max(Some(lasts));
        lease.vote = Some(Vote {
            attempt: asked.attempt,
            sub: asked.sub,
            seal: asked.seal,
            given: now.mono,
            lasts,
            held,
        });
        LeaseAnswer::Free { held, rank }
    }

    /// Who of those that wait is next: whoever has waited longest.
    fn best(&self, now: Now, lease: &Lease) -> Option<usize> {
        let paper = self.config.rules.paper;
        let order = |waiter: &Waiter| {
            let here = now.mono.since(waiter.since);
            let waited = waiter.asked.waited.saturating_add(here);
            let age = if paper { Duration::ZERO } else { waited };
            (Reverse(age), waiter.asked.attempt)
        };
        let waiting = lease.waiting.iter().enumerate();
        let best = waiting.min_by_key(|(_, waiter)| order(waiter));
        best.map(|(index, _)| index)
    }
}

impl Lease {
    fn new(token: Token) -> Self {
        Self {
            vote: None,
            token,
            waiting: Vec::new(),
            place: None,
            counted: 0,
        }
    }

    fn free(&self, now: Instant) -> bool {
        self.vote.is_none_or(|vote| now >= vote.lapses())
    }

    fn locked(&self, now: Now, queued: bool, rank: Option<Rank>) -> LeaseAnswer {
        let lapses = self.vote.map_or(Instant::ZERO, |vote| vote.lapses());
        LeaseAnswer::Locked {
            queued,
            remaining: lapses.since(now.mono),
            token: self.token,
            rank,
        }
    }
}

impl Vote {
    /// Whether the vote was given to the attempt that asks. An attempt that only has the number
    /// of another one has not its seal.
    fn is_of(&self, asked: &Try) -> bool {
        self.attempt == asked.attempt && self.seal == asked.seal
    }
}

impl Waiter {
    fn reply(&self, key: &LeaseKey, answer: LeaseAnswer) -> (LinkId, LeaseKey, LeaseReply) {
        let reply = LeaseReply {
            attempt: self.asked.attempt,
            sub: self.asked.sub,
            answer,
        };
        (self.link, key.clone(), reply)
    }
}
