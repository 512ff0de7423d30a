//! Get, propose and commit: what a node takes under which rank.

use super::{Entry, ObjectOut, ObjectServer};
use crate::id::{LinkId, Name};
use crate::keeper::KeeperRecord;
use crate::keeper::record::paged;
use crate::object::message::{Carry, ObjectRefusal, ObjectTell, Phase, Proof, Rank};
use crate::object::plant::Plant;
use crate::object::record::{How, Step};
use crate::object::sign::PROOF_MAX;
use crate::object::state::{Stamp, State};
use crate::time::Now;

/// Who asks, about what.
type At<'a> = (LinkId, &'a Name);

/// A state that a node is to take, and how it came by it.
struct Found {
    state: State,
    how: How,
    /// The way to it from the committed state, if it is known.
    way: Option<Vec<Step>>,
}

/// Why a node cannot take a state.
enum Lacking {
    /// It needs more to make it.
    State,
    /// It would not take it anyway.
    Never(ObjectRefusal),
}

impl ObjectServer {
    /// A rank that is larger than all before is remembered, and what is held is told. Strictly
    /// larger: so no two attempts ever read under one rank.
    pub(super) fn get(
        &mut self,
        at: At<'_>,
        (rank, nonce): (Rank, u64),
        have: Option<Stamp>,
        proof: &Proof,
        out: &mut ObjectOut,
    ) {
        let (link, object) = at;
        if let Err(why) = self.signed(object, rank, proof) {
            return refuse(at, rank, Phase::Get, why, out);
        }
        let rules = self.config.rules;
        let config = self.config.clone();
        let Some(entry) = self.room(object) else {
            return refuse(at, rank, Phase::Get, ObjectRefusal::Full, out);
        };
        if rank > entry.kept.max {
            entry.kept.raise(rank, proof);
            entry.kept.nonce = Some(nonce);
            if !rules.has(Plant::ForgetRank) {
                out.records.push(KeeperRecord::Rank {
                    object: object.clone(),
                    rank,
                    nonce: Some(nonce),
                    proof: proof.clone(),
                });
            }
        } else {
            // The same question once more, because its answer was lost.
            let again = entry.kept.nonce == Some(nonce) && !rules.is_paper();
            let loose = again || rules.has(Plant::GetAtEqualRank);
            if rank < entry.kept.max || !loose {
                return outranked(at, rank, Phase::Get, entry, out);
            }
        }
        let view = Box::new(entry.view(have, &config));
        out.tell(link, object, ObjectTell::Got { rank, nonce, view });
    }

    /// A proposal is held unless a larger rank was seen.
    pub(super) fn propose(
        &mut self,
        at: At<'_>,
        rank: Rank,
        stamp: Stamp,
        carry: Option<Carry>,
        proof: &Proof,
        out: &mut ObjectOut,
    ) {
        let (link, object) = at;
        let Some(found) = self.admitted(at, (rank, Phase::Propose), (stamp, carry), proof, out)
        else {
            return;
        };
        let forgets = self.config.rules.has(Plant::ForgetRank);
        let bytes = self.config.page_bytes;
        let Some(entry) = self.entries.get_mut(object) else {
            return;
        };
        let again = entry.kept.proposer == rank && entry.kept.proposed.stamp() == stamp;
        if !again {
            if !forgets {
                put_down(object, &found, bytes, out);
                out.records.push(KeeperRecord::Proposed {
                    object: object.clone(),
                    rank,
                    stamp,
                    how: found.how,
                    proof: proof.clone(),
                });
            }
            let before = entry.bytes();
            entry.kept.propose(rank, found.state, proof);
            entry.way = found.way;
            self.bytes = self.bytes - before + entry.bytes();
        }
        let tell = ObjectTell::Taken {
            rank,
            phase: Phase::Propose,
            stamp,
            waiting: entry.waiting(&entry.kept.proposed),
        };
        out.tell(link, object, tell);
        self.consumed(link, object, stamp);
    }

    /// A commit is held unless a larger rank was seen; a node may commit what it never saw
    /// proposed. Whoever waits for an operation that it contains is told.
    pub(super) fn commit(
        &mut self,
        now: Now,
        at: At<'_>,
        rank: Rank,
        (stamp, carry): (Stamp, Option<Carry>),
        proof: &Proof,
        out: &mut ObjectOut,
    ) {
        let (link, object) = at;
        let Some(mut found) = self.admitted(at, (rank, Phase::Commit), (stamp, carry), proof, out)
        else {
            return;
        };
        if self.config.rules.has(Plant::ForgetRank) {
            found.how = on_disk(self.entries.get(object), &found);
        }
        let bytes = self.config.page_bytes;
        let Some(entry) = self.entries.get_mut(object) else {
            return;
        };
        let again = entry.kept.committer == rank && entry.kept.committed.stamp() == stamp;
        let tell = ObjectTell::Taken {
            rank,
            phase: Phase::Commit,
            stamp,
            waiting: entry.waiting(&found.state),
        };
        out.tell(link, object, tell);
        if again {
            return;
        }
        put_down(object, &found, bytes, out);
        out.records.push(KeeperRecord::Committed {
            object: object.clone(),
            rank,
            stamp,
            how: found.how,
            proof: proof.clone(),
        });
        let before = entry.bytes();
        let new = entry.kept.committed.stamp() != stamp;
        entry.kept.commit(rank, found.state, proof);
        if new {
            entry.committed(now, found.way, &self.config);
        }
        self.bytes = self.bytes - before + entry.bytes();
        self.consumed(link, object, stamp);
        if new {
            self.changed(object, out);
        }
    }

    /// The state that a proposal or commit is about, if the node may and can take it; else its
    /// sender is told why not.
    fn admitted(
        &mut self,
        at: At<'_>,
        (rank, phase): (Rank, Phase),
        (stamp, carry): (Stamp, Option<Carry>),
        proof: &Proof,
        out: &mut ObjectOut,
    ) -> Option<Found> {
        let (link, object) = at;
        if let Err(why) = self.signed(object, rank, proof) {
            refuse(at, rank, phase, why, out);
            return None;
        }
        let rules = self.config.rules;
        let unranked = phase == Phase::Propose && rules.has(Plant::ProposeUnranked);
        let Some(entry) = self.room(object) else {
            refuse(at, rank, phase, ObjectRefusal::Full, out);
            return None;
        };
        if rank < entry.kept.max && !unranked {
            outranked(at, rank, phase, entry, out);
            return None;
        }
        let strict = !rules.is_paper() && !rules.has(Plant::GetAtEqualRank);
        if strict && contradicts(entry, rank, stamp) {
            refuse(at, rank, phase, ObjectRefusal::Contradiction, out);
            return None;
        }
        let older = stamp.version < entry.kept.committed.version();
        if older && !rules.is_paper() && !unranked {
            refuse(at, rank, phase, ObjectRefusal::Older, out);
            return None;
        }
        match self.find(link, object, stamp, carry) {
            Ok(found) => Some(found),
            Err(Lacking::Never(why)) => {
                refuse(at, rank, phase, why, out);
                None
            }
            Err(Lacking::State) => {
                let kept = &self.entries.get(object)?.kept;
                let tell = ObjectTell::NeedState {
                    rank,
                    phase,
                    stamp,
                    committed: kept.committed.stamp(),
                    proposed: kept.proposed.stamp(),
                };
                out.tell(link, object, tell);
                None
            }
        }
    }

    /// Makes the state from what the node holds, from what came along, or from what was given.
    fn find(
        &self,
        link: LinkId,
        object: &Name,
        stamp: Stamp,
        carry: Option<Carry>,
    ) -> Result<Found, Lacking> {
        let entry = self.entries.get(object).ok_or(Lacking::State)?;
        if let Some(state) = entry.held(stamp) {
            let same = entry.kept.committed.stamp() == stamp;
            return Ok(Found {
                state: state.clone(),
                how: How::Held,
                way: if same {
                    Some(Vec::new())
                } else {
                    entry.way.clone()
                },
            });
        }
        let found = match carry.filter(|carry| entry.held(carry.base).is_some()) {
            Some(carry) => self.carried(entry, stamp, carry).map_err(Lacking::Never)?,
            None => self.given(link, object, stamp).ok_or(Lacking::State)?,
        };
        let others = self.bytes - entry.bytes();
        let most = entry.bytes().max(found.state.bytes());
        if others + most > self.config.objects_bytes {
            return Err(Lacking::Never(ObjectRefusal::Full));
        }
        Ok(found)
    }

    fn carried(&self, entry: &Entry, stamp: Stamp, carry: Carry) -> Result<Found, ObjectRefusal> {
        let most = self.config.delta_size_max;
        if carry.deltas.iter().any(|delta| delta.bytes() > most) {
            return Err(ObjectRefusal::TooLarge);
        }
        let size = self.config.object_size_max;
        let carried = entry.kept.carried(&carry, size);
        let (state, steps) = carried.ok_or(ObjectRefusal::TooLarge)?;
        if state.stamp() != stamp {
            return Err(ObjectRefusal::Contradiction);
        }
        let way = if carry.base == entry.kept.committed.stamp() {
            Some(steps)
        } else {
            entry
                .way
                .as_ref()
                .map(|way| way.iter().cloned().chain(steps).collect())
        };
        let bytes = |steps: &Vec<Step>| steps.iter().map(|step| step.delta.bytes()).sum::<usize>();
        Ok(Found {
            state,
            how: How::Carry(carry),
            way: way.filter(|way| bytes(way) <= self.config.recent_bytes),
        })
    }

    fn given(&self, link: LinkId, object: &Name, stamp: Stamp) -> Option<Found> {
        let upload = self.ports.get(&link)?.upload.as_ref()?;
        let state = upload.state(object, stamp)?.clone();
        Some(Found {
            state,
            how: How::Pages,
            way: None,
        })
    }

    fn signed(&self, object: &Name, rank: Rank, proof: &Proof) -> Result<(), ObjectRefusal> {
        if proof.as_ref().is_some_and(|proof| proof.len() > PROOF_MAX) {
            return Err(ObjectRefusal::Proof);
        }
        if !self.config.signed {
            return Ok(());
        }
        let verifier = self.verifier.as_ref().ok_or(ObjectRefusal::Proof)?;
        let valid = |proof: &std::sync::Arc<[u8]>| verifier.valid(object, rank, proof);
        let signed = proof.as_ref().is_some_and(valid);
        signed.then_some(()).ok_or(ObjectRefusal::Proof)
    }
}

/// Whether another state was taken under this very rank.
fn contradicts(entry: &Entry, rank: Rank, stamp: Stamp) -> bool {
    let kept = &entry.kept;
    let taken = [
        (kept.proposer, kept.proposed.stamp()),
        (kept.committer, kept.committed.stamp()),
    ];
    rank > Rank::default()
        && taken
            .into_iter()
            .any(|(under, other)| under == rank && other != stamp)
}

/// Writes the pages of a state that does not follow from what is on disk.
fn put_down(object: &Name, found: &Found, bytes: usize, out: &mut ObjectOut) {
    if found.how == How::Pages {
        out.records.extend(paged(object, &found.state, bytes));
    }
}

/// How a state is put down if only committed ones are on disk.
fn on_disk(entry: Option<&Entry>, found: &Found) -> How {
    let Some((entry, way)) = entry.zip(found.way.as_ref()) else {
        return How::Pages;
    };
    How::Carry(Carry {
        base: entry.kept.committed.stamp(),
        deltas: way.iter().map(|step| step.delta.clone()).collect(),
    })
}

fn refuse(at: At<'_>, rank: Rank, phase: Phase, why: ObjectRefusal, out: &mut ObjectOut) {
    out.tell(at.0, at.1, ObjectTell::Refused { rank, phase, why });
}

fn outranked(at: At<'_>, rank: Rank, phase: Phase, entry: &Entry, out: &mut ObjectOut) {
    let tell = ObjectTell::Outranked {
        rank,
        phase,
        max: entry.kept.max,
        proof: entry.kept.proof.clone(),
    };
    out.tell(at.0, at.1, tell);
}
