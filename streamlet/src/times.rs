//! Finding single records by time. The only place beside compaction that looks into batches: what is
//! asked for is one record, and one batch is decoded for it.

use kera_log_segments::group::Group;
use kera_protocol::batch::{BatchHeader, Records};
use kera_protocol::ids::{Epoch, LaneId, Ordinal};

use crate::read::{History, LaneReadError, LaneReadSpec, Located};
use crate::streamlet::Streamlet;

/// What searches may still decode, in bytes. A batch for which nothing is left is answered by its header:
/// its first record counts, under the batch's highest time.
#[derive(Debug)]
pub struct SearchWork(usize);

/// A batch of any size that is usual, or many small ones.
const SEARCH_BYTES: usize = 64 << 20;

impl Default for SearchWork {
    fn default() -> Self {
        Self(SEARCH_BYTES)
    }
}

impl SearchWork {
    /// Bytes that were decoded.
    pub fn done(&self) -> usize {
        SEARCH_BYTES - self.0
    }
}

/// A record and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAt {
    /// Its number in its lane.
    pub ordinal: Ordinal,
    /// Its timestamp, milliseconds since 1970.
    pub timestamp: i64,
    /// The epoch it was written under.
    pub epoch: Epoch,
}

impl Streamlet {
    /// The first durable record at or after `timestamp`, milliseconds since 1970; `None` if there is
    /// none. Of a batch that does not decode, or for which `work` leaves nothing, its first record counts,
    /// under the batch's highest time.
    ///
    /// Waits for the disk. Costs the decoding of one batch, unless headers claim later records than
    /// there are; never more than `work`.
    ///
    /// # Errors
    /// [`LaneReadError`].
    pub fn record_at_time(
        &self,
        lane: LaneId,
        timestamp: i64,
        work: &mut SearchWork,
    ) -> Result<Option<RecordAt>, LaneReadError> {
        let mut from = 0;
        loop {
            let place = self.find_time_from(lane, timestamp, from)?;
            let Some((batch, header)) = self.batch_at(lane, place)? else {
                return Ok(None);
            };
            let first = place.ordinal.max(header.base_ordinal);
            let found = first_record(&batch, &header, first, work, |found| {
                found.timestamp >= timestamp
            });
            if found.is_some() {
                return Ok(found);
            }
            from = header.next_ordinal();
        }
    }

    /// The durable record with the highest timestamp, the first of them if several have it; `None` in
    /// an empty lane. Of a batch that does not decode, its first record counts, under the batch's
    /// highest time.
    ///
    /// Waits for the disk. Costs the decoding of one batch, and where a group is partly trimmed or
    /// its end not durable yet, a walk over its headers.
    ///
    /// # Errors
    /// [`LaneReadError`].
    pub fn latest_record(
        &self,
        lane: LaneId,
        work: &mut SearchWork,
    ) -> Result<Option<RecordAt>, LaneReadError> {
        let History {
            mut groups,
            head,
            log_start,
        } = self.history(lane)?;
        groups.retain(|g| {
            g.end().ordinal > log_start
                && g.spec().first_ordinal < head
                && g.end().ordinal > g.spec().first_ordinal
        });
        // Stable: among equals the oldest group comes first.
        groups.sort_by_key(|g| std::cmp::Reverse(g.max_timestamp()));
        let mut best: Option<RecordAt> = None;
        for group in groups {
            let highest = group.max_timestamp();
            // What it may hold is no later; nor does an equal record count behind the one found.
            let beaten = best.is_some_and(|b| {
                b.timestamp > highest
                    || (b.timestamp == highest && b.ordinal < group.spec().first_ordinal)
            });
            if beaten {
                continue;
            }
            let found = self.latest_of(lane, &group, (log_start, head), work)?;
            best = later(best, found);
        }
        Ok(best)
    }

    fn latest_of(
        &self,
        lane: LaneId,
        group: &Group,
        (log_start, head): (Ordinal, Ordinal),
        work: &mut SearchWork,
    ) -> Result<Option<RecordAt>, LaneReadError> {
        let highest = group.max_timestamp();
        let readable = |ordinal| ordinal < head && ordinal >= log_start;
        let place = group.locate_time(highest, log_start, false)?;
        let at = place.ordinal.max(log_start);
        if place.ordinal < group.end().ordinal && readable(at) {
            let found = self.latest_in(lane, at, work)?;
            if found.is_some_and(|f| f.timestamp == highest) {
                return Ok(found);
            }
        }
        let mut batches = Vec::new();
        group.for_each_header(|h| {
            if h.next_ordinal() > log_start && h.base_ordinal < head {
                batches.push((h.max_timestamp, h.base_ordinal.max(log_start)));
            }
        })?;
        batches.sort_by_key(|(timestamp, ordinal)| (std::cmp::Reverse(*timestamp), *ordinal));
        let mut best: Option<RecordAt> = None;
        for (timestamp, ordinal) in batches {
            let beaten = best.is_some_and(|b| {
                b.timestamp > timestamp || (b.timestamp == timestamp && b.ordinal < ordinal)
            });
            if !beaten {
                best = later(best, self.latest_in(lane, ordinal, work)?);
            }
        }
        Ok(best)
    }

    /// The latest record of the batch that holds `ordinal`, from there on.
    fn latest_in(
        &self,
        lane: LaneId,
        ordinal: Ordinal,
        work: &mut SearchWork,
    ) -> Result<Option<RecordAt>, LaneReadError> {
        let place = Located { ordinal, at: None };
        let Some((batch, header)) = self.batch_at(lane, place)? else {
            return Ok(None);
        };
        let first = ordinal.max(header.base_ordinal);
        let mut latest: Option<RecordAt> = None;
        let undecoded = first_record(&batch, &header, first, work, |record| {
            latest = later(latest, Some(record));
            false
        });
        Ok(undecoded.or(latest))
    }

    /// The durable batch that holds the place's ordinal, or the next one behind a gap.
    fn batch_at(
        &self,
        lane: LaneId,
        mut from: Located,
    ) -> Result<Option<(Vec<u8>, BatchHeader)>, LaneReadError> {
        loop {
            let read = self.read(LaneReadSpec {
                lane,
                from,
                end_ordinal: u64::MAX,
                max_bytes: 1,
                cached_only: false,
            });
            let found = match read {
                Ok(found) => found,
                // Trimmed meanwhile.
                Err(LaneReadError::OutOfRange {
                    ordinal, log_start, ..
                }) if ordinal < log_start => {
                    from = Located {
                        ordinal: log_start,
                        at: None,
                    };
                    continue;
                }
                Err(error) => return Err(error),
            };
            if found.batches == 0 {
                if found.next.ordinal >= found.head || found.next.ordinal <= from.ordinal {
                    return Ok(None);
                }
                from = found.next;
                continue;
            }
            let batch = found.bufs.concat();
            return Ok(BatchHeader::peek(&batch).ok().map(|header| (batch, header)));
        }
    }
}

/// The later of two; of equals the one with the lower ordinal.
fn later(a: Option<RecordAt>, b: Option<RecordAt>) -> Option<RecordAt> {
    match (a, b) {
        (Some(a), Some(b)) if (b.timestamp, a.ordinal) > (a.timestamp, b.ordinal) => Some(b),
        (a, b) => a.or(b),
    }
}

/// The first record at or above the ordinal `from` that is `wanted`; if the batch does not decode, its first
/// record from there, under the batch's highest time.
fn first_record(
    batch: &[u8],
    header: &BatchHeader,
    from: Ordinal,
    work: &mut SearchWork,
    mut wanted: impl FnMut(RecordAt) -> bool,
) -> Option<RecordAt> {
    let record = |ordinal, timestamp| RecordAt {
        ordinal,
        timestamp,
        epoch: header.epoch,
    };
    let undecoded = Some(record(from, header.max_timestamp));
    if work.0 == 0 {
        return undecoded;
    }
    let mut scratch = Vec::new();
    let outcome = 'found: {
        let Ok(records) = Records::open(batch, work.0, &mut scratch) else {
            // It may have been decoded as far as that.
            work.0 = 0;
            return undecoded;
        };
        for found in records {
            let Ok(found) = found else {
                break 'found undecoded;
            };
            let ordinal = header.base_ordinal + u64::from(found.ordinal_delta);
            let found = record(ordinal, found.timestamp);
            if ordinal >= from && wanted(found) {
                break 'found Some(found);
            }
        }
        None
    };
    work.0 = work.0.saturating_sub(batch.len() + scratch.len());
    outcome
}
