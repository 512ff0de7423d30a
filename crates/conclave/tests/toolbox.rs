//! The quorum toolbox as a user runs it: the real binary, its output and its exit codes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn conclave(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(args)
        .output()
        .unwrap()
}

fn quorum(args: &[&str]) -> Output {
    conclave(&[&["quorum"], args].concat())
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The standard output of a run that must end with 0.
fn ok(args: &[&str]) -> String {
    let output = quorum(args);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {complaint}");
    text(&output)
}

fn json(args: &[&str]) -> Value {
    let printed = ok(&[args, &["--json"]].concat());
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{args:?}: {error}: {printed}"))
}

fn near(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap();
    assert!((value - expected).abs() < 1e-9, "{value} is not {expected}");
}

/// A folder with a file in it.
fn file(name: &str, content: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    (folder, path)
}

/// Whether every tag of an SVG that opens also closes, in order.
fn is_balanced(svg: &str) -> bool {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap();
        let name = tag
            .trim_start_matches('/')
            .split([' ', '/'])
            .next()
            .unwrap();
        match tag {
            _ if tag.starts_with(['?', '!']) || tag.ends_with('/') => {}
            _ if tag.starts_with('/') => {
                if open.pop() != Some(name) {
                    return false;
                }
            }
            _ => open.push(name),
        }
    }
    open.is_empty()
}

fn check_picture(path: &Path) {
    let bytes = fs::read(path).unwrap();
    if path.extension().unwrap() == "png" {
        assert!(
            bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.len() > 1000,
            "{}",
            path.display()
        );
    } else {
        let svg = String::from_utf8(bytes).unwrap();
        assert!(
            svg.contains("<svg") && is_balanced(&svg),
            "{}",
            path.display()
        );
    }
}

#[test]
fn list_names_every_form_with_an_example() {
    let printed = ok(&["list"]);
    let forms = json(&["list"]);
    let forms = forms["forms"].as_array().unwrap();
    assert!(forms.len() >= 28);
    for form in forms {
        assert!(printed.contains(form["syntax"].as_str().unwrap()));
        if form["form"] != "file" {
            assert!(form["example_nodes"].as_u64() > Some(0), "{form}");
        }
    }
}

#[test]
fn show_prints_the_papers_quorums() {
    assert_eq!(
        ok(&["show", "billiard(40)", "--site", "11"]),
        "{11, 15, 16, 18, 19, 21, 22, 23, 26}\n"
    );
    let all = json(&["show", "billiard(4, tiers=T0)", "--all"]);
    assert_eq!(all["n"], 4);
    assert_eq!(
        all["quorums"],
        serde_json::json!([[1, 2, 3], [2, 3, 4], [1, 3, 4], [1, 2, 4]])
    );
    let group = json(&["show", "surficial(groups=3, n=12)", "--group", "2", "--all"]);
    assert_eq!(
        group["quorums"],
        serde_json::json!([[1, 3, 9, 10], [2, 4, 11, 12]])
    );
    assert_eq!(ok(&["show", "expr(a*b)", "--all"]), "{a, b}\n");
}

#[test]
fn show_picks_a_quorum_that_avoids() {
    let picked = json(&["show", "billiard(40)", "--avoid", "3,17"]);
    let quorum: Vec<u64> = serde_json::from_value(picked["quorums"][0].clone()).unwrap();
    assert!(quorum.is_sorted() && !quorum.contains(&3) && !quorum.contains(&17));
    assert_eq!(
        ok(&["show", "grid(100)", "--seed", "5"]),
        ok(&["show", "grid(100)", "--seed", "5"]),
        "the same seed gives the same pick"
    );
    let none = quorum_exit(&["show", "majority(3)", "--avoid", "1,2"]);
    assert_eq!(none, Some(1));
}

fn quorum_exit(args: &[&str]) -> Option<i32> {
    quorum(args).status.code()
}

#[test]
fn check_tells_what_holds_and_what_fails() {
    let good = json(&["check", "surficial(groups=3, n=12)"]);
    assert_eq!(good["ok"], true);
    assert_eq!(good["properties"]["intersection"], true);
    assert_eq!(good["properties"]["degree"], 2);
    assert_eq!(good["counterexample"], Value::Null);
    let bad = quorum(&["check", "threshold(4, 2)", "--json"]);
    assert_eq!(bad.status.code(), Some(1));
    let bad: Value = serde_json::from_slice(&bad.stdout).unwrap();
    assert_eq!(bad["ok"], false);
    assert_eq!(bad["counterexample"]["property"], "intersection");
    let sets = bad["counterexample"]["quorums"].as_array().unwrap();
    let shared = sets[0].as_array().unwrap().iter();
    assert!(
        !shared
            .clone()
            .any(|node| sets[1].as_array().unwrap().contains(node))
    );
    let printed = quorum(&["check", "threshold(4, 2)"]);
    assert!(text(&printed).contains("violation: intersection fails"));
    let grid = json(&["check", "grid(9)"]);
    assert_eq!(grid["ok"], true);
    assert_eq!(grid["properties"]["nondominated"], false);
    ok(&[
        "check",
        "surficial(groups=2, n=4)",
        "--assign",
        "red=1,blue=2",
    ]);
}

#[test]
fn check_finds_a_needless_quorum_of_a_file() {
    let (_folder, path) = file("q.txt", "1 2\n2 3\n1 2 3\n");
    let output = quorum(&["check", &format!("file({})", path.display())]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("{1, 2, 3} contains the quorum {1, 2}"));
}

#[test]
fn analyze_gives_the_known_values() {
    for (system, load) in [
        ("majority(5)", 0.6),
        ("grid(16)", 7.0 / 16.0),
        ("plane(13)", 4.0 / 13.0),
        ("billiard(40)", 0.25),
        ("weighted(3,1,1,1)", 1.0),
    ] {
        let found = json(&["analyze", system]);
        near(&found["load"]["value"], load);
        near(&found["load"]["lower"], load);
        near(&found["load"]["upper"], load);
        assert_eq!(found["load"]["exact"], true, "{system}");
        near(&found["capacity"], 1.0 / load);
    }
    let five = json(&["analyze", "majority(5)", "--down", "0.1"]);
    near(&five["failure_probability"]["value"], 0.00856);
    assert_eq!(five["failure_probability"]["exact"], true);
    assert_eq!(five["kind"], "coterie");
    assert_eq!(five["n"], 5);
    assert_eq!(five["resilience"], 2);
    assert_eq!(five["size"]["min"], 3);
    let up = json(&["analyze", "majority(5)", "--up", "0.9"]);
    near(&up["failure_probability"]["value"], 0.00856);
}

#[test]
fn analyze_is_exact_on_a_thousand_nodes() {
    let walls: Vec<String> = (1..=45).map(|width: u32| width.to_string()).collect();
    let walls = format!("walls({})", walls.join(","));
    for system in [
        "majority(1001)",
        "grid(1024)",
        "tree(1023)",
        walls.as_str(),
        "multilevel(tree, 1200, levels=2)",
    ] {
        let found = json(&["analyze", system, "--down", "0.05"]);
        assert_eq!(found["load"]["exact"], true, "{system}");
        assert_eq!(found["failure_probability"]["exact"], true, "{system}");
        assert!(found["n"].as_u64() >= Some(1000));
    }
    near(
        &json(&["analyze", "plane(993)"])["load"]["value"],
        32.0 / 993.0,
    );
    let board = json(&["analyze", "billiard(1104)"]);
    near(&board["load"]["value"], 1.0 / 23.0);
    assert_eq!(board["load"]["exact"], true);
}

#[test]
fn analyze_never_calls_a_simulated_value_exact() {
    let found = json(&["analyze", "plane(57)", "--down", "0.3", "--samples", "2000"]);
    let failure = &found["failure_probability"];
    assert_eq!(failure["exact"], false);
    assert!(failure["low"].as_f64() < failure["high"].as_f64());
    let none = json(&[
        "analyze",
        "plane(57)",
        "--down",
        "0.0001",
        "--samples",
        "100",
    ]);
    assert!(
        none["failure_probability"]["high"].as_f64() > Some(0.01),
        "{none}"
    );
}

#[test]
fn analyze_names_the_tiers_it_measured() {
    assert!(ok(&["analyze", "billiard(24)", "--down", "0.05"]).contains("T1,T2,T4"));
    let found = json(&["analyze", "billiard(24)", "--down", "0.05"]);
    assert_eq!(found["tiers"]["load"], "T1");
    assert_eq!(found["tiers"]["failure_probability"], "T1,T2,T4");
}

#[test]
fn analyze_reads_its_files() {
    let (_a, capacity) = file("cap.csv", "node,capacity\n1,2\n2,1\n3,1\n");
    let capacity = capacity.to_str().unwrap();
    // Two of three nodes: the strong one in every quorum, the others half the time.
    near(
        &json(&["analyze", "majority(3)", "--capacity", capacity])["load"]["value"],
        0.5,
    );
    let (_b, down) = file("down.csv", "1,0\n2,0.5\n3,0.5\n");
    let found = json(&[
        "analyze",
        "majority(3)",
        "--down-file",
        down.to_str().unwrap(),
    ]);
    near(&found["failure_probability"]["value"], 0.25);
    let (_c, domains) = file("domains.csv", "rack,0.1,1 2\n");
    let found = json(&[
        "analyze",
        "majority(3)",
        "--domains",
        domains.to_str().unwrap(),
    ]);
    near(&found["failure_probability"]["value"], 0.1);
    let (_d, latency) = file("rtt.csv", "client,1,2,3\nwest,1,2,30\neast,30,20,1\n");
    let found = json(&[
        "analyze",
        "majority(3)",
        "--latency",
        latency.to_str().unwrap(),
    ]);
    near(&found["latency_ms"]["nearest_p50"], 2.0);
    near(&found["latency_ms"]["nearest_p99"], 20.0);
}

#[test]
fn analyze_shows_groups_one_by_one() {
    let found = json(&["analyze", "surficial(groups=3, n=12)", "--down", "0.2"]);
    assert_eq!(found["kind"], "groups");
    assert_eq!(found["cartels"].as_array().unwrap().len(), 3);
    let live = 1.0 - found["failure_probability"]["value"].as_f64().unwrap();
    assert!((live - 0.651).abs() < 0.0005, "{live}");
    assert!(found["exclusive"]["size"]["min"].as_u64() == Some(7));
}

#[test]
fn compare_draws_and_tables_agree() {
    let folder = TempDir::new().unwrap();
    for name in ["out.svg", "out.png"] {
        let path = folder.path().join(name);
        let plot = path.to_str().unwrap();
        let systems = ["majority(25)", "grid(25)", "billiard(24)", "tree(31)"];
        let args = [
            &["compare"],
            &systems[..],
            &["--down", "0.01..0.3", "--points", "5"],
        ]
        .concat();
        let printed = ok(&[args.as_slice(), &["--plot", plot]].concat());
        assert!(systems.iter().all(|system| printed.contains(system)));
        check_picture(&path);
    }
    let found = json(&[
        "compare",
        "majority(3)",
        "majority(5)",
        "--down",
        "0..1",
        "--points",
        "3",
    ]);
    let curve = &found["systems"][1]["curve"];
    let values: Vec<f64> = (0..3)
        .map(|at| curve[at]["failure_probability"]["value"].as_f64().unwrap())
        .collect();
    assert!((values[0], values[2]) == (0.0, 1.0) && (values[1] - 0.5).abs() < 1e-12);
    let tables = json(&["tables", "--samples", "2000"]);
    assert_eq!(tables["deviations"], 0);
    assert!(tables["tables"].as_array().unwrap().len() > 6);
}

#[test]
fn plan_ranks_with_reasons() {
    let plan = json(&["plan", "--nodes", "24", "--down", "0.02"]);
    let ranking = plan["ranking"].as_array().unwrap();
    assert!(ranking.len() >= 5);
    for choice in ranking {
        assert!(choice["load"].as_f64() > Some(0.0));
        assert!(choice["failure_probability"].is_f64() && choice["messages"].is_f64());
        assert!(choice["why"].as_str().unwrap().len() > 10 && choice["system"].is_string());
    }
    assert!(plan["runner_up"].as_str().unwrap().contains("instead of"));
    let load = json(&["plan", "--nodes", "24", "--favour", "load"]);
    assert_eq!(load["ranking"][0]["system"], "triangular(24)");
    let liars = json(&["plan", "--nodes", "9", "--byzantine", "1"]);
    let systems = liars["ranking"].as_array().unwrap().iter();
    assert!(
        systems
            .clone()
            .any(|choice| choice["system"] == "mutex(9, b=1)")
    );
    let groups = json(&["plan", "--nodes", "12", "--groups", "3", "--down", "0.02"]);
    let systems = groups["ranking"].as_array().unwrap().iter();
    assert!(
        systems
            .clone()
            .any(|choice| choice["system"] == "surficial(groups=3, n=12)")
    );
}

#[test]
fn draw_writes_pictures_of_every_shape() {
    let folder = TempDir::new().unwrap();
    for (place, args) in [
        &["billiard(40)", "--site", "11"][..],
        &[
            "billiard(40)",
            "--site",
            "11",
            "--with",
            "34",
            "--antipodal",
            "3",
        ],
        &["billiard(20)", "--avoid", "3,17"],
        &["billiard(24, tiers=T0)", "--heat"],
        &["grid(25)", "--avoid", "3,17"],
        &["tree(15)"],
        &["walls(1,2,3)"],
        &["plane(13)", "--site", "2"],
        &["surficial(groups=3, n=12)", "--group", "2"],
        &["multilevel(tree, 27, levels=2)"],
        &["hgrid(3x3, 3x3)"],
        &["hierarchical(3,3,3)"],
        &["mgrid(36, b=2)"],
        &["majority(5)"],
        &["expr(choose(2, a, b, c*d))"],
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.path().join(format!("{place}.svg"));
        ok(&[&["draw"], args, &["-o", path.to_str().unwrap()]].concat());
        check_picture(&path);
    }
    let path = folder.path().join("out.png");
    ok(&[
        "draw",
        "billiard(40)",
        "--site",
        "11",
        "-o",
        path.to_str().unwrap(),
    ]);
    check_picture(&path);
}

#[test]
fn help_and_completions_are_there() {
    for command in [
        "list", "show", "check", "analyze", "compare", "plan", "draw", "tables",
    ] {
        assert!(ok(&[command, "--help"]).contains("Usage:"), "{command}");
    }
    let script = conclave(&["completions", "bash"]);
    assert!(script.status.success() && text(&script).contains("conclave"));
    assert!(text(&conclave(&["--version"])).starts_with("conclave "));
}

#[test]
fn forms_without_a_size_take_the_clusters() {
    assert_eq!(json(&["analyze", "majority", "--nodes", "7"])["n"], 7);
    assert_eq!(
        json(&["analyze", "compose(majority, grid(4))", "--nodes", "12"])["n"],
        12
    );
    assert_eq!(
        quorum_exit(&["analyze", "majority(5)", "--nodes", "7"]),
        Some(2)
    );
}
