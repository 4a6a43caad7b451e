//! The life of one group at its primary, up to its one close.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use kera_log_segments::window::Place;

use super::copy_set::CopySet;
use super::lane::Lane;
use super::pump::{call, is_sealed};
use super::source::{Shape, Source};
use crate::ids::Holder;
use crate::records::{Change, ClosedRecord, RecordsError, Transaction, commit};
use crate::runtime::within;
use crate::transport::{CallError, Refusal, Reply, Request};

/// Bytes of one `complete` when a copy is built.
const BUILD_BYTES: usize = 1 << 20;

/// Records the group, ships it, and closes it: when it is full, when a copy is lost, or never, if
/// another broker has taken over.
pub(super) async fn life(lane: Arc<Lane>, set: Arc<CopySet>) {
    if !record(&lane, &set).await {
        return;
    }
    set.join_pumps();
    if ended(&lane, &set).await {
        close(&lane, &set).await;
    }
    set.leave_pumps();
}

/// Sees to the open record; false if this broker is deposed.
async fn record(lane: &Arc<Lane>, set: &Arc<CopySet>) -> bool {
    if set.revision() != 0 {
        // Recorded ahead. The next one is recorded while this one is used.
        let (lane, set) = (lane.clone(), set.clone());
        let runtime = lane.primary.runtime.clone();
        runtime.spawn(Box::pin(async move {
            if let Err(error @ RecordsError::Epoch { .. }) = lane.record(&set).await {
                lane.depose(error);
            }
        }));
        return true;
    }
    loop {
        if lane.is_deposed() {
            return false;
        }
        let recorded = match lane.record(set).await {
            // What an earlier attempt without an answer may have recorded counts.
            Err(RecordsError::Unknown(_) | RecordsError::Revision { .. }) => lane.adopt(set).await,
            other => other,
        };
        match recorded {
            Ok(true) => return true,
            // Too few holders, or a silent store: appends wait, up to their deadline.
            Ok(false) | Err(RecordsError::Unknown(_)) => {
                let pause = lane.primary.config.pause;
                lane.primary.runtime.sleep(pause).await;
            }
            Err(error) => {
                lane.depose(error);
                return false;
            }
        }
    }
}

/// Waits until the group is to be closed; false if this broker is deposed.
async fn ended(lane: &Lane, set: &CopySet) -> bool {
    loop {
        let seen = set.signal.seen();
        if lane.is_deposed() {
            return false;
        }
        let frozen = set.source().is_frozen();
        if !set.lost().is_empty() || (frozen && set.is_passed()) {
            return true;
        }
        set.signal.changed(seen).await;
    }
}

/// Waits until all that are not lost have everything below `end`, or for the drain timeout; who is
/// behind then counts as lost.
async fn drain(lane: &Lane, set: &Arc<CopySet>, end: Place) {
    let waiting = set.clone();
    let drained = async move {
        loop {
            let seen = waiting.signal.seen();
            if waiting.behind(end.address).is_empty() {
                return;
            }
            waiting.signal.changed(seen).await;
        }
    };
    let primary = &lane.primary;
    let timeout = primary.config.drain_timeout;
    if within(&*primary.runtime, timeout, Box::pin(drained))
        .await
        .is_none()
    {
        for index in set.behind(end.address) {
            set.lose(index, "it did not take the group's last bytes in time");
        }
    }
}

async fn close(lane: &Arc<Lane>, set: &Arc<CopySet>) {
    let end = set.source().freeze();
    // The lane's next group is wanted now, whatever this one's end takes.
    lane.signal.notify();
    set.wake_pumps();
    drain(lane, set, end).await;
    let mut built: Vec<Holder> = Vec::new();
    loop {
        if lane.is_deposed() {
            return;
        }
        let mut holders = set.holding(end.address);
        holders.extend(built.iter().copied());
        if holders.len() < lane.spec.min_copies {
            match build_one(lane, set, &holders, end).await {
                Ok(holder) => built.push(holder),
                Err(Some(sealed)) => return lane.depose(sealed),
                Err(None) => lane.primary.runtime.sleep(lane.primary.config.pause).await,
            }
            continue;
        }
        // Closes keep the lane's order, so that what is closed is a prefix of it.
        let seen = lane.signal.seen();
        if !lane.is_front(set) {
            lane.signal.changed(seen).await;
            continue;
        }
        return match commit_close(lane, set, end, &holders).await {
            Ok(()) => {
                set.set_closed();
                lane.signal.notify();
                flush(lane, set, end, holders);
            }
            Err(error) => lane.depose(error),
        };
    }
}

/// Commits the close; asks until there is an answer.
async fn commit_close(
    lane: &Lane,
    set: &CopySet,
    end: Place,
    holders: &[Holder],
) -> Result<(), RecordsError> {
    let close = Change::Close {
        group: set.id().group,
        revision: set.revision(),
        record: ClosedRecord {
            length: end.address,
            first_ordinal: set.source().first_ordinal(),
            end_ordinal: end.ordinal,
            next_ordinal: end.ordinal,
            holders: holders.to_vec(),
        },
    };
    // Whoever is lost must not be waited for in the next group either.
    let unused = lane.take_ahead_of(&set.lost());
    let mut changes = vec![close];
    changes.extend(unused.iter().map(|ahead| Change::Delete {
        group: ahead.group,
        revision: ahead.revision,
    }));
    let transaction = Transaction {
        streamlet: lane.spec.streamlet,
        epoch: lane.spec.epoch,
        changes,
    };
    let primary = &lane.primary;
    let mut unsure = false;
    loop {
        let (records, runtime) = (&primary.records, &*primary.runtime);
        match commit(records, runtime, &transaction, unsure).await {
            Err(RecordsError::Unknown(_)) => {
                unsure = true;
                runtime.sleep(primary.config.pause).await;
            }
            other => return other.map(|_| ()),
        }
    }
}

/// Brings the closed group to its holders' disks; nobody waits for it.
fn flush(lane: &Lane, set: &CopySet, end: Place, holders: Vec<Holder>) {
    let primary = lane.primary.clone();
    let copy = set.id();
    let runtime = primary.runtime.clone();
    runtime.spawn(Box::pin(async move {
        let request = Request::Flush {
            copy,
            length: end.address,
            closed: true,
        };
        for holder in holders {
            let timeout = primary.config.call_timeout;
            let (transport, runtime) = (&primary.transport, &*primary.runtime);
            let flushed = call(transport, runtime, timeout, holder.broker, &request).await;
            if let Err(error) = flushed {
                tracing::info!(group = %copy, %error, "a closed group may not be flushed; it stays in its holder's memory");
            }
        }
    }));
}

/// Builds one more copy of a group that has too few, at a broker that has none. `Err(Some)` if a
/// newer owner has sealed it there.
async fn build_one(
    lane: &Lane,
    set: &CopySet,
    have: &[Holder],
    end: Place,
) -> Result<Holder, Option<RecordsError>> {
    let primary = &lane.primary;
    let have: Vec<_> = have.iter().map(|holder| holder.broker).collect();
    let mut without = have.clone();
    without.extend(set.holders().iter().map(|holder| holder.broker));
    let mut chosen = primary.choose(1, &without).await;
    if chosen.is_empty() {
        // One that was lost, and is back.
        chosen = primary.choose(1, &have).await;
    }
    let Some(holder) = chosen.first() else {
        return Err(None);
    };
    match build(lane, set.source(), set, *holder, end).await {
        Ok(()) => Ok(*holder),
        Err(error) if is_sealed(&error) => {
            let by = match error.refusal() {
                Some(Refusal::Sealed { by }) => *by,
                _ => lane.spec.epoch,
            };
            Err(Some(RecordsError::Epoch {
                streamlet: lane.spec.streamlet,
                expected: lane.spec.epoch,
                found: by,
            }))
        }
        Err(_) => Err(None),
    }
}

/// Builds a copy from the primary's own bytes: under a seal of its own epoch, which shuts out all
/// before it and nobody after.
async fn build(
    lane: &Lane,
    source: &Arc<dyn Source>,
    set: &CopySet,
    holder: Holder,
    end: Place,
) -> Result<(), CallError> {
    let primary = &lane.primary;
    let (copy, epoch) = (set.id(), lane.spec.epoch);
    let ask = async |request: Request| {
        let timeout = primary.config.call_timeout;
        let (transport, runtime) = (&primary.transport, &*primary.runtime);
        call(transport, runtime, timeout, holder.broker, &request).await
    };
    ask(Request::Seal {
        streamlet: lane.spec.streamlet,
        epoch,
        copies: Vec::new(),
    })
    .await?;
    let Shape {
        segment_size,
        segments,
    } = source.shape();
    let mut from = 0;
    while from < end.address {
        let runs = source.runs(from, BUILD_BYTES);
        if runs.is_empty() {
            break;
        }
        for run in runs {
            let mut address = run.address;
            for bytes in pieces(run.parts) {
                let len = bytes.len() as u64;
                ask(Request::Complete {
                    copy,
                    epoch,
                    segment_size,
                    segments,
                    address,
                    bytes,
                })
                .await?;
                address += len;
            }
            from = address;
        }
    }
    let flushed = ask(Request::Flush {
        copy,
        length: end.address,
        closed: true,
    })
    .await?;
    match flushed {
        Reply::Flushed => Ok(()),
        other => Err(CallError::Lost {
            backup: holder.broker,
            reason: format!("it answered flush with {other:?}"),
        }),
    }
}

/// `parts` as pieces of at most [`BUILD_BYTES`], joined so that small ones do not cost a call each.
fn pieces(parts: Vec<Bytes>) -> Vec<Bytes> {
    let mut out = Vec::new();
    let mut joined = BytesMut::new();
    for part in parts {
        for piece in part.chunks(BUILD_BYTES) {
            if !joined.is_empty() && joined.len() + piece.len() > BUILD_BYTES {
                out.push(joined.split().freeze());
            }
            joined.extend_from_slice(piece);
        }
    }
    if !joined.is_empty() {
        out.push(joined.freeze());
    }
    out
}
