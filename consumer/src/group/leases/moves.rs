//! Leases that are not read for a while, and leases that go on elsewhere.

use kera_protocol::ids::{LaneKey, Ordinal};
use kera_protocol::v1::Cursor;

use super::{Held, LeaseTable};
use crate::fetch::SourceSpec;
use crate::group::LeaseKey;

/// A streamlet and its lane.
pub(crate) type Place = (u32, u32);

fn place(lane: LaneKey) -> Place {
    (lane.streamlet.0, lane.lane.0)
}

/// Why a lane does not go on elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotMoved {
    /// No lease of it is held.
    NotHeld,
    /// Everything below this ordinal is committed, and so delivered to nobody any more.
    Committed(LaneKey, Ordinal),
}

impl Held {
    /// True if records of it are still delivered.
    fn is_delivered(&self) -> bool {
        !(self.returning || self.given_up || self.releasing)
    }

    /// What was delivered from `to` on is delivered again.
    fn go_back(&mut self, to: Cursor) {
        self.delivered = to.ordinal;
        self.handed = self.handed.min(to.ordinal);
        if self.processed.ordinal > to.ordinal {
            self.processed = to;
        }
        if self.passed_to.ordinal > to.ordinal {
            self.passed_to = to;
        }
        self.finished_at = None;
        self.skipped = None;
        self.passed = false;
    }
}

impl LeaseTable {
    /// Notes how a lease is read. False if its lane is paused: it is not read now.
    pub(crate) fn is_read(&mut self, lease: LeaseKey, spec: &SourceSpec) -> bool {
        if let Some(held) = self.held.get_mut(&lease) {
            held.spec = Some(spec.clone());
        }
        !self.paused.contains(&place(spec.lane))
    }

    /// No lease of the lane is read from now on. Their sources, which must be removed.
    pub(crate) fn pause(&mut self, lane: Place) -> Vec<u64> {
        self.paused.insert(lane);
        self.take_sources(lane)
    }

    /// Leases of the lane are read again: those that are not, and how.
    pub(crate) fn resume(&mut self, lane: Place) -> Vec<(LeaseKey, SourceSpec)> {
        self.paused.remove(&lane);
        self.unread(lane)
    }

    /// The lanes that are paused.
    pub(crate) fn paused(&self) -> Vec<Place> {
        self.paused.iter().copied().collect()
    }

    /// True if the lease is one of the lane.
    pub(crate) fn is_of(&self, lease: LeaseKey, lane: Place) -> bool {
        let held = self.held.get(&lease);
        held.is_some_and(|held| place(held.info.lane) == lane)
    }

    /// Has the lane go on at `to`: what lies between there and where it stands is delivered again, or counts as processed once
    /// all before it is. Up to where it was delivered before, and sources, which must be removed; [`unread`](Self::unread) tells what is to be read instead.
    ///
    /// # Errors
    /// If no lease of it is held, or what is to be delivered again is committed; then nothing changes.
    pub(crate) fn seek(
        &mut self,
        lane: Place,
        to: Cursor,
    ) -> Result<(Ordinal, Vec<u64>), NotMoved> {
        let held = self.held.iter_mut();
        let held = held.filter(|(_, held)| place(held.info.lane) == lane && held.is_delivered());
        let (mut stood, mut skipped) = (None, Vec::new());
        for (lease, held) in held {
            if to.ordinal < held.committed {
                return Err(NotMoved::Committed(held.info.lane, held.committed));
            }
            stood = stood.max(Some(held.delivered));
            match to.ordinal < held.delivered {
                true => held.go_back(to),
                false => {
                    let end = held.info.end.unwrap_or(Ordinal::MAX);
                    skipped.push((*lease, held.delivered, to.ordinal.min(end)));
                }
            }
        }
        let stood = stood.ok_or(NotMoved::NotHeld)?;
        for (lease, from, next) in skipped {
            self.skip(lease, from, next);
        }
        Ok((stood, self.take_sources(lane)))
    }

    fn take_sources(&mut self, lane: Place) -> Vec<u64> {
        let held = self.held.values_mut();
        let held = held.filter(|held| place(held.info.lane) == lane);
        held.filter_map(|held| held.source.take()).collect()
    }

    /// Leases of the lane that nothing reads, though it is not paused, and how they are to be read.
    pub(crate) fn unread(&self, lane: Place) -> Vec<(LeaseKey, SourceSpec)> {
        let is_unread = |held: &&Held| {
            place(held.info.lane) == lane && held.source.is_none() && held.is_delivered()
        };
        if self.paused.contains(&lane) {
            return Vec::new();
        }
        let held = self.held.iter().filter(|(_, held)| is_unread(held));
        let specs = held.filter_map(|(lease, held)| {
            let spec = held.spec.clone()?;
            let from = match spec.from.ordinal == held.delivered {
                true => spec.from,
                // Where it lies in the lane's files the broker finds out.
                false => Cursor {
                    ordinal: held.delivered,
                    ..Cursor::default()
                },
            };
            Some((*lease, SourceSpec { from, ..spec }))
        });
        specs.collect()
    }
}
