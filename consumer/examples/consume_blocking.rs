//! Reads a stream as a member of a consumer group, without tasks: start it twice and the two share the lanes.
//!
//! `cargo run --release -p kera-consumer --example consume_blocking -- clicks`

use std::time::Duration;

use kera_consumer::Start;
use kera_consumer::blocking::Consumer;

/// Ends when nothing has come for so long.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let stream = args.next().ok_or("which stream? name it")?;
    // Or when so many records are read.
    let enough = args.next().map_or(Ok(u64::MAX), |n| n.parse())?;
    let mut consumer = Consumer::builder()
        .bootstrap(std::env::var("KERA_BOOTSTRAP").unwrap_or("127.0.0.1:7600".into()))
        .stream(stream)
        .group("readers")
        .start(Start::Earliest)
        .open_blocking()?;

    while consumer.metrics().records < enough
        && let Some(batch) = consumer.next_batch_within(PATIENCE)?
    {
        for record in batch.records() {
            let record = record?;
            let value = String::from_utf8_lossy(record.value.unwrap_or(b"null"));
            println!("{} {}: {value}", batch.lane().lane, record.ordinal);
        }
    }

    // Commits what was printed and leaves; others take over at once.
    println!("{} records", consumer.metrics().records);
    Ok(consumer.close()?)
}
