//! The planner of levels: its figures against the tables, any coterie, and what it refuses.

use conclave_quorum::level_plan::{LevelPlan, LevelRequest, level_plan};
use conclave_quorum::measure::quiet;
use conclave_quorum::text::parse;

fn plan(nodes: usize, up: f64) -> LevelPlan {
    level_plan(&LevelRequest::new(nodes, up), &mut quiet).expect("a plan")
}

fn close(found: f64, expected: f64, decimals: i32) -> bool {
    (found - expected).abs() <= 0.5 * 10_f64.powi(-decimals) + 1e-9
}

#[test]
fn trees_give_the_figures_of_the_tables() {
    // Messages M, n = 1200, by number of levels.
    let tables: [(f64, [f64; 5], usize); 6] = [
        (1.0, [30.52, 34.62, 38.69, 42.00, 47.10], 0),
        (0.95, [36.88, 36.62, 39.56, 42.53, 47.20], 1),
        (0.90, [44.91, 38.72, 40.42, 42.93, 47.27], 1),
        (0.85, [54.91, 40.85, 41.22, 43.22, 47.32], 1),
        (0.80, [67.07, 42.88, 41.89, 43.43, 47.36], 2),
        (0.75, [81.08, 44.65, 42.43, 43.56, 47.39], 2),
    ];
    for (up, messages, best) in tables {
        let plan = plan(1200, up);
        for (choice, expected) in plan.choices.iter().zip(messages) {
            assert!(close(choice.messages, expected, 2), "f={up} {choice:?}");
            assert!(choice.exact);
        }
        assert_eq!(plan.recommended().levels, best, "f={up}");
    }
    let wide = plan(1200, 0.85);
    let live: Vec<f64> = wide
        .choices
        .iter()
        .map(|choice| choice.availability)
        .collect();
    let expected = [1.0, 0.9963, 0.9577, 0.8565, 0.7440];
    assert!(
        live.iter()
            .zip(expected)
            .skip(1)
            .all(|(a, b)| close(*a, b, 4))
    );
    let said = wide.choices[1].paper_availability.unwrap();
    assert!(close(said, 0.9988, 4));
    assert_eq!(wide.choices[1].system, "multilevel(tree, 1200, levels=1)");
    assert_eq!(wide.choices[1].clusters, [(1, 35, 35), (35, 34, 35)]);
}

#[test]
fn the_formula_compares_both_neighbours_and_shows_the_estimate_for_what_it_is() {
    let wide = plan(1200, 0.85);
    let formula = wide.formula.unwrap();
    assert!(close(formula.k, -0.37449, 5) && close(formula.real, 1.286, 3));
    assert_eq!(formula.levels, 1);
    let estimate = wide.estimate.unwrap();
    assert!(close(estimate.real, 6.455, 3));
    assert_eq!(estimate.levels, 6);
    assert!(estimate.cost_ratio > 1.27 && estimate.cost_ratio < 1.81);
    assert!(estimate.messages.unwrap() > wide.recommended().messages);
    // 1.451 rounds to 1, but two levels are cheaper.
    let seven = plan(700, 0.8).formula.unwrap();
    assert!(close(seven.real, 1.451, 3));
    assert_eq!(seven.levels, 2);
}

#[test]
fn every_coterie_can_be_planned_with() {
    for coterie in ["majority", "grid", "billiard", "triangular", "wheel"] {
        let mut request = LevelRequest::new(100, 0.9);
        request.coterie = parse(coterie).unwrap();
        let plan = level_plan(&request, &mut quiet).unwrap();
        assert!(plan.formula.is_none() && plan.estimate.is_none());
        let best = plan.recommended();
        assert!(
            plan.choices
                .iter()
                .all(|choice| choice.messages >= best.messages)
        );
        for choice in &plan.choices {
            assert!(choice.availability > 0.0 && choice.availability <= 1.0);
            assert!(choice.quorums >= 1.0, "{choice:?}");
        }
    }
    let mut request = LevelRequest::new(100, 0.9);
    request.coterie = parse("majority").unwrap();
    let plan = level_plan(&request, &mut quiet).unwrap();
    assert!(plan.choices.iter().all(|choice| choice.exact));
    // A majority of 100 is 51; of clusters of 10 it is 6.
    assert!(close(plan.choices[0].messages, 153.0, 6));
    assert!(close(plan.choices[1].messages, 3.0 * 12.0 + 4.0, 6));
    assert!(close(plan.choices[0].busiest, 0.51, 6));
    request.root = Some(parse("tree").unwrap());
    let plan = level_plan(&request, &mut quiet).unwrap();
    assert_eq!(
        plan.choices[1].system,
        "multilevel([tree,majority], 100, levels=1)"
    );
}

#[test]
fn what_cannot_be_is_told() {
    let said = |change: &dyn Fn(&mut LevelRequest)| {
        let mut request = LevelRequest::new(9, 0.9);
        change(&mut request);
        level_plan(&request, &mut quiet).unwrap_err().to_string()
    };
    assert!(said(&|request| request.up = 0.0).contains("above 0"));
    assert!(said(&|request| request.up = f64::NAN).contains("above 0"));
    assert!(said(&|request| request.levels_max = 21).contains("at most 20"));
    assert!(said(&|request| request.way = -1.0).contains("not negative"));
    assert!(said(&|request| request.nodes = 0).contains("no hierarchy serves 0 nodes"));
    let mut request = LevelRequest::new(21, 0.9);
    request.coterie = parse("plane").unwrap();
    let planes = level_plan(&request, &mut quiet).unwrap();
    assert!(!planes.refused.is_empty() && !planes.choices.is_empty());
    assert_eq!(plan(1, 0.5).choices.len(), 1);
}
