//! What a node's keeper writes to disk, and what that adds up to.
//!
//! Whatever rests on a record leaves the node only once the record is on disk. No record is much
//! larger than a page: a state that does not follow from what is there is written in pages first.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::{Name, Token};
use crate::object::record::{Assembled, Assembly, How, RecordError, StoredObject};
use crate::object::{Page, Proof, Rank, Stamp, State};

/// One write. Writes reach the disk in order; a crash loses those not yet on disk, from some
/// point on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperRecord {
    /// From here on the store is whole: the node may serve with it.
    Opened,
    /// No lease with a larger token was voted for.
    Mark(Token),
    /// No vote for a lease that lasts longer can be outstanding.
    Span(Duration),
    /// An object's largest rank, by a get.
    Rank {
        /// The object.
        object: Name,
        /// The rank.
        rank: Rank,
        /// The number of the get.
        nonce: Option<u64>,
        /// The rank's signature.
        proof: Proof,
    },
    /// A part of a state that the next record of this object needs.
    Page {
        /// The object.
        object: Name,
        /// Which state.
        stamp: Stamp,
        /// The part.
        page: Page,
    },
    /// A proposed state, and the largest rank.
    Proposed {
        /// The object.
        object: Name,
        /// Its rank.
        rank: Rank,
        /// Which state.
        stamp: Stamp,
        /// What it is.
        how: How,
        /// The rank's signature.
        proof: Proof,
    },
    /// A committed state, and the largest rank.
    Committed {
        /// The object.
        object: Name,
        /// Its rank.
        rank: Rank,
        /// Which state.
        stamp: Stamp,
        /// What it is.
        how: How,
        /// The rank's signature.
        proof: Proof,
    },
    /// A committed state that enough other nodes vouched for. Ranks and proposals stay.
    Adopted {
        /// The object.
        object: Name,
        /// Which state.
        stamp: Stamp,
        /// What it is.
        how: How,
    },
    /// A state that the node ordered anew after it lost its disk: committed and proposed under
    /// the rank, which is the largest.
    Restored {
        /// The object.
        object: Name,
        /// Its rank.
        rank: Rank,
        /// Which state.
        stamp: Stamp,
        /// What it is.
        how: How,
        /// The rank's signature.
        proof: Proof,
    },
}

/// What the records add up to.
#[derive(Clone, Debug)]
pub struct KeeperStored {
    /// Whether the store is whole. If not, the node was starting anew when it stopped.
    pub open: bool,
    /// No lease with a larger token was voted for.
    pub mark: Token,
    /// No vote for a lease that lasts longer can be outstanding.
    pub span: Duration,
    /// The objects.
    pub objects: BTreeMap<Name, StoredObject>,
    empty: State,
    pages: Option<(Name, Assembly)>,
}

impl Default for KeeperStored {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for KeeperStored {
    /// Pages that nothing has used yet do not count: a crash may leave them behind.
    fn eq(&self, other: &Self) -> bool {
        (self.open, self.mark, self.span) == (other.open, other.mark, other.span)
            && self.objects == other.objects
    }
}

impl KeeperStored {
    /// What an empty disk holds.
    pub fn new() -> Self {
        Self {
            open: false,
            mark: Token(0),
            span: Duration::ZERO,
            objects: BTreeMap::new(),
            empty: State::new(),
            pages: None,
        }
    }

    /// Adds one record. A record that does not fit changes nothing and tells that the disk is
    /// damaged.
    pub fn apply(&mut self, record: &KeeperRecord) -> Result<(), RecordError> {
        match record {
            KeeperRecord::Opened => self.open = true,
            KeeperRecord::Mark(mark) => self.mark = self.mark.max(*mark),
            KeeperRecord::Span(span) => self.span = *span,
            KeeperRecord::Rank {
                object,
                rank,
                nonce,
                proof,
            } => {
                let kept = self.object(object);
                if *rank < kept.max {
                    return Err(RecordError);
                }
                kept.max = *rank;
                kept.nonce = *nonce;
                kept.proof.clone_from(proof);
            }
            KeeperRecord::Page {
                object,
                stamp,
                page,
            } => return self.page(object, *stamp, page),
            KeeperRecord::Proposed {
                object,
                rank,
                stamp,
                how,
                proof,
            } => {
                let state = self.state(object, *stamp, how)?;
                self.object(object).propose(*rank, state, proof);
            }
            KeeperRecord::Committed {
                object,
                rank,
                stamp,
                how,
                proof,
            } => {
                let state = self.state(object, *stamp, how)?;
                self.object(object).commit(*rank, state, proof);
            }
            KeeperRecord::Adopted { object, stamp, how } => {
                self.object(object).committed = self.state(object, *stamp, how)?;
            }
            KeeperRecord::Restored {
                object,
                rank,
                stamp,
                how,
                proof,
            } => {
                let state = self.state(object, *stamp, how)?;
                self.object(object).restore(*rank, state, proof);
            }
        }
        Ok(())
    }

    fn object(&mut self, name: &Name) -> &mut StoredObject {
        let empty = &self.empty;
        self.objects
            .entry(name.clone())
            .or_insert_with(|| StoredObject::new(empty))
    }

    fn page(&mut self, object: &Name, stamp: Stamp, page: &Page) -> Result<(), RecordError> {
        let same = |(name, assembly): &(Name, Assembly)| {
            name == object && assembly.stamp() == stamp && !assembly.restarts(page)
        };
        if !self.pages.as_ref().is_some_and(same) {
            self.pages = Some((object.clone(), Assembly::new(stamp)));
        }
        let Some((_, assembly)) = &mut self.pages else {
            return Err(RecordError);
        };
        match assembly.add(page, usize::MAX) {
            Assembled::False => Err(RecordError),
            Assembled::More | Assembled::Whole => Ok(()),
        }
    }

    fn state(&mut self, object: &Name, stamp: Stamp, how: &How) -> Result<State, RecordError> {
        let kept = self.object(object);
        let state = match how {
            How::Held => kept.held(stamp).cloned(),
            How::Carry(carry) => kept.carried(carry, usize::MAX).map(|(state, _)| state),
            How::Pages => match self.pages.take() {
                Some((name, pages)) if name == *object => pages.whole().cloned(),
                _ => None,
            },
        };
        state
            .filter(|state| state.stamp() == stamp)
            .ok_or(RecordError)
    }

    /// The fewest records that lead to the same, with pages of about so many bytes.
    pub fn records(&self, page_bytes: usize) -> impl Iterator<Item = KeeperRecord> + use<'_> {
        let head = [KeeperRecord::Mark(self.mark), KeeperRecord::Span(self.span)];
        let objects = self
            .objects
            .iter()
            .flat_map(move |(name, kept)| records_of(name, kept, page_bytes));
        // The last, so that a snapshot that was cut off is not taken for a whole one.
        let tail = self.open.then_some(KeeperRecord::Opened);
        head.into_iter().chain(objects).chain(tail)
    }
}

/// The records that lead to an object.
fn records_of<'a>(
    name: &'a Name,
    kept: &'a StoredObject,
    bytes: usize,
) -> impl Iterator<Item = KeeperRecord> + use<'a> {
    let committed = kept.committed.clone();
    let fresh = committed.version() == 0;
    let commit = KeeperRecord::Committed {
        object: name.clone(),
        rank: kept.committer,
        stamp: committed.stamp(),
        how: if fresh { How::Held } else { How::Pages },
        proof: None,
    };
    let same = kept.proposed == committed;
    let propose = KeeperRecord::Proposed {
        object: name.clone(),
        rank: kept.proposer,
        stamp: kept.proposed.stamp(),
        how: if same { How::Held } else { How::Pages },
        proof: None,
    };
    let rank = KeeperRecord::Rank {
        object: name.clone(),
        rank: kept.max,
        nonce: kept.nonce,
        proof: kept.proof.clone(),
    };
    let pages = (!fresh)
        .then(|| paged(name, &committed, bytes))
        .into_iter()
        .flatten();
    let commit = (!fresh || kept.committer != Rank::default()).then_some(commit);
    let proposed = (!same)
        .then(|| paged(name, &kept.proposed, bytes))
        .into_iter()
        .flatten();
    // A proposal of the empty state by rank 0 is what an object begins with.
    let empty = same && fresh && kept.proposer == Rank::default();
    let propose = (!empty).then_some(propose);
    pages
        .chain(commit)
        .chain(proposed)
        .chain(propose)
        .chain([rank])
}

/// The pages of a state as records.
pub(crate) fn paged(
    object: &Name,
    state: &State,
    bytes: usize,
) -> impl Iterator<Item = KeeperRecord> + use<> {
    let (object, stamp) = (object.clone(), state.stamp());
    state.pages(bytes).map(move |page| KeeperRecord::Page {
        object: object.clone(),
        stamp,
        page,
    })
}
