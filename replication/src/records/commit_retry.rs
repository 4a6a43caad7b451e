//! Changes whose outcome is known at the end: whoever got no answer reads back before acting.

use std::time::Duration;

use kera_protocol::ids::Epoch;
use kera_records::{GroupKey, Transaction, Write};

use super::{RecordsError, RecordsRef, StreamletRecords, streamlet_of};
use crate::ids::{BrokerId, StreamletKey};
use crate::runtime::Runtime;
use crate::transport::Pending;

/// Questions asked before giving up.
const ATTEMPTS: u32 = 40;
/// Pause after the first question without an answer; it doubles up to [`MAX_PAUSE`].
const PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);

fn pause(attempt: u32) -> Duration {
    PAUSE.saturating_mul(1 << attempt.min(8)).min(MAX_PAUSE)
}

/// Asks until there is an answer, or was asked often enough.
async fn until_answered<T: Send>(
    runtime: &dyn Runtime,
    ask: impl Fn() -> Pending<Result<T, RecordsError>> + Send + Sync,
) -> Result<T, RecordsError> {
    let mut attempt = 0;
    loop {
        match ask().await {
            Err(RecordsError::Unknown(_)) if attempt < ATTEMPTS => {}
            other => return other,
        }
        runtime.sleep(pause(attempt)).await;
        attempt += 1;
    }
}

/// Reads a streamlet's records, asking again when there is no answer.
///
/// # Errors
/// [`RecordsError::Unknown`] if there was none at all.
pub async fn read(
    records: &RecordsRef,
    runtime: &dyn Runtime,
    streamlet: StreamletKey,
) -> Result<StreamletRecords, RecordsError> {
    until_answered(runtime, || records.try_read(streamlet)).await
}

/// Reads one group of a streamlet, asking again when there is no answer.
///
/// # Errors
/// As [`read`].
pub async fn read_group(
    records: &RecordsRef,
    runtime: &dyn Runtime,
    group: GroupKey,
) -> Result<StreamletRecords, RecordsError> {
    until_answered(runtime, || records.try_read_group(group)).await
}

/// Takes a new epoch, asking again when there is no answer: one more is never wrong.
///
/// # Errors
/// [`RecordsError::Unknown`] if there was no answer at all.
pub async fn take_epoch(
    records: &RecordsRef,
    runtime: &dyn Runtime,
    streamlet: StreamletKey,
    owner: BrokerId,
) -> Result<(Epoch, u64), RecordsError> {
    until_answered(runtime, || records.try_take_epoch(streamlet, owner)).await
}

/// Commits `transaction` and returns its revision. When there is no answer, or a conflict after none,
/// the records say what happened: a transaction that got through is recognised by what it wrote.
/// `unsure`: an earlier call for the same transaction ended without an answer.
///
/// # Errors
/// [`RecordsError::Epoch`] and [`RecordsError::Revision`] mean that it has not happened and will not.
/// [`RecordsError::Unknown`] remains if the store stays silent.
pub async fn commit(
    records: &RecordsRef,
    runtime: &dyn Runtime,
    transaction: &Transaction,
    mut unsure: bool,
) -> Result<u64, RecordsError> {
    let mut attempt = 0;
    loop {
        match records.try_commit(transaction.clone()).await {
            Ok(revision) => return Ok(revision),
            Err(RecordsError::Unknown(reason)) if attempt >= ATTEMPTS => {
                return Err(RecordsError::Unknown(reason));
            }
            Err(RecordsError::Unknown(_)) => {
                unsure = true;
                runtime.sleep(pause(attempt)).await;
                attempt += 1;
            }
            Err(conflict) if !unsure => return Err(conflict),
            Err(conflict) => {
                // The earlier attempt may have been what is in the way.
                let found = read(records, runtime, streamlet_of(transaction)?).await?;
                return match applied(transaction, &found) {
                    Some(revision) => Ok(revision),
                    None => Err(conflict),
                };
            }
        }
    }
}

/// The revision of `transaction` if `found` shows that it was applied.
fn applied(transaction: &Transaction, found: &StreamletRecords) -> Option<u64> {
    let mut revision = None;
    for write in &transaction.write {
        let of = |group| found.group(group);
        match write {
            Write::PutGroup(record) => {
                let found = of(record.group).filter(|found| found.agrees(record))?;
                revision = revision.max(Some(found.revision));
            }
            Write::DeleteGroup(key) if of(key.group).is_none() => {}
            _ => return None,
        }
    }
    Some(revision.unwrap_or(found.revision))
}
