//! A fourth broker comes to three under load: how much is acknowledged less meanwhile, and how soon does
//! the new one serve appends?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kera_producer::{AppendError, Producer, Record};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::loops::{Loops, Place};
use super::nodes::{Nodes, Places, StreamPlan};
use super::watched::Watching;
use crate::measure::disk;
use crate::measure::noise::Snapshot;
use kera_load::{Records, wait_until};

const PATIENCE: Duration = Duration::from_secs(120);
/// A look at how many records are acknowledged.
const SAMPLE: Duration = Duration::from_millis(50);
/// How wide a dip is.
const WINDOW: Duration = Duration::from_secs(1);
/// Records of the loops that tell where appends are served: each streamlet, so often.
const EVERY: Duration = Duration::from_millis(100);
/// Bytes of a record, and what its batch adds to each, at most.
const RECORD: u32 = 100;
const OVERHEAD: u32 = 15;
/// Of each record.
const COPIES: u64 = 3;
/// Beside the planned time, until all has its share and is acknowledged.
const SPARE_SECONDS: u64 = 10;
const BATCH: usize = 32 << 10;
const LINGER: Duration = Duration::from_millis(5);

/// What a join is measured with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JoinPlan {
    pub streamlets: u32,
    /// Bytes of records that are there before.
    pub history_bytes: u64,
    /// Percent of the peak that is sent.
    pub percent: u32,
    /// Seconds that the peak is looked for.
    pub probe_seconds: u32,
    /// Seconds of the load alone, before the broker comes.
    pub before_seconds: u32,
    /// Seconds of the load at least since the broker came.
    pub after_seconds: u32,
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    /// Records a second that were acknowledged of as many as there was room for.
    pub peak: f64,
    /// Records a second that were sent.
    pub rate: u64,
    /// The worst second before the broker came, in percent below the rate.
    pub dip_before_percent: f64,
    /// The worst second since, in percent below the rate.
    pub dip_percent: f64,
    /// Seconds from the broker's start until an append was acknowledged by it.
    pub serves_seconds: f64,
    /// Seconds from its start until it had its share.
    pub share_seconds: f64,
    /// Streamlets that it got.
    pub moved: usize,
    /// Share of the cores that other processes used.
    pub others: f64,
}

/// One run: a fresh cluster of three brokers gets a fourth.
pub(super) async fn run(places: &Places, plan: &JoinPlan) -> Result<Taken> {
    let mut nodes = Nodes::start(places, 3)?;
    let taken = join(&mut nodes, places, plan).await;
    taken.with_context(|| nodes.logs())
}

async fn join(nodes: &mut Nodes, places: &Places, plan: &JoinPlan) -> Result<Taken> {
    let stream = StreamPlan {
        name: "load".into(),
        streamlets: plan.streamlets,
        copies: COPIES as u32,
    };
    nodes.create(&stream)?;
    let streams = [stream];
    let watching = Watching::start(nodes.store(), &streams).await?;
    watching.settled(3, PATIENCE).await?;
    let history = plan.history_bytes / u64::from(RECORD);
    let mut load = Load::start(
        &nodes.bootstrap(),
        &streams[0].name,
        plan,
        Amount::Records(history),
    )
    .await?;
    load.sent().await?;
    load.producer.flush().await?;
    // What is to be sent at, a little later than the files of the history need to be written.
    let mut load = Load::start(&nodes.bootstrap(), &streams[0].name, plan, Amount::All).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (begin, first) = (Instant::now(), load.acknowledged());
    tokio::time::sleep(Duration::from_secs(plan.probe_seconds.into())).await;
    let peak = (load.acknowledged() - first) as f64 / begin.elapsed().as_secs_f64();
    load.finish().await?;
    places.interrupt.check()?;

    let rate = (peak * f64::from(plan.percent) / 100.0) as u64;
    has_room(places, plan, rate)?;
    let mut loops = Loops::open(&nodes.bootstrap(), &streams).await?;
    loops.begin(EVERY);
    let mut load = Load::start(
        &nodes.bootstrap(),
        &streams[0].name,
        plan,
        Amount::Rate(rate),
    )
    .await?;
    loops.acknowledged_since(Instant::now(), PATIENCE).await?;
    let curve = Curve::follow(&load.producer);
    tokio::time::sleep(Duration::from_secs(plan.before_seconds.into())).await;
    let pids = nodes.pids();
    let machine = Snapshot::take(&pids);
    let came = Instant::now();
    let (number, starting) = nodes.begin()?;
    let starting = tokio::task::spawn_blocking(move || starting.served());
    nodes.keep(starting.await??);
    watching.settled(4, PATIENCE).await?;
    let moved = watching.moved_since(came);
    let got: Vec<_> = moved.iter().filter(|one| one.to == number).collect();
    let last = got
        .iter()
        .map(|one| one.at)
        .max()
        .context("it got nothing")?;
    loops.acknowledged_since(Instant::now(), PATIENCE).await?;
    let left = Duration::from_secs(plan.after_seconds.into()).saturating_sub(came.elapsed());
    tokio::time::sleep(left).await;
    let others = Snapshot::take(&[pids, vec![nodes.broker(number).process.pid()]].concat());
    let curve = curve.end().await?;
    // A streamlet that it owns has acknowledged a record that was sent since it is the owner.
    let serves = |place: &Place| {
        let owner = got.iter().find(|one| one.which == watching.which(*place))?;
        loops.resumed(owner.at).get(place).copied()
    };
    let serves = loops.places().iter().filter_map(serves).min();
    let serves = serves.context("it acknowledged nothing")?;
    loops.finish().await?;
    load.finish().await?;
    let ended = Instant::now();
    Ok(Taken {
        peak,
        rate,
        dip_before_percent: dip(&curve, rate, None, came),
        dip_percent: dip(&curve, rate, Some(came), ended),
        serves_seconds: serves.duration_since(came).as_secs_f64(),
        share_seconds: last.duration_since(came).as_secs_f64(),
        moved: got.len(),
        others: others.others_since(&machine),
    })
}

/// All copies of all that is to be sent lie on one disk.
fn has_room(places: &Places, plan: &JoinPlan, rate: u64) -> Result<()> {
    let seconds = u64::from(plan.before_seconds + plan.after_seconds) + SPARE_SECONDS;
    let bytes = rate * seconds * u64::from(RECORD + OVERHEAD) * COPIES;
    let free = disk::free(&places.data)?;
    ensure!(
        free > bytes,
        "a join at {rate} records a second writes about {} GiB below {}, where {} GiB are free; name a directory on another \
         disk with --data-dir, or send less with --percent",
        bytes.div_ceil(1 << 30),
        places.data.display(),
        free >> 30
    );
    Ok(())
}

/// How much a producer sends.
#[derive(Clone, Copy)]
enum Amount {
    Records(u64),
    /// As much as there is room for, until it is told to end.
    All,
    /// So many a second, until it is told to end.
    Rate(u64),
}

/// A producer at work.
struct Load {
    producer: Producer,
    stop: Arc<AtomicBool>,
    sending: Option<JoinHandle<Result<()>>>,
}

impl Load {
    async fn start(bootstrap: &str, stream: &str, plan: &JoinPlan, amount: Amount) -> Result<Self> {
        let producer = Producer::builder()
            .bootstrap(bootstrap)
            .stream(stream)
            .batch_size(BATCH)
            .linger(LINGER)
            .memory_limit(plan.streamlets as usize * BATCH * 2 + (16 << 20))
            .build();
        let producer = producer.await.context("no producer")?;
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, stopped, runtime) = (producer.clone(), stop.clone(), Handle::current());
        let sending =
            tokio::task::spawn_blocking(move || send(&sender, amount, &stopped, &runtime));
        Ok(Self {
            producer,
            stop,
            sending: Some(sending),
        })
    }

    fn acknowledged(&self) -> u64 {
        self.producer.metrics().records_acknowledged
    }

    /// Waits until all is sent.
    async fn sent(&mut self) -> Result<()> {
        match self.sending.take() {
            Some(sending) => sending.await?,
            None => Ok(()),
        }
    }

    /// Ends, and waits until all is acknowledged.
    async fn finish(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.sent().await?;
        self.producer.flush().await?;
        let failed = self.producer.metrics().records_failed;
        ensure!(failed == 0, "{failed} records were given up");
        Ok(())
    }
}

fn send(producer: &Producer, amount: Amount, stop: &AtomicBool, runtime: &Handle) -> Result<()> {
    let mut records = Records::new(RECORD, false);
    let most = match amount {
        Amount::Records(records) => records,
        Amount::All | Amount::Rate(_) => u64::MAX,
    };
    let begin = Instant::now();
    for number in 0..most {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if let Amount::Rate(rate) = amount {
            wait_until(begin + Duration::from_secs_f64(number as f64 / rate as f64));
        }
        let (key, value) = records.next_record();
        let record = Record {
            key,
            value: Some(value),
            ..Record::default()
        };
        match producer.send(&record) {
            Err(AppendError::Full) => drop(runtime.block_on(producer.append_wait(&record))?),
            taken => taken?,
        }
    }
    Ok(())
}

/// How many records were acknowledged at a moment.
type Sample = (Instant, u64);

/// Samples of a producer, until it is ended.
struct Curve {
    stop: Arc<AtomicBool>,
    samples: JoinHandle<Vec<Sample>>,
}

impl Curve {
    fn follow(producer: &Producer) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (producer, stopped) = (producer.clone(), stop.clone());
        let samples = tokio::spawn(async move {
            let mut samples = Vec::new();
            let mut due = tokio::time::interval(SAMPLE);
            while !stopped.load(Ordering::Relaxed) {
                due.tick().await;
                samples.push((Instant::now(), producer.metrics().records_acknowledged));
            }
            samples
        });
        Self { stop, samples }
    }

    async fn end(self) -> Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.samples.await?)
    }
}

/// The worst second that begins at or after `from` and ends by `to`: how far below `rate`, in percent.
fn dip(curve: &[Sample], rate: u64, from: Option<Instant>, to: Instant) -> f64 {
    let within = |at: Instant| from.is_none_or(|from| at >= from) && at <= to;
    let mut worst: f64 = 0.0;
    for (index, (begin, first)) in curve.iter().enumerate() {
        let rest = &curve[index..];
        let end = rest
            .iter()
            .find(|(at, _)| at.duration_since(*begin) >= WINDOW);
        let Some((end, last)) = end.filter(|(end, _)| within(*begin) && within(*end)) else {
            continue;
        };
        let wanted = rate as f64 * end.duration_since(*begin).as_secs_f64();
        let below = 100.0 * (1.0 - (last - first) as f64 / wanted.max(1.0));
        worst = worst.max(below);
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dip_is_the_worst_second() {
        let begin = Instant::now();
        let at = |tenths: u64| begin + Duration::from_millis(tenths * 100);
        // 1,000 a second, but nothing from 3.0 s to 3.4 s, which is made up for at once.
        let count = |tenths: u64| match tenths {
            30..=33 => 3_000,
            _ => tenths * 100,
        };
        let curve: Vec<Sample> = (0..60).map(|n| (at(n), count(n))).collect();
        let before = dip(&curve, 1_000, None, at(29));
        assert!(before.abs() < 1e-6, "{before}");
        let after = dip(&curve, 1_000, None, at(59));
        assert!((after - 30.0).abs() < 1.0, "{after}");
        let later = dip(&curve, 1_000, Some(at(34)), at(59));
        assert!(later.abs() < 1e-6, "{later}");
    }
}
