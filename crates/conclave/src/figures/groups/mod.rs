//! Group mutual exclusion: the surficial system as the paper draws it, and what the paper states
//! in words about concurrency, messages and delay.

use conclave_quorum::draw::{Axis, Chart, DrawOptions, Panel, panels};
use conclave_quorum::family::list;
use conclave_quorum::measure::quiet;
use conclave_quorum::measure::resilience::resilience;
use conclave_quorum::{NodeSet, System};

use super::billiard::picture;
use super::figure::{Figure, Judgement, Made, Paper, Verdict};
use super::pool::Setting;
use super::table::{Cell, Table};
use crate::cli::Failure;
use crate::quorum::system;
use crate::sim::short;

mod runs;

/// More quorums of a cartel than this are not listed.
const LISTED_MAX: usize = 1000;

pub(super) static FIGURES: [Figure; 2] = [
    Figure {
        id: "groups-surficial",
        paper: Paper::Groups,
        place: "Figures 1 and 2",
        title: "The surficial system for 3 and 4 groups",
        claim: "Each group has a cartel of k disjoint quorums, lines across a staircase of \
                squares. All cartels and quorums are equally large, a quorum meets one of another \
                group in exactly one node, and every node is in two quorums.",
        columns: &["groups", "group", "quorum"],
        draw: |_| {
            let options = DrawOptions {
                group: Some(1),
                site: Some(0),
                ..DrawOptions::default()
            };
            picture("surficial(groups=4, n=24)", &options)
        },
        judge: judge_surficial,
    },
    Figure {
        id: "groups-degree",
        paper: Paper::Groups,
        place: "Theorem 3.1, Lemma 3.2, Section 5",
        title: "Disjoint quorums of a group, and what they cost",
        claim: "A surficial system of n nodes and m groups has degree k = √(2n/(m(m-1))): with one \
                lock per node, so many of a group can be inside. Its quorums have (m-1)k nodes, \
                and k-1 failures are survived. No system has a degree above √n, which affine \
                planes reach.",
        columns: &["system", "groups", "nodes", "degree", "quorum", "survives"],
        draw: draw_degree,
        judge: judge_degree,
    },
];

/// All figures of the paper.
#[cfg(test)]
pub(super) fn figures() -> Vec<&'static Figure> {
    FIGURES.iter().chain(&runs::FIGURES).collect()
}

pub(super) fn make(setting: &Setting) -> Result<Vec<Made>, Failure> {
    let tables = [surficial()?, degrees(setting)?];
    let made = FIGURES.iter().zip(tables);
    let mut made: Vec<Made> = made.map(|(figure, table)| Made { figure, table }).collect();
    made.extend(runs::make(setting)?);
    Ok(made)
}

/// The quorums of each cartel.
fn cartels(text: &str) -> Result<Vec<Vec<NodeSet>>, Failure> {
    let built = system(text, None)?;
    let System::Groups(groups) = &built.system else {
        return Ok(Vec::new());
    };
    let quorums = |family: &std::sync::Arc<dyn conclave_quorum::Family>| {
        list(family.as_ref(), LISTED_MAX).unwrap_or_default()
    };
    Ok(groups.cartels().iter().map(quorums).collect())
}

fn surficial() -> Result<Table, Failure> {
    let mut table = Table::new(FIGURES[0].columns);
    for (groups, text) in [
        (3usize, "surficial(groups=3, n=12)"),
        (4, "surficial(groups=4, n=24)"),
    ] {
        for (group, quorums) in cartels(text)?.iter().enumerate() {
            for quorum in quorums {
                let nodes: Vec<String> = quorum.numbers().map(|node| node.to_string()).collect();
                table.push([groups.into(), (group + 1).into(), nodes.join(" ").into()]);
            }
        }
    }
    Ok(table)
}

/// The quorums of a table with their groups, of the system with so many groups.
fn listed(table: &Table, groups: f64) -> Vec<(f64, Vec<usize>)> {
    let mut found = Vec::new();
    for row in &table.rows {
        if let [Cell::Number(many), Cell::Number(group), Cell::Text(quorum)] = &row[..]
            && *many == groups
        {
            let nodes = quorum.split(' ').filter_map(|node| node.parse().ok());
            found.push((*group, nodes.collect()));
        }
    }
    found
}

fn judge_surficial(table: &Table) -> Judgement {
    let (mut even, mut crossing, mut disjoint, mut twice) = (true, true, true, true);
    let mut told = Vec::new();
    for groups in table.numbers("groups") {
        let quorums = listed(table, groups);
        let size = quorums.first().map_or(0, |(_, quorum)| quorum.len());
        let k = quorums.len() as f64 / groups;
        even &= quorums.iter().all(|(_, quorum)| quorum.len() == size);
        even &= size as f64 == (groups - 1.0) * k;
        for (place, (group, one)) in quorums.iter().enumerate() {
            for (other_group, other) in &quorums[..place] {
                let common = one.iter().filter(|node| other.contains(node)).count();
                if group == other_group {
                    disjoint &= common == 0;
                } else {
                    crossing &= common == 1;
                }
            }
        }
        let all: Vec<usize> = quorums
            .iter()
            .flat_map(|(_, quorum)| quorum.clone())
            .collect();
        twice &= all
            .iter()
            .all(|node| all.iter().filter(|other| *other == node).count() == 2);
        told.push(format!(
            "{groups} groups: {} quorums of {size} nodes, {} of each group",
            quorums.len(),
            short(k)
        ));
    }
    let parts = [even && !table.rows.is_empty(), crossing, disjoint, twice];
    let why = "Built with the subscript of Figure 4 put right; as printed, all quorums of a group \
               are the same set (see the errata).";
    Judgement::new(Verdict::of(&parts), format!("{}.", told.join("; ")), why)
}

/// How many quorums can be chosen one after the other without a common node.
fn disjoint(quorums: &[NodeSet]) -> usize {
    let mut chosen: Vec<&NodeSet> = Vec::new();
    for quorum in quorums {
        if chosen.iter().all(|other| !other.intersects(quorum)) {
            chosen.push(quorum);
        }
    }
    chosen.len()
}

fn degrees(setting: &Setting) -> Result<Table, Failure> {
    let mut table = Table::new(FIGURES[1].columns);
    let most = setting.either(8, 5);
    let mut systems: Vec<(&str, usize, usize, String)> = Vec::new();
    for groups in [2usize, 3, 4] {
        for k in 2..=most {
            let nodes = k * k * groups * (groups - 1) / 2;
            let name = [
                "",
                "",
                "surficial, 2 groups",
                "surficial, 3 groups",
                "surficial, 4 groups",
            ];
            let text = format!("surficial(groups={groups}, n={nodes})");
            systems.push((name[groups], groups, nodes, text));
        }
    }
    for order in [3usize, 4, 5, 7] {
        let nodes = order * order;
        systems.push((
            "affine plane, 3 groups",
            3,
            nodes,
            format!("affine({nodes}, groups=3)"),
        ));
    }
    for (name, groups, nodes, text) in systems {
        let built = system(&text, None)?;
        let families = built.system.families();
        let families = &families[..groups.min(families.len())];
        let survives = families
            .iter()
            .map(|family| resilience(family.as_ref(), &mut quiet).value);
        let cartels = cartels(&text)?;
        let degree = cartels.iter().map(|quorums| disjoint(quorums)).min();
        let size = cartels.iter().flatten().map(NodeSet::len).max();
        table.push([
            name.into(),
            groups.into(),
            nodes.into(),
            degree.unwrap_or(0).into(),
            size.unwrap_or(0).into(),
            survives.min().unwrap_or(0).into(),
        ]);
    }
    Ok(table)
}

fn draw_degree(table: &Table) -> String {
    let panel = |title: &str, column: &str, up: &str| Panel {
        title: title.to_owned(),
        across: "nodes".to_owned(),
        up: up.to_owned(),
        chart: Chart::Curves {
            traces: table.traces(("system", ""), "nodes", column),
            x: Axis::FromZero,
            y: Axis::FromZero,
        },
    };
    let shown = [
        panel("Degree: disjoint quorums of a group", "degree", "quorums"),
        panel("Size of a quorum", "quorum", "nodes"),
        panel(
            "Failures that leave every group a quorum",
            "survives",
            "failures",
        ),
    ];
    panels("Group quorum systems", &[], &shown)
}

fn judge_degree(table: &Table) -> Judgement {
    let (mut degree_held, mut size_held, mut survives_held, mut bound) = (true, true, true, true);
    for row in &table.rows {
        let [
            Cell::Text(name),
            Cell::Number(groups),
            Cell::Number(nodes),
            Cell::Number(degree),
            Cell::Number(size),
            Cell::Number(survives),
        ] = &row[..]
        else {
            continue;
        };
        bound &= *degree <= nodes.sqrt();
        if name.starts_with("surficial") {
            let k = (2.0 * nodes / (groups * (groups - 1.0))).sqrt();
            degree_held &= (degree - k).abs() < 1e-9;
            size_held &= (size - (groups - 1.0) * k).abs() < 1e-9;
            survives_held &= (survives - (k - 1.0)).abs() < 1e-9;
        } else {
            degree_held &= (degree - nodes.sqrt()).abs() < 1e-9;
        }
    }
    let parts = [degree_held, size_held, survives_held, bound];
    let last = |name: &str| {
        let at = |column: &str| {
            let points = table.points(("system", &name.into()), "nodes", column);
            points.last().copied().unwrap_or((f64::NAN, f64::NAN))
        };
        format!(
            "{name}, {} nodes: degree {}, quorums of {}, {} failures",
            short(at("degree").0),
            short(at("degree").1),
            short(at("quorum").1),
            short(at("survives").1)
        )
    };
    let found = format!(
        "{} systems. {}; {}.",
        table.rows.len(),
        last("surficial, 3 groups"),
        last("affine plane, 3 groups")
    );
    Judgement::new(Verdict::of(&parts), found, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_surficial_system_is_as_claimed_and_a_damaged_one_is_not() {
        let mut table = surficial().unwrap();
        assert_eq!(judge_surficial(&table).verdict, Verdict::Held);
        // The printed formula gives every quorum of a group the same nodes.
        let first = table.rows[0][2].clone();
        table.rows[1][2] = first;
        assert_eq!(judge_surficial(&table).verdict, Verdict::InPart);
    }

    #[test]
    fn degrees_are_held_against_the_formulas() {
        let mut table = degrees(&Setting::quiet()).unwrap();
        assert_eq!(judge_degree(&table).verdict, Verdict::Held);
        table.rows[0][3] = 9u32.into();
        assert_eq!(judge_degree(&table).verdict, Verdict::InPart);
    }
}
