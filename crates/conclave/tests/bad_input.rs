//! Bad input gets one clear line and exit 2: never a panic, never a half-done job.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

fn quorum(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conclave"))
        .arg("quorum")
        .args(args)
        .output()
        .unwrap()
}

/// One line of complaint that holds `expected`, nothing else, and exit 2.
fn refused(args: &[&str], expected: &str) {
    let output = quorum(args);
    let complaint = String::from_utf8(output.stderr).unwrap();
    let shown: String = args.join(" ").chars().take(100).collect();
    assert_eq!(output.status.code(), Some(2), "{shown}: {complaint}");
    assert!(output.stdout.is_empty(), "{shown} printed something");
    assert_eq!(complaint.lines().count(), 1, "{shown}: {complaint}");
    assert!(complaint.starts_with("error: "), "{shown}: {complaint}");
    assert!(complaint.contains(expected), "{shown}: {complaint}");
    assert!(!complaint.contains("panicked"), "{shown}: {complaint}");
    assert!(
        !complaint.contains('\u{1b}'),
        "{shown}: control characters are passed on"
    );
}

#[test]
fn systems_that_cannot_be() {
    for (system, expected) in [
        ("", ""),
        ("majority(0)", "at least 1"),
        ("majority(5", "character 11"),
        ("majority(5))", "character 12"),
        ("majority(5, 6)", ""),
        ("majorty(5)", "did you mean 'majority'"),
        ("majority(99999999999999999999999)", "number too large"),
        ("majority(1000000000)", "at most"),
        ("majority(-5)", ""),
        ("majority", "needs a number of nodes"),
        ("billiard(q=6)", "odd"),
        ("billiard(7)", "majority"),
        ("billiard(24, tiers=T9)", "T4"),
        ("plane(14)", "13 (s=3) or 21 (s=4)"),
        ("walls(0)", ""),
        ("walls()", ""),
        ("wheel(2)", "at least 3"),
        ("threshold(5, 6)", ""),
        ("weighted(0,0)", ""),
        ("weighted(18446744073709551615,1)", ""),
        ("masking(4, b=1)", "at least 5 nodes, or at most b=0"),
        ("mutex(5, b=1)", "at least 6 nodes"),
        ("mgrid(9, b=2)", "larger square"),
        ("masking(9, b=18446744073709551615)", ""),
        ("compose(majority(1000), majority(1000))", "at most 100000"),
        ("compose(surficial(groups=2, n=4), majority(3))", ""),
        ("hgrid(1000000x1000000)", ""),
        ("hierarchical(100000,100000)", ""),
        ("multilevel(tree, 10, levels=99)", ""),
        ("multilevel(plane, 100, levels=1)", "projective plane"),
        ("surficial(groups=5, n=4)", "at least 10 nodes"),
        ("affine(16, groups=9)", "1 to 5 groups"),
        ("groups(threshold(4,2), 2)", "share no node"),
        ("complete(expr(a + b))", "share no node"),
        ("expr(", ""),
        ("expr(a*)", ""),
        ("expr(choose(4, a, b))", ""),
        ("file(/does/not/exist)", "No such file"),
        ("file(/)", "not a file"),
        ("maj\u{1b}[31mority(5)", ""),
        ("majority(\u{ff15})", ""),
    ] {
        refused(&["analyze", system], expected);
        refused(&["show", system], expected);
    }
    let long = "a".repeat(100_000);
    refused(&["analyze", &long], "too long");
    let deep = format!("{}majority(3){}", "complete(".repeat(500), ")".repeat(500));
    refused(&["analyze", &deep], "");
    let wide = format!("expr({})", "maj(a,b,c)*".repeat(4000));
    refused(&["analyze", &wide], "");
}

#[test]
fn numbers_out_of_range() {
    refused(&["analyze", "majority(5)", "--down", "1.5"], "from 0 to 1");
    refused(&["analyze", "majority(5)", "--down", "nan"], "from 0 to 1");
    refused(&["analyze", "majority(5)", "--down", "-0.1"], "");
    refused(&["analyze", "majority(5)", "--up", "x"], "from 0 to 1");
    refused(&["analyze", "majority(5)", "--samples", "0"], "--samples");
    refused(&["compare", "majority(5)", "--down", "0.3..0.1"], "upwards");
    refused(&["compare", "majority(5)", "--points", "0"], "");
    refused(&["show", "majority(5)", "--site", "0"], "nodes 1 to 5");
    refused(&["show", "majority(5)", "--site", "6"], "nodes 1 to 5");
    refused(&["show", "majority(5)", "--avoid", "0"], "nodes 1 to 5");
    refused(&["show", "majority(5)", "--group", "1"], "no groups");
    refused(
        &["show", "surficial(groups=2, n=4)", "--group", "9"],
        "groups 1 to 2",
    );
    refused(&["show", "majority(101)", "--all"], "leave out --all");
    refused(&["show", "tree(8)", "--site", "8"], "assigns no quorum");
    refused(
        &["analyze", "majority(5)", "--nodes", "7"],
        "the cluster has 7",
    );
    refused(&["plan", "--nodes", "0"], "at least 1 node");
    refused(&["plan", "--nodes", "1000000000"], "too many");
    refused(
        &["plan", "--nodes", "9", "--groups", "2", "--byzantine", "1"],
        "--byzantine",
    );
    refused(
        &["plan", "--nodes", "9", "--favour", "latency"],
        "--latency",
    );
    refused(
        &["plan", "--nodes", "3", "--byzantine", "1"],
        "no system serves",
    );
    refused(
        &["plan", "--nodes", "9", "--favour", "beauty"],
        "possible values",
    );
    refused(&["tables", "--samples", "0"], "--samples");
}

#[test]
fn groups_that_share_a_cartel() {
    let assign = |pairs| ["check", "surficial(groups=2, n=4)", "--assign", pairs];
    refused(&assign("red=1,blue=1"), "share cartel 1");
    refused(&assign("red=1,red=2"), "registered twice");
    refused(&assign("red=3"), "cartels 1 to 2");
    refused(&assign("red=0"), "NAME=CARTEL");
    refused(&assign("red"), "NAME=CARTEL");
    refused(&["check", "majority(3)", "--assign", "red=1"], "no groups");
}

#[test]
fn files_that_cannot_be_read_or_understood() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for (content, expected) in [
        (&b""[..], ""),
        (b"1 2\n2 2\n", "line 2"),
        (b"nodes: a b a\na b\n", "line 1"),
        (b"nodes: a b\na c\n", "'c'"),
        (b"group x:\n1 2\ngroup x:\n1 3\n", "line 3"),
        (b"group x:\n1 2\ngroup y:\n3 4\n", ""),
        (b"\xff\xfe\x00", "UTF-8"),
    ] {
        let path = write("system", content);
        refused(&["check", &format!("file({path})")], expected);
    }
    for (content, expected) in [
        (&b""[..], ""),
        (b"1,1\n2,1\n", "3"),
        (b"1,1\n2,1\n2,1\n3,1\n", "line 3"),
        (b"1,1\n2,-1\n3,1\n", "line 2"),
        (b"1,1\n2,many\n3,1\n", "line 2"),
        (b"1,1\n2,1\n4,1\n", "line 3"),
        (b"1,inf\n2,1\n3,1\n", "line 1"),
    ] {
        let path = write("capacity.csv", content);
        refused(&["analyze", "majority(3)", "--capacity", &path], expected);
    }
    let down = write("down.csv", b"1,0.5\n2,1.5\n3,0\n");
    refused(&["analyze", "majority(3)", "--down-file", &down], "line 2");
    let domains = write("domains.csv", b"rack,0.5,1 9\n");
    refused(&["analyze", "majority(3)", "--domains", &domains], "line 1");
    let latency = write("latency.csv", b"west,1,2\n");
    refused(&["analyze", "majority(3)", "--latency", &latency], "line 1");
    refused(
        &["analyze", "majority(3)", "--latency", "/does/not/exist"],
        "No such file",
    );
}

#[test]
fn pictures_that_cannot_be_written() {
    refused(&["draw", "majority(3)", "-o", "out.txt"], ".svg nor .png");
    refused(
        &["draw", "majority(3)", "-o", "/does/not/exist/out.svg"],
        "No such file",
    );
    refused(
        &["draw", "majority(3)", "-o", "out.svg", "--scale", "0"],
        "--scale",
    );
    refused(&["draw", "majority(50000)", "-o", "out.svg"], "");
    refused(
        &["compare", "majority(3)", "--plot", "out.gif"],
        ".svg nor .png",
    );
}

#[test]
fn usage_errors_end_with_two() {
    for args in [
        &["show"][..],
        &["plan"],
        &["nonsense"],
        &["draw", "majority(3)"],
        &[],
    ] {
        assert_eq!(quorum(args).status.code(), Some(2), "{args:?}");
    }
}
