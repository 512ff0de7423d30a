//! Every kind of quorum system, groups that own cartels and groups that do not, and the serial
//! protocol, in clusters that run.

use crate::cluster::Cluster;

/// Somebody holds in this way, somebody else tries in that way: what becomes of it.
const TRIES: [(&[&str], &[&str], i32); 6] = [
    (&[], &[], 3),
    (&[], &["--shared"], 3),
    (&["--shared"], &["--shared"], 0),
    (&["--group", "red"], &["--group", "red"], 0),
    (&["--group", "red"], &["--group", "blue"], 3),
    // Nobody registered this group.
    (&["--group", "green"], &["--group", "blue"], 3),
];

fn excludes(cluster: &Cluster, name: &str) {
    for (holder, other, code) in TRIES {
        let holder = cluster.holder(&[&[name], holder].concat());
        let words = [&["lock", name, "--try"], other, &["--", "true"]].concat();
        let (got, _, told) = cluster.run(&words);
        assert_eq!(got, code, "{name}, {other:?}: {told}");
        assert_eq!(holder.leave(), 0);
    }
}

fn serves(arguments: &[&str], nodes: usize) {
    let cluster = Cluster::start(arguments);
    assert_eq!(cluster.nodes.len(), nodes, "{arguments:?}");
    excludes(&cluster, "one");
}

#[test]
fn the_classic_systems_serve() {
    serves(&["--quorum", "grid(9)"], 9);
    serves(&["--quorum", "plane(7)"], 7);
    serves(&["--quorum", "tree(7)"], 7);
    serves(&["--quorum", "walls(1,2,3)"], 6);
    serves(&["--quorum", "weighted(3,1,1,1)"], 4);
}

#[test]
fn billiard_and_composed_systems_serve() {
    serves(&["--quorum", "billiard(12, tiers=T1,T2)"], 12);
    serves(&["--quorum", "compose(majority(3), majority(3))"], 9);
    serves(&["--quorum", "expr(choose(2, a, b, c*d))"], 4);
}

#[test]
fn group_systems_serve_registered_groups_and_all_others() {
    let groups = ["--groups", "red,blue"];
    let surficial = ["--quorum", "surficial(groups=2, n=4)"];
    serves(&[surficial, groups].concat(), 4);
    serves(&[["--quorum", "affine(9, groups=2)"], groups].concat(), 9);
}

#[test]
fn names_of_a_prefix_use_the_serial_protocol() {
    let cluster = Cluster::start(&["--nodes", "3", "--policy", "jobs/:protocol=serial"]);
    excludes(&cluster, "jobs/a");
    let travels = |name: &str| {
        let (code, _, told) = cluster.run(&["lock", name, "--", "true"]);
        assert_eq!(code, 0, "{told}");
        let counts = cluster.nodes.iter().map(|node| {
            let (_, text) = crate::cluster::page(&format!("{}/metrics", node.api)).unwrap();
            let line = "conclave_messages_in_total{kind=\"TRAVEL\"} ";
            let count = text.lines().find_map(|row| row.strip_prefix(line));
            count.and_then(|count| count.parse::<u64>().ok()).unwrap()
        });
        counts.sum::<u64>()
    };
    let before = travels("other");
    assert_eq!(travels("other"), before, "other names do not travel");
    assert!(travels("jobs/b") > before, "names of the prefix do");
}

#[test]
fn a_policy_that_cannot_be_is_refused() {
    let home = tempfile::tempdir().unwrap();
    for (policy, told) in [
        ("jobs/", "PREFIX:KEY=VALUE"),
        ("jobs/:protocol=both", "not parallel or serial"),
        ("jobs/:max_inside=0", "max_inside must be at least 1"),
        ("jobs/:colour=red", "not one of protocol, choice"),
    ] {
        let mut command = crate::cluster::conclave(home.path());
        let (code, _, said) = crate::cluster::ran(command.args(["up", "--policy", policy]));
        assert_eq!(code, 2, "{policy}");
        assert!(said.contains(told), "{policy}: {said}");
    }
}
