//! Records of closed groups whose own file was looked for: what they say once it is there again, or once the operator
//! goes on without what is whole on no replica.

use std::sync::Arc;

use kera_metadata::{
    Compare, Damage, GroupRecord, MAX_COPIES, MetadataStore, Replica, Transaction, Write,
};
use kera_protocol::ids::{Epoch, Ordinal};
use kera_protocol::v1;
use kera_replication::ids::BrokerId;
use kera_streamlet::Streamlet;

use super::fetching::{Fetched, Told, is_recorded};
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
    if damaged.is_some() {
        for hole in &found.holes {
            let (from, to) = (hole.from.ordinal, hole.to.ordinal);
            waiting.lost(record.streamlet_key(), record.lane.0, from, to);
        }
    }
    let now = damaged.as_ref().unwrap_or(record);
    with_own(now, own, found.max_timestamp_ms).or(damaged)
}

/// The record of a group that goes on without what was not found.
fn with_holes(record: &GroupRecord, found: &Fetched) -> Option<GroupRecord> {
    let first = found.holes.first()?;
    let damaged = Damage::new(
        first.from.address,
        format!(
            "{} are whole on no replica, and the operator accepted the loss",
            Told(&found.holes)
        ),
    );
    (!is_recorded(record, first)).then(|| GroupRecord {
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

/// What the operator reads about a closed group that has lost the records from `lost_from` on.
pub(crate) fn unclean(record: &GroupRecord, lost_from: Ordinal) -> v1::UncleanGroup {
    v1::UncleanGroup {
        group: record.group.0,
        lane: record.lane.0,
        first_ordinal: lost_from,
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
