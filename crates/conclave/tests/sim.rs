//! The simulator, the model checker and the demo, run as a user runs them.

use serde_json::Value;

#[allow(dead_code, reason = "other tests use more of it")]
mod common;

use common::{Run, conclave, directory};

fn run(arguments: &[&str]) -> Run {
    conclave(directory().path(), arguments)
}

/// Runs a command that must end with this code and say something, without complaint.
fn ends(arguments: &[&str], code: i32) -> String {
    let run = run(arguments);
    let (out, err) = (&run.out, &run.err);
    assert_eq!(run.code, Some(code), "{arguments:?}\n{out}{err}");
    assert!(err.is_empty(), "{arguments:?} complains: {err}");
    assert!(!out.is_empty(), "{arguments:?} prints nothing");
    run.out
}

/// The same with `--json`; gives what it printed.
fn json(arguments: &[&str], code: i32) -> Value {
    let out = ends(&[arguments, &["--json"]].concat(), code);
    serde_json::from_str(&out).unwrap_or_else(|why| panic!("{arguments:?}: {why}\n{out}"))
}

/// Runs a command that must be refused in one line.
fn refused(arguments: &[&str]) -> String {
    let run = run(arguments);
    let (out, err) = (&run.out, &run.err);
    assert_eq!(run.code, Some(2), "{arguments:?}\n{out}{err}");
    assert!(out.is_empty(), "{arguments:?} prints {out}");
    assert_eq!(err.lines().count(), 1, "{arguments:?}: {err}");
    assert!(err.starts_with("error: "), "{arguments:?}: {err}");
    assert!(!err.contains("panicked"), "{arguments:?}: {err}");
    run.err
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
}

const SMALL: [&str; 8] = [
    "sim",
    "run",
    "--system",
    "billiard(4)",
    "--clients",
    "6",
    "--seconds",
    "2",
];

#[test]
fn a_run_without_rivals_costs_three_messages_a_member_and_two_delays() {
    let one = json(
        &[
            "sim",
            "run",
            "--system",
            "billiard(24)",
            "--clients",
            "1",
            "--seconds",
            "2",
        ],
        0,
    );
    let kinds = &one["messages_by_kind"];
    let entries = number(&one["entries"]);
    assert!(entries > 10.0);
    assert!(
        (number(&one["messages_per_entry"]) - 21.0).abs() < 1e-9,
        "{kinds}"
    );
    assert!(
        (number(&kinds["REQUEST"]) / entries - 7.0).abs() < 1e-9,
        "{kinds}"
    );
    assert!((number(&one["calm_delay"]) - 2.0).abs() < 1e-9);
    assert_eq!(one["max_inside"], 1);
    assert_eq!(one["violation"], Value::Null);
    let load = one["load"].as_array().unwrap();
    assert_eq!(load.len(), 24);
    assert!((load.iter().map(number).sum::<f64>() - 7.0).abs() < 1e-9);
    assert_eq!(one["load_theory"].as_array().unwrap().len(), 24);
}

#[test]
fn a_run_is_told_and_can_be_replayed() {
    let out = ends(
        &[&SMALL[..], &["--groups", "2", "--faults", "light"]].concat(),
        0,
    );
    for word in [
        "entries",
        "messages per entry",
        "waiting",
        "no property was broken",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let one = json(
        &[&SMALL[..], &["--groups", "2", "--faults", "heavy"]].concat(),
        0,
    );
    for key in ["mean", "p50", "p99"] {
        assert!(number(&one["wait"][key]) > 0.0, "{key}");
    }
    assert_eq!(one["faults"], "heavy");
    let again = json(&["sim", "replay", text(&one["replay"]), "--quiet"], 0);
    assert_eq!(again["grants"], one["entries"]);
    assert_eq!(again["events"], one["events"]);
}

#[test]
fn protocols_stand_side_by_side() {
    let names = "exclusive,maekawa,ricart,ra1,ra2,central,backup";
    let both = [&SMALL[..], &["--groups", "2", "--compare", names]].concat();
    let all = json(&both, 0);
    let runs = all["runs"].as_array().unwrap();
    let shown: Vec<&str> = runs.iter().map(|run| text(&run["protocol"])).collect();
    let names = [
        "lock",
        "exclusive",
        "maekawa",
        "ricart-agrawala",
        "ra1",
        "ra2",
        "central",
        "primary-backup",
    ];
    assert_eq!(shown, names);
    let of = |name: &str| runs.iter().find(|run| run["protocol"] == name).unwrap();
    assert_eq!(of("exclusive")["max_inside"], 1);
    assert!(number(&of("lock")["max_inside"]) > 1.0);
    assert!((number(&of("ricart-agrawala")["messages_per_entry"]) - 10.0).abs() < 1e-9);
    let table = ends(&both, 0);
    assert!(names.iter().all(|name| table.contains(name)), "{table}");
}

#[test]
fn a_picture_shows_concurrency_waiting_and_load() {
    let directory = directory();
    let path = directory.path().join("out.svg");
    let plot = ["--plot", "out.svg", "--groups", "2"];
    let run = conclave(directory.path(), &[&SMALL[..], &plot].concat());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let picture = std::fs::read_to_string(&path).unwrap();
    assert_eq!(picture.matches("class=\"panel\"").count(), 3);
    assert_eq!(
        picture.matches("class=\"bar\"").count(),
        4,
        "a bar for each node"
    );
    assert!(picture.contains("holders"));
    let beside = [
        "--plot",
        "out.png",
        "--groups",
        "2",
        "--compare",
        "exclusive,central",
    ];
    let run = conclave(directory.path(), &[&SMALL[..], &beside].concat());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let bytes = std::fs::read(directory.path().join("out.png")).unwrap();
    assert!(bytes.starts_with(b"\x89PNG"));
}

#[test]
fn seeds_hold_and_are_counted() {
    let report = json(&["sim", "fuzz", "--seeds", "1..12"], 0);
    assert_eq!(report["runs"], 12);
    assert!(number(&report["grants"]) > 100.0);
    assert!(number(&report["events"]) > 10_000.0);
    assert_eq!(report["violations"], Value::Array(Vec::new()));
    let out = ends(&["sim", "fuzz", "--seeds", "3", "--threads", "1"], 0);
    assert!(
        out.contains("1 runs") && out.contains("every property held"),
        "{out}"
    );
}

#[test]
fn every_plant_is_listed() {
    let listed = json(&["sim", "plants"], 0);
    let plants = listed["plants"].as_array().unwrap();
    let all = conclave_protocol::lock::Plant::ALL;
    let leases = conclave_protocol::lease::plant::Plant::ALL;
    let objects = conclave_protocol::object::plant::Plant::ALL;
    let levels = conclave_protocol::multilevel::LevelPlant::ALL;
    let sum = all.len() + leases.len() + objects.len() + levels.len();
    assert_eq!(plants.len(), sum);
    for (shown, plant) in plants.iter().skip(sum - levels.len()).zip(levels) {
        assert_eq!(shown["name"], plant.name());
        assert_eq!(shown["protocol"], "multilevel");
        assert_eq!(shown["what"], plant.what());
    }
    for (shown, plant) in plants.iter().skip(all.len()).zip(leases) {
        assert_eq!(shown["name"], plant.name());
        assert_eq!(shown["protocol"], "lease");
        assert_eq!(shown["what"], plant.what());
    }
    let table = ends(&["sim", "plants"], 0);
    for (shown, plant) in plants.iter().zip(all) {
        assert_eq!(shown["name"], plant.name());
        assert_eq!(shown["protocol"], plant.protocol());
        assert_eq!(shown["what"], plant.what());
        assert!(table.contains(plant.name()), "{}", plant.name());
    }
}

#[test]
fn a_planted_bug_is_found_and_its_replay_shows_the_same() {
    let fuzz = [
        "sim",
        "fuzz",
        "--plant",
        "yield-inside",
        "--seeds",
        "1..400",
    ];
    let report = json(&fuzz, 1);
    let violations = report["violations"].as_array().unwrap();
    assert_eq!(violations.len(), 1, "it stops at the first");
    let finding = &violations[0];
    assert_eq!(report["runs"], finding["seed"]);
    let (token, property) = (text(&finding["replay"]), text(&finding["property"]));
    let again = json(&["sim", "replay", token, "--quiet"], 1);
    assert_eq!(again["violation"]["property"], property);
    assert_eq!(again["violation"]["what"], finding["what"]);
    // The whole command that was printed serves as a token, too.
    let told = ends(&fuzz, 1);
    let command = told
        .lines()
        .find_map(|line| line.trim().strip_prefix("replay: "));
    let trace = ends(&["sim", "replay", command.unwrap()], 1);
    assert!(
        trace.contains(&format!("VIOLATION of {property}")),
        "{property}"
    );
    assert!(
        trace.contains(&format!("{property} is BROKEN")),
        "{property}"
    );
    let seed = format!("seed={}", finding["seed"]);
    assert!(
        told.lines().any(|line| line.trim().starts_with(&seed)),
        "{told}"
    );

    let found = json(
        &[
            "sim",
            "plants",
            "--find",
            "1..400",
            "--only",
            "yield-inside",
        ],
        0,
    );
    assert_eq!(found["plants"][0]["seed"], finding["seed"]);
    assert_eq!(
        found["plants"][0]["without"],
        Value::Null,
        "the world itself holds"
    );
    let table = ends(
        &[
            "sim",
            "plants",
            "--find",
            "1..400",
            "--only",
            "yield-inside",
        ],
        0,
    );
    assert!(table.contains("| `yield-inside` |"), "{table}");
}

#[test]
fn a_trace_is_cut_by_time_and_node() {
    let replay = ["sim", "replay", "seed=3;clients=2;span_ms=200"];
    let all = ends(&replay, 0);
    let cut = [
        &replay[..],
        &["--from", "0.05", "--to", "0.1", "--node", "2"],
    ]
    .concat();
    let part = ends(&cut, 0);
    assert!(part.lines().count() < all.lines().count());
    let lines: Vec<&str> = part.lines().collect();
    let (_, lines) = lines.split_last().unwrap();
    assert!(!lines.is_empty());
    for line in lines {
        let at: f64 = line.split_whitespace().next().unwrap().parse().unwrap();
        assert!((0.05..=0.1).contains(&at), "{line}");
        assert!(!line.contains(" n1 ") && !line.contains(" n3 "), "{line}");
    }
    let told = json(&cut, 0);
    assert_eq!(told["lines"].as_array().unwrap().len(), lines.len());
}

#[test]
fn the_model_is_explored() {
    let small = [
        "check",
        "lock",
        "--system",
        "majority(3)",
        "--requesters",
        "2",
    ];
    let report = json(&small, 0);
    assert_eq!(report["exhausted"], true);
    assert!(number(&report["states"]) > 50.0);
    assert_eq!(report["violations"], Value::Array(Vec::new()));
    let out = ends(&small, 0);
    assert!(out.contains("every property holds"), "{out}");
    let states = |notes: &str| {
        let report = json(&[&small[..], &["--notes", notes]].concat(), 0);
        number(&report["states"])
    };
    assert_eq!(
        number(&report["states"]),
        states("with") + states("without")
    );
    let cut = json(&[&small[..], &["--states-max", "20"]].concat(), 0);
    assert_eq!(cut["exhausted"], false);
}

#[test]
fn the_model_finds_a_planted_bug() {
    let planted = ["check", "lock", "--plant", "yield-inside"];
    let report = json(&planted, 1);
    let violation = &report["violations"][0];
    assert!(!violation["trace"].as_array().unwrap().is_empty());
    let out = ends(&planted, 1);
    assert!(out.contains("is BROKEN"), "{out}");
}

#[test]
fn the_model_of_objects_is_explored() {
    let small = ["check", "object", "--nodes", "5", "--byzantine", "1"];
    let report = json(&small, 0);
    assert_eq!(report["exhausted"], true);
    assert_eq!(report["violations"], Value::Array(Vec::new()));
    let planted = ["check", "object", "--plant", "forget-rank"];
    let report = json(&planted, 1);
    assert_eq!(report["violations"][0]["property"], "order");
    refused(&["check", "object", "--plant", "yield-inside"]);
    refused(&["check", "object", "--nodes", "4", "--byzantine", "1"]);
}

#[test]
fn the_demo_tells_what_held() {
    let told = json(&["sim", "demo", "--worlds", "12", "--demos", "1"], 0);
    let worlds = &told["worlds"];
    assert_eq!(worlds["runs"], 13);
    assert_eq!(worlds["violations"], Value::Array(Vec::new()));
    for key in [
        "crashes",
        "resets",
        "partitions",
        "pauses",
        "expiries",
        "clock_jumps",
    ] {
        assert!(number(&worlds["faults"][key]) > 0.0, "{key}");
    }
    let rate = |one: &str| number(&told[one]["entries_per_second"]);
    assert!(rate("groups") > rate("exclusive"));
    let out = ends(&["sim", "demo", "--worlds", "4"], 0);
    for word in [
        "nodes killed",
        "WHAT HELD",
        "message delays",
        "exclusive",
        "Every property",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
}

#[test]
fn the_speed_is_told_with_checkers_off_and_on() {
    let bench = [
        "sim",
        "bench",
        "--system",
        "majority(5)",
        "--clients",
        "4",
        "--seconds",
        "1",
        "--rounds",
        "1",
    ];
    let told = json(&bench, 0);
    assert!(number(&told["events_per_second"]) > 0.0);
    assert!(number(&told["events_per_second_with_checkers"]) > 0.0);
    assert!(ends(&bench, 0).contains("EVENTS"));
}

#[test]
fn wrong_values_are_refused_in_one_line() {
    for arguments in [
        &["sim", "run", "--protocol", "paxos"][..],
        &["sim", "run", "--system", "majority("],
        &["sim", "run", "--system", "threshold(4, 2)"],
        &["sim", "run", "--system", "file(nothing.txt)"],
        &["sim", "run", "--clients", "0"],
        &["sim", "run", "--clients", "100001"],
        &[
            "sim",
            "run",
            "--clients",
            "100000",
            "--system",
            "majority(1001)",
        ],
        &["sim", "run", "--groups", "1001"],
        &[
            "sim",
            "run",
            "--protocol",
            "multilevel",
            "--system",
            "majority(5)",
        ],
        &["sim", "run", "--protocol", "multilevel", "--up", "0.2"],
        &["sim", "run", "--protocol", "multilevel", "--up", "NaN"],
        &["sim", "run", "--protocol", "multilevel", "--clients", "3"],
        &["sim", "run", "--protocol", "multilevel", "--retry", "3"],
        &["sim", "run", "--protocol", "maekawa", "--up", "0.9"],
        &["sim", "run", "--compare", "multilevel"],
        &["sim", "fuzz", "--levels", "1..2"],
        &[
            "sim",
            "fuzz",
            "--protocol",
            "multilevel",
            "--levels",
            "3..1",
        ],
        &["sim", "replay", "protocol=multilevel;lease=0"],
        &["sim", "replay", "protocol=multilevel;system=majority(3)"],
        &["sim", "run", "--faults", "all"],
        &["sim", "run", "--seed", "-1"],
        &["sim", "run", "--seconds", "0"],
        &["sim", "run", "--set", "hold_ms"],
        &["sim", "run", "--set", "hold_ms=soon"],
        &["sim", "run", "--set", "no_such=1"],
        &["sim", "run", "--set", "act_ms=18446744073709551615"],
        &["sim", "run", "--plot", "out.gif"],
        &["sim", "run", "--compare", "maekawa", "--faults", "light"],
        &["sim", "run", "--compare", "central", "--names", "3"],
        &["sim", "run", "--protocol", "ra1", "--clients", "5000"],
        &["sim", "fuzz", "--seeds", "5..1"],
        &["sim", "fuzz", "--seeds", "1..99999999999"],
        &["sim", "fuzz", "--seeds", "x"],
        &["sim", "fuzz", "--protocol", "maekawa"],
        &["sim", "fuzz", "--plant", "no-such-bug"],
        &[
            "sim",
            "fuzz",
            "--plant",
            "yield-inside",
            "--protocol",
            "lock-serial",
        ],
        &["sim", "plants", "--find", ""],
        &["sim", "plants", "--find", "1..2", "--only", "no-such-bug"],
        &["sim", "replay", "gibberish"],
        &["sim", "replay", "seed=x"],
        &[
            "sim",
            "replay",
            "seed=1;clients=100000;system=majority(99999)",
        ],
        &["sim", "replay", "seed=1", "--from", "soon"],
        &["sim", "replay", "seed=1", "--from", "2", "--to", "1"],
        &["sim", "replay", "seed=1", "--node", "6"],
        &["sim", "bench", "--system", "nothing(3)"],
        &["check", "lock", "--system", "billiard(3)"],
        &["check", "lock", "--requesters", "0"],
        &["check", "lock", "--requesters", "99"],
        &["check", "lock", "--system", "majority(101)"],
        &["check", "lock", "--plant", "no-such-bug"],
        &["check", "lock", "--protocol", "sideways"],
        &["sim", "demo", "--worlds", "0"],
    ] {
        refused(arguments);
    }
    let told = refused(&["sim", "fuzz", "--plant", "no-such-bug"]);
    assert!(told.contains("conclave sim plants"), "{told}");
}

/// Without faults no token is ever raised; under heavy faults, with clocks within the lead, few
/// entries need a second round.
#[test]
fn raises_are_rare() {
    let entries = |faults: &str, seed: &str| {
        let told = json(
            &[
                "sim",
                "run",
                "--system",
                "billiard(12)",
                "--clients",
                "20",
                "--groups",
                "2",
                "--seconds",
                "4",
                "--faults",
                faults,
                "--seed",
                seed,
            ],
            0,
        );
        (number(&told["entries"]), number(&told["raises_per_entry"]))
    };
    let (mut all, mut raised) = (0.0, 0.0);
    for seed in ["1", "2", "3", "4"] {
        assert_eq!(entries("none", seed).1, 0.0);
        let (count, share) = entries("heavy", seed);
        all += count;
        raised += count * share;
    }
    assert!(all > 500.0, "{all}");
    assert!(raised <= 0.1 * all, "{raised} of {all}");
}

#[test]
fn leases_hold_with_liars_and_break_as_published() {
    let lease = ["sim", "fuzz", "--protocol", "lease"];
    let sized = |nodes: &'static str, liars: &'static str, seeds: &'static str| {
        let more = ["--nodes", nodes, "--byzantine", liars, "--seeds", seeds];
        [&lease[..], &more[..]].concat()
    };
    let report = json(&sized("7", "1", "1..10"), 0);
    assert_eq!(report["runs"], 10);
    assert!(number(&report["grants"]) > 20.0);
    let told = ends(&sized("4", "1", "3"), 0);
    assert!(told.contains("leases"), "{told}");
    assert!(refused(&sized("3", "1", "1")).contains("at least 4 nodes"));
    let paper = [&sized("5", "1", "1")[..], &["--rules", "paper"]].concat();
    assert!(refused(&paper).contains("at least 6 nodes"));
    assert!(refused(&["sim", "fuzz", "--rules", "paper"]).contains("--protocol lease"));
    let wrong = [&lease[..], &["--plant", "yield-inside"]].concat();
    assert!(refused(&wrong).contains("--protocol lock"));
    let literal = [&lease[..], &["--rules", "paper", "--seeds", "1..200"]].concat();
    let report = json(&literal, 1);
    let findings = report["violations"].as_array().unwrap();
    for property in ["overlap (delayed list)", "overlap (late answer)"] {
        let found = findings
            .iter()
            .find(|finding| finding["property"] == property);
        let finding = found.unwrap_or_else(|| panic!("no {property}"));
        let again = json(&["sim", "replay", text(&finding["replay"]), "--quiet"], 1);
        assert_eq!(again["violation"]["what"], finding["what"]);
    }
}

#[test]
fn a_bug_planted_in_leases_is_found_by_name() {
    let fuzz = ["sim", "fuzz", "--protocol", "lease", "--plant"];
    let report = json(&[&fuzz[..], &["lease-small-free"]].concat(), 1);
    let finding = &report["violations"][0];
    assert_eq!(finding["property"], "overlap");
    let trace = ends(&["sim", "replay", text(&finding["replay"])], 1);
    assert!(trace.contains("VIOLATION of overlap"), "{trace}");
    let found = json(
        &[
            "sim",
            "plants",
            "--find",
            "1..40",
            "--only",
            "lease-bare-span",
        ],
        0,
    );
    assert_eq!(found["plants"][0]["found"], true);
    assert_eq!(found["plants"][0]["without"], Value::Null);
}

#[test]
fn the_figures_of_backoff_are_written_with_a_page_whose_links_resolve() {
    let place = directory();
    let out = place.path().join("figures");
    let figures = ["sim", "figures", "backoff", "--quick", "--out"];
    let told = json(&[&figures[..], &[out.to_str().unwrap()]].concat(), 0);
    let made = told["figures"].as_array().unwrap();
    assert_eq!(made.len(), 2);
    for figure in made {
        let id = figure["id"].as_str().unwrap();
        for kind in ["csv", "svg", "png"] {
            let file = out.join(format!("{id}.{kind}"));
            assert!(file.metadata().unwrap().len() > 500, "{}", file.display());
        }
        let verdict = figure["verdict"].as_str().unwrap();
        assert!(["held", "in-part", "not-held", "ours"].contains(&verdict));
    }
    let csv = std::fs::read_to_string(out.join("backoff.csv")).unwrap();
    assert!(csv.starts_with("backoff,clients,runs,mean_over_span_clients,"));
    for page in ["index.html", "errata.html"] {
        let page = std::fs::read_to_string(out.join(page)).unwrap();
        for link in page.split("href=\"").skip(1) {
            let link = link.split('"').next().unwrap();
            match link.strip_prefix('#') {
                Some(name) => assert!(page.contains(&format!("id=\"{name}\"")), "{link}"),
                None => assert!(out.join(link).exists(), "{link}"),
            }
        }
        assert!(
            !page.contains("http:") || page.contains("www.w3.org"),
            "no network"
        );
    }
}

#[test]
fn a_hierarchy_is_measured_beside_two_servers() {
    let small = [
        "--system",
        "multilevel(tree, 49, levels=1)",
        "--entries",
        "300",
    ];
    let multilevel = ["sim", "run", "--protocol", "multilevel", "--up", "0.95"];
    let one = json(&[&multilevel[..], &small[..]].concat(), 0);
    let (found, predicted) = (
        number(&one["messages_per_entry"]),
        number(&one["predicted"]),
    );
    assert!((found / predicted - 1.0).abs() < 0.1, "{one}");
    assert!(number(&one["messages_per_entry_without_self"]) < found);
    assert!(number(&one["messages_until_consent"]) < found);
    assert!(number(&one["messages_by_kind"]["CReply"]) >= 1.0);
    assert_eq!(
        (&one["entries"], &one["levels"]),
        (&Value::from(300), &Value::from(1))
    );
    let again = json(&[&multilevel[..], &small[..]].concat(), 0);
    assert_eq!(again["waiting"], one["waiting"]);
    let in_turn = json(
        &[&multilevel[..], &small[..], &["--sequential"]].concat(),
        0,
    );
    assert!(number(&in_turn["waiting"]["mean"]) > number(&one["waiting"]["mean"]));
    let servers = [
        "sim",
        "run",
        "--protocol",
        "primary-backup",
        "--retry",
        "50",
    ];
    let servers = json(&[&servers[..], &small[..]].concat(), 0);
    assert_eq!(number(&servers["messages_per_entry"]).round(), 7.0);
    let told = ends(
        &[&multilevel[..], &small[..], &["--groups", "2"]].concat(),
        0,
    );
    assert!(
        told.contains("messages per entry") && told.contains("inside at once"),
        "{told}"
    );
}

#[test]
fn hierarchies_hold_and_break_as_published() {
    let fuzz = ["sim", "fuzz", "--protocol", "multilevel"];
    let report = json(
        &[&fuzz[..], &["--levels", "1..2", "--seeds", "1..10"]].concat(),
        0,
    );
    assert_eq!(report["runs"], 10);
    let literal = [
        &fuzz[..],
        &["--rules", "paper", "--levels", "1", "--seeds", "1..12"],
    ];
    let report = json(&literal.concat(), 1);
    let finding = &report["violations"][0];
    let again = json(&["sim", "replay", text(&finding["replay"]), "--quiet"], 1);
    assert_eq!(again["violation"]["property"], finding["property"]);
    let planted = json(&[&fuzz[..], &["--plant", "orphan-passes"]].concat(), 1);
    assert_eq!(planted["violations"][0]["property"], "exclusion");
}
