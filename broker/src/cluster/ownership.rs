//! How streamlets come to this broker and leave it, where brokers share a store.
//!
//! The record of a streamlet names its owner, and that is all there is to it: whoever is named takes the
//! streamlet over, whoever is not named any more gives it up. A [`Streamlet`] serves one stretch of
//! ownership; with the owner another one takes its place in the stream, so that whoever still holds the
//! former is told to look again. Nothing here is needed to be safe: the epoch in every transaction and the
//! seals at the copies are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kera_metadata::{
    Compare, FIRST_GROUP, Living, MetadataError, StreamConfig, StreamRecord, StreamletRecord,
    Transaction, Write,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{Epoch, StreamId, StreamletId};
use kera_replication::records::RecordsError;
use kera_streamlet::Streamlet;

use super::owner_changes::{Early, Ownership};
use super::replicated::Replicated;
use super::seen_revision;
use super::takeover::TakeOver;
use crate::admin;
use crate::catalog::{Catalog, Stream, make_dirs, settings_of};
use crate::clock::now_ms;
use crate::directory::Owner;
use crate::recover::{elsewhere, is_here, lane_records, settle};
use crate::shared::Shared;

/// Longest wait of a hand-over for everything that was appended to be durable and closed.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// A group that is longer is ended before its streamlet is handed over: a new owner fetches the last group of
/// each lane before it serves, and nobody is to wait for much of it.
const LONG_BYTES: u64 = 1 << 20;

impl Ownership {
    /// A stream that this broker has just created; nothing is done if the store has told of it already.
    pub(crate) fn created(
        &self,
        shared: &Arc<Shared>,
        stream: StreamRecord,
        streamlets: Vec<StreamletRecord>,
    ) {
        seen_revision::keep(shared, stream.revision);
        let mut early = self.turn.lock();
        if *self.seen.borrow() < stream.revision {
            put(shared, &mut early, vec![stream], streamlets);
        }
    }

    /// Everything that the transaction of `revision`, or an image of that revision, says of streams and
    /// streamlets. Blocks.
    pub(super) fn apply(&self, shared: &Arc<Shared>, revision: u64, news: News) {
        let new = |stream: &StreamRecord| shared.catalog.get(stream.id).is_none();
        if news.streams.iter().any(new) {
            // No older state of the store is to tell this broker one day that the stream is gone.
            seen_revision::keep(shared, revision);
        }
        let mut early = self.turn.lock();
        put(shared, &mut early, news.streams, news.streamlets);
        for id in news.deleted {
            early.remove(&id);
            if let Some(stream) = shared.catalog.get(id) {
                admin::drop_stream(shared, &stream);
            }
        }
        self.saw(shared, revision);
        drop(early);
        shared.coordination.owners_changed();
    }

    /// Everything that the store has told up to `revision` was applied.
    pub(super) fn saw(&self, shared: &Shared, revision: u64) {
        self.seen.send_if_modified(|seen| {
            let news = revision > *seen;
            *seen = revision.max(*seen);
            news
        });
        if let Some(membership) = &shared.membership {
            membership.read_to(revision);
        }
    }
}

/// What is written of streams and streamlets, or deleted.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) streams: Vec<StreamRecord>,
    pub(super) streamlets: Vec<StreamletRecord>,
    pub(super) deleted: Vec<StreamId>,
}

fn put(
    shared: &Arc<Shared>,
    early: &mut Early,
    streams: Vec<StreamRecord>,
    streamlets: Vec<StreamletRecord>,
) {
    let mut new: HashMap<StreamId, Arc<Stream>> = HashMap::new();
    for record in streams {
        let id = record.id;
        if let Some(stream) = shared.catalog.get(id) {
            stream.altered(record);
            continue;
        }
        let stream = elsewhere(&record, &shared.env);
        for streamlet in early.remove(&id).unwrap_or_default() {
            recorded(shared, &stream, &streamlet);
        }
        new.insert(id, stream);
    }
    for record in streamlets {
        let stream = new.get(&record.stream).cloned();
        match stream.or_else(|| shared.catalog.get(record.stream)) {
            Some(stream) => recorded(shared, &stream, &record),
            None => early.entry(record.stream).or_default().push(record),
        }
    }
    // Once all of it is known.
    for stream in new.into_values() {
        shared.catalog.insert(stream);
    }
}

/// A streamlet's record was written, here or elsewhere.
fn recorded(shared: &Arc<Shared>, stream: &Arc<Stream>, record: &StreamletRecord) {
    let id = record.streamlet;
    let known = stream.owner(id);
    if known.is_some_and(|known| record.epoch < known.epoch) {
        // Older than what is known, as after a hand-over of its own.
        return;
    }
    let owner = Owner {
        broker: record.owner,
        epoch: record.epoch,
    };
    stream.set_owner(id, owner);
    let (Some(now), Some(replicated)) = (stream.streamlet(id), &shared.replicated) else {
        return;
    };
    if record.owner != shared.broker_id {
        if known.is_some_and(|known| known.broker == shared.broker_id) {
            replicated.changes().given_up();
            tracing::info!(stream = stream.name(), streamlet = id.0, owner = record.owner, epoch = %record.epoch, "another broker owns it now");
        }
        give_up(shared, replicated, stream, &now);
        return;
    }
    let latest = shared.recorder.latest(now.key());
    if !now.is_over() && latest.is_some_and(|latest| record.epoch <= latest) {
        return;
    }
    give_up(shared, replicated, stream, &now);
    take(shared, replicated, stream, record);
}

/// Serves nothing of the streamlet any more: those who wait are told to look its owner up again.
fn give_up(
    shared: &Arc<Shared>,
    replicated: &Replicated,
    stream: &Stream,
    streamlet: &Arc<Streamlet>,
) {
    let mine = shared.recorder.latest(streamlet.key()).is_some();
    if !mine && streamlet.is_moved() {
        return;
    }
    streamlet.mark_moved();
    replicated.unserve(streamlet);
    let (of, id) = (streamlet.stream(), streamlet.id());
    shared.recorder.forget_streamlet(streamlet.key());
    let settings = settings_of(&stream.record.load(), id);
    let epoch = streamlet.epoch();
    stream.put(Streamlet::elsewhere(
        of,
        id,
        epoch,
        settings,
        shared.env.clone(),
    ));
}

/// This broker is the recorded owner: the streamlet is served, at once where it never held anything, or
/// after it was recovered from its copies.
fn take(
    shared: &Arc<Shared>,
    replicated: &Arc<Replicated>,
    stream: &Arc<Stream>,
    record: &StreamletRecord,
) {
    let config = stream.record.load().config.clone();
    shared.recorder.assigned(record);
    let streamlet = if is_new(stream, record) {
        begun(shared, replicated, stream, record, &config)
    } else if config.is_replicated() {
        let streamlet = awaiting(shared, stream, record);
        stream.put(streamlet.clone());
        return TakeOver::spawn(shared, replicated, stream, &streamlet);
    } else {
        found(shared, stream, record).unwrap_or_else(|reason| {
            tracing::error!(
                stream = stream.name(),
                streamlet = record.streamlet.0,
                reason,
                "not served: it has no replica on another broker"
            );
            awaiting(shared, stream, record)
        })
    };
    stream.put(streamlet);
}

/// Nobody has ever written anything in it: its record is the one that its stream was created with.
fn is_new(stream: &Stream, record: &StreamletRecord) -> bool {
    record.next_group == FIRST_GROUP && record.revision == stream.record.load().revision
}

fn begun(
    shared: &Arc<Shared>,
    replicated: &Replicated,
    stream: &Stream,
    record: &StreamletRecord,
    config: &StreamConfig,
) -> Arc<Streamlet> {
    let streamlet = Streamlet::new(
        record.stream,
        record.streamlet,
        record.epoch,
        settings_of(&stream.record.load(), record.streamlet),
        shared.env.clone(),
    );
    if let Err(error) = make_dirs(std::slice::from_ref(&streamlet), &shared.env) {
        // Its first group fails, says so, and is tried again.
        tracing::error!(stream = stream.name(), streamlet = record.streamlet.0, %error, "its directory cannot be made");
    }
    if config.is_replicated() {
        let next = streamlet.next_group();
        replicated.serve(&streamlet, record.epoch, next, config);
    }
    streamlet
}

fn awaiting(shared: &Shared, stream: &Stream, record: &StreamletRecord) -> Arc<Streamlet> {
    Streamlet::awaiting(
        record.stream,
        record.streamlet,
        record.epoch,
        settings_of(&stream.record.load(), record.streamlet),
        shared.env.clone(),
    )
}

/// A streamlet without copies elsewhere that came back to the broker that has its files.
fn found(
    shared: &Arc<Shared>,
    stream: &Stream,
    record: &StreamletRecord,
) -> Result<Arc<Streamlet>, String> {
    let image = shared
        .metadata
        .load_streamlet(record.stream, record.streamlet)
        .map_err(|error| error.to_string())?;
    if !is_here(&image, record, &shared.env) {
        return Err("its files are in another data directory, or at another broker".into());
    }
    shared.recorder.adopt(&image);
    let (streamlet, recovery) = Streamlet::recover(
        record.stream,
        record.streamlet,
        record.epoch,
        record.next_group,
        settings_of(&stream.record.load(), record.streamlet),
        shared.env.clone(),
        lane_records(&image, record.stream, record.streamlet),
        now_ms(),
    )
    .map_err(|error| error.to_string())?;
    settle(
        &stream.name(),
        &streamlet,
        recovery,
        &shared.env,
        &shared.recorder,
    )
    .map_err(|error| error.to_string())?;
    make_dirs(std::slice::from_ref(&streamlet), &shared.env).map_err(|error| error.to_string())?;
    Ok(streamlet)
}

/// Who is to own the streamlets of a new stream, one after the other: all brokers that serve, those first
/// that own least. `me` if nobody is known.
pub(crate) fn spread(catalog: &Catalog, living: &Living, me: u32) -> Vec<u32> {
    let serving = living.values().filter(|b| b.may_own());
    let mut owned: Vec<(usize, u32)> = serving.map(|broker| (0, broker.id)).collect();
    for stream in catalog.all() {
        for owner in stream.owners().iter() {
            if let Some((count, _)) = owned.iter_mut().find(|(_, id)| *id == owner.broker) {
                *count += 1;
            }
        }
    }
    owned.sort_unstable();
    if owned.is_empty() {
        return vec![me];
    }
    owned.into_iter().map(|(_, id)| id).collect()
}

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
    let (Some(replicated), Some(members)) = (&shared.replicated, &shared.members) else {
        let text = "this broker shares no store with others; start brokers with --cluster";
        return refuse(ErrorCode::InvalidArgument, text.into());
    };
    let Some(found) = shared.catalog.get(stream) else {
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
    if !members.living().get(&to).is_some_and(|live| live.may_own()) {
        let text = format!(
            "{name}: broker {to} is not there, is draining, or is a replica store; name another"
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
        let text = format!("{name}: it is not recovered yet; try again");
        return refuse(ErrorCode::NotEnoughCopies, text);
    };
    if !now.is_leaving() {
        // While appends go on: what can be closed before they stop, they need not wait for.
        now.end_long(LONG_BYTES, now_ms());
        if let Err(error) = in_time(&name, copies.closed_frozen()).await {
            replicated.changes().handed_over(false);
            return Err(error);
        }
    }
    if !now.stop_appends() {
        let text = format!("{name}: it is being handed over already; see who owns it in a moment");
        return refuse(ErrorCode::Overloaded, text);
    }
    let outcome = match in_time(&name, copies.close()).await {
        Ok(()) => change_owner(shared, &now, to).await,
        Err(error) => Err(error),
    };
    replicated.changes().handed_over(outcome.is_ok());
    let (shared, outcome_known) = (shared.clone(), outcome.clone());
    let done = tokio::task::spawn_blocking(move || match outcome_known {
        Ok(record) => handed(&shared, &found, &record),
        Err(_) => go_on(&shared, &found, &now),
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

/// The owner's last word: all is closed, and from now on `to` is the owner.
async fn change_owner(
    shared: &Arc<Shared>,
    streamlet: &Arc<Streamlet>,
    to: u32,
) -> Result<StreamletRecord, WireError> {
    let (shared, streamlet) = (shared.clone(), streamlet.clone());
    admin::blocking(move || {
        let failed = |error: &MetadataError| admin::metadata_error(error);
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
        if now.owner != shared.broker_id || now.epoch != streamlet.epoch() {
            return Err(moved(&now));
        }
        let mut next = StreamletRecord {
            owner: to,
            epoch: Epoch(now.epoch.0 + 1),
            ..now.clone()
        };
        let compare = Compare::StreamletRevision {
            stream,
            streamlet: id,
            revision: now.revision,
        };
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

/// The hand-over is recorded: the streamlet is given up before the store says so.
fn handed(shared: &Arc<Shared>, stream: &Arc<Stream>, record: &StreamletRecord) {
    let Some(ownership) = &shared.ownership else {
        return;
    };
    let _turn = ownership.turn.lock();
    recorded(shared, stream, record);
}

/// The hand-over came to nothing, or the streamlet was given up and is this broker's still: it is taken
/// again.
fn go_on(shared: &Arc<Shared>, stream: &Arc<Stream>, streamlet: &Arc<Streamlet>) {
    let (Some(ownership), Some(replicated)) = (&shared.ownership, &shared.replicated) else {
        return;
    };
    let _turn = ownership.turn.lock();
    let current = stream.streamlet(streamlet.id());
    if !current.is_some_and(|current| Arc::ptr_eq(&current, streamlet)) {
        return;
    }
    give_up(shared, replicated, stream, streamlet);
    let again = Streamlet::awaiting(
        streamlet.stream(),
        streamlet.id(),
        streamlet.epoch(),
        settings_of(&stream.record.load(), streamlet.id()),
        shared.env.clone(),
    );
    shared.recorder.again(streamlet.key(), streamlet.epoch());
    stream.put(again.clone());
    TakeOver::spawn(shared, replicated, stream, &again);
}

/// Takes again what was given up here, because somebody sealed it, and is recorded to be this broker's all
/// the same. Blocks.
pub(super) fn take_again(shared: &Arc<Shared>) {
    for stream in shared.catalog.all() {
        for streamlet in &stream.streamlets {
            let (id, me) = (streamlet.id(), shared.broker_id);
            let owner = stream.owner(id).filter(|owner| owner.broker == me);
            if owner.is_none() || !streamlet.is_moved() {
                continue;
            }
            // What is on its way here may say otherwise.
            let recorded = shared.metadata.streamlet(stream.id(), id);
            if recorded.is_ok_and(|record| record.is_some_and(|record| record.owner == me)) {
                go_on(shared, &stream, &streamlet);
            }
        }
    }
}

#[cfg(test)]
#[path = "ownership_tests.rs"]
mod tests;
