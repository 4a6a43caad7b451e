//! Consumers and readers for programs without tasks: calls wait, and no runtime is needed.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use kera_consumer::{Start, blocking::Consumer};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut consumer = Consumer::builder()
//!         .stream("flights")
//!         .group("delays")
//!         .start(Start::Earliest)
//!         .open_blocking()?;
//!     // Ends when nothing has come for a minute.
//!     while let Some(batch) = consumer.next_batch_within(Duration::from_secs(60))? {
//!         for record in batch.records() {
//!             let record = record?;
//!             println!("{}: {:?}", record.ordinal, record.value);
//!         }
//!         consumer.commit(&batch)?;
//!     }
//!     consumer.close()?;
//!     Ok(())
//! }
//! ```
//!
//! Joining, heartbeats and fetching go on in two threads, which all blocking clients of a process share. Tasks of a tokio
//! runtime must not wait: there each call that waits returns the error
//! [`BlockingError::WithinTask`](kera_rpc::BlockingError::WithinTask).

use std::iter;
use std::time::Duration;

use kera_rpc::blocking::{wait, wait_within};
use kera_rpc::{GroupPositions, Stall};

use crate::batch::{Batch, OwnedRecord, Position};
use crate::builder::{ConsumerBuilder, ReaderBuilder};
use crate::config::{Seek, Start};
use crate::consumer;
use crate::error::ConsumeError;
use crate::group::LeaseInfo;
use crate::metrics::Metrics;
use crate::reader;

impl ConsumerBuilder {
    /// As [`open`](Self::open), for programs without tasks: waits, and needs no runtime.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`ConsumeError::Blocking`].
    pub fn open_blocking(self) -> Result<Consumer, ConsumeError> {
        let tasks = wait(self.open())??;
        Ok(Consumer { tasks })
    }
}

impl ReaderBuilder {
    /// As [`open`](Self::open), for programs without tasks: waits, and needs no runtime.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`ConsumeError::Blocking`].
    pub fn open_blocking(self) -> Result<Reader, ConsumeError> {
        let tasks = wait(self.open())??;
        Ok(Reader { tasks })
    }
}

/// A member of a consumer group: reads what it holds leases for.
///
/// Dropping it leaves the group without committing anything more; [`close`](Self::close) commits first.
#[derive(Debug)]
pub struct Consumer {
    tasks: consumer::Consumer,
}

impl Consumer {
    /// Settings of a new consumer, to be opened with [`open_blocking`](ConsumerBuilder::open_blocking).
    pub fn builder() -> ConsumerBuilder {
        ConsumerBuilder::new()
    }

    /// The next batch, as soon as there is one. With automatic commits the call tells that all batches delivered before are
    /// processed.
    ///
    /// # Errors
    /// As [`Consumer::next_batch`](crate::Consumer::next_batch), and [`ConsumeError::Blocking`].
    pub fn next_batch(&mut self) -> Result<Batch, ConsumeError> {
        wait(self.tasks.next_batch())?
    }

    /// As [`next_batch`](Self::next_batch), but waits at most for so long; `None` if nothing has come.
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch).
    pub fn next_batch_within(&mut self, limit: Duration) -> Result<Option<Batch>, ConsumeError> {
        wait_within(limit, self.tasks.next_batch())?.transpose()
    }

    /// Single records, until an error; costs several times what visiting [`Batch::records`](crate::Batch::records) does. What was
    /// not taken when this is dropped stays for later calls. As of [`Consumer::records`](crate::Consumer::records), with automatic
    /// commits a record counts as processed when the next one is asked for, or the consumer is closed.
    pub fn records(&mut self) -> impl Iterator<Item = Result<OwnedRecord, ConsumeError>> + '_ {
        until_an_error(move || match self.tasks.record_at_hand() {
            Some(record) => Ok(Some(record)),
            None => wait(self.tasks.next_record())?.map(Some),
        })
    }

    /// As [`Consumer::record_at_hand`](crate::Consumer::record_at_hand): the next record, if nothing has to be waited for.
    pub fn record_at_hand(&mut self) -> Option<OwnedRecord> {
        self.tasks.record_at_hand()
    }

    /// Commits everything of the batch's lease up to and including it, and returns when that is durable.
    ///
    /// # Errors
    /// As [`Consumer::commit`](crate::Consumer::commit), and [`ConsumeError::Blocking`].
    pub fn commit(&self, batch: &Batch) -> Result<(), ConsumeError> {
        wait(self.tasks.commit(batch))?
    }

    /// As [`Consumer::mark`](crate::Consumer::mark): everything up to and including the batch is processed, and committed later.
    ///
    /// # Errors
    /// [`ConsumeError::StaleLease`] if the lease has ended.
    pub fn mark(&self, batch: &Batch) -> Result<(), ConsumeError> {
        self.tasks.mark(batch)
    }

    /// As [`Consumer::positions`](crate::Consumer::positions): where the group stands after these batches, for a transaction.
    ///
    /// # Errors
    /// As [`Consumer::positions`](crate::Consumer::positions).
    pub fn positions<'b>(
        &self,
        batches: impl IntoIterator<Item = &'b Batch>,
    ) -> Result<GroupPositions, ConsumeError> {
        self.tasks.positions(batches)
    }

    /// As [`Consumer::rewind`](crate::Consumer::rewind): what was delivered and not committed is delivered again.
    pub fn rewind(&mut self) {
        self.tasks.rewind();
    }

    /// A handle that commits, for threads that process batches side by side with this consumer.
    pub fn committer(&self) -> Committer {
        Committer {
            tasks: self.tasks.committer(),
        }
    }

    /// Delivers nothing more of a lane until [`resume`](Self::resume); its lease is kept. See
    /// [`Consumer::pause`](crate::Consumer::pause).
    pub fn pause(&mut self, streamlet: u32, lane: u32) {
        self.tasks.pause(streamlet, lane);
    }

    /// Goes on with a lane that was [paused](Self::pause), where it stood.
    pub fn resume(&mut self, streamlet: u32, lane: u32) {
        self.tasks.resume(streamlet, lane);
    }

    /// The lanes that are [paused](Self::pause): streamlet and lane, in order.
    pub fn paused(&self) -> Vec<(u32, u32)> {
        self.tasks.paused()
    }

    /// Goes on elsewhere in one lane, as [`Consumer::seek`](crate::Consumer::seek).
    ///
    /// # Errors
    /// As [`Consumer::seek`](crate::Consumer::seek), and [`ConsumeError::Blocking`].
    pub fn seek(
        &mut self,
        streamlet: u32,
        lane: u32,
        to: impl Into<Seek>,
    ) -> Result<(), ConsumeError> {
        wait(self.tasks.seek(streamlet, lane, to))?
    }

    /// The leases held now.
    pub fn leases(&self) -> Vec<LeaseInfo> {
        self.tasks.leases()
    }

    /// As [`Consumer::stall`](crate::Consumer::stall): the lanes that do not go on, and why.
    pub fn stall(&self, longer: Duration) -> Option<Stall> {
        self.tasks.stall(longer)
    }

    /// Counts and sizes.
    pub fn metrics(&self) -> Metrics {
        self.tasks.metrics()
    }

    /// Commits what was processed (with automatic commits: all that was delivered), gives the leases back, and leaves
    /// the group.
    ///
    /// # Errors
    /// As [`Consumer::close`](crate::Consumer::close). [`ConsumeError::Blocking`] if it cannot wait here: then it is as if it had
    /// been dropped.
    pub fn close(self) -> Result<(), ConsumeError> {
        wait(self.tasks.close())?
    }
}

/// Commits batches of a [`Consumer`] from any thread; see [`Consumer::committer`].
#[derive(Clone, Debug)]
pub struct Committer {
    tasks: consumer::Committer,
}

impl Committer {
    /// As [`Consumer::commit`]. Batches of one lease must be committed in order, or only the last: a commit says that
    /// everything before is processed too.
    ///
    /// # Errors
    /// As [`Consumer::commit`]; [`ConsumeError::Closed`] once the consumer is gone.
    pub fn commit(&self, batch: &Batch) -> Result<(), ConsumeError> {
        wait(self.tasks.commit(batch))?
    }

    /// As [`Consumer::mark`].
    ///
    /// # Errors
    /// As [`Consumer::mark`].
    pub fn mark(&self, batch: &Batch) -> Result<(), ConsumeError> {
        self.tasks.mark(batch)
    }
}

/// Reads lanes of a stream, on its own: it commits nothing, and every reader sees every record.
///
/// ```no_run
/// use kera_consumer::blocking::Reader;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // All that is stored, and then it ends.
/// let mut reader = Reader::builder().stream("flights").follow(false).open_blocking()?;
/// for record in reader.records() {
///     println!("{:?}", record?.value);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reader {
    tasks: reader::Reader,
}

impl Reader {
    /// Settings of a new reader, to be opened with [`open_blocking`](ReaderBuilder::open_blocking).
    pub fn builder() -> ReaderBuilder {
        ReaderBuilder::new()
    }

    /// The next batch of any lane, as soon as there is one; `None` when all lanes are read to their end.
    ///
    /// # Errors
    /// As [`Reader::next_batch`](crate::Reader::next_batch), and [`ConsumeError::Blocking`].
    pub fn next_batch(&mut self) -> Result<Option<Batch>, ConsumeError> {
        wait(self.tasks.next_batch())?
    }

    /// As [`next_batch`](Self::next_batch), but waits at most for so long; `None` also if nothing has come:
    /// [`is_finished`](Self::is_finished) tells that from the end.
    ///
    /// # Errors
    /// As [`next_batch`](Self::next_batch).
    pub fn next_batch_within(&mut self, limit: Duration) -> Result<Option<Batch>, ConsumeError> {
        let waited = wait_within(limit, self.tasks.next_batch())?;
        waited.unwrap_or(Ok(None))
    }

    /// True once all lanes are read to their end, which never happens while following.
    pub fn is_finished(&self) -> bool {
        self.tasks.is_finished()
    }

    /// Single records, until all lanes are read to their end, or an error; costs several times what visiting
    /// [`Batch::records`](crate::Batch::records) does. What was not taken when this is dropped stays for later calls.
    pub fn records(&mut self) -> impl Iterator<Item = Result<OwnedRecord, ConsumeError>> + '_ {
        until_an_error(move || match self.tasks.record_at_hand() {
            Some(record) => Ok(Some(record)),
            None => wait(self.tasks.next_record())?,
        })
    }

    /// As [`Reader::record_at_hand`](crate::Reader::record_at_hand): the next record, if nothing has to be waited for.
    pub fn record_at_hand(&mut self) -> Option<OwnedRecord> {
        self.tasks.record_at_hand()
    }

    /// Goes on elsewhere in one lane, as [`Reader::seek`](crate::Reader::seek).
    ///
    /// # Errors
    /// As [`Reader::seek`](crate::Reader::seek), and [`ConsumeError::Blocking`].
    pub fn seek(
        &mut self,
        streamlet: u32,
        lane: u32,
        to: impl Into<Seek>,
    ) -> Result<(), ConsumeError> {
        wait(self.tasks.seek(streamlet, lane, to))?
    }

    /// Goes on elsewhere in every lane.
    ///
    /// # Errors
    /// [`ConsumeError::Rpc`] if the broker was not reached, and [`ConsumeError::Blocking`].
    pub fn seek_all(&mut self, to: Start) -> Result<(), ConsumeError> {
        wait(self.tasks.seek_all(to))?
    }

    /// Where the reader stands in each lane: what follows the last batch delivered.
    pub fn positions(&self) -> Vec<Position> {
        self.tasks.positions()
    }

    /// As [`Reader::stall`](crate::Reader::stall): the lanes that do not go on, and why.
    pub fn stall(&self, longer: Duration) -> Option<Stall> {
        self.tasks.stall(longer)
    }

    /// Counts and sizes.
    pub fn metrics(&self) -> Metrics {
        self.tasks.metrics()
    }
}

/// What `next` returns, until it is an error or nothing.
fn until_an_error<T>(
    mut next: impl FnMut() -> Result<Option<T>, ConsumeError>,
) -> impl Iterator<Item = Result<T, ConsumeError>> {
    let mut is_over = false;
    iter::from_fn(move || {
        if is_over {
            return None;
        }
        let item = next().transpose();
        is_over = !matches!(item, Some(Ok(_)));
        item
    })
}
