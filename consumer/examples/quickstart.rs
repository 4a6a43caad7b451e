//! Reads a stream as a member of a consumer group: start it twice and the two share the lanes.
//!
//! `cargo run --release -p kera-consumer --example quickstart -- flights`

use kera_consumer::{Consumer, Start};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stream = std::env::args().nth(1).ok_or("which stream? name it")?;
    let mut consumer = Consumer::builder()
        .bootstrap(std::env::var("KERA_BOOTSTRAP").unwrap_or("127.0.0.1:7600".into()))
        .stream(stream)
        .group("quickstart")
        .start(Start::Earliest)
        .open()
        .await?;

    // Until Ctrl-C, or until nothing came for a while if a limit is given in milliseconds.
    let idle_ms = std::env::args()
        .nth(2)
        .map_or(Ok(u64::MAX), |ms| ms.parse())?;
    let idle = std::time::Duration::from_millis(idle_ms);
    loop {
        let batch = tokio::select! {
            batch = consumer.next_batch() => batch?,
            () = tokio::time::sleep(idle) => break,
            _ = tokio::signal::ctrl_c() => break,
        };
        for record in batch.records() {
            let record = record?;
            let value = String::from_utf8_lossy(record.value.unwrap_or(b"null"));
            println!("{} {}: {value}", batch.lane().lane, record.ordinal);
        }
    }

    // Commits what was printed and leaves; others take over at once.
    println!("{} records", consumer.metrics().records);
    Ok(consumer.close().await?)
}
