//! Why a request waits, as its node tells.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::time::Duration;

use conclave_protocol::id::{Name, SessionId};
use conclave_protocol::lock::{Config, Mode, Policy, Why};

use harness::{Cluster, config};

/// One node, and clients that ask for lock `a` one after another.
fn queue(policy: Policy, modes: &[Mode]) -> Cluster {
    let mut config: Config = config("singleton(1)", &[]);
    config.policies.push((Vec::new(), policy));
    let mut cluster = Cluster::new(config, modes.len());
    for (client, mode) in modes.iter().enumerate() {
        cluster.acquire(client, 1, "a", mode.clone());
        cluster.drain();
        cluster.jump(Duration::from_millis(1));
    }
    cluster
}

fn whys(cluster: &Cluster) -> Vec<Option<Why>> {
    let node = cluster.nodes[0].as_ref().unwrap();
    let reasons = node.reasons(&Name::new("a"), cluster.now.mono);
    reasons.into_iter().map(|reason| reason.why).collect()
}

fn session(cluster: &Cluster, client: usize) -> SessionId {
    cluster.session(client, 1, "a").unwrap()
}

#[test]
fn a_holder_is_in_the_way() {
    let mut cluster = queue(Policy::default(), &[Mode::Exclusive, Mode::Exclusive]);
    let first = session(&cluster, 0);
    let held = |why: &Option<Why>| matches!(why, Some(Why::Held(by, _)) if *by == first);
    let told = whys(&cluster);
    assert_eq!(told[0], None);
    assert!(held(&told[1]), "{told:?}");
    cluster.pass(Duration::from_secs(2));
    let node = cluster.nodes[0].as_ref().unwrap();
    let reason = node.reasons(&Name::new("a"), cluster.now.mono)[0];
    assert!(reason.granted.unwrap() >= Duration::from_secs(2));
    assert!(
        reason.expires.unwrap() > Duration::from_secs(9),
        "{reason:?}"
    );
}

#[test]
fn a_group_waits_for_another_and_late_members_for_their_limits() {
    let (red, blue) = (Mode::group("red"), Mode::group("blue"));
    let policy = Policy {
        max_bypass: 1,
        ..Policy::default()
    };
    // Red is inside, blue waits, one more red passes it, and then no more.
    let modes = [&red, &blue, &red, &red].map(Clone::clone);
    let cluster = queue(policy, &modes);
    let told = whys(&cluster);
    assert!(matches!(told[1], Some(Why::Held(..))), "{told:?}");
    assert_eq!(told[2], None);
    assert_eq!(told[3], Some(Why::BypassLimit(1)));

    let policy = Policy {
        max_inside: 2,
        ..Policy::default()
    };
    let cluster = queue(policy, &[&red, &red, &red].map(Clone::clone));
    assert_eq!(whys(&cluster), [None, None, Some(Why::MaxInside(2))]);
}

#[test]
fn a_pausing_node_says_for_how_long() {
    let mut cluster = queue(Policy::default(), &[Mode::Exclusive]);
    assert_eq!(
        cluster.nodes[0]
            .as_ref()
            .unwrap()
            .pauses_for(cluster.now.mono),
        None
    );
    cluster.crash(0);
    cluster.restart(0);
    let node = cluster.nodes[0].as_ref().unwrap();
    let pause = node.pauses_for(cluster.now.mono).unwrap();
    assert!(pause > Duration::from_secs(5), "{pause:?}");
}
