//! The member of a group.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_protocol::v1::Cursor;
use kera_rpc::Client;
use tokio::task::AbortHandle;

use crate::batch::{Batch, ChunkReader};
use crate::builder::ConsumerBuilder;
use crate::config::FetchSettings;
use crate::error::ConsumeError;
use crate::fetch::{Fetcher, Popped};
use crate::group::{Group, GroupSettings, LeaseInfo};
use crate::metrics::Metrics;

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
    current: Option<ChunkReader>,
    /// Delivered last, and processed once the next batch is asked for.
    previous: Option<(u64, Cursor)>,
    auto_commit: bool,
    counts: Metrics,
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
            current: None,
            previous: None,
            auto_commit,
            counts: Metrics::default(),
            left: false,
        })
    }

    /// The next batch, as soon as there is one. Safe to cancel: nothing is lost.
    ///
    /// With automatic commits the call tells that all batches delivered before are processed.
    ///
    /// # Errors
    /// [`ConsumeError::Lane`] and [`ConsumeError::Corrupt`] are about one lane: call again to go on.
    /// Others end the consumer, as when its stream was deleted.
    pub async fn next_batch(&mut self) -> Result<Batch, ConsumeError> {
        if self.auto_commit
            && let Some((lease, next)) = self.previous.take()
        {
            // Its lease may have ended meanwhile; then another consumer has the records.
            let _ = self.group.processed(lease, next);
        }
        loop {
            if let Some(batch) = self.take_batch()? {
                return Ok(batch);
            }
            match self.fetcher.pop() {
                Popped::Chunk(chunk) => self.current = Some(ChunkReader::new(chunk)),
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

    /// The next batch of the current chunk, if its lease still holds.
    fn take_batch(&mut self) -> Result<Option<Batch>, ConsumeError> {
        let Some(reader) = &mut self.current else {
            return Ok(None);
        };
        let lease = reader.chunk.tag;
        match reader.next_batch(Some(lease)) {
            Some(Ok(batch)) => {
                if !self.group.deliver(lease, &batch) {
                    self.current = None;
                    return Ok(None);
                }
                self.counts.batches += 1;
                self.counts.records += batch.len() as u64;
                self.counts.bytes += batch.wire_bytes() as u64;
                self.previous = Some((lease, batch.position().next));
                Ok(Some(batch))
            }
            Some(Err(error)) => {
                let (ordinal, lane) = (reader.position(), reader.chunk.lane);
                self.fetcher.rewind(reader.chunk.source, ordinal);
                self.current = None;
                self.counts.corrupt_batches += 1;
                Err(ConsumeError::Corrupt {
                    lane,
                    ordinal,
                    error,
                })
            }
            None => {
                if reader.chunk.finished {
                    self.group.finished(lease, reader.chunk.next.ordinal);
                }
                self.current = None;
                Ok(None)
            }
        }
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
        if self.auto_commit
            && let Some((lease, next)) = self.previous.take()
        {
            let _ = self.group.processed(lease, next);
        }
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

fn leased(batch: &Batch) -> Result<(u64, Cursor), ConsumeError> {
    let position = batch.position();
    let lane = position.lane;
    let lease = position.lease.ok_or(ConsumeError::NotLeased { lane })?;
    Ok((lease, position.next))
}

impl Drop for Consumer {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.fetcher.close();
        self.group.fail(ConsumeError::Closed);
        if !self.left
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // Others need not wait for the session to expire.
            let group = self.group.clone();
            runtime.spawn(async move {
                let _ = group.leave().await;
            });
        }
    }
}
