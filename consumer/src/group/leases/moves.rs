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
    /// A commit beyond it was sent, and it is not known yet whether it has taken effect.
    UnderWay,
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
    /// If no lease of it is held, or what is to be delivered again is committed or may be; then nothing changes.
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
            if to.ordinal < held.perhaps.max(held.under_way.unwrap_or(0)) {
                return Err(NotMoved::UnderWay);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::leases::LeaseInfo;
    use kera_protocol::ids::{LaneId, StreamId, StreamletId};
    use kera_protocol::v1::LeaseCommit;

    const KEY: LeaseKey = LeaseKey { life: 0, lease: 1 };

    fn at(ordinal: Ordinal) -> Cursor {
        Cursor {
            ordinal,
            ..Cursor::default()
        }
    }

    fn table() -> LeaseTable {
        let mut table = LeaseTable::default();
        let lane = LaneKey {
            stream: StreamId::random(),
            streamlet: StreamletId(0),
            lane: LaneId(0),
        };
        let info = LeaseInfo {
            lease: 1,
            lane,
            start: 0,
            end: None,
            slices: None,
        };
        table.insert(info, at(0), 0);
        table
    }

    #[test]
    fn a_lane_goes_back_once_it_is_known_what_became_of_a_commit_beyond() {
        let seek = |table: &mut LeaseTable, to| table.seek((0, 0), at(to)).map(|(stood, _)| stood);
        let mut table = table();
        assert!(table.deliver(KEY, 30));
        table.processed(KEY, at(20));
        let due = table.due(true, 9);
        assert_eq!(due[0].next, Some(at(20)));
        assert_eq!(seek(&mut table, 10), Err(NotMoved::UnderWay));
        assert_eq!(seek(&mut table, 20), Ok(30), "it is not taken back");
        // Its answer is lost: it may have taken effect, and says so until another one is answered.
        table.commit_failed([KEY]);
        assert_eq!(seek(&mut table, 10), Err(NotMoved::UnderWay));
        assert_eq!(table.due(true, 9), due, "it is sent again");
        table.commit_refused([KEY]);
        assert_eq!(
            seek(&mut table, 10),
            Err(NotMoved::UnderWay),
            "the first one"
        );
        assert_eq!(table.due(true, 9), due);
        table.commit_done(0, &due);
        assert!(matches!(
            seek(&mut table, 10),
            Err(NotMoved::Committed(_, 20))
        ));
        // One that was refused for certain is taken back.
        assert!(table.deliver(KEY, 40));
        table.processed(KEY, at(40));
        assert_eq!(table.due(true, 9)[0].next, Some(at(40)));
        table.commit_refused([KEY]);
        assert_eq!(seek(&mut table, 25), Ok(40));
        assert_eq!(table.due(true, 9)[0].next, Some(at(25)));
    }

    /// What the coordinator has, whatever the member hears of it.
    #[derive(Default)]
    struct Coordinator {
        committed: Ordinal,
        sent: Option<LeaseCommit>,
    }

    impl Coordinator {
        fn takes(&mut self) {
            let next = self.sent.and_then(|commit| commit.next);
            self.committed = self.committed.max(next.map_or(0, |next| next.ordinal));
        }
    }

    #[test]
    fn what_is_delivered_again_was_never_committed() {
        let (mut back, mut waited) = (0, 0);
        for seed in 1..=2_000_u64 {
            let mut dice = seed;
            let mut roll = |below: u64| {
                dice = dice
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(seed | 1);
                (dice >> 33) % below
            };
            let (mut table, mut coordinator) = (table(), Coordinator::default());
            let mut stands = 0;
            for _ in 0..40 {
                match roll(8) {
                    0 | 1 => {
                        stands += 1 + roll(9);
                        assert!(table.deliver(KEY, stands));
                    }
                    2 => drop(table.processed(KEY, at(stands - roll(stands + 1)))),
                    3 if coordinator.sent.is_none() => {
                        coordinator.sent = table.due(true, 9).first().copied();
                    }
                    // It is taken before it is answered.
                    4 => coordinator.takes(),
                    5 => {
                        let is_done = roll(3) > 0;
                        if is_done {
                            coordinator.takes();
                        }
                        if let Some(sent) = coordinator.sent.take() {
                            match is_done {
                                true => drop(table.commit_done(0, &[sent])),
                                false => table.commit_failed([KEY]),
                            }
                        }
                    }
                    _ => {
                        let to = stands - roll(stands + 1);
                        match table.seek((0, 0), at(to)) {
                            Ok(_) => {
                                back += usize::from(to < stands);
                                stands = to.min(stands);
                                // The member dies: another one begins where the group stands.
                                let committed = coordinator.committed;
                                assert!(committed <= to, "seed {seed}: {to} of {committed}");
                                // Nor does what is under way move it beyond later.
                                let sent = coordinator.sent.and_then(|sent| sent.next);
                                let sent = sent.map_or(0, |next| next.ordinal);
                                assert!(sent <= to, "seed {seed}: {to} of {sent}");
                            }
                            Err(NotMoved::UnderWay) => waited += 1,
                            Err(NotMoved::Committed(_, committed)) => {
                                assert!(to < committed && committed <= coordinator.committed);
                            }
                            Err(NotMoved::NotHeld) => panic!("it is held"),
                        }
                    }
                }
            }
        }
        assert!(back > 1_000 && waited > 1_000, "{back}, {waited}");
    }
}
