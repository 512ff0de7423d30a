//! The text form: what parses to what, what is refused where, and that canonical text comes back.

use conclave_quorum::text::{
    BilliardSize, DEPTH_MAX, Expr, Fallback, Fit, HForm, Kind, Rule, Spec, SurficialSize, TEXT_MAX,
    Tier, forms, parse, parse_file,
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
    let multilevel = |inner, n, levels| Spec::Multilevel { inner, n, levels };
    let tree = || Box::new(Spec::Tree { n: None });
    same("multilevel", &multilevel(tree(), None, 1));
    same(
        "multilevel(1200, levels=2)",
        &multilevel(tree(), Some(1200), 2),
    );
    same(
        "multilevel(tree, 1200, levels=0)",
        &multilevel(tree(), Some(1200), 0),
    );
    same("multilevel(majority)", &multilevel(majority(None), None, 1));
    let threshold = Box::new(Spec::Threshold { n: None, k: 2 });
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
    same(r"file(C:\q.txt)", &file(r"C:\q.txt"));
    assert_eq!(file("x(1)").to_string(), "file(\"x(1)\")");
    let coterie = Box::new(file("a.txt"));
    same(
        "groups(file(a.txt), 2)",
        &Spec::Groups { coterie, groups: 2 },
    );
}

#[test]
fn nodes_are_counted_from_the_text_where_it_says() {
    let nodes = |text: &str| parse(text).unwrap().nodes();
    assert_eq!(nodes("majority"), None);
    assert_eq!(nodes("weighted(3,1,1)"), Some(3));
    assert_eq!(nodes("hgrid(3x4, 2x1)"), Some(24));
    assert_eq!(nodes("billiard(q=9)"), Some(40));
    assert_eq!(nodes("hbilliard(5,3)"), Some(48));
    assert_eq!(nodes("compose(majority(3), walls(1,2))"), Some(9));
    assert_eq!(nodes("compose(majority(3), grid)"), None);
    assert_eq!(nodes("surficial(widths=3,3,2)"), Some(21));
    assert_eq!(nodes("surficial(widths=4)"), Some(4));
    assert_eq!(nodes("groups(expr(1 + 7), 3)"), Some(7));
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

#[test]
fn a_long_text_is_cut_around_the_character() {
    let text = format!("walls({}?{})", "1,".repeat(500), ",1".repeat(500));
    let error = parse(&text).unwrap_err();
    let pointer = error.pointer(&text);
    let (shown, caret) = pointer.split_once('\n').unwrap();
    assert!(shown.starts_with('…') && shown.ends_with('…') && shown.chars().count() == 74);
    assert_eq!(shown.chars().nth(caret.chars().count() - 1), Some('?'));
    assert!(error.message.chars().count() < 200);
}

#[test]
#[rustfmt::skip]
fn syntax_is_refused_where_it_breaks() {
    let form = "the form is majority([n])";
    let end = "the text ends after one form";
    refused("", 0, "expected a form, found the end of the text: write a name such as majority(5)");
    refused("(", 0, "expected a form, found '(': write a name such as majority(5)");
    refused("majority(5", 10, "unclosed parenthesis: ')' is missing for the '(' at character 9");
    refused("majority(", 9, &format!("expected a number for n, found the end of the text: {form}"));
    refused("majority(5))", 11, &format!("unexpected ')' after the form: {end}"));
    refused("majority(5) x", 12, &format!("unexpected 'x' after the form: {end}"));
    refused("majority(5 6)", 11, "unexpected '6': expected ',' or ')'");
    refused("majority(5,)", 11, &format!("expected an argument, found ')': {form}"));
    refused("majority(5, 6)", 12, &format!("too many arguments without a name: '6': {form}"));
    refused("majority(5, m=6)", 12, "majority has no option 'm': allowed: n");
    refused("majority(5, n=6)", 12, "'n' is given twice");
    refused("majority(x)", 9, &format!("expected a number for n, found 'x': {form}"));
    refused("majority(5.5)", 9, "expected a number for n, found '5.5': a number is written in digits only");
    refused("compose(3, grid)", 8, "expected a form for outer, found '3': the form is compose(outer, inner)");
    let long = format!("majority({})", " ".repeat(TEXT_MAX));
    refused(&long, TEXT_MAX, "text too long: at most 65536 bytes are allowed");
    assert!(parse(&format!("majority({})", " ".repeat(TEXT_MAX - 10))).is_ok());
}

#[test]
fn unknown_forms_get_a_suggestion_or_the_list() {
    refused("Grid(4)", 0, "unknown form 'Grid': did you mean 'grid'?");
    refused(
        "compose(bilard, grid)",
        8,
        "unknown form 'bilard': did you mean 'billiard'?",
    );
    let names: Vec<_> = forms().iter().map(|form| form.name).collect();
    let list = format!("unknown form 'zzz': the forms are {}", names.join(", "));
    refused("zzz", 0, &list);
}

#[test]
#[rustfmt::skip]
fn numbers_are_bounded() {
    let most = u64::MAX;
    refused("majority(18446744073709551616)", 9, &format!("number too large: at most {most} is allowed"));
    refused("majority(1000001)", 9, "n is at most 1000000");
    assert!(parse("majority(1000000)").is_ok());
    let large = "has more than 1000000 nodes: that is the most any form takes";
    refused("rect(1000, 1001)", 0, &format!("'rect' {large}"));
    refused("complete(compose(grid(2000), grid(2000)))", 9, &format!("'compose' {large}"));
    let half = most / 2 + 1;
    refused(&format!("weighted({half},{half})"), 29, &format!("number too large: the weights add up to at most {most}"));
    refused("billiard(q=1415)", 11, "q is at most 1413: a grid has at most 1000000 nodes");
    assert!(parse("billiard(q=1413)").is_ok());
}

#[test]
#[rustfmt::skip]
fn values_that_make_no_system_are_refused() {
    refused("majority(0)", 9, "n must be at least 1");
    refused("threshold(5, 0)", 13, "k must be at least 1");
    refused("threshold(5, 6)", 13, "k is at most n, here 5");
    refused("threshold(5)", 11, "threshold needs k: the form is threshold(n, k) or threshold(k=K)");
    refused("weighted(0,0)", 9, "the weights are all zero: some node must have at least one vote");
    refused("weighted()", 9, "weighted needs weights: the form is weighted(W1,W2,… [, votes=V])");
    refused("weighted(3,2, votes=6)", 20, "votes must be from 1 to 5: the weights add up to that");
    refused("weighted(3,2, votes=0)", 20, "votes must be from 1 to 5: the weights add up to that");
    refused("rect(3)", 6, "rect needs cols: the form is rect(rows, cols)");
    refused("rect(3, 0)", 8, "cols must be at least 1");
    refused("walls", 5, "walls needs widths: the form is walls(W1,W2,…)");
    refused("walls(1,0)", 8, "widths must be at least 1");
    refused("hierarchical(0)", 13, "branches must be at least 1");
    refused("hgrid(3x0)", 6, "columns must be at least 1");
    refused("hgrid(3)", 6, "expected a size, found '3': write rows and columns as in 3x4");
    refused("hgrid(3xx)", 8, "expected a number for a size such as 3x4, found 'x': a number is written in digits only");
}

#[test]
#[rustfmt::skip]
fn billiard_options_are_checked() {
    refused("billiard(q=6)", 11, "q must be odd and at least 3");
    refused("billiard(q=1)", 11, "q must be odd and at least 3");
    refused("hbilliard(5,4)", 12, "q must be odd and at least 3");
    refused("billiard(12, q=5)", 15, "q and n are both given: q is the side of the grid and settles n: leave one out");
    let tiers = "allowed: T0, T1, T2, T3, T3p, T4";
    refused("billiard(tiers=T0,X)", 18, "too many arguments without a name: 'X': the form is billiard([n | q=Q] [, tiers=T1,T2,…] [, fit=fold|trim])");
    refused("billiard(tiers=x)", 15, &format!("tiers cannot be 'x': {tiers}"));
    refused("billiard(tiers=T0,T77)", 18, &format!("tiers cannot be 'T77': {tiers}"));
    refused("billiard(tiers=t3P)", 15, &format!("tiers cannot be 't3P': did you mean 'T3p'? {tiers}"));
    refused("billiard(tiers=T1,T0,T1)", 21, "tier T1 is given twice");
    refused("billiard(fit=x)", 13, "fit cannot be 'x': allowed: fold, trim");
    refused("billiard(size=x)", 9, "billiard has no option 'size': allowed: n, q, tiers, fit");
    refused("hbilliard(5, form=K)", 18, "form cannot be 'K': allowed: H1, H2");
}

#[test]
#[rustfmt::skip]
fn nested_forms_are_checked() {
    let one = "a form with one family of quorums is allowed, such as majority(5)";
    refused("compose(affine(groups=2), grid)", 8, &format!("outer of compose cannot be the group system affine: {one}"));
    refused("compose(grid, groups(grid, 2))", 14, &format!("inner of compose cannot be the group system groups: {one}"));
    refused("groups(surficial(groups=2), 2)", 7, &format!("coterie of groups cannot be the group system surficial: {one}"));
    refused("compose(grid)", 12, "compose needs inner: the form is compose(outer, inner)");
    let open = "a coterie without a size of its own is allowed, such as tree";
    for (inner, name) in [("tree(5)", "tree"), ("billiard(q=3)", "billiard"), ("rect(2,2)", "rect")] {
        refused(&format!("multilevel({inner}, 9)"), 11, &format!("inner of multilevel cannot be this {name}: {open}"));
    }
    refused("multilevel(9, levels=21)", 21, "levels is at most 20");
    assert!(parse("multilevel(9, levels=20)").is_ok());
}

#[test]
#[rustfmt::skip]
fn masking_and_group_options_are_checked() {
    refused("masking(5)", 9, "masking needs b: the form is masking([n,] b=B)");
    refused("mutex(5, 1)", 9, "too many arguments without a name: '1': the form is mutex([n,] b=B)");
    refused("mgrid(9, b=1, rule=maskin)", 19, "rule cannot be 'maskin': did you mean 'masking'? allowed: masking, mutex, ordering, free");
    refused("surficial(groups=0)", 17, "groups must be at least 1");
    refused("affine(9, groups=0)", 17, "groups must be at least 1");
    refused("groups(grid, 0)", 13, "groups must be at least 1");
    refused("surficial(widths=3,0)", 19, "widths must be at least 1");
    refused("surficial(widths=3,3, groups=2)", 29, "groups and widths are both given: there is one group per width: leave one out");
    let syntax = forms().iter().find(|form| form.name == "surficial").unwrap().syntax;
    refused("surficial(12)", 12, &format!("surficial needs groups or widths: the form is {syntax}"));
    refused("affine(9, groups=2, fallback=none)", 29, "fallback cannot be 'none': allowed: balanced, nondominated");
}

#[test]
#[rustfmt::skip]
fn expressions_and_paths_are_checked() {
    let allowed = "allowed: names, '*', '+', parentheses, choose(k, …) and maj(…)";
    let unclosed = "unclosed parenthesis: ')' is missing for the '(' at character";
    refused("expr()", 5, &format!("expected a node name, found ')': {allowed}"));
    refused("expr(a*)", 7, &format!("expected a node name, found ')': {allowed}"));
    refused("expr", 4, "expected '(', found the end of the text: write an expression such as expr(a*b + c)");
    refused("expr(a b)", 7, "unexpected 'b' in an expression: expected '*', '+' or ')'");
    refused("expr((a b))", 8, "unexpected 'b' in an expression: expected '*', '+' or ')'");
    refused("expr(a", 6, &format!("{unclosed} 5"));
    refused("expr((a", 7, &format!("{unclosed} 6"));
    refused("expr(a*f(b))", 7, "'f' takes no arguments: in an expression only choose(k, …) and maj(…) do");
    refused("expr(choose(0, a))", 12, "k must be from 1 to 1: so many expressions follow");
    refused("expr(choose(3, a, b))", 12, "k must be from 1 to 2: so many expressions follow");
    refused("expr(choose(2))", 13, "choose needs expressions after k: write choose(2, a, b, c)");
    refused("expr(choose(a, b))", 12, "expected a number for k of choose(k, …), found 'a': a number is written in digits only");
    refused("expr(a'b)", 6, "a node name has no ''': allowed: letters, digits, '_', '-', '.'");
    refused("expr(1*100001)", 7, "node number too large: at most 100000 is allowed");
    refused("file()", 5, "file needs a path: as in file(quorums.txt)");
    refused("file(\"\")", 5, "file needs a path: as in file(quorums.txt)");
    refused("file(a", 6, &format!("{unclosed} 5"));
    refused("file(\"a)", 5, "unclosed quote: a path in quotes ends with '\"'");
    refused("file(\"a\" b)", 9, "unexpected 'b' after the path: expected ')'");
    refused("file(\"a\\n\")", 7, "unknown escape: in quotes write \\\" for a quote and \\\\ for a backslash");
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
            let most = order.iter().max().unwrap() + 1;
            (1..=most).map(|number| number.to_string()).collect()
        } else {
            visit(&mut expr, &mut |node| {
                *node = order.iter().position(|other| other == node).unwrap();
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

fn spec() -> impl Strategy<Value = Spec> {
    let open = select(vec![
        "tree",
        "majority",
        "threshold(k=2)",
        "billiard(tiers=T1,T4)",
    ])
    .prop_map(|text| Box::new(parse(text).unwrap()));
    let one = flat().prop_recursive(3, 12, 2, move |part| {
        let part = part.prop_map(Box::new);
        prop_oneof![
            (part.clone(), part.clone()).prop_map(|(outer, inner)| Spec::Compose { outer, inner }),
            part.prop_map(|coterie| Spec::Complete { coterie }),
            (open.clone(), some_n(), 0_usize..=20)
                .prop_map(|(inner, n, levels)| Spec::Multilevel { inner, n, levels }),
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
