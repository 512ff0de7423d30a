//! Cost, delay and availability of multilevel hierarchies in closed form.
//!
//! Rahman and Akbar, "A Permission based Multilevel Parallel Solution for Distributed Mutual
//! Exclusion", section III, for the tree quorums of Agrawal and El Abbadi in every cluster.
//!
//! | paper | here |
//! |---|---|
//! | `f`, availability of a node | `up`, the probability that a node is up, in `0..=1` |
//! | `c_h`, equation (1) | [`tree_cost`] |
//! | cost of `l` levels over `n` nodes | [`cost`] |
//! | `k` of equation (2) | [`exact_k`]; the paper's estimate is [`paper_k`] |
//! | optimal `l`, equation (2) | [`real_levels`], [`best_levels`] |
//! | availability, figure 5 | [`paper_availability`]; over real clusters [`chain_figures`] |
//! | minimum delay | [`paper_delay`]; what a run really takes is [`true_delay`] |
//!
//! The paper's estimate of `k` is the chord of a concave function and far off: it is here to show
//! that, and nothing uses it. The tables at the end put computed figures beside reference ones.

use std::collections::BTreeMap;
use std::f64::consts::E;

use crate::construct::multilevel::{ClusterId, Clusters, LEVELS_MAX, NODES_MAX};

/// The expected size of a tree quorum, equation (1): a complete tree of height `height` whose
/// root is in the quorum while it is up. Heights need not be whole.
pub fn tree_cost(height: f64, up: f64) -> f64 {
    let down = 1.0 - up;
    if down == 0.0 {
        return height + 1.0;
    }
    // ((1 + down)^height - 1 + down) / down, without the difference of near equals.
    1.0 + (height * down.ln_1p()).exp_m1() / down
}

/// The cost of a request in a network of `nodes` nodes with `levels` levels below the root: the
/// quorum sizes of equal clusters along a chain, and one for each step between levels.
pub fn cost(nodes: usize, up: f64, levels: usize) -> f64 {
    let clusters = levels as f64 + 1.0;
    clusters * tree_cost(height(nodes) / clusters, up) + levels as f64
}

/// The height of a binary tree of `nodes` nodes as a real number.
fn height(nodes: usize) -> f64 {
    (nodes.max(1) as f64).log2()
}

/// The principal branch of Lambert's W: the `w >= -1` with `w * e^w = x`. `None` below `-1/e`.
pub fn lambert_w0(x: f64) -> Option<f64> {
    let above = x.mul_add(E, 1.0);
    if x.is_nan() || above < -1e-15 {
        return None;
    }
    if x.is_infinite() {
        return Some(x);
    }
    if x < -0.25 {
        return Some(one_plus_w(above.max(0.0)) - 1.0);
    }
    let mut w = if x > E {
        x.ln() - x.ln().ln()
    } else {
        x.ln_1p()
    };
    for _ in 0..64 {
        // Both sides divided by e^w, which may be huge.
        let miss = w - x * (-w).exp();
        let step = miss / (w + 1.0 - miss * (w + 2.0) / (2.0 * w + 2.0));
        w -= step;
        if step.abs() <= 1e-16 * w.abs() {
            break;
        }
    }
    Some(w)
}

/// `1 + W0(x)` from `above = 1 + e x`, in `0..=1` or so. Near the branch point `x = -1/e`, where
/// W has a vertical tangent, this keeps the digits that `x` itself has lost.
fn one_plus_w(above: f64) -> f64 {
    if above <= 0.0 {
        return 0.0;
    }
    // With u = 1 + w the equation is 1 + (u - 1) e^u = above; the left side is u^2/2 + u^3/3 + ..
    let left = |u: f64| {
        let (mut power, mut sum) = (u, 0.0);
        for j in 2..40 {
            power *= u / f64::from(j);
            sum += power * f64::from(j - 1);
        }
        sum
    };
    let root = (2.0 * above).sqrt();
    let mut u = root - root * root / 3.0 + 11.0 * root.powi(3) / 72.0;
    for _ in 0..64 {
        let miss = left(u) - above;
        let (slope, bend) = (u * u.exp(), (1.0 + u) * u.exp());
        let step = 2.0 * miss * slope / (2.0 * slope * slope - miss * bend);
        u -= step;
        if step.abs() <= 1e-16 * u {
            break;
        }
    }
    u
}

/// The `k` that makes equation (2) exact: `W0((1 - 2 up) / e)`, whatever the number of nodes.
pub fn exact_k(up: f64) -> f64 {
    one_plus_k(up) - 1.0
}

fn one_plus_k(up: f64) -> f64 {
    if up > 0.7 {
        // 1 + e x is 2 (1 - up), exactly.
        one_plus_w(2.0 * (1.0 - up))
    } else {
        lambert_w0((1.0 - 2.0 * up) / E).map_or(f64::NAN, |w| 1.0 + w)
    }
}

/// The paper's rough estimate of `k`. It is wrong everywhere but at both ends.
pub fn paper_k(up: f64) -> f64 {
    0.27846 * (1.0 - up) - up
}

/// Equation (2): the number of levels of least cost as a real number, not below 0. With every
/// node up no hierarchy pays: 0.
pub fn real_levels(nodes: usize, up: f64) -> f64 {
    levels_for(nodes, up, one_plus_k(up))
}

/// Equation (2) with the paper's estimate of `k`: for comparison only.
pub fn paper_levels(nodes: usize, up: f64) -> f64 {
    levels_for(nodes, up, 1.0 + paper_k(up))
}

fn levels_for(nodes: usize, up: f64, one_plus_k: f64) -> f64 {
    if up >= 1.0 {
        return 0.0;
    }
    (height(nodes) * (1.0 - up).ln_1p() / one_plus_k - 1.0).max(0.0)
}

/// The number of levels of least cost. The cost has one minimum, so it is one of the two whole
/// numbers beside the real optimum; mere rounding takes the wrong one near ties.
pub fn best_levels(nodes: usize, up: f64) -> usize {
    let low = real_levels(nodes, up).floor() as usize;
    let low = low.min(LEVELS_MAX);
    if low < LEVELS_MAX && cost(nodes, up, low + 1) < cost(nodes, up, low) {
        low + 1
    } else {
        low
    }
}

/// The number of levels of least cost by trying all up to [`LEVELS_MAX`].
pub fn best_levels_by_trial(nodes: usize, up: f64) -> usize {
    let mut best = 0;
    for levels in 1..=LEVELS_MAX {
        if cost(nodes, up, levels) < cost(nodes, up, best) {
            best = levels;
        }
    }
    best
}

/// A tree coterie under failures: its availability, and the mean size of the quorum that the
/// paper's rule selects (take a node while it is up, and a random side first).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TreeFigures {
    /// The probability that there is a quorum.
    pub live: f64,
    /// The probability that there is none.
    pub dead: f64,
    /// The mean size of the selected quorum, given that there is one.
    pub size: f64,
}

/// The figures of the tree coterie over `nodes` nodes laid out as a heap, each up with
/// probability `up`. A node without a right child counts as a leaf. Not a number past
/// [`NODES_MAX`] nodes.
pub fn tree_figures(nodes: usize, up: f64) -> TreeFigures {
    let up = if nodes > NODES_MAX { f64::NAN } else { up };
    let nodes = nodes.clamp(1, NODES_MAX);
    let down = 1.0 - up;
    // Of each subtree: live, dead, and the mean of the size where live (not divided by live).
    let mut trees = vec![(up, down, up); nodes];
    for i in (0..(nodes - 1) / 2).rev() {
        let ((left, no_left, sl), (right, no_right, sr)) = (trees[2 * i + 1], trees[2 * i + 2]);
        let both = left * right;
        let one = left * no_right + no_left * right;
        let none = no_left * no_right;
        let path = (sl + no_left * sr + sr + no_right * sl) / 2.0;
        let live = up * (both + one) + down * both;
        let dead = up * none + down * (none + one);
        let size = up * (both + one + path) + down * (sl * right + sr * left);
        trees[i] = (live, dead, size);
    }
    let (live, dead, size) = trees[0];
    TreeFigures {
        live,
        dead,
        size: size / live,
    }
}

/// The availability of a chain as the paper's figure 5 has it: complete trees of the height
/// `floor(log2 C)` for clusters of `C = nodes^(1/(levels + 1))` nodes, taken as independent.
pub fn paper_availability(nodes: usize, up: f64, levels: usize) -> f64 {
    let clusters = levels.saturating_add(1);
    let height = nodes.max(1).ilog2() as usize / clusters;
    let tree = (0..height).fold(up, |live, _| {
        up * live * (2.0 - live) + (1.0 - up) * live * live
    });
    tree.powi(i32::try_from(clusters).unwrap_or(i32::MAX))
}

/// Tree coteries along the chains of a hierarchy, with clusters taken as independent: the mean
/// over all nodes as requesters. That is an estimate, for delegates are shared between levels;
/// the exact failure probability of "some chain is live" is the family's own
/// [`mass`](crate::Family::mass).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChainFigures {
    /// The product of the availabilities along the requester's chain.
    pub live: f64,
    /// The sum of the quorum sizes along the requester's chain.
    pub size: f64,
}

impl ChainFigures {
    /// The expected messages of one entry into the critical section: request, reply and release
    /// for each member of the quorums, and four messages for each step between levels.
    pub fn messages(&self, levels: usize) -> f64 {
        3.0 * self.size + 4.0 * levels as f64
    }
}

/// The figures of the chains of a hierarchy of tree coteries.
pub fn chain_figures(clusters: &Clusters, up: f64) -> ChainFigures {
    let mut trees = BTreeMap::new();
    let mut above = vec![ChainFigures {
        live: 1.0,
        size: 0.0,
    }];
    for level in 0..=clusters.levels() {
        let mut here = Vec::with_capacity(clusters.count(level));
        for id in clusters.at(level) {
            let size = clusters.size(id);
            let tree: &TreeFigures = trees.entry(size).or_insert_with(|| tree_figures(size, up));
            let parent = above[clusters.parent(id).map_or(0, ClusterId::index)];
            here.push(ChainFigures {
                live: parent.live * tree.live,
                size: parent.size + tree.size,
            });
        }
        above = here;
    }
    let nodes = clusters.nodes() as f64;
    let (mut live, mut size) = (0.0, 0.0);
    for (leaf, chain) in clusters.at(clusters.levels()).zip(above) {
        let share = clusters.size(leaf) as f64 / nodes;
        live += share * chain.live;
        size += share * chain.size;
    }
    ChainFigures { live, size }
}

/// The paper's minimum delay of an undisturbed entry with quorums of `quorum` nodes, where
/// sending a message takes `send` and its way takes `way`: `(2l + 1)(P + T) + qP + T`.
pub fn paper_delay(levels: usize, quorum: usize, send: f64, way: f64) -> f64 {
    (2.0 * levels as f64 + 1.0) * (send + way) + quorum as f64 * send + way
}

/// The delay that an undisturbed entry really has: with a level below, one sending time more, as
/// the consensus request reaches the root's representing node that much after its own quorum.
pub fn true_delay(levels: usize, quorum: usize, send: f64, way: f64) -> f64 {
    let late = if levels > 0 { send } else { 0.0 };
    paper_delay(levels, quorum, send, way) + late
}

/// A computed figure beside the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// What this library computes.
    pub computed: f64,
    /// The reference figure: from the paper's formulas, or found by a separate program.
    pub expected: f64,
    /// How many decimals the reference figure is given to.
    pub decimals: u32,
    /// How far simulated figures may be apart by chance; 0 for computed ones.
    pub tolerance: f64,
}

impl Cell {
    /// Computed minus reference.
    pub fn difference(&self) -> f64 {
        self.computed - self.expected
    }

    /// Whether the computed figure rounds to the reference.
    pub fn agrees(&self) -> bool {
        let unit = 10f64.powi(-i32::try_from(self.decimals).unwrap_or(i32::MAX));
        self.difference().abs() <= 0.5 * unit + 1e-9 + self.tolerance
    }
}

/// One line of a [`Table`].
#[derive(Clone, Debug, PartialEq)]
pub struct TableRow {
    /// What the line is for, such as "n=300".
    pub label: String,
    /// Its figures, one per column.
    pub cells: Vec<Cell>,
}

/// Reference figures beside computed ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What the table shows.
    pub title: &'static str,
    /// The headings of the columns.
    pub columns: Vec<String>,
    /// The lines.
    pub rows: Vec<TableRow>,
}

impl Table {
    /// The cells that do not agree, with the label of their line and their column.
    pub fn deviations(&self) -> Vec<(&str, &str, Cell)> {
        let lines = self.rows.iter().flat_map(|row| {
            let cells = row.cells.iter().zip(&self.columns);
            cells.map(|(cell, column)| (row.label.as_str(), column.as_str(), *cell))
        });
        lines.filter(|(_, _, cell)| !cell.agrees()).collect()
    }
}

/// Expected quorum sizes of complete trees.
pub fn tree_table() -> Table {
    let rows = reference::TREE_COST.iter().map(|(up, expected)| {
        let cells = (0..).zip(expected);
        row(
            format!("f={up}"),
            cells.map(|(h, expected)| cell(tree_cost(f64::from(h), *up), *expected, 4)),
        )
    });
    Table {
        title: "Expected tree quorum size c_h",
        columns: (0..=6).map(|h| format!("h={h}")).collect(),
        rows: rows.collect(),
    }
}

/// The optimum by equation (2): with the exact `k`, and with the paper's estimate of it.
pub fn optimum_table() -> Table {
    let n = reference::NODES;
    let rows = reference::OPTIMUM.iter().map(|(up, k, levels, decimals)| {
        let cells = [
            cell(exact_k(*up), k[0], 5),
            cell(paper_k(*up), k[1], 5),
            cell(real_levels(n, *up), levels[0], *decimals),
            cell(paper_levels(n, *up), levels[1], *decimals),
        ];
        row(format!("f={up}"), cells)
    });
    let columns = ["exact k", "paper k", "exact l", "paper l"];
    Table {
        title: "Optimal level of clustering, n=1200",
        columns: columns.map(String::from).to_vec(),
        rows: rows.collect(),
    }
}

/// Figure 3: cost by number of nodes, with `f = 0.8`.
pub fn figure_3() -> Table {
    let rows = reference::FIGURE_3.iter().map(|(n, costs, best, real)| {
        let cells = (0..).zip(costs);
        let mut cells: Vec<Cell> = cells
            .map(|(levels, expected)| cell(cost(*n, 0.8, levels), *expected, 2))
            .collect();
        cells.push(cell(best_levels(*n, 0.8) as f64, *best, 0));
        cells.push(cell(real_levels(*n, 0.8), *real, 3));
        row(format!("n={n}"), cells)
    });
    let mut columns = by_level("");
    columns.extend(["best".to_owned(), "real l".to_owned()]);
    Table {
        title: "Figure 3: message cost c, f=0.8",
        columns,
        rows: rows.collect(),
    }
}

/// Figure 4: cost by availability of a node in a network of 1200 nodes, and beside it the
/// messages over the clusters that [`Clusters::build`] makes.
pub fn figure_4() -> Table {
    let n = reference::NODES;
    let rows = reference::FIGURE_4
        .iter()
        .map(|(up, costs, best, messages)| {
            let cells = (0..).zip(costs);
            let mut cells: Vec<Cell> = cells
                .map(|(levels, expected)| cell(cost(n, *up, levels), *expected, 2))
                .collect();
            cells.push(cell(best_levels(n, *up) as f64, *best, 0));
            for (levels, expected) in (0..).zip(messages) {
                let found = built(n, *up, levels).map_or(f64::NAN, |chain| chain.messages(levels));
                cells.push(cell(found, *expected, 2));
            }
            row(format!("f={up}"), cells)
        });
    let mut columns = by_level("c ");
    columns.push("best".to_owned());
    columns.extend(by_level("M "));
    Table {
        title: "Figure 4: message cost c and messages M, n=1200",
        columns,
        rows: rows.collect(),
    }
}

/// Figure 5: the availability of a chain, as the paper has it (P) and over the clusters that
/// [`Clusters::build`] makes (X).
pub fn figure_5() -> Table {
    let rows = reference::FIGURE_5.iter().map(|(up, n, paper, exact)| {
        let paper = (0..).zip(paper);
        let paper = paper.map(|(levels, x)| cell(paper_availability(*n, *up, levels), *x, 4));
        let exact = (0..).zip(exact).map(|(levels, x)| {
            let found = built(*n, *up, levels).map_or(f64::NAN, |chain| chain.live);
            cell(found, *x, 4)
        });
        row(format!("f={up} n={n}"), paper.chain(exact))
    });
    let mut columns = by_level("P ");
    columns.extend(by_level("X "));
    Table {
        title: "Figure 5: availability of a chain",
        columns,
        rows: rows.collect(),
    }
}

/// The minimum delay by the paper's formula and the one that runs show.
pub fn delay_table() -> Table {
    let (send, way) = (reference::SEND, reference::WAY);
    let rows = reference::DELAYS.iter().map(|(l, q, paper, measured)| {
        let cells = [
            cell(paper_delay(*l, *q, send, way), *paper, 0),
            cell(true_delay(*l, *q, send, way), *measured, 0),
        ];
        row(format!("l={l} q={q}"), cells)
    });
    Table {
        title: "Minimum delay, P=8 T=12",
        columns: vec!["formula".to_owned(), "measured".to_owned()],
        rows: rows.collect(),
    }
}

/// All tables, in the order of the paper.
pub fn tables() -> Vec<Table> {
    vec![
        tree_table(),
        optimum_table(),
        figure_3(),
        figure_4(),
        figure_5(),
        delay_table(),
    ]
}

fn built(nodes: usize, up: f64, levels: usize) -> Option<ChainFigures> {
    let clusters = Clusters::build(nodes, levels).ok()?;
    Some(chain_figures(&clusters, up))
}

fn cell(computed: f64, expected: f64, decimals: u32) -> Cell {
    Cell {
        computed,
        expected,
        decimals,
        tolerance: 0.0,
    }
}

fn row(label: String, cells: impl IntoIterator<Item = Cell>) -> TableRow {
    let cells = cells.into_iter().collect();
    TableRow { label, cells }
}

fn by_level(prefix: &str) -> Vec<String> {
    (0..5).map(|level| format!("{prefix}l={level}")).collect()
}

/// Published and separately computed figures, as data.
pub mod reference {
    /// The number of nodes of figures 4 and the optimum.
    pub const NODES: usize = 1200;

    /// Sending time of a message in the delay table.
    pub const SEND: f64 = 8.0;

    /// Time on the way of a message in the delay table.
    pub const WAY: f64 = 12.0;

    /// Availability of a node; `c_h` for heights 0 to 6.
    pub const TREE_COST: [(f64, [f64; 7]); 2] = [
        (0.9, [1.0, 2.0, 3.1, 4.31, 5.641, 7.1051, 8.7156]),
        (0.8, [1.0, 2.0, 3.2, 4.64, 6.368, 8.4416, 10.9299]),
    ];

    /// Availability of a node; exact `k` and the paper's; optimal level with each, for 1200
    /// nodes; decimals of the levels.
    pub const OPTIMUM: [(f64, [f64; 2], [f64; 2], u32); 6] = [
        (0.5, [0.0, -0.36077], [3.15, 5.49], 2),
        (0.75, [-0.23196, -0.68039], [1.972, 6.141], 3),
        (0.8, [-0.29708, -0.74431], [1.653, 6.294], 3),
        (0.85, [-0.37449, -0.80823], [1.286, 6.455], 3),
        (0.9, [-0.47167, -0.87215], [0.845, 6.626], 3),
        (0.95, [-0.60834, -0.93608], [0.274, 6.807], 3),
    ];

    /// Nodes; cost for 0 to 4 levels; best level; real optimum. Availability 0.8.
    pub const FIGURE_3: [(usize, [f64; 5], f64, f64); 10] = [
        (300, [18.41, 14.17, 14.73, 16.10, 17.75], 1.0, 1.134),
        (400, [20.18, 14.99, 15.37, 16.66, 18.26], 1.0, 1.242),
        (500, [21.64, 15.64, 15.87, 17.10, 18.67], 1.0, 1.326),
        (600, [22.90, 16.19, 16.28, 17.46, 19.00], 1.0, 1.394),
        (700, [24.01, 16.67, 16.64, 17.77, 19.29], 2.0, 1.451),
        (800, [25.01, 17.09, 16.95, 18.04, 19.54], 2.0, 1.501),
        (900, [25.93, 17.46, 17.23, 18.28, 19.76], 2.0, 1.545),
        (1000, [26.77, 17.81, 17.49, 18.50, 19.96], 2.0, 1.585),
        (1100, [27.55, 18.12, 17.72, 18.70, 20.14], 2.0, 1.621),
        (1200, [28.28, 18.41, 17.93, 18.88, 20.30], 2.0, 1.653),
    ];

    /// Availability of a node; cost for 0 to 4 levels; best level; messages for 0 to 4 levels.
    #[rustfmt::skip]
    pub const FIGURE_4: [(f64, [f64; 5], f64, [f64; 5]); 6] = [
        (1.0, [11.23, 13.23, 15.23, 17.23, 19.23], 0.0,
            [30.52, 34.62, 38.69, 42.00, 47.10]),
        (0.95, [13.94, 14.34, 15.86, 17.63, 19.50], 0.0,
            [36.88, 36.62, 39.56, 42.53, 47.20]),
        (0.9, [17.51, 15.56, 16.52, 18.04, 19.76], 1.0,
            [44.91, 38.72, 40.42, 42.93, 47.27]),
        (0.85, [22.18, 16.92, 17.21, 18.46, 20.03], 1.0,
            [54.91, 40.85, 41.22, 43.22, 47.32]),
        (0.8, [28.28, 18.41, 17.93, 18.88, 20.30], 2.0,
            [67.07, 42.88, 41.89, 43.43, 47.36]),
        (0.75, [36.20, 20.05, 18.68, 19.31, 20.57], 2.0,
            [81.08, 44.65, 42.43, 43.56, 47.39]),
    ];

    /// Availability of a node; nodes; availability of a chain for 0 to 4 levels with the paper's
    /// heights and over built clusters.
    #[rustfmt::skip]
    pub const FIGURE_5: [(f64, usize, [f64; 5], [f64; 5]); 8] = [
        (0.8, 300, [0.9998, 0.9831, 0.8626, 0.8211, 0.5775],
            [0.9995, 0.9628, 0.8429, 0.6607, 0.5775]),
        (0.8, 600, [0.9999, 0.9831, 0.9394, 0.8211, 0.5775],
            [0.9998, 0.9732, 0.8725, 0.7335, 0.5775]),
        (0.8, 900, [0.9999, 0.9831, 0.9394, 0.8211, 0.5775],
            [0.9999, 0.9806, 0.8847, 0.7376, 0.5775]),
        (0.8, 1200, [1.0, 0.9931, 0.9394, 0.8211, 0.7816],
            [0.9999, 0.9843, 0.8964, 0.7376, 0.5920]),
        (0.95, 1200, [1.0, 1.0, 0.9998, 0.9969, 0.9961],
            [1.0, 1.0, 0.9986, 0.9873, 0.9672]),
        (0.9, 1200, [1.0, 0.9999, 0.9962, 0.9753, 0.9692],
            [1.0, 0.9995, 0.9882, 0.9412, 0.8761]),
        (0.85, 1200, [1.0, 0.9988, 0.9805, 0.9193, 0.9002],
            [1.0, 0.9963, 0.9577, 0.8565, 0.7440]),
        (0.75, 1200, [0.9996, 0.9737, 0.8594, 0.6847, 0.6229],
            [0.9992, 0.9518, 0.7983, 0.5967, 0.4407]),
    ];

    /// Levels; quorum size; the paper's formula; the measured delay.
    pub const DELAYS: [(usize, usize, f64, f64); 6] = [
        (0, 3, 56.0, 56.0),
        (1, 3, 96.0, 104.0),
        (2, 3, 136.0, 144.0),
        (3, 3, 176.0, 184.0),
        (1, 4, 104.0, 112.0),
        (0, 4, 64.0, 64.0),
    ];
}
