//! Reads the input on a thread that may block, and appends as fast as it comes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use kera_producer::{AppendError, Delivery, Header, Producer, Record};
use tokio::runtime::Handle;

use super::input::{Input, InputRecord, InputRules};
use super::{Pace, ProduceArgs};
use crate::failure::{Failure, Outcome};
use crate::interrupts::Interrupts;
use crate::output::{count, per_second, say, short_time};

/// Exit status of a command that a signal ended, as shells tell it of Ctrl-C.
const INTERRUPTED: i32 = 130;
/// Beside the number of records sent: no more are to follow.
const NO_MORE: u64 = 1 << 63;

/// Runs `kera produce`.
pub(crate) async fn run(args: ProduceArgs) -> Outcome {
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
        .connect(args.connect.options()?)
        .stream(&args.stream)
        .compression(args.compression.into());
    let producer = args.batching.apply(builder).build().await?;
    let begin = Instant::now();
    let progress = progress_bar(&args);
    let reader = open(&args.from, &progress)?;
    let pace = args.rate.map(|rate| Pace::new(rate, begin));
    let sending = Sending::new(producer.clone(), args.headers.clone(), pace);
    let sent = sending.sent.clone();
    let mut interrupts = Interrupts::new()?;
    let sent = tokio::select! {
        sent = send_input(sending, move || Input::new(rules, reader)) => sent,
        signal = interrupts.next() => {
            progress.finish_and_clear();
            end_interrupted(&producer, &sent, signal, interrupts).await
        }
    };
    progress.finish_and_clear();
    let sent = sent?;
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

/// Waits for what was sent before a signal, says what became of it and ends the process: the thread that reads the input may
/// stand in a read that nothing ends. Another signal ends the wait.
#[expect(
    clippy::disallowed_methods,
    reason = "the runtime would wait for the thread that reads the input"
)]
async fn end_interrupted(
    producer: &Producer,
    sent: &AtomicU64,
    signal: &str,
    mut interrupts: Interrupts,
) -> ! {
    // From here on the thread that reads takes no further record.
    let sent = sent.fetch_or(NO_MORE, Ordering::SeqCst);
    say(&format!(
        "{signal}: waits for what was sent; another one ends that"
    ));
    tokio::select! {
        // What it gives up is counted below.
        _ = producer.flush() => {}
        _ = interrupts.next() => {}
    }
    let acknowledged = producer.metrics().records_acknowledged;
    say(&format!(
        "error: ended by {signal}{}",
        fates(sent, acknowledged)
    ));
    std::process::exit(INTERRUPTED)
}

/// Sends an input's records and waits for all of them. How many there were.
async fn send_input<R: BufRead + 'static>(
    mut sending: Sending,
    open: impl FnOnce() -> Result<Input<R>, Failure> + Send + 'static,
) -> Result<u64, Failure> {
    let (sending, ended) = tokio::task::spawn_blocking(move || {
        let ended = open().and_then(|input| sending.send_all(input));
        (sending, ended)
    })
    .await?;
    sending.settle(ended).await
}

struct Sending {
    producer: Producer,
    headers: Vec<(String, String)>,
    pace: Option<Pace>,
    runtime: Handle,
    /// The last record of each batch that is not known to be stored.
    unconfirmed: VecDeque<Delivery>,
    /// Records that were given to the producer, with the one at hand; [`NO_MORE`] beside it once a signal came.
    sent: Arc<AtomicU64>,
}

impl Sending {
    fn new(producer: Producer, headers: Vec<(String, String)>, pace: Option<Pace>) -> Self {
        Self {
            producer,
            headers,
            pace,
            runtime: Handle::current(),
            unconfirmed: VecDeque::new(),
            sent: Arc::default(),
        }
    }

    /// Sends records until the input ends or something fails.
    fn send_all(&mut self, mut input: Input<impl BufRead>) -> Result<(), Failure> {
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
        Ok(())
    }

    /// Waits for all that was sent, also after a failure: what was taken before it is on its way.
    /// How many records were sent, if all of them are acknowledged.
    async fn settle(self, ended: Result<(), Failure>) -> Result<u64, Failure> {
        let mut settled = self.producer.flush().await;
        // Of what was given up while the input stood still, a flush may know nothing any more.
        for delivery in self.unconfirmed {
            settled = settled.and(delivery.await.map(|_| ()));
        }
        let acknowledged = self.producer.metrics().records_acknowledged;
        let sent = self.sent.load(Ordering::SeqCst);
        let failed = match ended.and(settled.map_err(Failure::from)) {
            Err(failed) => failed.text(),
            Ok(()) if acknowledged == sent => return Ok(sent),
            Ok(()) => "records were given up".to_owned(),
        };
        Err(Failure::message(format!(
            "{failed}{}",
            fates(sent, acknowledged)
        )))
    }

    fn send(&mut self, input: &InputRecord, headers: &[Header<'_>]) -> Result<(), Failure> {
        let record = Record {
            key: input.key.as_deref(),
            value: input.value.as_deref(),
            headers,
            timestamp: None,
        };
        let before = self.sent.fetch_add(1, Ordering::SeqCst);
        if before >= NO_MORE {
            return Err(Failure::message("ended by a signal"));
        }
        let delivery = match self.producer.append(&record) {
            Err(AppendError::Full) => self.runtime.block_on(self.producer.append_wait(&record)),
            taken => taken,
        };
        let delivery = delivery.map_err(|error| {
            self.sent.fetch_sub(1, Ordering::SeqCst);
            Failure::message(format!(
                "record {} of the input was not taken: {error}",
                before + 1
            ))
        })?;
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

/// What became of the records sent, to go after a failure.
fn fates(sent: u64, acknowledged: u64) -> String {
    let missing = sent.saturating_sub(acknowledged);
    match (sent, missing) {
        (0, _) => String::new(),
        (1, 0) => "; the record before was acknowledged".to_owned(),
        (_, 0) => format!("; all {} records before were acknowledged", count(sent)),
        _ => format!(
            "; of {} record{} sent, {} {} acknowledged and {} {} not",
            count(sent),
            if sent == 1 { "" } else { "s" },
            count(acknowledged),
            if acknowledged == 1 { "was" } else { "were" },
            count(missing),
            if missing == 1 { "was" } else { "were" },
        ),
    }
}

fn open(from: &Path, progress: &ProgressBar) -> Result<Box<dyn BufRead + Send>, Failure> {
    let reader: Box<dyn Read + Send> = if from.as_os_str() == "-" {
        if io::stdin().is_terminal() {
            say("reading from the keyboard; Ctrl-D ends");
        }
        Box::new(io::stdin())
    } else {
        let file = File::open(from).map_err(|error| {
            Failure::message(format!(
                "cannot read {}: {error}; check path and permissions",
                from.display()
            ))
        })?;
        let metadata = file.metadata().ok();
        if metadata.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            let from = from.display();
            return Err(Failure::message(format!(
                "cannot read {from}: it is a directory; name a file in it"
            )));
        }
        let length = metadata.map_or(0, |metadata| metadata.len());
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kera_broker::Broker;
    use kera_broker::config::BrokerConfig;
    use kera_protocol::v1;
    use tempfile::TempDir;

    use super::super::input::InputFormat;
    use super::*;
    use crate::connect::control;

    /// An input of two lines that ends only once nothing is outstanding any more, and meanwhile, when
    /// the first was sent, does something to the broker.
    struct Slow {
        lines: VecDeque<&'static [u8]>,
        before_second: Option<Box<dyn FnOnce() + Send>>,
        producer: Producer,
        runtime: Handle,
    }

    impl Read for Slow {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            unreachable!("lines are read from the buffer")
        }
    }

    impl BufRead for Slow {
        fn fill_buf(&mut self) -> io::Result<&[u8]> {
            if self.lines.len() < 2 {
                // The outcome is not looked at: as if only time had passed.
                let _ = self.runtime.block_on(self.producer.flush());
                if let Some(act) = self.before_second.take() {
                    act();
                }
            }
            Ok(self.lines.front().copied().unwrap_or_default())
        }

        fn consume(&mut self, amount: usize) {
            if amount > 0 {
                self.lines.pop_front();
            }
        }
    }

    async fn broker() -> (Broker, TempDir) {
        let home = TempDir::new().unwrap();
        let mut config = BrokerConfig {
            data_dir: home.path().join("data"),
            ..BrokerConfig::default()
        };
        config.server.listen = "127.0.0.1:0".into();
        config.http.listen = None;
        (Broker::start(config).await.unwrap(), home)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn records_given_up_while_the_input_stands_still_are_told() {
        let (broker, _home) = broker().await;
        let address = broker.local_addr().to_string();
        let mut streams = control(&address, &kera_rpc::Way::default())
            .await
            .unwrap()
            .streams;
        let stream = v1::CreateStreamRequest {
            name: "s".to_owned(),
            ..v1::CreateStreamRequest::default()
        };
        streams.create_stream(stream).await.unwrap();
        let producer = Producer::builder()
            .bootstrap(&address)
            .stream("s")
            .deadline(Duration::from_millis(200))
            .build()
            .await
            .unwrap();
        let runtime = Handle::current();
        let input = Slow {
            lines: [&b"a\n"[..], b"b\n"].into(),
            before_second: Some(Box::new({
                let runtime = runtime.clone();
                move || {
                    let stream = v1::DeleteStreamRequest {
                        name: "s".to_owned(),
                        ..v1::DeleteStreamRequest::default()
                    };
                    runtime.block_on(streams.delete_stream(stream)).unwrap();
                }
            })),
            producer: producer.clone(),
            runtime,
        };
        let rules = InputRules {
            format: InputFormat::Lines,
            key_field: None,
            key_separator: None,
            null_marker: None,
        };
        let sending = Sending::new(producer, Vec::new(), None);
        let sent = send_input(sending, move || Input::new(rules, input)).await;
        let said = sent.unwrap_err().text();
        assert!(
            said.ends_with("; of 2 records sent, 1 was acknowledged and 1 was not"),
            "{said}"
        );
        broker.shutdown().await;
    }

    #[test]
    fn what_became_of_records() {
        assert_eq!(fates(0, 0), "");
        assert_eq!(fates(1, 1), "; the record before was acknowledged");
        assert_eq!(fates(5, 5), "; all 5 records before were acknowledged");
        assert_eq!(
            fates(1, 0),
            "; of 1 record sent, 0 were acknowledged and 1 was not"
        );
        assert_eq!(
            fates(3, 1),
            "; of 3 records sent, 1 was acknowledged and 2 were not"
        );
    }
}
