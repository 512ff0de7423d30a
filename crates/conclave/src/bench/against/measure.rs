//! What is measured beside the clients: CPU, bytes on the loopback interface, the disk.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::site::{Fleet, Site};
use crate::cli::Failure;
use crate::service::usage;

/// Bytes that are written before each sync: about a record of a grant.
const RECORD: usize = 256;
/// The most syncs that are timed.
const SYNCS: usize = 1000;

/// What was used so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// CPU seconds of the servers and of this process, in which the clients live.
    pub(super) cpu: f64,
    /// Bytes that the loopback interface received, headers and all.
    pub(super) net: u64,
}

impl Usage {
    pub(super) fn now<S: Site>(site: &S) -> Self {
        let net = fs::read_to_string("/proc/net/dev").unwrap_or_default();
        Self {
            cpu: site.fleet().cpu_seconds() + usage::cpu_seconds(std::process::id()),
            net: loopback_bytes(&net).unwrap_or(0),
        }
    }
}

/// The bytes that the loopback interface received, from the text of `/proc/net/dev`.
fn loopback_bytes(text: &str) -> Option<u64> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(':'));
    let (_, numbers) = lines.into_iter().find(|(name, _)| *name == "lo")?;
    numbers.split_whitespace().next()?.parse().ok()
}

/// How long it takes to write a record and sync it where data folders are made, in nanoseconds.
pub(super) fn fsync_times(span: Duration) -> Result<Histogram<u64>, Failure> {
    let mut file = tempfile::tempfile()?;
    let mut times = crate::bench::histogram();
    let start = Instant::now();
    for _ in 0..SYNCS {
        let before = Instant::now();
        file.write_all(&[7; RECORD])?;
        file.sync_data()?;
        let took = u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let _ = times.record(took);
        if start.elapsed() > span {
            break;
        }
    }
    Ok(times)
}

/// The machine, and its disk.
pub(super) fn machine(fsync: &Histogram<u64>) -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let memory = read("/proc/meminfo");
    let micros = |quantile: f64| fsync.value_at_quantile(quantile) as f64 / 1e3;
    json!({
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "cpu": value_of(&cpu, "model name").unwrap_or("unknown"),
        "memory_gb": memory_gb(&memory).unwrap_or(0.0),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "fsync_us": {"p50": micros(0.5), "p99": micros(0.99)},
    })
}

/// The first value of a key in lines of `key : value`.
fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
    Some(value.trim())
}

fn memory_gb(meminfo: &str) -> Option<f64> {
    let kilobytes = value_of(meminfo, "MemTotal")?.split_whitespace().next()?;
    let gb = kilobytes.parse::<f64>().ok()? / 1024.0 / 1024.0;
    Some((gb * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_the_loopback_interface_are_found() {
        let text = "Inter-|   Receive                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes\n  \
            eth0: 99 1 0 0 0 0 0 0 5 6\n    lo: 12345 67 0 0 0 0 0 0 12345 67\n";
        assert_eq!(loopback_bytes(text), Some(12345));
        assert_eq!(loopback_bytes("lo:12 3\n"), Some(12));
        assert_eq!(loopback_bytes("eth0: 99 1\n"), None);
        assert_eq!(loopback_bytes("lo: many\n"), None);
    }

    #[test]
    fn the_machine_is_described() {
        assert_eq!(
            value_of("a\t: 1\nmodel name\t: X Y\n", "model name"),
            Some("X Y")
        );
        assert_eq!(memory_gb("MemTotal:       16252928 kB\n"), Some(15.5));
        assert_eq!(memory_gb("MemTotal: kB\n"), None);
    }

    #[test]
    fn syncs_are_timed() {
        let times = fsync_times(Duration::from_millis(5)).unwrap_or_else(|_| panic!("a disk"));
        assert!(!times.is_empty() && times.max() > 0);
    }
}
