//! Nodes that were away, or have lost their disks, among nodes that go on.

mod keep;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::fault::Lie;
use conclave_protocol::id::{NodeId, Token};
use conclave_protocol::keeper::client::ClientEvent;
use conclave_protocol::keeper::{Answer, Diffusion};
use conclave_protocol::object::{
    Digest, ObjectAsk, ObjectConfig, ObjectRefusal, ObjectTell, Phase, Rank, RankSigner, Rules,
};

use keep::net::{Actor, Net};
use keep::{Seals, config, object};

fn committed(net: &Net, node: usize) -> u64 {
    let views = net.nodes[node].keeper.views(None, 10);
    views.first().map_or(0, |view| view.committed.version)
}

#[test]
fn operations_are_done_one_after_the_other() {
    let mut net = Net::new(&config(7, 1, Rules::default()));
    let (ann, bob) = (net.client(1), net.client(2));
    for round in 0..5 {
        assert_eq!(net.add(ann, object(), 1), Some(2 * round + 1));
        assert_eq!(net.add(bob, object(), 1), Some(2 * round + 2));
    }
}

#[test]
fn a_node_that_was_away_takes_what_others_vouch_for_and_keeps_its_own_word() {
    let mut net = Net::new(&config(7, 1, Rules::default()));
    let client = net.client(1);
    assert_eq!(net.add(client, object(), 1), Some(1));
    net.pass(Duration::from_secs(1));
    let before = net.nodes[6].keeper.stored().objects[&object()].clone();
    net.down(6);
    for count in 2..8 {
        assert_eq!(net.add(client, object(), 1), Some(count));
    }
    net.back(6);
    let config = net.config.clone();
    let work = Box::new(Diffusion::new(config, 3));
    net.join(Actor::Diffusion(NodeId(6), work));
    net.pass(Duration::from_secs(5));
    let after = net.nodes[6].keeper.stored().objects[&object()].clone();
    assert_eq!(
        after.committed,
        net.nodes[0].keeper.stored().objects[&object()].committed
    );
    assert!(after.committed.version() > before.committed.version());
    assert_eq!((after.max, after.proposer), (before.max, before.proposer));
    assert_eq!(after.proposed, before.proposed);
}

#[test]
fn what_a_single_node_invents_is_not_taken() {
    let mut net = Net::new(&config(7, 1, Rules::default()));
    let client = net.client(1);
    assert_eq!(net.add(client, object(), 1), Some(1));
    net.pass(Duration::from_secs(1));
    net.lies = Some(|node, answer| {
        if node == NodeId(2)
            && let Answer::Surveyed { objects, .. } = answer
        {
            for (_, stamp) in objects {
                stamp.version += 7;
                stamp.digest = Digest([9; 32]);
            }
        }
    });
    let version = committed(&net, 6);
    let config = net.config.clone();
    let work = Box::new(Diffusion::new(config, 3));
    net.join(Actor::Diffusion(NodeId(6), work));
    net.pass(Duration::from_secs(5));
    assert_eq!(committed(&net, 6), version);
}

#[test]
fn a_node_that_lost_its_disk_is_silent_until_it_has_ordered_everything_anew() {
    let mut net = Net::new(&config(7, 1, Rules::default()));
    let client = net.client(1);
    for count in 1..4 {
        assert_eq!(net.add(client, object(), 1), Some(count));
    }
    net.lose(2);
    // One that names a huge token does not spoil the node's votes for longer than a day.
    net.lies = Some(|node, answer| {
        if node == NodeId(5)
            && let Answer::Surveyed { token, .. } = answer
        {
            *token = Token(u64::MAX);
        }
    });
    assert_eq!(net.add(client, object(), 1), Some(4));
    assert!(!net.nodes[2].keeper.is_serving());
    assert_eq!(committed(&net, 2), 0);
    net.pass(net.config.lease.quarantine() + Duration::from_secs(5));
    assert!(net.nodes[2].keeper.is_serving());
    let kept = net.nodes[2].keeper.stored();
    let day = 24 * 3600 * 1_000_000;
    assert!(kept.mark.0 <= net.nodes[2].now.wall.0 + day);
    let kept = &kept.objects[&object()];
    assert_eq!(kept.committed, kept.proposed);
    assert!(kept.max > Rank::default() && kept.proposer == kept.max);
    let other = &net.nodes[0].keeper.stored().objects[&object()];
    assert_eq!(kept.committed, other.committed);
    // Now two others may be missing: five are a quorum, and this node is one of them.
    net.down(0);
    net.down(1);
    assert_eq!(net.add(client, object(), 1), Some(5));
    assert!(keep::replay(&net.nodes[2].disk).open);
}

fn signed() -> Arc<ObjectConfig> {
    let mut config = (*config(5, 1, Rules::default())).clone();
    config.signed = true;
    Arc::new(config)
}

#[test]
fn a_signed_rank_of_one_node_is_enough_to_give_way_and_to_go_above_it() {
    let mut net = Net::new(&signed());
    let link = net.nodes[0].open(99, "bob");
    let large = keep::rank(1000, 9);
    let get = |proof| ObjectAsk::Get {
        rank: large,
        nonce: 1,
        have: None,
        proof,
    };
    let tell = keep::only(net.nodes[0].ask(link, get(None)));
    let why = ObjectRefusal::Proof;
    assert!(matches!(tell, ObjectTell::Refused { why: said, .. } if said == why));
    let proof = Some(Seals.sign(&object(), large));
    let tell = keep::only(net.nodes[0].ask(link, get(proof)));
    assert!(matches!(tell, ObjectTell::Got { .. }));
    let client = net.client(1);
    assert_eq!(net.add(client, object(), 1), Some(1));
    net.pass(Duration::from_secs(1));
    for node in &net.nodes {
        assert!(node.keeper.views(None, 1)[0].rank > large);
    }
}

#[test]
fn a_rank_that_nobody_signed_is_no_reason_to_give_way() {
    let mut net = Net::new(&signed());
    net.lies = Some(|node, answer| {
        if node == NodeId(0)
            && let Answer::Object(_, tell) = answer
            && let ObjectTell::Got { rank, .. } = tell
        {
            *tell = ObjectTell::Outranked {
                rank: *rank,
                phase: Phase::Get,
                max: keep::rank(u64::MAX, 9),
                proof: Some(Seals.sign(&object(), keep::rank(7, 7))),
            };
        }
    });
    let client = net.client(1);
    assert_eq!(net.add(client, object(), 1), Some(1));
    let rank = net.nodes[1].keeper.views(None, 1)[0].rank;
    assert!(rank.round < 10, "{rank:?}");
    let forged = |event: &ClientEvent| {
        let (node, lie) = (NodeId(0), Lie::Forged);
        *event == ClientEvent::Lied { node, lie }
    };
    assert!(net.events.iter().any(|(_, event)| forged(event)));
}
