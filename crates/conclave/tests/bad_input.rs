//! Bad input ends with exit code 2 and says why on standard error: no panic, no hang.

use std::path::Path;

mod common;

use common::{conclave, directory, put};

/// Asserts that the toolbox refuses these arguments in one line that starts with `error:`.
fn refused(directory: &Path, arguments: &[&str]) {
    let err = ended(directory, arguments);
    let shown = shown(arguments);
    assert_eq!(err.lines().count(), 1, "{shown}: {err}");
    assert!(
        err.ends_with('\n') && err.len() < 700,
        "{shown} says too much: {err}"
    );
    let plain = err.trim_end().chars().all(|c| !c.is_control());
    assert!(
        plain,
        "{shown} sends control characters to the terminal: {err:?}"
    );
}

/// Asserts that the arguments are refused; the argument parser may take several lines.
fn misused(directory: &Path, arguments: &[&str]) {
    ended(directory, arguments);
}

fn ended(directory: &Path, arguments: &[&str]) -> String {
    let run = conclave(directory, arguments);
    let shown = shown(arguments);
    assert_eq!(
        run.code,
        Some(2),
        "{shown}: exit code\n{}{}",
        run.out,
        run.err
    );
    assert!(!run.err.contains("panicked"), "{shown}: {}", run.err);
    assert!(run.err.starts_with("error: "), "{shown}: {}", run.err);
    assert!(run.out.is_empty(), "{shown} prints {}", run.out);
    run.err
}

/// The arguments, cut short.
fn shown(arguments: &[&str]) -> String {
    let all = arguments.join(" ");
    all.chars().take(100).collect()
}

#[test]
fn systems_that_cannot_be() {
    let here = directory();
    let texts = [
        "majority(0)",
        "majority(1000000000)",
        "majority(18446744073709551616)",
        "majority(99999999999999999999999)",
        "majority(-1)",
        "majority(1.5)",
        "majority(5, 6)",
        "majority(m=3)",
        "majority(n=)",
        "majority",
        "singleton(0)",
        "grid(0)",
        "tree(0)",
        "triangular(0)",
        "wheel(2)",
        "plane(0)",
        "plane(1)",
        "plane(14)",
        "plane(43)",
        "rect(0, 3)",
        "rect(1000000, 1000000)",
        "rect(18446744073709551615, 18446744073709551615)",
        "threshold(3, 0)",
        "threshold(3, 4)",
        "weighted()",
        "weighted(0,0)",
        "weighted(1,2, votes=0)",
        "weighted(1,2, votes=4)",
        "weighted(18446744073709551615,1)",
        "weighted(18446744073709551614,1)",
        "walls()",
        "walls(0)",
        "walls(1,0)",
        "walls(1000000,1000000)",
        "hierarchical(0)",
        "hierarchical(1000,1000,1000)",
        "hgrid()",
        "hgrid(0x1)",
        "hgrid(3)",
        "hgrid(3x)",
        "hgrid(1000000x1000000)",
        "billiard(3)",
        "billiard(5)",
        "billiard(9)",
        "billiard(3, fit=trim)",
        "billiard(q=1)",
        "billiard(q=6)",
        "billiard(q=18446744073709551615)",
        "billiard(24, q=7)",
        "billiard(24, tiers=T9)",
        "billiard(24, tiers=)",
        "billiard(24, fit=stretch)",
        "hbilliard()",
        "hbilliard(4)",
        "hbilliard(3, form=H2)",
        "hbilliard(3,3, form=H3)",
        "hbilliard(1001,1001,1001)",
        "compose(majority, majority)",
        "compose(majority(3))",
        "compose(majority(1000), majority(1000))",
        "compose(surficial(groups=2, n=4), majority(3))",
        "multilevel(tree, 10, levels=99)",
        "multilevel(plane, 30, levels=1)",
        "multilevel(sizes=[[3],4])",
        "multilevel(sizes=[100000,1])",
        "multilevel([tree,majority,grid], 9, levels=1)",
        "multilevel(grid(9), 10)",
        "masking(5)",
        "masking(4, b=1)",
        "masking(5, b=18446744073709551615)",
        "masking(5, b=99999999999999999999)",
        "mutex(5, b=1)",
        "ordering(6, b=1)",
        "free(3, b=1)",
        "mgrid(9, b=100)",
        "mgrid(9, b=1, rule=nope)",
        "surficial(groups=0, n=4)",
        "surficial(groups=2)",
        "surficial(groups=5, n=3)",
        "surficial(groups=1000000, n=1000000)",
        "surficial(groups=2, widths=1,2)",
        "surficial(groups=2, n=4, fallback=none)",
        "surficial(widths=0)",
        "surficial(widths=18446744073709551615,2)",
        "affine(1, groups=1)",
        "affine(16, groups=9)",
        "groups(majority(5), 0)",
        "groups(majority(5), 18446744073709551615)",
        "groups(threshold(4, 2), 2)",
        "groups(surficial(groups=2, n=4), 2)",
        "complete(threshold(4, 2))",
        "complete(affine(9, groups=2))",
    ];
    for text in texts {
        refused(here.path(), &["quorum", "show", text]);
    }
}

#[test]
fn texts_that_are_no_system() {
    let here = directory();
    let long = "a".repeat(100_000);
    let deep = format!("expr({}", "(".repeat(50_000));
    let nested = "compose(".repeat(8_000);
    let wide = format!("weighted({}1)", "1,".repeat(50_000));
    let texts = [
        "",
        " ",
        "(",
        ")",
        "5",
        "nosuch(3)",
        "Majority(3)",
        "majority(5",
        "majority(5))",
        "majority 5",
        "majority(3)majority(3)",
        "majority(5)\u{7}\n\u{1b}[31m",
        "\u{1}",
        "majority(\u{202e}3)",
        "majority(５)",
        "ünïcode(3)",
        "expr(",
        "expr()",
        "expr(a*)",
        "expr(+a)",
        "expr(choose(0, a, b))",
        "expr(choose(3, a, b))",
        "expr(choose(99999999999999999999, a))",
        "expr(maj())",
        "file()",
        "file(",
        "file(\"unclosed)",
        "file(/does/not/exist)",
        "file(.)",
        &long,
        &deep,
        &nested,
        &wide,
    ];
    for text in texts {
        refused(here.path(), &["quorum", "check", text]);
    }
}

#[test]
fn every_command_refuses_a_bad_system() {
    let here = directory();
    for text in ["majority(0)", "expr(", "plane(14)", "masking(4, b=1)"] {
        for command in ["show", "check", "analyze", "compare"] {
            refused(here.path(), &["quorum", command, text]);
            refused(here.path(), &["quorum", command, text, "--json"]);
        }
        refused(here.path(), &["quorum", "draw", text, "-o", "out.svg"]);
    }
    refused(
        here.path(),
        &["quorum", "compare", "majority(5)", "nosuch(5)"],
    );
    let left: Vec<_> = std::fs::read_dir(here.path()).expect("listed").collect();
    assert!(left.is_empty(), "{left:?} was written all the same");
}

#[test]
fn nodes_groups_and_sizes_that_are_not_there() {
    let here = directory();
    let five = |more: &[&str]| {
        let all = [&["quorum", "show", "majority(5)"], more].concat();
        refused(here.path(), &all);
    };
    five(&["--site", "0"]);
    five(&["--site", "999"]);
    five(&["--avoid", "0"]);
    five(&["--avoid", "6"]);
    five(&["--avoid", "1,2,99"]);
    five(&["--group", "1"]);
    five(&["--nodes", "6"]);
    let groups = "surficial(groups=3, n=12)";
    refused(here.path(), &["quorum", "show", groups, "--group", "0"]);
    refused(here.path(), &["quorum", "show", groups, "--group", "9"]);
    let show = |text: &str, more: &[&str]| {
        refused(here.path(), &[&["quorum", "show", text], more].concat());
    };
    show("majority", &["--nodes", "0"]);
    show("majority", &["--nodes", "1000000000"]);
    show("compose(majority, majority(3))", &["--nodes", "10"]);
    show("compose(majority, majority)", &["--nodes", "9"]);
    show("expr(a+b)", &["--nodes", "3"]);
    show("majority(1001)", &["--all"]);
    show("billiard(1104)", &["--all"]);
    show("expr(a*b+a*c)", &["--site", "1"]);
}

#[test]
fn groups_that_share_a_cartel() {
    let here = directory();
    let wrong = [
        "red=1,blue=1",
        "red=1,red=2",
        "red=3",
        "red=0",
        "red",
        "red=",
        "red=x",
        "red=18446744073709551616",
        "",
    ];
    for names in wrong {
        refused(
            here.path(),
            &[
                "quorum",
                "check",
                "surficial(groups=2, n=4)",
                "--assign",
                names,
            ],
        );
    }
    refused(
        here.path(),
        &["quorum", "check", "majority(5)", "--assign", "red=1"],
    );
}

#[test]
fn pictures_that_cannot_be_drawn() {
    let here = directory();
    put(here.path(), "file", "");
    let draw = |text: &str, more: &[&str]| {
        refused(here.path(), &[&["quorum", "draw", text], more].concat());
    };
    for path in [
        "out.txt",
        "out",
        "/",
        "..",
        "svg",
        ".svg",
        "no/such/directory/x.svg",
        "no/such/directory/x.png",
        "file/x.svg",
    ] {
        draw("majority(5)", &["-o", path]);
    }
    for scale in ["0", "nan", "inf", "1e9"] {
        draw("majority(5)", &["-o", "x.png", "--scale", scale]);
    }
    draw("majority(5)", &["-o", "x.svg", "--site", "0"]);
    draw(
        "majority(5)",
        &["-o", "x.svg", "--site", "1", "--with", "6"],
    );
    draw("majority(5)", &["-o", "x.svg", "--avoid", "6"]);
    draw("majority(5)", &["-o", "x.svg", "--group", "1"]);
    draw("majority(100000)", &["-o", "x.svg"]);
    draw("wheel(1000)", &["-o", "x.svg"]);
    let compare = |more: &[&str]| {
        refused(
            here.path(),
            &[&["quorum", "compare", "majority(5)"], more].concat(),
        );
    };
    compare(&["--plot", "x.txt"]);
    compare(&["--plot", "no/such/directory/x.svg"]);
    assert!(!here.path().join("x.svg").exists());
}

#[test]
fn plans_that_cannot_be() {
    let here = directory();
    let plan = |more: &[&str]| refused(here.path(), &[&["quorum", "plan"], more].concat());
    plan(&["--nodes", "0"]);
    plan(&["--nodes", "1000000000"]);
    plan(&["--nodes", "12", "--groups", "3", "--byzantine", "1"]);
    plan(&["--nodes", "4", "--byzantine", "2"]);
    plan(&["--nodes", "1", "--byzantine", "1"]);
    plan(&["--nodes", "4", "--byzantine", "18446744073709551615"]);
    plan(&["--nodes", "4", "--groups", "18446744073709551615"]);
    plan(&["--nodes", "5", "--favour", "latency"]);
    plan(&["--nodes", "5", "--down", "0.1", "--samples", "0"]);
    plan(&["--nodes", "9", "--multilevel", "--up", "0"]);
    plan(&["--nodes", "9", "--multilevel", "--byzantine", "1"]);
    plan(&["--nodes", "9", "--multilevel", "--coterie", "tree(3)"]);
    plan(&["--nodes", "9", "--multilevel", "--coterie", "surficial"]);
    plan(&["--nodes", "9", "--multilevel", "--root", "nothing"]);
    plan(&["--nodes", "9", "--multilevel", "--levels-max", "21"]);
    plan(&["--nodes", "9", "--multilevel", "--way", "nan"]);
}

#[test]
fn too_few_or_too_many_samples() {
    let here = directory();
    for samples in ["0", "99999999999"] {
        for command in [
            &["analyze", "majority(5)", "--down", "0.1"][..],
            &["compare", "majority(5)"][..],
            &["tables"][..],
        ] {
            refused(
                here.path(),
                &[&["quorum"], command, &["--samples", samples]].concat(),
            );
        }
    }
}

/// What a value file is for, and contents it does not take.
fn values(option: &str, wrong: &[&str]) {
    let here = directory();
    std::fs::create_dir(here.path().join("directory")).expect("made");
    put(
        here.path(),
        "binary.csv",
        [0x89, 0x50, 0xff, 0xfe, 0x00, 0x31],
    );
    let analyze = |file: &str| {
        refused(
            here.path(),
            &["quorum", "analyze", "majority(3)", option, file],
        );
    };
    for content in wrong {
        put(here.path(), "values.csv", content);
        analyze("values.csv");
    }
    for file in ["missing.csv", "directory", "binary.csv", "/dev/null"] {
        analyze(file);
    }
}

#[test]
fn wrong_capacity_files() {
    values(
        "--capacity",
        &[
            "",
            "hello",
            "1,1\n1,2\n2,1\n3,1",
            "1,1\n2,1",
            "1,1\n2,1\n3,1\n4,1",
            "0,1\n1,1\n2,1\n3,1",
            "1,-1\n2,1\n3,1",
            "1,0\n2,1\n3,1",
            "1,x\n2,1\n3,1",
            "1,nan\n2,1\n3,1",
            "1,inf\n2,1\n3,1",
            "1,1,1\n2,1\n3,1",
            "99999999999999999999,1\n2,1\n3,1",
        ],
    );
}

#[test]
fn wrong_down_files() {
    values(
        "--down-file",
        &[
            "",
            "hello",
            "1,0.1\n1,0.2\n2,0.1\n3,0.1",
            "1,0.1\n2,0.1",
            "1,0.1\n2,0.1\n3,0.1\n4,0.1",
            "1,-0.1\n2,0.1\n3,0.1",
            "1,1.5\n2,0.1\n3,0.1",
            "1,nan\n2,0.1\n3,0.1",
            "1,\n2,0.1\n3,0.1",
        ],
    );
}

#[test]
fn wrong_latency_files() {
    values(
        "--latency",
        &[
            "",
            "a,1,2",
            "a,1,2,3,4",
            "a,1,2,3\na,1,2,3",
            "a,1,-2,3",
            "a,x,y,z",
            "a,nan,1,2",
        ],
    );
}

#[test]
fn wrong_domain_files() {
    values(
        "--domains",
        &[
            "rack",
            "rack,0.1",
            "rack,0.1,",
            "rack,0.1,0",
            "rack,0.1,4",
            "rack,0.1,x",
            "rack,1.5,1",
            "rack,nan,1",
            "rack,0.1,1\nrack,0.1,2",
        ],
    );
}

#[test]
fn wrong_quorum_files() {
    let here = directory();
    put(here.path(), "binary.txt", [0x00, 0xff, 0xfe]);
    for content in [
        "",
        "# nothing\n",
        "a a\n",
        "1 2 1\n",
        "nodes: a b a\na b\n",
        "nodes: a b\na c\n",
        "nodes: 0\n1\n",
        "nodes: 3\n4\n",
        "nodes: 99999999999999999999\n1\n",
        "nodes:\n1\n",
        "group red:\n",
        "group red:\n1 2\ngroup red:\n1 3\n",
        "group :\n1 2\n",
        "1 2\ngroup red:\n1 2\n",
        "what: 1\n",
        "1000000000 2\n",
    ] {
        put(here.path(), "quorums.txt", content);
        refused(here.path(), &["quorum", "show", "file(quorums.txt)"]);
    }
    for file in ["file(binary.txt)", "file(missing.txt)", "file(..)"] {
        refused(here.path(), &["quorum", "show", file]);
    }
}

#[test]
fn options_that_the_parser_refuses() {
    let here = directory();
    let cases: &[&[&str]] = &[
        &["nosuch"],
        &["completions", "nosuch"],
        &["quorum", "nosuch"],
        &["quorum", "list", "extra"],
        &["quorum", "show"],
        &["quorum", "show", "majority(5)", "--avoid", "x"],
        &["quorum", "show", "majority(5)", "--avoid", ""],
        &["quorum", "show", "majority(5)", "--nodes", "-1"],
        &["quorum", "show", "majority(5)", "--site", "1", "--all"],
        &[
            "quorum",
            "show",
            "majority(5)",
            "--site",
            "18446744073709551616",
        ],
        &["quorum", "analyze", "majority(5)", "--down", "1.5"],
        &["quorum", "analyze", "majority(5)", "--down", "nan"],
        &["quorum", "analyze", "majority(5)", "--down", "inf"],
        &["quorum", "analyze", "majority(5)", "--down", "-0.1"],
        &["quorum", "analyze", "majority(5)", "--down", ""],
        &["quorum", "analyze", "majority(5)", "--up", "2"],
        &[
            "quorum",
            "analyze",
            "majority(5)",
            "--down",
            "0.1",
            "--up",
            "0.9",
        ],
        &["quorum", "analyze", "majority(5)", "--seed", "-1"],
        &["quorum", "compare"],
        &["quorum", "compare", "majority(5)", "--down", "0.3..0.1"],
        &["quorum", "compare", "majority(5)", "--down", "0.1.."],
        &["quorum", "compare", "majority(5)", "--down", "0.1..1.5"],
        &["quorum", "compare", "majority(5)", "--points", "0"],
        &["quorum", "plan"],
        &["quorum", "plan", "--nodes", "18446744073709551616"],
        &["quorum", "plan", "--nodes", "5", "--favour", "speed"],
        &["quorum", "plan", "--nodes", "5", "--down", "2"],
        &["quorum", "draw", "majority(5)"],
        &["quorum", "draw", "majority(5)", "-o", ""],
        &[
            "quorum",
            "draw",
            "majority(5)",
            "-o",
            "x.svg",
            "--with",
            "2",
        ],
        &["quorum", "tables", "nosuch"],
    ];
    for case in cases {
        misused(here.path(), case);
    }
}

#[test]
fn numbers_and_names_past_reason_are_refused_in_plain_words() {
    let folder = directory();
    let folder = folder.path();
    let system = "surficial(groups=2, n=4)";
    refused(folder, &["quorum", "check", system, "--assign", "=1"]);
    put(folder, "twice.csv", "rack,0.1,1 1\n");
    let domains = ["analyze", "majority(3)", "--domains", "twice.csv"];
    refused(folder, &[&["quorum"], &domains[..]].concat());
    refused(
        folder,
        &["quorum", "analyze", "majority(5)", "--down", "1.5"],
    );
    refused(
        folder,
        &["quorum", "analyze", "majority(5)", "--down", "-0.1"],
    );
    let liars = [
        "plan",
        "--nodes",
        "4",
        "--byzantine",
        "18446744073709551615",
    ];
    let told = ended(folder, &[&["quorum"], &liars[..]].concat());
    assert!(told.contains("none is left"), "{told}");
}

#[test]
fn groups_of_a_file_that_do_not_meet_are_a_violation_to_check_alone() {
    let folder = directory();
    put(
        folder.path(),
        "g.txt",
        "group a:\n1 2\n3 4\ngroup b:\n1 2\n",
    );
    let check = conclave(folder.path(), &["quorum", "check", "file(g.txt)", "--json"]);
    assert_eq!(check.code, Some(1), "{}", check.err);
    assert!(check.out.contains("\"ok\": false") && check.out.contains("share no node"));
    refused(folder.path(), &["quorum", "analyze", "file(g.txt)"]);
}
