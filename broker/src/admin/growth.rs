//! Growing a stream's lanes: every owner cuts the old lanes, the boundaries are recorded, the new lanes
//! open.
//!
//! Where brokers share a store the owners are asked for their boundaries, which hold under the epochs
//! that the record is written with: an owner that has changed meanwhile has not cut anything. An owner
//! that hears nothing of the growth it cut for writes the stream's record as it is, so that a growth
//! that comes late is refused, and only then lets its lanes go on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use kera_metadata::{
    Compare, Key, LaneBy, LaneGeneration, MetadataError, StreamRecord, Transaction, Write,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{Epoch, LaneId, Ordinal, StreamletId};
use kera_protocol::v1;
use kera_streamlet::{LaneCut, Streamlet};
use uuid::Uuid;

use crate::data::catalog::Stream;
use crate::others;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error, to_its_end};

/// Attempts to cut lanes while one of them is recovering.
const CUT_ATTEMPTS: usize = 200;
/// Longest wait for another owner's boundaries.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// An owner that has heard nothing for so long gives up a growth that it cut its lanes for.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// Pause before the store is asked again, after it did not answer.
const PAUSE: Duration = Duration::from_millis(500);

/// Where the lanes of a streamlet are cut, by lane, under its owner's epoch.
struct Cut {
    streamlet: StreamletId,
    epoch: Epoch,
    boundaries: Vec<Ordinal>,
}

/// Cuts the old lanes, records the boundaries, opens the new lanes. `new` is `old` with more lanes.
///
/// # Errors
/// [`ErrorCode::StorageError`] if a lane cannot make its records durable, what another owner or the
/// metadata store answers; the lanes go on as before then.
pub(super) async fn grow(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    old: Arc<StreamRecord>,
    mut new: StreamRecord,
) -> Result<(), WireError> {
    // Told from any other attempt, so that nobody gives up what another has begun.
    let attempt = Uuid::new_v4().as_u64_pair().0;
    let generation = old.lane_generations.len() as u32;
    let partitions = new.config.uneven_partitions();
    let mut by_owner: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (streamlet, owner) in (0..).zip(shared.owners_of(stream)) {
        by_owner.entry(owner).or_default().push(streamlet);
    }
    let cuts = by_owner.iter().map(|(owner, streamlets)| {
        let request = v1::CutForGrowthRequest {
            stream: stream.id().as_bytes().to_vec().into(),
            generation,
            streamlets: streamlets.clone(),
            attempt,
            partitions,
        };
        cut_at(shared, stream, *owner, request)
    });
    let cuts: Result<Vec<_>, _> = join_all(cuts).await.into_iter().collect();
    let outcome = match cuts {
        Ok(mut cuts) => {
            let mut cuts: Vec<Cut> = cuts.drain(..).flatten().collect();
            cuts.sort_by_key(|cut| cut.streamlet);
            let mut starts: Vec<(StreamletId, LaneId, Ordinal)> = Vec::new();
            if new.config.lane_by == LaneBy::Key {
                for cut in &cuts {
                    let boundaries = (0..).map(LaneId).zip(&cut.boundaries);
                    starts.extend(boundaries.map(|(lane, at)| (cut.streamlet, lane, *at)));
                }
            }
            new.lane_generations.push(LaneGeneration {
                lanes: new.config.lanes,
                short_streamlets: new.config.short_streamlets,
                starts,
            });
            record(shared, stream, &old, new, &cuts).await
        }
        Err(error) => Err(Failed::Certainly(error)),
    };
    match outcome {
        Ok(()) => Ok(()),
        Err(Failed::Certainly(error)) => {
            let give_up = by_owner
                .keys()
                .map(|owner| give_up_at(shared, stream, *owner, attempt));
            join_all(give_up).await;
            Err(error)
        }
        // Every owner finds out by itself.
        Err(Failed::Perhaps(error)) => Err(error),
    }
}

enum Failed {
    Certainly(WireError),
    Perhaps(WireError),
}

/// Records the growth, if nobody has another owner by now, and opens this broker's new lanes.
async fn record(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    old: &StreamRecord,
    mut new: StreamRecord,
    cuts: &[Cut],
) -> Result<(), Failed> {
    let mut compare = vec![Compare::revision(Key::Stream(old.id), old.revision)];
    if shared.clustered.is_some() {
        // All at once: a stream may have more streamlets than a transaction comparisons.
        compare.push(Compare::StreamletEpochs {
            stream: old.id,
            epochs: cuts.iter().map(|cut| (cut.streamlet, cut.epoch)).collect(),
        });
    }
    let transaction = Transaction::new(compare, vec![Write::PutStream(new.clone())]);
    match shared.metadata.commit_async(transaction).await {
        Ok(committed) => {
            new.revision = committed.revision;
            stream.altered(new);
            Ok(())
        }
        Err(error @ MetadataError::UnknownOutcome { .. }) => {
            Err(Failed::Perhaps(metadata_error(&error)))
        }
        Err(error) => Err(Failed::Certainly(metadata_error(&error))),
    }
}

async fn cut_at(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    owner: u32,
    request: v1::CutForGrowthRequest,
) -> Result<Vec<Cut>, WireError> {
    let partitions = request.partitions;
    let cuts = if owner == shared.broker_id {
        cut_for_growth(shared, stream, &request).await?
    } else {
        let mut stub = others::lanes(shared, owner)?;
        let call = stub.cut_for_growth(request);
        others::answer(owner, ANSWER_WITHIN, call).await?
    };
    if cuts.partitions != partitions {
        let text = format!(
            "stream {}: broker {owner} runs an older version, which gives each streamlet as many lanes as the others; update it, or choose a multiple of {} partitions",
            stream.name(),
            stream.streamlets.len()
        );
        return Err(WireError::new(ErrorCode::UnsupportedVersion, text));
    }
    let cut = |cut: v1::CutStreamlet| Cut {
        streamlet: StreamletId(cut.streamlet),
        epoch: Epoch(cut.epoch),
        boundaries: cut.boundaries,
    };
    Ok(cuts.streamlets.into_iter().map(cut).collect())
}

async fn give_up_at(shared: &Arc<Shared>, stream: &Arc<Stream>, owner: u32, attempt: u64) {
    if owner == shared.broker_id {
        return give_up_growth(stream, attempt);
    }
    let request = v1::GiveUpGrowthRequest {
        stream: stream.id().as_bytes().to_vec().into(),
        attempt,
    };
    let told = match others::lanes(shared, owner) {
        Ok(mut stub) => others::answer(owner, ANSWER_WITHIN, stub.give_up_growth(request)).await,
        Err(error) => Err(error),
    };
    if let Err(error) = told {
        tracing::debug!(owner, %error, "it finds out by itself that lanes do not grow");
    }
}

/// Cuts the lanes of streamlets that this broker owns, for the generation that is to begin. Until that is
/// recorded, or given up, appends of the present one are refused.
///
/// # Errors
/// [`ErrorCode::NotOwner`] for a streamlet that is not served here, [`ErrorCode::StaleLanes`] if the
/// generation has begun already, [`ErrorCode::Overloaded`] if somebody else is about to begin it,
/// [`ErrorCode::StorageError`] if a lane cannot make its records durable.
pub(crate) async fn cut_for_growth(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    request: &v1::CutForGrowthRequest,
) -> Result<v1::CutForGrowthResponse, WireError> {
    let name = stream.name();
    let refuse = |code, text: String| Err(WireError::new(code, format!("stream {name}: {text}")));
    if stream.lane_generation() + 1 != request.generation {
        let text = format!(
            "its lanes are at generation {}, and {} is not the next; try again",
            stream.lane_generation(),
            request.generation
        );
        return refuse(ErrorCode::StaleLanes, text);
    }
    let mut streamlets = Vec::new();
    for number in &request.streamlets {
        match stream.streamlet(StreamletId(*number)) {
            Some(found) if !found.is_over() && found.is_recovered() => streamlets.push(found),
            _ => {
                let text = format!("streamlet {number} is not served here; try again");
                return refuse(ErrorCode::NotOwner, text);
            }
        }
    }
    if !stream.begin_growth(request.attempt) {
        let text = "its lanes are being grown already; see how many it has in a moment".into();
        return refuse(ErrorCode::Overloaded, text);
    }
    let (shared, stream) = (shared.clone(), stream.clone());
    let (attempt, partitions) = (request.attempt, request.partitions);
    // Another broker may ask, and its connection may end. Then `watch_over` gives the growth up.
    to_its_end(async move {
        match blocking(move || cut_all(&name, &streamlets)).await {
            Ok(mut cut) => {
                cut.partitions = partitions;
                tokio::spawn(watch_over(shared, stream, attempt));
                Ok(cut)
            }
            Err(error) => {
                stream.end_growth(attempt);
                Err(error)
            }
        }
    })
    .await
}

fn cut_all(
    name: &str,
    streamlets: &[Arc<Streamlet>],
) -> Result<v1::CutForGrowthResponse, WireError> {
    let mut response = v1::CutForGrowthResponse::default();
    for (index, streamlet) in streamlets.iter().enumerate() {
        // Before the cut: with another one it does not hold.
        let epoch = streamlet.epoch();
        let Some(cuts) = cut(streamlet) else {
            streamlets[..index].iter().for_each(|s| s.abort_growth());
            let text =
                format!("a lane of stream {name} could not make its records durable; try again");
            return Err(WireError::new(ErrorCode::StorageError, text));
        };
        response.streamlets.push(v1::CutStreamlet {
            streamlet: streamlet.id().0,
            epoch: epoch.0,
            boundaries: cuts.iter().map(|cut| cut.ordinal).collect(),
        });
    }
    Ok(response)
}

/// Cuts a streamlet's lanes and waits until all below the boundaries is durable: a failed write must
/// not put a lane's end below its recorded boundary.
fn cut(streamlet: &Streamlet) -> Option<Vec<LaneCut>> {
    let mut cuts = None;
    for _ in 0..CUT_ATTEMPTS {
        if cuts.is_none() {
            cuts = streamlet.cut_lanes();
        }
        if cuts
            .as_ref()
            .is_some_and(|cuts| streamlet.growth_settled(cuts))
        {
            return cuts;
        }
        // A repair or a sync is short; it needs no more than its turn at the disk.
        std::thread::park_timeout(Duration::from_millis(10));
    }
    if cuts.is_some() {
        streamlet.abort_growth();
    }
    None
}

/// A growth came to nothing for certain: this broker's lanes go on.
pub(crate) fn give_up_growth(stream: &Stream, attempt: u64) {
    if stream.end_growth(attempt) {
        stream.streamlets.iter().for_each(|s| s.abort_growth());
    }
}

/// Sees to it that lanes which were cut go on, whatever becomes of whoever asked for it.
async fn watch_over(shared: Arc<Shared>, stream: Arc<Stream>, attempt: u64) {
    let mut stopping = shared.stopping.subscribe();
    // A broker that stops keeps its directory until nobody uses it.
    let mut pause = async |pause| {
        let stopped = stopping.wait_for(|stop| *stop);
        tokio::time::timeout(pause, stopped).await.is_ok()
    };
    let mut stops = pause(GIVE_UP_AFTER).await;
    while !stops && stream.is_growing(attempt) {
        let (of, known) = (shared.clone(), stream.clone());
        match blocking(move || touch(&of, &known)).await {
            Ok(true) => {
                tracing::warn!(
                    stream = stream.name(),
                    "its lanes were to grow and did not; they go on as they were"
                );
                give_up_growth(&stream, attempt);
                return;
            }
            // It is recorded, and will be heard of.
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(stream = stream.name(), %error, "lanes are cut, and the store does not say for what");
            }
        }
        stops = pause(PAUSE).await;
    }
}

/// Writes a stream's record as it is: with another revision, a growth that is on its way is refused. False
/// if the lanes have grown.
fn touch(shared: &Shared, stream: &Stream) -> Result<bool, WireError> {
    let id = stream.id();
    let found = shared.metadata.stream(id).map_err(|e| metadata_error(&e))?;
    let generations = stream.lane_generation() as usize + 1;
    let Some(found) = found.filter(|found| found.lane_generations.len() == generations) else {
        return Ok(false);
    };
    let compare = Compare::revision(Key::Stream(id), found.revision);
    let touch = Transaction::new(vec![compare], vec![Write::PutStream(found)]);
    let touched = shared.metadata.commit(touch);
    touched.map(|_| true).map_err(|e| metadata_error(&e))
}
