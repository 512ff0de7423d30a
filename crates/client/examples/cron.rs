//! A cron job that is installed on many hosts and runs on one of them.
//!
//! Three "hosts" wake up at the same time and all want to run tonight's backup. Each tries the
//! lock of the job; whoever gets it runs, the others go back to sleep. The lock is kept a little
//! longer than the job takes, so that a host whose clock is late finds it taken too.
//!
//! ```text
//! conclave up &
//! CONCLAVE_ENDPOINTS=http://127.0.0.1:PORT cargo run -p conclave-client --example cron
//! ```

use std::error::Error;
use std::time::Duration;

use conclave_client::Client;

/// Longer than the clocks of two hosts differ.
const SKEW: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoints = std::env::var("CONCLAVE_ENDPOINTS")
        .map_err(|_| "set CONCLAVE_ENDPOINTS to the API URLs that `conclave up` prints")?;
    let mut hosts = tokio::task::JoinSet::new();
    for host in ["ada", "bob", "cyd"] {
        // On real hosts each process has its own client.
        let client = Client::builder()
            .endpoints([&endpoints])
            .owner(format!("backup on {host}"))
            .connect()
            .await?;
        hosts.spawn(async move { midnight(host, &client).await.map_err(|e| e.to_string()) });
    }
    while let Some(done) = hosts.join_next().await {
        done??;
    }
    Ok(())
}

async fn midnight(host: &str, client: &Client) -> Result<(), Box<dyn Error>> {
    let Some(guard) = client.lock("cron/backup").try_acquire().await? else {
        println!("{host}: another host runs the backup; nothing to do");
        return Ok(());
    };
    println!("{host}: runs the backup, token {}", guard.token());
    tokio::select! {
        () = backup() => println!("{host}: the backup is done"),
        () = guard.lost() => {
            println!("{host}: lost touch with the cluster and stops: another host may have begun");
            return Ok(());
        }
    }
    tokio::time::sleep(SKEW).await;
    guard.release().await?;
    client.close().await;
    Ok(())
}

async fn backup() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}
