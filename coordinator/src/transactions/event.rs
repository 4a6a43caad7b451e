//! What transactions write to their internal stream: each change as the whole state of an id. Tags are never reused.

use std::collections::{BTreeMap, BTreeSet};

use kera_protocol::ids::StreamId;
use prost::Message;

use super::request::Part;
use super::state::{Prepared, Stage, Transaction};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TransactionSet {
    #[prost(int64, tag = "1")]
    pub(crate) producer: i64,
    #[prost(int32, tag = "2")]
    pub(crate) epoch: i32,
    /// -1: none.
    #[prost(int64, tag = "3")]
    pub(crate) last_producer: i64,
    #[prost(int32, tag = "4")]
    pub(crate) last_epoch: i32,
    #[prost(bool, tag = "5")]
    pub(crate) raised: bool,
    #[prost(uint32, tag = "6")]
    pub(crate) timeout_ms: u32,
    #[prost(uint32, tag = "7")]
    pub(crate) stage: u32,
    #[prost(uint64, tag = "8")]
    pub(crate) number: u64,
    #[prost(uint64, tag = "9")]
    pub(crate) started_ms: u64,
    #[prost(uint64, tag = "10")]
    pub(crate) updated_ms: u64,
    #[prost(message, repeated, tag = "11")]
    pub(crate) streams: Vec<StreamParts>,
    #[prost(string, repeated, tag = "12")]
    pub(crate) groups: Vec<String>,
    /// Who prepared it, if it is prepared or was until it ended.
    #[prost(message, optional, tag = "13")]
    pub(crate) prepared: Option<PreparedBy>,
    /// Whose batches the last transaction has, if its end raised the epoch.
    #[prost(message, optional, tag = "14")]
    pub(crate) ended: Option<EndedBy>,
    /// Markers that are there from now on, and may be lost again; in snapshots all that are kept. The transactional id keeps
    /// them beside its state. Builds that know none pass them over.
    #[prost(message, repeated, tag = "15")]
    pub(crate) written: Vec<MarkersWritten>,
    /// Whose batches the transaction has, if a later instance of its producer has kept it.
    #[prost(message, optional, tag = "16")]
    pub(crate) kept: Option<EndedBy>,
    /// The user for whom its transactions have no timeout; absent if they have one.
    #[prost(string, optional, tag = "17")]
    pub(crate) two_phase: Option<String>,
    /// Its timeout runs from its producer's last heartbeat. Builds that know none count from a transaction's begin.
    #[prost(bool, tag = "18")]
    pub(crate) heartbeats: bool,
}

/// How a transaction ended, and where in the partitions that have its marker.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MarkersWritten {
    #[prost(int64, tag = "1")]
    pub(crate) producer: i64,
    /// Of the batches.
    #[prost(int32, tag = "2")]
    pub(crate) epoch: i32,
    #[prost(int32, tag = "3")]
    pub(crate) epoch_after: i32,
    #[prost(uint64, tag = "4")]
    pub(crate) number: u64,
    #[prost(bool, tag = "5")]
    pub(crate) commit: bool,
    #[prost(message, repeated, tag = "6")]
    pub(crate) streams: Vec<StreamEnds>,
    /// There was no room to keep how it ended.
    #[prost(bool, tag = "7")]
    pub(crate) forgotten: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamEnds {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stream: Vec<u8>,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) partitions: Vec<u32>,
    /// The ordinal after the marker, of each partition; 0: it is not known.
    #[prost(uint64, repeated, tag = "3")]
    pub(crate) ends: Vec<u64>,
    /// What began below this in each partition ended otherwise, or nobody knows how.
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) after: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct EndedBy {
    #[prost(int64, tag = "1")]
    pub(crate) producer: i64,
    #[prost(int32, tag = "2")]
    pub(crate) epoch: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PreparedBy {
    #[prost(string, tag = "1")]
    pub(crate) principal: String,
    #[prost(uint64, tag = "2")]
    pub(crate) since_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamParts {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stream: Vec<u8>,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) partitions: Vec<u32>,
}

/// An id is forgotten.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct TransactionEnded {}

impl TransactionSet {
    pub(crate) fn of(transaction: &Transaction) -> Self {
        let mut streams: BTreeMap<StreamId, Vec<u32>> = BTreeMap::new();
        let mut groups = Vec::new();
        for part in &transaction.parts {
            match part {
                Part::Partition(stream, partition) => {
                    streams.entry(*stream).or_default().push(*partition);
                }
                Part::Group(group) => groups.push(group.clone()),
            }
        }
        let streams = streams.into_iter().map(|(stream, partitions)| StreamParts {
            stream: stream.as_bytes().to_vec(),
            partitions,
        });
        Self {
            producer: transaction.producer,
            epoch: transaction.epoch.into(),
            last_producer: transaction.last.map_or(-1, |(producer, _)| producer),
            last_epoch: transaction.last.map_or(-1, |(_, epoch)| epoch.into()),
            raised: transaction.raised,
            timeout_ms: transaction.timeout_ms,
            stage: transaction.stage.number(),
            number: transaction.number,
            started_ms: transaction.started_ms,
            updated_ms: transaction.updated_ms,
            streams: streams.collect(),
            groups,
            prepared: transaction.prepared.as_ref().map(|by| PreparedBy {
                principal: by.principal.clone(),
                since_ms: by.since_ms,
            }),
            ended: transaction.ended.map(|(producer, epoch)| EndedBy {
                producer,
                epoch: epoch.into(),
            }),
            written: Vec::new(),
            kept: transaction.kept.map(|(producer, epoch)| EndedBy {
                producer,
                epoch: epoch.into(),
            }),
            two_phase: transaction.two_phase.clone(),
            heartbeats: transaction.heartbeats,
        }
    }

    /// True if builds that know no two-phase commit of Kafka's clients would misread it: they would abort it by its timeout,
    /// or give its markers the epoch of another instance.
    pub(crate) fn is_two_phase(&self) -> bool {
        let is_open = self.stage == Stage::Ongoing.number() && self.prepared.is_some();
        self.kept.is_some() || self.two_phase.is_some() || is_open
    }

    /// True if builds that know no ends that raise the epoch would misread it.
    pub(crate) fn is_raised_by_end(&self) -> bool {
        self.ended.is_some()
    }

    /// True if builds that know no prepared transactions would misread it.
    pub(crate) fn is_prepared(&self) -> bool {
        self.stage == Stage::Prepared.number()
    }

    /// `None` if it is none that this build writes.
    pub(crate) fn transaction(&self) -> Option<Transaction> {
        let mut parts: BTreeSet<Part> = self.groups.iter().cloned().map(Part::Group).collect();
        for of_stream in &self.streams {
            let stream = StreamId::from_slice(&of_stream.stream)?;
            let partitions = of_stream.partitions.iter();
            parts.extend(partitions.map(|partition| Part::Partition(stream, *partition)));
        }
        let last_epoch = i16::try_from(self.last_epoch).ok()?;
        let named = |by: Option<EndedBy>| match by {
            Some(by) => i16::try_from(by.epoch).map(|epoch| Some((by.producer, epoch))),
            None => Ok(None),
        };
        let ended = named(self.ended).ok()?;
        let kept = named(self.kept).ok()?;
        Some(Transaction {
            producer: self.producer,
            epoch: i16::try_from(self.epoch).ok()?,
            last: (last_epoch >= 0).then_some((self.last_producer, last_epoch)),
            raised: self.raised,
            ended,
            kept,
            two_phase: self.two_phase.clone(),
            heartbeats: self.heartbeats,
            timeout_ms: self.timeout_ms,
            stage: Stage::from_number(self.stage)?,
            number: self.number,
            started_ms: self.started_ms,
            updated_ms: self.updated_ms,
            parts,
            prepared: self.prepared.as_ref().map(|by| Prepared {
                principal: by.principal.clone(),
                since_ms: by.since_ms,
            }),
        })
    }
}
