//! The processes below this one.

use std::io;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, waitid, waitpid,
};

/// From now on whatever a descendant leaves behind is ours, not the system's.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(getpid()))?)
}

/// Other systems know nothing like it.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(())
}

/// Sends a signal to every descendant, and says how many there are.
pub(super) fn signal_all(signal: Signal) -> usize {
    let below = descendants(&processes(), getpid().as_raw_nonzero().get());
    for pid in below.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // It may have ended just now.
        let _ = kill_process(pid, signal);
    }
    below.len()
}

/// Whether there is any.
pub(super) fn is_below() -> bool {
    !descendants(&processes(), getpid().as_raw_nonzero().get()).is_empty()
}

/// Kills every descendant, also those that are born meanwhile.
pub(super) fn kill_all() {
    // Whoever was killed stays in the list until its parent has noticed: that must end.
    for _ in 0..100 {
        if signal_all(Signal::KILL) == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Lets go of adopted children that have ended; somebody else waits for `own`.
pub(super) fn reap(own: Option<u32>) {
    // Mostly there is none, and that is cheaply said.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    if !matches!(waitid(WaitId::All, ended), Ok(Some(_))) {
        return;
    }
    let us = getpid().as_raw_nonzero().get();
    let children = processes().into_iter().filter(|one| one.parent == us);
    let adopted = children.filter(|one| own != u32::try_from(one.pid).ok());
    for pid in adopted.filter_map(|one| Pid::from_raw(one.pid)) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// A process as the system lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    pid: i32,
    parent: i32,
    /// It has ended, and its parent has not noticed yet.
    ended: bool,
}

/// All processes.
fn processes() -> Vec<Listed> {
    let Ok(folder) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let listed = pids.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        listed(pid, &stat)
    });
    listed.collect()
}

/// What a line of `/proc/PID/stat` says.
fn listed(pid: i32, stat: &str) -> Option<Listed> {
    // The name of the program may hold anything, brackets included.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    Some(Listed { pid, parent, ended })
}

/// All that live below `top`.
fn descendants(processes: &[Listed], top: i32) -> Vec<i32> {
    let mut found = vec![top];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let children = processes
            .iter()
            .filter(|one| one.parent == parent && !one.ended);
        found.extend(children.map(|one| one.pid));
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_are_found_below_one_process_alone() {
        let pairs = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 5), (7, 2), (8, 2)];
        let processes = pairs.map(|(pid, parent)| Listed {
            pid,
            parent,
            ended: pid == 8,
        });
        assert_eq!(descendants(&processes, 2), [3, 7, 4]);
        assert_eq!(descendants(&processes, 6), [] as [i32; 0]);
    }

    #[test]
    fn a_parent_is_found_behind_any_name() {
        let living = listed(17, "17 (a) b (c)) S 4 17 17 0").unwrap();
        assert_eq!((living.parent, living.ended), (4, false));
        assert!(listed(17, "17 (sh) Z 4 17 17 0").unwrap().ended);
        assert_eq!(listed(17, "nonsense"), None);
    }
}
