//! States that come from other nodes: what enough of them vouch for, and what a node ordered anew
//! after it lost its disk.

use super::{ObjectOut, ObjectServer};
use crate::id::Name;
use crate::keeper::KeeperRecord;
use crate::keeper::record::paged;
use crate::object::message::{Carry, Proof, Rank};
use crate::object::record::{How, Step};
use crate::object::state::{Stamp, State};
use crate::time::Now;

/// A state that others have, as it came over.
#[derive(Clone, Debug)]
pub enum Remedy {
    /// It follows from the committed one.
    Carry(Carry),
    /// All of it.
    Whole(State),
}

impl ObjectServer {
    /// Takes a committed state that b+1 other nodes vouch for, if it is later than the node's own
    /// and is what it is said to be. Ranks and proposals stay as they are: those are promises of
    /// this node alone.
    pub fn adopt(
        &mut self,
        now: Now,
        object: &Name,
        stamp: Stamp,
        remedy: Remedy,
        out: &mut ObjectOut,
    ) -> bool {
        let config = self.config.clone();
        let total = self.bytes;
        let Some(entry) = self.room(object) else {
            return false;
        };
        let later = stamp.version > entry.kept.committed.version();
        let found = match remedy {
            _ if !later => None,
            Remedy::Carry(carry) => {
                let from = carry.base == entry.kept.committed.stamp();
                let carried = entry.kept.carried(&carry, config.object_size_max);
                carried
                    .filter(|_| from)
                    .map(|(state, way)| (state, How::Carry(carry), Some(way)))
            }
            Remedy::Whole(state) => Some((state, How::Pages, None)),
        };
        let fits = |found: &(State, How, Option<Vec<Step>>)| {
            let bytes = found.0.bytes();
            found.0.stamp() == stamp
                && bytes <= config.object_size_max
                && total.saturating_add(bytes) <= config.objects_bytes
        };
        let Some((state, how, way)) = found.filter(fits) else {
            self.tidy(object);
            return false;
        };
        if how == How::Pages {
            out.records.extend(paged(object, &state, config.page_bytes));
        }
        out.records.push(KeeperRecord::Adopted {
            object: object.clone(),
            stamp,
            how,
        });
        let before = entry.bytes();
        entry.kept.committed = state;
        entry.committed(now, way, &config);
        self.bytes = total - before + entry.bytes();
        self.changed(object, out);
        true
    }

    /// Takes what a node that lost its disk ordered anew as a client of the others: it holds the
    /// state as it would had it been one of those who took it under this rank.
    pub fn restore(
        &mut self,
        now: Now,
        object: &Name,
        (rank, proof): (Rank, &Proof),
        state: &State,
        out: &mut ObjectOut,
    ) -> bool {
        let (config, total) = (self.config.clone(), self.bytes);
        let Some(entry) = self.room(object) else {
            return false;
        };
        if rank <= entry.kept.max || state.version() < entry.kept.committed.version() {
            return false;
        }
        let stamp = state.stamp();
        let how = match entry.kept.held(stamp) {
            Some(_) => How::Held,
            None => How::Pages,
        };
        if how == How::Pages {
            out.records.extend(paged(object, state, config.page_bytes));
        }
        out.records.push(KeeperRecord::Restored {
            object: object.clone(),
            rank,
            stamp,
            how,
            proof: proof.clone(),
        });
        let before = entry.bytes();
        entry.kept.restore(rank, state.clone(), proof);
        entry.committed(now, None, &config);
        self.bytes = total - before + entry.bytes();
        self.changed(object, out);
        true
    }

    /// Forgets most of how a committed state came about, because every node has it; clients that
    /// are a little behind are still told the rest.
    pub fn settled(&mut self, object: &Name, stamp: Stamp) {
        if let Some(entry) = self.entries.get_mut(object)
            && entry.kept.committed.stamp() == stamp
        {
            entry.trim(self.config.page_bytes);
        }
    }
}
