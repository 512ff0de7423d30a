//! Instructions of what every lock costs: the steps of nodes and clients, the frames, and a whole
//! cycle of acquire and release without sockets. Counts hardly change from run to run or from
//! machine to machine, so a change that makes one of them larger fails here.
//!
//! `bench/instructions.sh` runs it and says what it needs; `bench/instructions.sh --renew` accepts
//! today's counts, which stand in `bench/instructions.toml`.

#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on should stop"
)]

mod cases;
mod count;
mod mesh;

use std::process::ExitCode;

use cases::{CASES, Run};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    if let Some(at) = args.iter().position(|arg| arg == "--one") {
        let wanted = args.get(at + 1);
        let case = CASES
            .iter()
            .find(|(name, ..)| Some(*name) == wanted.map(String::as_str));
        let (_, _, prepare) = case.expect("a case of this benchmark");
        println!("{}", counted_part(&mut prepare()));
        return ExitCode::SUCCESS;
    }
    if !has("--bench") {
        // Run as a test: every case works, and nothing is counted.
        for (name, _, prepare) in CASES {
            assert!(prepare()() > 0, "{name} did nothing");
        }
        return ExitCode::SUCCESS;
    }
    match count::all(has("--renew")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(2)
        }
    }
}

/// What callgrind counts: it looks for this name.
#[inline(never)]
fn counted_part(run: &mut Run) -> usize {
    run()
}
