//! What happened, as it stands in the internal stream: key = group name, value = one
//! prost-encoded [`EventRecord`].
//!
//! Tags are never reused. A change that an older build would misread takes a new version.

use kera_protocol::v1::{Cursor, Order};
use prost::Message;

use crate::classic::{self, consumer, shares};
use crate::transactions;

/// Version of the events this build writes; it reads this and all lower ones.
pub const EVENT_VERSION: u32 = 9;
/// What events carry that builds before transactions read as well,
const BEFORE_TRANSACTIONS: u32 = 1;
/// builds before the consumer protocol,
const BEFORE_CONSUMERS: u32 = 2;
/// builds before prepared transactions,
const BEFORE_PREPARED: u32 = 3;
/// builds before transactions whose ends raise their producer's epoch,
const BEFORE_RAISING_ENDS: u32 = 4;
/// builds before transactions that commit positions of native groups,
const BEFORE_SENT_POSITIONS: u32 = 5;
/// builds before groups that keep the order of keys,
const BEFORE_KEY_ORDER: u32 = 6;
/// builds before share groups,
const BEFORE_SHARES: u32 = 7;
/// and builds before two-phase commit of Kafka's clients.
const BEFORE_TWO_PHASE: u32 = 8;

/// Why a record of the internal stream is not an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Not a protobuf message, or one without the fields that make an event.
    #[error("coordinator event of group {group:?} cannot be decoded: {reason}")]
    Malformed {
        /// The record's key.
        group: String,
        /// What is wrong with the value.
        reason: String,
    },
    /// Written by a newer build.
    #[error(
        "coordinator event of group {group:?} has version {found}, this build reads up to {EVENT_VERSION}: start a newer broker"
    )]
    NewerVersion {
        /// The record's key.
        group: String,
        /// Version found.
        found: u32,
    },
}

/// One change of one consumer group. Opaque: persist it with [`key`](Self::key) and
/// [`value`](Self::value), read it back with [`decode`](Self::decode).
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub(crate) group: String,
    /// Non-zero if the event is part of that snapshot.
    pub(crate) snapshot: u64,
    pub(crate) body: Body,
}

impl Event {
    /// The record's key: the group's name; empty for the marks around a snapshot.
    pub fn key(&self) -> &[u8] {
        self.group.as_bytes()
    }

    /// The record's value.
    pub fn value(&self) -> Vec<u8> {
        EventRecord {
            version: self.body.version(),
            snapshot: self.snapshot,
            body: Some(self.body.clone()),
        }
        .encode_to_vec()
    }

    /// Bytes of [`value`](Self::value), nearly.
    pub fn encoded_len(&self) -> usize {
        self.body.encoded_len() + 8
    }

    /// Reads a record of the internal stream.
    ///
    /// # Errors
    /// [`EventError`] if the record is not an event this build knows. A coordinator must not start
    /// without one of a newer build, because it would lose what the event says; what is malformed no
    /// build can read.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, EventError> {
        let malformed = |reason: String| EventError::Malformed {
            group: String::from_utf8_lossy(key).into_owned(),
            reason,
        };
        let group = std::str::from_utf8(key).map_err(|error| malformed(error.to_string()))?;
        let record = EventRecord::decode(value).map_err(|error| malformed(error.to_string()))?;
        if record.version > EVENT_VERSION {
            return Err(EventError::NewerVersion {
                group: group.to_owned(),
                found: record.version,
            });
        }
        let body = record
            .body
            .ok_or_else(|| malformed("it has no body".to_owned()))?;
        Ok(Self {
            group: group.to_owned(),
            snapshot: record.snapshot,
            body,
        })
    }

    /// True for the events of a snapshot and the marks around it.
    pub fn is_snapshot(&self) -> bool {
        self.snapshot != 0
    }
}

/// The value of a record.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EventRecord {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    #[prost(uint64, tag = "2")]
    pub(crate) snapshot: u64,
    #[prost(
        oneof = "Body",
        tags = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32"
    )]
    pub(crate) body: Option<Body>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Body {
    #[prost(message, tag = "3")]
    GroupCreated(GroupCreated),
    #[prost(message, tag = "4")]
    GroupDeleted(GroupDeleted),
    #[prost(message, tag = "5")]
    MemberJoined(MemberJoined),
    #[prost(message, tag = "6")]
    MemberLeft(MemberLeft),
    #[prost(message, tag = "7")]
    LanesSet(LanesSet),
    #[prost(message, tag = "8")]
    LeasesGranted(LeasesGranted),
    #[prost(message, tag = "9")]
    Committed(Committed),
    #[prost(message, tag = "10")]
    LeasesEnded(LeasesEnded),
    #[prost(message, tag = "11")]
    LowMoved(LowMoved),
    #[prost(message, tag = "12")]
    GapSkipped(GapSkipped),
    #[prost(message, tag = "13")]
    SnapshotBegun(SnapshotBegun),
    #[prost(message, tag = "14")]
    SnapshotEnded(SnapshotEnded),
    #[prost(message, tag = "15")]
    ClassicGeneration(classic::Generation),
    #[prost(message, tag = "16")]
    ClassicAssigned(classic::Assigned),
    #[prost(message, tag = "17")]
    ClassicMemberReplaced(classic::MemberReplaced),
    #[prost(message, tag = "18")]
    OffsetsSet(classic::OffsetsSet),
    #[prost(message, tag = "19")]
    OffsetsRemoved(classic::OffsetsRemoved),
    #[prost(message, tag = "20")]
    OffsetsPending(classic::OffsetsPending),
    #[prost(message, tag = "21")]
    OffsetsEnded(classic::OffsetsEnded),
    #[prost(message, tag = "22")]
    TransactionSet(transactions::TransactionSet),
    #[prost(message, tag = "23")]
    TransactionEnded(transactions::TransactionEnded),
    #[prost(message, tag = "24")]
    ConsumerBegun(consumer::ConsumerBegun),
    #[prost(message, tag = "25")]
    ConsumerMemberSet(consumer::ConsumerMemberSet),
    #[prost(message, tag = "26")]
    ConsumerMemberRemoved(consumer::ConsumerMemberRemoved),
    #[prost(message, tag = "27")]
    ConsumerTarget(consumer::ConsumerTarget),
    #[prost(message, tag = "28")]
    PositionsSent(PositionsSent),
    #[prost(message, tag = "29")]
    PositionsEnded(PositionsEnded),
    #[prost(message, tag = "30")]
    ShareSet(shares::ShareSet),
    #[prost(message, tag = "31")]
    SharesRemoved(shares::SharesRemoved),
    #[prost(message, tag = "32")]
    ShareConfigSet(shares::ShareConfigSet),
}

impl Body {
    /// The version of the oldest build's events that has this: builds before it must not pass it over.
    fn version(&self) -> u32 {
        match self {
            Self::TransactionSet(set) if set.is_two_phase() => EVENT_VERSION,
            Self::ShareSet(_) | Self::SharesRemoved(_) | Self::ShareConfigSet(_) => {
                BEFORE_TWO_PHASE
            }
            Self::ConsumerBegun(begun) if begun.shares => BEFORE_TWO_PHASE,
            // What comes after it in such a group is read by no build that does not read this.
            Self::GroupCreated(created) if created.order == Order::Key as i32 => BEFORE_SHARES,
            Self::PositionsSent(_) | Self::PositionsEnded(_) => BEFORE_KEY_ORDER,
            Self::TransactionSet(set) if set.is_raised_by_end() => BEFORE_SENT_POSITIONS,
            Self::TransactionSet(set) if set.is_prepared() => BEFORE_RAISING_ENDS,
            Self::OffsetsPending(_)
            | Self::OffsetsEnded(_)
            | Self::TransactionSet(_)
            | Self::TransactionEnded(_) => BEFORE_CONSUMERS,
            Self::ConsumerBegun(_)
            | Self::ConsumerMemberSet(_)
            | Self::ConsumerMemberRemoved(_)
            | Self::ConsumerTarget(_) => BEFORE_PREPARED,
            _ => BEFORE_TRANSACTIONS,
        }
    }
}

/// What kind of group it is. Another kind with the same name is a conflict.
pub(crate) const KIND_NATIVE: u32 = 0;
/// A group of Kafka's classic kind: no stream of its own, no leases.
pub(crate) const KIND_CLASSIC: u32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GroupCreated {
    /// [`KIND_NATIVE`], or [`KIND_CLASSIC`] with no more than the time of its creation.
    #[prost(uint32, tag = "1")]
    pub(crate) kind: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) stream: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(crate) stream_name: String,
    /// `kera.v1.Order`.
    #[prost(int32, tag = "4")]
    pub(crate) order: i32,
    #[prost(uint64, tag = "5")]
    pub(crate) created_ms: u64,
    /// Only in snapshots: the next lease's id.
    #[prost(uint64, tag = "6")]
    pub(crate) next_lease: u64,
    /// Only in snapshots: the next member's number.
    #[prost(uint64, tag = "7")]
    pub(crate) next_member: u64,
    /// The host of the client that created it.
    #[prost(string, tag = "8")]
    pub(crate) created_by: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct GroupDeleted {}

/// A member joined, or rejoined with other settings.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberJoined {
    #[prost(string, tag = "1")]
    pub(crate) member: String,
    #[prost(string, tag = "2")]
    pub(crate) client: String,
    #[prost(uint32, tag = "3")]
    pub(crate) session_ms: u32,
    /// Its number within the group.
    #[prost(uint64, tag = "4")]
    pub(crate) number: u64,
    /// Only in snapshots: leases it ended lately.
    #[prost(message, repeated, tag = "5")]
    pub(crate) ended: Vec<EndedLease>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct EndedLease {
    #[prost(uint64, tag = "1")]
    pub(crate) lease: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) next: u64,
}

/// A member left or its session expired; its leases end with it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberLeft {
    #[prost(string, tag = "1")]
    pub(crate) member: String,
    #[prost(bool, tag = "2")]
    pub(crate) expired: bool,
}

/// Sets the progress of lanes: where a group starts, a reset, or a snapshot.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LanesSet {
    #[prost(message, repeated, tag = "1")]
    pub(crate) lanes: Vec<LaneRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LaneRecord {
    #[prost(uint32, tag = "1")]
    pub(crate) streamlet: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) lane: u32,
    /// Everything below is consumed.
    #[prost(uint64, tag = "3")]
    pub(crate) low: u64,
    /// A cursor at `low`.
    #[prost(message, optional, tag = "4")]
    pub(crate) hint: Option<Cursor>,
    /// Finished ranges above `low`: start, end, start, end.
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) finished: Vec<u64>,
    /// With the order of keys: how far above `low` each slice is; empty: none is.
    #[prost(uint64, repeated, tag = "6")]
    pub(crate) slices: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeasesGranted {
    #[prost(string, tag = "1")]
    pub(crate) member: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) leases: Vec<LeaseRecord>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseRecord {
    #[prost(uint64, tag = "1")]
    pub(crate) lease: u64,
    #[prost(uint32, tag = "2")]
    pub(crate) streamlet: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) lane: u32,
    #[prost(uint64, tag = "4")]
    pub(crate) start: u64,
    /// Exclusive; 0: no end.
    #[prost(uint64, tag = "5")]
    pub(crate) end: u64,
    /// Only in snapshots, and if above `start`: what is committed.
    #[prost(uint64, tag = "6")]
    pub(crate) next: u64,
    /// The lane generation it was granted in.
    #[prost(uint32, tag = "7")]
    pub(crate) generation: u32,
    /// With the order of keys: bit n for slice n.
    #[prost(fixed64, tag = "8")]
    pub(crate) slices: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Committed {
    #[prost(string, tag = "1")]
    pub(crate) member: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) commits: Vec<CommitRecord>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct CommitRecord {
    #[prost(uint64, tag = "1")]
    pub(crate) lease: u64,
    /// Everything of the lease below its ordinal is consumed. Absent: no progress.
    #[prost(message, optional, tag = "2")]
    pub(crate) next: Option<Cursor>,
    #[prost(bool, tag = "3")]
    pub(crate) release: bool,
}

/// Leases that ended without their member's doing.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeasesEnded {
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) leases: Vec<u64>,
}

/// What lies below a lane's log start counts as finished.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LowMoved {
    #[prost(uint32, tag = "1")]
    pub(crate) streamlet: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) lane: u32,
    #[prost(uint64, tag = "3")]
    pub(crate) low: u64,
}

/// A range in which no records are stored counts as finished.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct GapSkipped {
    #[prost(uint32, tag = "1")]
    pub(crate) streamlet: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) lane: u32,
    #[prost(uint64, tag = "3")]
    pub(crate) start: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) end: u64,
}

/// An open transaction commits positions of leases: they count once it is committed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PositionsSent {
    #[prost(int64, tag = "1")]
    pub(crate) producer: i64,
    /// Which of the transactions of its transactional id.
    #[prost(uint64, tag = "2")]
    pub(crate) number: u64,
    #[prost(message, repeated, tag = "3")]
    pub(crate) positions: Vec<SentRecord>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct SentRecord {
    #[prost(uint64, tag = "1")]
    pub(crate) lease: u64,
    /// Everything of the lease below its ordinal is consumed once the transaction is committed.
    #[prost(message, optional, tag = "2")]
    pub(crate) next: Option<Cursor>,
    /// Where the lease stands, or stood when it ended.
    #[prost(uint32, tag = "3")]
    pub(crate) streamlet: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) lane: u32,
    #[prost(uint64, tag = "5")]
    pub(crate) from: u64,
    /// With the order of keys, those of the lease: bit n for slice n.
    #[prost(fixed64, tag = "6")]
    pub(crate) slices: u64,
}

/// The transaction has ended: its positions count, or are dropped.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct PositionsEnded {
    #[prost(int64, tag = "1")]
    pub(crate) producer: i64,
    #[prost(uint64, tag = "2")]
    pub(crate) number: u64,
    #[prost(bool, tag = "3")]
    pub(crate) commit: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct SnapshotBegun {}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct SnapshotEnded {
    /// Events between the marks.
    #[prost(uint64, tag = "1")]
    pub(crate) events: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event {
            group: "g".into(),
            snapshot: 0,
            body: Body::MemberLeft(MemberLeft {
                member: "m".into(),
                expired: true,
            }),
        }
    }

    #[test]
    fn an_event_survives_its_encoding() {
        let event = event();
        assert_eq!(Event::decode(event.key(), &event.value()), Ok(event));
    }

    #[test]
    fn events_stop_builds_that_do_not_know_them_and_no_others() {
        let ended = Event {
            body: Body::TransactionEnded(transactions::TransactionEnded {}),
            ..event()
        };
        let begun = Event {
            body: Body::ConsumerBegun(consumer::ConsumerBegun::default()),
            ..event()
        };
        let prepared = Event {
            body: Body::TransactionSet(transactions::TransactionSet {
                stage: 6,
                ..transactions::TransactionSet::default()
            }),
            ..event()
        };
        let raised = Event {
            body: Body::TransactionSet(transactions::TransactionSet {
                ended: Some(transactions::EndedBy {
                    producer: 7,
                    epoch: 0,
                }),
                ..transactions::TransactionSet::default()
            }),
            ..event()
        };
        let sent = Event {
            body: Body::PositionsSent(PositionsSent::default()),
            ..event()
        };
        let created = |order: Order| Event {
            body: Body::GroupCreated(GroupCreated {
                order: order as i32,
                ..GroupCreated::default()
            }),
            ..event()
        };
        let shares = Event {
            body: Body::ConsumerBegun(consumer::ConsumerBegun {
                shares: true,
                ..consumer::ConsumerBegun::default()
            }),
            ..event()
        };
        let set = |change: fn(&mut transactions::TransactionSet)| {
            let mut set = transactions::TransactionSet::default();
            change(&mut set);
            Event {
                body: Body::TransactionSet(set),
                ..event()
            }
        };
        let two_phase = set(|set| set.two_phase = Some(String::new()));
        let open = set(|set| {
            set.stage = transactions::Stage::Ongoing.number();
            set.prepared = Some(transactions::PreparedBy::default());
        });
        let kept = set(|set| set.kept = Some(transactions::EndedBy::default()));
        for (event, version) in [
            (event(), BEFORE_TRANSACTIONS),
            (ended, BEFORE_CONSUMERS),
            (begun, BEFORE_PREPARED),
            (prepared, BEFORE_RAISING_ENDS),
            (raised, BEFORE_SENT_POSITIONS),
            (sent, BEFORE_KEY_ORDER),
            (created(Order::None), BEFORE_TRANSACTIONS),
            (created(Order::Key), BEFORE_SHARES),
            (shares, BEFORE_TWO_PHASE),
            (two_phase, EVENT_VERSION),
            (open, EVENT_VERSION),
            (kept, EVENT_VERSION),
        ] {
            let record = EventRecord::decode(event.value().as_slice()).unwrap();
            assert_eq!(record.version, version);
        }
    }

    /// Kept as a build wrote it that knew transactions, and no groups of the consumer protocol.
    #[test]
    fn an_event_of_version_2_is_read() {
        let kept = [
            8, 2, 178, 1, 37, 8, 7, 16, 2, 24, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 32,
            255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 48, 224, 212, 3, 56, 1, 64, 9, 98, 1,
            b'g',
        ];
        let set = transactions::TransactionSet {
            producer: 7,
            epoch: 2,
            last_producer: -1,
            last_epoch: -1,
            raised: false,
            timeout_ms: 60_000,
            stage: 1,
            number: 9,
            started_ms: 0,
            updated_ms: 0,
            streams: Vec::new(),
            groups: vec!["g".into()],
            prepared: None,
            ended: None,
            written: Vec::new(),
            kept: None,
            two_phase: None,
            heartbeats: false,
        };
        let read = Event::decode(b"pay", &kept).expect("it is read");
        assert_eq!((read.group.as_str(), read.snapshot), ("pay", 0));
        assert_eq!(read.body, Body::TransactionSet(set));
    }

    /// Kept as a build wrote it that knew no positions of native groups in transactions.
    #[test]
    fn an_event_of_version_5_is_read() {
        let kept = [
            8, 5, 178, 1, 36, 8, 7, 16, 3, 24, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 32,
            255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 56, 3, 64, 9, 114, 4, 8, 7, 16, 2,
        ];
        let read = Event::decode(b"pay", &kept);
        let body = read.expect("it is read").body;
        let Body::TransactionSet(set) = body else {
            panic!("{body:?}")
        };
        let ended = transactions::EndedBy {
            producer: 7,
            epoch: 2,
        };
        assert_eq!((set.number, set.stage, set.ended), (9, 3, Some(ended)));
    }

    /// Kept as a build wrote it that knew no groups that keep the order of keys.
    #[test]
    fn an_event_of_version_6_is_read() {
        let kept = [
            8, 6, 226, 1, 20, 8, 7, 16, 2, 26, 14, 8, 4, 18, 4, 8, 50, 48, 1, 24, 1, 32, 2, 40, 40,
        ];
        let read = Event::decode(b"g", &kept).expect("it is read");
        assert_eq!(read.value(), kept, "builds before read it as well");
        let Body::PositionsSent(sent) = read.body else {
            panic!("{read:?}")
        };
        assert_eq!((sent.producer, sent.number), (7, 2));
        let position = sent.positions[0];
        let next = position.next.map(|next| next.ordinal);
        assert_eq!((position.lease, next, position.from), (4, Some(50), 40));
        assert_eq!(
            (position.streamlet, position.lane, position.slices),
            (1, 2, 0)
        );
    }

    /// Kept as a build wrote it that knew no share groups.
    #[test]
    fn an_event_of_version_7_is_read() {
        let kept = [8, 7, 26, 10, 18, 1, 115, 26, 1, 116, 32, 2, 40, 5];
        let read = Event::decode(b"g", &kept).expect("it is read");
        assert_eq!(read.value(), kept, "builds before read it as well");
        let created = GroupCreated {
            stream: b"s".to_vec(),
            stream_name: "t".to_owned(),
            order: Order::Key as i32,
            created_ms: 5,
            ..GroupCreated::default()
        };
        assert_eq!(read.body, Body::GroupCreated(created));
    }

    /// Kept as a build wrote it that knew no two-phase commit of Kafka's clients.
    #[test]
    fn an_event_of_version_8_is_read() {
        let kept = [
            8, 8, 242, 1, 15, 10, 1, 9, 16, 2, 24, 3, 32, 4, 40, 5, 50, 2, 6, 2,
        ];
        let read = Event::decode(b"g", &kept).expect("it is read");
        assert_eq!(read.value(), kept, "builds before read it as well");
        let set = shares::ShareSet {
            stream: vec![9],
            partition: 2,
            state_epoch: 3,
            owner_epoch: 4,
            start: Some(5),
            runs: vec![6, 2],
            of_partitions: 0,
        };
        assert_eq!(read.body, Body::ShareSet(set));
    }

    /// Builds that do not know how many partitions there were read it as well.
    #[test]
    fn how_many_partitions_there_were_is_kept_with_a_share() {
        let set = shares::ShareSet {
            stream: vec![9],
            of_partitions: 3,
            ..shares::ShareSet::default()
        };
        let event = Event {
            group: "g".to_owned(),
            snapshot: 0,
            body: Body::ShareSet(set),
        };
        let kept = event.value();
        assert_eq!(kept, [8, 8, 242, 1, 5, 10, 1, 9, 56, 3]);
        assert_eq!(Event::decode(b"g", &kept), Ok(event));
    }

    /// Kept as a build wrote it that knew no prepared transactions.
    #[test]
    fn an_event_of_version_3_is_read() {
        let kept = [8, 3, 210, 1, 3, 10, 1, b'm'];
        let read = Event::decode(b"g", &kept).expect("it is read");
        assert_eq!(
            read.body,
            Body::ConsumerMemberRemoved(consumer::ConsumerMemberRemoved {
                member: "m".into(),
                heir: String::new(),
            })
        );
    }

    /// Kept as a build wrote it that knew no ends that raise an epoch.
    #[test]
    fn an_event_of_version_4_is_read() {
        let kept = [
            8, 4, 178, 1, 55, 8, 101, 16, 7, 24, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1,
            32, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 48, 224, 212, 3, 56, 6, 64, 3, 72,
            232, 7, 80, 176, 9, 98, 1, 109, 106, 10, 10, 5, 102, 108, 105, 110, 107, 16, 176, 9,
        ];
        let read = Event::decode(b"g", &kept).expect("it is read");
        let Body::TransactionSet(set) = read.body else {
            panic!("{read:?}")
        };
        let known = set.transaction().expect("it is one");
        assert_eq!(
            (known.stage, known.of_batches(), known.of_markers()),
            (transactions::Stage::Prepared, (101, 7), 7)
        );
        assert_eq!(known.prepared.expect("by somebody").principal, "flink");
    }

    #[test]
    fn newer_and_broken_events_are_refused() {
        let mut record = EventRecord::decode(event().value().as_slice()).unwrap();
        record.version = EVENT_VERSION + 1;
        assert!(matches!(
            Event::decode(b"g", &record.encode_to_vec()),
            Err(EventError::NewerVersion { found, .. }) if found == EVENT_VERSION + 1
        ));
        for value in [&b"\xff\xff"[..], b""] {
            assert!(matches!(
                Event::decode(b"g", value),
                Err(EventError::Malformed { .. })
            ));
        }
        assert!(Event::decode(b"\xff", &event().value()).is_err());
    }
}
