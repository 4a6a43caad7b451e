//! What readers got.

use super::Checker;
use super::state::{LateDelivery, Skip};
use crate::anomaly::{Anomaly, HeadBreach, OrderBreach, PhantomReason, Scope};
use crate::event::{LeaseRef, Reader, Record};
use crate::expectations::{Order, Redelivery};
use crate::records::{FAILED, READ, SENT};
use crate::slots::{Holds, Slot};

/// A record's coming to a consumer.
#[derive(Clone, Copy)]
pub(super) struct Delivery {
    pub(super) at: u64,
    pub(super) consumer: u32,
    pub(super) lane: u32,
    pub(super) ordinal: u64,
}

impl Checker {
    /// A reader saw the ordinal: what that says of the lane and of the record.
    pub(super) fn seen(
        &mut self,
        at: u64,
        lane: u32,
        ordinal: u64,
        record: Option<Record>,
        head: Option<u64>,
    ) {
        if let Some(head) = head {
            if ordinal >= head {
                let place = self.place(lane, ordinal);
                self.add(Anomaly::AboveHead {
                    how: HeadBreach::Read,
                    place,
                    head,
                });
            }
            let state = &mut self.lanes[lane as usize];
            state.head = state.head.max(head);
        }
        self.lanes[lane as usize].shown(at, ordinal, HeadBreach::Read);
        match record {
            None => self.foreign(lane, ordinal, PhantomReason::Altered, None),
            Some(unsent) if !self.records.has(unsent, SENT) => {
                self.foreign(lane, ordinal, PhantomReason::NeverSent, record);
            }
            Some(record) => self.seen_record(lane, ordinal, record),
        }
    }

    fn seen_record(&mut self, lane: u32, ordinal: u64, record: Record) {
        if self.records.has(record, FAILED) && !self.records.has(record, READ) {
            let place = self.place(lane, ordinal);
            self.add(Anomaly::Phantom {
                reason: PhantomReason::FailedDefinitely,
                place,
                record: Some(record),
            });
        }
        match self.records.place(record) {
            None => self.arrived(record, lane, ordinal),
            Some(place) if place == (lane, ordinal) => {}
            Some(_) => {
                let places = self.splits.entry(record).or_default();
                if !places.contains(&(lane, ordinal)) {
                    places.push((lane, ordinal));
                }
            }
        }
        self.records.mark(record, READ);
        self.claim(record, lane, ordinal, true);
    }

    fn foreign(&mut self, lane: u32, ordinal: u64, reason: PhantomReason, record: Option<Record>) {
        let slots = &mut self.lanes[lane as usize].slots;
        let known = slots.get(ordinal);
        if known.is_some_and(|slot| slot.holds == Holds::Foreign) {
            return;
        }
        slots.set(
            ordinal,
            Slot {
                holds: Holds::Foreign,
                read: true,
                acked: known.is_some_and(|slot| slot.acked),
            },
        );
        let place = self.place(lane, ordinal);
        self.add(Anomaly::Phantom {
            reason,
            place,
            record,
        });
    }

    /// A consumer without a group got the ordinal.
    pub(super) fn delivered(&mut self, at: u64, consumer: u32, lane: u32, ordinal: u64) {
        let index = self.reader(Reader::Consumer(consumer), lane);
        let reader = &mut self.readers[index];
        if ordinal < reader.floor {
            let start = reader.floor;
            let reader = reader.reader;
            let place = self.place(lane, ordinal);
            self.add(Anomaly::BelowStart {
                reader,
                place,
                start,
            });
            return;
        }
        let first = reader.delivered.insert_one(ordinal);
        let call = self.calls.poll(consumer);
        let scope = Scope::of(std::mem::replace(&mut reader.call, call), call);
        let top = reader.top;
        if ordinal >= top {
            reader.passed.insert(top, ordinal);
            reader.top = ordinal.saturating_add(1);
            self.skip(index, None, top, ordinal, scope);
        } else if first {
            self.late(index, top, ordinal, scope);
        } else {
            self.delivered_again(at, index, ordinal, scope);
        }
    }

    /// A member of a group got the ordinal under a lease.
    pub(super) fn delivered_under_lease(
        &mut self,
        delivery: Delivery,
        lease_ref: LeaseRef,
        record: Option<Record>,
        key: Option<u64>,
    ) -> Result<(), String> {
        let Delivery {
            at,
            consumer,
            lane,
            ordinal,
        } = delivery;
        let call = self.calls.poll(consumer);
        let lease = self
            .leases
            .get_mut(&lease_ref)
            .filter(|lease| lease.lane == lane)
            .ok_or_else(|| format!("a read under lease {lease_ref}, which was not granted"))?;
        let index = lease.reader;
        let reader = &mut self.readers[index];
        let first = reader.delivered.insert_one(ordinal);
        if !(lease.start..lease.end).contains(&ordinal) {
            reader.outside.insert_one(ordinal);
            let place = self.place(lane, ordinal);
            self.add(Anomaly::OutsideLease {
                lease: lease_ref,
                place,
            });
            return Ok(());
        }
        let scope = Scope::of(std::mem::replace(&mut lease.call, call), call);
        let next = lease.next;
        if ordinal < next {
            // Within a lease ordinals only ever rise. It is told as that, not as a skip besides.
            self.came_after_all(lease_ref, ordinal);
            if first {
                self.late(index, next, ordinal, scope);
            } else {
                self.delivered_again(at, index, ordinal, scope);
            }
            return Ok(());
        }
        reader.passed.insert(next, ordinal);
        lease.next = ordinal.saturating_add(1);
        let stale = lease
            .stale
            .is_some_and(|(from, to)| (from..to).contains(&ordinal));
        self.skip(index, Some(lease_ref), next, ordinal, scope);
        if !first {
            if stale || self.expect.redelivery == Redelivery::Never {
                self.delivered_again(at, index, ordinal, Scope::External);
            } else {
                self.report.counts.redeliveries += 1;
            }
            return Ok(());
        }
        let ordered = self
            .groups
            .get(&lease_ref.group)
            .is_some_and(|group| group.order == Order::Lane);
        if ordered {
            let reader = &mut self.readers[index];
            if ordinal < reader.top {
                let top = reader.top;
                self.late(index, top, ordinal, Scope::External);
                return Ok(());
            }
            reader.top = ordinal.saturating_add(1);
            if let (Some(record), Some(key)) = (record, key) {
                self.follow_key(lease_ref.group, index, lane, ordinal, record, key);
            }
        }
        Ok(())
    }

    /// Ordered groups finish the lanes of an older generation before those of the next, so a key
    /// keeps its order even when it moves to another lane.
    fn follow_key(
        &mut self,
        group: u32,
        index: usize,
        lane: u32,
        ordinal: u64,
        record: Record,
        key: u64,
    ) {
        if !self.expect.idempotent
            || self.expect.may_lose()
            || self.records.place(record) != Some((lane, ordinal))
        {
            return;
        }
        let last = self
            .keys
            .entry((group, record.producer, key))
            .or_insert((record.seq, ordinal));
        let (seq, at_ordinal) = *last;
        *last = (record.seq, ordinal);
        if record.seq < seq {
            let earlier = Record {
                producer: record.producer,
                seq,
            };
            self.report.add(Anomaly::Reordered {
                how: OrderBreach::Key,
                lane: self.lanes[lane as usize].lane,
                earlier: (Some(earlier), at_ordinal),
                later: (Some(record), ordinal),
                reader: Some(self.readers[index].reader),
                scope: Scope::External,
            });
        }
    }

    /// Notes what a reader came past. Whether there was anything is told at the end.
    fn skip(&mut self, reader: usize, lease: Option<LeaseRef>, from: u64, to: u64, scope: Scope) {
        if from < to {
            self.skips.push(Skip {
                reader,
                lease,
                from,
                to,
                scope,
            });
        }
    }

    /// What was noted as a skip came under the same lease, later.
    fn came_after_all(&mut self, lease: LeaseRef, ordinal: u64) {
        let within =
            |skip: &&mut Skip| skip.lease == Some(lease) && (skip.from..skip.to).contains(&ordinal);
        let Some(skip) = self.skips.iter_mut().rev().find(within) else {
            return;
        };
        let after = Skip {
            from: ordinal.saturating_add(1),
            ..*skip
        };
        skip.to = ordinal;
        if after.from < after.to {
            self.skips.push(after);
        }
    }

    /// Notes a first delivery below another one. Whether it counts is told at the end: a member
    /// that had lost its lease may hold records that were trimmed before the next one read on.
    fn late(&mut self, reader: usize, top: u64, ordinal: u64, scope: Scope) {
        self.late.push(LateDelivery {
            reader,
            after: top.saturating_sub(1),
            ordinal,
            scope,
        });
    }

    pub(super) fn find_late(&mut self) {
        for late in std::mem::take(&mut self.late) {
            let reader = &self.readers[late.reader];
            let lane = &self.lanes[reader.lane as usize];
            if late.ordinal < lane.log_start {
                continue;
            }
            let held = |ordinal: u64| match lane.slots.get(ordinal)?.holds {
                Holds::Record(record) => Some(record),
                Holds::Foreign => None,
            };
            self.report.add(Anomaly::Reordered {
                how: OrderBreach::Delivered,
                lane: lane.lane,
                earlier: (held(late.after), late.after),
                later: (held(late.ordinal), late.ordinal),
                reader: Some(reader.reader),
                scope: late.scope,
            });
        }
    }

    fn delivered_again(&mut self, at: u64, index: usize, ordinal: u64, scope: Scope) {
        let reader = &self.readers[index];
        let place = self.place(reader.lane, ordinal);
        let reader = reader.reader;
        self.add(Anomaly::DeliveredTwice {
            reader,
            place,
            at,
            scope,
        });
    }

    pub(super) fn head_observed(&mut self, lane: u32, head: u64, asked: u64) {
        let state = &mut self.lanes[lane as usize];
        state.head = state.head.max(head);
        if self.expect.may_lose() {
            // After a loss the head may be lower than what had been shown.
            return;
        }
        if let Some((ordinal, how)) = state.shown_before(asked)
            && ordinal >= head
        {
            let place = self.place(lane, ordinal);
            self.add(Anomaly::AboveHead { how, place, head });
        }
    }

    pub(super) fn positioned(&mut self, reader: Reader, lane: u32, ordinal: u64) {
        let index = self.reader(reader, lane);
        let floor = self.lanes[lane as usize].floor;
        let state = &mut self.readers[index];
        for set in [
            &mut state.delivered,
            &mut state.passed,
            &mut state.committed,
            &mut state.covered,
        ] {
            set.remove(ordinal, u64::MAX);
        }
        state.start = ordinal;
        state.floor = floor;
        state.top = ordinal;
        if let Reader::Group(group) = reader {
            self.keys.retain(|&(of, _, _), _| of != group);
        }
    }
}
