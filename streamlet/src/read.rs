//! Reading a lane: from a cursor to whole batches below the durable head, across groups.

use std::io::ErrorKind;

use bytes::Bytes;
use kera_log_segments::group::Group;
use kera_log_segments::read::{ReadError, ReadSpec};
use kera_log_segments::replicas::Mending;
use kera_log_segments::sync::Arc;
use kera_protocol::ids::{GroupId, LaneId, Ordinal};

use crate::mending::{Met, is_damage, tell};
use crate::standing::Standing;
use crate::streamlet::{GroupView, Inner, Lane, Streamlet};

/// Groups named in an answer that reached a group's end.
const DISCOVERED_GROUPS: usize = 8;

/// Where in the files an ordinal is believed to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// The ordinal; authoritative.
    pub ordinal: Ordinal,
    /// Group, file generation and address; a hint.
    pub at: Option<(GroupId, u32, u64)>,
}

/// What to read.
#[derive(Clone, Copy, Debug)]
pub struct LaneReadSpec {
    /// The lane.
    pub lane: LaneId,
    /// From the batch that holds this ordinal.
    pub from: Located,
    /// No batch that begins at or above this; `u64::MAX` for none.
    pub end_ordinal: Ordinal,
    /// Soft limit: at least one batch is returned if one is readable.
    pub max_bytes: usize,
    /// Do not wait for the disk.
    pub cached_only: bool,
}

/// What was read.
#[derive(Debug)]
pub struct Found {
    /// The batches.
    pub bufs: Vec<Bytes>,
    /// Bytes in all.
    pub bytes: usize,
    /// Batches in all.
    pub batches: usize,
    /// Where to go on.
    pub next: Located,
    /// The durable head when it was read.
    pub head: Ordinal,
    /// First readable ordinal.
    pub log_start: Ordinal,
    /// If the end of a group was reached: those that follow.
    pub groups: Vec<GroupView>,
    /// Batches of transactions, or markers, are among them.
    pub transactional: bool,
    /// Ordinal of the first batch; of where to go on if there is none.
    pub first_ordinal: Ordinal,
}

/// Why a lane could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LaneReadError {
    /// No such lane.
    #[error("lane {lane} does not exist, the streamlet has {lanes}")]
    UnknownLane {
        /// Asked for.
        lane: u32,
        /// There are.
        lanes: u32,
    },
    /// Below the log start or above the head.
    #[error("ordinal {ordinal} is out of range: the lane holds {log_start} to {head}")]
    OutOfRange {
        /// Asked for.
        ordinal: Ordinal,
        /// First readable.
        log_start: Ordinal,
        /// Durable head.
        head: Ordinal,
    },
    /// The stream is gone.
    #[error("the stream was deleted")]
    Deleted,
    /// Another broker owns the streamlet.
    #[error("another broker owns the streamlet; look its owner up again")]
    NotOwner,
    /// The streamlet has copies at other brokers, and too few of them were reached to recover it; try
    /// again.
    #[error(
        "the streamlet is not recovered yet: `kera stream recover` says what it waits for, such as brokers that hold its replicas"
    )]
    NotRecovered,
    /// Its files cannot be read, and there are no replicas elsewhere; they are read again and again.
    #[error(
        "the streamlet is not served: its files cannot be read ({cause}); they are read again and again"
    )]
    Unreadable {
        /// The file, and what the system said.
        cause: String,
    },
    /// The bytes here could not be read, and it is not known yet whether another broker has them whole; try again.
    #[error(
        "{error}; a broker that may have it whole does not answer: bring it back, or see `kera stream recover`"
    )]
    Awaited {
        /// What is wrong here.
        error: ReadError,
    },
    /// The bytes could not be read.
    #[error(transparent)]
    Group(#[from] ReadError),
}

impl LaneReadError {
    /// The same where what another broker has may end it.
    pub(crate) fn awaited(self) -> Self {
        match self {
            Self::Group(error) => Self::Awaited { error },
            other => other,
        }
    }
}

/// What a lane holds at a moment.
pub(crate) struct History {
    /// Its groups, oldest first.
    pub(crate) groups: Vec<Arc<Group>>,
    /// Its durable head.
    pub(crate) head: Ordinal,
    /// Its first readable ordinal.
    pub(crate) log_start: Ordinal,
}

struct Target {
    group: Option<Arc<Group>>,
    ordinal: Ordinal,
    head: Ordinal,
    log_start: Ordinal,
    limit: u64,
    last: bool,
}

impl Streamlet {
    /// Reads whole batches of one lane. Nothing at or above the durable head is returned.
    ///
    /// # Errors
    /// [`LaneReadError`].
    pub fn read(&self, spec: LaneReadSpec) -> Result<Found, LaneReadError> {
        let mut from = spec.from;
        let (mut trimmed, mut mended) = (false, false);
        loop {
            let target = self.target(spec.lane, from)?;
            let nothing = |next: Located, groups| Found {
                bufs: Vec::new(),
                bytes: 0,
                batches: 0,
                transactional: false,
                first_ordinal: next.ordinal,
                next,
                head: target.head,
                log_start: target.log_start,
                groups,
            };
            let Some(group) = target.group else {
                if target.ordinal >= target.head {
                    return Ok(nothing(from, Vec::new()));
                }
                // In a gap that reaches up to the head: nothing will ever be in it.
                return Ok(nothing(
                    Located {
                        ordinal: target.head,
                        at: None,
                    },
                    Vec::new(),
                ));
            };
            if target.ordinal >= spec.end_ordinal {
                return Ok(nothing(
                    Located {
                        ordinal: target.ordinal,
                        at: None,
                    },
                    Vec::new(),
                ));
            }
            let hint = from
                .at
                .filter(|(id, generation, _)| {
                    *id == group.id() && *generation == group.spec().generation
                })
                .map(|(_, _, address)| address);
            let read = group
                .locate(target.ordinal, hint, spec.cached_only)
                .and_then(|place| {
                    group.read(ReadSpec {
                        from: place.address,
                        limit: target.limit,
                        end_ordinal: spec.end_ordinal.min(target.head),
                        max_bytes: spec.max_bytes,
                        cached_only: spec.cached_only,
                    })
                });
            let out = match read {
                Ok(out) => out,
                Err(ReadError::Io { error, .. })
                    if error.kind() == ErrorKind::NotFound && !trimmed =>
                {
                    // A trim has just removed the file; looked up again, the ordinal is out of range.
                    trimmed = true;
                    continue;
                }
                Err(error) if is_damage(&error) && !mended && self.is_mendable(&group) => {
                    if spec.cached_only {
                        // Fetched from another copy on a thread that may wait.
                        return Err(ReadError::WouldBlock.into());
                    }
                    tell(&group, &error);
                    mended = true;
                    let error = LaneReadError::from(error);
                    match self.mend(spec.lane, &group) {
                        Mending::Done => {}
                        Mending::NotYet => return Err(error.awaited()),
                        Mending::Nowhere => return Err(error),
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let end = group.end().ordinal;
            if out.batches == 0 {
                if !target.last && target.ordinal >= end {
                    from = Located {
                        ordinal: target.ordinal,
                        at: None,
                    };
                    continue;
                }
                let next = Located {
                    ordinal: target.ordinal,
                    at: None,
                };
                return Ok(nothing(next, Vec::new()));
            }
            let at = Some((group.id(), group.spec().generation, out.next.address));
            let groups = if out.next.ordinal >= end && !target.last {
                self.groups_after(spec.lane, group.id())
            } else {
                Vec::new()
            };
            return Ok(Found {
                bufs: out.bufs,
                bytes: out.bytes,
                batches: out.batches,
                next: Located {
                    ordinal: out.next.ordinal,
                    at,
                },
                head: target.head,
                log_start: target.log_start,
                groups,
                transactional: out.transactional,
                first_ordinal: out.first_ordinal,
            });
        }
    }

    /// What a reader is told before the streamlet is recovered.
    pub fn not_recovered(&self) -> LaneReadError {
        self.unreadable()
            .map_or(LaneReadError::NotRecovered, |cause| {
                LaneReadError::Unreadable { cause }
            })
    }

    /// The lane, unless it does not exist or the stream is gone.
    pub(crate) fn slot<'a>(
        &self,
        inner: &'a Inner,
        lane: LaneId,
    ) -> Result<&'a Lane, LaneReadError> {
        match self.standing() {
            Standing::Serving | Standing::Leaving => {}
            Standing::Deleted => return Err(LaneReadError::Deleted),
            Standing::Moved => return Err(LaneReadError::NotOwner),
            Standing::Recovering => return Err(self.not_recovered()),
        }
        let lanes = inner.lanes.len() as u32;
        let slot = inner.lanes.get(lane.0 as usize);
        slot.ok_or(LaneReadError::UnknownLane {
            lane: lane.0,
            lanes,
        })
    }

    /// The group that holds the ordinal, or the next one where it falls into a gap.
    fn target(&self, lane: LaneId, from: Located) -> Result<Target, LaneReadError> {
        let inner = self.inner.lock();
        let slot = self.slot(&inner, lane)?;
        let (head, log_start, ordinal) = (slot.head.ordinal(), slot.log_start, from.ordinal);
        if ordinal < log_start || ordinal > head {
            return Err(LaneReadError::OutOfRange {
                ordinal,
                log_start,
                head,
            });
        }
        let nothing = Target {
            group: None,
            ordinal,
            head,
            log_start,
            limit: 0,
            last: true,
        };
        if ordinal == head {
            return Ok(nothing);
        }
        let hinted = from
            .at
            .and_then(|(id, _, _)| slot.groups.get(&id))
            .filter(|g| g.holds(ordinal));
        let group = match hinted {
            Some(group) => Some(group),
            None => slot
                .groups
                .values()
                .rev()
                .find(|g| g.spec().first_ordinal <= ordinal),
        };
        let group = match group {
            Some(group) if ordinal < group.end().ordinal => Some(group),
            Some(group) => slot
                .groups
                .range((
                    std::ops::Bound::Excluded(group.id()),
                    std::ops::Bound::Unbounded,
                ))
                .next()
                .map(|g| g.1),
            None => slot.groups.values().next(),
        };
        let Some(group) = group else {
            return Ok(nothing);
        };
        let last = slot.groups.keys().next_back() == Some(&group.id());
        let limit = slot.head.readable_end(group);
        let ordinal = ordinal.max(group.spec().first_ordinal);
        Ok(Target {
            group: Some(group.clone()),
            ordinal,
            head,
            log_start,
            limit,
            last,
        })
    }

    /// A lane's closed groups from the one that holds an ordinal on, at most `most` of them without one
    /// that takes appends in between. None where the ordinal is in no closed group. Cheap.
    pub fn closed_from(&self, lane: LaneId, from: Located, most: usize) -> Vec<GroupView> {
        let inner = self.inner.lock();
        let Ok(slot) = self.slot(&inner, lane) else {
            return Vec::new();
        };
        let hinted = from.at.and_then(|(id, _, _)| slot.groups.get(&id));
        let mut latest_first = slot.groups.values().rev();
        let group = hinted
            .filter(|group| group.holds(from.ordinal))
            .or_else(|| latest_first.find(|g| g.spec().first_ordinal <= from.ordinal));
        let Some(group) = group.filter(|g| g.is_frozen() && from.ordinal < g.end().ordinal) else {
            return Vec::new();
        };
        let follow = slot.groups.range(group.id()..);
        let closed = follow.map(|(_, group)| GroupView::of(group));
        closed.take(most).take_while(|view| view.closed).collect()
    }

    fn groups_after(&self, lane: LaneId, group: GroupId) -> Vec<GroupView> {
        let inner = self.inner.lock();
        let Some(slot) = inner.lanes.get(lane.0 as usize) else {
            return Vec::new();
        };
        let after = slot
            .groups
            .range((std::ops::Bound::Excluded(group), std::ops::Bound::Unbounded));
        after
            .take(DISCOVERED_GROUPS)
            .map(|(_, g)| GroupView::of(g))
            .collect()
    }

    /// As [`Self::find_time`], of the batches with ordinals at or above `from`; damage is told with the
    /// group that it was met in.
    pub(crate) fn look_for_time(
        &self,
        lane: LaneId,
        timestamp: i64,
        from: Ordinal,
    ) -> Result<Located, Met> {
        let History {
            groups,
            head,
            log_start,
        } = self.history(lane)?;
        let from = from.max(log_start);
        for group in groups {
            let end = group.end().ordinal;
            if group.max_timestamp() < timestamp || end <= from {
                continue;
            }
            let place = group.locate_time(timestamp, from, false);
            let place = place.map_err(|error| Met::in_group(&group, error))?;
            if place.ordinal >= end {
                continue;
            }
            if place.ordinal >= head {
                break;
            }
            let at = Some((group.id(), group.spec().generation, place.address));
            let at = if place.ordinal < from { None } else { at };
            return Ok(Located {
                ordinal: place.ordinal.max(from),
                at,
            });
        }
        Ok(Located {
            ordinal: head,
            at: None,
        })
    }

    /// What a lane holds.
    pub(crate) fn history(&self, lane: LaneId) -> Result<History, LaneReadError> {
        let inner = self.inner.lock();
        let slot = self.slot(&inner, lane)?;
        Ok(History {
            groups: slot.groups.values().cloned().collect(),
            head: slot.head.ordinal(),
            log_start: slot.log_start,
        })
    }

    /// As [`Self::batch_boundary`]; damage is told with the group that it was met in.
    pub(crate) fn look_for_boundary(
        &self,
        lane: LaneId,
        ordinal: Ordinal,
        max_bytes: usize,
        max_ordinals: u64,
    ) -> Result<Option<(Located, Ordinal)>, Met> {
        let mut target = self.target(lane, Located { ordinal, at: None })?;
        // Nobody is given records of open transactions.
        target.head = target.head.min(self.stable(lane).unwrap_or(ordinal));
        let Some(group) = target.group else {
            return Ok(None);
        };
        if target.ordinal >= target.head {
            return Ok(None);
        }
        let start = group.locate(target.ordinal, None, false);
        let start = start.map_err(|error| Met::in_group(&group, error))?;
        let mut end = start;
        // The index tells in O(1) where roughly `max_bytes` further a batch begins.
        let wish = start.address.saturating_add(max_bytes as u64);
        if let Some(jump) = group.boundary_below(wish).filter(|j| {
            j.address > start.address
                && j.ordinal <= target.head
                && j.ordinal - start.ordinal <= max_ordinals
        }) {
            end = jump;
        }
        if end.address == start.address {
            let cut = group.cut(
                start,
                target.limit,
                target.head,
                max_bytes as u64,
                max_ordinals,
            );
            end = cut.map_err(|error| Met::in_group(&group, error))?;
            if end.ordinal <= target.ordinal {
                return Ok(None);
            }
        }
        let at = Some((group.id(), group.spec().generation, start.address));
        Ok(Some((
            Located {
                ordinal: target.ordinal,
                at,
            },
            end.ordinal,
        )))
    }

    /// How many ordinals right below the durable head hold no record: a recovery passed them over.
    pub fn empty_below_head(&self, lane: LaneId) -> u64 {
        let inner = self.inner.lock();
        let Some(slot) = inner.lanes.get(lane.0 as usize) else {
            return 0;
        };
        let head = slot.head.ordinal();
        let stored = slot.groups.values().rev().find_map(|group| {
            let (first, end) = (group.spec().first_ordinal, group.end().ordinal);
            (first < head.min(end)).then_some(end)
        });
        head.saturating_sub(stored.unwrap_or(0).max(slot.log_start))
    }

    /// The ordinal behind the batch of a group that holds `ordinal`, though that may be damaged, if another one is known to
    /// follow it there. Call on a thread that may wait.
    pub fn behind_batch(&self, lane: LaneId, group: GroupId, ordinal: Ordinal) -> Option<Ordinal> {
        self.group(lane, group)?.behind(ordinal)
    }

    /// The first stored ordinal at or above `ordinal`, or the durable head.
    pub fn skip_gap(&self, lane: LaneId, ordinal: Ordinal) -> Ordinal {
        match self.target(lane, Located { ordinal, at: None }) {
            Ok(Target {
                group: Some(_),
                ordinal,
                ..
            }) => ordinal,
            Ok(Target { head, .. }) => head,
            Err(LaneReadError::OutOfRange {
                log_start, head, ..
            }) => {
                if ordinal < log_start {
                    log_start
                } else {
                    head
                }
            }
            Err(_) => ordinal,
        }
    }
}
