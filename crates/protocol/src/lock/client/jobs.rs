//! What a caller asked for by one key: one lock, or several taken together.

use std::collections::VecDeque;
use std::sync::Arc;

use super::LockClient;
use super::request::{Phase, Requester};
use crate::id::Key;
use crate::lock::api::{Acquire, ClientEffects, ClientEvent, Ended};
use crate::lock::message::Refusal;

/// The requests of a key, in the order of their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    places: Vec<u32>,
    rest: VecDeque<Acquire>,
    set: bool,
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
        set: bool,
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
        } else if torn || set && wishes.iter().any(|wish| wish.detach.is_some()) {
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
        let job = Job {
            places: Vec::with_capacity(wishes.len()),
            rest: wishes.into(),
            set,
        };
        self.jobs.insert(key, job);
        self.begin_next(key, out);
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

    pub(super) fn entered_one(&mut self, key: Key, out: &mut ClientEffects) {
        if !self.begin_next(key, out) && self.jobs.get(&key).is_some_and(|job| job.set) {
            out.events.push(ClientEvent::EnteredAll(key));
        }
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
        let places = self.jobs.get(&key).map(|job| job.places.clone());
        for place in places.unwrap_or_default() {
            let Some(request) = self.requests.get_mut(place) else {
                continue;
            };
            request.note = Some(note.clone());
            request.edition = request.edition.saturating_add(1);
            if matches!(request.phase, Phase::Inside(_)) {
                let nodes = self.counted_members(place);
                let nodes: Vec<_> = nodes.into_iter().map(|(node, _)| node).collect();
                self.announce_hold(place, &nodes, out);
            }
        }
    }
}
