//! Trees: the binary tree of tree quorums, and the tree of votes of hierarchical quorums.

use super::frame::{Entry, Sheet};
use super::palette::{EDGE, FAINT, FIRST_DARK, GREY, INK, SECOND};
use super::scene::{ROOM, Scene, Spot};
use super::svg::Point;
use super::{DrawError, limit};

/// The most leaves.
const LEAVES_MAX: usize = 1_024;

/// A tree to draw: what stands at each place, and its children.
struct Tree {
    branches: Vec<Branch>,
}

struct Branch {
    kind: Kind,
    children: Vec<usize>,
    depth: usize,
}

#[derive(Clone, Copy)]
enum Kind {
    Node(usize),
    /// A vote that needs so many of its children.
    Vote(usize),
}

/// The binary tree of `nodes` nodes: the children of node i (from 0) are 2i+1 and 2i+2.
pub(super) fn binary(scene: &Scene<'_>, nodes: usize) -> Result<Sheet, DrawError> {
    let branches = (0..nodes).map(|node| Branch {
        kind: Kind::Node(node),
        children: (2 * node + 1..=2 * node + 2)
            .filter(|child| *child < nodes)
            .collect(),
        depth: (node + 1).ilog2() as usize,
    });
    let tree = Tree {
        branches: branches.collect(),
    };
    tree.draw(scene)
}

/// The tree of votes with these fan-outs from the top.
pub(super) fn hierarchical(scene: &Scene<'_>, fanouts: &[usize]) -> Result<Sheet, DrawError> {
    // Levels of one part only repeat what is above them.
    let fanouts: Vec<usize> = fanouts
        .iter()
        .copied()
        .filter(|fanout| *fanout > 1)
        .collect();
    let mut tree = Tree {
        branches: Vec::new(),
    };
    let mut fresh = 0;
    tree.grow(&fanouts, 0, &mut fresh);
    tree.draw(scene)
}

impl Tree {
    /// Adds a vote with all below it; gives its place.
    fn grow(&mut self, fanouts: &[usize], depth: usize, fresh: &mut usize) -> usize {
        let place = self.branches.len();
        let kind = match fanouts.first() {
            None => {
                *fresh += 1;
                Kind::Node(*fresh - 1)
            }
            Some(fanout) => Kind::Vote(fanout / 2 + 1),
        };
        self.branches.push(Branch {
            kind,
            children: Vec::new(),
            depth,
        });
        if let Some((fanout, below)) = fanouts.split_first() {
            for _ in 0..*fanout {
                let child = self.grow(below, depth + 1, fresh);
                self.branches[place].children.push(child);
            }
        }
        place
    }

    /// The place of each branch along the leaves: a leaf has the next number, any other branch
    /// stands in the middle of its children. Gives the number of leaves too.
    fn spread(&self) -> (Vec<f64>, usize) {
        let mut at = vec![0.0; self.branches.len()];
        let mut leaves = 0;
        let mut pending = vec![(0, false)];
        while let Some((place, done)) = pending.pop() {
            let children = &self.branches[place].children;
            if let (Some(first), Some(last)) = (children.first(), children.last()) {
                if done {
                    // A single child hangs to the left of its parent.
                    let lean = if children.len() == 1 { 0.5 } else { 0.0 };
                    at[place] = f64::midpoint(at[*first], at[*last]) + lean;
                } else {
                    pending.push((place, true));
                    pending.extend(children.iter().rev().map(|child| (*child, false)));
                }
            } else {
                at[place] = leaves as f64;
                leaves += 1;
            }
        }
        (at, leaves)
    }

    fn draw(&self, scene: &Scene<'_>) -> Result<Sheet, DrawError> {
        let (along, leaves) = self.spread();
        limit("leaves of a tree", leaves, LEAVES_MAX)?;
        let layout = Layout::new(scene, leaves, self.depth());
        let places: Vec<Point> = along
            .iter()
            .zip(&self.branches)
            .map(|(along, branch)| layout.place(*along, branch.depth))
            .collect();
        let mut sheet = Sheet {
            size: layout.size,
            ..Sheet::default()
        };
        let states = self.states(scene);
        self.edges(scene, &mut sheet, &places, &states);
        let mut votes = false;
        for (place, branch) in self.branches.iter().enumerate() {
            let at = places[place];
            match branch.kind {
                Kind::Node(node) => {
                    scene.node(&mut sheet.body, node, &Spot::round(at, layout.node));
                }
                Kind::Vote(needed) => {
                    votes = true;
                    let text = format!("{needed} of {}", branch.children.len());
                    let [first, second] = states[place];
                    vote(&mut sheet, at, &layout, (first, second), &text);
                }
            }
        }
        if votes {
            let attributes = format!(r##"fill="#ffffff" stroke="{EDGE}" stroke-width="1.5""##);
            let text = "vote: so many of the parts below it are needed";
            sheet.legend.push(Entry::node(&attributes, text));
        }
        Ok(sheet)
    }

    fn depth(&self) -> usize {
        let depths = self.branches.iter().map(|branch| branch.depth);
        depths.max().unwrap_or(0)
    }

    /// For each branch, whether the first and the second quorum carry all that it stands for.
    fn states(&self, scene: &Scene<'_>) -> Vec<[bool; 2]> {
        let mut states = vec![[false; 2]; self.branches.len()];
        // Children stand after their parents.
        for place in (0..self.branches.len()).rev() {
            let branch = &self.branches[place];
            states[place] = match branch.kind {
                Kind::Node(node) => {
                    let has = [scene.in_first(node), scene.in_second(node)];
                    self.rerouted(place, has, &states)
                }
                Kind::Vote(needed) => [0, 1].map(|which| {
                    let held = branch
                        .children
                        .iter()
                        .filter(|child| states[**child][which]);
                    held.count() >= needed
                }),
            };
        }
        states
    }

    /// Whether the quorums carry the subtree of a node that they have or not: with two children,
    /// it takes two of the node and the children's subtrees.
    fn rerouted(&self, place: usize, has: [bool; 2], states: &[[bool; 2]]) -> [bool; 2] {
        let [left, right] = self.branches[place].children[..] else {
            return has;
        };
        [0, 1].map(|which| {
            let parts = [has[which], states[left][which], states[right][which]];
            parts.into_iter().filter(|part| *part).count() >= 2
        })
    }

    /// Draws the edges; those inside a quorum are thick.
    fn edges(&self, scene: &Scene<'_>, sheet: &mut Sheet, places: &[Point], states: &[[bool; 2]]) {
        let mut thick = [false; 2];
        let wide = if self.branches.len() > 300 { 2.0 } else { 4.0 };
        for (place, branch) in self.branches.iter().enumerate() {
            for child in &branch.children {
                let joined = [0, 1].map(|which| states[place][which] && states[*child][which]);
                let loose = matches!(self.branches[*child].kind,
                    Kind::Node(node) if scene.spare.contains(node));
                let attributes = match joined {
                    [true, _] => {
                        format!(r#"class="edge" stroke="{FIRST_DARK}" stroke-width="{wide}""#)
                    }
                    [false, true] => format!(r#"stroke="{SECOND}" stroke-width="{wide}""#),
                    _ if loose => format!(r#"stroke="{FAINT}" stroke-dasharray="3 3""#),
                    _ => format!(r#"stroke="{EDGE}" stroke-width="1.2""#),
                };
                thick[0] |= joined[0];
                thick[1] |= !joined[0] && joined[1];
                sheet.body.line(places[place], places[*child], &attributes);
            }
        }
        for (drawn, colour, name) in [
            (thick[0], FIRST_DARK, "quorum"),
            (thick[1], SECOND, "second quorum"),
        ] {
            if drawn {
                let attributes = format!(r#"stroke="{colour}" stroke-width="4""#);
                let text = format!("way down to what makes the {name}");
                sheet.legend.push(Entry::line(&attributes, text));
            }
        }
    }
}

fn vote(sheet: &mut Sheet, at: Point, layout: &Layout, state: (bool, bool), text: &str) {
    let (stroke, width) = match state {
        (true, _) => (FIRST_DARK, 3.0),
        (false, true) => (SECOND, 3.0),
        _ => (EDGE, 1.5),
    };
    let attributes =
        format!(r##"class="vote" fill="#ffffff" stroke="{stroke}" stroke-width="{width}""##);
    sheet.body.rect(at, layout.vote, 3.0, &attributes);
    if layout.vote.1 >= 14.0 {
        let ink = if state.0 || state.1 { INK } else { GREY };
        let attributes = format!(r#"text-anchor="middle" fill="{ink}""#);
        sheet.body.text(at, 11.0, &attributes, text);
    }
}

/// Root on top if the leaves fit side by side, else root at the left.
struct Layout {
    /// From leaf to leaf, and from level to level.
    step: f64,
    level: f64,
    sideways: bool,
    node: Point,
    vote: Point,
    size: Point,
}

impl Layout {
    fn new(scene: &Scene<'_>, leaves: usize, depth: usize) -> Self {
        let (wide, high) = scene.ideal();
        let count = leaves as f64;
        let sideways = count * (wide + 6.0) > ROOM;
        let small = leaves > 128;
        let (node, step, level) = if !sideways {
            let step = (ROOM / count).clamp(wide + 6.0, (wide + 30.0).max(60.0));
            ((wide, high), step, high + 34.0)
        } else if small {
            let level = (ROOM / (depth as f64 + 1.0)).min(120.0);
            ((6.0, 6.0), 7.0, level)
        } else {
            let level = (ROOM / (depth as f64 + 1.0)).min(wide + 70.0);
            let high = if high > 36.0 { high } else { 18.0 };
            ((wide, high), high + 3.0, level.max(wide + 16.0))
        };
        let vote = if small && sideways {
            (8.0, 8.0)
        } else {
            (48.0, 18.0)
        };
        let (length, depth) = (count * step, depth as f64 * level);
        let size = if sideways {
            (depth + node.0.max(vote.0) + 8.0, length)
        } else {
            (length.max(60.0), depth + node.1.max(vote.1) + 8.0)
        };
        Self {
            step,
            level,
            sideways,
            node,
            vote,
            size,
        }
    }

    fn place(&self, along: f64, depth: usize) -> Point {
        let along = (along + 0.5) * self.step;
        let deep = depth as f64 * self.level + 4.0;
        if self.sideways {
            (deep + self.node.0.max(self.vote.0) / 2.0, along)
        } else {
            (along, deep + self.node.1.max(self.vote.1) / 2.0)
        }
    }
}
