//! From one configuration to the next: who may serve when.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeSet;
use std::time::Duration;

use conclave_protocol::id::{Incarnation, NodeId, Token};
use conclave_protocol::lock::{ConfigId, Record, Stored, StoredConfig};
use conclave_protocol::membership::{
    Adoption, AdoptionEvent, AdoptionInput, Found, Missing, Plan, Stage, find,
};
use conclave_protocol::{Effects, Instant, Machine, Now, Wall};

const WAIT: Duration = Duration::from_mins(1);

fn id(epoch: u64) -> ConfigId {
    ConfigId {
        epoch,
        digest: [epoch as u8; 16],
    }
}

fn config(epoch: u64) -> StoredConfig {
    StoredConfig {
        id: id(epoch),
        text: "".into(),
        before: 0,
    }
}

/// A disk that served epoch 1 and gave away tokens up to this one.
fn disk(ceiling: u64) -> Stored {
    let mut stored = Stored::default();
    stored.apply(Record::Config(Box::new(config(1))));
    stored.apply(Record::Ceiling {
        ceiling: Token(ceiling),
        clock: Wall(0),
    });
    stored.apply(Record::Incarnation(Incarnation(5)));
    stored
}

/// A node with its disk, adopting or serving.
struct Node {
    stored: Stored,
    machine: Option<Adoption>,
    event: Option<AdoptionEvent>,
}

/// Nodes on one clock that can all ask each other.
struct World {
    nodes: Vec<Node>,
    now: Now,
}

impl World {
    fn new(ceilings: &[u64]) -> Self {
        let node = |ceiling: &u64| Node {
            stored: disk(*ceiling),
            machine: None,
            event: None,
        };
        Self {
            nodes: ceilings.iter().map(node).collect(),
            now: Now {
                mono: Instant::from_nanos(1),
                wall: Wall(1000),
            },
        }
    }

    /// Starts a node that adopts this epoch.
    fn adopt(&mut self, at: usize, epoch: u64, abandoned: &[u32]) {
        self.adopt_as(at, epoch, abandoned, |_| {});
    }

    fn adopt_as(&mut self, at: usize, epoch: u64, abandoned: &[u32], more: impl Fn(&mut Plan)) {
        let old = self.nodes[at].stored.incarnation.is_some();
        let mut plan = Plan {
            id: NodeId::at(at),
            to: config(epoch),
            nodes: 3,
            old: old.then_some(3),
            abandoned: abandoned
                .iter()
                .map(|id| NodeId(*id))
                .collect::<BTreeSet<_>>(),
            wait: WAIT,
            hierarchy: false,
            objects_stay: true,
            keeper: (Token(0), 0),
            lead: Duration::ZERO,
        };
        more(&mut plan);
        let mut out = Effects::new();
        let machine = Adoption::new(plan, &self.nodes[at].stored, self.now, &mut out);
        assert_eq!(machine.standing(self.now), None, "nothing before the disk");
        for record in out.persist {
            self.nodes[at].stored.apply(record);
        }
        self.nodes[at].machine = Some(machine);
        self.nodes[at].event = None;
        self.tell(at, AdoptionInput::Durable);
    }

    fn standing(&self, at: usize) -> Option<conclave_protocol::membership::Standing> {
        let node = &self.nodes[at];
        if let Some(machine) = &node.machine {
            return machine.standing(self.now);
        }
        Some(conclave_protocol::membership::Standing {
            config: node.stored.config.as_ref()?.id,
            stage: Stage::Serving,
            floor: node.stored.highest(),
            mark: Token(0),
            objects: 0,
            before: 3,
            life: Incarnation(0),
        })
    }

    fn tell(&mut self, at: usize, input: AdoptionInput) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let Some(machine) = &mut self.nodes[at].machine else {
                return;
            };
            let mut out = Effects::new();
            machine.handle(self.now, input, &mut out);
            for envelope in &out.send_now {
                let standing = self.standing(envelope.to.index());
                inputs.extend(standing.map(|it| AdoptionInput::Heard(envelope.to, it)));
            }
            let node = &mut self.nodes[at];
            for record in out.persist {
                node.stored.apply(record);
            }
            if let Some(event) = out.events.pop() {
                node.event = Some(event);
                if matches!(event, AdoptionEvent::Done { .. }) {
                    node.machine = None;
                }
            }
        }
    }

    fn pass(&mut self, span: Duration) {
        self.now.mono = self.now.mono + span;
        for at in 0..self.nodes.len() {
            self.tell(at, AdoptionInput::Wake);
        }
    }

    /// The epochs that are served.
    fn served(&self) -> Vec<Option<u64>> {
        let epoch = |node: &Node| {
            let serves = node.machine.is_none();
            let config = node.stored.config.as_ref().filter(|_| serves);
            config.map(|config| config.id.epoch)
        };
        self.nodes.iter().map(epoch).collect()
    }
}

#[test]
fn nobody_serves_before_all_have_adopted_and_waited() {
    let mut world = World::new(&[10, 30, 20]);
    world.adopt(0, 2, &[]);
    world.adopt(1, 2, &[]);
    for _ in 0..200 {
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(world.served(), [None, None, Some(1)]);
    let missing = world.nodes[0].machine.as_ref().unwrap().missing();
    assert_eq!(missing, [(NodeId(2), Missing::Other(id(1)))]);
    world.adopt(2, 2, &[]);
    world.pass(Duration::from_secs(59));
    assert_eq!(world.served(), [None, None, None]);
    world.pass(Duration::from_secs(1));
    world.pass(Duration::from_secs(1));
    assert_eq!(world.served(), [Some(2); 3]);
    for node in &world.nodes {
        assert!(node.stored.default_floor >= Token(30));
        assert_eq!(
            node.stored.clean.as_ref().unwrap().floor,
            node.stored.default_floor
        );
    }
}

#[test]
fn of_two_files_adopted_by_turns_at_most_one_is_served() {
    // Every node takes up one or the other, again and again, in all orders of a small world.
    for seed in 0_u32..3_u32.pow(6) {
        let mut world = World::new(&[1, 2, 3]);
        let mut left = seed;
        for at in [0, 1, 2, 1, 0, 2] {
            let epoch = [1, 2, 3][(left % 3) as usize];
            left /= 3;
            let serves = world.nodes[at].machine.is_none();
            let served = world.nodes[at].stored.config.as_ref().unwrap().id.epoch;
            if !serves || served == 1 && epoch != 1 {
                world.adopt(at, epoch, &[]);
            }
            world.pass(WAIT);
            world.pass(Duration::from_secs(1));
            let mut served: Vec<u64> = world.served().into_iter().flatten().collect();
            served.sort_unstable();
            served.dedup();
            assert!(served.len() <= 1, "{seed}: {served:?}");
        }
    }
}

#[test]
fn a_word_from_before_the_own_adoption_counts_for_nothing() {
    let mut world = World::new(&[1, 2, 3]);
    for at in [1, 2] {
        world.adopt(at, 2, &[]);
    }
    world.pass(WAIT);
    let plan = Plan {
        id: NodeId(0),
        to: config(2),
        nodes: 3,
        old: Some(3),
        abandoned: BTreeSet::new(),
        wait: Duration::ZERO,
        hierarchy: false,
        objects_stay: true,
        keeper: (Token(0), 0),
        lead: Duration::ZERO,
    };
    let mut out = Effects::new();
    let mut machine = Adoption::new(plan, &disk(1), world.now, &mut out);
    for at in [1, 2] {
        let standing = world.standing(at).unwrap();
        machine.handle(
            world.now,
            AdoptionInput::Heard(NodeId::at(at), standing),
            &mut out,
        );
    }
    machine.handle(world.now, AdoptionInput::Durable, &mut out);
    assert!(out.events.is_empty());
    assert_eq!(machine.missing().len(), 2);
}

#[test]
fn who_is_abandoned_is_not_waited_for_and_the_clock_bounds_what_it_knew() {
    let mut world = World::new(&[10, 30, 20]);
    world.nodes[1].stored = Stored::default();
    for at in [0, 2] {
        world.adopt(at, 2, &[1]);
    }
    // It has nothing on its disk: it needs the word of one that serves.
    world.adopt(1, 2, &[]);
    world.pass(WAIT);
    world.pass(Duration::from_secs(1));
    world.pass(Duration::from_secs(1));
    assert_eq!(world.served(), [Some(2); 3]);
    for node in &world.nodes {
        assert!(node.stored.default_floor >= Token(1000));
    }
    let lost = |at: usize| world.nodes[at].event;
    assert!(matches!(
        lost(1),
        Some(AdoptionEvent::Done { lost: true, .. })
    ));
    assert!(matches!(
        lost(0),
        Some(AdoptionEvent::Done { lost: false, .. })
    ));
}

#[test]
fn one_without_memory_waits_for_one_that_serves() {
    let mut world = World::new(&[1, 2, 3]);
    world.nodes[1].stored = Stored::default();
    world.adopt(0, 2, &[]);
    world.adopt(1, 2, &[]);
    world.adopt(2, 2, &[]);
    world.pass(WAIT * 3);
    world.pass(WAIT * 3);
    assert_eq!(world.served(), [None; 3]);
    let missing = world.nodes[0].machine.as_ref().unwrap().missing();
    assert_eq!(missing, [(NodeId(1), Missing::Joining)]);
}

#[test]
fn objects_do_not_move_to_other_numbers_of_nodes() {
    let mut world = World::new(&[1, 2, 3]);
    world.adopt_as(2, 2, &[], |plan| {
        plan.objects_stay = false;
        plan.keeper = (Token(9), 4);
    });
    assert_eq!(
        world.nodes[2].event,
        Some(AdoptionEvent::Objects(NodeId(2), 4))
    );
    world.adopt_as(0, 2, &[], |plan| plan.objects_stay = false);
    assert_eq!(
        world.nodes[0].event,
        Some(AdoptionEvent::Objects(NodeId(2), 4))
    );
}

#[test]
fn a_disk_says_what_it_served() {
    let file = id(2);
    assert_eq!(find(None, false, file), Found::New);
    assert_eq!(find(None, true, file), Found::Unknown);
    let mut stored = Stored::default();
    stored.apply(Record::Config(Box::new(config(1))));
    assert_eq!(
        find(Some(&stored), false, file),
        Found::New,
        "it never served"
    );
    stored.apply(Record::Incarnation(Incarnation(1)));
    assert_eq!(find(Some(&stored), false, file), Found::Other(&config(1)));
    assert_eq!(find(Some(&stored), false, id(1)), Found::Same(&config(1)));
    stored.apply(Record::Adopting(Box::new(config(2))));
    assert_eq!(
        find(Some(&stored), false, id(1)),
        Found::Adopting(&config(2))
    );
    stored.apply(Record::Config(Box::new(config(2))));
    assert_eq!(find(Some(&stored), false, file), Found::Same(&config(2)));
    let before = Stored {
        incarnation: Some(Incarnation(1)),
        ..Stored::default()
    };
    assert_eq!(find(Some(&before), false, file), Found::Unknown);
}
