//! Billiard quorums over the number of sites: sizes, shares of work, availability.

use conclave_quorum::draw::{Axis, Chart, Panel, panels};
use conclave_quorum::measure::failure::{FailureOptions, curve};
use conclave_quorum::measure::load::load;
use conclave_quorum::measure::quiet;

use super::board;
use crate::cli::Failure;
use crate::figures::figure::{Figure, Judgement, Made, Paper, Verdict};
use crate::figures::pool::Setting;
use crate::figures::table::{Cell, Table};
use crate::output::number;
use crate::quorum::system;
use crate::sim::short;

/// One path per site, as in the paper.
const PAPER: &str = "billiard, one path per site";
/// All paths that cross the board from side to side.
const ANTIPODAL: &str = "billiard, antipodal paths";
/// With the fallback tiers of the service.
const TIERS: &str = "billiard, all tiers";
const GRID: &str = "grid";
const PLANE: &str = "projective plane";
const TRIANGULAR: &str = "triangular";
const MAJORITY: &str = "majority";

/// How often a node is down in the figure of availability.
const DOWN: f64 = 0.2;

pub(super) static FIGURES: [Figure; 5] = [
    Figure {
        id: "billiard-properties",
        paper: Paper::Billiard,
        place: "Proposition 1",
        title: "Properties of the quorums, and how work is shared",
        claim: "Any two quorums meet, each site has one of its own that contains it, no two are \
                alike, and all have the same size: the square root of 2N, rounded up. Sites near \
                the border are in fewer quorums than those near the middle.",
        columns: &[
            "side",
            "sites",
            "smallest",
            "largest",
            "different",
            "with_their_site",
            "disjoint_pairs",
            "most_shared",
            "least_shared",
        ],
        draw: draw_properties,
        judge: judge_properties,
    },
    Figure {
        id: "billiard-sizes",
        paper: Paper::Billiard,
        place: "Sections 1 and 6",
        title: "Size of a quorum over the number of sites",
        claim: "Quorums have the square root of 2N sites, where Maekawa's grid takes twice the \
                root of N and a projective plane, which is optimal, the root of N; they are as \
                large as those of the triangular system of Lovász.",
        columns: &["system", "sites", "size"],
        draw: draw_sizes,
        judge: judge_sizes,
    },
    Figure {
        id: "billiard-load",
        paper: Paper::Billiard,
        place: "Section 5",
        title: "Work of the busiest site",
        claim: "Billiard quorums do not share the work evenly.",
        columns: &["system", "sites", "load", "even_share"],
        draw: draw_load,
        judge: judge_load,
    },
    Figure {
        id: "billiard-availability",
        paper: Paper::Billiard,
        place: "Section 5, after Proposition 1",
        title: "Probability that no quorum is left, one site in five being down",
        claim: "As sites are added, the probability that a billiard quorum is alive tends to zero, \
                as with Maekawa's grid.",
        columns: &["system", "sites", "down", "fails", "low", "high"],
        draw: draw_availability,
        judge: judge_availability,
    },
    Figure {
        id: "billiard-hierarchy",
        paper: Paper::Billiard,
        place: "Section 5, after Proposition 1",
        title: "Boards of boards",
        claim: "Structuring boards in a hierarchy, as Kumar and Cheung do with grids, can offer \
                high availability for many sites and keeps the size of the quorums.",
        columns: &[
            "structure",
            "levels",
            "sites",
            "size",
            "fails_at_0.1",
            "fails_at_0.3",
        ],
        draw: draw_hierarchy,
        judge: judge_hierarchy,
    },
];

pub(super) fn make(setting: &Setting) -> Result<Vec<Made>, Failure> {
    let sides: Vec<usize> = (3..=setting.either(61, 21)).step_by(2).collect();
    let properties = setting.each(
        "boards",
        &sides,
        |side| (*side as u64).pow(4),
        |side| properties(*side),
    );
    let mut first = Table::new(FIGURES[0].columns);
    first.rows = properties;
    let (sizes, loads, fails) = measured(setting)?;
    let tables = [first, sizes, loads, fails, hierarchies(setting)?];
    let made = FIGURES.iter().zip(tables);
    Ok(made.map(|(figure, table)| Made { figure, table }).collect())
}

/// A row of what the quorums of a board are like.
fn properties(side: usize) -> Vec<Cell> {
    let board = board(side);
    let quorums: Vec<_> = (0..board.nodes())
        .filter_map(|site| board.own(site))
        .collect();
    let sizes = || quorums.iter().map(conclave_quorum::NodeSet::len);
    let mut different = quorums.clone();
    different.sort_unstable();
    different.dedup();
    let own = quorums.iter().enumerate();
    let own = own.filter(|(site, quorum)| quorum.contains(*site)).count();
    let mut disjoint = 0usize;
    for (place, one) in quorums.iter().enumerate() {
        disjoint += quorums[..place]
            .iter()
            .filter(|other| !one.intersects(other))
            .count();
    }
    let uses = |site: usize| {
        quorums
            .iter()
            .filter(|quorum| quorum.contains(site))
            .count()
    };
    let uses: Vec<usize> = (0..board.nodes()).map(uses).collect();
    let share =
        |uses: Option<&usize>| uses.map_or(f64::NAN, |uses| *uses as f64 / quorums.len() as f64);
    vec![
        side.into(),
        quorums.len().into(),
        sizes().min().unwrap_or(0).into(),
        sizes().max().unwrap_or(0).into(),
        different.len().into(),
        own.into(),
        disjoint.into(),
        share(uses.iter().max()).into(),
        share(uses.iter().min()).into(),
    ]
}

fn draw_properties(table: &Table) -> String {
    let line = |name: &str, column: &str| conclave_quorum::draw::Trace {
        name: name.to_owned(),
        points: table
            .rows
            .iter()
            .filter_map(|row| {
                let place = table.columns.iter().position(|one| *one == column)?;
                match (&row[1], &row[place]) {
                    (Cell::Number(x), Cell::Number(y)) => Some((*x, *y)),
                    _ => None,
                }
            })
            .collect(),
    };
    let panel = Panel {
        title: "Share of all quorums that contain a site".to_owned(),
        across: "sites".to_owned(),
        up: "share".to_owned(),
        chart: Chart::Curves {
            traces: vec![
                line("the site in most quorums", "most_shared"),
                line("the site in fewest", "least_shared"),
            ],
            x: Axis::Log,
            y: Axis::Log,
        },
    };
    let lines = ["One quorum per site, all used equally often.".to_owned()];
    panels("Billiard quorums share the work unevenly", &lines, &[panel])
}

fn judge_properties(table: &Table) -> Judgement {
    let number = |row: &Vec<Cell>, place: usize| match row.get(place) {
        Some(Cell::Number(value)) => *value,
        _ => f64::NAN,
    };
    let every =
        |held: &dyn Fn(&Vec<Cell>) -> bool| !table.rows.is_empty() && table.rows.iter().all(held);
    let root = |row: &Vec<Cell>| (2.0 * number(row, 1)).sqrt().ceil();
    let parts = [
        every(&|row| number(row, 6) == 0.0),
        every(&|row| number(row, 4) == number(row, 1)),
        every(&|row| number(row, 5) == number(row, 1)),
        every(&|row| number(row, 2) == root(row) && number(row, 3) == root(row)),
        // On the smallest board all sites are alike.
        every(&|row| number(row, 0) <= 3.0 || number(row, 7) > number(row, 8)),
    ];
    let last = table.rows.last().cloned().unwrap_or_default();
    let found = format!(
        "{} boards up to side {}: {} disjoint pairs; all quorums different, with their site and of \
         size q. With {} sites the busiest is in {} % of the quorums, the least busy in {} %.",
        table.rows.len(),
        short(number(&last, 0)),
        table.rows.iter().map(|row| number(row, 6)).sum::<f64>(),
        short(number(&last, 1)),
        short(100.0 * number(&last, 7)),
        short(100.0 * number(&last, 8)),
    );
    Judgement::new(Verdict::of(&parts), found, "")
}

/// One system at one size.
struct Point {
    name: &'static str,
    text: String,
    sites: usize,
    measure: bool,
}

/// The systems of the curves at sizes they exist for.
fn points(setting: &Setting) -> Vec<Point> {
    let largest = setting.either(31, 13);
    let mut points = Vec::new();
    for side in (5..=largest).step_by(2) {
        let sites = (side * side - 1) / 2;
        let mut push = |name, text: String| {
            points.push(Point {
                name,
                text,
                sites,
                measure: true,
            });
        };
        push(PAPER, format!("billiard({sites}, tiers=T0)"));
        push(ANTIPODAL, format!("billiard({sites}, tiers=T1)"));
        push(TIERS, format!("billiard({sites})"));
        push(GRID, format!("grid({sites})"));
        push(TRIANGULAR, format!("triangular({sites})"));
        push(MAJORITY, format!("majority({sites})"));
    }
    for order in [3usize, 4, 5, 7, 8, 9, 11, 13, 16, 17, 19] {
        let sites = order * order + order + 1;
        if sites <= (largest * largest - 1) / 2 {
            points.push(Point {
                name: PLANE,
                text: format!("plane({sites})"),
                sites,
                // A plane's quorums must be listed and simulated, which takes long for large ones.
                measure: sites <= setting.either(200, 60),
            });
        }
    }
    points
}

/// What is measured of a system: its size, its load, and how often it fails.
type Measures = (usize, f64, (f64, f64, f64));

fn measure(point: &Point, samples: u64) -> Result<Measures, Failure> {
    let built = system(&point.text, None)?;
    let family = built
        .system
        .family(None)
        .ok_or_else(|| Failure::input("no quorums"))?;
    let size = family.sizes().min;
    if !point.measure {
        return Ok((size, f64::NAN, (f64::NAN, f64::NAN, f64::NAN)));
    }
    let options = FailureOptions {
        samples,
        diagram_nodes: 200_000,
        ..FailureOptions::default()
    };
    let found = curve(family.as_ref(), &[DOWN], &options, &mut quiet).map_err(Failure::input)?;
    let fails = found
        .first()
        .map_or((f64::NAN, f64::NAN, f64::NAN), |found| {
            (found.value, found.low, found.high)
        });
    let busiest = if point.name == PAPER {
        // Every site uses its own quorum, and all ask alike.
        let uses = (0..point.sites).map(|site| {
            let own = (0..point.sites).filter_map(|other| family.own(other));
            own.filter(|quorum| quorum.contains(site)).count()
        });
        uses.max().unwrap_or(0) as f64 / point.sites as f64
    } else {
        load(family.as_ref(), None, &mut quiet).upper
    };
    Ok((size, busiest, fails))
}

fn measured(setting: &Setting) -> Result<(Table, Table, Table), Failure> {
    let points = points(setting);
    let samples = setting.either(40_000, 2_000);
    let found = setting.each(
        "quorum systems",
        &points,
        |point| (point.sites as u64).pow(2),
        |point| measure(point, samples),
    );
    let mut sizes = Table::new(FIGURES[1].columns);
    let mut loads = Table::new(FIGURES[2].columns);
    let mut fails = Table::new(FIGURES[3].columns);
    for (point, found) in points.iter().zip(found) {
        let (size, busiest, (value, low, high)) = found?;
        let sites = point.sites;
        if point.name != TIERS && point.name != ANTIPODAL {
            sizes.push([point.name.into(), sites.into(), size.into()]);
        }
        if !point.measure {
            continue;
        }
        if point.name != TIERS {
            let even = size as f64 / sites as f64;
            loads.push([point.name.into(), sites.into(), busiest.into(), even.into()]);
        }
        fails.push([
            point.name.into(),
            sites.into(),
            DOWN.into(),
            value.into(),
            low.into(),
            high.into(),
        ]);
    }
    Ok((sizes, loads, fails))
}

fn lines(table: &Table, title: &str, column: &str, up: &str) -> String {
    let panel = Panel {
        title: String::new(),
        across: "sites".to_owned(),
        up: up.to_owned(),
        chart: Chart::Curves {
            traces: table.traces(("system", ""), "sites", column),
            x: Axis::Log,
            y: Axis::Log,
        },
    };
    panels(title, &[], &[panel])
}

fn draw_sizes(table: &Table) -> String {
    lines(
        table,
        "Sites in the smallest quorum",
        "size",
        "sites of a quorum",
    )
}

fn draw_load(table: &Table) -> String {
    lines(
        table,
        "Share of entries that use the busiest site",
        "load",
        "share",
    )
}

fn draw_availability(table: &Table) -> String {
    let title = format!("How likely it is that no quorum is left, each site down with {DOWN}");
    lines(table, &title, "fails", "probability")
}

/// The value of a system at its largest size up to a number of sites, with that size.
fn largest(table: &Table, system: &str, column: &str) -> (f64, f64) {
    let points = table.points(("system", &system.into()), "sites", column);
    points.last().copied().unwrap_or((f64::NAN, f64::NAN))
}

fn judge_sizes(table: &Table) -> Judgement {
    let of = |system: &str| table.points(("system", &system.into()), "sites", "size");
    let billiard = of(PAPER);
    let all = |points: &[(f64, f64)], held: &dyn Fn(f64, f64) -> bool| {
        !points.is_empty() && points.iter().all(|(sites, size)| held(*sites, *size))
    };
    let parts = [
        all(&billiard, &|sites, size| {
            size == (2.0 * sites).sqrt().ceil()
        }),
        all(&of(GRID), &|sites, size| {
            (size - (2.0 * sites.sqrt() - 1.0)).abs() <= 1.0
        }),
        all(&of(PLANE), &|sites, size| {
            (size - sites.sqrt()).abs() <= 1.0
        }),
        all(&of(TRIANGULAR), &|sites, size| {
            (size - (2.0 * sites).sqrt()).abs() <= 1.5
        }),
    ];
    let told = [PAPER, GRID, PLANE, TRIANGULAR, MAJORITY].map(|system| {
        let (sites, size) = largest(table, system, "size");
        format!("{system} {} of {}", short(size), short(sites))
    });
    let found = format!("Smallest quorums: {}.", told.join(", "));
    Judgement::new(Verdict::of(&parts), found, "")
}

fn judge_load(table: &Table) -> Judgement {
    let (sites, paper) = largest(table, PAPER, "load");
    let (_, even) = largest(table, PAPER, "even_share");
    let (_, antipodal) = largest(table, ANTIPODAL, "load");
    let (_, grid) = largest(table, GRID, "load");
    let (_, majority) = largest(table, MAJORITY, "load");
    let found = format!(
        "With {} sites and one path per site the busiest does {} of the work, where an even share \
         is {}. Used at best, the antipodal paths of the same board need {}, a grid {}, a majority \
         {}.",
        short(sites),
        number(round(paper)),
        number(round(even)),
        number(round(antipodal)),
        number(round(grid)),
        number(round(majority)),
    );
    let why = "The board has many more paths of the same length than one per site, and all of them \
               meet: choosing among them evens the work out. The service does so.";
    Judgement::new(Verdict::of(&[paper > 1.05 * even]), found, why)
}

fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn judge_availability(table: &Table) -> Judgement {
    let of = |system: &str| table.points(("system", &system.into()), "sites", "fails");
    let rises = |system: &str| {
        let points = of(system);
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return false;
        };
        last.1 > first.1
    };
    let parts = [rises(PAPER), rises(GRID), rises(ANTIPODAL)];
    let told = [PAPER, GRID, ANTIPODAL, TIERS, MAJORITY].map(|system| {
        let points = of(system);
        let at = |point: Option<&(f64, f64)>| {
            point.map_or("-".to_owned(), |(_, fails)| number(round(*fails)))
        };
        format!("{system} {} and {}", at(points.first()), at(points.last()))
    });
    let sites = table.numbers("sites");
    let found = format!(
        "No quorum left, with {} and with {} sites: {}.",
        sites.first().copied().unwrap_or(f64::NAN),
        sites.last().copied().unwrap_or(f64::NAN),
        told.join(", ")
    );
    let why = if parts == [true, true, false] {
        "True of the paper's family, one path per site, and of the grid. It is no property of the \
         board: it has 2^(q-1) paths of the same q sites which all meet, and with them a quorum \
         becomes more likely as sites are added. The paper itself says why: the number of \
         quorums must be exponential in their size."
    } else {
        ""
    };
    Judgement::new(Verdict::of(&parts), found, why)
}

/// Flat boards beside boards of boards of about as many sites.
fn hierarchies(setting: &Setting) -> Result<Table, Failure> {
    let systems: Vec<(&str, usize, &str)> = vec![
        ("flat", 1, "billiard(12, tiers=T1)"),
        ("flat", 2, "billiard(144, tiers=T1)"),
        ("flat", 3, "billiard(1740, tiers=T1)"),
        ("boards in boards", 1, "hbilliard(5)"),
        ("boards in boards", 2, "hbilliard(5,5)"),
        ("boards in boards", 3, "hbilliard(5,5,5)"),
    ];
    let samples = setting.either(40_000, 1_000);
    let options = FailureOptions {
        samples,
        diagram_nodes: 50_000,
        ..FailureOptions::default()
    };
    let found = setting.each(
        "boards of boards",
        &systems,
        |(_, levels, _)| 10u64.pow(*levels as u32),
        |(_, _, text)| {
            let built = system(text, None)?;
            let family = built
                .system
                .family(None)
                .ok_or_else(|| Failure::input("no quorums"))?;
            let fails = curve(family.as_ref(), &[0.1, 0.3], &options, &mut quiet);
            let fails = fails.map_err(Failure::input)?;
            Ok::<_, Failure>((
                family.nodes(),
                family.sizes().min,
                fails[0].value,
                fails[1].value,
            ))
        },
    );
    let mut table = Table::new(FIGURES[4].columns);
    for ((structure, levels, _), found) in systems.iter().zip(found) {
        let (nodes, size, good, bad) = found?;
        table.push([
            (*structure).into(),
            (*levels).into(),
            nodes.into(),
            size.into(),
            good.into(),
            bad.into(),
        ]);
    }
    Ok(table)
}

fn draw_hierarchy(table: &Table) -> String {
    let panel = |title: &str, column: &str, up: &str| Panel {
        title: title.to_owned(),
        across: "sites".to_owned(),
        up: up.to_owned(),
        chart: Chart::Curves {
            traces: table.traces(("structure", ""), "sites", column),
            x: Axis::Log,
            y: Axis::Log,
        },
    };
    let shown = [
        panel("Sites of the smallest quorum", "size", "sites"),
        panel(
            "No quorum left, one site in ten down",
            "fails_at_0.1",
            "probability",
        ),
        panel(
            "No quorum left, three sites in ten down",
            "fails_at_0.3",
            "probability",
        ),
    ];
    panels("Boards of boards", &[], &shown)
}

fn judge_hierarchy(table: &Table) -> Judgement {
    let value = |structure: &str, levels: usize, column: &str| {
        let keys = [("structure", structure.into()), ("levels", levels.into())];
        table.at(&keys, column).unwrap_or(f64::NAN)
    };
    let deep = "boards in boards";
    let at = |column: &str, levels| value(deep, levels, column);
    let parts = [
        at("fails_at_0.1", 3) < at("fails_at_0.1", 1),
        at("size", 3) <= 1.1 * value("flat", 3, "size"),
    ];
    let found = format!(
        "Size of a quorum of {} sites: flat {}, three levels {}. No quorum left with one, two and \
         three levels: {}, {} and {} if one site in ten is down; {}, {} and {} if three are.",
        short(at("sites", 3)),
        short(value("flat", 3, "size")),
        short(at("size", 3)),
        number(round(at("fails_at_0.1", 1))),
        number(round(at("fails_at_0.1", 2))),
        number(at("fails_at_0.1", 3)),
        number(round(at("fails_at_0.3", 1))),
        number(round(at("fails_at_0.3", 2))),
        number(round(at("fails_at_0.3", 3))),
    );
    let why = if parts[1] {
        ""
    } else {
        "Availability does rise with the levels as long as sites are good (above the fixed point, \
         about 0.75 up; below it depth hurts). The size is not kept: each level costs another \
         factor of the root of 2, for quorums multiply: q1 q2 sites of q1² q2² / 4."
    };
    Judgement::new(Verdict::of(&parts), found, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_have_the_claimed_properties_and_others_would_not() {
        let mut table = Table::new(FIGURES[0].columns);
        table.rows = vec![properties(3), properties(5), properties(9)];
        assert_eq!(judge_properties(&table).verdict, Verdict::Held);
        // A disjoint pair, and a quorum that is too large.
        table.rows[1][6] = 1u32.into();
        table.rows[1][3] = 7u32.into();
        assert_eq!(judge_properties(&table).verdict, Verdict::InPart);
    }

    #[test]
    fn sizes_that_are_too_large_are_told() {
        let table = |factor: f64| {
            let mut table = Table::new(FIGURES[1].columns);
            for (system, size) in [(PAPER, 9.0), (GRID, 12.0), (PLANE, 6.0), (TRIANGULAR, 9.0)] {
                table.push([system.into(), 40u32.into(), (size * factor).into()]);
            }
            table
        };
        assert_eq!(judge_sizes(&table(1.0)).verdict, Verdict::Held);
        assert_eq!(judge_sizes(&table(2.0)).verdict, Verdict::NotHeld);
    }

    #[test]
    fn availability_that_falls_for_some_holds_in_part() {
        let table = |antipodal: f64| {
            let mut table = Table::new(FIGURES[3].columns);
            for (system, last) in [(PAPER, 0.9), (GRID, 0.8), (ANTIPODAL, antipodal)] {
                for (sites, fails) in [(12u32, 0.2), (480, last)] {
                    let fails = || Cell::from(fails);
                    table.push([
                        system.into(),
                        sites.into(),
                        DOWN.into(),
                        fails(),
                        fails(),
                        fails(),
                    ]);
                }
            }
            table
        };
        assert_eq!(judge_availability(&table(0.9)).verdict, Verdict::Held);
        let part = judge_availability(&table(0.001));
        assert_eq!(part.verdict, Verdict::InPart);
        assert!(!part.why.is_empty());
    }
}
