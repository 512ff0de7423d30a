//! What the operating system grants a node, and what it is told: open files, the service manager.

use std::io;
use std::time::Duration;

use conclave_wire::Cluster;

use super::place::shown;
use super::settings::{Given, Source};
use crate::cli::Failure;

/// Raises the number of files that this process may open to the most that it may ask for, and
/// gives the number before and now. Every connection is an open file, and the usual limit is
/// made for programs with a handful of them.
#[cfg(unix)]
pub(crate) fn raise_open_files() -> io::Result<(u64, u64)> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let found = getrlimit(Resource::Nofile);
    let before = found.current.unwrap_or(u64::MAX);
    if found.current == found.maximum {
        return Ok((before, before));
    }
    let wanted = Rlimit {
        current: found.maximum,
        ..found
    };
    setrlimit(Resource::Nofile, wanted)?;
    Ok((before, found.maximum.unwrap_or(u64::MAX)))
}

#[cfg(not(unix))]
pub(crate) fn raise_open_files() -> io::Result<(u64, u64)> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Tells the service manager that started this process how it does, if there is one: `READY=1`,
/// `WATCHDOG=1` or `STOPPING=1`, as in the manual page `sd_notify(3)`.
pub(crate) fn tell_manager(what: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
        return;
    };
    if let Err(error) = datagram(&address, what.as_bytes()) {
        tracing::warn!("cannot tell the service manager '{what}': {error}");
    }
}

/// How often the service manager's watchdog is to be fed, if it watches this process: three times
/// in the time after which it would end it.
pub(crate) fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    watchdog_of(number("WATCHDOG_USEC"), number("WATCHDOG_PID"))
}

fn watchdog_of(micros: Option<u64>, pid: Option<u64>) -> Option<Duration> {
    let ours = pid.is_none_or(|pid| pid == u64::from(std::process::id()));
    let micros = micros.filter(|micros| *micros > 0 && ours)?;
    Some(Duration::from_micros(micros) / 3)
}

#[cfg(target_os = "linux")]
fn datagram(address: &std::ffi::OsStr, text: &[u8]) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(address)?,
        // Virtual machines may be told of other kinds of sockets.
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    UnixDatagram::unbound()?.send_to_addr(text, &address)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn datagram(_: &std::ffi::OsStr, _: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The name of this host up to its first dot.
#[cfg(unix)]
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

#[cfg(not(unix))]
pub(crate) fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// The node whose peer address begins with the name of this host.
pub(crate) fn id_of_host(cluster: &Cluster) -> Result<Given<u32>, Failure> {
    id_of(cluster, &host_name())
}

fn id_of(cluster: &Cluster, host: &str) -> Result<Given<u32>, Failure> {
    let first = |peer: &str| {
        let name = peer.split([':', '.']).next().unwrap_or_default();
        !host.is_empty() && name.eq_ignore_ascii_case(host)
    };
    let fits: Vec<u32> = cluster
        .nodes
        .iter()
        .filter(|node| first(&node.peer))
        .map(|node| node.id)
        .collect();
    let wrong = |why: String| {
        Err(Failure::Input(format!(
            "id_from_hostname: {why} of the cluster '{}' begins with '{}', the name of this host; \
             give --id",
            shown(&cluster.name),
            shown(host)
        )))
    };
    match fits[..] {
        [value] => Ok(Given {
            value,
            from: Source::Flag("id-from-hostname"),
        }),
        [] => wrong("no peer address".to_owned()),
        _ => wrong(format!("the peer address of {} nodes", fits.len())),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn the_manager_hears_on_paths_and_on_abstract_names() {
        use std::os::linux::net::SocketAddrExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("conclave-test-{}", std::process::id());
        let abstract_name = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let sockets = [
            (path.clone().into_os_string(), UnixDatagram::bind(&path)),
            (
                format!("@{name}").into(),
                UnixDatagram::bind_addr(&abstract_name),
            ),
        ];
        for (address, socket) in sockets {
            let socket = socket.unwrap();
            datagram(&address, b"READY=1").unwrap();
            let mut text = [0; 20];
            let size = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..size], b"READY=1");
        }
        assert!(datagram("vsock:1:2".as_ref(), b"READY=1").is_err());
        assert!(datagram("@".repeat(200).as_ref(), b"READY=1").is_err());
    }

    #[test]
    fn the_watchdog_is_fed_by_the_process_that_it_watches() {
        let own = u64::from(std::process::id());
        let second = Some(Duration::from_secs(1));
        assert_eq!(watchdog_of(Some(3_000_000), None), second);
        assert_eq!(watchdog_of(Some(3_000_000), Some(own)), second);
        assert_eq!(watchdog_of(Some(3_000_000), Some(own + 1)), None);
        assert_eq!(watchdog_of(None, Some(own)), None);
        assert_eq!(watchdog_of(Some(0), None), None);
    }

    #[test]
    fn open_files_are_raised_to_the_most_there_is() {
        let (before, now) = raise_open_files().unwrap();
        assert!(now >= before);
        assert_eq!(raise_open_files().unwrap(), (now, now), "nothing is left");
    }

    #[test]
    fn a_host_finds_its_number_by_its_name() {
        let text = r#"
            name = "test"
            epoch = 1
            quorum = "majority"
            nodes = [
                { id = 1, peer = "lock-0.lock.svc:7000", api = "http://a:1" },
                { id = 2, peer = "lock-1.lock.svc:7000", api = "http://b:1" },
                { id = 3, peer = "lock-10:7000", api = "http://c:1" },
                { id = 4, peer = "twin:7000", api = "http://d:1" },
                { id = 5, peer = "twin.b:7000", api = "http://e:1" },
            ]
        "#;
        let cluster: Cluster = toml::from_str(text).unwrap();
        let id = |host: &str| id_of(&cluster, host).map(|given| given.value);
        assert_eq!(id("lock-0").unwrap(), 1);
        assert_eq!(id("LOCK-1").unwrap(), 2);
        assert_eq!(id("lock-10").unwrap(), 3);
        for wrong in ["lock", "lock-2", "twin", ""] {
            let Err(Failure::Input(text)) = id(wrong) else {
                panic!("'{wrong}' is a node");
            };
            assert!(text.contains("give --id"), "{text}");
        }
    }
}
