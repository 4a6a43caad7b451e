//! What a lane remembers of its producers, read from the group that it ended with.
//!
//! Without it a batch that is sent again would be stored twice, and what belongs to an open transaction be shown. So
//! what cannot be read now is no reason to go on without it: the lane takes no appends, and it is read again.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::time::{Duration, Instant};

use kera_log_segments::group::Group;
use kera_log_segments::scan::{self, ScanError, ScanSpec};
use kera_log_segments::sync::Arc;
use kera_protocol::ids::{GroupId, LaneId, Ordinal};

use crate::producers::{LaneState, SnapshotError};
use crate::streamlet::{Carry, Failed, Inner, LaneSlot, Streamlet};

/// A failed read is made again after this many times as long as it took: a disk that needs a minute to fail is left
/// alone for longer than one that fails at once. It is at least the second between two rounds of what is due.
const PAUSE: u32 = 10;
/// At most.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

impl Streamlet {
    /// What a lane remembers that ends with `last`, a closed group. With a report, for people, where its file is gone or
    /// damaged: then the producers must begin anew.
    ///
    /// # Errors
    /// The store's, and `InvalidData` for a newer build's state, which is not to be taken for none.
    pub(crate) fn state_after(
        &self,
        last: Option<&Group>,
        now_ms: u64,
    ) -> Result<(LaneState, Option<String>)> {
        let Some(last) = last else {
            return Ok((LaneState::default(), None));
        };
        let read = read_state(last, now_ms);
        // A start reads one of each lane, and need not keep them open.
        last.release_file();
        match read {
            Ok(mut state) => {
                if last.spec().generation > 0 {
                    // Compaction takes only groups below the last stable ordinal: each transaction in them had ended.
                    // It drops markers of transactions that the group's snapshot may still have as open.
                    state.end_all();
                }
                let expiry_ms = self.env.limits.producer_expiry_ms;
                state.expire(now_ms.saturating_sub(expiry_ms));
                Ok((state, None))
            }
            Err(ScanError::Io(error)) if !is_of_file(&error) => Err(error),
            Err(error) => {
                let path = last.spec().path.display();
                let report = format!(
                    "{path}: the lane's memory of its producers cannot be read ({error}); they must begin anew"
                );
                Ok((LaneState::default(), Some(report)))
            }
        }
    }

    /// Whether what a lane remembers could not be read. Nothing of it is open then.
    pub(crate) fn is_unread(&self, lane: LaneId) -> bool {
        let inner = self.inner.lock();
        let slot = inner.lanes.get(lane.0 as usize);
        slot.is_some_and(|lane| matches!(lane.slot, LaneSlot::Failed(Failed::Read(_))))
    }

    /// Reads again what a lane remembers, if that failed before.
    pub(crate) fn remember(&self, lane: LaneId, now_ms: u64) {
        let newest = |inner: &Inner| {
            let slot = inner.lanes.get(lane.0 as usize)?;
            let unread = matches!(slot.slot, LaneSlot::Failed(Failed::Read(_)));
            unread.then(|| slot.groups.values().next_back().cloned())
        };
        let Some(last) = newest(&self.inner.lock()) else {
            return;
        };
        if let Some(last) = &last {
            // Readers may hold a file that somebody has moved away since.
            last.release_file();
        }
        let begun = Instant::now();
        let read = self.state_after(last.as_deref(), now_ms);
        let not_before = Instant::now() + (PAUSE * begun.elapsed()).min(LONGEST_PAUSE);
        // Groups come and go under this lock. Nothing waits for the disk with it.
        let _turn = self.maintenance.lock();
        let mut inner = self.inner.lock();
        match newest(&inner) {
            Some(now) if now.as_ref().map(Arc::as_ptr) == last.as_ref().map(Arc::as_ptr) => {}
            // Compaction has put another group in its place, or the streamlet has moved.
            _ => return,
        }
        let key = self.lane_key(lane);
        let slot = &mut inner.lanes[lane.0 as usize];
        match read {
            Ok((mut state, report)) => {
                let lost = lost_between(slot.groups.values(), &slot.empty);
                let lost = state.note_lost(&lost);
                let told = (lost > 0).then(|| told_lost(key, lost));
                for report in report.into_iter().chain(told) {
                    tracing::warn!(lane = %key, "{report}");
                }
                // Nothing was appended since the start.
                let next_ordinal = slot.head.ordinal();
                let head = slot.head.clone();
                let pins: Vec<_> = state.producer_epochs().collect();
                slot.slot = LaneSlot::Idle(Carry {
                    state,
                    next_ordinal,
                });
                let pins = pins.into_iter().map(|producer| (producer, lane));
                inner.pins.extend(pins);
                drop(inner);
                // Readers of what counts wait for the last stable ordinal.
                head.wake_all();
                tracing::info!(lane = %key, "what the lane remembers of its producers is read: it takes appends");
            }
            Err(error) => {
                let cause = error.to_string();
                let LaneSlot::Failed(Failed::Read(before)) = &mut slot.slot else {
                    return;
                };
                before.not_before = not_before;
                if cause != before.cause {
                    tracing::warn!(lane = %key, group = ?last, error = cause, "what the lane remembers of its producers cannot be read, for another reason now; it is read again and again");
                    before.cause = cause;
                }
            }
        }
    }
}

/// Ordinals between a lane's groups that none of them holds, though the groups behind them tell of batches there. There are such
/// once a group was lost, or the metadata store was put back to an older state. What was given up by an operator is none.
pub(crate) fn lost_between<'a>(
    groups: impl Iterator<Item = &'a Arc<Group>>,
    empty: &BTreeMap<GroupId, Ordinal>,
) -> Vec<Range<Ordinal>> {
    let held = groups.map(|group| {
        (
            group.id(),
            (Some(group.spec().first_ordinal), group.end().ordinal),
        )
    });
    let given_up = empty.iter().map(|(id, next)| (*id, (None, *next)));
    let all: BTreeMap<_, _> = held.chain(given_up).collect();
    let (mut lost, mut at) = (Vec::new(), None);
    for (first, end) in all.into_values() {
        if let (Some(at), Some(first)) = (at, first)
            && at < first
        {
            lost.push(at..first);
        }
        at = Some(end);
    }
    lost
}

/// What is told where batches of producers are among them.
pub(crate) fn told_lost(lane: impl std::fmt::Display, batches: usize) -> String {
    format!(
        "lane {lane}: {batches} batches that producers may send again are lost between its groups; they are not said to be stored"
    )
}

/// Whether an error tells what became of a file, and will be the same next time.
fn is_of_file(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof)
}

/// The state at the end of a closed group, from its footer or by a walk over its headers.
fn read_state(closed: &Group, now_ms: u64) -> std::result::Result<LaneState, ScanError> {
    // What it tells a walk finds as well, so a footer that cannot be read is as good as none. An empty state is of a
    // footer that was written without it.
    let footer = closed.read_footer().ok().flatten();
    if let Some(footer) = footer.filter(|footer| !footer.lane_state.is_empty()) {
        match LaneState::decode(&footer.lane_state) {
            Ok(state) => return Ok(state),
            Err(error @ SnapshotError::NewerVersion { .. }) => return Err(unknown(&error)),
            Err(SnapshotError::Malformed) => {}
        }
    }
    let file = closed.file()?;
    let spec = ScanSpec::closed(closed.spec(), closed.end());
    let (_, snapshot) = scan::read_head(&*file, &spec)?;
    let mut state = decoded(&snapshot)?;
    let scanned = scan::scan(&*file, &spec, |header, _| state.note(header, now_ms))?;
    if scanned.end != closed.end() {
        // A part of what a producer sent would have it refused for ever: sequences have no gaps.
        let (end, stop) = (scanned.end.address, scanned.stop);
        return Err(ScanError::Io(Error::new(
            ErrorKind::UnexpectedEof,
            format!("its batches end at byte {end}: {stop}"),
        )));
    }
    Ok(state)
}

/// A group's lane snapshot, whose checksum was found right: what this build does not know is an error.
pub(crate) fn decoded(snapshot: &[u8]) -> std::result::Result<LaneState, ScanError> {
    LaneState::decode(snapshot).map_err(|error| unknown(&error))
}

fn unknown(error: &SnapshotError) -> ScanError {
    let text = format!("its lane snapshot: {error}");
    ScanError::Io(Error::new(ErrorKind::InvalidData, text))
}
