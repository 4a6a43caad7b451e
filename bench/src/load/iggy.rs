//! Load through the client of Apache Iggy's protocol.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use kera_load::{Acks, KEY_BYTES};

use super::Plan;
use crate::iggy::{Batch, Connection};
use crate::scenario::Keys;

/// Messages that a poll asks for, as Iggy's own client does.
const MESSAGES: u32 = 1_000;
/// Bytes of large records that a poll asks for.
const BYTES: u32 = 4 << 20;
/// A consumer that found every partition empty looks again after so long: Iggy answers a poll at once,
/// and one that asked without a pause would take a core away from the broker. What it adds counts as
/// latency.
const PAUSE: Duration = Duration::from_micros(200);

/// A producer that fills a batch for each partition. One batch is on its way at a time, and the next
/// ones fill meanwhile.
pub(super) struct Producer<'a> {
    plan: &'a Plan,
    connection: Connection,
    linger: Duration,
    /// Records that fill a batch.
    full: u32,
    /// What fills for each partition.
    open: Vec<Open>,
    /// Batches in the order in which they were begun; those that were sent since are still there.
    begun: VecDeque<Begun>,
    /// What is not acknowledged yet.
    on_its_way: Option<Open>,
    /// Memory for the next batch.
    spare: Open,
    /// Where records without a key go.
    sticky: usize,
    acks: Option<Arc<Acks>>,
    /// Batches, and their bytes.
    sent: (u64, u64),
}

/// A batch that fills, or is on its way.
#[derive(Default)]
struct Open {
    batch: Batch,
    /// When its records were due, where someone wants to know.
    due: Vec<Duration>,
    /// Batches of this partition that were sent before.
    before: u64,
}

/// That a batch was begun.
#[derive(Clone, Copy)]
struct Begun {
    partition: usize,
    before: u64,
    at: Instant,
}

impl<'a> Producer<'a> {
    /// Connects; `acks` hears of every acknowledgement.
    pub(super) fn connect(plan: &'a Plan, acks: Option<Arc<Acks>>) -> Result<Self> {
        let partitions = plan.partitions.max(1) as usize;
        Ok(Self {
            plan,
            connection: Connection::open(&plan.bootstrap)?,
            linger: Duration::from_micros(plan.linger_us),
            full: (plan.batch_bytes / plan.record_bytes.max(1)).max(1),
            open: (0..partitions).map(|_| Open::default()).collect(),
            begun: VecDeque::new(),
            on_its_way: None,
            spare: Open::default(),
            sticky: 0,
            acks,
            sent: (0, 0),
        })
    }

    /// Puts a record into the batch of the partition that its key chooses. Without one a batch is
    /// filled before the next partition has its turn.
    pub(super) fn send(
        &mut self,
        key: Option<&[u8]>,
        value: &[u8],
        due: Option<Duration>,
    ) -> Result<()> {
        let partition = match key.and_then(<[u8]>::first_chunk) {
            Some(key) => (u64::from_le_bytes(*key) % self.open.len() as u64) as usize,
            None => self.sticky,
        };
        self.send_to(partition, key, value, due)
    }

    /// The same for a partition that is chosen already.
    pub(super) fn send_to(
        &mut self,
        partition: usize,
        key: Option<&[u8]>,
        value: &[u8],
        due: Option<Duration>,
    ) -> Result<()> {
        let open = &mut self.open[partition];
        if open.batch.is_empty() {
            self.begun.push_back(Begun {
                partition,
                before: open.before,
                at: Instant::now(),
            });
        }
        open.batch.push(key, value);
        if self.acks.is_some() {
            open.due.extend(due);
        }
        if open.batch.records() >= self.full {
            self.dispatch(partition)?;
        }
        Ok(())
    }

    /// Sends what waited for the linger, and what will have waited for it while there is nothing to do
    /// for `idle`; then hears of what is on its way.
    pub(super) fn look(&mut self, idle: Duration) -> Result<()> {
        let until = Instant::now() + idle;
        while let Some(begun) = self.first_begun() {
            let due = begun.at + self.linger;
            if due > Instant::now() {
                if idle.is_zero() || due > until {
                    break;
                }
                self.settle()?;
                wait_until(due);
            }
            self.dispatch(begun.partition)?;
        }
        if !idle.is_zero() {
            self.settle()?;
        }
        Ok(())
    }

    /// Sends all there is and waits until it is acknowledged.
    pub(super) fn finish(&mut self) -> Result<()> {
        while let Some(begun) = self.first_begun() {
            self.dispatch(begun.partition)?;
        }
        self.settle()
    }

    /// Bytes of its batches on average.
    pub(super) fn mean_batch_bytes(&self) -> Option<f64> {
        let (batches, bytes) = self.sent;
        (batches > 0).then(|| bytes as f64 / batches as f64)
    }

    /// The oldest batch that was begun and not sent.
    fn first_begun(&mut self) -> Option<Begun> {
        loop {
            let begun = *self.begun.front()?;
            if self.open[begun.partition].before == begun.before {
                return Some(begun);
            }
            self.begun.pop_front();
        }
    }

    /// Sends the batch of a partition, once the one before it is acknowledged.
    fn dispatch(&mut self, partition: usize) -> Result<()> {
        self.settle()?;
        let open = &mut self.open[partition];
        let mut next = std::mem::take(&mut self.spare);
        next.before = open.before + 1;
        let full = std::mem::replace(open, next);
        let number = u32::try_from(partition)?;
        self.connection
            .send(&self.plan.topic, number, &full.batch)?;
        self.sent.0 += 1;
        self.sent.1 += full.batch.bytes() as u64;
        self.on_its_way = Some(full);
        if partition == self.sticky {
            self.sticky = (self.sticky + 1) % self.open.len();
        }
        Ok(())
    }

    /// Waits until nothing is on its way.
    fn settle(&mut self) -> Result<()> {
        let Some(mut sent) = self.on_its_way.take() else {
            return Ok(());
        };
        self.connection.acknowledged()?;
        if let Some(acks) = &self.acks {
            for &due in &sent.due {
                acks.take(due);
            }
        }
        sent.batch.clear();
        sent.due.clear();
        self.spare = sent;
        Ok(())
    }
}

/// Waits for a time that is near.
fn wait_until(due: Instant) {
    while let Some(left) = due.checked_duration_since(Instant::now()) {
        if left.is_zero() {
            return;
        }
        std::thread::park_timeout(left);
    }
}

/// Reads partitions from their first records, one poll after another.
pub(super) struct Consumer<'a> {
    topic: &'a str,
    connection: Connection,
    /// Each with the offset that comes next.
    partitions: Vec<(u32, u64)>,
    turn: usize,
    messages: u32,
    /// Bytes ahead of a value.
    key_bytes: usize,
}

impl<'a> Consumer<'a> {
    /// Connects; nothing is read yet.
    pub(super) fn connect(plan: &'a Plan, partitions: impl Iterator<Item = u32>) -> Result<Self> {
        Ok(Self {
            topic: &plan.topic,
            connection: Connection::open(&plan.bootstrap)?,
            partitions: partitions.map(|partition| (partition, 0)).collect(),
            turn: 0,
            messages: (BYTES / plan.record_bytes.max(1)).clamp(1, MESSAGES),
            key_bytes: match plan.keys {
                Keys::None => 0,
                Keys::Random | Keys::Tenth => KEY_BYTES,
            },
        })
    }

    /// Bytes ahead of a value.
    pub(super) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Polls one partition after the other until one has something, whose values are handed to `each`.
    /// If none has, it waits a moment, `wait` at most.
    pub(super) fn receive(
        &mut self,
        wait: Duration,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        for _ in 0..self.partitions.len() {
            let turn = self.turn;
            self.turn = (turn + 1) % self.partitions.len();
            let (partition, next) = &mut self.partitions[turn];
            let polled = self
                .connection
                .poll(self.topic, *partition, *next, self.messages);
            let mut polled =
                polled.with_context(|| format!("cannot read partition {partition}"))?;
            let from = *next;
            while let Some((offset, payload)) = polled.next()? {
                ensure!(
                    offset == *next,
                    "record {offset} of partition {partition} arrived in place of {next}"
                );
                *next += 1;
                let value = payload.get(self.key_bytes..);
                each(value.context("a message has no room for its key")?)?;
            }
            if *next > from {
                return Ok(());
            }
        }
        wait_until(Instant::now() + wait.min(PAUSE));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iggy::scripted::Scripted;
    use crate::scenario::{Acks as Asked, ClientPath, Crowd, Durability, Work};

    const LONG: Duration = Duration::from_secs(3_600);

    fn plan(server: &Scripted, partitions: u32, linger: Duration) -> Plan {
        Connection::open(server.address())
            .unwrap()
            .create("t", partitions)
            .unwrap();
        Plan {
            path: ClientPath::Iggy,
            bootstrap: server.address().to_owned(),
            topic: "t".to_owned(),
            work: Work::Produce,
            records: 10,
            record_bytes: 100,
            keys: Keys::None,
            batch_bytes: 400,
            linger_us: u64::try_from(linger.as_micros()).unwrap(),
            partitions,
            acks: Asked::All,
            durability: Durability::Written,
            most_ms: None,
            transactions: false,
            at_once: None,
            rate: None,
            crowd: Crowd::default(),
        }
    }

    #[test]
    fn records_without_a_key_fill_one_batch_after_the_other() {
        let server = Scripted::start(usize::MAX);
        let plan = plan(&server, 2, LONG);
        let mut producer = Producer::connect(&plan, None).unwrap();
        for number in 0..10 {
            producer.send(None, &[number; 100], None).unwrap();
            producer.look(Duration::ZERO).unwrap();
        }
        producer.settle().unwrap();
        assert_eq!(server.batches(), [4, 4], "the third one waits");
        producer.finish().unwrap();
        assert_eq!(server.batches(), [4, 4, 2]);
        let firsts = |partition| -> Vec<u8> {
            let payloads = server.payloads("t", partition);
            payloads.iter().map(|payload| payload[0]).collect()
        };
        assert_eq!(firsts(0), [0, 1, 2, 3, 8, 9]);
        assert_eq!(firsts(1), [4, 5, 6, 7]);
        let mean = producer.mean_batch_bytes().unwrap();
        assert!((mean - 180.0 * 10.0 / 3.0).abs() < 0.1, "{mean}");
    }

    #[test]
    fn a_key_chooses_its_partition_and_goes_ahead_of_the_value() {
        let server = Scripted::start(usize::MAX);
        let plan = plan(&server, 3, LONG);
        let mut producer = Producer::connect(&plan, None).unwrap();
        for number in 0..9_u64 {
            let key = number.to_le_bytes();
            producer.send(Some(&key), b"value", None).unwrap();
        }
        assert!(server.batches().is_empty(), "each has room for one more");
        producer.finish().unwrap();
        for partition in 0..3_u64 {
            let payloads = server.payloads("t", partition as usize);
            let wanted: Vec<Vec<u8>> = [partition, partition + 3, partition + 6]
                .iter()
                .map(|key| [&key.to_le_bytes()[..], b"value"].concat())
                .collect();
            assert_eq!(payloads, wanted);
        }
        // Whoever reads is handed the value alone.
        let keyed = Plan {
            keys: Keys::Random,
            ..plan
        };
        let mut consumer = Consumer::connect(&keyed, 0..3).unwrap();
        let mut values = Vec::new();
        for _ in 0..3 {
            let each = |value: &[u8]| {
                values.push(value.to_vec());
                Ok(())
            };
            consumer.receive(Duration::ZERO, each).unwrap();
        }
        assert_eq!(values, vec![b"value".to_vec(); 9]);
    }

    #[test]
    fn the_linger_ends_while_there_is_nothing_to_do() {
        let server = Scripted::start(usize::MAX);
        let linger = Duration::from_millis(2);
        let plan = plan(&server, 4, linger);
        let acks = Arc::new(Acks::new(Duration::from_secs(1)));
        acks.begin(Instant::now());
        let mut producer = Producer::connect(&plan, Some(acks.clone())).unwrap();
        let due = Duration::from_secs(1);
        let begin = Instant::now();
        producer.send_to(3, None, &[1; 100], Some(due)).unwrap();
        // The next record is due before the linger is over.
        producer.look(Duration::from_nanos(1)).unwrap();
        let (early, passed) = (server.batches(), begin.elapsed());
        assert!(early.is_empty() || passed >= linger, "{passed:?}");
        producer.look(LONG).unwrap();
        assert!(begin.elapsed() >= linger);
        assert_eq!(server.batches(), [1]);
        assert_eq!(acks.quiet().unwrap().records, 1);
        // Nothing is left that could linger.
        producer.look(LONG).unwrap();
        assert_eq!(server.payloads("t", 3).len(), 1);
    }

    #[test]
    fn a_consumer_reads_all_partitions_to_their_ends_and_goes_on() {
        let server = Scripted::start(usize::MAX);
        let mut plan = plan(&server, 3, Duration::ZERO);
        // Two messages a poll.
        plan.record_bytes = BYTES / 2;
        plan.batch_bytes = BYTES * 2;
        let mut producer = Producer::connect(&plan, None).unwrap();
        for number in 0..7 {
            producer.send_to(2, None, &[number], None).unwrap();
        }
        producer.send_to(0, None, &[7], None).unwrap();
        producer.finish().unwrap();
        let mut consumer = Consumer::connect(&plan, [0, 2].into_iter()).unwrap();
        let mut seen = Vec::new();
        let mut receive = |seen: &mut Vec<u8>| {
            let each = |payload: &[u8]| {
                seen.push(payload[0]);
                Ok(())
            };
            consumer.receive(Duration::ZERO, each).unwrap();
        };
        for _ in 0..6 {
            receive(&mut seen);
        }
        assert_eq!(seen, [7, 0, 1, 2, 3, 4, 5, 6]);
        producer.send_to(0, None, &[8], None).unwrap();
        producer.finish().unwrap();
        receive(&mut seen);
        assert_eq!(seen, [7, 0, 1, 2, 3, 4, 5, 6, 8]);
    }
}
