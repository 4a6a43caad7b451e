//! The producer for programs without tasks: calls wait, and no runtime is needed.
//!
//! Records are taken as by the async [`Producer`](crate::Producer), and as fast: only what the async one awaits
//! waits here.
//!
//! ```no_run
//! use kera_producer::{Record, blocking::Producer};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let producer = Producer::builder().stream("clicks").build_blocking()?;
//!     for number in 0..1_000 {
//!         let value = format!("click {number}");
//!         // Waits only while memory is used up.
//!         producer.append_wait(&Record::keyed(b"user-7", value.as_bytes()))?;
//!     }
//!     let last = producer.append(&Record::keyed(b"user-7", b"bought a hat"))?;
//!     println!("record {} of its lane", last.wait()?.ordinal);
//!     producer.close()?;
//!     Ok(())
//! }
//! ```
//!
//! The connections are served by two threads, which all blocking clients of a process share. Tasks of a tokio runtime must
//! not wait: there each call that waits returns the error [`BlockingError::WithinTask`](kera_rpc::BlockingError::WithinTask).

use std::time::Duration;

use kera_rpc::{Client, GroupPositions, Stall, blocking::wait};

use crate::config::ProducerBuilder;
use crate::delivery::Delivery;
use crate::error::{AppendError, BuildError, ProduceError, TransactionError};
use crate::handle::TransactionHandle;
use crate::metrics::Metrics;
use crate::record::Record;
use crate::transaction;

impl ProducerBuilder {
    /// As [`build`](Self::build), for programs without tasks: waits, and needs no runtime.
    ///
    /// # Errors
    /// As [`build`](Self::build), and [`BuildError::Blocking`].
    pub fn build_blocking(self) -> Result<Producer, BuildError> {
        let tasks = wait(self.build())??;
        Ok(Producer { tasks })
    }
}

/// Appends records to one stream. Cheap to clone; clones share everything, from any thread.
///
/// When the last clone is dropped, records that are not acknowledged yet are given up; [`close`](Self::close) waits
/// for them.
#[derive(Clone, Debug)]
pub struct Producer {
    tasks: crate::Producer,
}

impl Producer {
    /// Settings of a new producer, to be built with [`build_blocking`](ProducerBuilder::build_blocking).
    pub fn builder() -> ProducerBuilder {
        ProducerBuilder::new()
    }

    /// As [`Producer::for_stream`](crate::Producer::for_stream): a producer for another stream, which shares connections, the
    /// bound on memory and the transaction with this one.
    ///
    /// # Errors
    /// As [`Producer::for_stream`](crate::Producer::for_stream), and [`BuildError::Blocking`].
    pub fn for_stream(&self, stream: impl Into<String>) -> Result<Self, BuildError> {
        let tasks = wait(self.tasks.for_stream(stream))??;
        Ok(Self { tasks })
    }

    /// As [`Producer::append`](crate::Producer::append): takes the record at once, and never waits.
    ///
    /// # Errors
    /// [`AppendError::Full`] when memory is used up: see [`append_wait`](Self::append_wait).
    #[inline]
    pub fn append(&self, record: &Record<'_>) -> Result<Delivery, AppendError> {
        self.tasks.append(record)
    }

    /// As [`append`](Self::append), but without a handle: [`flush`](Self::flush) and [`close`](Self::close) tell whether
    /// all went well.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    #[inline]
    pub fn send(&self, record: &Record<'_>) -> Result<(), AppendError> {
        self.tasks.send(record)
    }

    /// As [`append`](Self::append), but waits for memory.
    ///
    /// # Errors
    /// As [`append`](Self::append), but never [`AppendError::Full`]; [`AppendError::Blocking`] if it has to wait and
    /// cannot.
    pub fn append_wait(&self, record: &Record<'_>) -> Result<Delivery, AppendError> {
        match self.append(record) {
            Err(AppendError::Full) => wait(self.tasks.append_wait(record))?,
            result => result,
        }
    }

    /// Sends what is open, and waits until everything appended before has been acknowledged or given up.
    ///
    /// # Errors
    /// As [`Producer::flush`](crate::Producer::flush), and [`ProduceError::Blocking`].
    pub fn flush(&self) -> Result<(), ProduceError> {
        wait(self.tasks.flush())?
    }

    /// Takes no more records, then does as [`flush`](Self::flush), and ends the connections. Other clones of the
    /// producer are closed too.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn close(&self) -> Result<(), ProduceError> {
        wait(self.tasks.close())?
    }

    /// Begins a transaction: the records that are appended from now on count together, or not at all.
    ///
    /// ```no_run
    /// # use kera_producer::{Record, blocking::Producer};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let producer = Producer::builder()
    ///     .stream("payments")
    ///     .transactional_id("payments-1")
    ///     .build_blocking()?;
    /// let transaction = producer.transaction()?;
    /// transaction.append(&Record::keyed(b"alice", b"-10"))?;
    /// transaction.append(&Record::keyed(b"bob", b"+10"))?;
    /// transaction.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Producer::transaction`](crate::Producer::transaction), and [`TransactionError::Blocking`].
    pub fn transaction(&self) -> Result<Transaction<'_>, TransactionError> {
        let tasks = wait(self.tasks.transaction())??;
        Ok(Transaction { tasks })
    }

    /// As [`Producer::stall`](crate::Producer::stall): the lanes that do not go on, and why.
    pub fn stall(&self, longer: Duration) -> Option<Stall> {
        self.tasks.stall(longer)
    }

    /// Counts since the producer was built.
    pub fn metrics(&self) -> Metrics {
        self.tasks.metrics()
    }
}

/// An open transaction of a blocking [`Producer`]. One that is dropped is aborted when the next one begins, or when its
/// time is over.
#[must_use = "a transaction that is dropped is aborted"]
#[derive(Debug)]
pub struct Transaction<'a> {
    tasks: transaction::Transaction<'a>,
}

impl Transaction<'_> {
    /// As [`Producer::append`], as part of the transaction.
    ///
    /// # Errors
    /// As [`Producer::append`].
    #[inline]
    pub fn append(&self, record: &Record<'_>) -> Result<Delivery, AppendError> {
        self.tasks.append(record)
    }

    /// As [`Producer::append_wait`], as part of the transaction.
    ///
    /// # Errors
    /// As [`Producer::append_wait`].
    pub fn append_wait(&self, record: &Record<'_>) -> Result<Delivery, AppendError> {
        match self.append(record) {
            Err(AppendError::Full) => wait(self.tasks.append_wait(record))?,
            result => result,
        }
    }

    /// As [`Transaction::commit`](crate::Transaction::commit): waits until all records count, or none.
    ///
    /// # Errors
    /// As [`Transaction::commit`](crate::Transaction::commit). [`TransactionError::Blocking`] if it cannot wait here: then it is
    /// as if it had been dropped.
    pub fn commit(self) -> Result<(), TransactionError> {
        wait(self.tasks.commit())?
    }

    /// As [`Transaction::send_positions`](crate::Transaction::send_positions): the transaction commits where a consumer group
    /// stands, from `blocking::Consumer::positions` of the crate `kera-consumer`.
    ///
    /// # Errors
    /// As [`Transaction::send_positions`](crate::Transaction::send_positions), and [`TransactionError::Blocking`].
    pub fn send_positions(&self, positions: GroupPositions) -> Result<(), TransactionError> {
        wait(self.tasks.send_positions(positions))?
    }

    /// Its handle, once a record is on its way.
    pub fn handle(&self) -> Option<TransactionHandle> {
        self.tasks.handle()
    }

    /// As [`Transaction::prepare`](crate::Transaction::prepare): from then on it waits for whoever ends it by its handle.
    ///
    /// # Errors
    /// As [`Transaction::prepare`](crate::Transaction::prepare), and [`TransactionError::Blocking`] as of
    /// [`commit`](Self::commit).
    pub fn prepare(self) -> Result<Option<TransactionHandle>, TransactionError> {
        wait(self.tasks.prepare())?
    }

    /// Gives up all records of the transaction.
    ///
    /// # Errors
    /// As [`Transaction::abort`](crate::Transaction::abort), and [`TransactionError::Blocking`] as of
    /// [`commit`](Self::commit).
    pub fn abort(self) -> Result<(), TransactionError> {
        wait(self.tasks.abort())?
    }
}

/// Transactions that were prepared, to be ended by whoever has their handles.
#[derive(Clone, Debug)]
pub struct Transactions {
    tasks: transaction::Transactions,
}

impl Transactions {
    /// Those of the cluster of this client.
    pub fn new(client: Client) -> Self {
        let tasks = transaction::Transactions::new(client);
        Self { tasks }
    }

    /// Commits a transaction. One that was committed before is committed.
    ///
    /// # Errors
    /// As [`Transactions::commit`](crate::Transactions::commit), and [`TransactionError::Blocking`].
    pub fn commit(&self, handle: &TransactionHandle) -> Result<(), TransactionError> {
        wait(self.tasks.commit(handle))?
    }

    /// Aborts a transaction. One that was aborted before is aborted.
    ///
    /// # Errors
    /// As [`Transactions::abort`](crate::Transactions::abort), and [`TransactionError::Blocking`].
    pub fn abort(&self, handle: &TransactionHandle) -> Result<(), TransactionError> {
        wait(self.tasks.abort(handle))?
    }

    /// Has the brokers forget how a transaction ended, and its transactional id.
    ///
    /// # Errors
    /// As [`Transactions::forget`](crate::Transactions::forget), and [`TransactionError::Blocking`].
    pub fn forget(&self, handle: &TransactionHandle) -> Result<(), TransactionError> {
        wait(self.tasks.forget(handle))?
    }

    /// Aborts the open transactions whose transactional ids begin so, and fences their producers.
    ///
    /// # Errors
    /// As [`Transactions::abort_by_prefix`](crate::Transactions::abort_by_prefix), and [`TransactionError::Blocking`].
    pub fn abort_by_prefix(
        &self,
        prefix: &str,
        which: transaction::AbortWhich,
    ) -> Result<Vec<transaction::AbortedTransaction>, TransactionError> {
        wait(self.tasks.abort_by_prefix(prefix, which))?
    }

    /// The prepared transactions whose transactional ids begin so, sorted by id.
    ///
    /// # Errors
    /// As [`Transactions::prepared`](crate::Transactions::prepared), and [`TransactionError::Blocking`].
    pub fn prepared(
        &self,
        prefix: &str,
    ) -> Result<Vec<transaction::PreparedTransaction>, TransactionError> {
        wait(self.tasks.prepared(prefix))?
    }
}
