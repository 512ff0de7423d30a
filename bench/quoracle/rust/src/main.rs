//! One measurement of the crate quoracle, in one process.
//!
//! usage: quoracle_bench SYSTEM SIZE TASK
//!   SYSTEM  majority n | grid k | rowcol k | tree n | maj3 depth
//!   TASK    load1 (read_fraction=1) | load0 (read_fraction=0) | resilience
//! prints: value seconds   (seconds: building the system + the computation)
use quoracle::{
    choose, majority, Distribution, Error, Expr, Node, Objective, QuorumSystem, StrategyLimits,
};
use std::time::Instant;

type E = Expr<usize>;

fn node(i: usize) -> E {
    Expr::Node(Node::new(i))
}

/// a*b*c + d*e*f + ...: the lines of a k x k grid, node `at(line, position)`.
fn lines(k: usize, at: impl Fn(usize, usize) -> usize) -> Result<E, Error> {
    let line = |i| choose(k, (0..k).map(|j| node(at(i, j))).collect());
    choose(1, (0..k).map(line).collect::<Result<_, _>>()?)
}

/// Agrawal-El Abbadi: root*(L+R) + L*R, that is 2 of {root, L, R}.
fn tree(n: usize, i: usize) -> Result<E, Error> {
    if 2 * i + 2 >= n {
        return Ok(node(i));
    }
    choose(2, vec![node(i), tree(n, 2 * i + 1)?, tree(n, 2 * i + 2)?])
}

/// Recursive 2-of-3 over 3^depth leaves.
fn maj3(depth: usize, i: usize) -> Result<E, Error> {
    if depth == 0 {
        return Ok(node(i));
    }
    choose(2, (0..3).map(|j| maj3(depth - 1, 3 * i + j)).collect::<Result<_, _>>()?)
}

fn build(system: &str, size: usize) -> Result<QuorumSystem<usize>, Error> {
    let row = |r, c| r * size + c;
    let reads = match system {
        "majority" => majority((0..size).map(node).collect())?,
        "grid" => lines(size, row)?,
        "rowcol" => {
            let e = lines(size, row)? * lines(size, |c, r| row(r, c))?;
            return QuorumSystem::new(e.clone(), e);
        }
        "tree" => tree(size, 0)?,
        "maj3" => maj3(size, 0)?,
        _ => panic!("unknown system {system}"),
    };
    Ok(QuorumSystem::from_reads(reads))
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().collect();
    let (system, size, task) = (&args[1], args[2].parse().unwrap(), args[3].as_str());
    let start = Instant::now();
    let qs = build(system, size)?;
    let value = if task == "resilience" {
        qs.resilience() as f64
    } else {
        let fr = Distribution::fixed(if task == "load1" { 1.0 } else { 0.0 })?;
        qs.strategy(Objective::Load, Some(&fr), None, &StrategyLimits::default(), 0)?
            .load(Some(&fr), None)?
    };
    println!("{value} {:.9}", start.elapsed().as_secs_f64());
    Ok(())
}
