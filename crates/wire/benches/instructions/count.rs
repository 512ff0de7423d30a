//! Counts each case under callgrind and compares it with what it was.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cases::CASES;

/// So much more than before, in per cent, is too much: libraries of the system differ by less.
const SLACK: u64 = 10;

const HEAD: &str = "\
# Instructions of one step of each case of crates/wire/benches/instructions, as last accepted.
# A count more than a tenth above fails. `bench/instructions.sh --renew` writes this file.
";

/// Counts all cases; whether none is too slow.
pub(crate) fn all(renew: bool) -> Result<bool, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = root.join("bench/instructions.toml");
    let profiles = profiles()?;
    let before = if renew { BTreeMap::new() } else { read(&file)? };
    let (mut now, mut problems) = (BTreeMap::new(), Vec::new());
    println!("{:<20} {:>9} {:>9}  what", "case", "count", "accepted");
    for ((name, what, _), count) in CASES.iter().zip(counts(&profiles)) {
        let (name, count) = (*name, count?);
        let accepted = before.get(name).copied();
        let shown = accepted.map_or_else(|| "-".to_owned(), |count| count.to_string());
        println!("{name:<20} {count:>9} {shown:>9}  {what}");
        if !renew {
            problems.extend(judge(name, count, accepted, &profiles));
        }
        now.insert(name.to_owned(), count);
    }
    if renew {
        write(&file, &now)?;
        println!("written to {}", shown(&file));
        return Ok(true);
    }
    for name in before.keys().filter(|name| !now.contains_key(*name)) {
        problems.push(format!("{name}: no such case; {RENEW}"));
    }
    for problem in &problems {
        println!("FAILED {problem}");
    }
    Ok(problems.is_empty())
}

const RENEW: &str = "run bench/instructions.sh --renew and commit bench/instructions.toml";

fn judge(name: &str, count: u64, accepted: Option<u64>, profiles: &Path) -> Option<String> {
    let Some(accepted) = accepted else {
        return Some(format!(
            "{name}: {count} instructions, no limit yet; {RENEW}"
        ));
    };
    let limit = accepted + accepted * SLACK / 100;
    if count <= limit {
        if count + accepted * SLACK / 100 < accepted {
            println!("  much better than {accepted}: {RENEW}, so that it stays");
        }
        return None;
    }
    let profile = shown(&profiles.join(name));
    Some(format!(
        "{name}: {count} instructions, the limit is {limit} ({SLACK} % above {accepted}); see \
         `callgrind_annotate {profile}`; if it must be so, {RENEW}"
    ))
}

/// Counts every case, as many at a time as there are cores: counts do not mind.
fn counts(profiles: &Path) -> Vec<Result<u64, String>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some((name, ..)) = CASES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let count = count(name, profiles);
                    results.lock().unwrap().insert(*name, count);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    CASES
        .iter()
        .filter_map(|(name, ..)| results.remove(name))
        .collect()
}

/// Runs one case under callgrind: instructions of one step.
fn count(name: &str, profiles: &Path) -> Result<u64, String> {
    let out = profiles.join(name);
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*counted_part*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(["--one", name])
        .output();
    let run = run.map_err(|error| match error.kind() {
        ErrorKind::NotFound => "valgrind is missing; bench/instructions.sh installs it".to_owned(),
        _ => format!("valgrind does not start: {error}"),
    })?;
    let said = String::from_utf8_lossy(&run.stdout);
    let steps = said.trim().parse::<u64>().ok().filter(|steps| *steps > 0);
    let Some(steps) = steps.filter(|_| run.status.success()) else {
        let errors = String::from_utf8_lossy(&run.stderr);
        return Err(format!("{name} does not run under valgrind: {errors}"));
    };
    let text = std::fs::read_to_string(&out)
        .map_err(|error| format!("cannot read {}: {error}", shown(&out)))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    match total.and_then(|total| total.trim().parse::<u64>().ok()) {
        Some(total) if total > 0 => Ok(total / steps),
        _ => Err(format!(
            "{name}: callgrind counted nothing; was the benchmark stripped of its symbols?"
        )),
    }
}

/// Where the profiles of the cases are put: beside the program.
fn profiles() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().and_then(Path::parent);
    let folder = folder.unwrap_or(Path::new(".")).join("instructions");
    std::fs::create_dir_all(&folder)
        .map_err(|error| format!("cannot make {}: {error}", shown(&folder)))?;
    Ok(folder)
}

fn read(file: &Path) -> Result<BTreeMap<String, u64>, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}; {RENEW}", shown(file)))?;
    toml::from_str(&text).map_err(|error| format!("{} makes no sense: {error}", shown(file)))
}

fn write(file: &Path, counts: &BTreeMap<String, u64>) -> Result<(), String> {
    let mut text = HEAD.to_owned();
    for (name, ..) in CASES {
        if let Some(count) = counts.get(name) {
            let _ = writeln!(text, "{name} = {count}");
        }
    }
    std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", shown(file)))
}

/// A path as short as it can be said from here.
fn shown(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    let short = here.ok().and_then(|here| {
        let root = here
            .ancestors()
            .find(|up| up.join("Cargo.lock").exists())?
            .to_owned();
        Some(path.strip_prefix(root).ok()?.to_owned())
    });
    short.unwrap_or(path).display().to_string()
}
