//! Reference figures, each found by a separate program, beside computed ones: availability of
//! billiard tiers, sizes for lying nodes.
//!
//! The figures of multilevel hierarchies are in [`crate::measure::hierarchy`].

use crate::Family;
use crate::construct::billiard::{Billiard, Board, Tier, Tiers};
use crate::construct::formula::Formula;
use crate::construct::mgrid::{Rule, threshold_size};
use crate::measure::failure::{FailureOptions, Faults, failure};
use crate::measure::hierarchy::{Cell, Table, TableRow};
use crate::measure::{Progress, quiet};

/// Side, failure probability, and availability of T0, T1, T1-T2, T1-T3, all tiers, and majority;
/// each figure from 20,000 random states.
const BILLIARD: [(usize, f64, [f64; 6]); 5] = [
    (5, 0.10, [0.965, 0.968, 0.968, 0.993, 0.999, 1.000]),
    (9, 0.20, [0.850, 0.942, 0.961, 0.991, 1.000, 1.000]),
    (21, 0.20, [0.549, 0.994, 1.000, 1.000, 1.000, 1.000]),
    (31, 0.20, [0.212, 0.999, 1.000, 1.000, 1.000, 1.000]),
    (31, 0.30, [0.006, 0.772, 0.986, 0.998, 1.000, 1.000]),
];
const BILLIARD_STATES: f64 = 20_000.0;

/// Availability of the billiard tiers beside a majority of the same nodes.
pub fn billiard(samples: u64, progress: &mut dyn FnMut(Progress)) -> Table {
    use Tier::{T0, T1, T2, T3, T3Prime, T4};
    let tiers: [&[Tier]; 5] = [
        &[T0],
        &[T1],
        &[T1, T2],
        &[T1, T2, T3],
        &[T1, T2, T3, T3Prime, T4],
    ];
    let mut done = 0;
    let mut cells_of = |side: usize, down: f64, expected: [f64; 6]| -> Vec<Cell> {
        let board = Board::with_side(side).expect("invariant: the sides of the table are odd");
        let nodes = board.nodes();
        let mut families: Vec<Box<dyn Family>> = Vec::new();
        for tiers in tiers {
            let tiers = Tiers::of(tiers.iter().copied()).expect("invariant: tiers are named");
            families.push(Box::new(Billiard::new(board.clone(), tiers)));
        }
        let majority = Formula::majority(nodes).expect("invariant: the boards are small");
        families.push(Box::new(majority));
        let each = families.iter().zip(expected);
        each.map(|(family, expected)| {
            progress(Progress {
                stage: "availability of tiers",
                done,
                total: 30,
            });
            done += 1;
            availability(family.as_ref(), down, expected, samples)
        })
        .collect()
    };
    let rows = BILLIARD.iter().map(|(side, down, expected)| TableRow {
        label: format!("q={side} n={} p={down}", (side * side - 1) / 2),
        cells: cells_of(*side, *down, *expected),
    });
    Table {
        title: "Availability of billiard tiers",
        rows: rows.collect(),
        columns: ["T0", "T1", "T1-T2", "T1-T3", "all", "majority"]
            .map(str::to_owned)
            .to_vec(),
    }
}

fn availability(family: &dyn Family, down: f64, expected: f64, samples: u64) -> Cell {
    let options = FailureOptions {
        samples,
        diagram_nodes: 200_000,
        ..FailureOptions::default()
    };
    let faults =
        Faults::uniform(family.nodes(), down).expect("invariant: probabilities of a table");
    let found = failure(family, &faults, &options, &mut quiet)
        .expect("invariant: the faults are made for the family");
    // Both figures are simulated: four standard deviations of their difference.
    let live = 1.0 - found.value;
    let spread = (live * (1.0 - live)).max(1e-4);
    let own = if found.exact {
        0.0
    } else {
        1.0 / samples as f64
    };
    Cell {
        computed: live,
        expected,
        decimals: 3,
        tolerance: 4.0 * (spread * (own + 1.0 / BILLIARD_STATES)).sqrt(),
    }
}

/// Nodes, liars, and the sizes of quorums for leases, backoff mutual exclusion, ordering,
/// ordering with time-outs, and one system for both; 0 where there is none.
const BYZANTINE: [(usize, usize, [usize; 5]); 16] = [
    (4, 1, [3, 0, 0, 0, 0]),
    (5, 1, [4, 0, 0, 4, 0]),
    (6, 1, [4, 5, 0, 5, 0]),
    (7, 1, [5, 6, 5, 5, 0]),
    (8, 1, [5, 6, 6, 6, 6]),
    (9, 1, [6, 7, 6, 6, 7]),
    (10, 1, [6, 7, 7, 7, 7]),
    (7, 2, [5, 0, 0, 0, 0]),
    (9, 2, [6, 0, 0, 7, 0]),
    (11, 2, [7, 9, 0, 8, 0]),
    (12, 2, [8, 10, 0, 9, 0]),
    (13, 2, [8, 10, 9, 9, 0]),
    (15, 2, [9, 11, 10, 10, 11]),
    (16, 3, [10, 13, 0, 12, 0]),
    (19, 3, [12, 15, 13, 13, 0]),
    (22, 3, [13, 16, 15, 15, 16]),
];

/// Threshold quorum sizes where nodes may lie.
pub fn byzantine() -> Table {
    let rows = BYZANTINE.iter().map(|(nodes, faults, expected)| {
        let (n, b) = (*nodes, *faults);
        let mutex = threshold_size(n, b, Rule::Mutex);
        let sizes = [
            threshold_size(n, b, Rule::Free),
            mutex,
            threshold_size(n, b, Rule::Ordering),
            // With time-outs a client need not wait for b+1 refusals: b nodes to spare suffice.
            threshold_size(n, b, Rule::Masking),
            mutex.filter(|size| size + 2 * b <= n),
        ];
        let cells = sizes.iter().zip(expected).map(|(size, expected)| Cell {
            computed: size.unwrap_or(0) as f64,
            expected: *expected as f64,
            decimals: 0,
            tolerance: 0.0,
        });
        TableRow {
            label: format!("n={n} b={b}"),
            cells: cells.collect(),
        }
    });
    let columns = [
        "lease",
        "mutex",
        "ordering",
        "ordering with time-outs",
        "shared",
    ];
    Table {
        title: "Quorum sizes for b lying nodes, 0 where impossible",
        rows: rows.collect(),
        columns: columns.map(str::to_owned).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_figure_is_met() {
        assert_eq!(byzantine().deviations(), []);
        assert_eq!(billiard(2_000, &mut quiet).deviations(), []);
    }

    #[test]
    fn a_wrong_figure_would_be_told() {
        let mut table = byzantine();
        table.rows[3].cells[1].expected += 1.0;
        assert_eq!(table.deviations().len(), 1);
        let family = Formula::majority(5).unwrap();
        assert!(!availability(&family, 0.3, 0.9, 1000).agrees());
    }
}
