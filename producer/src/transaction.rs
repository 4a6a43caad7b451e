//! Transactions: all records of one count, or none.

use kera_protocol::error::WireError;
use kera_protocol::v1;
use kera_rpc::{Client, GroupPositions, RpcError};
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::delivery::Delivery;
use crate::end::{Lost, abort, end, unknown, until_known};
use crate::error::{AppendError, TransactionError};
use crate::handle::{ANSWER_WITHIN, TransactionHandle};
use crate::producer::Producer;
use crate::record::Record;
use crate::transactional::Transactional;

/// Positions in one request.
const POSITIONS_PER_REQUEST: usize = 1_024;

/// An open transaction of a [`Producer`], and of those for [other streams](Producer::for_stream). Records that are appended
/// until it is committed count all together, or not at all. One that is dropped is aborted when the next one begins, or when its time is over.
#[must_use = "a transaction that is dropped is aborted"]
#[derive(Debug)]
pub struct Transaction<'a> {
    producer: &'a Producer,
    state: &'a Transactional,
    /// Whoever is to be told how it ends.
    sent: Mutex<Vec<GroupPositions>>,
    /// What sends heartbeats while it is open.
    heartbeats: Option<AbortHandle>,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(
        producer: &'a Producer,
        state: &'a Transactional,
        heartbeats: Option<AbortHandle>,
    ) -> Self {
        let sent = Mutex::default();
        Self {
            producer,
            state,
            sent,
            heartbeats,
        }
    }

    /// As [`Producer::append`], as part of the transaction.
    ///
    /// # Errors
    /// As [`Producer::append`].
    #[inline]
    pub fn append(&self, record: &Record<'_>) -> Result<Delivery, AppendError> {
        self.producer.append(record)
    }

    /// As [`Producer::append_wait`], as part of the transaction.
    ///
    /// # Errors
    /// As [`Producer::append_wait`].
    pub async fn append_wait(&self, record: &Record<'_>) -> Result<Delivery, AppendError> {
        self.producer.append_wait(record).await
    }

    /// Sends what is open, and waits until all records are acknowledged. Then all of them count, or none: if the answer
    /// is lost it is asked for again until it is known.
    ///
    /// # Errors
    /// [`TransactionError::Unknown`] if nobody can tell whether it is committed. After any other [`TransactionError`]
    /// it is aborted, or will be when the next one begins or its time is over.
    pub async fn commit(self) -> Result<(), TransactionError> {
        if let Some(handle) = self.close().await? {
            end(self.producer.client(), &handle, true).await?;
            self.state.settled();
        }
        self.tell(true);
        Ok(())
    }

    /// Has the transaction commit where a consumer group stands: from `Consumer::positions` of the crate `kera-consumer`. The
    /// positions count with the records, or not at all. Until the transaction has ended no other consumer gets what lies below
    /// them, also if this one is gone. Several groups may take part; for a lease that is sent again the higher position counts.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     producer: kera_producer::Producer,
    /// #     positions: kera_producer::GroupPositions,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = producer.transaction().await?;
    /// // Append what becomes of the records of `batch`; then
    /// // let positions = consumer.positions([&batch])?;
    /// transaction.send_positions(positions).await?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TransactionError`]. After any, and if this is given up before it returns, the transaction cannot be committed any
    /// more: abort it. `STALE_LEASE` and `UNKNOWN_MEMBER` say that the records go to another consumer.
    pub async fn send_positions(&self, positions: GroupPositions) -> Result<(), TransactionError> {
        let sending = self.state.sending_positions()?;
        self.sent.lock().push(positions.clone());
        let client = self.producer.client();
        let sent = async {
            let handle = self.state.join_group(client, positions.group()).await?;
            for commits in positions.commits().chunks(POSITIONS_PER_REQUEST) {
                let request = v1::SendPositionsRequest {
                    transaction: handle.message(),
                    group: positions.group().to_owned(),
                    member: positions.member().to_owned(),
                    commits: commits.to_vec(),
                };
                let call = client.group_call(positions.group(), ANSWER_WITHIN, request);
                call.await?;
            }
            Ok(())
        };
        let sent: Result<(), TransactionError> = sent.await;
        match &sent {
            Ok(()) => sending.done(),
            Err(error) => sending.failed(error),
        }
        sent
    }

    /// Tells consumers how it ended: true if it is committed for certain.
    fn tell(&self, is_committed: bool) {
        for positions in std::mem::take(&mut *self.sent.lock()) {
            positions.ended(is_committed);
        }
    }

    /// Its handle, once a record is on its way: for those who want to ask how it ended if they give up waiting for
    /// [`commit`](Self::commit).
    pub fn handle(&self) -> Option<TransactionHandle> {
        self.state.handle()
    }

    /// Sends what is open, waits until all records are acknowledged, and has the transaction wait from then on until
    /// somebody ends it by its handle, which may be another process: see [`Transactions`]. It has no timeout any more.
    /// The producer's next transaction can begin once it has ended. `None` if nothing was appended.
    ///
    /// # Errors
    /// [`TransactionError::Unknown`] if nobody can tell whether it is prepared, [`TransactionError::Committed`] if
    /// somebody has committed it. After any other [`TransactionError`] it is aborted, or will be when the next one
    /// begins or its time is over.
    pub async fn prepare(self) -> Result<Option<TransactionHandle>, TransactionError> {
        let Some(handle) = self.close().await? else {
            return Ok(None);
        };
        let lost = Lost::default();
        let prepared = until_known(&handle, &lost, || {
            let request = v1::PrepareTransactionRequest {
                transaction: handle.message(),
            };
            let client = self.producer.client();
            let (id, lost) = (&handle.transactional_id, &lost);
            async move {
                let failed = |error: &RpcError| lost.failed(error);
                let call = client.transaction_change(id, ANSWER_WITHIN, request, failed);
                call.await.map(drop)
            }
        });
        if let Err(error) = prepared.await {
            let aborted = abort(self.producer.client(), &handle).await;
            return Err(match (aborted, error) {
                (Ok(true), _) => TransactionError::Committed,
                (Ok(false), TransactionError::Unknown { .. }) => TransactionError::Aborted,
                (_, error) => error,
            });
        }
        self.state.settled();
        Ok(Some(handle))
    }

    /// Gives up all records of the transaction.
    ///
    /// # Errors
    /// [`TransactionError`] if the broker refuses that: then it is aborted already, or another instance of the
    /// producer has begun.
    pub async fn abort(self) -> Result<(), TransactionError> {
        let handle = self.producer.give_up_transaction();
        match handle {
            Some(handle) => end(self.producer.client(), &handle, false).await,
            None => Ok(()),
        }
    }

    /// Takes no more records, and waits for those that were taken. `None` if there were none; what failed is
    /// aborted.
    async fn close(&self) -> Result<Option<TransactionHandle>, TransactionError> {
        self.state.close();
        let flushed = self.producer.flush_all().await;
        let failed = self.state.failure().or(flushed.err());
        let Some(error) = failed else {
            return Ok(self.state.take());
        };
        let was_ended = self.state.was_ended();
        let Some(handle) = self.producer.give_up_transaction() else {
            return Err(TransactionError::Records(error));
        };
        let aborted = abort(self.producer.client(), &handle).await;
        Err(match (was_ended, aborted) {
            (_, Ok(true)) => TransactionError::Committed,
            (true, Ok(false)) => TransactionError::Aborted,
            (true, Err(error)) => unknown(&handle, error),
            (false, _) => TransactionError::Records(error),
        })
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if let Some(heartbeats) = &self.heartbeats {
            heartbeats.abort();
        }
        // Nothing is left of one that was committed, prepared or aborted.
        if self.state.sends() {
            self.producer.give_up_transaction();
        }
        self.state.over();
        self.tell(false);
    }
}

/// Transactions that were prepared, to be ended by whoever has their handles.
#[derive(Clone, Debug)]
pub struct Transactions {
    client: Client,
}

/// What became of a transaction that was to be [aborted](Transactions::abort_by_prefix).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AbortedTransaction {
    /// Its handle.
    pub handle: TransactionHandle,
    /// It is aborted. Otherwise why it is not, or why nobody knows: its coordinator did not answer
    /// ([`RpcError::is_retryable`]; ask again), or somebody else has ended it meanwhile.
    pub outcome: Result<(), RpcError>,
}

/// Which transactions [`Transactions::abort_by_prefix`] aborts, beside those that are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbortWhich {
    /// Those that are prepared, or open without a timeout, as well. Whoever may still end them by their handles is told so.
    pub prepared: bool,
    /// Only transactional ids of which all that follows the prefix is a decimal number above this: what an engine has begun
    /// since its last checkpoint, if ids end with the number of a checkpoint.
    pub label_above: Option<u64>,
}

/// A transaction that is prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreparedTransaction {
    /// Its handle.
    pub handle: TransactionHandle,
    /// The user that prepared it.
    pub user: String,
    /// When it was prepared, milliseconds since 1970.
    pub prepared_ms: u64,
}

impl Transactions {
    /// Those of the cluster of this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Commits a transaction. One that was committed before is committed.
    ///
    /// # Errors
    /// [`TransactionError::Aborted`] if it was aborted, [`TransactionError::Unknown`] if nobody can tell, and the
    /// broker's refusals. An answer that is lost is asked for again until it is known.
    pub async fn commit(&self, handle: &TransactionHandle) -> Result<(), TransactionError> {
        end(&self.client, handle, true).await
    }

    /// Aborts a transaction. One that was aborted before is aborted.
    ///
    /// # Errors
    /// [`TransactionError::Committed`] if it was committed, otherwise as [`commit`](Self::commit).
    pub async fn abort(&self, handle: &TransactionHandle) -> Result<(), TransactionError> {
        end(&self.client, handle, false).await
    }

    /// Has the brokers forget how a transaction ended, and its transactional id. Nobody may ask any more.
    ///
    /// # Errors
    /// The broker's refusal if it has not ended.
    pub async fn forget(&self, handle: &TransactionHandle) -> Result<(), TransactionError> {
        let request = v1::ForgetTransactionRequest {
            transaction: handle.message(),
        };
        let id = &handle.transactional_id;
        let call = self.client.transaction_call(id, ANSWER_WITHIN, request);
        call.await?;
        Ok(())
    }

    /// Aborts the open transactions whose transactional ids begin so, in the whole cluster, and fences their producers, which
    /// begin no other one: what earlier runs of a program left behind. What became of each, sorted by id. Ids for which the
    /// client has not the right `write` are left alone and not named. So are ids with nothing open, whose producers go on: begin
    /// under an id to fence whoever had it.
    ///
    /// # Errors
    /// [`TransactionError::Rpc`] if the prefix is empty, or a broker does not answer that may have some: those before it may be
    /// aborted. To ask again is safe.
    pub async fn abort_by_prefix(
        &self,
        prefix: &str,
        which: AbortWhich,
    ) -> Result<Vec<AbortedTransaction>, TransactionError> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let request = v1::AbortTransactionsRequest {
                prefix: prefix.to_owned(),
                prepared: which.prepared,
                label_above: which.label_above,
                after: after.clone(),
                ..v1::AbortTransactionsRequest::default()
            };
            let page = self.client.call(request).await?;
            for aborted in page.transactions {
                let handle = handle_of(aborted.transaction.unwrap_or_default());
                after.clone_from(&handle.transactional_id);
                let outcome = match aborted.error {
                    0 => Ok(()),
                    code => Err(WireError::from_number(code, aborted.message).into()),
                };
                all.push(AbortedTransaction { handle, outcome });
            }
            if !page.more {
                return Ok(all);
            }
        }
    }

    /// The prepared transactions whose transactional ids begin so, sorted by id.
    ///
    /// # Errors
    /// [`TransactionError::Rpc`] if a broker does not answer: none is left out.
    pub async fn prepared(
        &self,
        prefix: &str,
    ) -> Result<Vec<PreparedTransaction>, TransactionError> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let request = v1::ListOpenTransactionsRequest {
                prefix: prefix.to_owned(),
                prepared: true,
                after: after.clone(),
                max_transactions: 1_000,
                ..v1::ListOpenTransactionsRequest::default()
            };
            let call = self.client.call(request);
            let page = call.await?;
            for open in page.transactions {
                let handle = open.transaction.unwrap_or_default();
                after.clone_from(&handle.transactional_id);
                all.push(PreparedTransaction {
                    handle: handle_of(handle),
                    user: open.user,
                    prepared_ms: open.prepared_ms,
                });
            }
            if !page.more {
                return Ok(all);
            }
        }
    }
}

fn handle_of(handle: v1::TransactionHandle) -> TransactionHandle {
    TransactionHandle {
        transactional_id: handle.transactional_id,
        producer: handle.producer,
        epoch: i16::try_from(handle.epoch).unwrap_or(-1),
        number: handle.number,
    }
}
