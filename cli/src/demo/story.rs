//! What happens in the demo, in order.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kera_protocol::v1;
use tokio::task::JoinHandle;

use super::audit::audit;
use super::check::{Processed, Verdict};
use super::data::Flights;
use super::process::{BrokerProcess, data_dir};
use super::send::{Part, Sent, outside};
use super::view::{Progress, View};
use super::work::Crew;
use super::{home, process};
use crate::connect::{control, refused};
use crate::failure::Failure;
use crate::output::{Out, count, short_time};
use kera_load::Latency;

const STREAM: &str = "flights";
const PRODUCERS: usize = 4;
const CONSUMERS: usize = 8;
/// Producers send everything in about this time.
const SENDING: Duration = Duration::from_secs(9);
/// Another consumer joins this often.
const JOIN_EVERY: Duration = Duration::from_millis(800);
/// Consumers may need this long for the rest once everything is sent.
const FINISH_WITHIN: Duration = Duration::from_secs(30);
/// How often it is looked whether they have finished.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The demo.
pub(super) struct Story {
    home: PathBuf,
    /// The next demo may remove `home`.
    passing: bool,
    records: u64,
    progress: Arc<Progress>,
    processed: Arc<Processed>,
    view: Arc<View>,
}

/// What is known at the end.
struct End {
    verdict: Verdict,
    /// From the kill to the first acknowledgement after it.
    back_in: Duration,
    /// From the kill until the broker listened again.
    listening_in: Duration,
    sending: Duration,
    latency: Option<Latency>,
}

impl Story {
    /// A demo of `records` records, with everything kept in `home`, which the next demo may remove
    /// if it is `passing`.
    pub(super) fn new(home: &Path, records: u64, passing: bool) -> Self {
        Self {
            home: home.to_owned(),
            passing,
            records,
            progress: Arc::default(),
            processed: Arc::new(Processed::new(PRODUCERS, records)),
            view: Arc::new(View::new(records)),
        }
    }

    /// How many records a producer sends.
    fn share(&self, producer: usize) -> u64 {
        let producers = PRODUCERS as u64;
        self.records / producers + u64::from((producer as u64) < self.records % producers)
    }

    /// Records a second of all producers.
    fn rate(&self) -> f64 {
        self.records as f64 / SENDING.as_secs_f64()
    }

    /// Tells the story; true if every record was where it belongs.
    pub(super) async fn tell(self, keep: bool) -> Result<bool, Failure> {
        let flights = Arc::new(Flights::load()?);
        let mut broker = BrokerProcess::start(&self.home, "127.0.0.1:0").await?;
        self.view.say(&format!(
            "broker   process {} on {}, data in {}",
            broker.pid,
            broker.address,
            data_dir(&self.home).display()
        ));
        create_stream(&broker.address).await?;
        self.view.say(&format!(
            "stream   {STREAM}: 1 streamlet, 1 lane, ack written (an acknowledged record survives the broker's death)"
        ));
        self.view.say(&format!(
            "load     {PRODUCERS} producers send {} flights, {} a second; consumers handle {} a second each and grow from 1 to {CONSUMERS}",
            count(self.records),
            count(self.rate() as u64),
            count(self.capacity() as u64),
        ));
        let begin = Instant::now();
        let sending = self.start_producers(&broker.address, &flights);
        let crew = Crew::start(
            broker.address.clone(),
            STREAM,
            self.capacity(),
            self.progress.clone(),
            self.processed.clone(),
        );
        let hiring = crew.clone();
        let joining = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(JOIN_EVERY);
            for _ in 0..CONSUMERS {
                ticks.tick().await;
                hiring.hire().await;
            }
        });
        let (view, progress) = (self.view.clone(), self.progress.clone());
        let showing = tokio::spawn(async move { view.run(&progress).await });

        let outcome = self.through(&mut broker, sending, begin).await;
        joining.abort();
        crew.dismiss().await;
        showing.abort();
        self.view.finish(&self.progress);
        let end = outcome?;
        self.report(&end, &broker, keep)?;
        if keep {
            broker.keep();
        } else {
            broker.stop().await?;
            if self.passing {
                home::mark_finished(&self.home);
            }
        }
        Ok(end.verdict.is_clean())
    }

    /// Records a second that one consumer handles: eight outrun the producers, one does not.
    fn capacity(&self) -> f64 {
        self.rate() / 4.0
    }

    fn start_producers(
        &self,
        bootstrap: &str,
        flights: &Arc<Flights>,
    ) -> Vec<JoinHandle<Option<Sent>>> {
        (0..PRODUCERS)
            .map(|number| {
                let part = Part {
                    number,
                    records: self.share(number),
                    rate: self.rate() / PRODUCERS as f64,
                    bootstrap: bootstrap.to_owned(),
                    stream: STREAM,
                };
                let (flights, progress) = (flights.clone(), self.progress.clone());
                tokio::spawn(async move {
                    part.run(flights, progress.clone())
                        .await
                        .map_err(|failure| progress.fail(failure))
                        .ok()
                })
            })
            .collect()
    }

    /// From the first record to the verdict.
    async fn through(
        &self,
        broker: &mut BrokerProcess,
        sending: Vec<JoinHandle<Option<Sent>>>,
        begin: Instant,
    ) -> Result<End, Failure> {
        self.wait_for(self.records / 2).await?;
        let killed = Instant::now();
        broker.kill()?;
        self.view.say(&format!(
            "{:5.1} s  SIGKILL to the broker, process {}, at {} acknowledged records; producers go on",
            self.view.seconds(),
            broker.pid,
            count(self.progress.acknowledged.load(Relaxed))
        ));
        *broker = BrokerProcess::start(&self.home, &broker.address).await?;
        let listening_in = killed.elapsed();
        // What was on its way from the dead broker has long arrived.
        let before = self.progress.acknowledged.load(Relaxed);
        self.wait_for(before + 1).await?;
        let back = Instant::now();
        self.view.say(&format!(
            "{:5.1} s  back: process {} acknowledges again, {} after the kill",
            self.view.seconds(),
            broker.pid,
            short_time(back - killed)
        ));
        let mut sent = Vec::new();
        for part in sending {
            sent.extend(part.await?);
        }
        self.progress.trouble()?;
        let sending_took = begin.elapsed();
        self.wait_for_consumers().await?;
        self.view.say(&format!(
            "{:5.1} s  all processed; reading the lane once more to check every record",
            self.view.seconds()
        ));
        let shares = (0..PRODUCERS).map(|number| self.share(number)).collect();
        let verdict = audit(&broker.address, STREAM, shares).await?;
        Ok(End {
            verdict,
            back_in: back - killed,
            listening_in,
            sending: sending_took,
            latency: outside(&sent, Some((killed, back))),
        })
    }

    /// Waits until so many records are acknowledged, or something fails.
    async fn wait_for(&self, records: u64) -> Result<(), Failure> {
        loop {
            let rung = self.progress.acknowledgement.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            self.progress.trouble()?;
            if self.progress.acknowledged.load(Relaxed) >= records.min(self.records) {
                return Ok(());
            }
            rung.await;
        }
    }

    async fn wait_for_consumers(&self) -> Result<(), Failure> {
        let begin = Instant::now();
        while self.processed.count() < self.records {
            self.progress.trouble()?;
            if begin.elapsed() > FINISH_WITHIN {
                return Err(Failure::message(format!(
                    "consumers processed {} of {} records and do not get on",
                    count(self.processed.count()),
                    count(self.records)
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    fn report(&self, end: &End, broker: &BrokerProcess, keep: bool) -> Result<(), Failure> {
        let verdict = &end.verdict;
        let mut out = Out::stdout();
        out.line("")?;
        out.bytes(self.progress.table().as_bytes())?;
        out.line("")?;
        out.line(format_args!(
            "{} sent, {} lost, {} duplicated, {} out of order, back in {} ms",
            count(verdict.sent),
            count(verdict.lost),
            count(verdict.duplicated),
            count(verdict.out_of_order),
            end.back_in.as_millis()
        ))?;
        if verdict.phantom + verdict.bad_ordinals > 0 {
            out.line(format_args!(
                "{} records that nobody sent, {} ordinals that do not rise",
                count(verdict.phantom),
                count(verdict.bad_ordinals)
            ))?;
        }
        let latency = match &end.latency {
            Some(latency) => format!(
                "acknowledged after p50 {}, p99 {} (but for the crash)",
                micros(latency.p50_us),
                micros(latency.p99_us)
            ),
            None => "no latencies".into(),
        };
        out.line(format_args!(
            "throughput {} records/s, {latency}; the broker listened again after {} ms",
            count((verdict.sent as f64 / end.sending.as_secs_f64()) as u64),
            end.listening_in.as_millis()
        ))?;
        let again = self.progress.again.load(Relaxed);
        out.line(format_args!(
            "{CONSUMERS} consumers on one lane processed {} records; at most {} behind; {} handed out again after the crash",
            count(self.processed.count()),
            count(self.progress.longest_lag.load(Relaxed)),
            count(again)
        ))?;
        self.next_steps(&mut out, broker, keep)?;
        out.flush()
    }

    /// Three commands to copy.
    fn next_steps(&self, out: &mut Out, broker: &BrokerProcess, keep: bool) -> Result<(), Failure> {
        let kera = std::env::args().next().unwrap_or_else(|| "kera".into());
        let data = data_dir(&self.home);
        out.line("")?;
        out.line("Next:")?;
        let address = if keep {
            broker.address.as_str()
        } else {
            out.line(format_args!("  {kera} serve --data-dir {}", data.display()))?;
            "127.0.0.1:7600"
        };
        let bootstrap = match address {
            "127.0.0.1:7600" => String::new(),
            other => format!(" --bootstrap {other}"),
        };
        out.line(format_args!(
            "  {kera} consume {STREAM} --max 5 --format jsonl{bootstrap}"
        ))?;
        if keep {
            out.line(format_args!("  {kera} stream describe {STREAM}{bootstrap}"))?;
        }
        if let Some(file) = find_group_file(&data) {
            out.line(format_args!("  {kera} segment inspect {}", file.display()))?;
        }
        if keep {
            out.line(format_args!(
                "The broker runs on as process {}; `kill {}` stops it. Its log: {}",
                broker.pid,
                broker.pid,
                process::log_file(&self.home).display()
            ))?;
        } else {
            let fate = if self.passing {
                "the next demo removes it"
            } else {
                "remove it when you are done"
            };
            out.line(format_args!(
                "Everything is in {}; {fate}",
                self.home.display()
            ))?;
        }
        Ok(())
    }
}

fn micros(us: f64) -> String {
    short_time(Duration::from_nanos((us * 1e3) as u64))
}

async fn create_stream(address: &str) -> Result<(), Failure> {
    let mut control = control(address, &kera_rpc::Way::default()).await?;
    let request = v1::CreateStreamRequest {
        name: STREAM.to_owned(),
        config: Some(v1::StreamConfig {
            streamlets: Some(1),
            lanes: Some(1),
            ack: Some(v1::AckPolicy::Written as i32),
            ..v1::StreamConfig::default()
        }),
    };
    let answer = control.streams.create_stream(request).await;
    answer.map_err(|status| refused(&status))?;
    Ok(())
}

/// The largest group file: the stream's own.
fn find_group_file(data: &Path) -> Option<PathBuf> {
    let mut directories = vec![data.to_owned()];
    let mut largest: Option<(u64, PathBuf)> = None;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).ok()?.flatten() {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "log")
                && largest
                    .as_ref()
                    .is_none_or(|(size, _)| metadata.len() > *size)
            {
                largest = Some((metadata.len(), path));
            }
        }
    }
    largest.map(|(_, path)| path)
}
