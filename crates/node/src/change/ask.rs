//! How the nodes of a change ask each other how they stand: a greeting and its reply, on the port
//! where they serve otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use conclave_client::Security;
use conclave_client::secure::{Port, Tls};
use conclave_protocol::id::{NodeId, Token};
use conclave_protocol::lock::Record;
use conclave_protocol::membership::{AdoptionInput, Standing};
use conclave_wire::Cluster;
use conclave_wire::greeting::{
    Greeting, Rejection, Reply, Role, Service, decode_greeting, decode_reply, encode_greeting,
    encode_reply,
};
use conclave_wire::version::SPOKEN;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{Driver, Step};
use crate::{Options, StartError};

/// How long another node has to answer, and to ask.
const PATIENCE: Duration = Duration::from_secs(2);
/// So many connections are answered at once, and so many nodes asked.
const AT_ONCE: usize = 64;
/// No greeting or reply is longer.
const FRAME_MAX: usize = 64 * 1024;

/// What is needed to ask the other nodes, and to answer them.
pub(super) struct Asker {
    id: NodeId,
    process: u128,
    cluster: Cluster,
    /// Where the nodes of both configurations are.
    addresses: BTreeMap<NodeId, String>,
    security: Security,
    listener: TcpListener,
}

impl Asker {
    pub(super) fn new(options: &Options, old: Option<&Cluster>) -> Result<Self, StartError> {
        let system = |error: io::Error| StartError::System(error.to_string());
        let old = old.iter().flat_map(|old| &old.nodes);
        // The new file knows better where a node is.
        let nodes = old.chain(&options.cluster.nodes);
        let id = NodeId(options.id.saturating_sub(1));
        let listener = options.peer.try_clone().map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        Ok(Self {
            id,
            process: crate::node::process()?,
            cluster: options.cluster.clone(),
            addresses: nodes.map(|node| (node.node(), node.peer.clone())).collect(),
            security: options.security.clone(),
            listener,
        })
    }

    fn greeting(&self, target: NodeId) -> Greeting {
        Greeting {
            versions: SPOKEN,
            role: Role::Node(self.id),
            target,
            process: self.process,
            digest: self.cluster.digest(),
            facts: self.cluster.facts(),
            credential: None,
            service: Service::Change,
        }
    }

    /// What is said to whoever greets. How this node stands is no secret.
    fn reply(&self, greeting: &Greeting, standing: Option<Standing>) -> Reply {
        let version = greeting.choose_version();
        let refusal = if let Err(refusal) = &version {
            Some(refusal.clone())
        } else if greeting.target != self.id {
            Some(Rejection::OtherNode { node: self.id })
        } else if greeting.service == Service::Change {
            None
        } else {
            let why = "the cluster changes its configuration and serves nothing yet".to_owned();
            Some(Rejection::Service { why })
        };
        Reply {
            version: version.unwrap_or(SPOKEN.newest()),
            node: self.id,
            process: self.process,
            standing: standing.filter(|_| refusal.is_none()),
            refusal,
        }
    }
}

/// What a change has come to: records to write, the mark of leases, and whether they were lost.
type Outcome = (Vec<Record>, Token, bool);

/// Asks and answers until the change is done. It has a thread of its own, since whoever starts a
/// node may be a task.
pub(super) fn run(driver: Driver, asker: Asker) -> Result<Outcome, StartError> {
    let system = |error: io::Error| StartError::System(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || runtime.block_on(talk(driver, asker)));
        let ended = thread.join();
        ended.unwrap_or_else(|panic| Err(StartError::System(crate::sentry::words(&*panic))))
    })
}

async fn talk(mut driver: Driver, asker: Asker) -> Result<Outcome, StartError> {
    let system = |error: io::Error| StartError::System(error.to_string());
    let listener = asker.listener.try_clone().map_err(system)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(system)?;
    let asker = Arc::new(asker);
    let (tell, mut heard) = mpsc::channel(AT_ONCE);
    let (stand, stands) = watch::channel(None);
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut asked = BTreeSet::new();
    let mut tasks = JoinSet::new();
    let mut input = AdoptionInput::Durable;
    loop {
        match driver.step(input)? {
            Step::Done(records, mark, lost) => return Ok((records, mark, lost)),
            Step::Ask(nodes) => {
                for node in nodes {
                    if asked.len() < AT_ONCE && asked.insert(node) {
                        tasks.spawn(ask(asker.clone(), node, tell.clone()));
                    }
                }
            }
        }
        let standing = driver.machine.standing((driver.clock)());
        stand.send_replace(standing);
        input = tokio::select! {
            Some((node, standing)) = heard.recv() => {
                asked.remove(&node);
                let heard = |standing| AdoptionInput::Heard(node, standing);
                standing.map_or(AdoptionInput::Wake, heard)
            }
            accepted = listener.accept() => {
                let turn = turns.clone().try_acquire_owned();
                if let (Ok((stream, _)), Ok(turn)) = (accepted, turn) {
                    let (asker, stands) = (asker.clone(), stands.clone());
                    tasks.spawn(async move {
                        // Whoever does not get through asks again.
                        let answered = answer(&asker, stream, &stands);
                        let _ = tokio::time::timeout(PATIENCE, answered).await;
                        drop(turn);
                    });
                }
                AdoptionInput::Wake
            }
            Some(ended) = tasks.join_next() => {
                // A fault in this program: the change would wait for ever.
                ended.map_err(|error| StartError::System(error.to_string()))?;
                AdoptionInput::Wake
            }
            () = tokio::time::sleep(driver.timeout()) => AdoptionInput::Wake,
        };
    }
}

/// Plain or over TLS.
trait Both: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Both for T {}

/// Asks a node how it stands, and tells what it says.
async fn ask(asker: Arc<Asker>, node: NodeId, tell: mpsc::Sender<(NodeId, Option<Standing>)>) {
    let asked = tokio::time::timeout(PATIENCE, question(&asker, node)).await;
    let standing = match asked {
        Ok(Ok(reply)) => match reply.accepted_by(node) {
            Ok(_) => reply.standing,
            Err(refusal) => {
                tracing::debug!(%node, %refusal, "a node does not say how it stands");
                None
            }
        },
        Ok(Err(error)) => {
            tracing::debug!(%node, %error, "a node cannot be asked how it stands");
            None
        }
        Err(_) => None,
    };
    // Whoever asked may be done.
    let _ = tell.send((node, standing)).await;
}

async fn question(asker: &Asker, node: NodeId) -> io::Result<Reply> {
    let address = asker.addresses.get(&node).cloned().unwrap_or_default();
    let stream = TcpStream::connect(address).await?;
    let mut stream: Box<dyn Both> = match asker.security.tls() {
        None => Box::new(stream),
        Some(tls) => {
            let name = Tls::peer_name(&asker.cluster.name, node.0.saturating_add(1));
            let connector = TlsConnector::from(tls.client_config());
            Box::new(connector.connect(name, stream).await?)
        }
    };
    let mut bytes = Vec::new();
    encode_greeting(&asker.greeting(node), &mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    whole(&mut stream, |bytes| {
        let reply = decode_reply(bytes).map_err(io::Error::other)?;
        Ok(reply.map(|(reply, _)| reply))
    })
    .await
}

/// Answers whoever has connected.
async fn answer(
    asker: &Asker,
    stream: TcpStream,
    stands: &watch::Receiver<Option<Standing>>,
) -> io::Result<()> {
    let tls = asker.security.tls();
    let mut stream: Box<dyn Both> = match tls.and_then(|tls| tls.server_config(Port::Peer)) {
        None => Box::new(stream),
        Some(config) => Box::new(TlsAcceptor::from(config).accept(stream).await?),
    };
    let greeting = whole(&mut stream, |bytes| {
        let greeting = decode_greeting(bytes).map_err(io::Error::other)?;
        Ok(greeting.map(|(greeting, _)| greeting))
    })
    .await?;
    let standing = *stands.borrow();
    let mut bytes = Vec::new();
    encode_reply(&asker.reply(&greeting, standing), &mut bytes);
    stream.write_all(&bytes).await?;
    stream.shutdown().await
}

/// Reads until `decode` finds one whole frame.
async fn whole<T>(
    stream: &mut Box<dyn Both>,
    decode: impl Fn(&[u8]) -> io::Result<Option<T>>,
) -> io::Result<T> {
    let mut bytes = Vec::new();
    loop {
        if let Some(frame) = decode(&bytes)? {
            return Ok(frame);
        }
        if bytes.len() > FRAME_MAX || stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
