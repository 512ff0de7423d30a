//! One connection to the keeper of one node, made again as long as somebody wants something.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::NodeId;
use conclave_wire::codec::{First, first_frame};
use conclave_wire::greeting::{Rejection, Service, decode_reply};
use conclave_wire::keeper::decode_answer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use super::Shared;
use super::core::Stage;
use crate::dial::{Hello, dial, is_stranger};
use crate::directory::Directory;
use crate::secure::{Security, Side, explain, is_lasting};

/// How much is read at a time.
const CHUNK: usize = 64 << 10;
/// The waits between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Against a node that refuses us for good.
const PAUSE_MISFIT: Duration = Duration::from_secs(10);
/// How long a node may take to accept a connection and to greet.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a closing driver waits until a node has read what it said.
const LINGER: Duration = Duration::from_secs(1);

/// What a connection is made with.
pub(super) struct Dialler {
    pub(super) node: NodeId,
    pub(super) directory: Directory,
    pub(super) security: Security,
    pub(super) hello: Arc<Hello>,
}

/// Why a connection is over, and whether trying again does not help.
type Why = (String, bool);

/// Keeps a connection to a node while one is wanted, until the driver closes.
pub(super) async fn run(dialler: Dialler, shared: Arc<Shared>) {
    let node = dialler.node;
    let bell = shared.with(|core| core.links[node.index()].bell.clone());
    let mut pause = PAUSE_MIN;
    loop {
        while !shared.with(|core| core.wanted() || core.stage != Stage::Running) {
            bell.notified().await;
        }
        if shared.with(|core| core.stage != Stage::Running) {
            return;
        }
        let opened = tokio::time::timeout(PATIENCE, open(&dialler, &shared));
        let opened = tokio::select! {
            opened = opened => opened,
            () = closing(&bell, &shared) => return,
        };
        let opened = opened.unwrap_or_else(|_| Err(("no answer in time".to_owned(), false)));
        let (why, lasting) = match opened {
            Ok((stream, rest)) => {
                pause = PAUSE_MIN;
                dialler.directory.reached(node);
                shared.with(|core| core.opened(node));
                talk(stream, rest, node, &bell, &shared).await
            }
            Err(why) => {
                dialler.directory.failed(node);
                why
            }
        };
        shared.with(|core| core.closed(node, why, lasting));
        let span = if lasting { PAUSE_MISFIT } else { pause };
        // Clients that lost a node together do not come back together.
        let span = span.mul_f64(0.5 + 0.5 * chance());
        pause = (pause * 2).min(PAUSE_MAX);
        let sleep = tokio::time::sleep(span);
        tokio::pin!(sleep);
        while shared.with(|core| core.stage == Stage::Running) {
            tokio::select! {
                () = &mut sleep => break,
                () = bell.notified() => {}
            }
        }
    }
}

/// Ends when the driver closes.
async fn closing(bell: &Notify, shared: &Shared) {
    while shared.with(|core| core.stage == Stage::Running) {
        bell.notified().await;
    }
}

fn chance() -> f64 {
    f64::from(super::random() as u32) / f64::from(u32::MAX)
}

/// Connects and greets; what came after the reply is not lost.
async fn open(dialler: &Dialler, shared: &Shared) -> Result<(crate::secure::Stream, Vec<u8>), Why> {
    let (node, peer) = (dialler.node, &dialler.directory.peer(dialler.node));
    let failed = |error: std::io::Error| {
        let why = format!("cannot connect to {peer}: {}", explain(&error, Side::Node));
        (why, is_lasting(&error))
    };
    let cluster = dialler.hello.cluster();
    let mut stream = dial(peer, &dialler.security, &cluster, node)
        .await
        .map_err(failed)?;
    let hello = dialler.hello.bytes(node, Service::Keeper);
    stream.write_all(&hello).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let mut bytes = Vec::new();
    loop {
        if let Some((reply, length)) =
            decode_reply(&bytes).map_err(|error| (error.to_string(), false))?
        {
            let stranger = matches!(reply.refusal, Some(Rejection::Credential));
            shared.with(|core| core.unauthenticated = stranger);
            if is_stranger(node, &reply) {
                dialler.directory.refused(node);
            }
            dialler.hello.judge(node, &reply)?;
            bytes.drain(..length);
            return Ok((stream, bytes));
        }
        if stream.read_buf(&mut bytes).await.map_err(failed)? == 0 {
            return Err(("the node closed the connection".to_owned(), false));
        }
    }
}

/// Reads and writes until one of them ends.
async fn talk(
    stream: crate::secure::Stream,
    rest: Vec<u8>,
    node: NodeId,
    bell: &Notify,
    shared: &Shared,
) -> Why {
    let (reads, writes) = tokio::io::split(stream);
    tokio::select! {
        why = read(reads, rest, node, shared) => (why, false),
        why = write(writes, node, bell, shared) => (why, false),
    }
}

async fn read(
    mut stream: impl AsyncRead + Unpin,
    mut bytes: Vec<u8>,
    node: NodeId,
    shared: &Shared,
) -> String {
    loop {
        let mut answers = Vec::new();
        let mut taken = 0;
        loop {
            match first_frame(&bytes[taken..], decode_answer) {
                Ok(First::Message(answer, length)) => {
                    taken += length;
                    answers.push(answer);
                }
                // A newer node may send what this build does not know.
                Ok(First::Unknown(length)) => taken += length,
                Ok(First::Partial) => break,
                Err(error) => return error.to_string(),
            }
        }
        bytes.drain(..taken);
        if bytes.is_empty() {
            bytes.shrink_to(4 * CHUNK);
        }
        if !answers.is_empty() {
            shared.with(|core| {
                core.counters.bytes_received += taken as u64;
                for answer in answers {
                    core.heard(node, answer);
                }
            });
        }
        bytes.reserve(CHUNK);
        match stream.read_buf(&mut bytes).await {
            Ok(0) => return "the node closed the connection".to_owned(),
            Ok(_) => {}
            Err(error) => return explain(&error, Side::Node),
        }
    }
}

async fn write(
    mut stream: impl AsyncWrite + Unpin,
    node: NodeId,
    bell: &Notify,
    shared: &Shared,
) -> String {
    loop {
        let (out, closing) = shared.with(|core| {
            let out = std::mem::take(&mut core.links[node.index()].out);
            core.counters.bytes_sent += out.len() as u64;
            (out, core.stage == Stage::Closing)
        });
        if out.is_empty() {
            if closing {
                // A node that has read everything closes its side: only then is nothing lost.
                let _ = tokio::time::timeout(LINGER, stream.shutdown()).await;
                tokio::time::sleep(LINGER).await;
                return "closed".to_owned();
            }
            bell.notified().await;
            continue;
        }
        let written = async {
            stream.write_all(&out).await?;
            stream.flush().await
        };
        tokio::pin!(written);
        let wrote = loop {
            tokio::select! {
                wrote = &mut written => break wrote,
                () = tokio::time::sleep(LINGER) => {
                    if shared.with(|core| core.is_stuck(node)) {
                        return "the node does not read what is sent to it".to_owned();
                    }
                }
            }
        };
        if let Err(error) = wrote {
            return explain(&error, Side::Node);
        }
    }
}
