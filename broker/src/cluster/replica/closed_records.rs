//! Records of closed groups whose own file was looked for: what they say once it is there again, or once the operator
//! goes on without what is whole on no replica.

use std::sync::Arc;

use kera_metadata::{
    Compare, Damage, GroupRecord, LostRecords, MAX_COPIES, MetadataStore, Replica, Transaction,
    Write,
};
use kera_protocol::ids::Epoch;
use kera_protocol::v1;
use kera_replication::ids::BrokerId;
use kera_streamlet::Streamlet;

use super::fetching::{Fetched, Told, is_recorded, ordinals};
use super::waiting::WaitingList;

/// The record of a group whose own file is there again at `own`, if that is not what it says. What it lacks and is not
/// recorded yet was given up: the operator is told.
pub(crate) fn as_found(
    record: &GroupRecord,
    found: &Fetched,
    own: Replica,
    waiting: &WaitingList,
) -> Option<GroupRecord> {
    let damaged = with_holes(record, found);
    let new = found.holes.iter();
    for hole in new.filter(|hole| !is_recorded(record, hole)) {
        let (from, to) = (hole.from.ordinal, hole.to.ordinal);
        waiting.lost(record.streamlet_key(), record.lane.0, from, to);
    }
    let now = damaged.as_ref().unwrap_or(record);
    with_own(now, own, found.max_timestamp_ms).or(damaged)
}

/// The record of a group that goes on without what was not found. What was given up before and was found now stays among
/// what it names.
fn with_holes(record: &GroupRecord, found: &Fetched) -> Option<GroupRecord> {
    let first = found.holes.first()?;
    if found.holes.iter().all(|hole| is_recorded(record, hole)) {
        return None;
    }
    let before = record.damaged.as_ref();
    let address = before.map_or(u64::MAX, |damaged| damaged.address);
    let mut damaged = Damage::new(
        address.min(first.from.address),
        format!(
            "{} are whole on no replica, and the operator accepted the loss",
            Told(&found.holes)
        ),
    );
    let before = before.map_or_else(LostRecords::default, |damaged| damaged.lost.clone());
    damaged.lost = before;
    damaged.lost.extend(found.holes.iter().map(ordinals));
    Some(GroupRecord {
        damaged: Some(damaged),
        ..record.clone()
    })
}

/// The record of a group whose own file is whole, if that is not what it says.
pub(crate) fn with_own(
    record: &GroupRecord,
    own: Replica,
    max_timestamp_ms: i64,
) -> Option<GroupRecord> {
    let mut mended = record.clone();
    mended.max_timestamp_ms = mended.max_timestamp_ms.max(max_timestamp_ms);
    let mut brokers = record.copies.iter().map(|copy| copy.broker);
    if !brokers.any(|broker| broker == own.broker) && record.copies.len() < MAX_COPIES {
        mended.copies.push(own);
    }
    (mended != *record).then_some(mended)
}

/// The record of a closed group that the operator gives up: its lane goes on behind it as before.
pub(crate) fn without_bytes(record: &GroupRecord) -> GroupRecord {
    let told =
        "nothing of it was left on any replica, and the operator accepted the loss".to_owned();
    GroupRecord {
        damaged: Some(Damage::new(0, told)),
        ..record.clone()
    }
}

/// Tells that a group is given up.
pub(crate) fn tell_given_up(record: &GroupRecord, waiting: &WaitingList) {
    let (lane, from, to) = (record.lane.0, record.start_ordinal(), record.next_ordinal);
    tracing::warn!(group = %record.key(), lane, from, to, "a closed group of which no replica is left is given up; its ordinals are never used again");
    waiting.lost(record.streamlet_key(), lane, from, to);
}

/// All records of a group.
pub(crate) fn all_of(record: &GroupRecord) -> LostRecords {
    std::iter::once(record.start_ordinal()..record.end_ordinal).collect()
}

/// What the operator reads about a closed group that has lost these records.
pub(crate) fn unclean(record: &GroupRecord, lost: &LostRecords) -> v1::UncleanGroup {
    let first = lost.stretches().first();
    v1::UncleanGroup {
        group: record.group.0,
        lane: record.lane.0,
        first_ordinal: first.map_or(record.start_ordinal(), |first| first.start),
        brokers: record.copies.iter().map(|copy| copy.broker.0).collect(),
    }
}

/// Stores changed records of a streamlet that this broker has under `epoch`; the revision of the change.
///
/// # Errors
/// Says, for people, why not: one of them has changed, or the streamlet is another broker's.
pub(crate) async fn store(
    metadata: &Arc<dyn MetadataStore>,
    streamlet: &Streamlet,
    epoch: Epoch,
    records: Vec<GroupRecord>,
) -> Result<u64, String> {
    let epoch = Compare::StreamletEpoch {
        stream: streamlet.stream(),
        streamlet: streamlet.id(),
        epoch,
    };
    let compare = std::iter::once(epoch).chain(records.iter().map(Compare::group));
    let write = records.iter().cloned().map(Write::PutGroup);
    let transaction = Transaction::new(compare.collect(), write.collect());
    let committed = metadata.commit_async(transaction).await;
    Ok(committed.map_err(|error| error.to_string())?.revision)
}

/// This broker as a holder of a streamlet's own files.
pub(crate) fn own(me: BrokerId, streamlet: &Streamlet) -> Replica {
    Replica {
        broker: me,
        incarnation: streamlet.incarnation(),
    }
}
