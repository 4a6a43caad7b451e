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

use kera_controller::refused;
use kera_metadata::{FIRST_GROUP, Image, Living, StreamConfig, StreamRecord, StreamletRecord};
use kera_protocol::ids::StreamId;
use kera_streamlet::Streamlet;
use tokio::sync::watch;

use super::owner_changes::{Early, Ownership};
use super::takeover::TakeOver;
use crate::admin;
use crate::clock::now_ms;
use crate::cluster::Clustered;
use crate::data::catalog::{Catalog, Stream, make_dirs, settings_of};
use crate::data::directory::Owner;
use crate::recover::{elsewhere, is_here, lane_records, pass_over_unknown, settle};
use crate::shared::Shared;

impl Ownership {
    /// A stream that this broker has just created; nothing is done if the store has told of it already.
    pub(crate) fn created(
        &self,
        shared: &Arc<Shared>,
        clustered: &Arc<Clustered>,
        stream: StreamRecord,
        streamlets: Vec<StreamletRecord>,
    ) {
        keep(shared, stream.revision);
        let mut early = self.turn.lock();
        if *self.seen.borrow() < stream.revision {
            put(shared, clustered, &mut early, vec![stream], streamlets);
        }
    }

    /// Everything that the transaction of `revision`, or an image of that revision, says of streams and
    /// streamlets. Blocks.
    pub(crate) fn apply(
        &self,
        shared: &Arc<Shared>,
        clustered: &Arc<Clustered>,
        revision: u64,
        news: News,
    ) {
        let new = |stream: &StreamRecord| shared.data.catalog.get(stream.id).is_none();
        if news.streams.iter().any(new) {
            // No older state of the store is to tell this broker one day that the stream is gone.
            keep(shared, revision);
        }
        let mut early = self.turn.lock();
        put(shared, clustered, &mut early, news.streams, news.streamlets);
        for id in news.deleted {
            early.remove(&id);
            if let Some(stream) = shared.data.catalog.get(id) {
                admin::drop_stream(shared, &stream);
            }
        }
        self.saw(clustered, revision);
        drop(early);
        shared.coordination.owners_changed();
    }

    /// Everything that the store has told up to `revision` was applied.
    pub(crate) fn saw(&self, clustered: &Clustered, revision: u64) {
        self.seen.send_if_modified(|seen| {
            let news = revision > *seen;
            *seen = revision.max(*seen);
            news
        });
        clustered.membership.read_to(revision);
    }
}

/// What is written of streams and streamlets, or deleted.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) streams: Vec<StreamRecord>,
    pub(crate) streamlets: Vec<StreamletRecord>,
    pub(crate) deleted: Vec<StreamId>,
}

fn put(
    shared: &Arc<Shared>,
    clustered: &Arc<Clustered>,
    early: &mut Early,
    streams: Vec<StreamRecord>,
    streamlets: Vec<StreamletRecord>,
) {
    let mut new: HashMap<StreamId, Arc<Stream>> = HashMap::new();
    for record in streams {
        let id = record.id;
        if let Some(stream) = shared.data.catalog.get(id) {
            stream.altered(record);
            continue;
        }
        let stream = elsewhere(&record, &shared.data.env);
        for streamlet in early.remove(&id).unwrap_or_default() {
            recorded(shared, clustered, &stream, &streamlet);
        }
        new.insert(id, stream);
    }
    for record in streamlets {
        let stream = new.get(&record.stream).cloned();
        match stream.or_else(|| shared.data.catalog.get(record.stream)) {
            Some(stream) => recorded(shared, clustered, &stream, &record),
            None => early.entry(record.stream).or_default().push(record),
        }
    }
    // Once all of it is known.
    for stream in new.into_values() {
        shared.data.catalog.insert(stream);
    }
}

/// A streamlet's record was written, here or elsewhere.
fn recorded(
    shared: &Arc<Shared>,
    clustered: &Arc<Clustered>,
    stream: &Arc<Stream>,
    record: &StreamletRecord,
) {
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
    let Some(now) = stream.streamlet(id) else {
        return;
    };
    if record.owner != shared.broker_id {
        if known.is_some_and(|known| known.broker == shared.broker_id) {
            clustered.replicated.ownership_metrics().given_up();
            tracing::info!(stream = stream.name(), streamlet = id.0, owner = record.owner, epoch = %record.epoch, "another broker owns it now");
        }
        give_up(shared, clustered, stream, &now);
        return;
    }
    let latest = shared.recorder.latest(now.key());
    if !now.is_over() && latest.is_some_and(|latest| record.epoch <= latest) {
        return;
    }
    give_up(shared, clustered, stream, &now);
    take(shared, clustered, stream, record);
}

/// Serves nothing of the streamlet any more: those who wait are told to look its owner up again.
fn give_up(
    shared: &Arc<Shared>,
    clustered: &Clustered,
    stream: &Stream,
    streamlet: &Arc<Streamlet>,
) {
    let mine = shared.recorder.latest(streamlet.key()).is_some();
    if !mine && streamlet.is_moved() {
        return;
    }
    streamlet.mark_moved();
    clustered.replicated.unserve(streamlet);
    let (of, id) = (streamlet.stream(), streamlet.id());
    shared.recorder.forget_streamlet(streamlet.key());
    let settings = settings_of(&stream.record.load(), id);
    let epoch = streamlet.epoch();
    stream.put(Streamlet::elsewhere(
        of,
        id,
        epoch,
        settings,
        shared.data.env.clone(),
    ));
}

/// This broker is the recorded owner: the streamlet is served, at once where it never held anything, or
/// after it was recovered from its copies.
fn take(
    shared: &Arc<Shared>,
    clustered: &Arc<Clustered>,
    stream: &Arc<Stream>,
    record: &StreamletRecord,
) {
    let config = stream.record.load().config.clone();
    shared.recorder.assigned(record);
    let streamlet = if is_new(stream, record) {
        begun(shared, clustered, stream, record, &config)
    } else if config.is_replicated() {
        let streamlet = awaiting(shared, stream, record);
        stream.put(streamlet.clone());
        return TakeOver::spawn(shared, clustered, stream, &streamlet);
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
    clustered: &Clustered,
    stream: &Stream,
    record: &StreamletRecord,
    config: &StreamConfig,
) -> Arc<Streamlet> {
    let streamlet = Streamlet::new(
        record.stream,
        record.streamlet,
        record.epoch,
        settings_of(&stream.record.load(), record.streamlet),
        shared.data.env.clone(),
    );
    if let Err(error) = make_dirs(std::slice::from_ref(&streamlet), &shared.data.env) {
        // Its first group fails, says so, and is tried again.
        tracing::error!(stream = stream.name(), streamlet = record.streamlet.0, %error, "its directory cannot be made");
    }
    if config.is_replicated() {
        let next = streamlet.next_group();
        let replicated = &clustered.replicated;
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
        shared.data.env.clone(),
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
    if !is_here(&image, record, &shared.data.env) {
        return Err("its files are in another data directory, or at another broker".into());
    }
    shared.recorder.add_streamlets(&image.streamlets);
    let recover = |image: &Image, record: &StreamletRecord| {
        let (env, name) = (&shared.data.env, stream.name());
        let recovered = Streamlet::recover(
            record.stream,
            record.streamlet,
            record.epoch,
            record.next_group,
            settings_of(&stream.record.load(), record.streamlet),
            env.clone(),
            lane_records(image, record.stream, record.streamlet),
            now_ms(),
        );
        let (streamlet, recovery) = recovered.map_err(|error| error.to_string())?;
        let settled = settle(&name, &streamlet, recovery, env, &shared.recorder);
        settled.map_err(|error| error.to_string())?;
        Ok::<_, String>(streamlet)
    };
    let mut streamlet = recover(&image, record)?;
    let passed = pass_over_unknown(&streamlet, record, &shared.recorder);
    if let Some((image, record)) = passed.map_err(|error| error.to_string())? {
        streamlet = recover(&image, &record)?;
    }
    make_dirs(std::slice::from_ref(&streamlet), &shared.data.env)
        .map_err(|error| error.to_string())?;
    Ok(streamlet)
}

/// Who is to own the streamlets of a new stream, one after the other: all brokers that serve, those first
/// that own least. `me` if nobody is known.
pub(crate) fn spread(catalog: &Catalog, living: &Living, me: u32) -> Vec<u32> {
    let refused = refused(living);
    let serving = living.values();
    let serving = serving.filter(|b| b.may_own() && !refused.contains_key(&b.id));
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

/// The hand-over is recorded: the streamlet is given up before the store says so.
pub(super) fn handed(
    shared: &Arc<Shared>,
    clustered: &Arc<Clustered>,
    stream: &Arc<Stream>,
    record: &StreamletRecord,
) {
    let _turn = clustered.ownership.turn.lock();
    recorded(shared, clustered, stream, record);
}

/// The hand-over came to nothing, or the streamlet was given up and is this broker's still: it is taken
/// again.
pub(super) fn go_on(
    shared: &Arc<Shared>,
    clustered: &Arc<Clustered>,
    stream: &Arc<Stream>,
    streamlet: &Arc<Streamlet>,
) {
    let _turn = clustered.ownership.turn.lock();
    let current = stream.streamlet(streamlet.id());
    if !current.is_some_and(|current| Arc::ptr_eq(&current, streamlet)) {
        return;
    }
    give_up(shared, clustered, stream, streamlet);
    let again = Streamlet::awaiting(
        streamlet.stream(),
        streamlet.id(),
        streamlet.epoch(),
        settings_of(&stream.record.load(), streamlet.id()),
        shared.data.env.clone(),
    );
    shared.recorder.again(streamlet.key(), streamlet.epoch());
    stream.put(again.clone());
    TakeOver::spawn(shared, clustered, stream, &again);
}

/// Takes again what was given up here, because somebody sealed it, and is recorded to be this broker's all
/// the same. Blocks.
pub(crate) fn take_again(shared: &Arc<Shared>, clustered: &Arc<Clustered>) {
    for stream in shared.data.catalog.all() {
        for streamlet in &stream.streamlets {
            let (id, me) = (streamlet.id(), shared.broker_id);
            let owner = stream.owner(id).filter(|owner| owner.broker == me);
            if owner.is_none() || !streamlet.is_moved() {
                continue;
            }
            // What is on its way here may say otherwise.
            let recorded = shared.metadata.streamlet(stream.id(), id);
            if recorded.is_ok_and(|record| record.is_some_and(|record| record.owner == me)) {
                go_on(shared, clustered, &stream, &streamlet);
            }
        }
    }
}

/// How often it is written, where the store has changed at all.
const INTERVAL: Duration = Duration::from_secs(5);

/// Remembers that the store has been at `revision`; waits for the disk.
pub(crate) fn keep(shared: &Shared, revision: u64) {
    if let Err(error) = shared.dir.keep_revision(revision) {
        // A full disk is no reason to serve nothing; it is tried again.
        tracing::warn!(revision, %error, "how far the metadata store was read cannot be remembered");
    }
}

/// Remembers what is `seen` of the store, from time to time, until the broker stops.
pub(crate) async fn keep_up(shared: Arc<Shared>, mut seen: watch::Receiver<u64>) {
    let mut stopping = shared.stopping.subscribe();
    loop {
        let mut last = false;
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = stopping.wait_for(|stop| *stop) => last = true,
        }
        let revision = *seen.borrow_and_update();
        let keeping = shared.clone();
        let kept = tokio::task::spawn_blocking(move || keep(&keeping, revision));
        if let Err(error) = kept.await {
            tracing::error!(%error, "remembering how far the metadata store was read failed");
        }
        if last {
            return;
        }
    }
}

#[cfg(test)]
#[path = "owners_tests.rs"]
mod tests;
