//! From text to system: builds what a [`Spec`] names, for a cluster of a given size.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use crate::check::find_apart;
use crate::construct::affine::{AffineError, affine};
use crate::construct::billiard::{
    Billiard, Board, BoardError, Form, Hierarchy, HierarchyError, Tier, Tiers,
};
use crate::construct::compose::Compose;
use crate::construct::explicit::{Explicit, ExplicitError};
use crate::construct::fallback;
use crate::construct::formula::{Formula, FormulaError, Part};
use crate::construct::grid::{Grid, GridError};
use crate::construct::groups::{self, GroupsError};
use crate::construct::hgrid::{Hgrid, HgridError};
use crate::construct::mgrid::{self, MaskingError, Mgrid};
use crate::construct::multilevel::{Clusters, Multilevel, MultilevelError};
use crate::construct::plane::{Plane, PlaneError};
use crate::construct::spare::Spare;
use crate::construct::surficial::{Surficial, SurficialError};
use crate::construct::walls::{Walls, WallsError};
use crate::construct::{SizeError, check_nodes};
use crate::text::{self, BilliardSize, ClustersSize, Expr, Fit, HForm, Rule, Spec, SurficialSize};
use crate::{Coterie, Family, Masking, NodeSet, System};

/// The most quorums that an expression may expand to.
const EXPANDED_MAX: usize = 100_000;

/// A system with what its text said about it.
#[derive(Clone, Debug)]
pub struct Built {
    /// The text form, canonical.
    pub text: String,
    /// The system.
    pub system: System,
    /// The nodes' names, where the text gives some; else nodes go by their numbers.
    pub names: Option<Vec<String>>,
    /// The groups' names, where the text gives some.
    pub groups: Option<Vec<String>>,
    /// The quorums as written, one list per family, where the text lists them.
    pub given: Option<Vec<Vec<NodeSet>>>,
    /// The shape behind the system, for drawings.
    pub shape: Shape,
}

/// The geometry of a construction.
#[derive(Clone, Debug)]
pub enum Shape {
    /// A checkerboard with billiard paths.
    Billiard(Arc<Billiard>),
    /// Rows and columns.
    Grid(Arc<Grid>),
    /// Grids of grids.
    Hgrid(Arc<Hgrid>),
    /// A square grid of several rows and columns per quorum.
    Mgrid(Arc<Mgrid>),
    /// A binary tree of this many nodes.
    Tree(usize),
    /// Rows of bricks.
    Walls(Arc<Walls>),
    /// Points and lines.
    Plane(Arc<Plane>),
    /// Rectangles of cartels.
    Surficial(Arc<Surficial>),
    /// Clusters of clusters.
    Multilevel(Arc<Multilevel>),
    /// Votes of votes, by levels of fan-out from the top.
    Hierarchical(Vec<usize>),
    /// Nothing but a set of nodes.
    Plain,
}

/// Why a system cannot be built.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum BuildError {
    /// The text gives no size and no cluster is known.
    #[error("'{form}' needs a number of nodes here, for example {example}; or give the cluster's")]
    NoSize {
        /// The form's name.
        form: &'static str,
        /// An example with a size.
        example: &'static str,
    },
    /// The text's size is not the cluster's.
    #[error("'{text}' is for {text_nodes} nodes, but the cluster has {cluster}")]
    OtherSize {
        /// The text.
        text: String,
        /// Its number of nodes.
        text_nodes: usize,
        /// The cluster's.
        cluster: usize,
    },
    /// A composition whose copies do not fill the cluster.
    #[error(
        "{cluster} nodes cannot be split into copies of {inner} nodes: use a multiple of {inner}"
    )]
    Uneven {
        /// The cluster's size.
        cluster: usize,
        /// The size of a copy.
        inner: usize,
    },
    /// A part that must be a coterie is none.
    #[error("'{text}' is no coterie: {why}")]
    NoCoterie {
        /// The part's text.
        text: String,
        /// What shows it.
        why: String,
    },
    /// An expression with too many quorums.
    #[error(
        "the expression has more than {EXPANDED_MAX} quorums: name each node once, \
         or write fewer alternatives"
    )]
    TooManyQuorums,
    /// A file could not be read or understood.
    #[error("file '{path}': {why}")]
    File {
        /// The path as written.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A number of nodes out of range.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Votes.
    #[error(transparent)]
    Formula(#[from] FormulaError),
    /// Grids.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// Hierarchical grids.
    #[error(transparent)]
    Hgrid(#[from] HgridError),
    /// Walls.
    #[error(transparent)]
    Walls(#[from] WallsError),
    /// Planes.
    #[error(transparent)]
    Plane(#[from] PlaneError),
    /// Billiard boards.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// Hierarchies of billiard boards.
    #[error(transparent)]
    Hierarchy(#[from] HierarchyError),
    /// Clusters of clusters.
    #[error(transparent)]
    Multilevel(#[from] MultilevelError),
    /// Systems for lying nodes.
    #[error(transparent)]
    Masking(#[from] MaskingError),
    /// Surficial systems.
    #[error(transparent)]
    Surficial(#[from] SurficialError),
    /// Affine systems.
    #[error(transparent)]
    Affine(#[from] AffineError),
    /// Group systems.
    #[error(transparent)]
    Groups(#[from] GroupsError),
    /// Listed quorums.
    #[error(transparent)]
    Explicit(#[from] ExplicitError),
}

/// Reads a file that a text names: its content, or why not.
pub type Read<'a> = dyn Fn(&str) -> Result<String, String> + 'a;

/// Builds the system that `spec` names. A text without a size takes `cluster`; a text with
/// another size than `cluster` is refused.
pub fn build(spec: &Spec, cluster: Option<usize>, read: &Read<'_>) -> Result<Built, BuildError> {
    let builder = Builder { cluster, read };
    let built = builder.build(spec)?;
    match cluster {
        Some(cluster) if cluster != built.system.nodes() => Err(BuildError::OtherSize {
            text: spec.to_string(),
            text_nodes: built.system.nodes(),
            cluster,
        }),
        _ => Ok(built),
    }
}

struct Builder<'a> {
    cluster: Option<usize>,
    read: &'a Read<'a>,
}

impl Builder<'_> {
    fn nodes(&self, spec: &Spec, n: Option<usize>) -> Result<usize, BuildError> {
        let nodes = n.or(self.cluster).ok_or_else(|| {
            let form = text::forms().iter().find(|form| form.name == spec.name());
            BuildError::NoSize {
                form: spec.name(),
                example: form.map_or("majority(5)", |form| form.example),
            }
        })?;
        check_nodes(nodes)?;
        Ok(nodes)
    }

    fn within(&self, cluster: Option<usize>) -> Builder<'_> {
        Builder {
            cluster,
            read: self.read,
        }
    }

    fn build(&self, spec: &Spec) -> Result<Built, BuildError> {
        let done = |system: System, shape: Shape| Built {
            text: spec.to_string(),
            system,
            names: None,
            groups: None,
            given: None,
            shape,
        };
        let plain = |family: Arc<dyn Family>| {
            done(
                System::Coterie(Coterie::by_construction(family)),
                Shape::Plain,
            )
        };
        Ok(match spec {
            Spec::Singleton { n } => plain(Arc::new(Formula::singleton(self.nodes(spec, *n)?)?)),
            Spec::Majority { n } => plain(Arc::new(Formula::majority(self.nodes(spec, *n)?)?)),
            Spec::Threshold { n, k } => {
                let formula = Formula::threshold(self.nodes(spec, *n)?, *k)?;
                let meets = 2 * *k > formula.nodes();
                done(judged(Arc::new(formula), Some(meets)), Shape::Plain)
            }
            Spec::Weighted { weights, votes } => {
                let formula = Formula::weighted(weights, *votes)?;
                let total: u64 = weights.iter().sum();
                let meets = votes.is_none_or(|votes| votes > total / 2);
                done(
                    judged(Arc::new(formula), meets.then_some(true)),
                    Shape::Plain,
                )
            }
            Spec::Hierarchical { branches } => {
                let formula = Arc::new(Formula::hierarchical(branches)?);
                let coterie = Coterie::by_construction(formula);
                done(
                    System::Coterie(coterie),
                    Shape::Hierarchical(branches.clone()),
                )
            }
            Spec::Tree { n } => {
                let nodes = self.nodes(spec, *n)?;
                let coterie = Coterie::by_construction(Arc::new(Formula::tree(nodes)?));
                done(System::Coterie(coterie), Shape::Tree(nodes))
            }
            Spec::Grid { .. }
            | Spec::Rect { .. }
            | Spec::HGrid { .. }
            | Spec::Plane { .. }
            | Spec::Wheel { .. }
            | Spec::Walls { .. }
            | Spec::Triangular { .. }
            | Spec::Billiard { .. }
            | Spec::HBilliard { .. } => {
                let (family, shape) = self.geometric(spec)?;
                done(System::Coterie(Coterie::by_construction(family)), shape)
            }
            Spec::Compose { outer, inner } => done(self.composed(outer, inner)?, Shape::Plain),
            Spec::Multilevel { inner, clusters } => {
                let clusters = match clusters {
                    ClustersSize::Even { n, levels } => {
                        Clusters::build(self.nodes(spec, *n)?, *levels)?
                    }
                    ClustersSize::Sizes(sizes) => Clusters::of_sizes(sizes)?,
                };
                check_nodes(clusters.nodes())?;
                let family = Arc::new(self.multilevel(inner, clusters)?);
                let coterie = Coterie::by_construction(family.clone());
                done(System::Coterie(coterie), Shape::Multilevel(family))
            }
            Spec::Masking { .. } | Spec::MGrid { .. } => {
                let (masking, shape) = self.masking(spec)?;
                done(System::Masking(masking), shape)
            }
            Spec::Surficial { .. } | Spec::Affine { .. } | Spec::Groups { .. } => {
                let (groups, shape) = self.groups(spec)?;
                done(System::Groups(groups), shape)
            }
            Spec::Complete { coterie } => {
                let coterie = self.coterie(coterie)?;
                done(
                    System::Coterie(fallback::completion(&coterie)),
                    Shape::Plain,
                )
            }
            Spec::Expr { expr, names } => {
                let (family, given) = expression(expr, names.len())?;
                let mut built = done(judged(family, None), Shape::Plain);
                built.names = numbered(names);
                built.given = given.map(|given| vec![given]);
                built
            }
            Spec::File { path } => self.file(spec, path)?,
        })
    }

    fn geometric(&self, spec: &Spec) -> Result<(Arc<dyn Family>, Shape), BuildError> {
        Ok(match spec {
            Spec::Grid { n } => {
                let grid = Arc::new(Grid::new(self.nodes(spec, *n)?)?);
                (grid.clone(), Shape::Grid(grid))
            }
            Spec::Rect { rows, cols } => {
                let grid = Arc::new(Grid::rect(*rows, *cols)?);
                (grid.clone(), Shape::Grid(grid))
            }
            Spec::HGrid { sizes } => {
                let grid = Arc::new(Hgrid::new(sizes)?);
                (grid.clone(), Shape::Hgrid(grid))
            }
            Spec::Plane { n } => {
                let plane = Arc::new(Plane::new(self.nodes(spec, *n)?)?);
                (plane.clone(), Shape::Plane(plane))
            }
            Spec::Wheel { n } => {
                let walls = Arc::new(Walls::wheel(self.nodes(spec, *n)?)?);
                (walls.clone(), Shape::Walls(walls))
            }
            Spec::Walls { widths } => {
                let walls = Arc::new(Walls::new(widths)?);
                (walls.clone(), Shape::Walls(walls))
            }
            Spec::Triangular { n } => {
                let walls = Arc::new(Walls::triangular(self.nodes(spec, *n)?)?);
                (walls.clone(), Shape::Walls(walls))
            }
            Spec::HBilliard { sides, form } => {
                let form = match form {
                    HForm::H1 => Form::H1,
                    HForm::H2 => Form::H2,
                };
                (Arc::new(Hierarchy::new(sides, form)?), Shape::Plain)
            }
            _ => self.billiard(spec)?,
        })
    }

    fn billiard(&self, spec: &Spec) -> Result<(Arc<dyn Family>, Shape), BuildError> {
        let Spec::Billiard { size, tiers, fit } = spec else {
            unreachable!("invariant: only billiard forms come here");
        };
        let tiers = match tiers {
            None => Tiers::default(),
            Some(tiers) => Tiers::parse(tiers.iter().map(|tier| tier.word()))
                .expect("invariant: the text's tiers are those of the construction"),
        };
        let nodes = match size {
            BilliardSize::Side(side) => {
                let billiard = Arc::new(Billiard::new(Board::with_side(*side)?, tiers));
                return Ok((billiard.clone(), Shape::Billiard(billiard)));
            }
            BilliardSize::Nodes(n) => self.nodes(spec, *n)?,
        };
        let board = match fit {
            Fit::Fold => Board::new(nodes)?,
            Fit::Trim => Board::with_side(trimmed_side(nodes))?,
        };
        // As the board itself does it: own paths, or antipodal paths, carry the healthy cluster.
        let first = [Tier::T1, Tier::T0]
            .into_iter()
            .find(|tier| tiers.contains(*tier));
        let primary = Tiers::of(first).filter(|primary| *primary != tiers);
        let used = primary.map(|tiers| Arc::new(Billiard::new(board.clone(), tiers)));
        let billiard = Arc::new(Billiard::new(board, tiers));
        let shape = Shape::Billiard(billiard.clone());
        if billiard.nodes() == nodes {
            return Ok((billiard, shape));
        }
        let spare = Spare::new(billiard, nodes);
        Ok(match used {
            Some(primary) => (Arc::new(spare.with_primary(primary)), shape),
            None => (Arc::new(spare), shape),
        })
    }

    fn composed(&self, outer: &Spec, inner: &Spec) -> Result<System, BuildError> {
        let (outer, inner) = match (outer.nodes(), inner.nodes(), self.cluster) {
            (None, Some(size), Some(cluster)) => {
                let uneven = BuildError::Uneven {
                    cluster,
                    inner: size,
                };
                let copies = if cluster.is_multiple_of(size) {
                    cluster / size
                } else {
                    return Err(uneven);
                };
                (
                    self.within(Some(copies)).build(outer)?,
                    self.within(None).build(inner)?,
                )
            }
            (Some(copies), None, Some(cluster)) => {
                let uneven = BuildError::Uneven {
                    cluster,
                    inner: copies,
                };
                let size = if cluster.is_multiple_of(copies) {
                    cluster / copies
                } else {
                    return Err(uneven);
                };
                (
                    self.within(None).build(outer)?,
                    self.within(Some(size)).build(inner)?,
                )
            }
            _ => (
                self.within(None).build(outer)?,
                self.within(None).build(inner)?,
            ),
        };
        let family = |built: &Built| -> Result<Arc<dyn Family>, BuildError> {
            built
                .system
                .family(None)
                .cloned()
                .filter(|_| !matches!(built.system, System::Groups(_)))
                .ok_or_else(|| BuildError::NoCoterie {
                    text: built.text.clone(),
                    why: "it has groups".to_owned(),
                })
        };
        let composed: Arc<dyn Family> = Arc::new(Compose::new(family(&outer)?, family(&inner)?)?);
        let meets = |system: &System| matches!(system, System::Coterie(_) | System::Masking(_));
        let both = meets(&outer.system) && meets(&inner.system);
        Ok(judged(composed, both.then_some(true)))
    }

    fn multilevel(&self, inner: &[Spec], clusters: Clusters) -> Result<Multilevel, BuildError> {
        let made: RefCell<BTreeMap<(usize, usize), Arc<dyn Family>>> = RefCell::default();
        Multilevel::new(clusters, &|level, size| {
            let which = level.min(inner.len() - 1);
            if let Some(family) = made.borrow().get(&(which, size)) {
                return Ok::<_, BuildError>(family.clone());
            }
            let coterie = self.within(Some(size)).coterie(&inner[which])?;
            let family = coterie.family().clone();
            made.borrow_mut().insert((which, size), family.clone());
            Ok(family)
        })
    }

    fn masking(&self, spec: &Spec) -> Result<(Masking, Shape), BuildError> {
        let rule = |rule: &Rule| match rule {
            Rule::Masking => mgrid::Rule::Masking,
            Rule::Mutex => mgrid::Rule::Mutex,
            Rule::Ordering => mgrid::Rule::Ordering,
            Rule::Free => mgrid::Rule::Free,
        };
        let (family, overlap, shape, rule, b): (Arc<dyn Family>, usize, Shape, _, usize) =
            match spec {
                Spec::MGrid { n, b, rule: name } => {
                    let grid = Arc::new(Mgrid::new(self.nodes(spec, *n)?, *b, rule(name))?);
                    (
                        grid.clone(),
                        grid.overlap(),
                        Shape::Mgrid(grid),
                        rule(name),
                        *b,
                    )
                }
                Spec::Masking { rule: name, n, b } => {
                    let formula = mgrid::threshold(self.nodes(spec, *n)?, *b, rule(name))?;
                    let overlap = 2 * formula.sizes().min - formula.nodes();
                    (Arc::new(formula), overlap, Shape::Plain, rule(name), *b)
                }
                _ => unreachable!("invariant: only masking forms come here"),
            };
        let overlap = rule
            .overlap(b)
            .map_or(overlap, |needed| needed.min(overlap));
        let spared = rule.spared(b).unwrap_or(b);
        Ok((Masking::by_construction(family, overlap, spared, b), shape))
    }

    fn groups(&self, spec: &Spec) -> Result<(crate::GroupSystem, Shape), BuildError> {
        let (groups, shape, fallback) = match spec {
            Spec::Surficial { size, n, fallback } => {
                let surficial = match size {
                    SurficialSize::Groups(groups) => {
                        Surficial::new(self.nodes(spec, *n)?, *groups)?
                    }
                    SurficialSize::Widths(widths) => {
                        Surficial::with_widths(n.or(self.cluster), widths)?
                    }
                };
                (
                    surficial.system(),
                    Shape::Surficial(Arc::new(surficial)),
                    fallback,
                )
            }
            Spec::Affine {
                n,
                groups,
                fallback,
            } => (
                affine(self.nodes(spec, *n)?, *groups)?,
                Shape::Plain,
                fallback,
            ),
            Spec::Groups { coterie, groups } => {
                return Ok((
                    groups::same(&self.coterie(coterie)?, *groups)?,
                    Shape::Plain,
                ));
            }
            _ => unreachable!("invariant: only group forms come here"),
        };
        let groups = match fallback {
            None => groups,
            Some(text::Fallback::Balanced) => fallback::balanced(&groups),
            Some(text::Fallback::Nondominated) => fallback::nondominated(&groups),
        };
        Ok((groups, shape))
    }

    /// Builds a part that must be a coterie.
    fn coterie(&self, spec: &Spec) -> Result<Coterie, BuildError> {
        let built = self.build(spec)?;
        let why = match built.system {
            System::Coterie(coterie) => return Ok(coterie),
            System::Masking(masking) => {
                return Ok(Coterie::by_construction(masking.family().clone()));
            }
            System::Groups(_) => "it has groups".to_owned(),
            System::Loose(family) => match find_apart(family.as_ref(), family.as_ref(), 1).0 {
                Some(apart) => format!("{} and {} share no node", apart.left, apart.right),
                None => "its quorums are not known to meet".to_owned(),
            },
        };
        Err(BuildError::NoCoterie {
            text: spec.to_string(),
            why,
        })
    }

    fn file(&self, spec: &Spec, path: &str) -> Result<Built, BuildError> {
        let wrong = |why: String| BuildError::File {
            path: path.to_owned(),
            why,
        };
        let content = (self.read)(path).map_err(wrong)?;
        let file = text::parse_file(&content).map_err(|error| wrong(error.to_string()))?;
        let nodes = file.names.len();
        check_nodes(nodes)?;
        let sets = |quorums: &[Vec<usize>]| -> Vec<NodeSet> {
            quorums
                .iter()
                .map(|quorum| NodeSet::of(nodes, quorum.iter().copied()))
                .collect()
        };
        let given: Vec<Vec<NodeSet>> = file
            .cartels
            .iter()
            .map(|(_, quorums)| sets(quorums))
            .collect();
        let mut cartels = given
            .iter()
            .map(|quorums| Explicit::new(nodes, quorums.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        let names: Option<Vec<String>> =
            file.cartels.iter().map(|(name, _)| name.clone()).collect();
        let system = match &names {
            Some(_) => System::Groups(groups::checked(cartels)?),
            None => judged(Arc::new(cartels.remove(0)), None),
        };
        Ok(Built {
            text: spec.to_string(),
            system,
            names: numbered(&file.names),
            groups: names,
            given: Some(given),
            shape: Shape::Plain,
        })
    }
}

/// The side of the largest full board of at most `nodes` sites.
fn trimmed_side(nodes: usize) -> usize {
    let side = (2 * nodes + 1).isqrt();
    if side.is_multiple_of(2) {
        side - 1
    } else {
        side
    }
}

/// Gives a family the kind it deserves: `meets` if that is known, else as a full check finds.
fn judged(family: Arc<dyn Family>, meets: Option<bool>) -> System {
    let meets = meets.unwrap_or_else(|| {
        let (apart, complete) = find_apart(family.as_ref(), family.as_ref(), 1);
        complete && apart.is_none()
    });
    if meets {
        System::Coterie(Coterie::by_construction(family))
    } else {
        System::Loose(family)
    }
}

/// Names other than the nodes' own numbers.
fn numbered(names: &[String]) -> Option<Vec<String>> {
    let plain = names
        .iter()
        .enumerate()
        .all(|(place, name)| *name == (place + 1).to_string());
    (!plain).then(|| names.to_vec())
}

type Expression = (Arc<dyn Family>, Option<Vec<NodeSet>>);

fn expression(expr: &Expr, nodes: usize) -> Result<Expression, BuildError> {
    check_nodes(nodes)?;
    if let Some(formula) = Formula::checked(nodes, &part(expr))? {
        return Ok((Arc::new(formula), None));
    }
    let quorums = expand(expr, nodes)?;
    Ok((Arc::new(Explicit::new(nodes, quorums)?), None))
}

fn part(expr: &Expr) -> Part {
    let parts = |list: &[Expr]| list.iter().map(part).collect::<Vec<_>>();
    match expr {
        Expr::Node(node) => Part::Node(*node),
        Expr::All(list) => Part::at_least(list.len(), parts(list)),
        Expr::Any(list) => Part::at_least(1, parts(list)),
        Expr::Choose(votes, list) => Part::at_least(*votes as usize, parts(list)),
    }
}

/// The minimal quorums of an expression in which a node stands more than once.
fn expand(expr: &Expr, nodes: usize) -> Result<Vec<NodeSet>, BuildError> {
    let (votes, list) = match expr {
        Expr::Node(node) => return Ok(vec![NodeSet::of(nodes, [*node])]),
        Expr::All(list) => (list.len(), list),
        Expr::Any(list) => (1, list),
        Expr::Choose(votes, list) => (*votes as usize, list),
    };
    // held[k]: the quorums of exactly k of the parts so far.
    let mut held: Vec<Vec<NodeSet>> = vec![Vec::new(); votes + 1];
    held[0].push(NodeSet::new(nodes));
    for part in list {
        let quorums = expand(part, nodes)?;
        for count in (0..votes).rev() {
            if held[count].len().saturating_mul(quorums.len()) > 10 * EXPANDED_MAX {
                return Err(BuildError::TooManyQuorums);
            }
            let joined: Vec<NodeSet> = held[count]
                .iter()
                .flat_map(|set| quorums.iter().map(|quorum| set.union(quorum)))
                .collect();
            held[count + 1].extend(joined);
            lean(&mut held[count + 1])?;
        }
    }
    Ok(held.pop().unwrap_or_default())
}

/// Drops repeated sets and sets that contain another.
fn lean(sets: &mut Vec<NodeSet>) -> Result<(), BuildError> {
    sets.sort_by_key(|set| (set.len(), set.clone()));
    sets.dedup();
    if sets.len() <= 4_000 {
        let mut kept: Vec<NodeSet> = Vec::with_capacity(sets.len());
        for set in sets.drain(..) {
            if !kept.iter().any(|small| small.is_subset(&set)) {
                kept.push(set);
            }
        }
        *sets = kept;
    }
    if sets.len() > EXPANDED_MAX {
        return Err(BuildError::TooManyQuorums);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Verdict, check};
    use crate::construct::twin;

    fn built(text: &str, cluster: Option<usize>) -> Result<Built, BuildError> {
        let read = |_: &str| Err("no files here".to_owned());
        build(&text::parse(text).unwrap(), cluster, &read)
    }

    /// Every form at every size that its brute-force twin can follow.
    fn small_systems() -> Vec<String> {
        let mut texts: Vec<String> = Vec::new();
        for n in 1..=12 {
            for form in [
                "singleton",
                "majority",
                "grid",
                "tree",
                "wheel",
                "triangular",
                "plane",
            ] {
                texts.push(format!("{form}({n})"));
            }
            for levels in 0..=3 {
                texts.push(format!("multilevel(tree, {n}, levels={levels})"));
                texts.push(format!("multilevel(majority, {n}, levels={levels})"));
            }
            for tiers in [
                "T0",
                "T1",
                "T2",
                "T3",
                "T0,T1,T2,T3,T3p,T4",
                "T1,T2,T4",
                "T1,T4",
            ] {
                texts.push(format!("billiard({n}, tiers={tiers})"));
            }
            texts.push(format!("billiard({n}, fit=trim)"));
            texts.push(format!("complete(grid({n}))"));
            texts.push(format!("complete(majority({n}))"));
            for b in 0..=2 {
                for rule in ["masking", "mutex", "ordering", "free"] {
                    texts.push(format!("{rule}({n}, b={b})"));
                    texts.push(format!("mgrid({n}, b={b}, rule={rule})"));
                }
            }
            for m in 1..=4 {
                for fallback in ["", ", fallback=balanced", ", fallback=nondominated"] {
                    texts.push(format!("surficial(groups={m}, n={n}{fallback})"));
                    texts.push(format!("affine({n}, groups={m}{fallback})"));
                }
                texts.push(format!("groups(tree({n}), {m})"));
            }
        }
        let others = [
            "rect(2, 5)",
            "walls(1,2,2,3)",
            "hierarchical(3,3)",
            "hierarchical(2,2,3)",
            "hgrid(2x2, 3x1)",
            "hbilliard(3,3)",
            "hbilliard(3, form=H2)",
            "hbilliard(3, form=H1)",
            "compose(majority(3), tree(3))",
            "compose(plane(7), singleton(1))",
            "weighted(3,1,1,1)",
            "weighted(5,4,3,2,1,1,0)",
            "surficial(widths=3,2,1)",
            "surficial(widths=2,3, n=9)",
            "expr(choose(2, a, b, c*d))",
            "expr(a*b + b*c + a*c)",
            "expr(1*2 + 2*3*4 + 1*3 + 1*4)",
            "complete(billiard(10))",
            "complete(plane(7))",
        ];
        texts.extend(others.map(str::to_owned));
        texts
    }

    #[test]
    fn every_form_agrees_with_its_brute_force_twin_on_small_sizes() {
        let mut served = 0;
        for text in small_systems() {
            let Ok(built) = built(&text, None) else {
                continue;
            };
            if built.system.nodes() > 13 {
                continue;
            }
            served += 1;
            for family in built.system.families() {
                twin::check(&text, family.as_ref());
            }
            if let System::Groups(groups) = &built.system {
                twin::check_coterie(&text, groups.exclusive().family().as_ref());
            }
            let report = check(&built.system, None);
            assert!(report.ok(), "{text}: {report:?}");
            assert!(!matches!(built.system, System::Loose(_)), "{text}");
        }
        assert!(
            served > 250,
            "only {served} systems were small enough and possible"
        );
    }

    /// Over ranges of sizes: quorums meet, picks are quorums and avoid what they should.
    #[test]
    fn every_form_keeps_its_promise_over_ranges_of_sizes() {
        let mut prng = crate::Prng::new(11);
        for n in (1..=60).chain((61..400).step_by(37)) {
            for form in [
                "majority",
                "grid",
                "tree",
                "wheel",
                "triangular",
                "billiard",
                "plane",
            ] {
                promised(&format!("{form}({n})"), &mut prng);
            }
            promised(&format!("multilevel(tree, {n}, levels=2)"), &mut prng);
            promised(&format!("multilevel(grid, {n}, levels=1)"), &mut prng);
            promised(&format!("masking({n}, b={})", n / 7), &mut prng);
            promised(&format!("mgrid({n}, b=1)"), &mut prng);
            promised(
                &format!("surficial(groups=3, n={n}, fallback=balanced)"),
                &mut prng,
            );
            promised(&format!("affine({n}, groups=2)"), &mut prng);
        }
    }

    fn promised(text: &str, prng: &mut crate::Prng) {
        let Ok(built) = built(text, None) else { return };
        let report = check(&built.system, None);
        assert!(report.ok(), "{text}: {report:?}");
        for family in built.system.families() {
            let n = family.nodes();
            let avoid = NodeSet::of(n, (0..n).filter(|_| prng.chance(0.2)));
            let live = avoid.complement();
            match crate::pick(family.as_ref(), &avoid, None, prng) {
                Some(quorum) => {
                    assert!(quorum.is_subset(&live), "{text}: {quorum} uses {avoid}");
                    assert!(family.contains_quorum(&quorum), "{text}: {quorum}");
                }
                None => assert!(
                    !family.contains_quorum(&live),
                    "{text}: missed one in {live}"
                ),
            }
        }
    }

    #[test]
    fn completions_are_nondominated() {
        for inner in [
            "grid(9)",
            "plane(7)",
            "wheel(6)",
            "triangular(9)",
            "majority(6)",
            "tree(8)",
        ] {
            let built = built(&format!("complete({inner})"), None).unwrap();
            let report = check(&built.system, None);
            let found = report
                .properties
                .iter()
                .find(|property| property.name == "nondominated");
            assert_eq!(found.unwrap().verdict, Verdict::Holds, "{inner}");
        }
    }

    #[test]
    fn sizes_come_from_the_text_or_the_cluster() {
        assert_eq!(built("majority", Some(7)).unwrap().system.nodes(), 7);
        assert_eq!(built("majority(7)", Some(7)).unwrap().system.nodes(), 7);
        assert!(matches!(
            built("majority(7)", Some(8)),
            Err(BuildError::OtherSize { .. })
        ));
        assert!(matches!(
            built("majority", None),
            Err(BuildError::NoSize { .. })
        ));
        let composed = built("compose(majority, grid(4))", Some(12)).unwrap();
        assert_eq!(composed.system.families()[0].sizes().min, 6);
        assert!(matches!(
            built("compose(majority, grid(4))", Some(13)),
            Err(BuildError::Uneven { .. })
        ));
    }

    #[test]
    fn what_does_not_intersect_is_loose() {
        for text in [
            "threshold(4, 2)",
            "weighted(1,1,1,1, votes=2)",
            "expr(a + b)",
        ] {
            assert!(
                matches!(built(text, None).unwrap().system, System::Loose(_)),
                "{text}"
            );
            let error = built(&format!("complete({text})"), None).unwrap_err();
            assert!(matches!(error, BuildError::NoCoterie { .. }), "{error}");
        }
        let dictator = built("weighted(4,1,1, votes=3)", None).unwrap();
        assert!(matches!(dictator.system, System::Coterie(_)));
    }

    #[test]
    fn files_are_read_through_the_caller() {
        let read = |path: &str| match path {
            "good" => Ok("nodes: a b c\na b\nb c\na c\n".to_owned()),
            "groups" => Ok("group red:\n1 2\n3 4\ngroup blue:\n1 3\n2 4\n".to_owned()),
            "apart" => Ok("group red:\n1 2\ngroup blue:\n3 4\n".to_owned()),
            _ => Err("there is no such file".to_owned()),
        };
        let build_file =
            |path: &str| build(&text::parse(&format!("file({path})")).unwrap(), None, &read);
        let good = build_file("good").unwrap();
        assert_eq!(good.names.unwrap(), ["a", "b", "c"]);
        assert!(matches!(good.system, System::Coterie(_)));
        let groups = build_file("groups").unwrap();
        assert_eq!(groups.groups.unwrap(), ["red", "blue"]);
        assert!(matches!(groups.system, System::Groups(_)));
        assert!(matches!(build_file("apart"), Err(BuildError::Groups(_))));
        assert!(matches!(build_file("none"), Err(BuildError::File { .. })));
    }
}
