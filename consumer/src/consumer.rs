//! The member of a group.

mod moves;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_protocol::v1::Cursor;
use kera_rpc::{Client, GroupPositions, Stall};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::task::coop::consume_budget;

use crate::batch::{Batch, ChunkReader, OwnedRecord, Unpacked, Unpacking};
use crate::builder::ConsumerBuilder;
use crate::config::FetchSettings;
use crate::error::ConsumeError;
use crate::fetch::{Fetcher, Popped};
use crate::group::{Group, GroupSettings, LeaseInfo, LeaseKey};
use crate::metrics::Metrics;
use crate::opened::OpenedBatch;

/// How long [`Consumer::close`] waits for commits.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// A member of a consumer group: reads what it holds leases for.
///
/// Joining, heartbeats, leases and commits happen in the background; after a lost connection or a
/// restart of the broker it goes on where it was. Dropping it leaves the group without committing
/// anything more; [`close`](Self::close) commits first.
pub struct Consumer {
    group: Arc<Group>,
    fetcher: Arc<Fetcher>,
    tasks: Vec<AbortHandle>,
    unpacking: Unpacking,
    current: Option<ChunkReader>,
    /// The batch that single records are taken of.
    opened: Option<OpenedBatch>,
    /// Delivered last, and processed once more is asked for.
    previous: Option<(LeaseKey, Cursor)>,
    auto_commit: bool,
    counts: Metrics,
    /// Of the tasks: whoever drops it may be elsewhere.
    runtime: Handle,
    left: bool,
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Consumer {
    /// Settings of a new consumer.
    pub fn builder() -> ConsumerBuilder {
        ConsumerBuilder::new()
    }

    pub(crate) async fn open(
        client: Client,
        settings: GroupSettings,
        fetch: FetchSettings,
    ) -> Result<Self, ConsumeError> {
        let auto_commit = settings.commit_interval.is_some();
        let fetcher = Fetcher::start(client.clone(), settings.stream.clone(), &fetch);
        let group = match Group::join(client, settings, fetcher.clone()).await {
            Ok(group) => group,
            Err(error) => {
                fetcher.close();
                return Err(error);
            }
        };
        let tasks = group.spawn();
        Ok(Self {
            group,
            fetcher,
            tasks,
            unpacking: fetch.unpacking(),
            current: None,
            opened: None,
            previous: None,
            auto_commit,
            counts: Metrics::default(),
            runtime: Handle::current(),
            left: false,
        })
    }

    /// The next batch, as soon as there is one. Safe to cancel: nothing is lost.
    ///
    /// With automatic commits the call tells that all batches delivered before are processed.
    ///
    /// # Errors
    /// [`ConsumeError::Lane`], [`ConsumeError::Corrupt`] and [`ConsumeError::Undecodable`] are about one lane:
    /// call again to go on. Others end the consumer, as when its stream was deleted, be it that another one has its name now.
    pub async fn next_batch(&mut self) -> Result<Batch, ConsumeError> {
        self.pass_on_progress();
        loop {
            self.group.settle_doubts().await;
            let batch = match self.opened.take().and_then(OpenedBatch::rest) {
                Some(rest) => rest,
                None => self.fetched().await?,
            };
            let (next, records) = (batch.position().next, batch.len() as u64);
            if self.deliver(batch.lease_key(), next, records) {
                return Ok(batch);
            }
        }
    }

    /// The next record; the others of its batch stay for later calls. Safe to cancel.
    pub(crate) async fn next_record(&mut self) -> Result<OwnedRecord, ConsumeError> {
        loop {
            self.group.settle_doubts().await;
            if let Some(record) = self.record_of_opened() {
                return Ok(record);
            }
            let batch = self.fetched().await?;
            match OpenedBatch::new(batch.clone()) {
                Ok(opened) => self.opened = Some(opened),
                Err(error) => return Err(self.stand_at(&batch, batch.undecodable(error))),
            }
        }
    }

    /// The next record, if it is of a batch of which one was taken before. `None` says nothing about what there is beyond:
    /// [`records`](Self::records) waits for that.
    ///
    /// For loops over single records: it makes no future, and else does as `records` does, also to what counts as processed.
    pub fn record_at_hand(&mut self) -> Option<OwnedRecord> {
        match self.group.is_doubtful() {
            // Asking takes time, which this call does not have.
            true => None,
            false => self.record_of_opened(),
        }
    }

    fn record_of_opened(&mut self) -> Option<OwnedRecord> {
        self.pass_on_progress();
        let opened = self.opened.as_mut()?;
        let lease = opened.batch.lease_key();
        match opened.next() {
            Some((record, next)) => {
                if self.deliver(lease, next, 1) {
                    return Some(record);
                }
            }
            // It may have had no records at all.
            None => {
                let end = opened.batch.position().next;
                self.deliver(lease, end, 0);
                self.pass_on_progress();
            }
        }
        self.opened = None;
        None
    }

    /// What was delivered before is processed.
    fn pass_on_progress(&mut self) {
        if self.auto_commit
            && let Some((lease, next)) = self.previous.take()
        {
            // Its lease may have ended meanwhile; then another consumer has the records.
            let _ = self.group.processed(lease, next);
        }
    }

    /// Notes that so many records, up to `next`, go to the application. False if their lease no longer
    /// holds: then they go to another consumer.
    fn deliver(&mut self, lease: Option<LeaseKey>, next: Cursor, records: u64) -> bool {
        let Some(lease) = lease.filter(|lease| self.group.deliver(*lease, next.ordinal)) else {
            self.current = None;
            return false;
        };
        self.counts.records += records;
        self.previous = Some((lease, next));
        true
    }

    /// The next batch that arrived, not delivered yet.
    async fn fetched(&mut self) -> Result<Batch, ConsumeError> {
        loop {
            // Before it is taken, so that nothing is lost if nobody waits any more.
            self.group.settle_doubts().await;
            if let Some(batch) = self.take_batch()? {
                self.counts.batches += 1;
                self.counts.bytes += batch.wire_bytes() as u64;
                return Ok(batch);
            }
            match self.fetcher.pop() {
                Popped::Chunk(chunk) => {
                    self.current = Some(ChunkReader::new(chunk));
                    // Many in a row may have nothing for this consumer: the task's other futures get their turn.
                    consume_budget().await;
                }
                Popped::Failed(error) => return Err(error),
                Popped::Empty => {
                    if let Some(error) = self.group.fatal() {
                        return Err(error);
                    }
                    self.fetcher.readable().await;
                }
            }
        }
    }

    /// The next batch of the current chunk.
    fn take_batch(&mut self) -> Result<Option<Batch>, ConsumeError> {
        while let Some(reader) = &mut self.current {
            let lease = LeaseKey {
                life: reader.chunk.life,
                lease: reader.chunk.tag,
            };
            let error = match reader.next_batch(Some(lease), &self.unpacking) {
                Some(Unpacked::Batch(batch)) => return Ok(Some(batch)),
                Some(Unpacked::Skipped(from, next)) => {
                    self.counts.skipped_batches += 1;
                    if !self.group.skipped(lease, from, next) {
                        self.current = None;
                    }
                    continue;
                }
                Some(Unpacked::Passed(next)) => {
                    if !self.group.passed(lease, next) {
                        self.current = None;
                    }
                    continue;
                }
                None => {
                    // The broker left out what lies behind the last batch: aborted transactions, or compacted records.
                    let next = reader.chunk.next;
                    if reader.chunk.slices.is_some() && next.ordinal > reader.position() {
                        self.group.passed(lease, next);
                    }
                    if reader.chunk.finished {
                        self.group.finished(lease, reader.chunk.next.ordinal);
                    }
                    self.current = None;
                    return Ok(None);
                }
                Some(Unpacked::Undecodable(error)) => error,
                Some(Unpacked::Damaged(error)) => {
                    self.counts.corrupt_batches += 1;
                    error
                }
            };
            self.fetcher.rewind(reader.chunk.source, reader.position());
            self.current = None;
            return Err(error);
        }
        Ok(None)
    }

    /// Has a batch that was taken out of the current chunk read again, and returns the error about it.
    fn stand_at(&mut self, batch: &Batch, error: ConsumeError) -> ConsumeError {
        if let Some(reader) = self.current.take() {
            self.fetcher
                .rewind(reader.chunk.source, batch.first_ordinal());
        }
        error
    }

    /// Commits everything of the batch's lease up to and including it, and returns when that is
    /// durable. Concurrent commits share requests.
    ///
    /// # Errors
    /// [`ConsumeError::StaleLease`] if the lease has ended: its records go, or went, to another
    /// consumer. [`ErrorCode::Timeout`](kera_protocol::error::ErrorCode::Timeout) if there was no answer
    /// within the retry policy's deadline, or 10 s if that is longer: the commit is sent on and may yet take
    /// effect; call again to hear of it. Others end the consumer.
    pub async fn commit(&self, batch: &Batch) -> Result<(), ConsumeError> {
        commit(&self.group, batch).await
    }

    /// Notes that everything of the batch's lease up to and including it is processed. Committed at
    /// the next interval of automatic commits, together with the next [`commit`](Self::commit), and
    /// when its lease ends.
    ///
    /// # Errors
    /// [`ConsumeError::StaleLease`] if the lease has ended.
    pub fn mark(&self, batch: &Batch) -> Result<(), ConsumeError> {
        mark(&self.group, batch)
    }

    /// Where the group stands after these batches, and everything of their leases before them: for a transaction to commit
    /// together with what became of their records (`Transaction::send_positions` of the crate `kera-producer`). Automatic
    /// commits must be off.
    ///
    /// If the transaction is not committed for certain, or is prepared, the leases are given back: their records are
    /// delivered again from where the group stands, here or elsewhere, once that is known. What was delivered beyond these batches
    /// is delivered again as well; committing it is refused.
    ///
    /// # Errors
    /// [`ConsumeError::StaleLease`] if a lease has ended: abort the transaction. [`ConsumeError::Setting`] with automatic
    /// commits.
    pub fn positions<'b>(
        &self,
        batches: impl IntoIterator<Item = &'b Batch>,
    ) -> Result<GroupPositions, ConsumeError> {
        self.group.positions(batches.into_iter().map(leased))
    }

    /// Gives back all leases of which more was delivered than is committed: that is delivered again, here or elsewhere. For
    /// whoever gives up a transaction before it has the positions of what it was made from.
    pub fn rewind(&mut self) {
        self.previous = None;
        self.group.rewind();
    }

    /// A handle that commits, for tasks that process batches side by side with this consumer.
    pub fn committer(&self) -> Committer {
        Committer {
            group: self.group.clone(),
        }
    }

    /// The leases held now.
    pub fn leases(&self) -> Vec<LeaseInfo> {
        self.group.lease_infos()
    }

    /// The lanes that have not gone on for `longer` although there may be something to read, and why; `None` if
    /// all is well. What takes 2 s is also told in the log, as a warning, once for each cause and again at
    /// growing intervals.
    pub fn stall(&self, longer: Duration) -> Option<Stall> {
        self.fetcher.stall(longer)
    }

    /// Counts and sizes.
    pub fn metrics(&self) -> Metrics {
        Metrics {
            lag: self.group.lag(),
            leases: self.group.lease_count(),
            buffered_bytes: self.fetcher.buffered_bytes(),
            commits: self.group.commit_count.load(Ordering::Relaxed),
            skipped_records: self.fetcher.counts.skipped.load(Ordering::Relaxed),
            connects: self.fetcher.counts.connects.load(Ordering::Relaxed),
            copy_bytes: self.fetcher.counts.from_copies.load(Ordering::Relaxed),
            ..self.counts
        }
    }

    /// Commits what was processed (with automatic commits: all that was delivered), gives the leases
    /// back, and leaves the group.
    ///
    /// # Errors
    /// [`ConsumeError`] if the commits, or the leave, did not get through; the consumer is closed all
    /// the same, and its leases end with its session.
    pub async fn close(mut self) -> Result<(), ConsumeError> {
        self.pass_on_progress();
        self.group.stop_acquiring(&self.tasks);
        let committed = self.group.give_back_all(CLOSE_LIMIT).await;
        self.left = true;
        let left = self.group.leave().await;
        committed?;
        Ok(left?)
    }
}

/// Commits batches of a [`Consumer`] from any task; see [`Consumer::committer`].
#[derive(Clone)]
pub struct Committer {
    group: Arc<Group>,
}

impl std::fmt::Debug for Committer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Committer").finish_non_exhaustive()
    }
}

impl Committer {
    /// As [`Consumer::commit`]. Batches of one lease must be committed in order, or only the last:
    /// a commit says that everything before is processed too.
    ///
    /// # Errors
    /// As [`Consumer::commit`]; [`ConsumeError::Closed`] once the consumer is gone.
    pub async fn commit(&self, batch: &Batch) -> Result<(), ConsumeError> {
        commit(&self.group, batch).await
    }

    /// As [`Consumer::mark`].
    ///
    /// # Errors
    /// As [`Consumer::mark`].
    pub fn mark(&self, batch: &Batch) -> Result<(), ConsumeError> {
        mark(&self.group, batch)
    }
}

async fn commit(group: &Group, batch: &Batch) -> Result<(), ConsumeError> {
    let (lease, next) = leased(batch)?;
    group.commit(lease, next).await
}

fn mark(group: &Group, batch: &Batch) -> Result<(), ConsumeError> {
    let (lease, next) = leased(batch)?;
    group.processed(lease, next)
}

fn leased(batch: &Batch) -> Result<(LeaseKey, Cursor), ConsumeError> {
    let lane = batch.lane();
    let lease = batch.lease_key().ok_or(ConsumeError::NotLeased { lane })?;
    Ok((lease, batch.position().next))
}

impl Drop for Consumer {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.fetcher.close();
        self.group.fail(ConsumeError::Closed);
        if !self.left {
            // Others need not wait for the session to expire.
            let group = self.group.clone();
            self.runtime.spawn(async move {
                let _ = group.leave().await;
            });
        }
    }
}
