//! Members send positions to transactions, and transactions end; see [`sent_positions`](crate::sent_positions).

use std::collections::BTreeMap;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::slices::SliceSet;
use kera_protocol::v1::{Cursor, Order, SendPositionsResponse};

use crate::classic::{EndOffsets, OfTransaction};
use crate::coordinator::{Coordinator, SendPositions, Step};
use crate::event::{Body, CommitRecord, PositionsEnded, PositionsSent, SentRecord};
use crate::group::{EVENT_ENTRIES, Group};
use crate::members::invalid;
use crate::sent_positions::SentPosition;
use crate::view::LaneView;

impl Group {
    /// Keeps positions aside.
    pub(crate) fn keep_aside(&mut self, set: &PositionsSent) -> bool {
        let known = self.sent.number(set.producer);
        if known.is_some_and(|number| number != set.number) {
            // Its end was told before this one began, or never will be.
            self.drop_positions(set.producer);
        }
        let mut fits = true;
        for record in &set.positions {
            let Some(next) = record.next else {
                fits = false;
                continue;
            };
            let position = match self.leases.get(&record.lease) {
                Some(lease) => SentPosition {
                    producer: set.producer,
                    lane: lease.lane,
                    slices: lease.slices,
                    from: lease.next,
                    next: match next.ordinal > lease.end {
                        true => Cursor {
                            ordinal: lease.end,
                            ..Cursor::default()
                        },
                        false => next,
                    },
                },
                None => {
                    let lane = (record.streamlet, record.lane);
                    let slices = SliceSet::from_bits(record.slices);
                    fits &= match self.order {
                        Order::Key => {
                            let sliced = self.sliced.entry(lane).or_default();
                            sliced.hold(record.lease, slices)
                        }
                        _ => {
                            let progress = self.lanes.entry(lane).or_default();
                            progress.lease(record.lease, record.from, next.ordinal)
                        }
                    };
                    SentPosition {
                        producer: set.producer,
                        lane,
                        slices,
                        from: record.from,
                        next,
                    }
                }
            };
            self.sent.put(set.number, record.lease, position);
        }
        fits
    }

    /// A transaction has ended.
    pub(crate) fn end_positions(&mut self, ended: &PositionsEnded) -> bool {
        if self.sent.number(ended.producer) != Some(ended.number) {
            return false;
        }
        if !ended.commit {
            self.drop_positions(ended.producer);
            return true;
        }
        for (id, sent) in self.sent.take(ended.producer) {
            if let Some(lease) = self.leases.get(&id) {
                let member = lease.member.clone();
                let commit = CommitRecord {
                    lease: id,
                    next: Some(sent.next),
                    release: false,
                };
                self.commit(&member, &commit);
            } else if let Some(sliced) = self.sliced.get_mut(&sent.lane) {
                sliced.commit(id, sent.next);
                sliced.release(id);
            } else if let Some(lane) = self.lanes.get_mut(&sent.lane) {
                lane.commit(id, sent.from, sent.next);
            }
        }
        true
    }

    fn drop_positions(&mut self, producer: i64) {
        for (id, sent) in self.sent.take(producer) {
            if self.leases.contains_key(&id) {
                continue;
            }
            if let Some(sliced) = self.sliced.get_mut(&sent.lane) {
                sliced.release(id);
            } else if let Some(lane) = self.lanes.get_mut(&sent.lane) {
                lane.release(id, sent.from);
            }
        }
    }
}

impl Coordinator {
    pub(crate) fn send_positions(
        &mut self,
        now_ms: u64,
        request: SendPositions,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<SendPositionsResponse, WireError> {
        let name = request.group.as_str();
        let of = request.transaction;
        self.shape_of(name, view, step)?;
        self.touch(now_ms, name, &request.member)?;
        let most = self.limits.commits_per_request;
        if request.commits.len() > most {
            return Err(invalid(format!(
                "positions of member {:?} in a transaction: {} in one request, send at most {most}",
                request.member,
                request.commits.len(),
            )));
        }
        if self.classic_check_transaction(name, of).is_err() {
            return Err(WireError::new(
                ErrorCode::TransactionNotOpen,
                format!(
                    "positions of group {name:?} came after their transaction had ended: abort"
                ),
            ));
        }
        let group = &self.state.groups[name];
        let mut positions: BTreeMap<u64, SentRecord> = BTreeMap::new();
        for commit in &request.commits {
            let id = commit.lease;
            let Some(next) = commit.next.filter(|_| !commit.release) else {
                return Err(invalid(format!(
                    "lease {id} of group {name:?}: a transaction commits a position of a lease and does not end it; release it once the transaction has ended"
                )));
            };
            let sent = group.sent.of(of.producer, of.number, id);
            // An earlier one of the same producer has ended, though its end was not told here.
            let held = group.sent.of_lease(id);
            if held.is_some_and(|held| held.producer != of.producer) {
                return Err(is_sent(name, id));
            }
            // Asked again, perhaps after the lease has ended.
            if sent.is_some_and(|sent| sent.next.ordinal >= next.ordinal) {
                continue;
            }
            let lease = group.leases.get(&id);
            let Some(lease) = lease.filter(|lease| lease.member == request.member) else {
                return Err(WireError::new(
                    ErrorCode::StaleLease,
                    format!(
                        "lease {id} of group {name:?} has ended: its records go to another consumer, abort the transaction"
                    ),
                ));
            };
            let head = view.highest_readable(group.lane_key(lease.lane));
            if let Some(head) = head.filter(|head| next.ordinal > *head) {
                return Err(invalid(format!(
                    "position {} of lease {id} of group {name:?} is above the durable head {head} of its lane",
                    next.ordinal
                )));
            }
            // Committed by somebody else meanwhile: to take it would have the same records count twice.
            if sent.is_none() && next.ordinal <= lease.next {
                return Err(WireError::new(
                    ErrorCode::StaleLease,
                    format!(
                        "position {} of lease {id} of group {name:?} is committed already: abort the transaction, whose records are there from another one",
                        next.ordinal
                    ),
                ));
            }
            let before = positions.get(&id).and_then(|record| record.next);
            if next.ordinal > lease.next && before.is_none_or(|b| next.ordinal > b.ordinal) {
                let record = SentRecord {
                    lease: id,
                    next: Some(next),
                    streamlet: lease.lane.0,
                    lane: lease.lane.1,
                    from: lease.next,
                    slices: lease.slices.bits(),
                };
                positions.insert(id, record);
            }
        }
        let positions: Vec<SentRecord> = positions.into_values().collect();
        for part in positions.chunks(EVENT_ENTRIES) {
            let sent = PositionsSent {
                producer: of.producer,
                number: of.number,
                positions: part.to_vec(),
            };
            self.emit(step, name, Body::PositionsSent(sent));
        }
        Ok(SendPositionsResponse {})
    }

    /// A transaction has ended: what it commits of a native group counts, or is dropped, and others may begin there.
    pub(crate) fn end_positions(
        &mut self,
        now_ms: u64,
        request: &EndOffsets,
        view: &dyn LaneView,
        step: &mut Step,
    ) {
        let OfTransaction { producer, number } = request.transaction;
        let name = request.group.as_str();
        let group = self.state.groups.get(name);
        let known = group.and_then(|group| group.sent.number(producer));
        if known != Some(number) {
            return;
        }
        let ended = PositionsEnded {
            producer,
            number,
            commit: request.commit,
        };
        self.emit(step, name, Body::PositionsEnded(ended));
        self.serve(now_ms, name, view, step);
    }

    /// Refuses to move a group elsewhere of which a transaction commits positions.
    pub(crate) fn check_settled(&self, name: &str, what: &str) -> Result<(), WireError> {
        match self.group(name)?.sent.any_producer() {
            None => Ok(()),
            Some(producer) => Err(WireError::new(
                ErrorCode::GroupNotEmpty,
                format!(
                    "consumer group {name:?} cannot be {what}: a transaction of producer {producer} commits positions of it and has not ended, see `kera transaction list`"
                ),
            )),
        }
    }
}

/// The error of a commit of a lease of which a transaction commits positions.
pub(crate) fn is_sent(group: &str, lease: u64) -> WireError {
    WireError::new(
        ErrorCode::TransactionPending,
        format!(
            "a transaction that has not ended commits positions of lease {lease} of group {group:?}: it moves again after that"
        ),
    )
}
