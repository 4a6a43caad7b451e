//! Producers that touch every streamlet: for each a loop that sends a record, waits until it is
//! acknowledged, and sends the next when that is due. So every streamlet has a record on its way at any
//! moment, and how long each went without acknowledgements is seen from outside.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use kera_producer::{Producer, Record};
use kera_protocol::ids::StreamletId;
use kera_protocol::partition::lane_of;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::nodes::StreamPlan;

/// Until a record is given up; then the run has failed.
const DEADLINE: Duration = Duration::from_secs(60);
/// Between two looks at what was acknowledged.
const LOOK: Duration = Duration::from_millis(1);
/// Bytes of a record's value.
const VALUE: [u8; 100] = [b'x'; 100];

/// A record that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    pub sent: Instant,
    pub at: Instant,
}

/// A streamlet: its stream's place among the plans, and its number.
pub(super) type Place = (usize, u32);

/// What a streamlet's loop has seen.
type Log = Arc<Mutex<Vec<Acked>>>;

/// All loops.
pub(super) struct Loops {
    logs: BTreeMap<Place, Log>,
    /// By stream: who sends.
    producers: Vec<Producer>,
    keys: BTreeMap<Place, Vec<u8>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<Result<()>>,
}

/// A key for each streamlet of a stream of so many, which has one lane each.
fn keys(streamlets: u32) -> Vec<Vec<u8>> {
    let mut found: BTreeMap<StreamletId, Vec<u8>> = BTreeMap::new();
    for number in 0_u64.. {
        let key = number.to_string().into_bytes();
        let (streamlet, _) = lane_of(&key, streamlets, 1);
        found.entry(streamlet).or_insert(key);
        if found.len() == streamlets as usize {
            break;
        }
    }
    found.into_values().collect()
}

impl Loops {
    /// Opens a producer for each stream; nothing is sent yet.
    pub(super) async fn open(bootstrap: &str, streams: &[StreamPlan]) -> Result<Self> {
        let mut loops = Self {
            logs: BTreeMap::new(),
            producers: Vec::new(),
            keys: BTreeMap::new(),
            stop: watch::Sender::new(false),
            tasks: JoinSet::new(),
        };
        for (index, stream) in streams.iter().enumerate() {
            let producer = Producer::builder()
                .bootstrap(bootstrap)
                .stream(&stream.name)
                .linger(Duration::ZERO)
                .deadline(DEADLINE)
                .build();
            loops.producers.push(producer.await.context("no producer")?);
            for (number, key) in (0..).zip(keys(stream.streamlets)) {
                loops.keys.insert((index, number), key);
            }
        }
        Ok(loops)
    }

    /// Every streamlet, in order.
    pub(super) fn places(&self) -> Vec<Place> {
        self.keys.keys().copied().collect()
    }

    /// Begins to send to every streamlet, a record each `every`, spread over that time.
    pub(super) fn begin(&mut self, every: Duration) {
        let places = self.places();
        let count = places.len().max(1) as u32;
        for (turn, place) in (0_u32..).zip(places) {
            let log = Log::default();
            self.logs.insert(place, log.clone());
            let first = Instant::now() + every * turn / count;
            let stop = self.stop.subscribe();
            let sending = send(
                self.producer(place),
                self.keys[&place].clone(),
                log,
                first,
                every,
            );
            self.tasks.spawn(until(sending, stop));
        }
    }

    fn producer(&self, place: Place) -> Producer {
        self.producers[place.0].clone()
    }

    /// Sends to one streamlet without a pause while `work` goes on, and until a record is acknowledged after
    /// it: a gap is as long as it is, whenever the work ends. What was acknowledged.
    pub(super) async fn beside<T>(
        &self,
        place: Place,
        work: impl Future<Output = T>,
    ) -> Result<(T, Vec<Acked>)> {
        let log = Log::default();
        let stop = watch::Sender::new(false);
        let now = Instant::now();
        let key = self.keys[&place].clone();
        let sending = send(self.producer(place), key, log.clone(), now, Duration::ZERO);
        let sending = tokio::spawn(until(sending, stop.subscribe()));
        let done = work.await;
        let ended = Instant::now();
        // A producer that cannot go on gives up by itself.
        while !sending.is_finished() && !is_measured(&log.lock(), ended) {
            tokio::time::sleep(LOOK).await;
        }
        stop.send_replace(true);
        sending.await??;
        let acked = log.lock().clone();
        Ok((done, acked))
    }

    /// Waits until every streamlet has acknowledged a record that was sent after `moment`.
    pub(super) async fn acknowledged_since(
        &mut self,
        moment: Instant,
        within: Duration,
    ) -> Result<()> {
        let begin = Instant::now();
        loop {
            if let Some(ended) = self.tasks.try_join_next() {
                ended??;
                return Err(anyhow!("a loop ended by itself"));
            }
            let waiting = self
                .logs
                .iter()
                .filter(|(_, log)| first_after(log, moment).is_none());
            let waiting: Vec<_> = waiting.map(|(place, _)| *place).collect();
            if waiting.is_empty() {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < within,
                "{} streamlets acknowledge nothing for {within:?}, such as {:?}",
                waiting.len(),
                waiting[0]
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// When each streamlet first acknowledged a record that was sent after `moment`.
    pub(super) fn resumed(&self, moment: Instant) -> BTreeMap<Place, Instant> {
        let found = self.logs.iter().map(|(place, log)| {
            let first = first_after(log, moment)?;
            Some((*place, first.at))
        });
        found.flatten().collect()
    }

    /// Ends all loops, each after its record in hand.
    pub(super) async fn finish(mut self) -> Result<()> {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Whether there is a gap between acknowledgements that reaches beyond a moment, or ended there.
fn is_measured(acked: &[Acked], moment: Instant) -> bool {
    acked.len() > 1 && acked.last().is_some_and(|last| last.at >= moment)
}

fn first_after(log: &Log, moment: Instant) -> Option<Acked> {
    let log = log.lock();
    let from = log.partition_point(|acked| acked.sent <= moment);
    log.get(from).copied()
}

async fn until(
    sending: impl Future<Output = Result<()>>,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    tokio::select! {
        ended = sending => ended,
        _ = stop.wait_for(|stop| *stop) => Ok(()),
    }
}

async fn send(
    producer: Producer,
    key: Vec<u8>,
    log: Log,
    first: Instant,
    every: Duration,
) -> Result<()> {
    let mut due = first;
    loop {
        tokio::time::sleep_until(due.into()).await;
        let sent = Instant::now();
        let delivery = producer.append_wait(&Record::keyed(&key, &VALUE)).await?;
        delivery.await?;
        let at = Instant::now();
        log.lock().push(Acked { sent, at });
        due = (due + every).max(at);
    }
}

/// The longest time between two acknowledgements that follow each other.
pub(super) fn longest_gap(acked: &[Acked]) -> Option<Duration> {
    let pairs = acked.windows(2);
    pairs
        .map(|pair| pair[1].at.duration_since(pair[0].at))
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_streamlet_has_a_key() {
        for streamlets in [1, 7, 100] {
            let keys = keys(streamlets);
            assert_eq!(keys.len(), streamlets as usize);
            for (number, key) in (0..).zip(&keys) {
                assert_eq!(lane_of(key, streamlets, 1).0, StreamletId(number));
            }
        }
    }

    #[test]
    fn a_gap_is_the_longest_of_all() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let acked = |millis| Acked {
            sent: begin,
            at: at(millis),
        };
        assert_eq!(longest_gap(&[acked(1)]), None);
        let gap = longest_gap(&[acked(1), acked(4), acked(90), acked(95)]);
        assert_eq!(gap, Some(Duration::from_millis(86)));
        assert!(!is_measured(&[acked(90)], at(80)));
        assert!(!is_measured(&[acked(1), acked(79)], at(80)));
        assert!(is_measured(&[acked(1), acked(80)], at(80)));
        let log = Log::new(Mutex::new(vec![
            Acked {
                sent: at(1),
                at: at(2),
            },
            Acked {
                sent: at(5),
                at: at(9),
            },
        ]));
        assert_eq!(first_after(&log, at(1)).map(|a| a.at), Some(at(9)));
        assert!(first_after(&log, at(5)).is_none());
    }
}
