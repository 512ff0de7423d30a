//! One order of all operations on the ledger: each is done at most once and only if submitted, its
//! result is its place, what was answered stays, and whatever was answered before another was
//! submitted comes before it.

use std::collections::BTreeMap;

use conclave_protocol::id::NodeId;
use conclave_protocol::object::State;

use super::{Chain, broken};
use crate::fact::{True, Violation};
use crate::object::kinds::{Entry, Ledger, Placed};

const PROPERTY: &str = "order";

/// An operation as its client knows it.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// Everything below this place came before it was submitted.
    floor: u64,
    placed: Option<Placed>,
}

/// The order of the ledger's operations.
#[derive(Debug, Default)]
pub struct Order {
    chain: Chain,
    asked: BTreeMap<(u32, u32), Asked>,
    /// What is at each place, from the longest ledger seen.
    ledger: Vec<(Entry, Placed)>,
    places: BTreeMap<(u32, u32), u64>,
    /// Whatever is submitted now comes at this place or later.
    floor: u64,
    /// The largest version that a read was answered with.
    read_version: u64,
    /// Reads whose versions no correct node had committed yet: version, count and time.
    early: Vec<(u64, u64, True)>,
    counts: BTreeMap<u64, u64>,
}

/// What must be known of a read when it begins.
#[derive(Clone, Copy, Debug)]
pub struct ReadMark {
    floor: u64,
    version: u64,
}

impl Order {
    /// A client submits an operation.
    pub fn submitted(&mut self, entry: Entry) {
        let floor = self.floor;
        let asked = Asked {
            floor,
            placed: None,
        };
        self.asked.insert((entry.client, entry.number), asked);
    }

    /// A client was told what came of it.
    pub fn answered(&mut self, at: True, entry: Entry, placed: Placed) -> Result<(), Violation> {
        let key = (entry.client, entry.number);
        let Some(asked) = self.asked.get_mut(&key) else {
            return Err(broken(
                PROPERTY,
                at,
                format!("{entry:?} was never submitted"),
            ));
        };
        asked.placed = Some(placed);
        if placed.place < asked.floor {
            let what = format!(
                "{entry:?} is at place {}, but place {} was answered before it was submitted",
                placed.place,
                asked.floor - 1
            );
            return Err(broken(PROPERTY, at, what));
        }
        self.floor = self.floor.max(placed.place + 1);
        if let Some(there) = self.ledger.get(placed.place as usize)
            && *there != (entry, placed)
        {
            let what = format!("{entry:?} was told {placed:?}, but there is {there:?}");
            return Err(broken(PROPERTY, at, what));
        }
        Ok(())
    }

    /// A read begins.
    pub fn reading(&self) -> ReadMark {
        ReadMark {
            floor: self.floor,
            version: self.read_version,
        }
    }

    /// A read has told how many entries there are, at which version.
    pub fn read(
        &mut self,
        at: True,
        mark: ReadMark,
        version: u64,
        count: u64,
    ) -> Result<(), Violation> {
        if count < mark.floor || version < mark.version {
            let what = format!(
                "a read tells {count} entries at version {version}, but {} entries and version {} \
                 were known before it began",
                mark.floor, mark.version
            );
            return Err(broken("fresh-reads", at, what));
        }
        self.floor = self.floor.max(count);
        self.read_version = self.read_version.max(version);
        self.early.push((version, count, at));
        Ok(())
    }

    /// A correct node has committed a state of the ledger.
    pub fn committed(&mut self, at: True, node: NodeId, state: &State) -> Result<(), Violation> {
        self.chain.committed(at, node, state)?;
        let count = Ledger::count(state);
        if self.counts.insert(state.version(), count).is_some() {
            return Ok(());
        }
        for place in 0..count {
            let Some(there) = Ledger::entry(state, place) else {
                let what = format!("{node} has committed a ledger without place {place}");
                return Err(broken(PROPERTY, at, what));
            };
            self.place(at, place, there)?;
        }
        Ok(())
    }

    fn place(&mut self, at: True, place: u64, there: (Entry, Placed)) -> Result<(), Violation> {
        let (entry, placed) = there;
        if let Some(known) = self.ledger.get(place as usize) {
            if *known == there {
                return Ok(());
            }
            let what = format!("place {place} has been {known:?} and is {there:?}");
            return Err(broken(PROPERTY, at, what));
        }
        let key = (entry.client, entry.number);
        let Some(asked) = self.asked.get(&key) else {
            let what = format!("nobody has submitted {entry:?}, which is at place {place}");
            return Err(broken("submitted", at, what));
        };
        if let Some(first) = self.places.insert(key, place) {
            let what = format!("{entry:?} was done at place {first} and at place {place}");
            return Err(broken("once", at, what));
        }
        if place < asked.floor || placed.place != place {
            let what = format!(
                "{entry:?} is at place {place} as {placed:?}, before {}",
                asked.floor
            );
            return Err(broken(PROPERTY, at, what));
        }
        if let Some(told) = asked.placed
            && told != placed
        {
            let what = format!("{entry:?} is at {placed:?}, but its client was told {told:?}");
            return Err(broken(PROPERTY, at, what));
        }
        self.ledger.push(there);
        Ok(())
    }

    /// The run is over: what was answered is there.
    pub fn over(&mut self, at: True) -> Result<(), Violation> {
        for ((client, number), asked) in &self.asked {
            if let Some(placed) = asked.placed
                && self.places.get(&(*client, *number)) != Some(&placed.place)
            {
                let what = format!(
                    "operation {number} of client {client} was told {placed:?}, but no correct \
                     node has it there"
                );
                return Err(broken("kept", at, what));
            }
        }
        for (version, count, when) in &self.early {
            if let Some(known) = self.counts.get(version)
                && known != count
            {
                let what =
                    format!("a read tells {count} entries at version {version}, not {known}");
                return Err(broken("fresh-reads", *when, what));
            }
        }
        Ok(())
    }

    /// How many operations were done.
    pub fn len(&self) -> usize {
        self.ledger.len()
    }

    /// Whether none was done.
    pub fn is_empty(&self) -> bool {
        self.ledger.is_empty()
    }

    /// The states.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::object::kind::DATA;
    use conclave_protocol::object::{Cell, Delta, Value};

    use super::*;

    fn entry(client: u32, number: u32) -> Entry {
        Entry {
            client,
            number,
            random: false,
        }
    }

    fn placed(place: u64) -> Placed {
        Placed { place, random: 0 }
    }

    /// A state with these entries after another one.
    fn with(base: &State, entries: &[Entry]) -> State {
        let first = Ledger::count(base);
        let own = |cell: &[u8]| -> Cell { [&[DATA], cell].concat().into() };
        let mut writes = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let place = first + at as u64;
            let cell = [b"e".as_slice(), &place.to_be_bytes()].concat();
            let result = [place.to_le_bytes(), [0; 8]].concat();
            let value: Value = [&*entry.body(), result.as_slice()].concat().into();
            writes.push((own(&cell), Some(value)));
        }
        let count = (first + entries.len() as u64).to_le_bytes();
        writes.push((own(b"n"), Some(count.as_slice().into())));
        base.next(&Delta::new(writes)).unwrap()
    }

    fn property(result: Result<(), Violation>) -> &'static str {
        result.map_or_else(|found| found.property, |()| "none")
    }

    const NODE: NodeId = NodeId(0);

    #[test]
    fn what_is_right_passes() {
        let mut order = Order::default();
        order.submitted(entry(1, 1));
        order.submitted(entry(2, 1));
        let first = with(&State::new(), &[entry(1, 1), entry(2, 1)]);
        assert_eq!(property(order.committed(True(1), NODE, &first)), "none");
        assert_eq!(
            property(order.answered(True(2), entry(1, 1), placed(0))),
            "none"
        );
        let mark = order.reading();
        assert_eq!(property(order.read(True(3), mark, 1, 2)), "none");
        order.submitted(entry(1, 2));
        let second = with(&first, &[entry(1, 2)]);
        assert_eq!(property(order.committed(True(4), NODE, &second)), "none");
        assert_eq!(
            property(order.answered(True(5), entry(1, 2), placed(2))),
            "none"
        );
        assert_eq!(property(order.over(True(6))), "none");
        assert_eq!(order.len(), 3);
    }

    #[test]
    fn what_is_wrong_is_found() {
        let start = || {
            let mut order = Order::default();
            order.submitted(entry(1, 1));
            let first = with(&State::new(), &[entry(1, 1)]);
            order.committed(True(1), NODE, &first).unwrap();
            order.answered(True(2), entry(1, 1), placed(0)).unwrap();
            order.submitted(entry(1, 2));
            (order, first)
        };
        let (mut order, _) = start();
        let early = order.answered(True(3), entry(1, 2), placed(0));
        assert_eq!(property(early), "order", "before what was answered");

        let (mut order, first) = start();
        let twice = with(&first, &[entry(1, 1)]);
        assert_eq!(property(order.committed(True(3), NODE, &twice)), "once");

        let (mut order, first) = start();
        let forged = with(&first, &[entry(9, 9)]);
        assert_eq!(
            property(order.committed(True(3), NODE, &forged)),
            "submitted"
        );

        let (mut order, _) = start();
        let fork = with(&State::new(), &[entry(1, 2)]);
        assert_eq!(property(order.committed(True(3), NODE, &fork)), "one-state");

        let (mut order, _) = start();
        order.answered(True(3), entry(1, 2), placed(1)).unwrap();
        assert_eq!(
            property(order.over(True(4))),
            "kept",
            "answered and not there"
        );

        let (mut order, _) = start();
        let mark = order.reading();
        assert_eq!(property(order.read(True(3), mark, 0, 0)), "fresh-reads");
    }
}
