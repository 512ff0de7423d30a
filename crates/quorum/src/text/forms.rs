//! The table of forms, and how each is read.

use std::fmt;

use super::args::{Args, Param, Shape};
use super::expr::{check_depth, parse_expr};
use super::lexer::{Cursor, Fault, Token};
use super::{
    BilliardSize, ClustersSize, Fallback, Fit, HForm, NODES_MAX, Rule, Spec, SurficialSize, nearest,
};

/// Every form, in the order in which a list should show them.
pub fn forms() -> &'static [FormInfo] {
    FORMS
}

/// What a form is called, how it is written and what it makes.
#[derive(Debug)]
pub struct FormInfo {
    /// Its name.
    pub name: &'static str,
    /// How it is written; brackets mark what may be left out.
    pub syntax: &'static str,
    /// What it makes, in one short sentence.
    pub what: &'static str,
    /// Which numbers of nodes it takes.
    pub needs: &'static str,
    /// A canonical text of this form.
    pub example: &'static str,
    /// What it promises.
    pub kind: Kind,
    body: Body,
}

/// What the systems of a form promise about intersections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any two quorums share a node.
    Coterie,
    /// Quorums of different cartels share a node.
    Groups,
    /// Any two quorums share enough nodes to outvote lying ones.
    Masking,
    /// Nothing is promised.
    Loose,
    /// It depends on the arguments.
    Any,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Coterie => "coterie",
            Self::Groups => "groups",
            Self::Masking => "masking",
            Self::Loose => "loose",
            Self::Any => "any",
        })
    }
}

#[derive(Debug)]
enum Body {
    Args(&'static [Param], fn(&mut Args<'_>) -> Result<Spec, Fault>),
    Expr,
    File,
}

impl FormInfo {
    pub(super) fn params(&self) -> &'static [Param] {
        match self.body {
            Body::Args(params, _) => params,
            Body::Expr | Body::File => &[],
        }
    }
}

/// Reads one form, at the given depth of nesting.
pub(super) fn parse_form(cursor: &mut Cursor<'_>, depth: usize) -> Result<Spec, Fault> {
    let name = cursor.next();
    if !name.is_word() {
        return Err(
            Fault::new(name.at, format!("expected a form, found {name}"))
                .hint("write a name such as majority(5)"),
        );
    }
    check_depth(name.at, depth)?;
    let Some(form) = FORMS.iter().find(|form| form.name == name.text) else {
        return Err(unknown(name));
    };
    let spec = match &form.body {
        Body::Args(params, build) => {
            let mut args = Args::read(form, params, cursor, depth)?;
            build(&mut args)?
        }
        Body::Expr => read_expr(cursor, depth)?,
        Body::File => read_path(cursor)?,
    };
    match spec.nodes() {
        Some(nodes) if nodes > NODES_MAX => Err(Fault::new(
            name.at,
            format!("{name} has more than {NODES_MAX} nodes"),
        )
        .hint("that is the most any form takes")),
        _ => Ok(spec),
    }
}

fn unknown(name: Token<'_>) -> Fault {
    let names = FORMS.iter().map(|form| form.name);
    let hint = match nearest(name.text, names.clone()) {
        Some(meant) => format!("did you mean '{meant}'?"),
        None => format!("the forms are {}", names.collect::<Vec<_>>().join(", ")),
    };
    Fault::new(name.at, format!("unknown form {name}")).hint(hint)
}

/// Takes the opening parenthesis of a form that cannot do without.
fn open(cursor: &mut Cursor<'_>, needs: &str) -> Result<usize, Fault> {
    let token = cursor.next();
    if token.is('(') {
        return Ok(token.at);
    }
    Err(Fault::new(token.at, format!("expected '(', found {token}")).hint(needs))
}

fn read_expr(cursor: &mut Cursor<'_>, depth: usize) -> Result<Spec, Fault> {
    let open = open(cursor, "write an expression such as expr(a*b + c)")?;
    let (expr, names) = parse_expr(cursor, depth)?;
    let close = cursor.next();
    if close.is(')') {
        return Ok(Spec::Expr { expr, names });
    }
    Err(if close.text.is_empty() {
        cursor.unclosed(open)
    } else {
        Fault::new(close.at, format!("unexpected {close} in an expression"))
            .hint("expected '*', '+' or ')'")
    })
}

fn read_path(cursor: &mut Cursor<'_>) -> Result<Spec, Fault> {
    let open = open(cursor, "write a path as in file(quorums.txt)")?;
    let start = cursor.peek().at;
    let path = if cursor.eat('"') {
        let path = read_quoted(cursor, start)?;
        let close = cursor.next();
        if close.text.is_empty() {
            return Err(cursor.unclosed(open));
        }
        if !close.is(')') {
            return Err(
                Fault::new(close.at, format!("unexpected {close} after the path"))
                    .hint("expected ')'"),
            );
        }
        path
    } else {
        let Some(length) = cursor.rest().find(')') else {
            return Err(cursor.unclosed(open));
        };
        let path = cursor.rest()[..length].trim().to_owned();
        cursor.skip(length + 1);
        path
    };
    if path.is_empty() {
        return Err(Fault::new(start, "file needs a path").hint("as in file(quorums.txt)"));
    }
    Ok(Spec::File { path })
}

/// Reads up to and with the closing quote; `start` is the byte offset of the opening one.
fn read_quoted(cursor: &mut Cursor<'_>, start: usize) -> Result<String, Fault> {
    let mut path = String::new();
    let mut characters = cursor.rest().char_indices();
    while let Some((offset, character)) = characters.next() {
        match character {
            '"' => {
                cursor.skip(offset + 1);
                return Ok(path);
            }
            '\\' => match characters.next() {
                Some((_, escaped @ ('"' | '\\'))) => path.push(escaped),
                _ => {
                    return Err(Fault::new(cursor.at() + offset, "unknown escape")
                        .hint("in quotes write \\\" for a quote and \\\\ for a backslash"));
                }
            },
            other => path.push(other),
        }
    }
    Err(Fault::new(start, "unclosed quote").hint("a path in quotes ends with '\"'"))
}

fn threshold(args: &mut Args<'_>) -> Result<Spec, Fault> {
    let n = args.n()?;
    let k = args.needed("k", 1)?;
    match n {
        Some(n) if k.value > n => Err(Fault::new(k.at, format!("k is at most n, here {n}"))),
        _ => Ok(Spec::Threshold { n, k: k.value }),
    }
}

fn weighted(args: &mut Args<'_>) -> Result<Spec, Fault> {
    let Some(found) = args.numbers("weights") else {
        return Err(args.missing("weights"));
    };
    let at = found.first().map_or(args.end(), |first| first.at);
    let mut total = 0_u64;
    for weight in &found {
        total = total.checked_add(weight.value).ok_or_else(|| {
            Fault::new(weight.at, "number too large")
                .hint(format!("the weights add up to at most {}", u64::MAX))
        })?;
    }
    if total == 0 {
        return Err(Fault::new(at, "the weights are all zero")
            .hint("some node must have at least one vote"));
    }
    let votes = args.number("votes");
    if let Some(votes) = &votes
        && !(1..=total).contains(&votes.value)
    {
        return Err(
            Fault::new(votes.at, format!("votes must be from 1 to {total}"))
                .hint("the weights add up to that"),
        );
    }
    Ok(Spec::Weighted {
        weights: found.iter().map(|weight| weight.value).collect(),
        votes: votes.map(|votes| votes.value),
    })
}

fn rect(args: &mut Args<'_>) -> Result<Spec, Fault> {
    Ok(Spec::Rect {
        rows: args.needed("rows", 1)?.value,
        cols: args.needed("cols", 1)?.value,
    })
}

fn walls(args: &mut Args<'_>) -> Result<Spec, Fault> {
    match args.counts("widths")? {
        Some(widths) => Ok(Spec::Walls { widths }),
        None => Err(args.missing("widths")),
    }
}

fn hierarchical(args: &mut Args<'_>) -> Result<Spec, Fault> {
    match args.counts("branches")? {
        Some(branches) => Ok(Spec::Hierarchical { branches }),
        None => Err(args.missing("branches")),
    }
}

fn hgrid(args: &mut Args<'_>) -> Result<Spec, Fault> {
    Ok(Spec::HGrid {
        sizes: args.sizes("sizes")?,
    })
}

fn side(value: u64, at: usize) -> Result<usize, Fault> {
    if value < 3 || value.is_multiple_of(2) {
        return Err(Fault::new(at, "q must be odd and at least 3"));
    }
    usize::try_from(value)
        .ok()
        .filter(|side| *side <= SIDE_MAX)
        .ok_or_else(|| {
            Fault::new(at, format!("q is at most {SIDE_MAX}"))
                .hint(format!("a grid has at most {NODES_MAX} nodes"))
        })
}

fn billiard(args: &mut Args<'_>) -> Result<Spec, Fault> {
    let n = args.n()?;
    let size = match (args.number("q"), n) {
        (None, n) => BilliardSize::Nodes(n),
        (Some(q), None) => BilliardSize::Side(side(q.value, q.at)?),
        (Some(q), Some(_)) => {
            return Err(Fault::new(q.at, "q and n are both given")
                .hint("q is the side of the grid and settles n: leave one out"));
        }
    };
    Ok(Spec::Billiard {
        size,
        tiers: args.tiers("tiers"),
        fit: args.word("fit", Fit::ALL, Fit::word)?.unwrap_or(Fit::Fold),
    })
}

fn hbilliard(args: &mut Args<'_>) -> Result<Spec, Fault> {
    let Some(sides) = args.numbers("q") else {
        return Err(args.missing("q"));
    };
    let sides: Result<_, _> = sides.iter().map(|q| side(q.value, q.at)).collect();
    let form = args.word("form", HForm::ALL, HForm::word)?;
    Ok(Spec::HBilliard {
        sides: sides?,
        form: form.unwrap_or(HForm::H1),
    })
}

fn compose(args: &mut Args<'_>) -> Result<Spec, Fault> {
    Ok(Spec::Compose {
        outer: args.one_family("outer")?,
        inner: args.one_family("inner")?,
    })
}

fn multilevel(args: &mut Args<'_>) -> Result<Spec, Fault> {
    let inner = args.systems("inner").unwrap_or_default();
    if let Some(closed) = inner.iter().find(|inner| !inner.value.is_open_coterie()) {
        let name = closed.value.name();
        return Err(Fault::new(
            closed.at,
            format!("inner of multilevel cannot be this {name}"),
        )
        .hint("a coterie without a size of its own is allowed, such as tree"));
    }
    let at = inner.first().map_or(args.end(), |first| first.at);
    let n = args.n()?;
    let levels = args.count("levels", 0)?;
    if let Some(levels) = &levels
        && levels.value > LEVELS_MAX
    {
        return Err(Fault::new(
            levels.at,
            format!("levels is at most {LEVELS_MAX}"),
        ));
    }
    let clusters = match args.nested("sizes") {
        Some(sizes) if n.is_some() || levels.is_some() => {
            return Err(Fault::new(sizes.at, "sizes and n or levels are both given")
                .hint("the sizes settle nodes and levels: leave the others out"));
        }
        Some(sizes) => ClustersSize::Sizes(sizes.value),
        None => {
            let usual = inner.len().saturating_sub(1).max(1);
            let levels = levels.map_or(usual, |levels| levels.value);
            ClustersSize::Even { n, levels }
        }
    };
    let mut inner: Vec<Spec> = inner.into_iter().map(|inner| inner.value).collect();
    let needed = clusters.levels() + 1;
    if inner.len() > 1 && inner.len() != needed {
        return Err(Fault::new(
            at,
            format!("{} coteries for {needed} levels of clusters", inner.len()),
        )
        .hint("give one for all levels, or one for the root and each level below"));
    }
    if inner.is_empty() {
        inner.push(Spec::Tree { n: None });
    }
    if inner.windows(2).all(|pair| pair[0] == pair[1]) {
        inner.truncate(1);
    }
    Ok(Spec::Multilevel { inner, clusters })
}

fn masked(args: &mut Args<'_>, rule: Rule) -> Result<Spec, Fault> {
    Ok(Spec::Masking {
        rule,
        n: args.n()?,
        b: args.needed("b", 0)?.value,
    })
}

fn mgrid(args: &mut Args<'_>) -> Result<Spec, Fault> {
    Ok(Spec::MGrid {
        n: args.n()?,
        b: args.needed("b", 0)?.value,
        rule: args
            .word("rule", Rule::ALL, Rule::word)?
            .unwrap_or(Rule::Masking),
    })
}

fn fallback(args: &mut Args<'_>) -> Result<Option<Fallback>, Fault> {
    args.word("fallback", Fallback::ALL, Fallback::word)
}

fn surficial(args: &mut Args<'_>) -> Result<Spec, Fault> {
    let groups = args.count("groups", 1)?;
    let size = match (groups, args.counts("widths")?) {
        (Some(groups), None) => SurficialSize::Groups(groups.value),
        (None, Some(widths)) => SurficialSize::Widths(widths),
        (None, None) => return Err(args.missing("groups or widths")),
        (Some(groups), Some(_)) => {
            return Err(Fault::new(groups.at, "groups and widths are both given")
                .hint("there is one group per width: leave one out"));
        }
    };
    Ok(Spec::Surficial {
        size,
        n: args.n()?,
        fallback: fallback(args)?,
    })
}

fn affine(args: &mut Args<'_>) -> Result<Spec, Fault> {
    Ok(Spec::Affine {
        n: args.n()?,
        groups: args.needed("groups", 1)?.value,
        fallback: fallback(args)?,
    })
}

fn groups(args: &mut Args<'_>) -> Result<Spec, Fault> {
    Ok(Spec::Groups {
        coterie: args.one_family("coterie")?,
        groups: args.needed("groups", 1)?.value,
    })
}

fn complete(args: &mut Args<'_>) -> Result<Spec, Fault> {
    Ok(Spec::Complete {
        coterie: args.one_family("coterie")?,
    })
}

/// The most levels of a hierarchy of clusters.
const LEVELS_MAX: usize = 20;
/// The largest side of a billiard grid within [`NODES_MAX`].
const SIDE_MAX: usize = 1413;

const N: Param = Param::plain("n", Shape::Number);
const B: Param = Param::named("b", Shape::Number);
const GROUPS: Param = Param::named("groups", Shape::Number);
const FALLBACK: Param = Param::named("fallback", Shape::Word);

/// A row of the table: name, syntax, what, needs, example, kind, parameters, builder.
macro_rules! form {
    ($name:literal, $syntax:literal, $what:literal, $needs:literal, $example:literal,
     $kind:ident, $body:expr) => {
        FormInfo {
            name: $name,
            syntax: $syntax,
            what: $what,
            needs: $needs,
            example: $example,
            kind: Kind::$kind,
            body: $body,
        }
    };
}

#[rustfmt::skip]
static FORMS: &[FormInfo] = &[
    form!("singleton", "singleton([n])", "Node 1 alone decides.",
        "any n", "singleton(3)", Coterie,
        Body::Args(&[N], |args| Ok(Spec::Singleton { n: args.n()? }))),
    form!("majority", "majority([n])", "More than half of the nodes.",
        "any n", "majority(5)", Coterie,
        Body::Args(&[N], |args| Ok(Spec::Majority { n: args.n()? }))),
    form!("threshold", "threshold(n, k) or threshold(k=K)",
        "Any k nodes; a coterie if k is more than half.",
        "n >= k", "threshold(5, 4)", Any,
        Body::Args(&[N, Param::plain("k", Shape::Number)], threshold)),
    form!("weighted", "weighted(W1,W2,… [, votes=V])", "Nodes that together have enough votes.",
        "n = number of weights", "weighted(3,1,1,1)", Any,
        Body::Args(&[Param::plain("weights", Shape::Numbers),
            Param::named("votes", Shape::Number)], weighted)),
    form!("grid", "grid([n])", "A row and a column of a near-square grid.",
        "any n; a short last row is in columns only", "grid(9)", Coterie,
        Body::Args(&[N], |args| Ok(Spec::Grid { n: args.n()? }))),
    form!("rect", "rect(rows, cols)", "A row and a column of a grid of this size.",
        "n = rows * cols", "rect(3, 4)", Coterie,
        Body::Args(&[Param::plain("rows", Shape::Number),
            Param::plain("cols", Shape::Number)], rect)),
    form!("plane", "plane([n])", "The lines of a finite projective plane.",
        "n = s*s + s + 1, s a prime power", "plane(13)", Coterie,
        Body::Args(&[N], |args| Ok(Spec::Plane { n: args.n()? }))),
    form!("tree", "tree([n])", "A path from root to leaf of a binary tree, rerouted at failures.",
        "any n; of an even n the last node never votes", "tree(7)", Coterie,
        Body::Args(&[N], |args| Ok(Spec::Tree { n: args.n()? }))),
    form!("wheel", "wheel([n])", "The hub and any other node, or all nodes but the hub.",
        "n >= 3", "wheel(6)", Coterie,
        Body::Args(&[N], |args| Ok(Spec::Wheel { n: args.n()? }))),
    form!("walls", "walls(W1,W2,…)", "A full row of the wall and one node of every row below.",
        "n = sum of the widths", "walls(1,2,3)", Coterie,
        Body::Args(&[Param::plain("widths", Shape::Numbers)], walls)),
    form!("triangular", "triangular([n])", "The wall with rows of 1, 2, 3, … nodes.",
        "any n; the lowest rows take the rest", "triangular(10)", Coterie,
        Body::Args(&[N], |args| Ok(Spec::Triangular { n: args.n()? }))),
    form!("hierarchical", "hierarchical(K1,K2,…)", "Majorities of majorities, level by level.",
        "n = product of the branches", "hierarchical(3,3,3)", Coterie,
        Body::Args(&[Param::plain("branches", Shape::Numbers)], hierarchical)),
    form!("hgrid", "hgrid(R1xC1, R2xC2, …)", "Grids of grids, level by level.",
        "n = product of the sizes", "hgrid(3x3, 3x3)", Coterie,
        Body::Args(&[Param::plain("sizes", Shape::Sizes)], hgrid)),
    form!("billiard", "billiard([n | q=Q] [, tiers=T1,T2,…] [, fit=fold|trim])",
        "Diagonal paths of a checkerboard, with fallback tiers; default tiers T1,T2,T4.",
        "n = 4 or n >= 10; (q*q - 1)/2 fits exactly, q odd", "billiard(40)", Coterie,
        Body::Args(&[N, Param::named("q", Shape::Number), Param::named("tiers", Shape::Tiers),
            Param::named("fit", Shape::Word)], billiard)),
    form!("hbilliard", "hbilliard(Q1,Q2,… [, form=H1|H2])", "Billiard grids of billiard grids.",
        "n = product of (q*q - 1)/2, q odd", "hbilliard(5,5, form=H2)", Coterie,
        Body::Args(&[Param::plain("q", Shape::Numbers),
            Param::named("form", Shape::Word)], hbilliard)),
    form!("compose", "compose(outer, inner)",
        "A quorum of the outer system, each of its nodes a quorum of the inner one.",
        "n = outer n * inner n", "compose(majority(3), grid(4))", Any,
        Body::Args(&[Param::plain("outer", Shape::System),
            Param::plain("inner", Shape::System)], compose)),
    form!("multilevel", "multilevel([inner,] [n] [, levels=L]) or multilevel(inner, sizes=[[…],…])",
        "Clusters of clusters: one quorum per level along a leaf's chain.",
        "any n; inner may be one coterie per level, as [majority,tree]",
        "multilevel(tree, 1200, levels=2)", Coterie,
        Body::Args(&[Param::plain("inner", Shape::Systems), N,
            Param::named("levels", Shape::Number),
            Param::named("sizes", Shape::Nested)], multilevel)),
    form!("masking", "masking([n,] b=B)", "Any two quorums share 2b+1 nodes; b nodes may lie.",
        "n >= 4b + 1", "masking(9, b=2)", Masking,
        Body::Args(&[N, B], |args| masked(args, Rule::Masking))),
    form!("mutex", "mutex([n,] b=B)", "Any two quorums share 3b+1 nodes; b nodes may lie.",
        "n >= 5b + 1", "mutex(6, b=1)", Masking,
        Body::Args(&[N, B], |args| masked(args, Rule::Mutex))),
    form!("ordering", "ordering([n,] b=B)",
        "Any two quorums share 2b+1 nodes, any 2b can be avoided: for ordering.",
        "n >= 6b + 1", "ordering(7, b=1)", Masking,
        Body::Args(&[N, B], |args| masked(args, Rule::Ordering))),
    form!("free", "free([n,] b=B)", "Any two quorums share b+1 nodes: for leases by free answers.",
        "n >= 3b + 1", "free(4, b=1)", Masking,
        Body::Args(&[N, B], |args| masked(args, Rule::Free))),
    form!("mgrid", "mgrid([n,] b=B [, rule=masking|mutex|ordering|free])",
        "Rows and columns of a square grid, enough of them for the rule.",
        "n at least a square large enough for b; the rest are spares",
        "mgrid(49, b=1, rule=mutex)", Masking,
        Body::Args(&[N, B, Param::named("rule", Shape::Word)], mgrid)),
    form!("surficial",
        "surficial(groups=M | widths=K1,K2,… [, n=N] [, fallback=balanced|nondominated])",
        "Cartels of disjoint quorums; each node serves two cartels.",
        "n >= M*(M - 1)/2; what is left over are spares", "surficial(groups=3, n=12)", Groups,
        Body::Args(&[GROUPS, Param::named("widths", Shape::Numbers), N, FALLBACK], surficial)),
    form!("affine", "affine([n,] groups=M [, fallback=balanced|nondominated])",
        "The parallel classes of an affine plane, one per cartel.",
        "n >= s*s, s a prime power, M <= s + 1; the rest are spares",
        "affine(16, groups=4)", Groups,
        Body::Args(&[N, GROUPS, FALLBACK], affine)),
    form!("groups", "groups(coterie, M)", "Every one of M cartels is the same coterie.",
        "the n of the coterie", "groups(majority(5), 3)", Groups,
        Body::Args(&[Param::plain("coterie", Shape::System),
            Param::plain("groups", Shape::Number)], groups)),
    form!("complete", "complete(coterie)", "The coterie made self-dual, so that none dominates it.",
        "the n of the coterie", "complete(grid(9))", Coterie,
        Body::Args(&[Param::plain("coterie", Shape::System)], complete)),
    form!("expr", "expr(a*b + choose(k, c, …) + maj(d, …))",
        "The sets that make the expression true.",
        "n = number of names, or the largest number", "expr(choose(2, a, b, c*d))", Any,
        Body::Expr),
    form!("file", "file(path)", "The quorums or cartels that the file lists.",
        "n as the file says", "file(quorums.txt)", Any,
        Body::File),
];
