//! Kera's own clients.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use kera_consumer::{Batch, ConsumeError, Consumer, ConsumerBuilder, Reader, ReaderBuilder, Start};
use kera_producer::{AppendError, Producer, ProducerBuilder, Record, Transaction};
use kera_rpc::ConnectOptions;
use tokio::runtime::Handle;

use crate::Load;
use crate::acks::Acks;
use crate::engine::{self, Consuming, Producing};
use crate::progress::Sink;

/// Acknowledgements that are timed, a second and producer.
const TIMED: u64 = 2_000;
/// A member of a group that cannot leave in this time is left alone.
const LEAVE: Duration = Duration::from_secs(5);

/// Clients of one stream, with all their settings but where they start to read.
pub struct NativeClients<'a> {
    /// What the clients do.
    pub load: &'a Load,
    /// Runs the clients' connections.
    pub handle: Handle,
    /// Of the stream; its lanes are the partitions divided by them.
    pub streamlets: u32,
    /// Of the records whose acknowledgement could be timed one of so many has it timed; none if it is 0.
    pub timed_acks: u64,
    /// Producers append in transactions.
    pub transactions: bool,
    /// Each producer.
    pub producer: ProducerBuilder,
    /// Each consumer that is assigned its partitions.
    pub reader: ReaderBuilder,
    /// Each consumer of a load with a group.
    pub member: ConsumerBuilder,
}

impl<'a> NativeClients<'a> {
    /// Clients of `stream`, which exists, with the settings that they have without being told.
    pub fn new(
        load: &'a Load,
        handle: Handle,
        bootstrap: &str,
        stream: &str,
        connect: &ConnectOptions,
    ) -> Self {
        Self {
            load,
            handle,
            streamlets: load.partitions,
            // Those of a closed loop are a sample already.
            timed_acks: load.rate.map_or(1, |_| timed_one_in(load)),
            transactions: false,
            producer: Producer::builder()
                .bootstrap(bootstrap)
                .connect(connect.clone())
                .stream(stream),
            reader: Reader::builder()
                .bootstrap(bootstrap)
                .connect_options(connect.clone())
                .stream(stream),
            member: Consumer::builder()
                .bootstrap(bootstrap)
                .connect_options(connect.clone())
                .stream(stream)
                // No group before has its name.
                .group(format!("bench-{:08x}", rand::random::<u32>()))
                .client_name("kera bench"),
        }
    }
}

/// One record of so many has its acknowledgement timed where records are due at times: all of them, or as many as can be
/// waited for without a load of its own.
pub fn timed_one_in(load: &Load) -> u64 {
    let rate = load.rate.unwrap_or(0) / u64::from(load.producers.max(1));
    (rate / TIMED).max(1)
}

impl engine::Clients for NativeClients<'_> {
    type Producer = NativeProducer;
    type Consumer = NativeConsumer;

    fn producer(&self, acks: &Arc<Acks>) -> Result<Self::Producer> {
        let mut builder = self.producer.clone();
        if self.transactions {
            // No producer before has its name.
            builder = builder.transactional_id(format!("bench-{:016x}", rand::random::<u64>()));
        }
        let producer = self.handle.block_on(builder.build());
        let producer = producer.context("no producer")?;
        Ok(NativeProducer {
            // A transaction borrows its producer, and a process makes one load.
            transactional: self
                .transactions
                .then(|| &*Box::leak(Box::new(producer.clone()))),
            transaction: None,
            hands_over: self.load.rate.is_some(),
            producer,
            handle: self.handle.clone(),
            acks: acks.clone(),
            every: self.timed_acks,
            sent: 0,
            opened: 0,
        })
    }

    fn consumer(&self, partitions: &[u32]) -> Result<Self::Consumer> {
        let from_now = self.load.follows();
        let builder = if self.load.group {
            let start = if from_now {
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
                Start::Timestamp(u64::try_from(now.as_millis())?)
            } else {
                Start::Earliest
            };
            NativeBuilder::Member(self.member.clone().start(start))
        } else {
            let start = if from_now {
                Start::Latest
            } else {
                Start::Earliest
            };
            let mut reader = self.reader.clone().start(start);
            if partitions.len() < self.load.partitions as usize {
                // Partition p of a stream with M streamlets is lane p / M of streamlet p mod M.
                let lane = |p: &u32| (p % self.streamlets, p / self.streamlets);
                reader = reader.lanes(partitions.iter().map(lane));
            }
            NativeBuilder::Reader(reader)
        };
        Ok(NativeConsumer {
            builder: Some(builder),
            open: None,
            handle: self.handle.clone(),
        })
    }
}

/// A producer with a thread of its own.
#[derive(Debug)]
pub struct NativeProducer {
    producer: Producer,
    /// Only if it has transactions.
    transactional: Option<&'static Producer>,
    /// The one that is open.
    transaction: Option<Transaction<'static>>,
    /// Without transactions: what is due at once is not held back for more.
    hands_over: bool,
    handle: Handle,
    acks: Arc<Acks>,
    /// One record of so many has its acknowledgement timed; none if it is 0.
    every: u64,
    sent: u64,
    opened: u64,
}

impl NativeProducer {
    /// Commits the transaction that is open, if one is.
    fn commit(&mut self) -> Result<()> {
        match self.transaction.take() {
            Some(transaction) => Ok(self.handle.block_on(transaction.commit())?),
            None => Ok(()),
        }
    }
}

impl Producing for NativeProducer {
    fn open(&mut self, _partition: u32, key: Option<&[u8]>, value: &[u8]) -> Result<()> {
        // Without a key every flush moves on to the next lane.
        self.send(key, value, None)?;
        self.sent -= 1;
        self.opened += 1;
        self.commit()?;
        Ok(self.handle.block_on(self.producer.flush())?)
    }

    fn send(&mut self, key: Option<&[u8]>, value: &[u8], due: Option<Duration>) -> Result<()> {
        let record = Record {
            key,
            value: Some(value),
            ..Record::default()
        };
        let timed = due
            .filter(|_| self.every > 0)
            .filter(|_| self.sent.is_multiple_of(self.every));
        self.sent += 1;
        if let (Some(producer), None) = (self.transactional, &self.transaction) {
            self.transaction = Some(self.handle.block_on(producer.transaction())?);
        }
        let Some(due) = timed else {
            match self.producer.send(&record) {
                Err(AppendError::Full) => {
                    self.handle.block_on(self.producer.append_wait(&record))?;
                }
                taken => taken?,
            }
            return Ok(());
        };
        let delivery = self.handle.block_on(self.producer.append_wait(&record))?;
        let acks = self.acks.clone();
        self.handle.spawn(async move {
            // A failure is told by the flush.
            if delivery.await.is_ok() {
                acks.take(due);
            }
        });
        Ok(())
    }

    fn complete(&mut self) -> Result<()> {
        if self.transactional.is_some() {
            return self.commit();
        }
        if self.hands_over {
            let producer = self.producer.clone();
            // A failure is told at the end.
            self.handle.spawn(async move { producer.flush().await });
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.commit()?;
        self.handle.block_on(self.producer.flush())?;
        let counts = self.producer.metrics();
        let sent = self.sent + self.opened;
        ensure!(
            counts.records_failed == 0 && counts.records_acknowledged == sent,
            "{} of {sent} records were acknowledged",
            counts.records_acknowledged
        );
        Ok(())
    }

    fn mean_batch_bytes(&self) -> Option<f64> {
        let counts = self.producer.metrics();
        let sent = counts.batches + counts.batches_resent;
        (sent > 0).then(|| counts.bytes_sent as f64 / sent as f64)
    }
}

/// A reader, or a member of a group, with a thread of its own.
pub struct NativeConsumer {
    builder: Option<NativeBuilder>,
    open: Option<OpenConsumer>,
    handle: Handle,
}

enum NativeBuilder {
    Reader(ReaderBuilder),
    Member(ConsumerBuilder),
}

enum OpenConsumer {
    Reader(Box<Reader>),
    Member(Box<Consumer>),
}

impl NativeBuilder {
    async fn open(self) -> Result<OpenConsumer> {
        Ok(match self {
            Self::Reader(builder) => OpenConsumer::Reader(Box::new(builder.open().await?)),
            Self::Member(builder) => OpenConsumer::Member(Box::new(builder.open().await?)),
        })
    }
}

impl OpenConsumer {
    /// The next batch; none if what failed may go well the next time.
    async fn next(&mut self) -> Result<Option<Batch>> {
        let next = match self {
            Self::Reader(reader) => match reader.next_batch().await {
                Ok(None) => bail!("a reader that follows came to an end"),
                next => next,
            },
            Self::Member(member) => member.next_batch().await.map(Some),
        };
        match next {
            Err(ConsumeError::StaleLease { .. }) => Ok(None),
            Err(error) if error.is_retryable() => Ok(None),
            next => Ok(next?),
        }
    }
}

impl Consuming for NativeConsumer {
    fn begin(&mut self) -> Result<()> {
        let builder = self.builder.take().context("it begins once")?;
        let open = self.handle.block_on(builder.open());
        self.open = Some(open.context("no reader")?);
        Ok(())
    }

    fn receive(&mut self, wait: Duration, sink: &mut Sink<'_>) -> Result<()> {
        let open = self.open.as_mut().context("it has begun")?;
        let next = async { tokio::time::timeout(wait, open.next()).await };
        let Ok(next) = self.handle.block_on(next) else {
            return Ok(());
        };
        let Some(batch) = next? else {
            return Ok(());
        };
        sink.now();
        for record in batch.records() {
            let record = record?;
            let key = record.key.map_or(0, <[u8]>::len);
            sink.take(key, record.value.unwrap_or_default())?;
        }
        Ok(())
    }

    fn end(&mut self) {
        if let Some(OpenConsumer::Member(member)) = self.open.take() {
            let leave = async { tokio::time::timeout(LEAVE, member.close()).await };
            let _ = self.handle.block_on(leave);
        }
    }
}
