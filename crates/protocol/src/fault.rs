//! How many nodes may lie, and how many must answer for that.
//!
//! With n nodes of which b may lie, three sizes matter. A **free set** gives a lease: any two meet
//! in b+1 nodes, so in one that tells the truth. A **mutex quorum** allows an earlier "no": any two
//! meet in 3b+1. An **ordering quorum** carries objects: any two meet in 2b+1.

use thiserror::Error;

/// The nodes of a cluster and how many of them may lie; enough of the others for leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    nodes: usize,
    liars: usize,
}

/// How an ordering client gives up on a phase, which decides how many nodes it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Aborts {
    /// By the word of b+1 nodes alone; time-outs only help. Needs n > 6b.
    #[default]
    Vouched,
    /// By time-outs too, with ranks that grow by a bounded step. Needs n > 4b.
    Timed,
}

/// Too few nodes for so many liars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{what} with {liars} lying nodes needs at least {needed} nodes, not {nodes}; add nodes or \
     allow fewer liars"
)]
pub struct FaultError {
    /// What was asked for.
    pub what: &'static str,
    /// Nodes there are.
    pub nodes: usize,
    /// Liars asked for.
    pub liars: usize,
    /// Nodes that would do.
    pub needed: usize,
}

/// How a node was seen to differ from what enough others say. A slow or cut-off node may look
/// like some of these; none is proof of malice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lie {
    /// It tells of an older state than it must have by now.
    Stale,
    /// It tells of something that nobody else knows: a state, an operation, a result, a vote.
    Forged,
    /// It contradicts what it said before.
    Equivocating,
    /// It does not answer while enough others do.
    Silent,
    /// It names a rank or token that is far above all others.
    Huge,
}

impl Lie {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Stale,
        Self::Forged,
        Self::Equivocating,
        Self::Silent,
        Self::Huge,
    ];

    /// Its name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Forged => "forged",
            Self::Equivocating => "equivocating",
            Self::Silent => "silent",
            Self::Huge => "huge",
        }
    }
}

impl Faults {
    /// The nodes of a cluster, `liars` of which may lie; refused unless leases are possible.
    pub fn new(nodes: usize, liars: usize) -> Result<Self, FaultError> {
        enough("a lease", nodes, liars, 3)?;
        Ok(Self { nodes, liars })
    }

    /// How many nodes there are.
    pub fn nodes(self) -> usize {
        self.nodes
    }

    /// How many of them may lie.
    pub fn liars(self) -> usize {
        self.liars
    }

    /// So many equal words have one that is true among them.
    pub fn vouch(self) -> usize {
        self.liars + 1
    }

    /// So many FREE answers are a lease.
    pub fn free(self) -> usize {
        (self.nodes + self.liars + 1).div_ceil(2)
    }

    /// The size of a mutex quorum, with which a lease can be refused without waiting.
    pub fn mutex(self) -> Result<usize, FaultError> {
        enough("a mutex quorum", self.nodes, self.liars, 5)?;
        Ok((self.nodes + 3 * self.liars + 1).div_ceil(2))
    }

    /// The size of an ordering quorum.
    pub fn ordering(self, aborts: Aborts) -> Result<usize, FaultError> {
        match aborts {
            Aborts::Vouched => enough("an object", self.nodes, self.liars, 6)?,
            Aborts::Timed => enough("an object with timed aborts", self.nodes, self.liars, 4)?,
        }
        Ok((self.nodes + 2 * self.liars + 1).div_ceil(2))
    }

    /// The size of one quorum that would serve leases by the mutex rule and objects alike.
    pub fn shared(self) -> Result<usize, FaultError> {
        enough("one quorum for both", self.nodes, self.liars, 7)?;
        self.mutex()
    }
}

fn enough(what: &'static str, nodes: usize, liars: usize, times: usize) -> Result<(), FaultError> {
    let needed = liars.saturating_mul(times).saturating_add(1);
    if nodes >= needed {
        return Ok(());
    }
    Err(FaultError {
        what,
        nodes,
        liars,
        needed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// n, b, and the sizes: free, mutex, ordering, ordering with timed aborts, shared; 0 is none.
    const TABLE: &[[usize; 7]] = &[
        [4, 1, 3, 0, 0, 0, 0],
        [5, 1, 4, 0, 0, 4, 0],
        [6, 1, 4, 5, 0, 5, 0],
        [7, 1, 5, 6, 5, 5, 0],
        [8, 1, 5, 6, 6, 6, 6],
        [9, 1, 6, 7, 6, 6, 7],
        [10, 1, 6, 7, 7, 7, 7],
        [7, 2, 5, 0, 0, 0, 0],
        [9, 2, 6, 0, 0, 7, 0],
        [11, 2, 7, 9, 0, 8, 0],
        [12, 2, 8, 10, 0, 9, 0],
        [13, 2, 8, 10, 9, 9, 0],
        [15, 2, 9, 11, 10, 10, 11],
        [16, 3, 10, 13, 0, 12, 0],
        [19, 3, 12, 15, 13, 13, 0],
        [22, 3, 13, 16, 15, 15, 16],
    ];

    #[test]
    fn sizes_are_those_of_the_table() {
        for row in TABLE {
            let faults = Faults::new(row[0], row[1]).expect("enough for leases");
            let sizes = [
                faults.free(),
                faults.mutex().unwrap_or(0),
                faults.ordering(Aborts::Vouched).unwrap_or(0),
                faults.ordering(Aborts::Timed).unwrap_or(0),
                faults.shared().unwrap_or(0),
            ];
            assert_eq!(sizes, row[2..], "n={} b={}", row[0], row[1]);
        }
    }

    #[test]
    fn too_few_nodes_are_refused() {
        assert!(Faults::new(3, 1).is_err());
        assert!(Faults::new(0, 0).is_err());
        let five = Faults::new(5, 1).expect("enough for leases");
        assert_eq!(five.mutex().map_err(|error| error.needed), Err(6));
        let six = Faults::new(6, 1).expect("enough for leases");
        assert_eq!(
            six.ordering(Aborts::Vouched).map_err(|error| error.needed),
            Err(7)
        );
        let seven = Faults::new(7, 1).expect("enough for leases");
        assert_eq!(seven.shared().map_err(|error| error.needed), Err(8));
    }

    #[test]
    fn sets_meet_in_enough_nodes_and_liars_cannot_stop_them() {
        for liars in 0..5 {
            for nodes in 1..60 {
                let Ok(faults) = Faults::new(nodes, liars) else {
                    continue;
                };
                let free = faults.free();
                assert!(2 * free - nodes > liars && free <= nodes - liars);
                if let Ok(size) = faults.mutex() {
                    assert!(2 * size - nodes > 3 * liars && size <= nodes - liars);
                    assert_eq!(size - liars, free);
                }
                if let Ok(size) = faults.ordering(Aborts::Vouched) {
                    assert!(2 * size - nodes > 2 * liars && size <= nodes - 2 * liars);
                }
                if let Ok(size) = faults.ordering(Aborts::Timed) {
                    assert!(2 * size - nodes > 2 * liars && size <= nodes - liars);
                }
            }
        }
    }
}
