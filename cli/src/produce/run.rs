//! Reads the input on a thread that may block, and appends as fast as it comes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use kera_producer::{AppendError, Delivery, Header, Producer, Record};
use tokio::runtime::Handle;

use super::input::{Input, InputRecord, InputRules};
use super::{Pace, ProduceArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{count, per_second, short_time};

/// Runs `kera produce`.
pub async fn run(args: ProduceArgs) -> Outcome {
    let rules = InputRules {
        format: args.format,
        key_field: args.key.clone(),
        key_separator: args.key_separator.clone(),
        null_marker: args.null_marker.clone(),
    };
    rules.check()?;
    // The first contact says clearly when nobody is there.
    args.connect.control().await?;
    let builder = Producer::builder()
        .bootstrap(&args.connect.bootstrap)
        .stream(&args.stream)
        .compression(args.compression.into());
    let producer = args.batching.apply(builder).build().await?;
    let begin = Instant::now();
    let progress = progress_bar(&args);
    let reader = open(&args.from, &progress)?;
    let sending = Sending {
        producer: producer.clone(),
        headers: args.headers.clone(),
        pace: args.rate.map(|rate| Pace::new(rate, begin)),
        runtime: Handle::current(),
        unconfirmed: VecDeque::new(),
        sent: 0,
    };
    let sent = tokio::task::spawn_blocking(move || sending.send_all(Input::new(rules, reader)?));
    let sent = sent.await?;
    // Also after a failure: what was taken before it is on its way.
    let flushed = producer.flush().await;
    progress.finish_and_clear();
    let sent = sent?;
    flushed?;
    if !args.quiet {
        let took = begin.elapsed();
        eprintln!(
            "{} record{} acknowledged in {} ({}/s)",
            count(sent),
            if sent == 1 { "" } else { "s" },
            short_time(took),
            count(per_second(sent, took))
        );
    }
    Ok(ExitCode::SUCCESS)
}

struct Sending {
    producer: Producer,
    headers: Vec<(String, String)>,
    pace: Option<Pace>,
    runtime: Handle,
    /// The last record of each batch that is not known to be stored.
    unconfirmed: VecDeque<Delivery>,
    sent: u64,
}

impl Sending {
    fn send_all(mut self, mut input: Input<impl BufRead>) -> Result<u64, Failure> {
        let headers = std::mem::take(&mut self.headers);
        let headers: Vec<Header<'_>> = headers
            .iter()
            .map(|(key, value)| Header {
                key,
                value: Some(value.as_bytes()),
            })
            .collect();
        let mut record = InputRecord::default();
        while input.next_into(&mut record)? {
            if let Some(wait) = self
                .pace
                .as_mut()
                .and_then(|pace| pace.next(Instant::now()))
            {
                self.runtime.block_on(tokio::time::sleep(wait));
            }
            self.send(&record, &headers)?;
        }
        Ok(self.sent)
    }

    fn send(&mut self, input: &InputRecord, headers: &[Header<'_>]) -> Result<(), Failure> {
        let record = Record {
            key: input.key.as_deref(),
            value: input.value.as_deref(),
            headers,
            timestamp: None,
        };
        let delivery = match self.producer.append(&record) {
            Err(AppendError::Full) => self.runtime.block_on(self.producer.append_wait(&record)),
            taken => taken,
        };
        let delivery = delivery.map_err(|error| {
            Failure::message(format!(
                "record {} of the input was not taken: {error}",
                self.sent + 1
            ))
        })?;
        self.sent += 1;
        match self.unconfirmed.back_mut() {
            Some(last) if last.same_batch(&delivery) => *last = delivery,
            _ => self.unconfirmed.push_back(delivery),
        }
        while let Some(result) = self.unconfirmed.front().and_then(Delivery::result) {
            result?;
            self.unconfirmed.pop_front();
        }
        Ok(())
    }
}

fn open(from: &Path, progress: &ProgressBar) -> Result<Box<dyn BufRead + Send>, Failure> {
    let reader: Box<dyn Read + Send> = if from.as_os_str() == "-" {
        Box::new(io::stdin())
    } else {
        let file = File::open(from).map_err(|error| {
            Failure::message(format!(
                "cannot read {}: {error}; check path and permissions",
                from.display()
            ))
        })?;
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        progress.set_length(length);
        Box::new(progress.wrap_read(file))
    };
    Ok(Box::new(BufReader::with_capacity(256 << 10, reader)))
}

/// A bar while a file is sent and a person watches.
fn progress_bar(args: &ProduceArgs) -> ProgressBar {
    let watched = io::stderr().is_terminal() && args.from.as_os_str() != "-" && !args.quiet;
    if !watched {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "[{bar:40.green}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style.progress_chars("=> "))
}
