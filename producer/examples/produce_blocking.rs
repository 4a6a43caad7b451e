//! Appends a hundred records to a stream without tasks, and prints where the last one is.
//!
//! `kera serve &`, `kera stream create clicks`, then
//! `cargo run --release -p kera-producer --example produce_blocking -- clicks`

use kera_producer::Record;
use kera_producer::blocking::Producer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stream = std::env::args().nth(1).ok_or("which stream? name it")?;
    let producer = Producer::builder()
        .bootstrap(std::env::var("KERA_BOOTSTRAP").unwrap_or("127.0.0.1:7600".into()))
        .stream(stream)
        .build_blocking()?;

    let mut last = None;
    for number in 0..100 {
        let key = format!("user-{}", number % 7);
        let value = format!("click {number}");
        // Encoded at once; waits only if the broker cannot keep up and memory is used up.
        let record = Record::keyed(key.as_bytes(), value.as_bytes());
        last = Some(producer.append_wait(&record)?);
    }
    // Everything is acknowledged when this returns.
    producer.flush()?;

    if let Some(delivery) = last {
        let place = delivery.wait()?;
        println!(
            "100 records appended, the last as record {} of lane {} of streamlet {}",
            place.ordinal, place.lane, place.streamlet
        );
    }
    producer.close()?;
    Ok(())
}
