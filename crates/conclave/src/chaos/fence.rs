//! The resource that the locks of a chaos run protect: it admits a write only with a token that
//! is not behind those of other groups. It writes down what it decided, when it decided it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use conclave_client::{Fence, Group, Token, clock};
use conclave_protocol::id::{RequestNo, SessionId};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The fences of all locks, and what they decided.
#[derive(Debug)]
struct Resource<W> {
    fences: HashMap<String, Fence>,
    log: W,
}

/// Serves the resource on a port of the system's choice: a line of client, life, key, name, group
/// and token, with tabs between them, is answered with `1` (admitted) or `0` (refused).
pub(super) async fn serve(history: &Path) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let resource = Arc::new(Mutex::new(Resource {
        fences: HashMap::new(),
        log: File::create(history)?,
    }));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, resource.clone()));
        }
    });
    Ok(address)
}

async fn answer(stream: TcpStream, resource: Arc<Mutex<Resource<File>>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Some(line) = lines.next_line().await? {
        let admitted = {
            let mut resource = resource.lock().unwrap_or_else(PoisonError::into_inner);
            resource.admit(&line)?
        };
        let admitted = admitted.unwrap_or(false);
        to.write_all(if admitted { b"1\n" } else { b"0\n" }).await?;
    }
    Ok(())
}

impl<W: Write> Resource<W> {
    /// Whether whoever sent this line may pass; none if it makes no sense.
    fn admit(&mut self, line: &str) -> io::Result<Option<bool>> {
        let parts: Vec<&str> = line.split('\t').collect();
        let [client, life, key, name, group, token] = parts[..] else {
            return Ok(None);
        };
        let number = |text: &str| text.parse::<u64>().ok();
        let (Some(group), Some(token)) = (parse_group(group), number(token)) else {
            return Ok(None);
        };
        let fence = self.fences.entry(name.to_owned()).or_default();
        let admitted = fence.admit(&group, Token(token));
        let line = json!({
            "at": clock::now().mono.nanos(),
            "client": number(client),
            "life": number(life),
            "key": number(key),
            "name": name,
            "event": "acted",
            "token": token,
            "admitted": admitted,
        });
        self.log.write_all(format!("{line}\n").as_bytes())?;
        Ok(Some(admitted))
    }
}

/// A group from the text that the API tells (see [`Group`]'s display).
pub(super) fn parse_group(text: &str) -> Option<Group> {
    if text == "shared" {
        return Some(Group::Shared);
    }
    if let Some(name) = text.strip_prefix("group:") {
        return Some(Group::Named(name.as_bytes().into()));
    }
    let own = text.strip_prefix("own:")?;
    let id = |hex: &str| u128::from_str_radix(hex, 16).ok().map(SessionId);
    match own.split_once('/') {
        Some((session, request)) => Some(Group::Request(
            id(session)?,
            RequestNo(request.parse().ok()?),
        )),
        None => id(own).map(Group::Session),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_back_from_their_text() {
        for group in [
            Group::Shared,
            Group::Named(b"red".as_slice().into()),
            Group::Session(SessionId(77)),
            Group::Request(SessionId(u128::MAX), RequestNo(5)),
        ] {
            assert_eq!(parse_group(&group.to_string()), Some(group));
        }
        assert_eq!(parse_group("own:zz/1"), None);
    }

    #[test]
    fn the_past_is_refused() {
        let mut resource = Resource {
            fences: HashMap::new(),
            log: Vec::new(),
        };
        let mut admit = |line: &str| resource.admit(line).unwrap();
        assert_eq!(admit("1\t1\t1\tx\town:1/1\t5"), Some(true));
        assert_eq!(admit("2\t1\t1\tx\town:2/1\t9"), Some(true));
        assert_eq!(admit("1\t1\t1\tx\town:1/1\t5"), Some(false));
        assert_eq!(admit("nonsense"), None);
        let log = String::from_utf8(resource.log).unwrap();
        assert_eq!(log.lines().count(), 3, "{log}");
    }
}
