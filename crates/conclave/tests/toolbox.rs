//! The commands of the toolbox, run as a user runs them.

use std::path::Path;

use serde_json::Value;

mod common;

use common::{Run, conclave, directory, put};

/// One example of every form, of a size that can be listed or drawn at once.
const EXAMPLES: &[&str] = &[
    "singleton(3)",
    "majority(5)",
    "threshold(5, 4)",
    "weighted(3,1,1,1)",
    "grid(10)",
    "rect(3, 4)",
    "plane(13)",
    "tree(7)",
    "wheel(6)",
    "walls(1,2,3)",
    "triangular(10)",
    "hierarchical(3,3)",
    "hgrid(2x2, 2x3)",
    "billiard(12)",
    "billiard(13, tiers=T0)",
    "billiard(14, fit=trim)",
    "hbilliard(3,3)",
    "compose(majority(3), grid(4))",
    "multilevel(tree, 20, levels=1)",
    "masking(9, b=2)",
    "mutex(6, b=1)",
    "ordering(7, b=1)",
    "free(4, b=1)",
    "mgrid(9, b=1)",
    "surficial(groups=3, n=12)",
    "surficial(groups=3, n=12, fallback=nondominated)",
    "surficial(widths=1,2,3)",
    "affine(9, groups=4, fallback=balanced)",
    "groups(majority(5), 3)",
    "complete(grid(9))",
    "expr(choose(2, a, b, c*d))",
];

/// Runs a command of the toolbox that must succeed.
fn ok(directory: &Path, arguments: &[&str]) -> Run {
    let run = conclave(directory, &[&["quorum"], arguments].concat());
    let (out, err) = (&run.out, &run.err);
    assert_eq!(run.code, Some(0), "{arguments:?}\n{out}{err}");
    assert!(run.err.is_empty(), "{arguments:?} complains: {}", run.err);
    assert!(!run.out.is_empty(), "{arguments:?} prints nothing");
    run
}

/// Runs a command with `--json` that must end with this exit code; gives what it printed.
fn json_with(directory: &Path, arguments: &[&str], code: i32) -> Value {
    let run = conclave(directory, &[&["quorum"], arguments, &["--json"]].concat());
    assert_eq!(
        run.code,
        Some(code),
        "{arguments:?}\n{}{}",
        run.out,
        run.err
    );
    assert!(run.err.is_empty(), "{arguments:?} complains: {}", run.err);
    serde_json::from_str(&run.out).unwrap_or_else(|why| panic!("{arguments:?}: {why}\n{}", run.out))
}

/// Runs a command with `--json` in no directory of its own.
fn json(arguments: &[&str]) -> Value {
    json_with(directory().path(), arguments, 0)
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{value} is no list"))
}

fn near(value: &Value, expected: f64) {
    let value = number(value);
    assert!(
        (value - expected).abs() < 1e-9,
        "{value} instead of {expected}"
    );
}

/// The quorums of a `show`, each with its nodes in ascending order from 1 to n.
fn quorums(shown: &Value) -> Vec<Vec<u64>> {
    let nodes = shown["n"].as_u64().expect("n is a number");
    list(&shown["quorums"])
        .iter()
        .map(|quorum| {
            let quorum: Vec<u64> = list(quorum)
                .iter()
                .map(|node| node.as_u64().expect("a node number"))
                .collect();
            assert!(
                quorum.is_sorted_by(|a, b| a < b),
                "{quorum:?} is not ascending"
            );
            assert!(quorum.iter().all(|node| (1..=nodes).contains(node)));
            quorum
        })
        .collect()
}

fn meet(left: &[u64], right: &[u64]) -> bool {
    left.iter().any(|node| right.contains(node))
}

#[test]
fn list_shows_every_form_with_an_example_that_works() {
    let here = directory();
    let text = ok(here.path(), &["list"]).out;
    let listed = json_with(here.path(), &["list"], 0);
    let forms = list(&listed["forms"]);
    assert!(forms.len() >= 24, "{} forms", forms.len());
    for form in forms {
        let name = form["form"].as_str().expect("a name");
        assert!(text.contains(name), "the text leaves out {name}");
        for field in ["syntax", "what", "needs", "kind", "example"] {
            assert!(form[field].is_string(), "{name} has no {field}");
        }
        let example = form["example"].as_str().expect("an example");
        if name != "file" {
            let shown = json_with(here.path(), &["show", example], 0);
            assert_eq!(shown["n"], form["example_nodes"], "{name}");
        }
        let known = EXAMPLES.iter().any(|example| example.starts_with(name));
        assert!(known || name == "file", "no example of {name} is tested");
    }
}

#[test]
fn every_form_goes_through_every_command() {
    let here = directory();
    for system in EXAMPLES {
        let shown = json_with(here.path(), &["show", system], 0);
        assert_eq!(shown["system"], *system);
        assert_eq!(quorums(&shown).len(), 1, "{system}");
        let checked = json_with(here.path(), &["check", system], 0);
        assert_eq!(checked["ok"], true, "{system}");
        assert_eq!(checked["counterexample"], Value::Null, "{system}");
        assert_eq!(checked["properties"]["intersection"], true, "{system}");
        let measured = json_with(here.path(), &["analyze", system, "--down", "0.1"], 0);
        measures(&measured, system);
        assert_eq!(measured["kind"], checked["kind"], "{system}");
        ok(here.path(), &["draw", system, "-o", "out.svg"]);
        balanced(&read(here.path(), "out.svg"));
        for command in ["show", "check"] {
            ok(here.path(), &[command, system]);
        }
        ok(here.path(), &["analyze", system, "--down", "0.1"]);
    }
}

/// Asserts the shape of an analysis with failures, and that its numbers can be.
fn measures(measured: &Value, system: &str) {
    let nodes = number(&measured["n"]);
    let (min, max) = (&measured["size"]["min"], &measured["size"]["max"]);
    let (min, max) = (number(min), number(max));
    assert!(
        1.0 <= min && min <= max && max <= nodes,
        "{system}: {min}-{max}"
    );
    let load = &measured["load"];
    let (lower, upper) = (number(&load["lower"]), number(&load["upper"]));
    assert!(
        0.0 < lower && lower <= upper + 1e-9 && upper <= 1.0 + 1e-9,
        "{system}: {load}"
    );
    near(&load["value"], upper);
    assert!(load["exact"].is_boolean());
    near(&measured["capacity"], 1.0 / upper);
    assert!(number(&measured["resilience"]) < nodes, "{system}");
    let failure = &measured["failure_probability"];
    let (low, high) = (number(&failure["low"]), number(&failure["high"]));
    let value = number(&failure["value"]);
    assert!(
        0.0 <= low && low <= value && value <= high && high <= 1.0,
        "{system}: {failure}"
    );
    assert!(failure["exact"].is_boolean());
    assert!(number(&measured["messages"]["maekawa_m"]) > 0.0, "{system}");
    let loads = list(&measured["node_loads"]);
    assert_eq!(loads.len() as f64, nodes, "{system}");
    let most = loads.iter().map(number).fold(0.0, f64::max);
    assert!(
        (most - upper).abs() < 1e-6,
        "{system}: {most} is not {upper}"
    );
}

#[test]
fn show_lists_all_minimal_quorums() {
    let majority = quorums(&json(&["show", "majority(5)", "--all"]));
    assert_eq!(majority.len(), 10);
    assert!(majority.iter().all(|quorum| quorum.len() == 3));
    let plane = quorums(&json(&["show", "plane(13)", "--all"]));
    assert_eq!(plane.len(), 13);
    assert!(plane.iter().all(|line| line.len() == 4));
    for (place, left) in plane.iter().enumerate() {
        for right in &plane[..place] {
            assert_eq!(left.iter().filter(|node| right.contains(node)).count(), 1);
        }
    }
    let tree = quorums(&json(&["show", "tree(3)", "--all"]));
    assert_eq!(tree, [[1, 2], [1, 3], [2, 3]]);
}

#[test]
fn show_gives_a_site_its_own_quorum() {
    let own = quorums(&json(&["show", "billiard(40)", "--site", "11"]));
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].len(), 9);
    assert!(own[0].contains(&11));
    let sites: Vec<Vec<u64>> = (1..=40)
        .map(|site: u64| {
            let text = site.to_string();
            quorums(&json(&["show", "billiard(40)", "--site", &text])).remove(0)
        })
        .collect();
    for (place, left) in sites.iter().enumerate() {
        assert!(left.contains(&(place as u64 + 1)));
        assert!(sites.iter().all(|right| meet(left, right)));
    }
    assert_eq!(
        quorums(&json(&["show", "plane(7)", "--site", "1"])).len(),
        1
    );
}

#[test]
fn show_picks_around_nodes_to_avoid() {
    let here = directory();
    let picked = quorums(&json(&["show", "billiard(40)", "--avoid", "3,17"]));
    assert!(!meet(&picked[0], &[3, 17]));
    let again = quorums(&json(&["show", "billiard(40)", "--avoid", "3,17"]));
    assert_eq!(picked, again, "the same seed picks the same quorum");
    let seeds: Vec<_> = (1..=8)
        .map(|seed: u64| quorums(&json(&["show", "majority(9)", "--seed", &seed.to_string()])))
        .collect();
    assert!(
        seeds.iter().any(|picked| picked != &seeds[0]),
        "seeds change picks"
    );
    // No majority is left: an empty list and exit code 1.
    let none = json_with(here.path(), &["show", "majority(5)", "--avoid", "1,2,3"], 1);
    assert_eq!(quorums(&none).len(), 0);
    let text = conclave(
        here.path(),
        &["quorum", "show", "majority(5)", "--avoid", "1,2,3"],
    );
    assert_eq!(text.code, Some(1));
    assert!(!text.out.is_empty());
}

#[test]
fn show_names_the_nodes_of_an_expression() {
    let here = directory();
    let system = "expr(choose(2, east, west, north*south))";
    let shown = json_with(here.path(), &["show", system, "--all"], 0);
    assert_eq!(quorums(&shown), [&[1, 2][..], &[1, 3, 4], &[2, 3, 4]]);
    let names: Vec<&str> = list(&shown["names"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(names, ["east", "west", "north", "south"]);
    let text = ok(here.path(), &["show", system, "--all"]).out;
    assert!(text.contains("{east, west}"), "{text}");
    assert!(text.contains("{west, north, south}"), "{text}");
    let numbered = json(&["show", "expr(maj(1, 2, 3))"]);
    assert_eq!(numbered["names"], Value::Null);
}

#[test]
fn show_takes_the_size_of_the_cluster() {
    assert_eq!(json(&["show", "majority", "--nodes", "7"])["n"], 7);
    assert_eq!(
        json(&["show", "compose(majority, majority(3))", "--nodes", "9"])["n"],
        9
    );
    assert_eq!(
        json(&["show", "compose(majority(3), majority)", "--nodes", "15"])["n"],
        15
    );
    assert_eq!(json(&["show", "groups(grid, 3)", "--nodes", "9"])["n"], 9);
    assert_eq!(
        json(&["show", "multilevel(tree, levels=1)", "--nodes", "50"])["n"],
        50
    );
    assert_eq!(
        json(&["show", "surficial(groups=3)", "--nodes", "12"])["n"],
        12
    );
}

#[test]
fn quorums_of_different_groups_meet() {
    for system in [
        "surficial(groups=3, n=12)",
        "surficial(groups=3, n=12, fallback=balanced)",
        "surficial(groups=3, n=12, fallback=nondominated)",
        "surficial(widths=2,2,1)",
        "affine(9, groups=3)",
        "affine(10, groups=3, fallback=nondominated)",
        "groups(grid(9), 3)",
    ] {
        let exclusive = quorums(&json(&["show", system, "--all"]));
        let groups: Vec<Vec<Vec<u64>>> = ["1", "2", "3"]
            .iter()
            .map(|group| quorums(&json(&["show", system, "--all", "--group", group])))
            .collect();
        let across = |left: &[Vec<u64>], right: &[Vec<u64>]| {
            let pairs = left.iter().flat_map(|a| right.iter().map(move |b| (a, b)));
            for (a, b) in pairs {
                assert!(meet(a, b), "{system}: {a:?} and {b:?}");
            }
        };
        across(&exclusive, &exclusive);
        for (place, left) in groups.iter().enumerate() {
            across(&exclusive, left);
            for right in &groups[..place] {
                across(left, right);
            }
        }
    }
    // Two of a group can enter together: it has disjoint quorums.
    let first = quorums(&json(&[
        "show",
        "surficial(groups=3, n=12)",
        "--all",
        "--group",
        "1",
    ]));
    assert!(!meet(&first[0], &first[1]));
}

#[test]
fn check_tells_properties_and_counterexamples() {
    let here = directory();
    let good = json(&["check", "surficial(groups=3, n=12)"]);
    assert_eq!(good["ok"], true);
    assert_eq!(good["kind"], "groups");
    assert_eq!(good["properties"]["degree"], 2);
    assert_eq!(good["counterexample"], Value::Null);
    let plane = json(&["check", "plane(7)"]);
    for property in [
        "intersection",
        "minimal",
        "nondominated",
        "inclusion",
        "equal_effort",
        "equal_responsibility",
    ] {
        assert_eq!(plane["properties"][property], true, "{property}");
    }
    let grid = json(&["check", "grid(9)"]);
    assert_eq!(
        grid["properties"]["nondominated"], false,
        "not promised, so still ok"
    );
    let bad = json_with(here.path(), &["check", "threshold(4, 2)"], 1);
    assert_eq!(bad["ok"], false);
    assert_eq!(bad["properties"]["intersection"], false);
    let pair = list(&bad["counterexample"]["quorums"]);
    assert_eq!(pair.len(), 2);
    let nodes = |set: &Value| -> Vec<u64> { list(set).iter().filter_map(Value::as_u64).collect() };
    assert!(!meet(&nodes(&pair[0]), &nodes(&pair[1])));
    let text = conclave(here.path(), &["quorum", "check", "threshold(4, 2)"]);
    assert_eq!(text.code, Some(1));
    assert!(
        text.out.contains("violation") && text.out.contains("{1, 2}"),
        "{}",
        text.out
    );
    assert!(text.err.is_empty());
}

#[test]
fn check_finds_apart_quorums_in_expressions_and_files() {
    let here = directory();
    let disjoint = [
        "expr(a*b + c*d)",
        "expr((a+b)*(c+d))",
        "weighted(1,1,1,1, votes=2)",
        "compose(threshold(3, 1), majority(3))",
    ];
    for system in disjoint {
        let bad = json_with(here.path(), &["check", system], 1);
        assert_eq!(bad["kind"], "loose", "{system}");
        assert_eq!(
            bad["counterexample"]["property"], "intersection",
            "{system}"
        );
    }
    // Rows and columns as quorums of their own: two rows share nothing.
    put(
        here.path(),
        "lines.txt",
        "1 2 3\n4 5 6\n7 8 9\n1 4 7\n2 5 8\n3 6 9\n",
    );
    let lines = json_with(here.path(), &["check", "file(lines.txt)"], 1);
    assert_eq!(lines["properties"]["intersection"], false);
    // A quorum that contains another one.
    put(here.path(), "fat.txt", "1 2\n1 2 3\n");
    let fat = json_with(here.path(), &["check", "file(fat.txt)"], 1);
    assert_eq!(fat["properties"]["minimal"], false);
    assert_eq!(fat["counterexample"]["property"], "minimal");
}

#[test]
fn check_registers_each_group_on_a_cartel_of_its_own() {
    let here = directory();
    ok(
        here.path(),
        &[
            "check",
            "surficial(groups=2, n=4)",
            "--assign",
            "red=1,blue=2",
        ],
    );
    ok(
        here.path(),
        &["check", "surficial(groups=2, n=4)", "--assign", "red=2"],
    );
}

#[test]
fn files_list_quorums_and_groups() {
    let here = directory();
    put(
        here.path(),
        "fano.txt",
        "# a plane\n1 2 3\n1 4 5\n1 6 7\n2 4 6\n2 5 7\n3 4 7\n3 5 6\n",
    );
    let shown = json_with(here.path(), &["show", "file(fano.txt)", "--all"], 0);
    assert_eq!(shown["n"], 7);
    assert_eq!(quorums(&shown).len(), 7);
    let measured = json_with(
        here.path(),
        &["analyze", "file(fano.txt)", "--down", "0.1"],
        0,
    );
    let plane = json(&["analyze", "plane(7)", "--down", "0.1"]);
    near(&measured["load"]["value"], 3.0 / 7.0);
    near(
        &measured["failure_probability"]["value"],
        number(&plane["failure_probability"]["value"]),
    );
    put(
        here.path(),
        "rw.txt",
        "nodes: a b c d\ngroup readers:\na b\nc, d\ngroup writers:\na c\nb d\n",
    );
    let text = ok(
        here.path(),
        &["show", "file(rw.txt)", "--group", "1", "--all"],
    )
    .out;
    assert!(text.contains("{a, b}") && text.contains("{c, d}"), "{text}");
    let text = ok(here.path(), &["analyze", "file(rw.txt)"]).out;
    assert!(
        text.contains("readers") && text.contains("writers"),
        "{text}"
    );
    assert_eq!(
        json_with(here.path(), &["check", "file(rw.txt)"], 0)["kind"],
        "groups"
    );
    put(here.path(), "with space.txt", "a\n");
    ok(here.path(), &["show", "file(\"with space.txt\")"]);
}

#[test]
fn analyze_gives_known_values() {
    let load = |system: &str, expected: f64| {
        let measured = json(&["analyze", system]);
        assert_eq!(measured["load"]["exact"], true, "{system}");
        near(&measured["load"]["value"], expected);
        near(&measured["load"]["lower"], expected);
        assert_eq!(measured["failure_probability"], Value::Null, "{system}");
    };
    load("majority(5)", 0.6);
    load("grid(16)", 7.0 / 16.0);
    load("plane(13)", 4.0 / 13.0);
    load("tree(7)", 0.5);
    load("tree(15)", 0.4);
    load("hierarchical(3,3,3)", 8.0 / 27.0);
    load("rect(5, 5)", 0.36);
    load("billiard(24)", 1.0 / 3.0);
    let failure = |system: &str, expected: f64| {
        let measured = json(&["analyze", system, "--down", "0.1"]);
        let failure = &measured["failure_probability"];
        assert_eq!(failure["exact"], true, "{system}");
        near(&failure["value"], expected);
    };
    failure("majority(5)", 0.00856);
    failure("majority(3)", 0.028);
    failure("singleton(4)", 0.1);
    failure("threshold(3, 3)", 0.271);
    failure("hierarchical(3,3)", 0.002_308_096);
    let five = json(&["analyze", "majority(5)", "--up", "0.9"]);
    near(&five["failure_probability"]["value"], 0.00856);
    assert_eq!(five["resilience"], 2);
    assert_eq!(five["size"]["min"], 3);
    assert_eq!(five["size"]["max"], 3);
    assert_eq!(five["kind"], "coterie");
}

#[test]
fn analyze_is_certain_at_the_ends_of_probability() {
    for system in ["majority(5)", "billiard(12)", "grid(9)"] {
        let never = json(&["analyze", system, "--down", "0"]);
        near(&never["failure_probability"]["value"], 0.0);
        let always = json(&["analyze", system, "--down", "1"]);
        near(&always["failure_probability"]["value"], 1.0);
    }
}

#[test]
fn analyze_is_exact_on_a_thousand_nodes() {
    for system in [
        "majority(1001)",
        "grid(1024)",
        "tree(1023)",
        "triangular(1035)",
        "wheel(1001)",
        "multilevel(tree, 1200, levels=1)",
        "multilevel(tree, 1200, levels=2)",
    ] {
        let measured = json(&["analyze", system, "--down", "0.1"]);
        measures(&measured, system);
        assert_eq!(measured["failure_probability"]["exact"], true, "{system}");
        let load = &measured["load"];
        let gap = 1.0 - number(&load["lower"]) / number(&load["upper"]);
        assert!(gap <= 0.01, "{system}: gap {gap}");
    }
    let plane = json(&["analyze", "plane(993)"]);
    assert_eq!(plane["load"]["exact"], true);
    near(&plane["load"]["value"], 32.0 / 993.0);
    let billiard = json(&["analyze", "billiard(480)"]);
    assert_eq!(billiard["load"]["exact"], true);
}

#[test]
fn analyze_names_the_tiers_it_measured() {
    let here = directory();
    let text = ok(here.path(), &["analyze", "billiard(24)", "--down", "0.05"]).out;
    assert!(text.contains("T1,T2,T4"), "{text}");
    let measured = json(&["analyze", "billiard(24)", "--down", "0.05"]);
    assert_eq!(measured["tiers"]["load"], "T1");
    assert_eq!(measured["tiers"]["failure_probability"], "T1,T2,T4");
    let first = json(&["analyze", "billiard(24, tiers=T0)", "--down", "0.05"]);
    assert_eq!(first["tiers"]["failure_probability"], "T0");
    let (all, first) = (
        number(&measured["failure_probability"]["value"]),
        number(&first["failure_probability"]["value"]),
    );
    assert!(all < first, "fallback tiers help: {all} and {first}");
}

#[test]
fn analyze_weighs_capacities() {
    let here = directory();
    put(here.path(), "cap.csv", "node,capacity\n1,2\n2,1\n3,1\n");
    let measured = json_with(
        here.path(),
        &["analyze", "majority(3)", "--capacity", "cap.csv"],
        0,
    );
    near(&measured["load"]["value"], 0.5);
    near(&measured["capacity"], 2.0);
    put(here.path(), "same.csv", "1,1\n2,1\n3,1\n");
    let same = json_with(
        here.path(),
        &["analyze", "majority(3)", "--capacity", "same.csv"],
        0,
    );
    near(&same["load"]["value"], 2.0 / 3.0);
}

#[test]
fn analyze_reads_round_trips() {
    let here = directory();
    put(here.path(), "rtt.csv", "paris,1,2,3\nrome,3,2,1\n");
    let arguments = ["analyze", "majority(3)", "--latency", "rtt.csv"];
    let latency = &json_with(here.path(), &arguments, 0)["latency_ms"];
    near(&latency["nearest_p50"], 2.0);
    near(&latency["nearest_p99"], 2.0);
    near(&latency["balanced_p99"], 3.0);
    assert!(ok(here.path(), &arguments).out.contains("2.0 ms"));
    // A node out of reach makes some quorum unreachable, and JSON has no infinity.
    put(here.path(), "far.csv", "paris,inf,1,2\n");
    let far = json_with(
        here.path(),
        &["analyze", "majority(3)", "--latency", "far.csv"],
        0,
    );
    near(&far["latency_ms"]["nearest_p50"], 2.0);
    assert_eq!(far["latency_ms"]["balanced_p99"], Value::Null);
}

#[test]
fn analyze_takes_a_probability_per_node_and_domains() {
    let here = directory();
    let failure = |options: &[&str]| {
        let measured = json_with(
            here.path(),
            &[&["analyze", "majority(3)"], options].concat(),
            0,
        );
        assert_eq!(measured["failure_probability"]["exact"], true);
        number(&measured["failure_probability"]["value"])
    };
    put(here.path(), "down.csv", "1,0.5\n2,0.1\n3,0.2\n");
    let (a, b, c): (f64, f64, f64) = (0.5, 0.1, 0.2);
    let two = a * b * (1.0 - c) + a * (1.0 - b) * c + (1.0 - a) * b * c + a * b * c;
    let found = failure(&["--down-file", "down.csv"]);
    assert!((found - two).abs() < 1e-12, "{found} instead of {two}");
    // Nodes 1 and 2 go down together with probability 0.25, and nothing else does.
    put(here.path(), "rack.csv", "rack-a,0.25,1 2\n");
    let found = failure(&["--domains", "rack.csv"]);
    assert!((found - 0.25).abs() < 1e-12, "{found}");
    let both = failure(&["--down-file", "down.csv", "--domains", "rack.csv"]);
    assert!((both - (0.25 + 0.75 * two)).abs() < 1e-12, "{both}");
    put(here.path(), "single.csv", "rack-a,0.25,3\n");
    let found = failure(&["--domains", "single.csv"]);
    assert!(found.abs() < 1e-12, "one node of three is not missed");
}

#[test]
fn analyze_simulates_the_same_with_the_same_seed() {
    let sample = |seed: &str| {
        let arguments = [
            "analyze",
            "plane(307)",
            "--down",
            "0.35",
            "--samples",
            "500",
            "--seed",
            seed,
        ];
        json(&arguments)["failure_probability"].clone()
    };
    let first = sample("1");
    assert_eq!(first["exact"], false);
    assert_eq!(first["samples"], 500);
    assert!(number(&first["low"]) < number(&first["high"]));
    assert_eq!(first, sample("1"));
    assert_ne!(first, sample("2"));
}

#[test]
fn analyze_tells_each_group() {
    let measured = json(&["analyze", "surficial(groups=3, n=12)", "--down", "0.1"]);
    measures(&measured, "surficial");
    let cartels = list(&measured["cartels"]);
    assert_eq!(cartels.len(), 3);
    for cartel in cartels {
        near(&cartel["load"]["value"], 0.5);
        near(
            &cartel["failure_probability"]["value"],
            (1.0 - 0.9_f64.powi(4)).powi(2),
        );
    }
    assert!(measured["exclusive"]["load"]["value"].is_number());
}

#[test]
fn compare_puts_systems_side_by_side_and_plots() {
    let here = directory();
    let systems = ["majority(25)", "grid(25)", "billiard(24)", "tree(31)"];
    let options = [
        "--down",
        "0.01..0.3",
        "--points",
        "5",
        "--plot",
        "out.svg",
        "--samples",
        "2000",
    ];
    let arguments = [&["compare"], &systems[..], &options[..]].concat();
    let text = ok(here.path(), &arguments).out;
    let picture = read(here.path(), "out.svg");
    balanced(&picture);
    for system in systems {
        assert!(text.contains(system), "{text}");
        assert!(picture.contains(system), "the plot leaves out {system}");
    }
    let compared = json_with(here.path(), &arguments, 0);
    let compared = list(&compared["systems"]);
    assert_eq!(compared.len(), 4);
    for (one, system) in compared.iter().zip(systems) {
        assert_eq!(one["system"], system);
        let curve = list(&one["curve"]);
        assert_eq!(curve.len(), 5);
        near(&curve[0]["p"], 0.01);
        near(&curve[4]["p"], 0.3);
        let values: Vec<f64> = curve
            .iter()
            .map(|point| number(&point["failure_probability"]["value"]))
            .collect();
        assert!(values.is_sorted(), "{system}: {values:?}");
    }
    let one = json(&["compare", "majority(5)", "--down", "0.1"]);
    let curve = &one["systems"][0]["curve"];
    assert_eq!(list(curve).len(), 1);
    near(&curve[0]["failure_probability"]["value"], 0.00856);
    let up = json(&["compare", "majority(5)", "--up", "0.9"]);
    near(
        &up["systems"][0]["curve"][0]["failure_probability"]["value"],
        0.00856,
    );
    ok(
        here.path(),
        &["compare", "majority(5)", "--plot", "out.png"],
    );
    assert_png(here.path(), "out.png");
    ok(here.path(), &["compare", "surficial(groups=3, n=12)"]);
}

#[test]
fn plan_ranks_systems() {
    let here = directory();
    for arguments in [
        &["plan", "--nodes", "24", "--down", "0.02"][..],
        &["plan", "--nodes", "9", "--byzantine", "1", "--down", "0.02"],
        &["plan", "--nodes", "12", "--groups", "3", "--down", "0.02"],
        &["plan", "--nodes", "13", "--down", "0.1", "--favour", "load"],
        &[
            "plan",
            "--nodes",
            "13",
            "--down",
            "0.1",
            "--favour",
            "availability",
        ],
        &[
            "plan", "--nodes", "13", "--down", "0.1", "--favour", "messages",
        ],
        &["plan", "--nodes", "1", "--down", "0.1"],
        &["plan", "--nodes", "2", "--down", "0.1"],
    ] {
        let planned = json_with(here.path(), arguments, 0);
        let ranking = list(&planned["ranking"]);
        assert!(!ranking.is_empty(), "{arguments:?}");
        for choice in ranking {
            let system = choice["system"].as_str().expect("a system");
            for field in ["load", "failure_probability", "messages"] {
                assert!(choice[field].is_number(), "{arguments:?}: {choice}");
            }
            assert!(choice["why"].as_str().is_some_and(|why| !why.is_empty()));
            let nodes = &json_with(here.path(), &["show", system], 0)["n"];
            assert_eq!(*nodes, planned["nodes"], "{system}");
        }
        let text = ok(here.path(), arguments).out;
        let first = ranking[0]["system"].as_str().expect("a system");
        assert!(text.contains(first), "{text}");
    }
}

#[test]
fn plan_favours_what_is_asked() {
    let best = |favour: &str, field: &str| {
        let arguments = ["plan", "--nodes", "13", "--down", "0.1", "--favour", favour];
        let planned = json(&arguments);
        let ranking = list(&planned["ranking"]).to_vec();
        let values = ranking.iter().map(|choice| number(&choice[field]));
        let least = values.fold(f64::INFINITY, f64::min);
        near(&ranking[0][field], least);
    };
    best("load", "load");
    best("availability", "failure_probability");
    best("messages", "messages");
    let groups = json(&["plan", "--nodes", "12", "--groups", "3"]);
    for choice in list(&groups["ranking"]) {
        assert_eq!(choice["failure_probability"], Value::Null, "no --down");
        let system = choice["system"].as_str().expect("a system");
        assert_eq!(json(&["check", system])["kind"], "groups", "{system}");
    }
    let lying = json(&["plan", "--nodes", "9", "--byzantine", "1"]);
    for choice in list(&lying["ranking"]) {
        let system = choice["system"].as_str().expect("a system");
        assert_eq!(json(&["check", system])["kind"], "masking", "{system}");
    }
}

#[test]
fn plan_chooses_levels() {
    let planned = json(&["plan", "--nodes", "1200", "--up", "0.8", "--multilevel"]);
    let levels = list(&planned["levels"]);
    assert_eq!(levels.len(), 7);
    let messages = [67.07, 42.88, 41.89, 43.43, 47.36];
    for (choice, expected) in levels.iter().zip(messages) {
        assert!((number(&choice["messages"]) - expected).abs() < 0.005 + 1e-9);
    }
    assert_eq!(planned["recommended"]["levels"], 2);
    let system = planned["recommended"]["system"].as_str().expect("a text");
    assert_eq!(system, "multilevel(tree, 1200, levels=2)");
    assert_eq!(planned["formula"]["levels"], 2);
    assert_eq!(planned["published_estimate"]["levels"], 6);
    let own = [
        "plan",
        "--nodes",
        "90",
        "--up",
        "0.95",
        "--multilevel",
        "--coterie",
        "grid",
        "--root",
        "majority",
        "--levels-max",
        "3",
    ];
    let planned = json(&own);
    assert_eq!(list(&planned["levels"]).len(), 4);
    assert_eq!(planned["formula"], Value::Null);
    let system = planned["recommended"]["system"].as_str().expect("a text");
    assert_eq!(json(&["check", system])["kind"], "coterie");
}

#[test]
fn hierarchies_of_any_clusters_are_measured_and_drawn() {
    let here = directory();
    let system = "multilevel([majority,tree,tree], sizes=[[3,3,3],[4,2]])";
    let checked = json(&["check", system]);
    assert_eq!(checked["kind"], "coterie");
    let analyzed = json(&["analyze", system, "--down", "0.1"]);
    assert_eq!(analyzed["n"], 15);
    let drawn = conclave(here.path(), &["quorum", "draw", system, "-o", "out.svg"]);
    assert_eq!(drawn.code, Some(0), "{}", drawn.err);
}

#[test]
fn plan_reads_files() {
    let here = directory();
    put(here.path(), "rtt.csv", "a,1,1,1,50,50\nb,1,1,1,50,50\n");
    put(
        here.path(),
        "down.csv",
        "1,0.1\n2,0.1\n3,0.1\n4,0.3\n5,0.3\n",
    );
    let planned = json_with(
        here.path(),
        &[
            "plan",
            "--nodes",
            "5",
            "--favour",
            "latency",
            "--latency",
            "rtt.csv",
            "--down-file",
            "down.csv",
        ],
        0,
    );
    assert!(list(&planned["ranking"])[0]["latency_ms"].is_number());
}

#[test]
fn draw_writes_svg_and_png() {
    let here = directory();
    let draw = |arguments: &[&str]| {
        ok(here.path(), &[&["draw"], arguments].concat());
    };
    draw(&["billiard(40)", "--site", "11", "-o", "out.svg"]);
    let one = read(here.path(), "out.svg");
    balanced(&one);
    draw(&[
        "billiard(40)",
        "--site",
        "11",
        "--with",
        "20",
        "-o",
        "out.svg",
    ]);
    let two = read(here.path(), "out.svg");
    balanced(&two);
    assert_ne!(one, two);
    for options in [
        &["billiard(24)", "--avoid", "3,17", "--antipodal", "3"][..],
        &["grid(25)", "--avoid", "3,17"],
        &["grid(25)", "--heat"],
        &["surficial(groups=3, n=12)", "--group", "2"],
        &["hgrid(3x3, 3x3)", "--seed", "7"],
    ] {
        draw(&[options, &["-o", "more.svg"]].concat());
        balanced(&read(here.path(), "more.svg"));
    }
    draw(&["billiard(24, tiers=T0)", "--heat", "-o", "out.PNG"]);
    assert_png(here.path(), "out.PNG");
    draw(&["plane(13)", "-o", "small.png", "--scale", "0.5"]);
    assert_png(here.path(), "small.png");
    let size = |name: &str| {
        std::fs::metadata(here.path().join(name))
            .expect("the picture is there")
            .len()
    };
    draw(&["plane(13)", "-o", "large.png", "--scale", "3"]);
    assert!(size("small.png") < size("large.png"));
}

fn read(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).expect("the picture is text")
}

fn assert_png(directory: &Path, name: &str) {
    let bytes = std::fs::read(directory.join(name)).expect("the picture is there");
    assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"), "{name} is no PNG");
    assert!(bytes.ends_with(b"IEND\xaeB`\x82"), "{name} is not complete");
}

/// Asserts that a picture is one `svg` element, and every element in it is closed in turn.
fn balanced(picture: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut roots = 0;
    let mut rest = picture;
    while let Some(start) = rest.find('<') {
        let between = &rest[..start];
        assert!(!between.contains('>'), "a stray '>' in {between:?}");
        for entity in between.split('&').skip(1) {
            assert!(entity.contains(';'), "a stray '&' in {between:?}");
        }
        assert!(
            !open.is_empty() || between.trim().is_empty(),
            "text outside"
        );
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if tag.starts_with('?') || tag.starts_with('!') {
            continue;
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "an open quote in <{tag}>");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.trim()));
            continue;
        }
        let name = tag
            .split([' ', '\n', '/'])
            .next()
            .expect("a tag has a name");
        if open.is_empty() {
            assert_eq!(name, "svg");
            roots += 1;
        }
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?} stay open");
    assert!(rest.trim().is_empty(), "text after the end");
    assert_eq!(roots, 1);
}

#[test]
fn tables_agree_with_the_expected_values() {
    let here = directory();
    for which in ["billiard", "multilevel", "byzantine"] {
        let tables = json_with(here.path(), &["tables", which], 0);
        assert_eq!(tables["deviations"], 0, "{which}");
        assert!(!list(&tables["tables"]).is_empty(), "{which}");
    }
    let text = ok(here.path(), &["tables", "byzantine"]).out;
    assert!(text.contains(", 0 differ"), "{text}");
}

#[test]
fn help_version_and_completions_are_printed() {
    let here = directory();
    let cases: &[&[&str]] = &[
        &["--help"],
        &["--version"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
        &["quorum", "--help"],
        &["quorum", "list", "--help"],
        &["quorum", "show", "--help"],
        &["quorum", "check", "--help"],
        &["quorum", "analyze", "--help"],
        &["quorum", "compare", "--help"],
        &["quorum", "plan", "--help"],
        &["quorum", "draw", "--help"],
        &["quorum", "tables", "--help"],
    ];
    for case in cases {
        let run = conclave(here.path(), case);
        assert_eq!(run.code, Some(0), "{case:?}: {}", run.err);
        assert!(run.out.contains("conclave"), "{case:?}: {}", run.out);
        assert!(run.err.is_empty(), "{case:?}: {}", run.err);
    }
}
