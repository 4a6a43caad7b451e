//! The checker: one pass over the history, then one over what it found.
//!
//! `sends` follows what producers were told, `reads` what readers got, `leases` who was allowed to
//! read what, and `finish` puts them together once everything is known.

mod finish;
mod leases;
mod reads;
mod sends;
mod state;

use std::collections::HashMap;

use crate::anomaly::Anomaly;
use crate::event::{Entry, Event, Lane, LeaseRef, Place, Reader, Record};
use crate::expectations::Expectations;
use crate::history::{History, HistoryError};
use crate::records::{MAX_LANES, Records};
use crate::report::{ENTRIES_EACH, EXPLAINED, Report};
use reads::Delivery;
use state::{Calls, Contest, Group, LaneState, LateDelivery, Lease, ReaderLane, Skip};

/// Reads a history and reports everything in it that a broker which keeps the promises of
/// `expectations` could not have caused. Reads it a second time, for evidence, if there is any.
///
/// # Errors
///
/// When the history cannot be read, or breaks the rules for recording so that it cannot be judged.
pub fn check(history: &History, expectations: &Expectations) -> Result<Report, HistoryError> {
    let mut checker = Checker::new(*expectations);
    for entry in history.entries()? {
        checker.observe(&entry?)?;
    }
    let mut report = checker.finish();
    explain(history, &mut report)?;
    Ok(report)
}

fn explain(history: &History, report: &mut Report) -> Result<(), HistoryError> {
    let explained = &report.anomalies[..report.anomalies.len().min(EXPLAINED)];
    if explained.is_empty() {
        return Ok(());
    }
    let mut evidence = vec![Vec::new(); explained.len()];
    for entry in history.entries()? {
        let entry = entry?;
        for (anomaly, entries) in explained.iter().zip(&mut evidence) {
            if entries.len() < ENTRIES_EACH && anomaly.concerns(&entry.event) {
                entries.push(entry.clone());
            }
        }
    }
    report.evidence = evidence;
    Ok(())
}

/// The checker as a consumer of entries, for histories that are nowhere stored: observe every
/// entry in the order of their times, then finish.
#[derive(Debug)]
pub struct Checker {
    expect: Expectations,
    next_time: u64,
    records: Records,
    lanes: Vec<LaneState>,
    lane_index: HashMap<Lane, u32>,
    readers: Vec<ReaderLane>,
    reader_index: HashMap<(Reader, u32), usize>,
    groups: HashMap<u32, Group>,
    leases: HashMap<LeaseRef, Lease>,
    // Places at which a record was seen besides the one in `records`.
    splits: HashMap<Record, Vec<(u32, u64)>>,
    // Ordinals for which two records were named.
    contests: HashMap<(u32, u64), Contest>,
    // The last of a producer's records of one key that an ordered group got: sequence, ordinal.
    keys: HashMap<(u32, u32, u64), (u64, u64)>,
    late: Vec<LateDelivery>,
    skips: Vec<Skip>,
    calls: Calls,
    // How many records each producer had sent when the broker was last ready; none since a kill.
    sent_before_start: Option<HashMap<u32, u64>>,
    report: Report,
}

impl Checker {
    /// A checker that has seen nothing.
    pub fn new(expectations: Expectations) -> Self {
        Self {
            expect: expectations,
            next_time: 0,
            records: Records::default(),
            lanes: Vec::new(),
            lane_index: HashMap::new(),
            readers: Vec::new(),
            reader_index: HashMap::new(),
            groups: HashMap::new(),
            leases: HashMap::new(),
            splits: HashMap::new(),
            contests: HashMap::new(),
            keys: HashMap::new(),
            late: Vec::new(),
            skips: Vec::new(),
            calls: Calls::default(),
            sent_before_start: None,
            report: Report::default(),
        }
    }

    /// Takes in the next entry.
    ///
    /// # Errors
    ///
    /// When it breaks the rules for recording; the checker is of no use afterwards.
    pub fn observe(&mut self, entry: &Entry) -> Result<(), HistoryError> {
        let at = entry.at;
        if at < self.next_time {
            return Err(invalid(
                at,
                "times must grow from entry to entry".to_owned(),
            ));
        }
        self.next_time = at.saturating_add(1);
        self.report.counts.entries += 1;
        self.apply(at, &entry.event)
            .map_err(|reason| invalid(at, reason))
    }

    fn apply(&mut self, at: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::Send {
                record,
                stream,
                streamlet,
                lane,
                key: _,
            } => self.send(record, stream, streamlet, lane)?,
            Event::Batched { producer } => {
                self.calls.batched(producer, self.records.next(producer));
            }
            Event::Polled { consumer } => self.calls.polled(consumer),
            Event::Ack {
                record,
                lane,
                ordinal,
            } => {
                let lane = self.lane(lane)?;
                self.ack(at, record, lane, ordinal);
            }
            Event::AckedUnplaced { record } => self.acked_unplaced(record)?,
            Event::Failed { record, outcome } => self.failed(record, outcome)?,
            Event::Read {
                consumer,
                lease,
                lane,
                ordinal,
                record,
                key,
                head,
            } => {
                let lane = self.lane(lane)?;
                self.report.counts.deliveries += 1;
                self.seen(at, lane, ordinal, record, head);
                match lease {
                    Some(lease) => {
                        let delivery = Delivery {
                            at,
                            consumer,
                            lane,
                            ordinal,
                        };
                        self.delivered_under_lease(delivery, lease, record, key)?;
                    }
                    None => self.delivered(at, consumer, lane, ordinal),
                }
            }
            Event::HeadObserved { lane, head, asked } => {
                let lane = self.lane(lane)?;
                self.head_observed(lane, head, asked);
            }
            Event::GroupDefined {
                group,
                stream,
                order,
            } => {
                let known = self.group(group, stream);
                known.stream = stream;
                known.order = order;
            }
            Event::Positioned {
                reader,
                lane,
                ordinal,
            } => {
                let lane = self.lane(lane)?;
                self.positioned(reader, lane, ordinal);
            }
            Event::LeaseGranted {
                lease,
                member,
                lane,
                start,
                end,
            } => {
                let lane = self.lane(lane)?;
                self.granted(at, lease, member, lane, start, end.unwrap_or(u64::MAX));
            }
            Event::LeaseEnded { lease } => self.ended(lease)?,
            Event::Committed {
                lease,
                ordinal,
                asked,
            } => self.committed(at, lease, ordinal, asked)?,
            Event::CommitObserved {
                group,
                lane,
                ordinal,
                asked,
            } => {
                let lane = self.lane(lane)?;
                self.commit_observed(group, lane, ordinal, asked);
            }
            Event::AcquiredNothing { group, asked, .. } => self.acquired_nothing(at, group, asked),
            Event::Drained {
                reader,
                lane,
                ordinal,
            } => {
                let lane = self.lane(lane)?;
                let index = self.reader(reader, lane);
                let reader = &mut self.readers[index];
                reader.passed.insert(reader.start, ordinal);
            }
            Event::OrdinalGap { lane, from, to } => {
                let lane = self.lane(lane)?;
                self.lanes[lane as usize].gaps.insert(from, to);
            }
            Event::LogTrimmed { lane, start } => {
                let lane = self.lane(lane)?;
                let lane = &mut self.lanes[lane as usize];
                lane.log_start = lane.log_start.max(start);
                lane.floor = lane.floor.max(start);
            }
            Event::StorePutBack => self.lanes.iter_mut().for_each(|lane| lane.floor = 0),
            Event::BrokerKilled => {
                self.report.counts.kills += 1;
                self.sent_before_start = None;
                self.forget_live_leases();
            }
            Event::BrokerStopped => self.forget_live_leases(),
            Event::BrokerStarted => self.sent_before_start = Some(self.records.sent()),
            Event::LanesGrown { .. } | Event::Named { .. } | Event::Note { .. } => {}
        }
        Ok(())
    }

    fn lane(&mut self, lane: Lane) -> Result<u32, String> {
        if let Some(&index) = self.lane_index.get(&lane) {
            return Ok(index);
        }
        if self.lanes.len() >= MAX_LANES {
            return Err(format!("there are more than {MAX_LANES} lanes"));
        }
        let index = self.lanes.len() as u32;
        self.lanes.push(LaneState::new(lane));
        self.lane_index.insert(lane, index);
        Ok(index)
    }

    fn reader(&mut self, reader: Reader, lane: u32) -> usize {
        let next = self.readers.len();
        let index = *self.reader_index.entry((reader, lane)).or_insert(next);
        if index == next {
            self.readers.push(ReaderLane::new(reader, lane));
            self.lanes[lane as usize].readers.push(index);
        }
        index
    }

    fn group(&mut self, group: u32, stream: u32) -> &mut Group {
        let order = self.expect.order;
        self.groups
            .entry(group)
            .or_insert_with(|| Group::new(stream, order))
    }

    fn place(&self, lane: u32, ordinal: u64) -> Place {
        Place {
            lane: self.lanes[lane as usize].lane,
            ordinal,
        }
    }

    fn add(&mut self, anomaly: Anomaly) {
        self.report.add(anomaly);
    }
}

fn invalid(at: u64, reason: String) -> HistoryError {
    HistoryError::Invalid { at, reason }
}
