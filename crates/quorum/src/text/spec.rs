//! What a text says, and its canonical text.

use std::fmt;

use super::Expr;

/// A quorum system as the text names it. `n: None` means the cluster's size.
///
/// It displays as canonical text: options in a fixed order, defaults left out. Canonical text
/// parses back to the same value, for every value that came from [`super::parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// `singleton(n)`: node 1 alone.
    Singleton {
        /// How many nodes.
        n: Option<usize>,
    },
    /// `majority(n)`: more than half of the nodes.
    Majority {
        /// How many nodes.
        n: Option<usize>,
    },
    /// `threshold(n, k)`: any `k` nodes.
    Threshold {
        /// How many nodes.
        n: Option<usize>,
        /// How many make a quorum: at least 1, at most `n` where it is given.
        k: usize,
    },
    /// `weighted(3,1,1,1)`: nodes whose votes reach a threshold.
    Weighted {
        /// The votes of each node; not all are zero, and the sum fits in 64 bits.
        weights: Vec<u64>,
        /// The votes needed, from 1 to the sum; `None` for a strict majority of the sum.
        votes: Option<u64>,
    },
    /// `grid(n)`: a row and a column of a near-square grid.
    Grid {
        /// How many nodes.
        n: Option<usize>,
    },
    /// `rect(rows, cols)`: a row and a column of this grid.
    Rect {
        /// How many rows.
        rows: usize,
        /// How many columns.
        cols: usize,
    },
    /// `plane(n)`: lines of a finite projective plane.
    Plane {
        /// How many nodes.
        n: Option<usize>,
    },
    /// `tree(n)`: paths of a binary tree.
    Tree {
        /// How many nodes.
        n: Option<usize>,
    },
    /// `wheel(n)`: the hub and one other, or the whole rim.
    Wheel {
        /// How many nodes.
        n: Option<usize>,
    },
    /// `walls(1,2,3)`: a full row and one node of each row below.
    Walls {
        /// The width of each row, from the top; none is zero.
        widths: Vec<usize>,
    },
    /// `triangular(n)`: the wall with rows of 1, 2, 3, … nodes.
    Triangular {
        /// How many nodes.
        n: Option<usize>,
    },
    /// `hierarchical(3,3,3)`: majorities of majorities.
    Hierarchical {
        /// How many children each vertex has, by level from the root; none is zero.
        branches: Vec<usize>,
    },
    /// `hgrid(3x3, 3x3)`: grids of grids.
    HGrid {
        /// Rows and columns of each level, from the root; none is zero.
        sizes: Vec<(usize, usize)>,
    },
    /// `billiard(n)` or `billiard(q=9)`.
    Billiard {
        /// How large the grid is.
        size: BilliardSize,
        /// The tiers in use, in order, each once, at least one; `None` for the default.
        tiers: Option<Vec<Tier>>,
        /// How a grid is fitted to `n`.
        fit: Fit,
    },
    /// `hbilliard(5,5, form=H1)`: billiard grids of billiard grids.
    HBilliard {
        /// The side of the grid of each level, from the root: odd and at least 3.
        sides: Vec<usize>,
        /// How the levels are joined.
        form: HForm,
    },
    /// `compose(outer, inner)`: a quorum of `outer` whose every node is a quorum of `inner`.
    Compose {
        /// The system of the top level; not a group system.
        outer: Box<Spec>,
        /// The system inside each of its nodes; not a group system.
        inner: Box<Spec>,
    },
    /// `multilevel(tree, 1200, levels=2)`: clusters of clusters, one quorum per level.
    Multilevel {
        /// The coteries inside clusters, which have no size of their own: one for all levels, or
        /// one per level from the root.
        inner: Vec<Spec>,
        /// Which clusters there are.
        clusters: ClustersSize,
    },
    /// `masking(n, b=1)`, `mutex(n, b=1)`, `ordering(n, b=1)`, `free(n, b=1)`: thresholds.
    Masking {
        /// How much quorums overlap; it is the form's name.
        rule: Rule,
        /// How many nodes.
        n: Option<usize>,
        /// How many nodes may lie.
        b: usize,
    },
    /// `mgrid(n, b=1)`: rows and columns of a grid, enough of them for the rule.
    MGrid {
        /// How many nodes.
        n: Option<usize>,
        /// How many nodes may lie.
        b: usize,
        /// How much quorums overlap.
        rule: Rule,
    },
    /// `surficial(groups=3, n=12)` or `surficial(widths=3,3,2)`.
    Surficial {
        /// How many cartels and how wide.
        size: SurficialSize,
        /// How many nodes; with widths, `None` means exactly as many as the widths use.
        n: Option<usize>,
        /// What cartels may use beyond their own quorums.
        fallback: Option<Fallback>,
    },
    /// `affine(n, groups=4)`: parallel classes of lines of an affine plane.
    Affine {
        /// How many nodes.
        n: Option<usize>,
        /// How many cartels, at least 1.
        groups: usize,
        /// What cartels may use beyond their own quorums.
        fallback: Option<Fallback>,
    },
    /// `groups(majority(5), 3)`: every cartel is the same coterie.
    Groups {
        /// The quorums of every cartel; not a group system.
        coterie: Box<Spec>,
        /// How many cartels, at least 1.
        groups: usize,
    },
    /// `complete(spec)`: the coterie made self-dual, so that no other dominates it.
    Complete {
        /// What is completed; not a group system.
        coterie: Box<Spec>,
    },
    /// `expr(choose(2, a, b, c*d))`.
    Expr {
        /// The expression, over the places of names in `names`.
        expr: Expr,
        /// The nodes' names in order of first appearance, or `1`, `2`, … up to the largest if all
        /// names are positive numbers.
        names: Vec<String>,
    },
    /// `file(path)`: read the file and give it to [`super::parse_file`].
    File {
        /// The path as written, without quotes; never empty.
        path: String,
    },
}

/// How large a billiard grid is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BilliardSize {
    /// For this many nodes; `None` for the cluster's size.
    Nodes(Option<usize>),
    /// With this side `q`, odd and at least 3: `(q * q - 1) / 2` nodes.
    Side(usize),
}

/// Which clusters a hierarchy has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClustersSize {
    /// Clusters of about equal size.
    Even {
        /// How many nodes; `None` for the cluster's size.
        n: Option<usize>,
        /// How many levels below the root: 0 is flat, at most 20.
        levels: usize,
    },
    /// The size of the root alone, then the sizes of the clusters of each level below it: there
    /// are as many as the level above has members. At least two levels, at most 21; none is zero.
    Sizes(Vec<Vec<usize>>),
}

impl ClustersSize {
    /// How many levels there are below the root.
    pub fn levels(&self) -> usize {
        match self {
            Self::Even { levels, .. } => *levels,
            Self::Sizes(sizes) => sizes.len().saturating_sub(1),
        }
    }

    /// How many nodes there are, where the text says it.
    pub fn nodes(&self) -> Option<usize> {
        match self {
            Self::Even { n, .. } => *n,
            Self::Sizes(sizes) => sizes
                .last()
                .map(|leaves| leaves.iter().copied().fold(0, usize::saturating_add)),
        }
    }
}

/// How many cartels a surficial system has and how wide they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SurficialSize {
    /// This many cartels (at least 1), as wide as `n` allows.
    Groups(usize),
    /// One cartel per width, each with that many disjoint quorums; none is zero.
    Widths(Vec<usize>),
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$item])* $variant,)+
        }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word that stands for it in the text.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words! {
    /// A tier of billiard quorums: later ones serve when arbiters are down.
    Tier {
        /// Each site's own billiard quorum.
        T0 = "T0",
        /// The antipodal family: diagonal paths of one site per column or row.
        T1 = "T1",
        /// Diagonal paths of any length with antipodal ends.
        T2 = "T2",
        /// A path across and a path down.
        T3 = "T3",
        /// A full odd row and a full even column, `T3'`.
        T3p = "T3p",
        /// Majorities that meet all of the other tiers.
        T4 = "T4",
    }
}

words! {
    /// How a billiard grid is fitted to a number of nodes.
    Fit {
        /// The next larger grid, with cells at the border sharing a node.
        Fold = "fold",
        /// The next smaller grid; surplus nodes do not vote.
        Trim = "trim",
    }
}

words! {
    /// How the levels of a hierarchy of billiard grids are joined.
    HForm {
        /// Composition: a quorum inside each cell of a quorum.
        H1 = "H1",
        /// The dual form: paths across and paths down, alternating by level.
        H2 = "H2",
    }
}

words! {
    /// How much quorums overlap where `b` nodes may lie.
    Rule {
        /// `2b + 1` common nodes.
        Masking = "masking",
        /// `3b + 1` common nodes.
        Mutex = "mutex",
        /// `2b + 1` common nodes, and any `2b` nodes can be avoided: for ordering operations.
        Ordering = "ordering",
        /// `b + 1` common nodes: for leases that are granted by free answers.
        Free = "free",
    }
}

words! {
    /// What the cartels of a group system may use beyond their own quorums.
    Fallback {
        /// Majorities that meet the quorums of all other cartels.
        Balanced = "balanced",
        /// All transversals of the other cartels, the first cartel first.
        Nondominated = "nondominated",
    }
}

impl Spec {
    /// The form's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Singleton { .. } => "singleton",
            Self::Majority { .. } => "majority",
            Self::Threshold { .. } => "threshold",
            Self::Weighted { .. } => "weighted",
            Self::Grid { .. } => "grid",
            Self::Rect { .. } => "rect",
            Self::Plane { .. } => "plane",
            Self::Tree { .. } => "tree",
            Self::Wheel { .. } => "wheel",
            Self::Walls { .. } => "walls",
            Self::Triangular { .. } => "triangular",
            Self::Hierarchical { .. } => "hierarchical",
            Self::HGrid { .. } => "hgrid",
            Self::Billiard { .. } => "billiard",
            Self::HBilliard { .. } => "hbilliard",
            Self::Compose { .. } => "compose",
            Self::Multilevel { .. } => "multilevel",
            Self::Masking { rule, .. } => rule.word(),
            Self::MGrid { .. } => "mgrid",
            Self::Surficial { .. } => "surficial",
            Self::Affine { .. } => "affine",
            Self::Groups { .. } => "groups",
            Self::Complete { .. } => "complete",
            Self::Expr { .. } => "expr",
            Self::File { .. } => "file",
        }
    }

    /// How many nodes the text asks for. `None` where it takes the cluster's size, at least in
    /// part, or where a file says it.
    pub fn nodes(&self) -> Option<usize> {
        match self {
            Self::Singleton { n }
            | Self::Majority { n }
            | Self::Threshold { n, .. }
            | Self::Grid { n }
            | Self::Plane { n }
            | Self::Tree { n }
            | Self::Wheel { n }
            | Self::Triangular { n }
            | Self::Masking { n, .. }
            | Self::MGrid { n, .. }
            | Self::Affine { n, .. } => *n,
            Self::Multilevel { clusters, .. } => clusters.nodes(),
            Self::Weighted { weights, .. } => Some(weights.len()),
            Self::Rect { rows, cols } => Some(rows.saturating_mul(*cols)),
            Self::Walls { widths } => Some(widths.iter().copied().fold(0, usize::saturating_add)),
            Self::Hierarchical { branches } => Some(product(branches.iter().copied())),
            Self::HGrid { sizes } => Some(product(
                sizes.iter().map(|(rows, cols)| rows.saturating_mul(*cols)),
            )),
            Self::Billiard { size, .. } => match size {
                BilliardSize::Nodes(n) => *n,
                BilliardSize::Side(side) => Some(billiard_nodes(*side)),
            },
            Self::HBilliard { sides, .. } => {
                Some(product(sides.iter().map(|side| billiard_nodes(*side))))
            }
            Self::Compose { outer, inner } => Some(outer.nodes()?.saturating_mul(inner.nodes()?)),
            Self::Surficial { size, n, .. } => n.or_else(|| size.nodes()),
            Self::Groups { coterie, .. } | Self::Complete { coterie } => coterie.nodes(),
            Self::Expr { names, .. } => Some(names.len()),
            Self::File { .. } => None,
        }
    }

    /// Whether this names a group system rather than one family of quorums. A file may hold
    /// either, which only reading it shows.
    pub fn is_groups(&self) -> bool {
        matches!(
            self,
            Self::Surficial { .. } | Self::Affine { .. } | Self::Groups { .. }
        )
    }

    /// Whether this is a coterie that takes whatever size it is given.
    pub(super) fn is_open_coterie(&self) -> bool {
        match self {
            Self::Singleton { n }
            | Self::Majority { n }
            | Self::Threshold { n, .. }
            | Self::Grid { n }
            | Self::Plane { n }
            | Self::Tree { n }
            | Self::Wheel { n }
            | Self::Triangular { n } => n.is_none(),
            Self::Billiard { size, .. } => *size == BilliardSize::Nodes(None),
            Self::Complete { coterie } => coterie.is_open_coterie(),
            _ => false,
        }
    }
}

impl SurficialSize {
    /// How many nodes the widths use: one per pair of quorums of different cartels.
    fn nodes(&self) -> Option<usize> {
        let Self::Widths(widths) = self else {
            return None;
        };
        if let [only] = widths[..] {
            return Some(only);
        }
        let mut nodes = 0_usize;
        let mut above = 0_usize;
        for width in widths {
            nodes = nodes.saturating_add(width.saturating_mul(above));
            above = above.saturating_add(*width);
        }
        Some(nodes)
    }
}

fn product(factors: impl Iterator<Item = usize>) -> usize {
    factors.fold(1, usize::saturating_mul)
}

fn billiard_nodes(side: usize) -> usize {
    side.saturating_mul(side) / 2
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let arguments = self.arguments();
        if arguments.is_empty() {
            return Ok(());
        }
        write!(f, "({})", arguments.join(", "))
    }
}

impl Spec {
    /// The arguments of the canonical text.
    fn arguments(&self) -> Vec<String> {
        match self {
            Self::Singleton { n }
            | Self::Majority { n }
            | Self::Grid { n }
            | Self::Plane { n }
            | Self::Tree { n }
            | Self::Wheel { n }
            | Self::Triangular { n } => plain(n.as_ref()),
            Self::Threshold { n: Some(n), k } => vec![n.to_string(), k.to_string()],
            Self::Threshold { n: None, k } => vec![format!("k={k}")],
            Self::Weighted { weights, votes } => {
                with(vec![list(weights)], [option("votes", votes.as_ref())])
            }
            Self::Rect { rows, cols } => vec![rows.to_string(), cols.to_string()],
            Self::Walls { widths } => vec![list(widths)],
            Self::Hierarchical { branches } => vec![list(branches)],
            Self::HGrid { sizes } => sizes
                .iter()
                .map(|(rows, cols)| format!("{rows}x{cols}"))
                .collect(),
            Self::HBilliard { sides, form } => {
                let form = (*form != HForm::H1).then_some(form);
                with(vec![list(sides)], [option("form", form)])
            }
            Self::Compose { outer, inner } => vec![outer.to_string(), inner.to_string()],
            Self::Masking { n, b, .. } => with(plain(n.as_ref()), [option("b", Some(b))]),
            Self::MGrid { n, b, rule } => {
                let rule = (*rule != Rule::Masking).then_some(rule);
                with(
                    plain(n.as_ref()),
                    [option("b", Some(b)), option("rule", rule)],
                )
            }
            Self::Affine {
                n,
                groups,
                fallback,
            } => with(
                plain(n.as_ref()),
                [
                    option("groups", Some(groups)),
                    option("fallback", fallback.as_ref()),
                ],
            ),
            Self::Groups { coterie, groups } => vec![coterie.to_string(), groups.to_string()],
            Self::Complete { coterie } => vec![coterie.to_string()],
            Self::Expr { expr, names } => vec![expr.text(names)],
            Self::File { path } => vec![path_text(path)],
            Self::Billiard { .. } | Self::Surficial { .. } | Self::Multilevel { .. } => {
                self.sized_arguments()
            }
        }
    }

    /// The arguments of the forms that give their size in two ways.
    fn sized_arguments(&self) -> Vec<String> {
        match self {
            Self::Billiard { size, tiers, fit } => {
                let size = match size {
                    BilliardSize::Nodes(n) => plain(n.as_ref()),
                    BilliardSize::Side(side) => vec![format!("q={side}")],
                };
                let tiers = tiers.as_ref().map(|tiers| list(tiers));
                let fit = (*fit != Fit::Fold).then_some(fit);
                with(size, [option("tiers", tiers.as_ref()), option("fit", fit)])
            }
            Self::Surficial { size, n, fallback } => {
                let size = match size {
                    SurficialSize::Groups(groups) => format!("groups={groups}"),
                    SurficialSize::Widths(widths) => format!("widths={}", list(widths)),
                };
                with(
                    vec![size],
                    [
                        option("n", n.as_ref()),
                        option("fallback", fallback.as_ref()),
                    ],
                )
            }
            Self::Multilevel { inner, clusters } => {
                let mut arguments = vec![match &inner[..] {
                    [one] => one.to_string(),
                    several => format!("[{}]", list(several)),
                }];
                match clusters {
                    ClustersSize::Even { n, levels } => {
                        arguments.extend(plain(n.as_ref()));
                        with(arguments, [option("levels", Some(levels))])
                    }
                    ClustersSize::Sizes(sizes) => {
                        let sizes = nested(sizes);
                        with(arguments, [option("sizes", Some(&sizes))])
                    }
                }
            }
            _ => Vec::new(),
        }
    }
}

/// The sizes of the leaf clusters, in brackets as the levels above gather them.
fn nested(sizes: &[Vec<usize>]) -> String {
    let Some((leaves, above)) = sizes.split_last() else {
        return String::new();
    };
    let mut texts: Vec<String> = leaves.iter().map(usize::to_string).collect();
    for row in above.iter().rev() {
        let mut below = texts.into_iter();
        texts = row
            .iter()
            .map(|size| {
                let part: Vec<String> = below.by_ref().take(*size).collect();
                format!("[{}]", part.join(","))
            })
            .collect();
    }
    texts.concat()
}

fn plain(n: Option<&usize>) -> Vec<String> {
    n.map(usize::to_string).into_iter().collect()
}

fn option(name: &str, value: Option<&impl fmt::Display>) -> Option<String> {
    value.map(|value| format!("{name}={value}"))
}

fn with<const K: usize>(mut plain: Vec<String>, options: [Option<String>; K]) -> Vec<String> {
    plain.extend(options.into_iter().flatten());
    plain
}

fn list(items: &[impl fmt::Display]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(",")
}

/// A path as it stands in the text: quoted where it would otherwise be read differently.
fn path_text(path: &str) -> String {
    if path.contains(['(', ')', '"']) || path.trim() != path || path.is_empty() {
        format!("\"{}\"", path.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        path.to_owned()
    }
}
