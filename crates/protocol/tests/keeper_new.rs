//! Clusters in which nobody ever kept a lease or an object, and nodes that act as nodes.

mod keep;

use std::collections::VecDeque;

use conclave_protocol::id::{LinkId, NodeId};
use conclave_protocol::keeper::rejoin::{Rejoin, RejoinEvent, RejoinInput};
use conclave_protocol::keeper::{Ask, KeeperEvent, KeeperInput};
use conclave_protocol::lock::Access;
use conclave_protocol::object::{ObjectConfig, ObjectRefusal, ObjectTell, Phase, Rules, State};
use conclave_protocol::{Effects, Machine};

use keep::{Node, caller, config};

/// Nodes with empty disks that ask each other, message by message.
struct Blank {
    nodes: Vec<Node>,
    rejoins: Vec<Rejoin>,
    /// Who asks whom what.
    asks: VecDeque<(usize, usize, Ask)>,
}

impl Blank {
    fn new(config: &std::sync::Arc<ObjectConfig>) -> Self {
        let count = config.faults.nodes();
        let mut nodes: Vec<Node> = (0..count)
            .map(|_| Node::new(config, Access::default()))
            .collect();
        let mut rejoins = Vec::new();
        for node in &mut nodes {
            node.disk.clear();
            node.restart();
            let opens = node.keeper.opens();
            let blank = node.keeper.is_new();
            rejoins.push(Rejoin::new(config.faults, Some(config), opens, blank));
        }
        for (at, node) in nodes.iter_mut().enumerate() {
            for from in (0..count).filter(|from| *from != at) {
                let who = caller("node", Some(NodeId::at(from)));
                node.step(KeeperInput::Opened(LinkId(from as u64), who));
            }
        }
        Self {
            nodes,
            rejoins,
            asks: VecDeque::new(),
        }
    }

    fn tell(&mut self, at: usize, input: RejoinInput) {
        let mut out = Effects::new();
        self.rejoins[at].handle(self.nodes[at].now, input, &mut out);
        for envelope in out.send_now {
            self.asks
                .push_back((at, envelope.to.index(), envelope.message));
        }
        for event in out.events {
            if event == RejoinEvent::Begin {
                self.nodes[at].step(KeeperInput::Begin);
                self.nodes[at].sync();
            }
        }
    }

    /// A connection from one to the other opens, and what is asked is answered.
    fn connect(&mut self, from: usize, to: usize) {
        self.tell(from, RejoinInput::Opened(NodeId::at(to)));
        while let Some((from, to, ask)) = self.asks.pop_front() {
            self.nodes[to].step(KeeperInput::Receive(LinkId(from as u64), ask));
            self.nodes[to].sync();
            for event in std::mem::take(&mut self.nodes[to].events) {
                if let KeeperEvent::New(node) = event {
                    self.tell(to, RejoinInput::New(node));
                }
            }
            for (link, answer) in std::mem::take(&mut self.nodes[to].said) {
                let heard = RejoinInput::Heard(NodeId::at(to), answer);
                self.tell(link.0 as usize, heard);
            }
        }
    }

    fn serving(&self) -> usize {
        let serving = self.nodes.iter().filter(|node| node.keeper.is_serving());
        serving.count()
    }
}

#[test]
fn a_cluster_in_which_nobody_kept_anything_begins_at_once() {
    for (count, liars) in [(3, 0), (5, 0), (5, 1), (7, 1)] {
        let mut blank = Blank::new(&config(count, liars, Rules::default()));
        assert_eq!(blank.serving(), 0);
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                blank.connect(from, to);
            }
        }
        assert_eq!(blank.serving(), count, "{count} nodes, {liars} may lie");
    }
}

#[test]
fn whoever_begins_first_and_is_used_does_not_keep_the_others_from_it() {
    let mut blank = Blank::new(&config(3, 0, Rules::default()));
    blank.connect(0, 1);
    blank.connect(0, 2);
    assert_eq!(blank.serving(), 1);
    // It votes before the others have reached it.
    let client = blank.nodes[0].open(99, "ann");
    blank.nodes[0].view(client, keep::rank(1, 7));
    assert!(!blank.nodes[0].keeper.is_new());
    for (from, to) in [(1, 0), (1, 2), (2, 0), (2, 1)] {
        blank.connect(from, to);
    }
    assert_eq!(blank.serving(), 3);
}

#[test]
fn one_that_lost_its_disk_does_not_begin_beside_others_that_keep_something() {
    let mut blank = Blank::new(&config(3, 0, Rules::default()));
    for at in [1, 2] {
        blank.nodes[at].step(KeeperInput::Begin);
        let client = blank.nodes[at].open(99, "ann");
        blank.nodes[at].view(client, keep::rank(1, 7));
    }
    blank.connect(0, 1);
    blank.connect(0, 2);
    assert!(!blank.nodes[0].keeper.is_serving());
}

#[test]
fn a_node_refreshes_what_the_others_have_and_nothing_else() {
    let mut node = Node::new(&config(5, 1, Rules::default()), Access::default());
    let client = node.open(1, "ann");
    let one = keep::done(&State::new(), keep::op(1, 1), "one");
    let two = keep::done(&one.state, keep::op(1, 2), "two");
    node.view(client, keep::rank(1, 7));
    node.propose(client, keep::rank(1, 7), &one);
    node.commit(client, keep::rank(1, 7), &one);
    let rebuilds = caller("node/2", Some(NodeId(1)));
    node.step(KeeperInput::Opened(LinkId(2), rebuilds));
    let link = LinkId(2);
    let refused = |tell: &ObjectTell| {
        let why = ObjectRefusal::NotPermitted;
        matches!(tell, ObjectTell::Refused { why: given, .. } if *given == why)
    };
    // A rank that nobody could go above.
    let told = node.get(link, keep::rank(u64::MAX, 8), 1);
    assert!(refused(&told), "{told:?}");
    let rank = keep::rank(2, 8);
    node.view(link, rank);
    let told = node.propose(link, rank, &two);
    assert!(told.iter().all(refused), "{told:?}");
    let told = node.commit(link, rank, &two);
    assert!(told.iter().all(refused), "{told:?}");
    let taken = |tells: &[ObjectTell], wanted: Phase| {
        let taken =
            |tell: &ObjectTell| matches!(tell, ObjectTell::Taken { phase, .. } if *phase == wanted);
        assert!(tells.iter().any(taken), "{tells:?}");
    };
    taken(&node.propose(link, rank, &one), Phase::Propose);
    taken(&node.commit(link, rank, &one), Phase::Commit);
    assert_eq!(node.keeper.views(None, 1)[0].committed, one.stamp());
}
