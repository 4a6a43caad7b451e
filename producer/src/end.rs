//! How transactions end, as far as it is known.

use std::sync::atomic::{AtomicBool, Ordering};

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use kera_rpc::{Client, RpcError, wire_error_of_status};

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
    /// An attempt begins: if it is cut off it is lost. What was before.
    pub(crate) fn begun(&self) -> bool {
        self.0.swap(true, Ordering::Relaxed)
    }

    /// It was answered: by a yes, or by what a broker said, if one did.
    pub(crate) fn answered(&self, before: bool, refused: Option<Option<WireError>>) {
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
