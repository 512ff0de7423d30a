//! Runs of the group locks: how many are inside, what an entry costs, how long it takes.

use conclave_protocol::baseline::ricart;
use conclave_protocol::lock::Protocol;
use conclave_quorum::draw::{Axis, Chart, Panel, panels};
use conclave_sim::baseline::{self, Kind};
use conclave_sim::invariants;
use conclave_sim::measure::Measures;

use crate::cli::Failure;
use crate::figures::figure::{Figure, Judgement, Made, Paper, Verdict};
use crate::figures::pool::Setting;
use crate::figures::table::{Cell, Table};
use crate::quorum::system;
use crate::sim::{guarded, run::load, short};

/// The names of what is compared.
const M: &str = "Maekawa_M";
const S: &str = "Maekawa_S";
const ONE: &str = "Maekawa, groups ignored";
const RA1: &str = "RA1";
const RA2: &str = "RA2";

/// The groups that contend.
const GROUPS: u32 = 3;

pub(super) static FIGURES: [Figure; 3] = [
    Figure {
        id: "groups-concurrency",
        paper: Paper::Groups,
        place: "Sections 4.2, 4.3 and 5",
        title: "How many members of a group are inside at once",
        claim: "Maekawa_M and Maekawa_S let all members of a group in at once, whatever the degree \
                of the quorum system, as RA1 and RA2 do; an ordinary lock lets in one.",
        columns: &[
            "protocol",
            "system",
            "nodes",
            "clients",
            "most_inside_one_group",
            "mean_inside_three_groups",
        ],
        draw: draw_concurrency,
        judge: judge_concurrency,
    },
    Figure {
        id: "groups-messages",
        paper: Paper::Groups,
        place: "Theorems 4.5 and 4.10, Sections 4.4 and 5",
        title: "Messages per entry",
        claim: "With quorums of c nodes Maekawa_M takes from 3c messages up to 3c + 3c·max, \
                Maekawa_S takes 2c + 1; RA1 takes 2n and RA2 up to 3n. With group quorum systems \
                Maekawa_M takes fewer than with ordinary ones.",
        columns: &[
            "protocol",
            "system",
            "nodes",
            "quorum",
            "messages_alone",
            "messages_three_groups",
        ],
        draw: draw_messages,
        judge: judge_messages,
    },
    Figure {
        id: "groups-delay",
        paper: Paper::Groups,
        place: "Theorems 4.6 and 4.10, Section 5",
        title: "Delay of an entry without rivals",
        claim: "Maekawa_M, RA1 and RA2 enter after two message delays; Maekawa_S, which goes from \
                node to node, after c + 1.",
        columns: &[
            "protocol",
            "system",
            "nodes",
            "quorum",
            "delay_alone",
            "handover",
        ],
        draw: draw_delay,
        judge: judge_delay,
    },
];

/// One protocol on one system.
struct Subject {
    protocol: &'static str,
    system: &'static str,
    text: String,
    nodes: u32,
    quorum: usize,
}

/// What was measured: one client alone, all of one group, and three groups.
struct Runs {
    alone: Measures,
    same: Measures,
    mixed: Measures,
}

pub(super) fn make(setting: &Setting) -> Result<Vec<Made>, Failure> {
    let subjects = subjects(setting)?;
    let found = setting.each(
        "group locks",
        &subjects,
        |subject| u64::from(subject.nodes).pow(2),
        |subject| subject.run(setting),
    );
    let [mut inside, mut messages, mut delays] =
        [0, 1, 2].map(|at| Table::new(FIGURES[at].columns));
    for (subject, runs) in subjects.iter().zip(found) {
        let Runs { alone, same, mixed } = runs?;
        let name = || {
            [
                Cell::from(subject.protocol),
                subject.system.into(),
                subject.nodes.into(),
            ]
        };
        let [protocol, system, nodes] = name();
        inside.push([
            protocol,
            system,
            nodes,
            subject.nodes.into(),
            same.inside_max.into(),
            mixed.inside_mean.into(),
        ]);
        let [protocol, system, nodes] = name();
        messages.push([
            protocol,
            system,
            nodes,
            subject.quorum.into(),
            alone.messages_per_entry.into(),
            mixed.messages_per_entry.into(),
        ]);
        let [protocol, system, nodes] = name();
        delays.push([
            protocol,
            system,
            nodes,
            subject.quorum.into(),
            alone.calm_delay.unwrap_or(f64::NAN).into(),
            mixed.sync_delay.unwrap_or(f64::NAN).into(),
        ]);
    }
    let made = FIGURES.iter().zip([inside, messages, delays]);
    Ok(made.map(|(figure, table)| Made { figure, table }).collect())
}

fn subjects(setting: &Setting) -> Result<Vec<Subject>, Failure> {
    let mut subjects = Vec::new();
    let mut push = |protocol, name, text: String, nodes: u32| -> Result<(), Failure> {
        let built = system(&text, None)?;
        let sizes = built
            .system
            .families()
            .into_iter()
            .map(|family| family.sizes().min);
        let quorum = match protocol {
            RA1 | RA2 => nodes as usize,
            _ => sizes.min().unwrap_or(0),
        };
        subjects.push(Subject {
            protocol,
            system: name,
            text,
            nodes,
            quorum,
        });
        Ok(())
    };
    let widths: &[u32] = setting.either(&[2, 3, 4, 5], &[2, 3]);
    for k in widths {
        let nodes = 3 * k * k;
        for protocol in [M, S] {
            let text = format!("surficial(groups=3, n={nodes})");
            push(protocol, "surficial", text, nodes)?;
            push(protocol, "majority", format!("majority({nodes})"), nodes)?;
        }
        push(ONE, "majority", format!("majority({nodes})"), nodes)?;
        for protocol in [RA1, RA2] {
            push(protocol, "all nodes", format!("majority({nodes})"), nodes)?;
        }
    }
    // Affine planes need squares of primes, and on squares all quorums of a grid are alike.
    let orders: &[u32] = setting.either(&[3, 5, 7], &[3, 5]);
    for order in orders {
        let nodes = order * order;
        for protocol in [M, S] {
            let text = format!("affine({nodes}, groups=3)");
            push(protocol, "affine", text, nodes)?;
            push(protocol, "grid", format!("grid({nodes})"), nodes)?;
        }
    }
    Ok(subjects)
}

impl Subject {
    fn run(&self, setting: &Setting) -> Result<Runs, Failure> {
        Ok(Runs {
            alone: self.measure(setting, 1, GROUPS)?,
            same: self.measure(setting, self.nodes, 1)?,
            mixed: self.measure(setting, self.nodes, GROUPS)?,
        })
    }

    fn measure(&self, setting: &Setting, askers: u32, groups: u32) -> Result<Measures, Failure> {
        let seconds = setting.either(10, 1);
        let mut options = load(askers, groups, seconds);
        options.seed = setting.seed;
        options.system.clone_from(&self.text);
        if groups == 1 {
            // All are to be inside together for a while.
            (options.hold_ms, options.think_ms) = (200, 5);
        }
        match self.protocol {
            S => options.protocol = Protocol::Serial,
            ONE => options.exclusive = 1.0,
            _ => {}
        }
        let kind = match self.protocol {
            RA1 => ricart::Variant::Groups,
            RA2 => ricart::Variant::Capture,
            _ => {
                let config = options.config(true).map_err(Failure::input)?;
                let outcome = guarded(&options, &mut invariants::all(&config), None)?;
                if let Some(violation) = outcome.violation {
                    let what = format!("{} broke {}", self.text, violation.property);
                    return Err(Failure::Failed(what));
                }
                return Ok(outcome.measures);
            }
        };
        let mut like = baseline::Options::like(&options).map_err(Failure::input)?;
        like.processes = self.nodes;
        like.entries = u64::from(askers) * setting.either(100, 20);
        let measured = baseline::run(Kind::Ricart(kind), &like);
        if let Some(violation) = measured.violation {
            let what = format!("{kind:?} broke {}", violation.property);
            return Err(Failure::Failed(what));
        }
        Ok(measured.measures)
    }
}

/// A line per protocol and system.
fn lines(table: &Table, title: &str, shown: &[(&str, &'static str, &str)]) -> String {
    let mut joined = Table::new(&["line", "nodes", "value"]);
    let mut all = Vec::new();
    for (heading, column, up) in shown {
        joined.rows.clear();
        let place = table.columns.iter().position(|one| one == column);
        for row in &table.rows {
            let name = match row[1].shown().as_str() {
                "all nodes" => row[0].shown(),
                system => format!("{}, {system}", row[0].shown()),
            };
            let value = place.map_or(Cell::Number(f64::NAN), |place| row[place].clone());
            joined.push([name.into(), row[2].clone(), value]);
        }
        all.push(Panel {
            title: (*heading).to_owned(),
            across: "nodes".to_owned(),
            up: (*up).to_owned(),
            chart: Chart::Curves {
                traces: joined.traces(("line", ""), "nodes", "value"),
                x: Axis::Fit,
                y: Axis::FromZero,
            },
        });
    }
    let about = ["As many clients as nodes, on one lock; virtual time.".to_owned()];
    panels(title, &about, &all)
}

fn draw_concurrency(table: &Table) -> String {
    lines(
        table,
        "Inside at once",
        &[
            (
                "Most at once, all of one group",
                "most_inside_one_group",
                "clients",
            ),
            (
                "On average, three groups",
                "mean_inside_three_groups",
                "clients",
            ),
        ],
    )
}

fn draw_messages(table: &Table) -> String {
    lines(
        table,
        "Messages per entry",
        &[
            ("Without rivals", "messages_alone", "messages"),
            ("Three groups contend", "messages_three_groups", "messages"),
        ],
    )
}

fn draw_delay(table: &Table) -> String {
    lines(
        table,
        "Delay in mean latencies of a message",
        &[
            (
                "From asking to entering, without rivals",
                "delay_alone",
                "latencies",
            ),
            (
                "From leaving to the entry of the next group",
                "handover",
                "latencies",
            ),
        ],
    )
}

/// Whether all rows of these protocols are as they should be, given by nodes, quorum or clients,
/// and a value; false if there are none.
fn all(
    table: &Table,
    protocols: &[&str],
    column: &str,
    held: impl Fn(f64, f64, f64) -> bool,
) -> bool {
    let place = table.columns.iter().position(|one| *one == column);
    let rows = table.rows.iter().filter(|row| {
        let protocol = row[0].shown();
        protocols.contains(&protocol.as_str())
    });
    let mut some = false;
    for row in rows {
        let number = |place: usize| match row.get(place) {
            Some(Cell::Number(value)) => *value,
            _ => f64::NAN,
        };
        let value = place.map_or(f64::NAN, number);
        if !held(number(2), number(3), value) {
            return false;
        }
        some = true;
    }
    some
}

/// The value of a protocol on a system at the most nodes.
fn last(table: &Table, protocol: &str, system: &str, column: &str) -> (f64, f64) {
    let mut found = (f64::NAN, f64::NAN);
    for nodes in table.numbers("nodes") {
        let keys = [
            ("protocol", protocol.into()),
            ("system", system.into()),
            ("nodes", nodes.into()),
        ];
        if let Some(value) = table.at(&keys, column) {
            found = (nodes, value);
        }
    }
    found
}

fn judge_concurrency(table: &Table) -> Judgement {
    let column = "most_inside_one_group";
    let parts = [
        all(table, &[M, S], column, |_, clients, most| most == clients),
        all(table, &[RA1, RA2], column, |_, clients, most| {
            most == clients
        }),
        all(table, &[ONE], column, |_, _, most| most == 1.0),
    ];
    let told = [
        (M, "surficial"),
        (S, "surficial"),
        (M, "majority"),
        (RA1, "all nodes"),
        (ONE, "majority"),
    ];
    let told = told.map(|(protocol, system)| {
        let (nodes, most) = last(table, protocol, system, column);
        format!(
            "{protocol} on {system} of {} nodes {}",
            short(nodes),
            short(most)
        )
    });
    let mixed = [
        (M, "surficial"),
        (S, "surficial"),
        (RA1, "all nodes"),
        (RA2, "all nodes"),
    ];
    let mixed = mixed.map(|(protocol, system)| {
        let (_, mean) = last(table, protocol, system, "mean_inside_three_groups");
        format!("{protocol} {}", short(mean))
    });
    let found = format!(
        "Most at once with as many clients as nodes: {}. On average, with three groups: {}.",
        told.join(", "),
        mixed.join(", ")
    );
    let why = "A node that gives one lock at a time would let in as many as the degree; here nodes \
               give as many as are asked for by one group.";
    Judgement::new(Verdict::of(&parts), found, why)
}

fn judge_messages(table: &Table) -> Judgement {
    let (alone, mixed) = ("messages_alone", "messages_three_groups");
    // A run ends with messages of requests that were never granted, hence the small slack.
    let near = |value: f64, wanted: f64| (value - wanted).abs() <= 0.02 * wanted;
    let cheaper = |nodes: f64| {
        let at = |system: &str| {
            let keys = [
                ("protocol", M.into()),
                ("system", system.into()),
                ("nodes", nodes.into()),
            ];
            table.at(&keys, mixed)
        };
        let fewer = |ours: &str, other: &str| match (at(ours), at(other)) {
            (Some(ours), Some(other)) => ours < other,
            _ => true,
        };
        fewer("surficial", "majority") && fewer("affine", "grid")
    };
    let parts = [
        all(table, &[M], alone, |_, c, value| near(value, 3.0 * c)),
        all(table, &[M], mixed, |nodes, c, value| {
            (2.9 * c..=3.0 * c + 3.0 * c * nodes).contains(&value)
        }),
        all(table, &[S], alone, |_, c, value| near(value, 2.0 * c + 1.0)),
        all(table, &[S], mixed, |_, c, value| near(value, 2.0 * c + 1.0)),
        all(table, &[RA1], mixed, |nodes, _, value| {
            near(value, 2.0 * (nodes - 1.0))
        }),
        all(table, &[RA2], mixed, |nodes, _, value| value <= 3.0 * nodes),
        table.numbers("nodes").into_iter().all(cheaper),
    ];
    let told = [
        (M, "surficial"),
        (M, "affine"),
        (M, "grid"),
        (M, "majority"),
        (S, "surficial"),
        (RA1, "all nodes"),
        (RA2, "all nodes"),
    ];
    let told = told.map(|(protocol, system)| {
        let (nodes, value) = last(table, protocol, system, mixed);
        format!(
            "{protocol} on {system} of {} {}",
            short(nodes),
            short(value)
        )
    });
    let found = format!("Three groups contend: {}.", told.join(", "));
    let why = "All means lie far below the bound of Theorem 4.5. The bound itself is wrong for max \
               above 1: a schedule reaches 6c·max (see the errata). RA1 takes 2(n-1), as a process \
               does not ask itself.";
    Judgement::new(Verdict::of(&parts), found, why)
}

fn judge_delay(table: &Table) -> Judgement {
    let column = "delay_alone";
    let near = |value: f64, wanted: f64| (value - wanted).abs() <= 0.05 * wanted;
    let parts = [
        all(table, &[M], column, |_, _, value| near(value, 2.0)),
        all(table, &[S], column, |_, c, value| near(value, c + 1.0)),
        // Messages of these take random times, and a client waits for the slowest answer.
        all(table, &[RA1, RA2], column, |_, _, value| {
            (1.5..3.0).contains(&value)
        }),
    ];
    let told = [
        (M, "surficial"),
        (S, "surficial"),
        (S, "majority"),
        (RA1, "all nodes"),
        (RA2, "all nodes"),
    ];
    let told = told.map(|(protocol, system)| {
        let (nodes, value) = last(table, protocol, system, column);
        format!(
            "{protocol} on {system} of {} {}",
            short(nodes),
            short(value)
        )
    });
    let found = format!("In mean latencies: {}.", told.join(", "));
    Judgement::new(Verdict::of(&parts), found, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(figure: usize, rows: &[(&str, &str, f64, f64, f64)]) -> Table {
        let mut table = Table::new(FIGURES[figure].columns);
        for (protocol, system, third, value, other) in rows {
            table.push([
                (*protocol).into(),
                (*system).into(),
                12u32.into(),
                (*third).into(),
                (*value).into(),
                (*other).into(),
            ]);
        }
        table
    }

    #[test]
    fn a_lock_that_lets_in_too_few_is_told() {
        let rows = |most: f64| {
            table(
                0,
                &[
                    (M, "surficial", 12.0, most, 2.0),
                    (S, "surficial", 12.0, most, 2.0),
                    (RA1, "all nodes", 12.0, most, 2.0),
                    (ONE, "grid", 12.0, 1.0, 1.0),
                ],
            )
        };
        assert_eq!(judge_concurrency(&rows(12.0)).verdict, Verdict::Held);
        assert_eq!(judge_concurrency(&rows(11.0)).verdict, Verdict::InPart);
        assert_eq!(judge_concurrency(&table(0, &[])).verdict, Verdict::NotHeld);
    }

    #[test]
    fn delays_are_held_against_the_size_of_the_quorum() {
        let rows = |serial: f64| {
            table(
                2,
                &[
                    (M, "surficial", 4.0, 2.0, 2.0),
                    (S, "surficial", 4.0, serial, 2.0),
                    (RA1, "all nodes", 12.0, 2.0, 2.0),
                ],
            )
        };
        assert_eq!(judge_delay(&rows(5.0)).verdict, Verdict::Held);
        assert_eq!(judge_delay(&rows(8.0)).verdict, Verdict::InPart);
    }
}
