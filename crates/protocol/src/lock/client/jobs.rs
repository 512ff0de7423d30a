//! What a caller asked for by one key: one lock, several taken together, or any one of several.
//!
//! Any one of several: one of them is tried first, so that a caller who finds a free one costs no
//! more than one request. Only if somebody is in the way there are all asked for at once, and the
//! step that enters one of them leaves all others: a key never holds two.

use std::collections::VecDeque;
use std::sync::Arc;

use super::LockClient;
use super::request::{Phase, Requester};
use crate::id::Key;
use crate::lock::api::{Acquire, ClientEffects, ClientEvent, Ended};
use crate::lock::message::Refusal;
use crate::lock::plant::Plant;

/// How many of the locks named by one key are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// The only one.
    One,
    /// All of them, or none.
    All,
    /// Any one.
    Any,
}

/// The requests of a key, in the order of their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    places: Vec<u32>,
    rest: VecDeque<Acquire>,
    set: bool,
    /// While any of several may still be entered.
    choice: Option<Choice>,
}

/// Any one of several, none of them entered yet.
#[derive(Clone, Debug, Default)]
struct Choice {
    /// What to ask for if the first is taken.
    others: Vec<Acquire>,
    /// Whether somebody was in the way of one that was only tried.
    busy: bool,
    /// The place in the queue that the caller was told.
    told: Option<u32>,
}

impl Job {
    pub(super) fn places(&self) -> &[u32] {
        &self.places
    }
}

impl LockClient {
    pub(super) fn acquire(
        &mut self,
        key: Key,
        mut wishes: Vec<Acquire>,
        want: Want,
        out: &mut ClientEffects,
    ) {
        if self.knows(key) {
            return;
        }
        // One order for all callers: two sets never wait for each other.
        wishes.sort_by(|a, b| a.name.cmp(&b.name));
        let before = wishes.len();
        wishes.dedup_by(|b, a| a.name == b.name && a.mode == b.mode);
        let torn = wishes.windows(2).any(|pair| pair[0].name == pair[1].name);
        let refusal = if wishes.is_empty() || before > self.config.limits.together {
            Some(Refusal::Size)
        } else if torn || want == Want::All && wishes.iter().any(|wish| wish.detach.is_some()) {
            Some(Refusal::Unfit)
        } else {
            wishes.iter().find_map(|wish| self.check_wish(wish).err())
        };
        if let Some(why) = refusal {
            out.events
                .push(ClientEvent::Ended(key, Ended::Refused(why)));
            return;
        }
        if !self.troubled.is_empty() {
            self.look_after_troubled(out);
        }
        let mut job = Job {
            places: Vec::with_capacity(wishes.len()),
            rest: wishes.into(),
            set: want == Want::All,
            choice: None,
        };
        if want == Want::Any && job.rest.len() > 1 {
            self.try_one(&mut job);
        }
        self.jobs.insert(key, job);
        self.begin_next(key, out);
    }

    /// Leaves one of several to be tried first. Clients choose by chance, so that they seldom
    /// meet; who comes back under a name of its own finds what it may still hold.
    fn try_one(&mut self, job: &mut Job) {
        let others: Vec<Acquire> = std::mem::take(&mut job.rest).into();
        let named = others.first().and_then(|wish| wish.detach);
        let named = named.filter(|(_, named)| *named);
        let count = others.len();
        let first = named.map_or_else(
            || self.rng.below(count),
            |(session, _)| (session.0 % count as u128) as usize,
        );
        let mut wish = others[first].clone();
        wish.attempt = true;
        job.rest.push_back(wish);
        job.choice = Some(Choice {
            others,
            ..Choice::default()
        });
    }

    /// Lets a request that is already in place be known by its key.
    pub(super) fn add_job(&mut self, key: Key, place: u32) {
        let job = Job {
            places: vec![place],
            ..Job::default()
        };
        self.jobs.insert(key, job);
    }

    /// Starts the next lock of a set; `false` if there is none.
    fn begin_next(&mut self, key: Key, out: &mut ClientEffects) -> bool {
        let next = self.jobs.get_mut(&key).and_then(|job| job.rest.pop_front());
        let Some(wish) = next else { return false };
        let place = self.begin(key, wish, out);
        if let Some(job) = self.jobs.get_mut(&key) {
            job.places.push(place);
        }
        true
    }

    pub(super) fn entered_one(&mut self, key: Key, place: u32, out: &mut ClientEffects) {
        self.leave_others(key, place, out);
        if !self.begin_next(key, out) && self.jobs.get(&key).is_some_and(|job| job.set) {
            out.events.push(ClientEvent::EnteredAll(key));
        }
    }

    /// One of several is entered: the others are not wanted any more.
    fn leave_others(&mut self, key: Key, place: u32, out: &mut ClientEffects) {
        if self.config.rules.has(Plant::KeepsOtherSlots) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        if job.choice.take().is_none() {
            return;
        }
        let others = std::mem::replace(&mut job.places, vec![place]);
        for other in others.into_iter().filter(|other| *other != place) {
            self.leave_all(other, None, out);
            self.requests.remove(other);
        }
    }

    /// A request outside cannot go on: with it ends what its key asked for, unless another one
    /// of several may still be entered.
    pub(super) fn fail_one(&mut self, place: u32, ended: Ended, out: &mut ClientEffects) {
        let Some(key) = self.requests.get(place).map(|request| request.key) else {
            return;
        };
        let choice = self.jobs.get_mut(&key).and_then(|job| job.choice.as_mut());
        let Some(choice) = choice.filter(|_| ended != Ended::TimedOut) else {
            self.fail(key, ended, out);
            return;
        };
        choice.busy |= ended == Ended::Busy;
        let busy = choice.busy;
        let others = std::mem::take(&mut choice.others);
        self.leave_all(place, None, out);
        for wish in others {
            let place = self.begin(key, wish, out);
            if let Some(job) = self.jobs.get_mut(&key) {
                job.places.push(place);
            }
        }
        self.requests.remove(place);
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        job.places.retain(|other| *other != place);
        if job.places.is_empty() {
            let ended = if busy { Ended::Busy } else { ended };
            self.fail(key, ended, out);
        }
    }

    /// A node said how many are before a request. Who would take any of several is told of the
    /// shortest queue.
    pub(super) fn tell_position(&mut self, key: Key, position: u32, out: &mut ClientEffects) {
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let Some(choice) = &job.choice else {
            out.events.push(ClientEvent::Position(key, position));
            return;
        };
        if !choice.others.is_empty() {
            // Only one was tried; the rest is asked next.
            return;
        }
        let waits = job.places.iter().filter_map(|place| {
            let request = self.requests.get(*place)?;
            request.told_to_wait.then_some(request.position)
        });
        let least = waits.min();
        if least == choice.told {
            return;
        }
        if let Some(choice) = self.jobs.get_mut(&key).and_then(|job| job.choice.as_mut()) {
            choice.told = least;
        }
        out.events
            .extend(least.map(|least| ClientEvent::Position(key, least)));
    }

    /// A lock was lost. A set that was not complete is given up; a complete one keeps its rest.
    pub(super) fn lost_one(&mut self, key: Key, place: u32, out: &mut ClientEffects) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        job.places.retain(|other| *other != place);
        let empty = job.places.is_empty();
        let complete = job.rest.is_empty();
        let inside = |place: &u32| {
            let request = self.requests.get(*place);
            request.is_some_and(|request| request.token().is_some())
        };
        let job = self.jobs.get(&key).expect("invariant: just seen");
        if !complete || !job.places.iter().all(inside) {
            self.fail(key, Ended::NotHeld, out);
        } else if empty {
            self.jobs.remove(&key);
        }
    }

    /// Ends everything of a key.
    pub(super) fn fail(&mut self, key: Key, ended: Ended, out: &mut ClientEffects) {
        let Some(job) = self.jobs.remove(&key) else {
            return;
        };
        for place in job.places {
            let token = self.requests.get(place).and_then(Requester::token);
            self.leave_all(place, token, out);
            self.requests.remove(place);
        }
        out.events.push(ClientEvent::Ended(key, ended));
    }

    /// Whether every lock of the key is held.
    fn complete(&self, key: Key) -> bool {
        self.jobs.get(&key).is_some_and(|job| {
            job.rest.is_empty()
                && job.places.iter().all(|place| {
                    let request = self.requests.get(*place);
                    request.is_some_and(|request| request.token().is_some())
                })
        })
    }

    pub(super) fn cancel(&mut self, key: Key, out: &mut ClientEffects) {
        self.end_watch(key, Ended::Cancelled, out);
        if !self.complete(key) {
            self.fail(key, Ended::Cancelled, out);
        }
    }

    pub(super) fn release(&mut self, key: Key, out: &mut ClientEffects) {
        self.end_watch(key, Ended::Cancelled, out);
        let ended = if self.complete(key) {
            Ended::Released
        } else {
            Ended::Cancelled
        };
        self.fail(key, ended, out);
    }

    pub(super) fn set_note(&mut self, key: Key, note: &Arc<[u8]>, out: &mut ClientEffects) {
        if note.len() > self.config.limits.note_bytes {
            return;
        }
        let job = self.jobs.get_mut(&key);
        let places = job.map(|job| {
            let others = job.choice.iter_mut().flat_map(|choice| &mut choice.others);
            others.for_each(|wish| wish.note = Some(note.clone()));
            job.places.clone()
        });
        for place in places.unwrap_or_default() {
            let Some(request) = self.requests.get_mut(place) else {
                continue;
            };
            request.note = Some(note.clone());
            request.edition = request.edition.saturating_add(1);
            if matches!(request.phase, Phase::Inside(_)) {
                let told = request.members.iter().filter(|it| request.is_told(it));
                let nodes: Vec<_> = told.map(|member| member.node).collect();
                self.announce_hold(place, &nodes, false, out);
            }
        }
    }
}
