//! What streams with replicas at other brokers lack: replicas, streamlets that are served, and lanes that go on
//! although something waits. The log says where such lanes stand.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kera_controller::Picture;
use kera_metadata::{GroupKey, GroupRecord, MetadataError};
use kera_protocol::v1;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::primary::{LaneSpec, Standstill, StillLane};

use crate::cluster::Clustered;
use crate::cluster::replica::replicated::Replicated;
use crate::data::catalog::Stream;
use crate::shared::Shared;
use crate::unreadable;

/// Replicas that groups of a stream are to have now; `None`: it is kept by its owners alone.
fn wanted(shared: &Shared, stream: &Stream) -> Option<usize> {
    let record = stream.record.load();
    // The internal stream may be older than the brokers for its copies.
    let possible = match &shared.clustered {
        Some(clustered) if record.internal => clustered.peers.most_copies(),
        _ => usize::MAX,
    };
    let config = &record.config;
    let wanted = possible.min(config.replicas as usize);
    config.is_replicated().then_some(wanted)
}

/// Groups of a stream that have fewer copies than it is to have: fewer are recorded, or brokers that are
/// recorded to have one did not have its bytes when they were last asked. Reads the records of all its
/// groups: not for a thread that must not wait.
///
/// # Errors
/// The metadata store's.
pub(crate) fn under_replicated(shared: &Shared, stream: &Stream) -> Result<u64, MetadataError> {
    let Some(wanted) = wanted(shared, stream) else {
        return Ok(0);
    };
    let clustered = shared.clustered.as_ref();
    let missing =
        clustered.map_or_else(Default::default, |clustered| clustered.replicated.missing());
    let there = |group: &GroupRecord| {
        let gone = missing.get(&CopyId::of(group));
        let mut copies = group.copies.iter();
        let is_gone = |broker: u32| gone.is_some_and(|gone| gone.contains(&BrokerId(broker)));
        copies
            .by_ref()
            .filter(|copy| !is_gone(copy.broker.0))
            .count()
    };
    let mut short = 0;
    // Each owner counts its own.
    for streamlet in stream.streamlets.iter().filter(|s| !s.is_moved()) {
        let image = shared
            .metadata
            .load_streamlet(streamlet.stream(), streamlet.id())?;
        let counts = |group: &GroupRecord| !group.is_closed() || group.holds_records();
        let lacks = |group: &&GroupRecord| counts(group) && there(group) < wanted;
        short += image.groups.iter().filter(lacks).count() as u64;
    }
    Ok(short)
}

/// As [`under_replicated`], of what this broker has followed of the records: nothing is read.
fn short_in(picture: &Picture, stream: &Stream, wanted: usize, missing: &Missing) -> u64 {
    let owned = stream.streamlets.iter().filter(|s| !s.is_moved());
    let mut short = 0;
    for streamlet in owned {
        let key = streamlet.key();
        let view = picture.streamlet(key);
        for (id, group) in view.iter().flat_map(|view| &view.groups) {
            let gone = missing.get(&(key.group(*id), group.generation));
            let is_there =
                |broker: &&u32| gone.is_none_or(|gone| !gone.contains(&BrokerId(**broker)));
            let there = group.copies.iter().filter(is_there).count();
            short += u64::from(!group.empty && there < wanted);
        }
    }
    short
}

/// Brokers that lack what is recorded there, by group and generation.
type Missing = HashMap<(GroupKey, u32), Vec<BrokerId>>;

/// As [`under_replicated`], without reading the store: `None` until [`count`] has counted the stream.
pub(crate) fn as_counted(shared: &Shared, stream: &Stream) -> Option<u64> {
    let replicated = &shared.clustered.as_ref()?.replicated;
    replicated.counted().lock().get(&stream.id()).copied()
}

/// Counts at once and then at an interval.
pub(crate) async fn count(shared: Arc<Shared>, clustered: Arc<Clustered>, interval: Duration) {
    loop {
        let (counting, of) = (shared.clone(), clustered.clone());
        let counted = tokio::task::spawn_blocking(move || count_all(&counting, &of)).await;
        if let Err(error) = counted {
            tracing::error!(%error, "counting replicas failed");
        }
        tokio::time::sleep(interval).await;
    }
}

pub(crate) fn count_all(shared: &Shared, clustered: &Clustered) {
    let replicated = &clustered.replicated;
    let streams = shared.data.catalog.all();
    let there: HashSet<_> = streams.iter().map(|stream| stream.id()).collect();
    replicated
        .counted()
        .lock()
        .retain(|id, _| there.contains(id));
    let missing = replicated.missing().into_iter();
    let missing =
        missing.map(|(copy, at)| ((copy.streamlet.group(copy.group), copy.generation), at));
    let missing: Missing = missing.collect();
    for stream in streams.iter().filter(|_| !*shared.stopping.borrow()) {
        let short = match wanted(shared, stream) {
            None => Some(0),
            Some(wanted) => clustered
                .cluster_view
                .read(|picture| short_in(picture, stream, wanted, &missing)),
        };
        if let Some(short) = short {
            replicated.counted().lock().insert(stream.id(), short);
        }
    }
}

/// The streamlets of a stream that are not recovered from their copies.
pub(crate) fn unrecovered(shared: &Shared, stream: &Stream) -> Vec<v1::UnrecoveredStreamlet> {
    let waiting = stream.streamlets.iter().filter(|s| !s.is_recovered());
    let has_copies = stream.record.load().config.is_replicated();
    let clustered = shared.clustered.as_ref().filter(|_| has_copies);
    let described = waiting.map(|streamlet| match clustered {
        Some(clustered) => clustered.replicated.waiting().describe(streamlet.key()),
        None => not_served(streamlet.id().0, match streamlet.unreadable() {
            Some(cause) => unreadable::told(&cause),
            None => "its files are in another data directory of its broker, and there are no other replicas; start the broker with that --data-dir".to_owned(),
        }),
    });
    described.collect()
}

/// Streamlets of a stream that this broker serves but for closed groups that are whole on no replica that answers.
pub(crate) fn lacking(shared: &Shared, stream: &Stream) -> Vec<v1::UnrecoveredStreamlet> {
    let Some(clustered) = &shared.clustered else {
        return Vec::new();
    };
    let waiting = clustered.replicated.waiting();
    let served = stream.streamlets.iter().filter(|s| s.is_recovered());
    served.filter_map(|s| waiting.lacking(&s)).collect()
}

/// A streamlet that nobody serves, for a reason that does not lie in its copies.
pub(crate) fn not_served(streamlet: u32, reason: impl Into<String>) -> v1::UnrecoveredStreamlet {
    v1::UnrecoveredStreamlet {
        streamlet,
        reason: reason.into(),
        unclean: Vec::new(),
    }
}

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(1);
/// A backup that stops costs its groups less than this.
const PATIENCE: Duration = Duration::from_secs(5);
/// A lane that still stands there is told of again after this.
const AGAIN: Duration = Duration::from_secs(30);
/// Lanes told of at one look: what holds up one often holds up very many.
const TOLD_AT_ONCE: usize = 8;

/// Looks at all lanes now and then.
pub(crate) async fn watch(replicated: Arc<Replicated>) {
    loop {
        tokio::time::sleep(LOOK).await;
        tell(&standing(&replicated, PATIENCE, AGAIN).await);
    }
}

/// A lane that has acknowledged nothing for less than this is not reported.
const WORTH_TELLING: Duration = Duration::from_secs(2);

/// The lanes of this broker that stand still, as of the last look at them.
pub(crate) fn standing_still(replicated: &Replicated) -> Vec<(LaneSpec, StillLane)> {
    let mut found = Vec::new();
    for owned in replicated.owned(None) {
        let lanes = owned.lanes.iter();
        let still = lanes.filter_map(|lane| Some((*lane.spec(), lane.stands_still()?)));
        found.extend(still.filter(|(_, still)| still.lasted >= WORTH_TELLING));
    }
    found
}

/// The lanes that have stood still for `patience`, and were not found within `again`.
pub(crate) async fn standing(
    replicated: &Replicated,
    patience: Duration,
    again: Duration,
) -> Vec<Standstill> {
    let mut found = Vec::new();
    for owned in replicated.owned(None) {
        for lane in &owned.lanes {
            found.extend(lane.standstill(patience, again).await);
        }
    }
    found
}

fn tell(found: &[Standstill]) {
    for still in found.iter().take(TOLD_AT_ONCE) {
        tracing::warn!(group = %still.group, lasted = ?still.lasted, stands = %still, "a lane stands still; appends to it wait");
    }
    let more = found.len().saturating_sub(TOLD_AT_ONCE);
    if more > 0 {
        tracing::warn!(lanes = more, "more lanes stand still");
    }
}
