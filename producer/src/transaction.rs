//! Transactions: all records of one count, or none.

use std::sync::atomic::{AtomicBool, Ordering};

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use kera_rpc::{Client, RpcError, wire_error_of_status};

use crate::delivery::Delivery;
use crate::error::{AppendError, TransactionError};
use crate::handle::{ANSWER_WITHIN, TransactionHandle};
use crate::producer::Producer;
use crate::record::Record;
use crate::transactional::Transactional;

/// An open transaction of a [`Producer`]. Records that are appended until it is committed count all together, or not
/// at all. One that is dropped is aborted when the next one begins, or when its time is over.
#[must_use = "a transaction that is dropped is aborted"]
#[derive(Debug)]
pub struct Transaction<'a> {
    producer: &'a Producer,
    state: &'a Transactional,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(producer: &'a Producer, state: &'a Transactional) -> Self {
        Self { producer, state }
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
        let Some(handle) = self.close().await? else {
            return Ok(());
        };
        end(self.producer.client(), &handle, true).await?;
        self.state.settled();
        Ok(())
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
                let call = client.transaction_call(id, ANSWER_WITHIN, |mut stub| {
                    let request = request.clone();
                    async move {
                        let before = lost.begun();
                        let answer = stub.prepare_transaction(request).await;
                        lost.answered(before, answer.as_ref().err().map(wire_error_of_status));
                        answer
                    }
                });
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
        let flushed = self.producer.flush().await;
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
        // Nothing is left of one that was committed, prepared or aborted.
        if self.state.sends() {
            self.producer.give_up_transaction();
        }
        self.state.over();
    }
}

/// Aborts a transaction that failed. What it failed for is told; that the broker does not hear of it now is not. True
/// if somebody has committed it before.
pub(crate) async fn abort(client: &Client, handle: &TransactionHandle) -> Result<bool, RpcError> {
    let aborted = once(client, handle, false, &Lost::default()).await;
    if let Err(error) = &aborted {
        tracing::debug!(id = handle.transactional_id, %error, "a transaction is left to be aborted when the next begins");
    }
    aborted
}

fn unknown(handle: &TransactionHandle, error: RpcError) -> TransactionError {
    TransactionError::Unknown {
        id: handle.transactional_id.clone(),
        error,
    }
}

/// Whether an attempt may have taken effect whose answer did not come, or left it open.
#[derive(Debug, Default)]
struct Lost(AtomicBool);

impl Lost {
    /// An attempt begins: if it is cut off it is lost. What was before.
    fn begun(&self) -> bool {
        self.0.swap(true, Ordering::Relaxed)
    }

    /// It was answered: by a yes, or by what a broker said, if one did.
    fn answered(&self, before: bool, refused: Option<Option<WireError>>) {
        let is_known = match refused {
            None => true,
            Some(None) => false,
            // A coordinator that is one no more may have done it before.
            Some(Some(error)) => {
                error.code.placement() == v1::Placement::NotPlaced
                    && error.code != ErrorCode::NotCoordinator
            }
        };
        if is_known {
            self.0.store(before, Ordering::Relaxed);
        }
    }
}

/// Ends a transaction once; how it ended.
async fn once(
    client: &Client,
    handle: &TransactionHandle,
    commit: bool,
    lost: &Lost,
) -> Result<bool, RpcError> {
    let request = v1::EndTransactionRequest {
        transaction: handle.message(),
        commit,
    };
    let call = client.transaction_call(&handle.transactional_id, ANSWER_WITHIN, |mut stub| {
        let request = request.clone();
        async move {
            let before = lost.begun();
            let answer = stub.end_transaction(request).await;
            lost.answered(before, answer.as_ref().err().map(wire_error_of_status));
            answer
        }
    });
    call.await.map(|answer| answer.committed)
}

/// Ends a transaction; asks again until it is known how it ended.
async fn end(
    client: &Client,
    handle: &TransactionHandle,
    commit: bool,
) -> Result<(), TransactionError> {
    let lost = Lost::default();
    let committed = until_known(handle, &lost, || once(client, handle, commit, &lost)).await?;
    match (committed, commit) {
        (true, true) | (false, false) => Ok(()),
        (false, true) => Err(TransactionError::Aborted),
        (true, false) => Err(TransactionError::Committed),
    }
}

/// Asks again until the answer is one: a yes, or a refusal. That says nothing of the attempts before it.
async fn until_known<T, F, Fut>(
    handle: &TransactionHandle,
    lost: &Lost,
    mut ask: F,
) -> Result<T, TransactionError>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, RpcError>>,
{
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if !error.is_retryable() => {
                return Err(match lost.0.load(Ordering::Relaxed) {
                    true => unknown(handle, error),
                    false => error.into(),
                });
            }
            Err(error) => {
                tracing::warn!(%error, "how a transaction ended is not known yet; asking again");
            }
        }
    }
}

/// Transactions that were prepared, to be ended by whoever has their handles.
#[derive(Clone, Debug)]
pub struct Transactions {
    client: Client,
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
        let call = self.client.transaction_call(id, ANSWER_WITHIN, |mut stub| {
            let request = request.clone();
            async move { stub.forget_transaction(request).await }
        });
        call.await?;
        Ok(())
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
            let call = self.client.transactions_call(|mut stub| {
                let request = request.clone();
                async move { stub.list_open_transactions(request).await }
            });
            let page = call.await?;
            for open in page.transactions {
                let handle = open.transaction.unwrap_or_default();
                after.clone_from(&handle.transactional_id);
                all.push(PreparedTransaction {
                    handle: TransactionHandle {
                        transactional_id: handle.transactional_id,
                        producer: handle.producer,
                        epoch: i16::try_from(handle.epoch).unwrap_or(-1),
                        number: handle.number,
                    },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_no_answer_to_an_attempt_before_that_was_lost() {
        let refused = |code| Some(Some(WireError::new(code, "planted")));
        let lost = Lost::default();
        let before = lost.begun();
        lost.answered(before, refused(ErrorCode::UnknownTransaction));
        assert!(!lost.0.load(Ordering::Relaxed), "it did nothing");
        for open in [
            None,
            Some(ErrorCode::Timeout),
            Some(ErrorCode::NotCoordinator),
        ] {
            let lost = Lost::default();
            let before = lost.begun();
            lost.answered(
                before,
                Some(open.map(|code| WireError::new(code, "planted"))),
            );
            let before = lost.begun();
            lost.answered(before, refused(ErrorCode::UnknownTransaction));
            assert!(lost.0.load(Ordering::Relaxed), "{open:?}");
        }
        // One that was cut off has no answer at all.
        let lost = Lost::default();
        lost.begun();
        let before = lost.begun();
        lost.answered(before, refused(ErrorCode::UnknownTransaction));
        assert!(lost.0.load(Ordering::Relaxed));
    }
}
