//! Cluster files: what they say, and what is said about wrong ones.

use std::time::Duration;

use conclave_protocol::lock::Restart;

use crate::cluster::{
    ChoiceText, Cluster, ClusterError, LimitsText, Node, PolicyText, ProtocolText, RestartText,
    Times, differences,
};
use crate::faults::{FaultsText, ObjectsText};
use crate::hierarchy::{CoterieText, TopologyText};
use crate::span::Span;

fn three() -> Cluster {
    let node = |id: u32| Node {
        id,
        peer: format!("127.0.0.1:{}", 7000 + id),
        api: format!("http://127.0.0.1:{}", 8000 + id),
        place: None,
    };
    Cluster {
        name: "test".into(),
        epoch: 1,
        quorum: "majority".into(),
        topology: None,
        coterie: None,
        groups: Vec::new(),
        restart: RestartText::Pause,
        times: Times::default(),
        limits: LimitsText::default(),
        faults: FaultsText::default(),
        policies: vec![PolicyText {
            prefix: "serial/".into(),
            max_inside: None,
            max_bypass: Some(0),
            protocol: Some(ProtocolText::Serial),
            choice: None,
        }],
        nodes: (1..=3).map(node).collect(),
    }
}

#[test]
fn a_file_comes_back_as_it_was_written() {
    let cluster = three();
    assert_eq!(Cluster::parse(&cluster.to_toml()), Ok(cluster));
}

/// A cluster that says everything it can.
fn detailed() -> Cluster {
    let span = |millis| Some(Span(Duration::from_millis(millis)));
    let mut cluster = three();
    cluster.quorum = "groups(majority(3), 2)".into();
    cluster.groups = vec!["red".into(), "blue, \"or\" green".into()];
    cluster.restart = RestartText::Durable;
    cluster.times = Times {
        link_ttl: span(1500),
        heartbeat: span(100),
        ttl_max: span(90_000),
        ttl_min: span(50),
    };
    let limits = &mut cluster.limits;
    for field in [
        &mut limits.waiters_per_lock,
        &mut limits.sessions_per_client,
        &mut limits.locks_per_client,
        &mut limits.connections,
        &mut limits.connections_per_client,
        &mut limits.memory_mib,
        &mut limits.locks,
        &mut limits.name_bytes,
        &mut limits.group_bytes,
        &mut limits.together,
    ] {
        *field = Some(77);
    }
    cluster.policies.push(PolicyText {
        prefix: "gpu/ü".into(),
        max_inside: Some(4),
        max_bypass: None,
        protocol: None,
        choice: Some(ChoiceText::Near),
    });
    cluster
}

#[test]
fn files_and_json_say_everything() {
    for cluster in [three(), detailed()] {
        assert_eq!(cluster.check(), Ok(()));
        let file = Cluster::parse(&cluster.to_toml()).unwrap();
        assert_eq!(file, cluster);
        let json = serde_json::to_string(&cluster).unwrap();
        let told: Cluster = serde_json::from_str(&json).unwrap();
        assert_eq!(told, cluster, "{json}");
        assert_eq!(told.digest(), cluster.digest());
    }
    let config = detailed().config().unwrap();
    assert_eq!(config.times.link_ttl, Duration::from_millis(1500));
    assert_eq!(config.limits.queue, 77);
    assert_eq!(config.restart, Restart::Durable);
    assert_eq!(config.id.digest, detailed().digest());
}

#[test]
fn numbers_that_a_file_cannot_say_are_refused() {
    let mut cluster = three();
    cluster.epoch = u64::MAX;
    assert!(
        cluster
            .check()
            .unwrap_err()
            .to_string()
            .starts_with("epoch")
    );
    assert!(Cluster::parse(&cluster.to_toml()).is_err());
    let mut cluster = three();
    cluster.limits.locks = Some(usize::MAX);
    assert!(
        cluster
            .check()
            .unwrap_err()
            .to_string()
            .starts_with("limits")
    );
}

#[test]
fn a_comma_does_not_make_two_groups_of_one() {
    let (mut one, mut two) = (detailed(), detailed());
    one.groups = vec!["a,b".into()];
    two.groups = vec!["a".into(), "b".into()];
    assert_ne!(one.digest(), two.digest());
}

#[test]
fn the_digest_covers_what_matters_and_not_addresses() {
    let one = three();
    let mut other = three();
    other.nodes[0].peer = "10.0.0.1:1".into();
    other.quorum = " majority ( 3 ) ".into();
    let differing = differences(&one.facts(), &other.facts());
    assert_eq!(
        differing.as_deref(),
        Some("quorum is 'majority' here and 'majority(3)' there")
    );
    other.quorum = "majority".into();
    assert_eq!(one.digest(), other.digest());
    other.policies[0].choice = Some(ChoiceText::Shared);
    assert_eq!(one.digest(), other.digest(), "that is the usual one");
    other.policies[0].choice = Some(ChoiceText::Near);
    assert_ne!(one.digest(), other.digest());
    other.epoch = 2;
    other.policies.clear();
    assert_ne!(one.digest(), other.digest());
    let differing = differences(&one.facts(), &other.facts()).unwrap();
    assert!(
        differing.contains("epoch is '1' here and '2' there"),
        "{differing}"
    );
    assert!(differing.contains("policies is"), "{differing}");
}

#[test]
fn each_wrong_field_is_named() {
    type Change = fn(&mut Cluster);
    let cases: [(&str, Change); 13] = [
        ("name", |c| c.name.clear()),
        ("nodes", |c| c.nodes.clear()),
        ("nodes", |c| c.nodes[1].api = "http://".into()),
        ("policies", |c| c.policies.push(c.policies[0].clone())),
        ("quorum", |c| c.quorum = "compose(".repeat(10_000)),
        ("nodes", |c| c.nodes[1].id = 1),
        ("nodes", |c| c.nodes[1].id = 9),
        ("nodes", |c| c.nodes[1].peer = "nowhere".into()),
        ("nodes", |c| c.nodes[1].api = "127.0.0.1:1".into()),
        ("quorum", |c| c.quorum = "majority(5)".into()),
        ("groups", |c| c.groups = vec!["red".into()]),
        ("times.heartbeat", |c| {
            c.times.heartbeat = Some(Span(Duration::from_secs(5)));
        }),
        ("limits", |c| c.limits.connections = Some(0)),
    ];
    for (expected, change) in cases {
        let mut cluster = three();
        change(&mut cluster);
        match cluster.check() {
            Err(ClusterError::Field { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    let text = three().to_toml().replace("epoch", "epcoh");
    let error = Cluster::parse(&text).unwrap_err().to_string();
    assert!(error.contains("epcoh"), "{error}");
}

fn of(nodes: u32, faults: FaultsText) -> Cluster {
    let mut cluster = three();
    cluster.nodes = (1..=nodes)
        .map(|id| Node {
            id,
            peer: format!("127.0.0.1:{}", 7000 + id),
            api: format!("http://127.0.0.1:{}", 8000 + id),
            place: None,
        })
        .collect();
    cluster.faults = faults;
    cluster
}

fn lying(byzantine: u32, objects: Option<ObjectsText>) -> FaultsText {
    FaultsText {
        byzantine: Some(byzantine),
        objects,
        ..FaultsText::default()
    }
}

#[test]
fn faults_are_told_only_if_they_are_not_the_usual_ones() {
    let (plain, mut usual) = (three(), three());
    usual.faults = lying(0, Some(ObjectsText::Vouched));
    usual.faults.delay = Some(Span(Duration::from_millis(50)));
    assert_eq!(usual.facts(), plain.facts());
    assert_eq!(usual.digest(), plain.digest());
    assert!(!plain.to_toml().contains("faults"));
    assert_eq!(Cluster::parse(&usual.to_toml()), Ok(usual));

    let text = of(7, FaultsText::default()).to_toml();
    let section = "[faults]\nbyzantine = 1\nspan_max = \"30s\"\n\n[[nodes]]";
    let cluster = Cluster::parse(&text.replacen("[[nodes]]", section, 1)).unwrap();
    let differing = differences(&of(7, FaultsText::default()).facts(), &cluster.facts());
    assert_eq!(
        differing.as_deref(),
        Some(
            "faults.byzantine is '(none)' here and '1' there; \
             faults.span_max is '(none)' here and '30s' there"
        )
    );
    let lease = cluster.lease_config().unwrap();
    assert_eq!((lease.faults.nodes(), lease.faults.liars()), (7, 1));
    assert_eq!(lease.span_max, Duration::from_secs(30));
    let object = cluster.object_config().unwrap().expect("objects are kept");
    assert_eq!((object.quorum, object.order_span.as_millis()), (5, 500));
    let off = of(4, lying(1, Some(ObjectsText::Off)));
    assert_eq!((off.check(), off.object_config()), (Ok(()), Ok(None)));
}

#[test]
fn too_few_nodes_are_refused_and_the_message_says_what_would_do() {
    let told = |nodes, byzantine, objects| {
        let checked = of(nodes, lying(byzantine, objects)).check();
        checked.map_err(|error| error.to_string())
    };
    assert_eq!(told(7, 1, None), Ok(()));
    assert_eq!(told(5, 1, Some(ObjectsText::Timed)), Ok(()));
    assert_eq!(told(4, 1, Some(ObjectsText::Off)), Ok(()));
    for (nodes, liars, objects, words) in [
        (6, 1, None, ["at least 7", "\"timed\"", "\"off\""]),
        (4, 1, None, ["at least 7", "objects", "\"off\""]),
        (
            4,
            1,
            Some(ObjectsText::Timed),
            ["at least 5", "timed", "\"off\""],
        ),
        (
            3,
            1,
            Some(ObjectsText::Off),
            ["a lease", "at least 4", "not 3"],
        ),
        (
            100,
            u32::MAX,
            None,
            ["a lease", "needs at least", "not 100"],
        ),
    ] {
        let error = told(nodes, liars, objects).unwrap_err();
        assert!(error.starts_with("faults.byzantine: "), "{error}");
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
    assert!(!told(4, 1, None).unwrap_err().contains("\"timed\""));
}

#[test]
fn strange_times_and_sizes_of_faults_are_refused() {
    type Change = fn(&mut FaultsText);
    let cases: [(&str, Change); 5] = [
        ("faults.delay", |f| f.delay = Some(Span(Duration::ZERO))),
        ("faults.order_span", |f| {
            f.order_span = Some(Span(Duration::from_millis(399)));
        }),
        ("faults.order_span", |f| {
            f.order_span = Some(Span(Duration::from_secs(61)));
        }),
        ("faults.span_max", |f| {
            f.span_max = Some(Span(Duration::MAX));
        }),
        ("faults.object_size_max", |f| f.object_size_max = Some(7)),
    ];
    for (expected, change) in cases {
        let mut cluster = three();
        change(&mut cluster.faults);
        match cluster.check() {
            Err(ClusterError::Field { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

/// Six nodes in two regions of two racks each.
const PLACED: &str = r#"
name = "wide"
epoch = 1
topology = "multilevel"
coterie = ["majority", "tree", "tree"]
[[nodes]]
id = 1
peer = "127.0.0.1:7001"
api = "http://127.0.0.1:8001"
place = "eu/r1"
[[nodes]]
id = 2
peer = "127.0.0.1:7002"
api = "http://127.0.0.1:8002"
place = "eu/r1"
[[nodes]]
id = 3
peer = "127.0.0.1:7003"
api = "http://127.0.0.1:8003"
place = "eu/r2"
[[nodes]]
id = 4
peer = "127.0.0.1:7004"
api = "http://127.0.0.1:8004"
place = "us/r1"
"#;

#[test]
fn places_make_a_hierarchy() {
    let cluster = Cluster::parse(PLACED).unwrap();
    assert_eq!(
        cluster.quorum,
        "multilevel([majority,tree,tree], sizes=[[2,1],[1]])"
    );
    let topology = cluster.topology().unwrap();
    assert_eq!((topology.nodes(), topology.levels()), (4, 2));
    assert_eq!(cluster.facts()["topology"], "multilevel");
    // What is told to clients and written to files says the same.
    assert_eq!(Cluster::parse(&cluster.to_toml()), Ok(cluster.clone()));
    // The system written out is the same configuration as the places that make it.
    let mut written = cluster.clone();
    written.topology = None;
    written.coterie = None;
    written.nodes.iter_mut().for_each(|node| node.place = None);
    assert_eq!(written.check(), Ok(()));
    assert_eq!(written.digest(), cluster.digest());
    let mut elsewhere = cluster.clone();
    elsewhere.quorum.clear();
    elsewhere.nodes[2].place = Some("eu/r1".into());
    elsewhere.complete().unwrap();
    assert_ne!(elsewhere.digest(), cluster.digest());
}

#[test]
fn a_hierarchy_is_served_as_one_unless_the_file_says_flat() {
    let mut cluster = three();
    assert!(cluster.topology().is_none() && !cluster.is_hierarchy());
    cluster.quorum = "multilevel(tree, levels=1)".into();
    let told = cluster.check().unwrap_err().to_string();
    assert!(told.contains("serial"), "{told}");
    cluster.policies.retain(|policy| policy.protocol.is_none());
    assert_eq!(cluster.check(), Ok(()));
    let levels = cluster.topology().map(|topology| topology.levels());
    assert_eq!(levels, Some(1));
    let digest = cluster.digest();
    cluster.topology = Some(TopologyText::Multilevel);
    assert_eq!(cluster.digest(), digest);
    cluster.topology = Some(TopologyText::Flat);
    assert!(cluster.topology().is_none());
    assert_ne!(cluster.digest(), digest);
    // Places of a flat cluster are for people alone.
    cluster.quorum = "majority".into();
    cluster.nodes[0].place = Some("eu".into());
    assert_eq!(cluster.check(), Ok(()));
}

#[test]
fn wrong_places_are_told_in_one_line() {
    let said = |change: &dyn Fn(&mut Cluster)| {
        let mut cluster: Cluster = toml::from_str(PLACED).unwrap();
        change(&mut cluster);
        let told = cluster.complete().and_then(|()| cluster.check());
        let told = told.unwrap_err().to_string();
        assert!(!told.contains('\n'), "{told}");
        told
    };
    let place = |node: usize, place: &'static str| {
        move |cluster: &mut Cluster| cluster.nodes[node].place = Some(place.into())
    };
    assert_eq!(
        said(&place(3, "eu/r1")),
        "nodes: node 4 is in 'eu/r1' again after nodes elsewhere; \
         number the nodes of one place one after the other"
    );
    assert_eq!(
        said(&place(2, "eu")),
        "nodes: node 3 is at a place of 1 parts and node 1 at one of 2; \
         give every node as many, such as eu/rack-1"
    );
    let path = "nodes: place of node 3 is not a path such as eu/rack-1 \
                (at most 20 parts and 200 bytes, no spaces)";
    for wrong in ["", "eu//r1", "/", "eu/r 1"] {
        assert_eq!(said(&place(2, wrong)), path);
    }
    assert_eq!(
        said(&|cluster| cluster.nodes[1].place = None),
        "nodes: node 2 has no place and others have one"
    );
    let none = |cluster: &mut Cluster| cluster.nodes.iter_mut().for_each(|node| node.place = None);
    assert_eq!(
        said(&none),
        "quorum: is missing; write one such as quorum = \"majority\""
    );
    assert_eq!(
        said(&|cluster| {
            none(cluster);
            cluster.quorum = "majority".into();
        }),
        "coterie: is for nodes with places; without them the quorum system says it, \
         as in quorum = \"multilevel([majority,tree], levels=1)\""
    );
    assert_eq!(
        said(&|cluster| {
            none(cluster);
            cluster.coterie = None;
            cluster.quorum = "majority".into();
        }),
        "topology: multilevel needs a place at every node, such as place = \"eu/rack-1\", \
         or quorum = \"multilevel(tree, levels=1)\""
    );
    assert_eq!(
        said(&|cluster| cluster.quorum = "multilevel(tree, 4)".into()),
        "quorum: is not what the places of the nodes make: leave quorum out, or the places"
    );
    assert_eq!(
        said(&|cluster| cluster.coterie = Some(CoterieText::Each(vec!["tree".into(); 2]))),
        "coterie: has 2 coteries for 3 levels of clusters: the places have 2 parts, \
         and the root comes first"
    );
    let coterie = |text: &str| {
        let text = text.to_owned();
        said(&move |cluster| cluster.coterie = Some(CoterieText::All(text.clone())))
    };
    assert!(coterie("tre").starts_with("coterie: unknown form 'tre'"));
    assert!(coterie("tree(3)").starts_with("coterie: inner of multilevel cannot be this tree"));
    assert!(coterie("plane").starts_with("quorum: "));
}
