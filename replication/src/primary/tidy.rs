//! Giving back what no record names any more, and flushing what was closed and is not flushed yet.
//!
//! A copy that was lost, or that a restarted backup found open, takes its memory until somebody says
//! that it is over. Only the owner can, and only from the records: the list of copies comes first and
//! the records after it, so that whatever is listed and not recorded never will be. A copy that is
//! being built is left alone. It is marked from before it can be listed until its record is there, so
//! the marks are looked at between the two: who has lost its mark by then is in the records. A copy that
//! was built since is not the listed one: a request to free names the copy's version, and comes to
//! nothing when that has changed on its way.
//!
//! So it is with the files that a broker wrote as an earlier owner. Whether a record names a replica is told
//! by stream, streamlet, group and broker, never by the store that the record says received it first: a
//! replica in a store becomes a file when its broker takes the streamlet over, and its record stays.

use std::collections::BTreeSet;

use kera_protocol::ids::Epoch;

use super::Primary;
use crate::ids::{BrokerId, CopyId, StreamletKey};
use crate::own::UNREADABLE;
use crate::records::{StreamletRecords, read};
use crate::transport::{CopyInfo, CopyState, Refusal, Reply, Request};

/// What a round of tidying did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tidied {
    /// Copies freed.
    pub(crate) freed: u64,
    /// Closed copies flushed, and which.
    pub(crate) flushed: u64,
    pub(crate) on_disk: Vec<(BrokerId, CopyId)>,
    /// What could not be done now.
    pub(crate) failed: u64,
    /// Copies that are recorded for a closed group and do not hold all of it any more, and their brokers.
    pub(crate) short: Vec<(BrokerId, CopyId)>,
}

/// What a broker listed of a streamlet.
pub(crate) type List = (BrokerId, Vec<CopyInfo>);

enum Named {
    /// Its record is open and names this holder: it stays as it is.
    Open,
    /// Its record is closed at this length and names this holder.
    Closed(u64),
    /// No record names it here.
    No,
}

fn named(found: &StreamletRecords, copy: &CopyId, backup: BrokerId) -> Named {
    let record = found.group(copy.group).filter(|record| {
        let of = CopyId::of(record);
        let is_meant = match copy.epoch {
            // Damage is no proof: the file's name alone says which group it was made for.
            UNREADABLE => of.generation == copy.generation,
            _ => of == *copy,
        };
        is_meant && record.copies.iter().any(|h| h.broker == backup)
    });
    match record {
        None => Named::No,
        Some(record) if record.is_closed() => Named::Closed(record.length),
        Some(_) => Named::Open,
    }
}

/// What is to be done about a listed copy.
enum Work {
    Nothing,
    /// It is of a closed group of this length, and not on disk.
    Flush(u64),
    Free,
}

fn work_on(
    held: &CopyInfo,
    found: &StreamletRecords,
    backup: BrokerId,
    building: &BTreeSet<CopyId>,
) -> Work {
    match named(found, &held.copy, backup) {
        Named::Open => Work::Nothing,
        Named::Closed(_) if held.state == CopyState::Flushed => Work::Nothing,
        Named::Closed(length) => Work::Flush(length),
        Named::No if building.contains(&held.copy) => Work::Nothing,
        Named::No => Work::Free,
    }
}

/// Whether there is something to tidy among what was listed, as far as `found` tells, which may be older than the
/// lists: nothing is freed for what it says, but the records are read again.
pub(crate) fn has_work(
    primary: &Primary,
    found: &StreamletRecords,
    epoch: Epoch,
    lists: &[List],
) -> bool {
    lists.iter().any(|(backup, copies)| {
        let building = primary.building_at(*backup);
        let mut mine = copies.iter().filter(|held| held.copy.epoch <= epoch);
        mine.any(|held| !matches!(work_on(held, found, *backup, &building), Work::Nothing))
    })
}

/// Tidies what `backup` holds of a streamlet, of which this broker is the owner under `epoch`.
pub(crate) async fn streamlet_at(
    primary: &Primary,
    streamlet: StreamletKey,
    epoch: Epoch,
    backup: BrokerId,
) -> Tidied {
    let list = Request::List {
        streamlet: Some(streamlet),
    };
    match primary.caller().ask(backup, list).await {
        Ok(Reply::Copies(copies)) => listed(primary, (streamlet, epoch), &[(backup, copies)]).await,
        _ => Tidied {
            failed: 1,
            ..Tidied::default()
        },
    }
}

/// The same, of copies that brokers listed just now: the records are read once for all of them.
pub(crate) async fn listed(
    primary: &Primary,
    (streamlet, epoch): (StreamletKey, Epoch),
    lists: &[List],
) -> Tidied {
    let mut out = Tidied::default();
    if lists.iter().all(|(_, copies)| copies.is_empty()) {
        return out;
    }
    let marks = || -> Vec<_> {
        let brokers = lists.iter().map(|(backup, _)| *backup);
        brokers.map(|backup| primary.building_at(backup)).collect()
    };
    // Before the records: a mark that goes while they are read says nothing about what was read.
    let mut building = marks();
    let Ok(found) = read(&primary.records, &*primary.runtime, streamlet).await else {
        out.failed += 1;
        return out;
    };
    if primary.faults.marks_read_late() {
        building = marks();
    }
    if found.streamlet.epoch != epoch {
        return out;
    }
    for ((backup, copies), building) in lists.iter().zip(&building) {
        for held in copies.iter().filter(|held| held.copy.epoch <= epoch) {
            let work = work_on(held, &found, *backup, building);
            do_work(primary, (*backup, held), work, epoch, &mut out).await;
        }
    }
    out
}

async fn do_work(
    primary: &Primary,
    (backup, held): (BrokerId, &CopyInfo),
    work: Work,
    epoch: Epoch,
    out: &mut Tidied,
) {
    let (caller, copy) = (primary.caller(), held.copy);
    match work {
        Work::Nothing => {}
        Work::Flush(length) => {
            let flush = Request::flush_closed(copy, length);
            match caller.ask(backup, flush).await {
                Ok(_) => {
                    out.flushed += 1;
                    out.on_disk.push((backup, copy));
                }
                Err(error) => {
                    if matches!(error.refusal(), Some(Refusal::Short { .. })) {
                        out.short.push((backup, copy));
                    }
                    tracing::warn!(group = %copy, %error, "a closed replica is not flushed");
                    out.failed += 1;
                }
            }
        }
        Work::Free => {
            tracing::debug!(group = %copy, %backup, "a replica that no record names is freed");
            let free = Request::free(copy, epoch, Some(held.version));
            match caller.ask(backup, free).await {
                Ok(_) => out.freed += 1,
                Err(error) => {
                    tracing::info!(group = %copy, %error, "a replica that no record names is not freed");
                    out.failed += 1;
                }
            }
        }
    }
}
