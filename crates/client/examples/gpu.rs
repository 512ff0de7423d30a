//! One GPU that serves one model at a time.
//!
//! Loading a model is slow, so requests for the model that is loaded share the GPU, and requests
//! for another model wait until those inside are done. That is a group lock: the model's name is
//! the group. Requests that come late for the loaded model may pass waiting ones, but not for
//! ever: no model starves.
//!
//! ```text
//! conclave up &
//! CONCLAVE_ENDPOINTS=http://127.0.0.1:PORT cargo run -p conclave-client --example gpu
//! ```

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conclave_client::{AcquireError, Client};

/// The GPU: which model is loaded, and how often one was.
#[derive(Debug, Default)]
struct Gpu {
    model: &'static str,
    loads: u32,
    inside: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoints = std::env::var("CONCLAVE_ENDPOINTS")
        .map_err(|_| "set CONCLAVE_ENDPOINTS to the API URLs that `conclave up` prints")?;
    let client = Client::connect([endpoints]).await?;
    let gpu = Arc::new(Mutex::new(Gpu::default()));
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..12 {
        let model = ["whisper", "llama", "sdxl"][number % 3];
        requests.spawn(infer(number, model, client.clone(), gpu.clone()));
    }
    while let Some(done) = requests.join_next().await {
        done??;
    }
    let loads = gpu.lock().map_or(0, |gpu| gpu.loads);
    println!("12 requests for 3 models were served with {loads} loads");
    client.close().await;
    Ok(())
}

async fn infer(
    number: usize,
    model: &'static str,
    client: Client,
    gpu: Arc<Mutex<Gpu>>,
) -> Result<(), AcquireError> {
    let guard = client.lock("gpu/0").group(model).acquire().await?;
    let together = enter(&gpu, model);
    println!(
        "request {number:2}: {model}, {together} at once, token {}",
        guard.token()
    );
    tokio::time::sleep(Duration::from_millis(50)).await;
    if let Ok(mut gpu) = gpu.lock() {
        gpu.inside -= 1;
    }
    // Dropping the guard releases it.
    Ok(())
}

/// Uses the GPU, loading the model if another one is there. Says how many use it now.
fn enter(gpu: &Mutex<Gpu>, model: &'static str) -> u32 {
    let Ok(mut gpu) = gpu.lock() else { return 0 };
    if gpu.model != model {
        assert_eq!(gpu.inside, 0, "the lock keeps other models out");
        println!("-- loading {model}");
        gpu.model = model;
        gpu.loads += 1;
    }
    gpu.inside += 1;
    gpu.inside
}
