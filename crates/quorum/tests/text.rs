//! The text form: what parses to what, what is refused where, and that canonical text comes back.

use conclave_quorum::text::{
    BilliardSize, ClustersSize, DEPTH_MAX, Expr, Fallback, Fit, HForm, Kind, Rule, Spec,
    SurficialSize, TEXT_MAX, Tier, forms, parse, parse_file,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

#[track_caller]
fn same(text: &str, spec: &Spec) {
    assert_eq!(parse(text).as_ref(), Ok(spec), "{text}");
    assert_eq!(parse(&spec.to_string()).as_ref(), Ok(spec), "{spec}");
}

/// The text is refused at byte `at` with exactly this message, less its repeat of the text.
#[track_caller]
fn refused(text: &str, at: usize, what: &str) {
    let error = parse(text).expect_err(text);
    let character = text[..error.at].chars().count() + 1;
    let (fact, rest) = error
        .message
        .split_once(&format!(" at character {character} of '"))
        .expect("the place is in the message");
    let hint = rest.split_once("': ").map(|(_, hint)| hint);
    let found = hint.map_or_else(|| fact.to_owned(), |hint| format!("{fact}: {hint}"));
    assert_eq!((error.at, found.as_str()), (at, what), "{text}");
}

#[test]
fn every_example_is_canonical_and_of_its_form() {
    for form in forms() {
        let spec = parse(form.example).unwrap();
        assert_eq!(spec.to_string(), form.example);
        assert_eq!(spec.name(), form.name);
        assert_eq!(spec.is_groups(), form.kind == Kind::Groups, "{}", form.name);
        assert!(form.syntax.starts_with(form.name) && form.what.ends_with('.'));
        assert!(!form.needs.is_empty());
    }
    let mut names: Vec<_> = forms().iter().map(|form| form.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), forms().len()), (28, 28));
}

#[test]
fn the_number_of_nodes_may_be_left_out_or_named() {
    for text in ["majority", "majority()", " majority ( ) "] {
        same(text, &Spec::Majority { n: None });
    }
    for text in ["majority(12)", "majority(n=12)", "majority ( n = 12 )\n"] {
        same(text, &Spec::Majority { n: Some(12) });
    }
    same("singleton(2)", &Spec::Singleton { n: Some(2) });
    same("grid", &Spec::Grid { n: None });
    same("plane(7)", &Spec::Plane { n: Some(7) });
    same("tree(15)", &Spec::Tree { n: Some(15) });
    same("wheel(5)", &Spec::Wheel { n: Some(5) });
    same("triangular(6)", &Spec::Triangular { n: Some(6) });
}

#[test]
fn votes() {
    let threshold = |n, k| Spec::Threshold { n, k };
    same("threshold(5, 3)", &threshold(Some(5), 3));
    same("threshold(k=3, n=5)", &threshold(Some(5), 3));
    same("threshold(k=3)", &threshold(None, 3));
    let weights = vec![3, 1, 0, 1];
    let votes = None;
    same(
        "weighted(3,1,0,1)",
        &Spec::Weighted {
            weights: weights.clone(),
            votes,
        },
    );
    let weighted = Spec::Weighted {
        weights,
        votes: Some(5),
    };
    same("weighted(3, 1, 0, 1, votes=5)", &weighted);
    same("weighted(votes=5, 3,1,0,1)", &weighted);
    assert_eq!(weighted.to_string(), "weighted(3,1,0,1, votes=5)");
}

#[test]
fn grids_walls_and_hierarchies() {
    same("rect(3,4)", &Spec::Rect { rows: 3, cols: 4 });
    same("rect(cols=4, rows=3)", &Spec::Rect { rows: 3, cols: 4 });
    let widths = vec![1, 2, 3];
    same("walls(1,2,3)", &Spec::Walls { widths });
    let branches = vec![3, 3, 5];
    same("hierarchical(3,3,5)", &Spec::Hierarchical { branches });
    let sizes = vec![(3, 4), (2, 1)];
    same("hgrid(3x4,2x1)", &Spec::HGrid { sizes });
    for form in HForm::ALL {
        let (sides, form) = (vec![5, 3], *form);
        same(
            &format!("hbilliard(5,3, form={form})"),
            &Spec::HBilliard { sides, form },
        );
    }
    let (sides, form) = (vec![5], HForm::H1);
    same("hbilliard(5)", &Spec::HBilliard { sides, form });
}

#[test]
fn billiard_sizes_tiers_and_fit() {
    let billiard = |size, tiers: &[Tier], fit| Spec::Billiard {
        size,
        tiers: (!tiers.is_empty()).then(|| tiers.to_vec()),
        fit,
    };
    let (cluster, side) = (BilliardSize::Nodes(None), BilliardSize::Side(9));
    same("billiard", &billiard(cluster, &[], Fit::Fold));
    same("billiard(q=9)", &billiard(side, &[], Fit::Fold));
    same(
        "billiard(tiers=T0)",
        &billiard(cluster, &[Tier::T0], Fit::Fold),
    );
    let three = [Tier::T0, Tier::T3p, Tier::T4];
    let forty = BilliardSize::Nodes(Some(40));
    let folded = billiard(forty, &three, Fit::Fold);
    same("billiard(40, tiers=T4, T3', T0, fit=fold)", &folded);
    same("billiard(tiers=T0,T3p,T4, 40)", &folded);
    assert_eq!(folded.to_string(), "billiard(40, tiers=T0,T3p,T4)");
    let trimmed = billiard(forty, &three, Fit::Trim);
    same("billiard(fit=trim, tiers=T0,T3p,T4, n=40)", &trimmed);
}

#[test]
fn nested_forms() {
    let majority = |n| Box::new(Spec::Majority { n });
    let inner = Box::new(Spec::Grid { n: None });
    let composed = Spec::Compose {
        outer: majority(Some(3)),
        inner,
    };
    same("compose(majority(3), grid)", &composed);
    same("compose(inner=grid(), outer=majority(3))", &composed);
    let multilevel = |inner: Spec, n, levels| Spec::Multilevel {
        inner: vec![inner],
        clusters: ClustersSize::Even { n, levels },
    };
    let tree = || Spec::Tree { n: None };
    same("multilevel", &multilevel(tree(), None, 1));
    same(
        "multilevel(1200, levels=2)",
        &multilevel(tree(), Some(1200), 2),
    );
    same(
        "multilevel(tree, 1200, levels=0)",
        &multilevel(tree(), Some(1200), 0),
    );
    same(
        "multilevel(majority)",
        &multilevel(*majority(None), None, 1),
    );
    let threshold = Spec::Threshold { n: None, k: 2 };
    same(
        "multilevel(threshold(k=2), 9)",
        &multilevel(threshold, Some(9), 1),
    );
    let coterie = Box::new(composed);
    same(
        "complete(compose(majority(3),grid))",
        &Spec::Complete { coterie },
    );
}

#[test]
fn hierarchies_with_clusters_and_coteries_of_their_own() {
    let spec = |text: &str| {
        let spec = parse(text).expect(text);
        same(&spec.to_string(), &spec);
        spec
    };
    let three = spec("multilevel([majority, tree, grid], 27)");
    assert_eq!(
        three.to_string(),
        "multilevel([majority,tree,grid], 27, levels=2)"
    );
    let Spec::Multilevel { inner, clusters } = three else {
        panic!("no hierarchy")
    };
    assert_eq!((inner.len(), clusters.levels()), (3, 2));
    let same_all = spec("multilevel([tree,tree], 9)");
    assert_eq!(same_all.to_string(), "multilevel(tree, 9, levels=1)");
    let sized = spec("multilevel(sizes=[[3, 3, 3], [4, 2]])");
    assert_eq!(sized.to_string(), "multilevel(tree, sizes=[[3,3,3],[4,2]])");
    assert_eq!(sized.nodes(), Some(15));
    let rows = vec![vec![2], vec![3, 2], vec![3, 3, 3, 4, 2]];
    let clusters = ClustersSize::Sizes(rows);
    let inner = vec![Spec::Tree { n: None }];
    same(
        "multilevel(sizes=[[3,3,3],[4,2]])",
        &Spec::Multilevel { inner, clusters },
    );
    assert_eq!(
        spec("multilevel([majority,tree], sizes=[5])").nodes(),
        Some(5)
    );
    let deep = format!("multilevel(sizes={}1{})", "[".repeat(20), "]".repeat(20));
    assert_eq!(spec(&deep).nodes(), Some(1));
    let deeper = format!("multilevel(sizes={}1{})", "[".repeat(21), "]".repeat(21));
    refused(
        &deeper,
        37,
        "too many brackets in each other: at most 20 are allowed",
    );
    let uneven = "the brackets are not equally deep: \
                  every size stands in as many brackets as there are levels below the root";
    refused("multilevel(sizes=[[3],4])", 22, uneven);
    refused("multilevel(sizes=[4,[3]])", 20, uneven);
    refused("multilevel(sizes=[[3],[[4]]])", 23, uneven);
    refused(
        "multilevel(sizes=[[]])",
        19,
        "expected a number for sizes, found ']': a number is written in digits only",
    );
    refused("multilevel(sizes=[3,0])", 20, "sizes must be at least 1");
    refused(
        "multilevel(sizes=3)",
        17,
        "expected '[', found '3': write sizes as in sizes=[[3,3],[4,2]]",
    );
    refused(
        "multilevel(sizes=[3",
        19,
        "unexpected the end of the text: expected ',' or ']'",
    );
    refused(
        "multilevel(9, sizes=[3,3,3])",
        20,
        "sizes and n or levels are both given: \
         the sizes settle nodes and levels: leave the others out",
    );
    refused(
        "multilevel([majority,tree], 9, levels=2)",
        12,
        "2 coteries for 3 levels of clusters: \
         give one for all levels, or one for the root and each level below",
    );
    refused(
        "multilevel([majority,tree(3)], 9)",
        21,
        "inner of multilevel cannot be this tree: \
         a coterie without a size of its own is allowed, such as tree",
    );
    refused(
        "multilevel([majority 9)",
        21,
        "unexpected '9': expected ',' or ']'",
    );
}

#[test]
fn masking_and_group_forms() {
    for rule in Rule::ALL {
        let (rule, b) = (*rule, 1);
        let n = Some(9);
        same(&format!("{rule}(9, b=1)"), &Spec::Masking { rule, n, b });
        same(&format!("{rule}(b=1)"), &Spec::Masking { rule, n: None, b });
        same(
            &format!("mgrid(9, b=1, rule={rule})"),
            &Spec::MGrid { n, b, rule },
        );
    }
    let (n, rule) = (None, Rule::Masking);
    same("mgrid(b=2)", &Spec::MGrid { n, b: 2, rule });
    let surficial = |size, n, fallback| Spec::Surficial { size, n, fallback };
    let three = surficial(SurficialSize::Groups(3), Some(12), None);
    same("surficial(groups=3, n=12)", &three);
    same("surficial(12, groups=3)", &three);
    let widths = SurficialSize::Widths(vec![3, 3, 2]);
    same(
        "surficial(widths=3,3,2)",
        &surficial(widths.clone(), None, None),
    );
    let spared = surficial(widths, Some(24), Some(Fallback::Balanced));
    same("surficial(widths=3,3,2, n=24, fallback=balanced)", &spared);
    let (n, fallback) = (Some(16), Some(Fallback::Nondominated));
    let affine = Spec::Affine {
        n,
        groups: 4,
        fallback,
    };
    same("affine(n=16, groups=4, fallback=nondominated)", &affine);
    let coterie = Box::new(Spec::Majority { n: Some(5) });
    same(
        "groups(majority(5), 3)",
        &Spec::Groups { coterie, groups: 3 },
    );
}

#[test]
fn expressions_bind_and_before_or() {
    use Expr::{All, Any, Choose, Node};
    let spec = |expr, names: &str| Spec::Expr {
        expr,
        names: names.split(' ').map(ToOwned::to_owned).collect(),
    };
    let pair = |a, b| All(vec![Node(a), Node(b)]);
    let two = Choose(2, vec![Node(0), Node(1), pair(2, 3)]);
    same("expr(choose(2, a, b, c*d))", &spec(two, "a b c d"));
    let or = Any(vec![Node(0), pair(1, 0)]);
    same("expr(x-1.b + y_2*x-1.b)", &spec(or.clone(), "x-1.b y_2"));
    let and = All(vec![or, Node(1)]);
    same("expr((a + b*a) * ((b)))", &spec(and, "a b"));
    let majority = Choose(2, vec![Node(0), Node(1), Node(2)]);
    same("expr(maj(ä,b,choose))", &spec(majority, "ä b choose"));
    // Numbers are nodes of their own; nodes 1, 2 and 4 are in no quorum.
    same("expr(5*3)", &spec(pair(4, 2), "1 2 3 4 5"));
    same("expr(5*03)", &spec(pair(0, 1), "5 03"));
    same("expr(0*1)", &spec(pair(0, 1), "0 1"));
}

#[test]
fn paths_may_be_quoted() {
    let file = |path: &str| Spec::File { path: path.into() };
    same("file( a b/c.txt )", &file("a b/c.txt"));
    same("file(\"a b.txt\")", &file("a b.txt"));
    same(r#"file(" a)\"\\")"#, &file(r#" a)"\"#));
    same(r#"file("\"a\"")"#, &file(r#""a""#));
    same(r"file(C:\q.txt)", &file(r"C:\q.txt"));
    assert_eq!(file("x(1)").to_string(), "file(\"x(1)\")");
    let coterie = Box::new(file("a.txt"));
    same(
        "groups(file(a.txt), 2)",
        &Spec::Groups { coterie, groups: 2 },
    );
}

#[test]
fn an_error_is_one_line_and_points_at_the_character() {
    let text = "majorty(5)";
    let error = parse(text).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown form 'majorty' at character 1 of 'majorty(5)': did you mean 'majority'?"
    );
    assert_eq!(error.pointer(text), "majorty(5)\n^");
    let text = "expr(ä + é * ?)";
    let error = parse(text).unwrap_err();
    assert_eq!(error.at, 15);
    assert_eq!(error.pointer(text), "expr(ä + é * ?)\n             ^");
    assert!(error.message.contains("at character 14 of"));
    let text = "majority(\n\u{1b}5)";
    let error = parse(text).unwrap_err();
    assert_eq!(error.pointer(text), "majority(\\n\\u{1b}5)\n           ^");
    assert!(!error.to_string().contains(['\n', '\u{1b}']));
    let text = "majority(5";
    let error = parse(text).unwrap_err();
    assert_eq!(error.pointer(text), "majority(5\n          ^");
}

/// Each entry of the file is a text, a caret under its wrong character, and the message.
#[test]
fn refusals_point_at_the_character_and_say_what_is_allowed() {
    let lines: Vec<_> = include_str!("../src/text/testdata/refusals.txt")
        .lines()
        .collect();
    let entries = lines.chunks(4);
    assert_eq!(entries.len(), 89);
    for entry in entries {
        let (text, caret, message) = (entry[0], entry[1], entry[2]);
        let column = caret.chars().count() - 1;
        let at: usize = text.chars().take(column).map(char::len_utf8).sum();
        refused(text, at, message);
        let pointer = parse(text).unwrap_err().pointer(text);
        assert_eq!(pointer, format!("{text}\n{caret}"));
        assert!(entry.get(3).is_none_or(|line| line.is_empty()), "{text}");
    }
}

#[test]
fn an_unknown_form_far_from_all_gets_the_list() {
    let names: Vec<_> = forms().iter().map(|form| form.name).collect();
    let list = format!("unknown form 'zzz': the forms are {}", names.join(", "));
    refused("zzz", 0, &list);
}

#[test]
fn the_bounds_themselves_are_allowed() {
    for text in [
        "majority(1000000)",
        "rect(1000, 1000)",
        "billiard(q=1413)",
        "multilevel(9, levels=20)",
        "threshold(5, 5)",
        "weighted(3,2, votes=5)",
        "weighted(18446744073709551615,0)",
        "expr(100000)",
    ] {
        assert!(parse(text).is_ok(), "{text}");
    }
    let long = format!("majority({})", " ".repeat(TEXT_MAX));
    let message = "text too long: at most 65536 bytes are allowed";
    refused(&long, TEXT_MAX, message);
    let long = format!("majority({})", " ".repeat(TEXT_MAX - 10));
    assert!(long.len() == TEXT_MAX && parse(&long).is_ok());
}

#[test]
fn nesting_is_bounded() {
    let nest = |depth: usize| "complete(".repeat(depth - 1) + "grid" + &")".repeat(depth - 1);
    assert!(parse(&nest(DEPTH_MAX)).is_ok());
    let deep = "nested too deeply: at most 32 levels are allowed";
    refused(&nest(DEPTH_MAX + 1), 9 * DEPTH_MAX, deep);
    let brackets = |depth: usize| format!("expr({}a{})", "(".repeat(depth), ")".repeat(depth));
    assert!(parse(&brackets(DEPTH_MAX - 1)).is_ok());
    refused(&brackets(DEPTH_MAX), 4 + DEPTH_MAX, deep);
    refused(&"compose(".repeat(8000), 8 * DEPTH_MAX, deep);
    refused(
        &format!("expr({}", "maj(".repeat(10_000)),
        5 + 4 * (DEPTH_MAX - 1),
        deep,
    );
    let long = "text too long: at most 65536 bytes are allowed";
    refused(&"compose(".repeat(10_000), TEXT_MAX, long);
}

fn some_n() -> impl Strategy<Value = Option<usize>> {
    proptest::option::of(1_usize..=1_000_000)
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    vec(1_usize..10, 1..6)
}

fn fallback() -> impl Strategy<Value = Option<Fallback>> {
    proptest::option::of(select(Fallback::ALL))
}

fn billiard() -> impl Strategy<Value = Spec> {
    let size = prop_oneof![
        some_n().prop_map(BilliardSize::Nodes),
        (1_usize..700).prop_map(|half| BilliardSize::Side(2 * half + 1)),
    ];
    let tiers = proptest::option::of(subsequence(Tier::ALL, 1..=Tier::ALL.len()));
    (size, tiers, select(Fit::ALL)).prop_map(|(size, tiers, fit)| Spec::Billiard {
        size,
        tiers,
        fit,
    })
}

fn by_n() -> impl Strategy<Value = Spec> {
    (some_n(), any::<usize>(), 0..8).prop_map(|(n, k, form)| match form {
        0 => Spec::Singleton { n },
        1 => Spec::Majority { n },
        2 => Spec::Grid { n },
        3 => Spec::Plane { n },
        4 => Spec::Tree { n },
        5 => Spec::Wheel { n },
        6 => Spec::Triangular { n },
        _ => {
            let k = k % n.unwrap_or(1_000_000) + 1;
            Spec::Threshold { n, k }
        }
    })
}

fn weighted() -> impl Strategy<Value = Spec> {
    let weights = (vec(0_u64..1 << 40, 0..9), 1_u64..9).prop_map(|(mut weights, last)| {
        weights.push(last);
        weights
    });
    (weights, proptest::option::of(any::<u64>())).prop_map(|(weights, votes)| {
        let total: u64 = weights.iter().sum();
        let votes = votes.map(|votes| votes % total + 1);
        Spec::Weighted { weights, votes }
    })
}

/// Expressions labelled as a text would: by first appearance, or by the nodes' own numbers.
fn expression() -> impl Strategy<Value = Spec> {
    let node = (0_usize..8).prop_map(Expr::Node);
    let expr = node.prop_recursive(5, 40, 4, |part| {
        prop_oneof![
            vec(part.clone(), 2..4).prop_map(Expr::All),
            vec(part.clone(), 2..4).prop_map(Expr::Any),
            (any::<u64>(), vec(part, 1..4))
                .prop_map(|(k, parts)| Expr::Choose(k % parts.len() as u64 + 1, parts)),
        ]
    });
    (expr, any::<bool>()).prop_map(|(mut expr, numbered)| {
        let mut order = Vec::new();
        visit(&mut expr, &mut |node| {
            if !order.contains(node) {
                order.push(*node);
            }
        });
        let names = if numbered {
            let most = order.iter().max().map_or(0, |most| most + 1);
            (1..=most).map(|number| number.to_string()).collect()
        } else {
            visit(&mut expr, &mut |node| {
                *node = order
                    .iter()
                    .position(|other| other == node)
                    .expect("listed");
            });
            order.iter().map(|node| format!("{node}-é.x_")).collect()
        };
        Spec::Expr { expr, names }
    })
}

fn visit(expr: &mut Expr, see: &mut dyn FnMut(&mut usize)) {
    match expr {
        Expr::Node(node) => see(node),
        Expr::All(parts) | Expr::Any(parts) | Expr::Choose(_, parts) => {
            for part in parts {
                visit(part, see);
            }
        }
    }
}

fn flat() -> impl Strategy<Value = Spec> {
    let sides = vec(select(vec![3_usize, 5, 7, 9]), 1..4);
    let path = vec(any::<char>(), 1..12).prop_map(String::from_iter);
    prop_oneof![
        by_n(),
        weighted(),
        (1_usize..1000, 1_usize..1000).prop_map(|(rows, cols)| Spec::Rect { rows, cols }),
        sizes().prop_map(|widths| Spec::Walls { widths }),
        sizes().prop_map(|branches| Spec::Hierarchical { branches }),
        vec((1_usize..7, 1_usize..7), 1..4).prop_map(|sizes| Spec::HGrid { sizes }),
        billiard(),
        (sides, select(HForm::ALL)).prop_map(|(sides, form)| Spec::HBilliard { sides, form }),
        (select(Rule::ALL), some_n(), 0_usize..9).prop_map(|(rule, n, b)| Spec::Masking {
            rule,
            n,
            b
        }),
        (some_n(), 0_usize..9, select(Rule::ALL)).prop_map(|(n, b, rule)| Spec::MGrid {
            n,
            b,
            rule
        }),
        expression(),
        path.prop_map(|path| Spec::File { path }),
    ]
}

/// A hierarchy with one coterie per level where there are three levels of clusters.
fn hierarchy(mut inner: Vec<Spec>, clusters: ClustersSize) -> Spec {
    if clusters.levels() != 2 || inner.windows(2).all(|pair| pair[0] == pair[1]) {
        inner.truncate(1);
    }
    Spec::Multilevel { inner, clusters }
}

fn spec() -> impl Strategy<Value = Spec> {
    let open = select(vec![
        "tree",
        "majority",
        "threshold(k=2)",
        "billiard(tiers=T1,T4)",
    ])
    .prop_map(|text| parse(text).expect(text));
    let one = flat().prop_recursive(3, 12, 2, move |part| {
        let part = part.prop_map(Box::new);
        prop_oneof![
            (part.clone(), part.clone()).prop_map(|(outer, inner)| Spec::Compose { outer, inner }),
            part.prop_map(|coterie| Spec::Complete { coterie }),
            (vec(open.clone(), 3), some_n(), 0_usize..=20).prop_map(|(inner, n, levels)| {
                let clusters = ClustersSize::Even { n, levels };
                hierarchy(inner, clusters)
            }),
            (vec(open.clone(), 3), vec(vec(1_usize..9, 1..5), 1..5)).prop_map(|(inner, nested)| {
                let middle: Vec<usize> = nested.iter().map(Vec::len).collect();
                let rows = vec![vec![middle.len()], middle, nested.concat()];
                hierarchy(inner, ClustersSize::Sizes(rows))
            }),
        ]
    });
    let size = prop_oneof![
        (1_usize..50).prop_map(SurficialSize::Groups),
        sizes().prop_map(SurficialSize::Widths),
    ];
    prop_oneof![
        4 => one.clone(),
        1 => (size, some_n(), fallback())
            .prop_map(|(size, n, fallback)| Spec::Surficial { size, n, fallback }),
        1 => (some_n(), 1_usize..9, fallback())
            .prop_map(|(n, groups, fallback)| Spec::Affine { n, groups, fallback }),
        1 => (one.prop_map(Box::new), 1_usize..9)
            .prop_map(|(coterie, groups)| Spec::Groups { coterie, groups }),
    ]
    .prop_filter("few enough nodes", within)
}

/// Whether no part of it has too many nodes.
fn within(spec: &Spec) -> bool {
    let parts = match spec {
        Spec::Compose { outer, inner } => within(outer) && within(inner),
        Spec::Complete { coterie } | Spec::Groups { coterie, .. } => within(coterie),
        _ => true,
    };
    parts && spec.nodes().is_none_or(|nodes| nodes <= 1_000_000)
}

/// Texts near the valid ones: canonical text with a few pieces replaced.
fn mutated() -> impl Strategy<Value = String> {
    let pieces = "|(|)|,|=|\"|\\|*|+|0|9|n=|T3'|3x3|grid|é|#|\n|18446744073709551616|choose(";
    let piece = select(pieces.split('|').collect::<Vec<_>>());
    let edits = vec((any::<Index>(), 0_usize..4, piece), 1..4);
    (spec(), edits).prop_map(|(spec, edits)| {
        let mut characters: Vec<char> = spec.to_string().chars().collect();
        for (place, removed, piece) in edits {
            let from = place.index(characters.len() + 1);
            let to = (from + removed).min(characters.len());
            characters.splice(from..to, piece.chars());
        }
        characters.into_iter().collect()
    })
}

/// Whatever the text, the answer is a canonical value or an error inside the text.
fn sound(text: &str) {
    match parse(text) {
        Ok(spec) => assert_eq!(parse(&spec.to_string()), Ok(spec), "{text:?}"),
        Err(error) => {
            assert!(text.is_char_boundary(error.at), "{text:?}");
            assert_eq!(error.pointer(text).lines().count(), 2, "{text:?}");
            assert!(!error.message.contains(char::is_control), "{text:?}");
        }
    }
}

/// Whatever the file, nodes are in range and once per quorum, or the error is inside the file.
fn sound_file(text: &str) {
    match parse_file(text) {
        Ok(system) => {
            for quorum in system.cartels.iter().flat_map(|(_, quorums)| quorums) {
                let mut nodes = quorum.clone();
                nodes.sort_unstable();
                nodes.dedup();
                assert_eq!(nodes.len(), quorum.len(), "{text:?}");
                assert!(
                    nodes.iter().all(|node| *node < system.names.len()),
                    "{text:?}"
                );
            }
        }
        Err(error) => {
            let line = text.lines().nth(error.line - 1).unwrap_or_default();
            assert!(
                error.column <= line.chars().count() + 1,
                "{text:?}: {error}"
            );
        }
    }
}

proptest! {
    #[test]
    fn canonical_text_parses_back(spec in spec()) {
        prop_assert_eq!(parse(&spec.to_string()), Ok(spec));
    }

    #[test]
    fn any_text_is_answered(text in any::<String>()) {
        sound(&text);
        sound_file(&text);
    }

    #[test]
    fn texts_near_valid_ones_are_answered(text in mutated()) {
        sound(&text);
    }

    #[test]
    fn files_near_valid_ones_are_answered(
        pieces in vec(select(FILE_PIECES), 0..16)
    ) {
        sound_file(&pieces.concat());
    }
}

/// What files are made of, in any order.
const FILE_PIECES: &[&str] = &[
    "nodes: 3\n",
    "nodes: a b\n",
    "group r:\n",
    "cartel w:\n",
    "a ",
    "b, ",
    "1 ",
    "2,",
    "\n",
    "\r\n",
    "#",
    ":",
    "é",
    "?",
    "100001 ",
];
