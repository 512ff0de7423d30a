//! Which clusters `up` runs for this user: a file per running `up`, in a directory that only the
//! user can write.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, getuid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::find::TlsFiles;

/// The most files that are looked at.
const FILES_MAX: usize = 1000;

/// A running `up`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    /// Its process.
    pub(crate) pid: u32,
    /// When that process began, as the system counts: numbers of processes come back.
    pub(crate) began: Option<u64>,
    /// When its cluster was ready, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// The API of each node.
    pub(crate) endpoints: Vec<String>,
    /// How to show them who asks; none if they speak plainly.
    #[serde(default)]
    pub(crate) tls: Option<TlsFiles>,
    /// The file with the token that they ask for, if they do.
    #[serde(default)]
    pub(crate) bearer_file: Option<PathBuf>,
}

/// The entry of this process; dropping it takes it away.
#[derive(Debug)]
pub(crate) struct Entry {
    path: PathBuf,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Tells other commands of this user about the cluster that this process runs.
pub(crate) fn enter(
    endpoints: Vec<String>,
    tls: Option<TlsFiles>,
    bearer_file: Option<PathBuf>,
) -> io::Result<Entry> {
    enter_in(&folder(), endpoints, tls, bearer_file)
}

/// The newest running `up` of this user.
pub(crate) fn newest() -> Option<Running> {
    newest_in(&folder())
}

fn enter_in(
    folder: &Path,
    endpoints: Vec<String>,
    tls: Option<TlsFiles>,
    bearer_file: Option<PathBuf>,
) -> io::Result<Entry> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    if made.is_err() || !ours(folder) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "'{}' is not a directory of this user alone",
                folder.display()
            ),
        ));
    }
    let pid = std::process::id();
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let running = Running {
        pid,
        began: began(pid),
        since_ms: since.map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        }),
        endpoints,
        tls,
        bearer_file,
    };
    let path = folder.join(format!("up-{pid}.json"));
    // Written aside and renamed, so that nobody reads half of it.
    let aside = folder.join(format!("up-{pid}.new"));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&aside)?;
    file.write_all(&serde_json::to_vec(&running)?)?;
    fs::rename(&aside, &path)?;
    Ok(Entry { path })
}

fn newest_in(folder: &Path) -> Option<Running> {
    if !ours(folder) {
        return None;
    }
    let entries = fs::read_dir(folder).ok()?.flatten().take(FILES_MAX);
    let paths = entries.map(|entry| entry.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    let running = paths.filter_map(|path| {
        let running: Running = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        alive(&running).then_some(running)
    });
    running.max_by_key(|running| running.since_ms)
}

/// Where the files are: below the user's run-time directory, or in the temporary one.
fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(path) if Path::new(&path).is_absolute() => PathBuf::from(path).join("conclave"),
        _ => PathBuf::from(format!("/tmp/conclave-{}", getuid().as_raw())),
    }
}

/// Whether the directory belongs to this user and nobody else may write there.
fn ours(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| {
        found.is_dir() && found.uid() == getuid().as_raw() && found.mode() & 0o022 == 0
    })
}

fn alive(running: &Running) -> bool {
    let Some(pid) = i32::try_from(running.pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    test_kill_process(pid).is_ok() && began(running.pid) == running.began
}

/// When a process began; none where the system does not tell.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the command stands in parentheses and may contain anything.
    let after = stat.rsplit(')').next()?;
    after.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_process_is_found_and_a_dead_one_is_not() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("conclave");
        assert_eq!(newest_in(&folder), None);
        let entry = enter_in(&folder, vec!["http://a:1".to_owned()], None, None).unwrap();
        let found = newest_in(&folder).unwrap();
        assert_eq!(found.endpoints, ["http://a:1"]);
        // A file of a process that is gone, and one whose number was given to another process.
        let gone = Running {
            pid: 999_999_999,
            since_ms: u64::MAX,
            ..found.clone()
        };
        fs::write(folder.join("up-1.json"), serde_json::to_vec(&gone).unwrap()).unwrap();
        let reused = Running {
            began: Some(1),
            since_ms: u64::MAX,
            ..found.clone()
        };
        fs::write(
            folder.join("up-2.json"),
            serde_json::to_vec(&reused).unwrap(),
        )
        .unwrap();
        fs::write(folder.join("up-3.json"), "{ not json").unwrap();
        assert_eq!(newest_in(&folder), Some(found));
        drop(entry);
        assert_eq!(newest_in(&folder), None);
    }

    #[test]
    fn a_directory_that_others_may_write_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(enter_in(place.path(), Vec::new(), None, None).is_err());
        let link = place.path().join("link");
        std::os::unix::fs::symlink(std::env::temp_dir(), &link).unwrap();
        assert!(!ours(&link), "a link may point anywhere");
    }
}
