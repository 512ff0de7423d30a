//! What processes used, as the system counts it.

use std::fs;

/// CPU seconds (user and system) that a process has used; zero where the system does not tell.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return 0.0;
    };
    // The name in parentheses may contain anything; what follows the last one does not.
    let Some((_, rest)) = text.rsplit_once(')') else {
        return 0.0;
    };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|text| text.parse::<f64>().ok());
    // Fields 14 and 15 of the line; the state, field 3, is the first here.
    let used = ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0);
    used / ticks_per_second()
}

/// CPU seconds that a process has used, to the nanosecond: the hundredths of [`cpu_seconds`] are
/// too coarse for a node that shares its core with many. Threads that have ended do not count.
pub(crate) fn cpu_exactly(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let files = threads.into_iter().flatten().flatten();
    let nanos = files.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    let nanos: f64 = nanos.sum();
    if nanos > 0.0 {
        nanos / 1e9
    } else {
        cpu_seconds(pid)
    }
}

/// Linux reports process times in hundredths of a second on every architecture.
fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// Resident memory of a process in MiB; zero where the system does not tell.
pub(crate) fn resident_mb(pid: u32) -> f64 {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return 0.0;
    };
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    kilobytes
        .and_then(|text| text.parse::<f64>().ok())
        .unwrap_or(0.0)
        / 1024.0
}

/// A counter in the text of a node's metrics, summed over its labels; zero if it is not there.
pub(crate) fn metric(text: &str, name: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let values = lines.filter(|rest| rest.starts_with([' ', '{']));
    let values = values.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok());
    values.map(|value| value as u64).sum()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let before = cpu_seconds(std::process::id());
        let mut sum = 0_u64;
        while cpu_seconds(std::process::id()) <= before {
            sum = sum.wrapping_add((0..1_000_000).sum::<u64>());
        }
        std::hint::black_box(sum);
        assert!(resident_mb(std::process::id()) > 0.1);
        assert_eq!(cpu_seconds(0), 0.0);
        let (exact, rough) = (
            cpu_exactly(std::process::id()),
            cpu_seconds(std::process::id()),
        );
        assert!(exact > 0.0 && rough > 0.0);
        assert_eq!(cpu_exactly(0), 0.0);
    }

    #[test]
    fn a_metric_is_summed_over_its_labels() {
        let text = "# HELP a_total x\na_total{k=\"1\"} 2\na_total{k=\"2\"} 3\na_total_b 9\n";
        assert_eq!(metric(text, "a_total"), 5);
        assert_eq!(metric(text, "b_total"), 0);
    }
}
