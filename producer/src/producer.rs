//! The producer as applications see it.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_protocol::v1;
use kera_rpc::{Client, RetryPolicy, RpcError, Stall, StreamMeta};

use crate::config::ProducerBuilder;
use crate::delivery::Delivery;
use crate::error::{AppendError, BuildError, ProduceError, TransactionError};
use crate::family::Family;
use crate::handle::TransactionHandle;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::record::Record;
use crate::settings::Settings;
use crate::shared::{Shared, check_slots, largest};
use crate::slot::Identity;
use crate::transaction::Transaction;
use crate::transactional::Transactional;

/// Appends records to one stream. Cheap to clone; clones share everything, from any thread. For other streams
/// see [`for_stream`](Self::for_stream).
///
/// When the last clone is dropped, records that are not acknowledged yet are given up;
/// [`close`](Self::close) waits for them.
#[derive(Clone)]
pub struct Producer {
    guard: Arc<Guard>,
}

struct Guard {
    shared: Arc<Shared>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer")
            .field("stream", &self.guard.shared.settings.stream)
            .finish_non_exhaustive()
    }
}

impl Producer {
    /// Settings of a new producer; [`stream`](ProducerBuilder::stream) is required.
    pub fn builder() -> ProducerBuilder {
        ProducerBuilder::new()
    }

    pub(crate) async fn open(client: Client, settings: Settings) -> Result<Self, BuildError> {
        let meta = client.refresh(&settings.stream).await?;
        check_slots(&meta)?;
        let transactional = match &settings.transactional_id {
            Some(id) => Some(begin_transactional(&client, &meta, id, &settings).await?),
            None => None,
        };
        let identity = identity(&client, transactional.as_ref(), &settings).await?;
        let (meta, max_frame_bytes) = reach_an_owner(&client, meta, settings.retry).await?;
        let (batch_bytes, _) = largest(&settings, &meta, max_frame_bytes);
        let memory = Memory::new(settings.memory_limit, batch_bytes);
        let family = Family::new(client, &settings, memory, transactional, max_frame_bytes);
        let producer = Self::join(&family, settings, &meta, identity)?;
        for link in family.links() {
            match family.connect_link(&link).await {
                Ok(connection) => family.connected(&link, connection),
                // One owner is reached; this one's streamlets may soon have another.
                Err(error) => {
                    tracing::debug!(broker = %link.address, %error, "cannot connect yet");
                }
            }
        }
        tokio::spawn(producer.guard.shared.clone().drive());
        Ok(producer)
    }

    /// Another producer of a family, whose background task is yet to be started.
    fn join(
        family: &Arc<Family>,
        settings: Settings,
        meta: &StreamMeta,
        identity: Identity,
    ) -> Result<Self, BuildError> {
        let shared = family.join(meta.id, |number, unanswered| {
            let place = (number, unanswered);
            Shared::new(settings, meta, identity, family.clone(), place)
        })?;
        Ok(Self {
            guard: Arc::new(Guard { shared }),
        })
    }

    /// A producer for another stream of the same cluster, with the same settings, which shares what this one has: the
    /// connections, the bound on memory, and the transaction, so that a [`Transaction`] covers the records of both. It is a
    /// producer of its own in all else: it is flushed and closed by itself, and outlives this one.
    ///
    /// An append names no stream, but goes to the producer of one: then the stream is looked up once and not for each record,
    /// and appends to different streams meet at no lock. So keep the producers of the streams that you append to.
    ///
    /// ```no_run
    /// # use kera_producer::{Producer, Record};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let orders = Producer::builder()
    ///     .stream("orders")
    ///     .transactional_id("shop-1")
    ///     .build()
    ///     .await?;
    /// let invoices = orders.for_stream("invoices").await?;
    /// let transaction = orders.transaction().await?;
    /// orders.append(&Record::keyed(b"alice", b"a hat"))?;
    /// invoices.append(&Record::keyed(b"alice", b"10"))?;
    /// // Both, or none.
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BuildError`] as of [`build`](ProducerBuilder::build), [`BuildError::Closed`] if this producer and all that share with it are
    /// closed. Of a stream there is one producer for each transactional id: clone it. At most 4,096 streams are open at a time.
    pub async fn for_stream(&self, stream: impl Into<String>) -> Result<Self, BuildError> {
        let shared = &self.guard.shared;
        let family = &shared.family;
        let settings = Settings {
            stream: stream.into(),
            ..shared.settings.clone()
        };
        settings.check_stream()?;
        let meta = family.client.refresh(&settings.stream).await?;
        check_slots(&meta)?;
        let transactional = family.transactional.as_ref();
        let _turn = match transactional {
            Some(transactional) => {
                check_promise(&meta)?;
                // No other epoch begins before the stream takes part in that.
                Some(transactional.beginning.lock().await)
            }
            None => None,
        };
        let identity = identity(&family.client, transactional, &settings).await?;
        let producer = Self::join(family, settings, &meta, identity)?;
        // It connects to owners that are not connected once there is something to send.
        tokio::spawn(producer.guard.shared.clone().drive());
        Ok(producer)
    }

    /// Takes `record` into its lane's batch, at once: an encode under one lock, without allocation or
    /// waiting. Now and then the calling thread also hands a full batch to the socket.
    ///
    /// # Errors
    /// [`AppendError::Full`] when memory is used up: see [`append_wait`](Self::append_wait). While the lane of a
    /// record with a key is held up, as by a change of its streamlet's owner, and others are not, that is the
    /// case at three quarters: the rest is for the others. Records without a key go to lanes that are not
    /// held up.
    #[inline]
    pub fn append(&self, record: &Record<'_>) -> Result<Delivery, AppendError> {
        self.guard.shared.append(record, |cell, index, timestamp| {
            Delivery::new(cell.clone(), index, timestamp)
        })
    }

    /// As [`append`](Self::append), but without a handle, which makes it a little cheaper still:
    /// [`flush`](Self::flush) and [`close`](Self::close) tell whether all went well since the flush before.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    #[inline]
    pub fn send(&self, record: &Record<'_>) -> Result<(), AppendError> {
        self.guard.shared.append(record, |_, _, _| ())
    }

    /// As [`append`](Self::append), but waits for memory.
    ///
    /// # Errors
    /// As [`append`](Self::append), but never [`AppendError::Full`].
    pub async fn append_wait(&self, record: &Record<'_>) -> Result<Delivery, AppendError> {
        let shared = &self.guard.shared;
        match self.append(record) {
            Err(AppendError::Full) => {}
            result => return result,
        }
        shared
            .family
            .memory
            .wait_for(|| match self.append(record) {
                Err(AppendError::Full) => None,
                result => Some(result),
            })
            .await
    }

    /// Sends what is open, and waits until everything appended before has been acknowledged or given
    /// up.
    ///
    /// # Errors
    /// A [`ProduceError`] of the batches waited for or of those given up since the flush before, whether
    /// there are handles of their records or not, after all of them are finished. It is told once.
    pub async fn flush(&self) -> Result<(), ProduceError> {
        finish(slice::from_ref(&self.guard.shared), false).await
    }

    /// As [`flush`](Self::flush), of all streams.
    pub(crate) async fn flush_all(&self) -> Result<(), ProduceError> {
        finish(&self.guard.shared.family.members(), false).await
    }

    /// Takes no more records, then does as [`flush`](Self::flush), and ends the connections unless producers for
    /// [other streams](Self::for_stream) use them. Clones of the producer are closed too.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn close(&self) -> Result<(), ProduceError> {
        let shared = &self.guard.shared;
        let result = finish(slice::from_ref(shared), true).await;
        shared.end();
        result
    }

    /// Begins a transaction: the records that are appended from now on count together, or not at all.
    ///
    /// ```no_run
    /// # use kera_producer::{Producer, Record};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let producer = Producer::builder()
    ///     .stream("payments")
    ///     .transactional_id("payments-1")
    ///     .build()
    ///     .await?;
    /// let transaction = producer.transaction().await?;
    /// transaction.append(&Record::keyed(b"alice", b"-10"))?;
    /// transaction.append(&Record::keyed(b"bob", b"+10"))?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TransactionError::AlreadyOpen`] while one is open. `FENCED_PRODUCER` if another producer has begun under the
    /// transactional id, or somebody has aborted the one before by its id or a prefix: another producer is to be built then.
    /// `TRANSACTION_PREPARED` as long as the one before is prepared.
    pub async fn transaction(&self) -> Result<Transaction<'_>, TransactionError> {
        let shared = &self.guard.shared;
        let family = &shared.family;
        let Some(transactional) = &family.transactional else {
            return Err(TransactionError::NotTransactional);
        };
        let _turn = transactional.beginning.lock().await;
        if transactional.is_open() {
            return Err(TransactionError::AlreadyOpen);
        }
        if let Some(identity) = transactional.renewed(&family.client).await? {
            family.go_on_as(identity);
        }
        family.take_given_up();
        match transactional.open() {
            true => {
                let heartbeats = transactional.heartbeat_every().map(|every| {
                    tokio::spawn(family.clone().send_heartbeats(every)).abort_handle()
                });
                Ok(Transaction::new(self, transactional, heartbeats))
            }
            false => Err(TransactionError::AlreadyOpen),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.guard.shared.family.client
    }

    /// Ends the transaction here: what is not acknowledged is given up. Its handle, if it has lanes.
    pub(crate) fn give_up_transaction(&self) -> Option<TransactionHandle> {
        self.guard.shared.family.give_up_transaction()
    }

    /// The lanes that have batches to send of which none was acknowledged for `longer`, and why; `None` if all
    /// goes on. What takes 2 s is also told in the log, as a warning, once for each cause and again at growing
    /// intervals.
    pub fn stall(&self, longer: Duration) -> Option<Stall> {
        self.guard.shared.stall(longer)
    }

    /// Counts since the producer was built.
    pub fn metrics(&self) -> Metrics {
        let shared = &self.guard.shared;
        Metrics {
            memory_used_bytes: shared.family.memory.used() as u64,
            batches_in_flight: shared.unanswered.load(Ordering::Relaxed) as u64,
            ..shared.counters.snapshot()
        }
    }
}

/// Sends what is open of these streams, and waits for all of it.
async fn finish(members: &[Arc<Shared>], close: bool) -> Result<(), ProduceError> {
    let mut cells = Vec::new();
    for shared in members {
        cells.extend(shared.outstanding(close));
        shared.wake_driver();
    }
    let mut result = Ok(());
    for cell in cells {
        let finished = cell.finished().await;
        result = result.and(finished);
    }
    // Also takes what has just been told of, and what was given up before anybody waited.
    members.iter().fold(result, |result, shared| {
        result.and(shared.take_given_up().map_or(Ok(()), Err))
    })
}

/// Whose sequences a stream's batches have.
async fn identity(
    client: &Client,
    transactional: Option<&Transactional>,
    settings: &Settings,
) -> Result<Identity, RpcError> {
    if let Some(transactional) = transactional {
        return Ok(Some(transactional.identity()));
    }
    if !settings.idempotent {
        return Ok(None);
    }
    let request = v1::InitProducerRequest {
        name: settings.stream.clone(),
    };
    let answer = client.stream_call(&settings.stream, request).await?;
    Ok(Some((
        answer.producer_id as i64,
        answer.producer_epoch as i16,
    )))
}

/// Refuses a stream that transactions cannot use.
fn check_promise(meta: &StreamMeta) -> Result<(), BuildError> {
    if meta.config.ack() != v1::AckPolicy::Memory {
        return Ok(());
    }
    Err(BuildError::Setting {
        name: "transactional_id",
        reason: format!(
            "stream {} has ack = memory, which promises nothing that a transaction needs; alter it to written or synced",
            meta.name
        ),
    })
}

/// Begins under a transactional id.
async fn begin_transactional(
    client: &Client,
    meta: &StreamMeta,
    id: &str,
    settings: &Settings,
) -> Result<Transactional, BuildError> {
    check_promise(meta)?;
    let timeout_ms = u32::try_from(settings.transaction_timeout.as_millis()).unwrap_or(u32::MAX);
    let heartbeats = settings.transaction_heartbeats;
    Ok(Transactional::begin(client, id, timeout_ms, heartbeats).await?)
}

/// Connects to any owner, which tells the frame limit; all of one cluster have the same. After each
/// owner that is not reached the stream is asked for anew.
async fn reach_an_owner(
    client: &Client,
    meta: Arc<StreamMeta>,
    retry: RetryPolicy,
) -> Result<(Arc<StreamMeta>, usize), RpcError> {
    let known = parking_lot::Mutex::new((meta, 0_usize));
    let waits_for = || Some("no owner of the stream has answered yet".to_owned());
    retry
        .run_told(waits_for, || async {
            let (meta, attempt) = known.lock().clone();
            let mut owners: Vec<&String> = meta.owners().iter().collect();
            owners.sort_unstable();
            owners.dedup();
            let owner = owners[attempt % owners.len()];
            match client.connect_data(owner, None).await {
                Ok(probe) => Ok((meta.clone(), probe.max_frame_bytes())),
                Err(error) => {
                    let fresh = client.refresh(&meta.name).await?;
                    *known.lock() = (fresh, attempt + 1);
                    Err(error)
                }
            }
        })
        .await
}
