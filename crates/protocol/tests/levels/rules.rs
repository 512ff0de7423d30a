//! The rules of requests, permissions and representing nodes, without failures.

use conclave_protocol::lock::Mode;
use conclave_protocol::multilevel::{GrantId, LevelConfig, LevelPlant, LevelRules, Word};

use super::net::{Net, Wire, ensure, leased, published, shows};

/// Two leaf clusters of three; the root cluster is nodes 0 and 3, where only node 0 votes.
pub(crate) const TWO: &str = "multilevel(tree, sizes=[3,3])";
/// Three nodes without a hierarchy, where only node 0 votes.
pub(crate) const ONE_VOTE: &str = "multilevel(singleton, 3, levels=0)";

/// The node that a message of this kind and level is for.
pub(crate) fn target(net: &Net, kind: &str, level: u8) -> Option<usize> {
    let wire = net.flying.iter().find(|wire| wire.is(kind, level))?;
    Some(wire.to)
}

/// Two leaf clusters, and a lock for which node 1 is represented by node 3.
pub(crate) fn represented_by_3(config: &LevelConfig) -> Net {
    let lock = Net::find(config, |net| {
        net.want(1, 1);
        target(net, "PreCRequest", 1) == Some(3)
    });
    Net::seeded(config.clone(), lock, 1)
}

/// Node 3 has the root's consent for node 1, which has not asked for it yet.
fn consent_waits(rules: LevelRules) -> Result<Net, String> {
    let mut net = represented_by_3(&published(TWO, rules));
    net.want(1, 1);
    net.settle_but(|wire| wire.is("Request", 1));
    ensure(
        net.permissions(0) == 1,
        "the root's permission is not given",
    )?;
    Ok(net)
}

/// The wait for a child is over once the child has come: the old timer does nothing.
#[test]
fn a_timer_that_was_set_for_an_earlier_wait_does_nothing() {
    shows(LevelPlant::TimerStays, |rules| {
        let mut net = consent_waits(rules)?;
        net.settle();
        ensure(net.is_inside(1), "node 1 is not let in")?;
        let sent = net.sent;
        net.pass(300);
        ensure(net.sent == sent, "the timer sent something")?;
        ensure(net.permissions(0) == 1, "the root's permission is gone")
    });
}

/// A representing node of the middle level whose child does not come gives back what it has of
/// its own level and above, and nothing else.
#[test]
fn a_wait_that_ends_frees_its_own_level_alone() {
    shows(LevelPlant::TimeoutAtLeaf, |rules| {
        let mut net = Net::new(published("multilevel(tree, sizes=[[3,3],[3,3]])", rules));
        net.want(1, 1);
        // The leaf's quorum is slow: its permissions are given, and do not arrive.
        net.settle_but(|wire| wire.is("Reply", 2));
        let leaf = net.permissions(2);
        ensure(leaf > 0, "no permission of the leaf is given")?;
        ensure(
            net.permissions(1) > 0,
            "no permission of the middle level is given",
        )?;
        ensure(net.permissions(0) > 0, "no permission of the root is given")?;
        net.live_but(300, |wire| wire.is("Reply", 2));
        ensure(net.permissions(0) == 0, "the root is not freed")?;
        ensure(net.permissions(1) == 0, "the middle level is not freed")?;
        ensure(net.permissions(2) == leaf, "the leaf is freed")?;
        net.settle();
        ensure(net.is_inside(1), "node 1 is not served in the end")?;
        net.finish(10_000);
        net.all_idle()
    });
}

/// Consent that waits for one child is not thrown away because another announces itself.
#[test]
fn an_announcement_during_a_wait_starts_nothing() {
    shows(LevelPlant::AnnounceRestarts, |rules| {
        let mut net = consent_waits(rules)?;
        let (sent, cid) = (net.sent, net.strange_id(4));
        let mode = Mode::Exclusive;
        net.say(4, 3, 1, Word::Announce { cid, mode });
        ensure(net.sent == sent, "the announcement started a run")?;
        net.settle();
        ensure(net.is_inside(1), "node 1 is not let in")?;
        net.apart()
    });
}

/// An ask that finds a run without its permissions must wait for them.
#[test]
fn a_child_that_asks_early_waits_for_consensus() {
    shows(LevelPlant::ConsentAtOnce, |rules| {
        let mut net = represented_by_3(&published(TWO, rules));
        net.want(1, 1);
        net.settle_but(|wire| wire.is("Request", 0));
        ensure(!net.is_inside(1), "node 1 is let in without the root")?;
        net.apart()?;
        net.settle();
        ensure(net.is_inside(1), "node 1 is not let in")
    });
}

/// Nodes 1 and 2 want the vote of node 0; node 1 is inside, node 2 is older and has been asked
/// for: the inquiry is on its way to node 1.
pub(crate) fn inquired(config: LevelConfig) -> Result<Net, String> {
    let mut net = Net::new(config);
    // Node 2 asks first, and its request is slow.
    net.want(2, 2);
    net.want(1, 10);
    net.deliver(|wire| wire.from == 1)?;
    net.deliver(|wire| wire.to == 1)?;
    net.leave(1, 10);
    net.deliver(|wire| wire.from == 1)?;
    net.want(1, 1);
    net.deliver(|wire| wire.from == 1)?;
    net.deliver(|wire| wire.to == 1)?;
    ensure(net.is_inside(1), "node 1 is not let in")?;
    net.deliver(|wire| wire.from == 2)?;
    ensure(
        net.flies(|wire| wire.is("Inquire", 0)),
        "nothing is asked back",
    )?;
    Ok(net)
}

/// An inquiry that crosses the end of its request is not answered for the next one.
#[test]
fn an_inquiry_is_about_its_own_request_alone() {
    shows(LevelPlant::AnyYield, |rules| {
        let mut net = inquired(published(ONE_VOTE, rules))?;
        net.leave(1, 1);
        net.want(1, 3);
        net.deliver(|wire| wire.is("Inquire", 0))?;
        ensure(
            !net.flies(|wire| wire.is("Yield", 0)),
            "the next request yields",
        )?;
        net.settle();
        ensure(net.is_inside(2), "node 2 is not let in")?;
        ensure(!net.is_inside(3), "node 1 is let in again beside node 2")?;
        net.apart()
    });
}

/// A yield of an earlier grant of the same request says nothing about the present one.
#[test]
fn a_yield_is_about_its_own_grant_alone() {
    shows(LevelPlant::AnyYield, |rules| {
        let mut net = inquired(published(ONE_VOTE, rules))?;
        let inquiry = net.flying.iter().find(|wire| wire.is("Inquire", 0));
        let word = inquiry.map(|wire| wire.message.word.clone());
        let Some(Word::Inquire { rid, grant }) = word else {
            return Err("nothing is asked back".to_owned());
        };
        let counter = grant.counter - 1;
        let grant = GrantId { counter, ..grant };
        net.say(1, 0, 0, Word::Yield { rid, grant });
        net.settle();
        ensure(net.is_inside(1), "node 1 lost its permission")?;
        ensure(!net.is_inside(2), "node 2 has it, too")?;
        net.apart()
    });
}

/// A permission for a request that was given up is given back, and counts for nothing.
#[test]
fn a_late_permission_is_given_back() {
    shows(LevelPlant::AnyReply, |rules| {
        let mut net = Net::new(published(ONE_VOTE, rules));
        net.want(1, 1);
        net.deliver(|wire| wire.is("Request", 0))?;
        net.leave(1, 1);
        net.want(1, 2);
        net.deliver(|wire| wire.is("Reply", 0))?;
        ensure(!net.is_inside(2), "it counted for the next request")?;
        let releases = net
            .flying
            .iter()
            .filter(|wire| wire.is("Release", 0))
            .count();
        ensure(releases == 2, "it was not given back")?;
        net.settle();
        ensure(net.is_inside(2), "the next request is not served")
    });
}

/// A lock for which node 3 represents node 1 and node 4, which are of different leaf clusters;
/// node 1 is inside, and node 4 waits.
fn shared_parent(rules: LevelRules) -> Result<Net, String> {
    let config = published(TWO, rules);
    let both = |net: &mut Net| {
        net.want(1, 1);
        let first = target(net, "PreCRequest", 1);
        net.flying.clear();
        net.want(4, 4);
        first == Some(3) && first == target(net, "PreCRequest", 1)
    };
    let lock = Net::find(&config, both);
    let mut net = Net::seeded(config, lock, 1);
    net.want(1, 1);
    net.settle();
    ensure(net.is_inside(1), "node 1 is not let in")?;
    net.want(4, 4);
    net.settle();
    Ok(net)
}

/// A child that waits and gives up takes nothing from the child that is inside.
#[test]
fn the_end_of_a_queued_child_ends_nothing_else() {
    shows(LevelPlant::AnyDone, |rules| {
        let mut net = shared_parent(rules)?;
        net.leave(4, 4);
        net.want(5, 5);
        net.settle();
        ensure(net.is_inside(1) && !net.is_inside(5), "another is let in")?;
        ensure(net.permissions(0) == 1, "the root's permission is gone")?;
        net.finish(10_000);
        net.apart()?;
        net.all_idle()
    });
}

/// Consent is handed on to the next child without asking the root again, but not without bound.
#[test]
fn consent_is_handed_on_a_bounded_number_of_times() {
    shows(LevelPlant::NoBound, |rules| {
        let mut net = shared_parent(rules)?;
        let (mut grants, mut freed) = (1, false);
        while grants < 40 && !freed {
            let first = net.inside.first_key_value();
            let (wish, node) = first
                .map(|(wish, inside)| (*wish, inside.node))
                .ok_or("nobody is inside")?;
            net.leave(node, wish);
            net.settle_but(|wire| wire.is("Release", 0));
            freed = net.flies(|wire| wire.is("Release", 0));
            net.settle();
            // The two take turns, without end if nobody bounds it.
            net.want(node, 100 + grants);
            net.settle();
            grants += 1;
        }
        net.apart()?;
        ensure(
            freed && grants <= 10,
            "the root never gets its permission back",
        )
    });
}

/// Members of a group that want the lock meet at one agent, wherever they are.
#[test]
fn a_group_meets_at_one_agent() {
    let rules = LevelRules::default();
    for config in [published(TWO, rules), leased(TWO, rules)] {
        let mut net = Net::new(config);
        for (node, wish) in [(1, 1), (2, 2), (4, 4), (5, 5)] {
            net.want_as(node, wish, red(), 0);
        }
        net.settle();
        assert_eq!(net.inside.len(), 4, "the group is not inside together");
        net.want(2, 6);
        net.want_as(4, 7, Mode::Group(b"blue"[..].into()), 0);
        net.settle();
        assert_eq!(net.inside.len(), 4, "somebody else is inside, too");
        net.finish(1_000_000);
        assert_eq!(net.apart(), Ok(()));
        assert_eq!(net.all_idle(), Ok(()));
        assert_eq!(net.granted.len(), 6, "somebody was not served");
    }
}

fn red() -> Mode {
    Mode::Group(b"red"[..].into())
}

/// Somebody who asks the representing node of a group, and does not belong to it, waits.
#[test]
fn a_group_is_among_itself() {
    shows(LevelPlant::AnyGroup, |rules| {
        let config = published(TWO, rules);
        let lock = Net::find(&config, |net| {
            net.want_as(1, 1, red(), 0);
            net.settle_but(|wire| wire.is("PreCRequest", 1));
            let group = target(net, "PreCRequest", 1);
            net.flying.clear();
            net.want(4, 4);
            group.is_some() && group == target(net, "PreCRequest", 1)
        });
        let mut net = Net::seeded(config, lock, 1);
        net.want_as(1, 1, red(), 0);
        net.want_as(2, 2, red(), 0);
        net.settle();
        ensure(net.inside.len() == 2, "the group is not inside")?;
        net.want(4, 4);
        net.settle();
        net.apart()?;
        ensure(!net.is_inside(4), "node 4 is inside with the group")
    });
}

/// A late member of the group inside does not pass somebody who waits.
#[test]
fn a_group_does_not_keep_others_out_for_ever() {
    let mut net = Net::new(published(TWO, LevelRules::default()));
    net.want_as(1, 1, Mode::Shared, 0);
    net.settle();
    net.want(2, 2);
    net.settle();
    // All that comes for the group now waits behind node 2, up to the bound of one consent.
    let mut wish = 10;
    let mut inside: Vec<u64> = vec![1];
    while !net.is_inside(2) && wish < 200 {
        net.want_as(1, wish, Mode::Shared, 0);
        net.settle();
        let oldest = inside.remove(0);
        if net.is_inside(wish) {
            inside.push(wish);
        }
        net.leave(1, oldest);
        net.settle();
        wish += 1;
        if inside.is_empty() {
            net.settle();
            break;
        }
    }
    assert!(net.is_inside(2), "node 2 is passed for ever");
    assert_eq!(net.apart(), Ok(()));
}

/// Whatever order the messages of one burst arrive in, everybody is served and nothing is left.
#[test]
fn the_order_of_arrival_does_not_matter() {
    use conclave_quorum::Prng;
    for seed in 1..=300 {
        let mut rng = Prng::new(seed);
        let mut net = Net::seeded(
            published(TWO, LevelRules::default()),
            1 + seed as u32 % 5,
            seed,
        );
        let mut open = vec![1, 2, 4, 5, 0, 3];
        let mut served = 0;
        while served < 6 {
            let draw = rng.below(net.flying.len() + open.len() + net.inside.len());
            if draw < net.flying.len() {
                let wire: Wire = net.flying.remove(draw);
                net.flying.insert(0, wire);
                net.deliver(|_| true).expect("it was just put there");
            } else if draw < net.flying.len() + open.len() {
                let node = open.swap_remove(draw - net.flying.len());
                net.want(node, node as u64);
            } else if let Some((wish, inside)) = net.inside.first_key_value() {
                let (wish, node) = (*wish, inside.node);
                net.leave(node, wish);
                served += 1;
            }
            if net.flying.is_empty() && open.is_empty() && net.inside.is_empty() && served < 6 {
                net.live(200);
                assert!(!net.inside.is_empty(), "seed {seed}: nobody is let in");
            }
        }
        net.finish(10_000);
        assert_eq!(net.apart(), Ok(()), "seed {seed}");
        assert_eq!(net.all_idle(), Ok(()), "seed {seed}");
    }
}
