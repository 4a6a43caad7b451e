//! Giving streamlets to other brokers: one because somebody asked for it, or all before this broker stops, so that
//! nobody has to wait for its lease to end.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kera_controller::{Move, farewell, refused};
use kera_metadata::{Compare, LiveState, MetadataError, StreamletRecord, Transaction, Write};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{Epoch, StreamId, StreamletId};
use kera_replication::records::RecordsError;
use kera_streamlet::Streamlet;
use tokio::time::Instant;

use super::live_state::{members, set_state};
use super::owners::{go_on, handed};
use crate::clock::now_ms;
use crate::cluster::Clustered;
use crate::data::catalog::Stream;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// Longest wait of a hand-over for everything that was appended to be durable and closed.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// A group that is longer is ended before its streamlet is handed over: a new owner fetches the last group of
/// each lane before it serves, and nobody is to wait for much of it.
pub(super) const LONG_BYTES: u64 = 1 << 20;
/// Streamlets handed over side by side.
const AT_ONCE: usize = 8;
/// Rounds over what is left: a target may be gone by the time of its turn.
const ROUNDS: usize = 3;

/// Gives a streamlet that this broker owns to broker `to`: stops appends, waits until all that was
/// appended is durable, closes every group, and changes the owner last. Clients find the new owner by
/// themselves; appends wait for it for as long as it takes to read the records.
///
/// # Errors
/// [`ErrorCode::NotOwner`] if it is not this broker's, [`ErrorCode::Overloaded`] if it is being handed over
/// already, [`ErrorCode::InvalidArgument`] if `to` cannot take it, [`ErrorCode::NotEnoughCopies`] if it
/// cannot be closed now, or what the metadata store answers. This broker goes on serving it then, unless
/// it is not known whether the owner was changed: that shows by itself.
pub async fn hand_over(
    shared: &Arc<Shared>,
    stream: StreamId,
    streamlet: StreamletId,
    to: u32,
) -> Result<(), WireError> {
    let shared = shared.clone();
    // Once begun it ends, whatever becomes of whoever asked for it.
    let handing = tokio::spawn(async move { hand(&shared, stream, streamlet, to).await });
    handing.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a hand-over failed");
        let text = "the hand-over failed in the broker; see its log";
        Err(WireError::new(ErrorCode::Internal, text))
    })
}

async fn hand(
    shared: &Arc<Shared>,
    stream: StreamId,
    streamlet: StreamletId,
    to: u32,
) -> Result<(), WireError> {
    let refuse = |code, text: String| Err(WireError::new(code, text));
    let Some(clustered) = &shared.clustered else {
        let text = "this broker shares no store with others; start brokers with --cluster";
        return refuse(ErrorCode::InvalidArgument, text.into());
    };
    let Some(found) = shared.data.catalog.get(stream) else {
        return refuse(
            ErrorCode::UnknownStream,
            format!("no stream has id {stream}"),
        );
    };
    let name = format!("stream {} streamlet {streamlet}", found.name());
    let Some(now) = found.streamlet(streamlet) else {
        return refuse(
            ErrorCode::UnknownStreamlet,
            format!("{name}: there is none"),
        );
    };
    if now.is_over() {
        let text = format!("{name}: this broker does not own it; ask its owner");
        return refuse(ErrorCode::NotOwner, text);
    }
    if to == shared.broker_id {
        return Ok(());
    }
    let replicated = &clustered.replicated;
    let living = clustered.members.living();
    let may_own = living.get(&to).is_some_and(|live| live.may_own());
    if !may_own || refused(&living).contains_key(&to) {
        let text = format!(
            "{name}: broker {to} is not there, is draining, cannot write its own files, is a replica store, or has a certificate that the others refuse; name another"
        );
        return refuse(ErrorCode::InvalidArgument, text);
    }
    if !found.record.load().config.is_replicated() {
        let text = format!(
            "{name}: it has no replica on another broker and cannot move; create streams with --replicas 2 or more"
        );
        return refuse(ErrorCode::InvalidArgument, text);
    }
    let Some(copies) = replicated.served(&now).filter(|_| now.is_recovered()) else {
        let leaves = living
            .get(&shared.broker_id)
            .is_some_and(|me| !me.may_own());
        if leaves {
            return give_unrecovered(shared, clustered, &found, &now, to).await;
        }
        let text = match replicated.waiting().describe(now.key()).reason {
            none if none.is_empty() => format!("{name}: it is not recovered yet; try again"),
            reason => format!("{name}: it is not recovered yet: {reason}"),
        };
        return refuse(ErrorCode::NotEnoughCopies, text);
    };
    if !now.is_leaving() {
        // While appends go on: what can be closed before they stop, they need not wait for.
        now.end_long(LONG_BYTES, now_ms());
        if let Err(error) = in_time(&name, copies.lanes().closed_frozen()).await {
            replicated.ownership_metrics().handed_over(false);
            return Err(error);
        }
    }
    if !now.stop_appends() {
        let text = format!("{name}: it is being handed over already; see who owns it in a moment");
        return refuse(ErrorCode::Overloaded, text);
    }
    let outcome = match in_time(&name, copies.lanes().finish()).await {
        Ok(()) => change_owner(shared, &now, Some(now.epoch()), to).await,
        Err(error) => Err(error),
    };
    replicated.ownership_metrics().handed_over(outcome.is_ok());
    let (shared, clustered) = (shared.clone(), clustered.clone());
    let outcome_known = outcome.clone();
    let done = tokio::task::spawn_blocking(move || match outcome_known {
        Ok(record) => handed(&shared, &clustered, &found, &record),
        Err(_) => go_on(&shared, &clustered, &found, &now),
    });
    if let Err(error) = done.await {
        tracing::error!(%error, "ending a hand-over failed");
    }
    outcome.map(|_| ())
}

/// What comes of closing groups of the streamlet called `name`, which may take [`CLOSE_WITHIN`].
async fn in_time(
    name: &str,
    closing: impl Future<Output = Result<(), RecordsError>>,
) -> Result<(), WireError> {
    let text = match tokio::time::timeout(CLOSE_WITHIN, closing).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => format!("{name}: it cannot be closed: {error}"),
        Err(_) => format!("{name}: it could not be closed within {CLOSE_WITHIN:?}; try again"),
    };
    Err(WireError::new(ErrorCode::NotEnoughCopies, text))
}

/// Has another broker own a streamlet that this one owns and cannot serve; returns which.
///
/// # Errors
/// [`ErrorCode::NotEnoughCopies`] if nobody else can own it now, or as of [`hand_over`].
pub(super) async fn give_away(
    shared: &Arc<Shared>,
    clustered: &Arc<Clustered>,
    stream: &Arc<Stream>,
    streamlet: &Arc<Streamlet>,
) -> Result<u32, WireError> {
    let which = streamlet.key();
    let mut moves = planned(shared).into_iter();
    let Some(one) = moves.find(|one| one.which() == which) else {
        let text = format!("no other broker can own streamlet {which} now");
        return Err(WireError::new(ErrorCode::NotEnoughCopies, text));
    };
    give_unrecovered(shared, clustered, stream, streamlet, one.to).await?;
    Ok(one.to)
}

/// Has `to` own a streamlet that is not recovered here. Nothing was appended since this broker became its owner, so
/// there is nothing to close: the next owner seals the replicas and recovers it, as after the loss of this broker.
async fn give_unrecovered(
    shared: &Arc<Shared>,
    clustered: &Arc<Clustered>,
    stream: &Arc<Stream>,
    streamlet: &Arc<Streamlet>,
    to: u32,
) -> Result<(), WireError> {
    let changed = change_owner(shared, streamlet, None, to).await;
    let metrics = clustered.replicated.ownership_metrics();
    metrics.handed_over(changed.is_ok());
    let record = changed?;
    let (shared, clustered, stream) = (shared.clone(), clustered.clone(), stream.clone());
    blocking(move || {
        handed(&shared, &clustered, &stream, &record);
        Ok(())
    })
    .await
}

/// The owner's last word: from now on `to` is the owner. All is closed in `epoch`; `None`: the streamlet is not
/// recovered, and attempts to do so take new epochs.
async fn change_owner(
    shared: &Arc<Shared>,
    streamlet: &Arc<Streamlet>,
    epoch: Option<Epoch>,
    to: u32,
) -> Result<StreamletRecord, WireError> {
    let (shared, streamlet) = (shared.clone(), streamlet.clone());
    blocking(move || {
        let failed = |error: &MetadataError| metadata_error(error);
        let (stream, id) = (streamlet.stream(), streamlet.id());
        let read = || shared.metadata.streamlet(stream, id);
        let moved = |record: &StreamletRecord| {
            WireError::new(
                ErrorCode::NotOwner,
                format!(
                    "streamlet {stream}/{id} is broker {}'s meanwhile",
                    record.owner
                ),
            )
        };
        let gone = || WireError::new(ErrorCode::UnknownStream, "the stream was deleted");
        let now = read().map_err(|e| failed(&e))?.ok_or_else(gone)?;
        if now.owner != shared.broker_id || epoch.is_some_and(|epoch| now.epoch != epoch) {
            return Err(moved(&now));
        }
        let used_up = || {
            WireError::new(
                ErrorCode::InvalidArgument,
                format!(
                    "streamlet {stream}/{id} has used up its epochs; copy the stream to a new one"
                ),
            )
        };
        let mut next = now.in_next_epoch(to).ok_or_else(used_up)?;
        let compare = Compare::streamlet(&now);
        let write = Write::PutStreamlet(next.clone());
        match shared
            .metadata
            .commit(Transaction::new(vec![compare], vec![write]))
        {
            Ok(committed) => next.revision = committed.revision,
            Err(error) if error.is_definite() => return Err(failed(&error)),
            Err(error) => match read() {
                Ok(Some(found)) if (found.owner, found.epoch) == (next.owner, next.epoch) => {
                    next = found;
                }
                _ => return Err(failed(&error)),
            },
        }
        Ok(next)
    })
    .await
}

/// Hands over every streamlet that another broker can own, for at most `within`. What is left then is
/// taken over by others once this broker is gone, or waits for it.
pub(crate) async fn hand_over_all(shared: &Arc<Shared>, within: Duration) {
    if shared.clustered.is_none() || within.is_zero() {
        return;
    }
    let begun = Instant::now();
    if let Err(error) = set_state(shared, LiveState::Draining).await {
        // Without its store nothing can be handed over.
        tracing::warn!(%error, "stopping without handing streamlets over");
        return;
    }
    let handing = async {
        let mut handed_over = 0;
        for _ in 0..ROUNDS {
            let moves = planned(shared);
            if moves.is_empty() {
                break;
            }
            handed_over += hand_over_several(shared, moves).await;
        }
        handed_over
    };
    match tokio::time::timeout(within, handing).await {
        Ok(0) => {}
        Ok(streamlets) => tracing::info!(
            streamlets,
            ms = begun.elapsed().as_millis() as u64,
            "handed over to other brokers"
        ),
        Err(_) => tracing::warn!(
            left = planned(shared).len(),
            "stopping before everything was handed over; others take over once this broker is gone"
        ),
    }
}

/// What is left to hand over, and to whom.
fn planned(shared: &Shared) -> Vec<Move> {
    let Ok(members) = members(shared) else {
        return Vec::new();
    };
    let me = shared.broker_id;
    let moves = shared.cluster_view(|picture| farewell(picture, &members, me));
    moves.unwrap_or_default()
}

/// How many of `moves` were made.
async fn hand_over_several(shared: &Arc<Shared>, moves: Vec<Move>) -> usize {
    let made = futures::stream::iter(moves).map(|one| {
        let shared = shared.clone();
        async move {
            let outcome = hand_over(&shared, one.stream, one.streamlet, one.to).await;
            if let Err(WireError { message, .. }) = &outcome {
                tracing::warn!(stream = %one.stream, streamlet = one.streamlet.0, to = one.to, message, "not handed over");
            }
            outcome.is_ok()
        }
    });
    let made = made.buffer_unordered(AT_ONCE);
    made.filter(|ok| std::future::ready(*ok)).count().await
}
