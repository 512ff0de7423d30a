//! Fenced writes to a store of files: a holder that slept too long cannot spoil its successor's
//! work.
//!
//! No lock service can stop a process that is paused just before it writes: when it goes on, its
//! lock is long gone to somebody else. So the store itself checks. With every write comes the
//! token of the writer's lock; the store keeps a [`Fence`] per file and refuses whoever comes
//! after a later holder.
//!
//! Here a writer takes the lock and is paused for longer than its TTL (its whole runtime stands
//! still, so nobody renews the lock). Meanwhile another writer takes the lock and writes. Then the
//! first one goes on with its late write, and is refused.
//!
//! ```text
//! conclave up &
//! CONCLAVE_ENDPOINTS=http://127.0.0.1:PORT cargo run -p conclave-client --example fenced_store
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use conclave_client::{Client, Fence, Group, Guard, Token};

const TTL: Duration = Duration::from_secs(1);
const FILE: &str = "ledger.txt";

/// Files, each with its fence.
struct Store {
    directory: PathBuf,
    fences: Mutex<HashMap<String, Fence>>,
}

impl Store {
    /// Writes a file for a holder of its lock. `false` if a later holder was here already.
    fn write(&self, file: &str, text: &str, group: &Group, token: u64) -> io::Result<bool> {
        // Check and write are one step: nobody comes in between.
        let mut fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        let fence = fences.entry(file.to_owned()).or_default();
        if !fence.admit(group, Token(token)) {
            return Ok(false);
        }
        std::fs::write(self.directory.join(file), text)?;
        Ok(true)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let endpoints = std::env::var("CONCLAVE_ENDPOINTS")
        .map_err(|_| "set CONCLAVE_ENDPOINTS to the API URLs that `conclave up` prints")?;
    let directory = std::env::temp_dir().join(format!("conclave-store-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let store = Arc::new(Store {
        directory: directory.clone(),
        fences: Mutex::default(),
    });
    let (holds, held) = mpsc::channel();
    let (wake, paused) = mpsc::channel();
    let sleeper = std::thread::spawn({
        let (store, endpoints) = (store.clone(), endpoints.clone());
        move || sleeper(&store, &endpoints, &holds, &paused).map_err(|error| error.to_string())
    });
    let mut written = Ok(());
    if held.recv().is_ok() {
        written = successor(&store, &endpoints);
        wake.send(())?;
    }
    let refused = sleeper.join().map_err(|_| "the sleeper failed")??;
    let text = std::fs::read_to_string(directory.join(FILE))?;
    std::fs::remove_dir_all(&directory)?;
    written?;
    println!("the file says: {text}");
    if !refused || text != "written by the successor" {
        return Err("a late write was admitted".into());
    }
    Ok(())
}

async fn take(endpoints: &str, owner: &str) -> Result<Guard, Box<dyn Error>> {
    let builder = Client::builder().endpoints([endpoints]).owner(owner);
    let client = builder.connect().await?;
    let guard = client.lock("store/ledger").ttl(TTL).acquire().await?;
    println!("{owner}: holds the lock with token {}", guard.token());
    Ok(guard)
}

/// Takes the lock, is paused, and writes late. Says whether its write was refused.
fn sleeper(
    store: &Store,
    endpoints: &str,
    holds: &mpsc::Sender<()>,
    paused: &mpsc::Receiver<()>,
) -> Result<bool, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let guard = take(endpoints, "sleeper").await?;
        let (group, token) = (guard.group(), guard.token());
        holds.send(())?;
        println!("sleeper: is paused");
        // The only thread of its runtime stands still: nothing is renewed, nobody is told.
        paused.recv()?;
        let admitted = store.write(FILE, "written by the sleeper", &group, token)?;
        println!("sleeper: goes on; its late write was admitted: {admitted}");
        println!(
            "sleeper: by its own clock it holds the lock: {}",
            guard.is_held()
        );
        Ok(!admitted)
    })
}

/// Waits until the nodes have given the sleeper up, and writes.
fn successor(store: &Store, endpoints: &str) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let guard = take(endpoints, "successor").await?;
        let (group, token) = (guard.group(), guard.token());
        let admitted = store.write(FILE, "written by the successor", &group, token)?;
        println!("successor: its write was admitted: {admitted}");
        guard.release().await?;
        Ok(())
    })
}
