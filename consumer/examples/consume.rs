//! Reads a stream as a member of a consumer group: start it twice and the two share the lanes.
//!
//! `cargo run --release -p kera-consumer --example consume -- clicks`

use kera_consumer::{Consumer, Start};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let stream = args.next().ok_or("which stream? name it")?;
    // Until Ctrl-C, or until so many records are read.
    let enough = args.next().map_or(Ok(u64::MAX), |n| n.parse())?;
    let mut consumer = Consumer::builder()
        .bootstrap(std::env::var("KERA_BOOTSTRAP").unwrap_or("127.0.0.1:7600".into()))
        .stream(stream)
        .group("readers")
        .start(Start::Earliest)
        .open()
        .await?;

    while consumer.metrics().records < enough {
        let batch = tokio::select! {
            batch = consumer.next_batch() => batch?,
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
