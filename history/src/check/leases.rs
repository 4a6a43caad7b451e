//! Who was allowed to read what.

use super::Checker;
use super::state::{Lease, Probe};
use crate::anomaly::Anomaly;
use crate::event::{LeaseRef, Reader};

impl Checker {
    pub(super) fn granted(
        &mut self,
        at: u64,
        lease_ref: LeaseRef,
        member: u32,
        lane: u32,
        start: u64,
        end: u64,
    ) {
        let stream = self.lanes[lane as usize].lane.stream;
        if let Some(known) = self.leases.get(&lease_ref) {
            let same = (known.member, known.lane, known.start, known.end);
            // A response that is repeated after a reconnect grants nothing new.
            if same != (member, lane, start, end) {
                self.leased_twice(at, lease_ref, lease_ref, lane, start, end);
            }
            return;
        }
        self.report.counts.leases += 1;
        self.group(lease_ref.group, stream).probe = None;
        let index = self.reader(Reader::Group(lease_ref.group), lane);
        let mut lease = Lease {
            reader: index,
            lane,
            member,
            start,
            end,
            next: start,
            granted_at: at,
            committed: start,
            committed_at: at,
            superseded: None,
            stale: None,
            call: None,
        };
        let reader = &mut self.readers[index];
        // If a younger lease has committed, this one's response was slow: no telling what was
        // committed when it was granted.
        if reader.committed_by < lease_ref.lease
            && let Some((from, to)) = reader.committed.first_overlap(start, end)
        {
            lease.stale = Some((from, to));
            self.add(Anomaly::CommitRegressed {
                group: lease_ref.group,
                lane: self.lanes[lane as usize].lane,
                committed: to,
                then: from,
            });
        }
        self.supersede(at, lease_ref, &mut lease);
        let reader = &mut self.readers[index];
        reader.covered.insert(start, end);
        if lease.superseded.is_none() {
            reader.live.push(lease_ref.lease);
        }
        self.leases.insert(lease_ref, lease);
    }

    /// Live leases of ordinals of a new one have expired without their members' knowledge, or the
    /// ordinals are leased twice; a later commit tells, where leases may expire at all.
    fn supersede(&mut self, at: u64, lease_ref: LeaseRef, lease: &mut Lease) {
        let live = std::mem::take(&mut self.readers[lease.reader].live);
        let mut still = Vec::with_capacity(live.len() + 1);
        for id in live {
            let other_ref = LeaseRef {
                group: lease_ref.group,
                lease: id,
            };
            let Some(other) = self.leases.get_mut(&other_ref) else {
                continue;
            };
            let from = other.start.max(lease.start);
            let to = other.end.min(lease.end);
            if from >= to {
                still.push(id);
                continue;
            }
            if id < lease_ref.lease {
                other.superseded = Some((lease_ref.lease, at, from));
            } else {
                lease.superseded = Some((id, other.granted_at, from));
                still.push(id);
            }
            if !self.expect.leases_expire {
                self.leased_twice(at, other_ref, lease_ref, lease.lane, from, to);
            }
        }
        self.readers[lease.reader].live = still;
    }

    fn leased_twice(
        &mut self,
        at: u64,
        one: LeaseRef,
        other: LeaseRef,
        lane: u32,
        from: u64,
        to: u64,
    ) {
        self.add(Anomaly::LeasedTwice {
            lane: self.lanes[lane as usize].lane,
            first: one.min(other),
            second: one.max(other),
            from,
            to: (to != u64::MAX).then_some(to),
            at,
        });
    }

    pub(super) fn ended(&mut self, lease_ref: LeaseRef) -> Result<(), String> {
        let lease = self
            .leases
            .get(&lease_ref)
            .ok_or_else(|| format!("the end of lease {lease_ref}, which was not granted"))?;
        let reader = &mut self.readers[lease.reader];
        reader.live.retain(|&id| id != lease_ref.lease);
        if lease.superseded.is_none() {
            // What it did not commit is for another lease to cover.
            reader.covered.remove(lease.committed, lease.end);
        }
        Ok(())
    }

    pub(super) fn committed(
        &mut self,
        at: u64,
        lease_ref: LeaseRef,
        ordinal: u64,
        asked: u64,
    ) -> Result<(), String> {
        let lease = self
            .leases
            .get_mut(&lease_ref)
            .ok_or_else(|| format!("a commit of lease {lease_ref}, which was not granted"))?;
        let (lane, end) = (lease.lane, lease.end);
        let before = lease.committed;
        let regressed = ordinal < before && asked > lease.committed_at;
        if ordinal > before {
            lease.committed = ordinal;
            lease.committed_at = at;
        }
        let committed = lease.committed.min(end);
        let reader = &mut self.readers[lease.reader];
        reader.committed.insert(lease.start, committed);
        reader.passed.insert(lease.start, committed);
        reader.covered.insert(lease.start, committed);
        reader.committed_at = at;
        reader.committed_by = reader.committed_by.max(lease_ref.lease);
        if committed >= end {
            reader.live.retain(|&id| id != lease_ref.lease);
        }
        // A lease whose commit is accepted is live. It was live when the commit was asked for at
        // the earliest; if the younger lease had been granted by then, both were live at once.
        let twice = lease
            .superseded
            .take_if(|(_, granted_at, _)| asked > *granted_at);
        if let Some((younger, _, from)) = twice {
            let younger = LeaseRef {
                group: lease_ref.group,
                lease: younger,
            };
            let to = self.leases.get(&younger).map_or(end, |l| l.end.min(end));
            self.leased_twice(at, lease_ref, younger, lane, from, to);
        }
        if regressed {
            self.add(Anomaly::CommitRegressed {
                group: lease_ref.group,
                lane: self.lanes[lane as usize].lane,
                committed: before,
                then: ordinal,
            });
        }
        Ok(())
    }

    pub(super) fn commit_observed(&mut self, group: u32, lane: u32, ordinal: u64, asked: u64) {
        let index = self.reader(Reader::Group(group), lane);
        let reader = &mut self.readers[index];
        let start = reader.start;
        let contiguous = reader
            .committed
            .first_overlap(start, start.saturating_add(1))
            .and_then(|_| reader.committed.first_overlap(start, u64::MAX));
        let regressed = contiguous.filter(|&(_, end)| ordinal < end && reader.committed_at < asked);
        reader.passed.insert(start, ordinal);
        if let Some((_, committed)) = regressed {
            self.add(Anomaly::CommitRegressed {
                group,
                lane: self.lanes[lane as usize].lane,
                committed,
                then: ordinal,
            });
        }
    }

    pub(super) fn acquired_nothing(&mut self, at: u64, group: u32, asked: u64) {
        let heads = || self.lanes.iter().map(|lane| lane.head).collect();
        let Some(group) = self.groups.get_mut(&group) else {
            // Nothing is known of what it reads.
            return;
        };
        match &mut group.probe {
            None => {
                group.probe = Some(Probe {
                    at,
                    heads: heads(),
                    in_vain: 0,
                });
            }
            Some(probe) if asked > probe.at => probe.in_vain = probe.in_vain.saturating_add(1),
            Some(_) => {}
        }
    }

    /// With the broker its leases may go, too.
    pub(super) fn forget_live_leases(&mut self) {
        if !self.expect.leases_expire {
            for reader in &mut self.readers {
                reader.live.clear();
            }
        }
    }
}
