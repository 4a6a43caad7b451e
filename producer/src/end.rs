//! How transactions end, as far as it is known.

use std::sync::atomic::{AtomicBool, Ordering};

use kera_protocol::error::ErrorCode;
use kera_protocol::v1;
use kera_rpc::{Client, RpcError};

use crate::error::TransactionError;
use crate::handle::{ANSWER_WITHIN, TransactionHandle};

/// Aborts a transaction that failed. What it failed for is told; that the broker does not hear of it now is not. True
/// if somebody has committed it before.
pub(crate) async fn abort(client: &Client, handle: &TransactionHandle) -> Result<bool, RpcError> {
    let aborted = once(client, handle, false, &Lost::default()).await;
    if let Err(error) = &aborted {
        tracing::debug!(id = handle.transactional_id, %error, "a transaction is left to be aborted when the next begins");
    }
    aborted
}

pub(crate) fn unknown(handle: &TransactionHandle, error: RpcError) -> TransactionError {
    TransactionError::Unknown {
        id: handle.transactional_id.clone(),
        error,
    }
}

/// Whether an attempt may have taken effect whose answer did not come, or left it open.
#[derive(Debug, Default)]
pub(crate) struct Lost(AtomicBool);

impl Lost {
    /// An attempt failed.
    pub(crate) fn failed(&self, error: &RpcError) {
        // A coordinator that is one no more may have done it before.
        if error.is_uncertain() || error.code() == Some(ErrorCode::NotCoordinator) {
            self.0.store(true, Ordering::Relaxed);
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
    let id = &handle.transactional_id;
    let failed = |error: &RpcError| lost.failed(error);
    let call = client.transaction_change(id, ANSWER_WITHIN, request, failed);
    call.await.map(|answer| answer.committed)
}

/// Ends a transaction; asks again until it is known how it ended.
pub(crate) async fn end(
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
pub(crate) async fn until_known<T, F, Fut>(
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

#[cfg(test)]
mod tests {
    use kera_protocol::error::WireError;
    use kera_rpc::ConnectionError;

    use super::*;

    #[test]
    fn a_refusal_is_no_answer_to_an_attempt_before_that_was_lost() {
        let refused = |code| RpcError::from(WireError::new(code, "planted"));
        let (address, reason) = ("a:1".into(), "planted".into());
        let not_sent = ConnectionError::Connect { address, reason };
        let lost = Lost::default();
        lost.failed(&refused(ErrorCode::UnknownTransaction));
        lost.failed(&not_sent.into());
        assert!(!lost.0.load(Ordering::Relaxed), "it did nothing");
        let (address, reason) = ("a:1".into(), "planted".into());
        for open in [
            ConnectionError::Lost { address, reason }.into(),
            refused(ErrorCode::Timeout),
            refused(ErrorCode::NotCoordinator),
            RpcError::BadAnswer("planted".to_owned()),
        ] {
            let lost = Lost::default();
            lost.failed(&open);
            lost.failed(&refused(ErrorCode::UnknownTransaction));
            assert!(lost.0.load(Ordering::Relaxed), "{open:?}");
        }
    }
}
