//! Billiard quorums: boards and paths as the paper prints them, and what it says of sizes, load
//! and availability.

use conclave_quorum::NodeSet;
use conclave_quorum::construct::billiard::Board;
use conclave_quorum::draw::{DrawOptions, draw};

use super::figure::{Figure, Judgement, Made, Paper, Verdict};
use super::pool::Setting;
use super::table::{Cell, Table};
use crate::cli::Failure;
use crate::quorum::system;

mod curves;

/// The quorums that the paper lists, a line `side site: members` each.
const FIGURE_7: &str = include_str!("figure_7.txt");

/// The two quorums of Figure 5.
const FIGURE_5: [(usize, &str); 2] = [
    (11, "11 15 16 18 19 21 22 23 26"),
    (34, "3 7 11 15 19 24 29 34 38"),
];

pub(super) static FIGURES: [Figure; 3] = [
    Figure {
        id: "billiard-4",
        paper: Paper::Billiard,
        place: "Figure 4",
        title: "The board of side 9",
        claim: "Every other cell of a square of odd side q is a site: 40 of them for side 9, row \
                by row, cell (i, j) being site ((i-1)q + j)/2 wherever i + j is odd.",
        columns: &["site", "row", "column"],
        draw: |_| picture("billiard(40, tiers=T0)", &DrawOptions::default()),
        judge: judge_board,
    },
    Figure {
        id: "billiard-5",
        paper: Paper::Billiard,
        place: "Figure 5",
        title: "The paths of sites 11 and 34",
        claim: "The quorum of site 11 is {11, 15, 16, 18, 19, 21, 22, 23, 26}, that of site 34 is \
                {3, 7, 11, 15, 19, 24, 29, 34, 38}; both have 9 sites, and they meet.",
        columns: &["site", "quorum", "printed"],
        draw: |_| {
            let second = board(9).own(33);
            let options = DrawOptions {
                site: Some(10),
                second,
                ..DrawOptions::default()
            };
            picture("billiard(40, tiers=T0)", &options)
        },
        judge: judge_listed,
    },
    Figure {
        id: "billiard-7",
        paper: Paper::Billiard,
        place: "Figures 6 and 7",
        title: "All quorums of the boards of side 3, 5 and 7",
        claim: "The program of Figure 6 lists the quorum of a site; Figure 7 prints all 40 of \
                the three smallest boards.",
        columns: &["side", "site", "quorum", "printed", "program"],
        draw: |_| {
            let options = DrawOptions {
                site: Some(0),
                second: board(7).own(11),
                ..DrawOptions::default()
            };
            picture("billiard(24, tiers=T0)", &options)
        },
        judge: judge_listed,
    },
];

/// All figures of the paper.
#[cfg(test)]
pub(super) fn figures() -> Vec<&'static Figure> {
    FIGURES.iter().chain(&curves::FIGURES).collect()
}

pub(super) fn make(setting: &Setting) -> Result<Vec<Made>, Failure> {
    let tables = [cells(), figure_5(), figure_7()];
    let made = FIGURES.iter().zip(tables);
    let mut made: Vec<Made> = made.map(|(figure, table)| Made { figure, table }).collect();
    made.extend(curves::make(setting)?);
    Ok(made)
}

fn board(side: usize) -> Board {
    Board::with_side(side).expect("invariant: the sides of the figures are odd")
}

/// A picture of a system that is named here.
pub(super) fn picture(text: &str, options: &DrawOptions) -> String {
    let built = system(text, None).expect("invariant: the systems of the figures are well formed");
    draw(&built, options).expect("invariant: the systems of the figures can be drawn")
}

fn listed(quorum: Option<NodeSet>) -> String {
    let Some(quorum) = quorum else {
        return String::new();
    };
    let numbers: Vec<String> = quorum.numbers().map(|site| site.to_string()).collect();
    numbers.join(" ")
}

fn cells() -> Table {
    let mut table = Table::new(FIGURES[0].columns);
    let board = board(9);
    for site in 0..board.nodes() {
        for (row, column) in board.cells_of(site) {
            table.push([(site + 1).into(), row.into(), column.into()]);
        }
    }
    table
}

fn judge_board(table: &Table) -> Judgement {
    let mut right = 0;
    for row in &table.rows {
        if let [Cell::Number(site), Cell::Number(row), Cell::Number(column)] = row[..] {
            let odd = (row + column) % 2.0 == 1.0;
            right += usize::from(odd && 2.0 * site == (row - 1.0) * 9.0 + column);
        }
    }
    let parts = [table.rows.len() == 40, right == 40];
    let found = format!(
        "{} sites, {right} of them where the formula puts them.",
        table.rows.len()
    );
    Judgement::new(Verdict::of(&parts), found, "")
}

fn figure_5() -> Table {
    let mut table = Table::new(FIGURES[1].columns);
    for (site, printed) in FIGURE_5 {
        let quorum = listed(board(9).own(site - 1));
        table.push([site.into(), quorum.into(), printed.into()]);
    }
    table
}

fn figure_7() -> Table {
    let mut table = Table::new(FIGURES[2].columns);
    for line in FIGURE_7.lines() {
        let mut words = line.split([' ', ':']).filter(|word| !word.is_empty());
        let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
        let (Some(side), Some(site)) = (number(), number()) else {
            continue;
        };
        let printed: Vec<&str> = words.collect();
        let quorum = listed(board(side).own(site - 1));
        let mut program = generate(side, site);
        program.sort_unstable();
        let program: Vec<String> = program.iter().map(ToString::to_string).collect();
        table.push([
            side.into(),
            site.into(),
            quorum.into(),
            printed.join(" ").into(),
            program.join(" ").into(),
        ]);
    }
    table
}

/// The program of Figure 6, line by line: the quorum of site `n` on the board of side `q`.
fn generate(q: usize, n: usize) -> Vec<usize> {
    let j = match 2 * n % q {
        0 => q,
        rest => rest,
    };
    let i = 1 + (2 * n - j) / q;
    let (minus, plus) = (q.div_ceil(2) - 1, q.div_ceil(2));
    let sites = (q * q - 1) / 2;
    let mut x = Vec::with_capacity(q);
    let step = |x: &mut Vec<usize>, times: usize, up: bool, by: usize| {
        for _ in 0..times {
            let last = x.last().copied().unwrap_or(0);
            x.push(if up {
                last + by
            } else {
                last.saturating_sub(by)
            });
        }
    };
    if i + j < q + 1 {
        x.push(((i + j - 2) * q).div_ceil(2));
        step(&mut x, j - 1, false, minus);
        step(&mut x, q - i - j + 1, true, plus);
        step(&mut x, i - 1, false, minus);
    } else {
        x.push(sites - (2 * q - i - j - 1) / 2);
        step(&mut x, q - i, false, minus);
        step(&mut x, i + j - q - 1, false, plus);
        step(&mut x, q - j, false, minus);
    }
    x
}

/// Ours are held against what is printed, and against the program where the table has it.
fn judge_listed(table: &Table) -> Judgement {
    let place = |name: &str| table.columns.iter().position(|column| *column == name);
    let same = |row: &&Vec<Cell>, other: &str| {
        place(other).is_none_or(|other| place("quorum").map(|ours| &row[ours]) == Some(&row[other]))
    };
    let printed = table.rows.iter().filter(|row| same(row, "printed"));
    let program = table.rows.iter().filter(|row| same(row, "program"));
    let (printed, program) = (printed.count(), program.count());
    let all = table.rows.len();
    let parts = [all > 0 && printed == all, all > 0 && program == all];
    let found = if place("program").is_some() {
        format!(
            "{printed} of {all} quorums are as printed, {program} of {all} as the program lists \
             them."
        )
    } else {
        format!("{printed} of {all} quorums are as printed.")
    };
    Judgement::new(Verdict::of(&parts), found, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_quorums_are_held_against_ours() {
        let table = figure_7();
        assert_eq!(table.rows.len(), 40);
        assert_eq!(judge_listed(&table).verdict, Verdict::Held);
        let mut wrong = table;
        wrong.rows[7][3] = "2 4 5 6 9".into();
        assert_eq!(judge_listed(&wrong).verdict, Verdict::InPart);
        assert_eq!(judge_listed(&figure_5()).verdict, Verdict::Held);
    }

    #[test]
    fn a_board_with_a_site_in_the_wrong_cell_is_not_the_board() {
        let mut table = cells();
        assert_eq!(judge_board(&table).verdict, Verdict::Held);
        table.rows[3][1] = 2u32.into();
        assert_eq!(judge_board(&table).verdict, Verdict::InPart);
    }

    #[test]
    fn the_program_of_the_paper_lists_the_quorums_of_larger_boards() {
        for side in [9, 11, 31] {
            for site in 1..=(side * side - 1) / 2 {
                let program = generate(side, site);
                let quorum = NodeSet::of_numbers((side * side - 1) / 2, program);
                assert_eq!(board(side).own(site - 1), Some(quorum), "S{site} of {side}");
            }
        }
    }
}
