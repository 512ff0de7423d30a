//! The two linear programs behind load, over a given list of quorums.
//!
//! | program | variables | meaning |
//! |---|---|---|
//! | primal | a probability per quorum | the strategy that keeps the busiest node's load least |
//! | dual | a weight per node | the weights whose lightest quorum is heaviest |
//!
//! Both have the same value. Results are raw: the caller recomputes what they prove.

use microlp::{
    ComparisonOp, Error, LinearExpr, OptimizationDirection, Problem, Solution, SolveOptions,
    SolveOutcome, Tolerances, Variable,
};

use crate::NodeSet;

/// The best strategy over `quorums`: a probability for each.
pub(super) fn primal(quorums: &[NodeSet], capacity: &[f64]) -> Option<Vec<f64>> {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let load = problem.add_var(1.0, (0.0, f64::INFINITY));
    let shares: Vec<Variable> = quorums
        .iter()
        .map(|_| problem.add_var(0.0, (0.0, 1.0)))
        .collect();
    let mut rows: Vec<LinearExpr> = capacity
        .iter()
        .map(|capacity| {
            let mut row = LinearExpr::empty();
            row.add(load, -capacity);
            row
        })
        .collect();
    for (quorum, share) in quorums.iter().zip(&shares) {
        for node in quorum.iter() {
            rows[node].add(*share, 1.0);
        }
    }
    for row in rows {
        problem.add_constraint(row, ComparisonOp::Le, 0.0);
    }
    problem.add_constraint(
        shares.iter().map(|share| (*share, 1.0)),
        ComparisonOp::Eq,
        1.0,
    );
    let solution = solve(&problem)?;
    Some(
        shares
            .iter()
            .map(|share| solution.var_value(*share).max(0.0))
            .collect(),
    )
}

/// The dual program, which grows by one row per quorum and keeps its basis.
#[derive(Debug)]
pub(super) struct Dual {
    solution: Option<Solution>,
    value: Variable,
    weights: Vec<Variable>,
}

impl Dual {
    /// The program for these quorums (at least one).
    pub(super) fn new(quorums: &[NodeSet], capacity: &[f64]) -> Option<Self> {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let value = problem.add_var(1.0, (0.0, f64::INFINITY));
        let weights: Vec<Variable> = capacity
            .iter()
            .map(|_| problem.add_var(0.0, (0.0, f64::INFINITY)))
            .collect();
        problem.add_constraint(
            weights.iter().copied().zip(capacity.iter().copied()),
            ComparisonOp::Eq,
            1.0,
        );
        for quorum in quorums {
            problem.add_constraint(row(quorum, value, &weights), ComparisonOp::Ge, 0.0);
        }
        let solution = Some(solve(&problem)?);
        Some(Self {
            solution,
            value,
            weights,
        })
    }

    /// The weights found and the value claimed for them.
    pub(super) fn point(&self) -> Option<(Vec<f64>, f64)> {
        let solution = self.solution.as_ref()?;
        let weights = self
            .weights
            .iter()
            .map(|weight| solution.var_value(*weight).max(0.0))
            .collect();
        Some((weights, solution.var_value(self.value)))
    }

    /// How many pivots the solver has done so far: the deterministic measure of its work.
    pub(super) fn pivots(&self) -> u64 {
        self.solution
            .as_ref()
            .map_or(0, |solution| solution.stats().lp_iterations)
    }

    /// Adds a quorum's row and solves again. `None` if the solver gave up: the program is spent.
    pub(super) fn add(&mut self, quorum: &NodeSet) -> Option<()> {
        let row = row(quorum, self.value, &self.weights);
        let outcome = self
            .solution
            .take()?
            .add_constraint(row, ComparisonOp::Ge, 0.0);
        self.solution = Some(accept(outcome)?);
        Some(())
    }
}

/// The row `weights(quorum) - value >= 0`.
fn row(quorum: &NodeSet, value: Variable, weights: &[Variable]) -> LinearExpr {
    let mut row = LinearExpr::empty();
    row.add(value, -1.0);
    for node in quorum.iter() {
        row.add(weights[node], 1.0);
    }
    row
}

/// Solves with a tight tolerance, and where the solver cannot hold that, with its usual one.
fn solve(problem: &Problem) -> Option<Solution> {
    let mut options = SolveOptions::default();
    options.tolerances = Tolerances::default();
    options.tolerances.feasibility = 1e-9;
    accept(problem.solve_with(options)).or_else(|| accept(problem.solve()))
}

fn accept(outcome: Result<SolveOutcome, Error>) -> Option<Solution> {
    outcome.ok()?.into_solution().ok()
}
