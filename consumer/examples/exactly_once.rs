//! Counts every record exactly once, whatever crashes: results and positions are stored together in
//! one atomic step, and what is stored decides where reading goes on. Here the "database" is one
//! file that is replaced by a rename.
//!
//! `cargo run --release -p kera-consumer --example exactly_once -- clicks counts.txt`

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::{fs, io};

use kera_consumer::Consumer;

/// (streamlet, lane) -> (next ordinal, records counted below it).
type Counts = BTreeMap<(u32, u32), (u64, u64)>;

fn load(path: &str) -> Counts {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let numbers: Vec<u64> = line.split(' ').map_while(|n| n.parse().ok()).collect();
        match numbers[..] {
            [streamlet, lane, next, count] => {
                Some(((streamlet as u32, lane as u32), (next, count)))
            }
            _ => None,
        }
    });
    lines.collect()
}

fn store(path: &str, counts: &Counts) -> io::Result<()> {
    let lines = counts
        .iter()
        .map(|((streamlet, lane), (next, count))| format!("{streamlet} {lane} {next} {count}\n"));
    fs::write(format!("{path}.new"), lines.collect::<String>())?;
    fs::rename(format!("{path}.new"), path)
}

fn total(counts: &Mutex<Counts>) -> u64 {
    let counts = counts.lock().unwrap_or_else(|broken| broken.into_inner());
    counts.values().map(|(_, count)| count).sum()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(stream), Some(path)) = (args.next(), args.next()) else {
        return Err("name a stream and a file".into());
    };
    // Until Ctrl-C, or until so many records are counted in all.
    let enough = args.next().map_or(Ok(u64::MAX), |n| n.parse())?;
    let counts = Arc::new(Mutex::new(load(&path)));
    let stored = counts.clone();
    let mut consumer = Consumer::builder()
        .bootstrap(std::env::var("KERA_BOOTSTRAP").unwrap_or("127.0.0.1:7600".into()))
        .stream(stream)
        .group("exactly-once")
        .manual_commit()
        // The file is ahead of the group's commits if a crash came between the two.
        .resume_from(move |lane, _committed| {
            let counts = stored.lock().unwrap_or_else(|broken| broken.into_inner());
            counts
                .get(&(lane.streamlet.0, lane.lane.0))
                .map(|(next, _)| *next)
        })
        .open()
        .await?;

    while total(&counts) < enough {
        let batch = tokio::select! {
            batch = consumer.next_batch() => batch?,
            _ = tokio::signal::ctrl_c() => break,
        };
        let lane = (batch.lane().streamlet.0, batch.lane().lane.0);
        {
            let mut counts = counts.lock().unwrap_or_else(|broken| broken.into_inner());
            let (next, count) = counts.entry(lane).or_default();
            *count += batch.len() as u64;
            *next = batch.next_ordinal();
            store(&path, &counts)?;
        }
        // Only now may the group forget the records.
        consumer.mark(&batch)?;
    }
    consumer.close().await?;
    println!("{} records counted, each once", total(&counts));
    Ok(())
}
