//! Three workers elect a leader; a client finds it by its value, and follows when it resigns.
//!
//! Each worker stands for election with the address it serves at. Whoever leads works for a while
//! and resigns; the client follows from address to address and never goes back to an old one.
//!
//! ```text
//! conclave up &
//! CONCLAVE_ENDPOINTS=http://127.0.0.1:PORT cargo run -p conclave-client --example leader
//! ```

use std::error::Error;
use std::time::Duration;

use conclave_client::Client;

const ELECTION: &str = "scheduler";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoints = std::env::var("CONCLAVE_ENDPOINTS")
        .map_err(|_| "set CONCLAVE_ENDPOINTS to the API URLs that `conclave up` prints")?;
    let observer = Client::connect([&endpoints]).await?;
    let mut workers = tokio::task::JoinSet::new();
    for name in ["ada", "bob", "cyd"] {
        // On real hosts each process has its own client.
        let client = Client::builder()
            .endpoints([&endpoints])
            .owner(format!("scheduler on {name}"))
            .connect()
            .await?;
        workers.spawn(async move { serve(name, &client).await.map_err(|e| e.to_string()) });
    }
    let mut election = observer.observe(ELECTION);
    while !workers.is_empty() {
        tokio::select! {
            leading = election.next() => match leading?.leader {
                Some(leader) => println!(
                    "client: asks {} (token {})",
                    String::from_utf8_lossy(&leader.value),
                    leader.token
                ),
                None => println!("client: nobody leads"),
            },
            Some(done) = workers.join_next() => done??,
        }
    }
    Ok(())
}

async fn serve(name: &str, client: &Client) -> Result<(), Box<dyn Error>> {
    let leader = client
        .elect(ELECTION)
        .value(format!("{name}:8080"))
        .ttl(Duration::from_secs(5))
        .lead()
        .await?;
    println!("{name}: leads, token {}", leader.token());
    tokio::select! {
        () = leader.lost() => println!("{name}: lost the lead and stops at once"),
        () = tokio::time::sleep(Duration::from_millis(300)) => leader.resign().await?,
    }
    client.close().await;
    Ok(())
}
