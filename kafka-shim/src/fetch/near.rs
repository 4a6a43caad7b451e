//! Fetches by clients that name their rack: the owner of a partition sends them to a broker of that rack
//! which holds copies of the closed groups they are about to read, and that one serves them from there.
//!
//! Whoever holds no more, or cannot read its copy, sends the client back by naming the owner as the
//! owner names it. No error would do: at one Kafka's Java client and librdkafka ask the leader again, some
//! after they have reset their position, and others stay with the broker that they were sent to. A client
//! that comes back before it can have read what it was sent for is served by the owner for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kafka_protocol::error::ResponseError;
use kera_broker::Shared;
use kera_broker::copy_reads::{self, Asked, Given, Nearby, Refused};
use kera_broker::fault_rules::Rule;
use kera_protocol::ids::{LaneId, Ordinal, StreamId, StreamletId};

use super::serve::{DiskRead, Part};
use super::session::{Entry, MAX_PARTITIONS, Target};
use crate::{errors, topic};

/// A client that comes back sooner than this, short of what it was sent for, was most likely refused
/// somewhere in between, and is not sent again before.
const EARLY: Duration = Duration::from_secs(5);
/// One that has read nothing at all is not sent anywhere for so long. librdkafka, too, waits before it
/// leaves the leader more often than once a minute.
const PAUSE: Duration = Duration::from_secs(60);

/// Where a request's client is.
pub(crate) enum Near {
    /// It does not say, or nobody else is there: its requests are as any other.
    Nowhere,
    /// In this broker's rack: copies kept here are for it.
    Here,
    /// In the rack of these brokers, of which this is none.
    There { brokers: Vec<u32>, sent: Sent },
}

impl Near {
    /// Of a client that names `rack`; `sent` is taken where it is needed.
    pub(crate) fn of(rack: Option<&str>, shared: &Shared, sent: &mut Sent) -> Self {
        let Some(rack) = rack.filter(|_| shared.data.directory.is_shared()) else {
            return Self::Nowhere;
        };
        if shared.config.cluster.rack.as_deref() == Some(rack) {
            return Self::Here;
        }
        let brokers = copy_reads::brokers_in(shared, rack);
        match brokers.is_empty() {
            true => Self::Nowhere,
            false => Self::There {
                brokers,
                sent: std::mem::take(sent),
            },
        }
    }

    /// True if partitions of other brokers may be read here.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self, Self::Here)
    }

    /// Who the client had better ask for what it wants of a partition that is led here.
    pub(crate) fn better(
        &mut self,
        entry: &Entry,
        target: &Target,
        shared: &Shared,
    ) -> Option<Nearby> {
        let Self::There { brokers, sent } = self else {
            return None;
        };
        let (from, partition) = (entry.from(), entry.wanted.partition);
        let (streamlet, now) = (&target.streamlet, Instant::now());
        // What became of transactions is the owner's to say.
        if streamlet.transactional_from(target.lane).is_some() {
            return None;
        }
        if !sent.may_go(target.stream, partition, from.ordinal, now) {
            return None;
        }
        // Whoever reads close behind the producers would be sent to and fro whenever a group ends.
        let settings = streamlet.settings();
        let segments = match sent.went_lately(target.stream, partition, now) {
            true => settings.segments_per_group,
            false => 1,
        };
        let enough = u64::from(settings.segment_size) * u64::from(segments);
        let turn = usize::try_from(partition).unwrap_or_default();
        copy_reads::nearby(shared, streamlet, target.lane, from, brokers, enough, turn)
    }

    /// Takes note of what is answered.
    pub(crate) fn answered(&mut self, entry: &Entry, part: &Part) {
        if let (Self::There { sent, .. }, Some(nearby), Some(target)) =
            (self, part.elsewhere, &entry.target)
        {
            let at = entry.from().ordinal;
            sent.went(target.stream, entry.wanted.partition, at, nearby.held_to);
        }
    }

    /// What is to be remembered until the next request.
    pub(crate) fn into_sent(self) -> Option<Sent> {
        match self {
            Self::There { sent, .. } => Some(sent),
            Self::Nowhere | Self::Here => None,
        }
    }
}

/// Where clients of a connection were sent, by partition.
#[derive(Debug, Default)]
pub(crate) struct Sent(HashMap<(StreamId, i32), Trip>);

#[derive(Debug)]
struct Trip {
    from: Ordinal,
    held_to: Ordinal,
    since: Instant,
    /// It came to nothing: served here until then.
    stays_until: Option<Instant>,
}

impl Sent {
    /// Whether a client that asks here for `at` may be sent elsewhere.
    fn may_go(&mut self, stream: StreamId, partition: i32, at: Ordinal, now: Instant) -> bool {
        let Some(trip) = self.0.get_mut(&(stream, partition)) else {
            return true;
        };
        if let Some(until) = trip.stays_until {
            return now >= until;
        }
        trip.stays_until = match at == trip.from {
            true => Some(now + PAUSE),
            false => Some(trip.since + EARLY).filter(|until| at < trip.held_to && now < *until),
        };
        trip.stays_until.is_none()
    }

    /// Whether the client was sent elsewhere within the last minute.
    fn went_lately(&self, stream: StreamId, partition: i32, now: Instant) -> bool {
        let trip = self.0.get(&(stream, partition));
        trip.is_some_and(|trip| now.duration_since(trip.since) < PAUSE)
    }

    fn went(&mut self, stream: StreamId, partition: i32, from: Ordinal, held_to: Ordinal) {
        if self.0.len() >= MAX_PARTITIONS {
            self.0.clear();
        }
        let trip = Trip {
            from,
            held_to,
            since: Instant::now(),
            stays_until: None,
        };
        self.0.insert((stream, partition), trip);
    }
}

/// A lane of a streamlet that another broker owns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elsewhere {
    pub(crate) stream: StreamId,
    streamlet: StreamletId,
    lane: LaneId,
}

impl Elsewhere {
    /// A partition's, or Kafka's number for there being none.
    pub(crate) fn of(entry: &Entry, shared: &Shared) -> Result<Self, i16> {
        let stream = entry.wanted.topic.find(shared)?;
        let (streamlet, lane) = topic::lane_of(&stream, entry.wanted.partition)
            .ok_or(ResponseError::UnknownTopicOrPartition.code())?;
        Ok(Self {
            stream: stream.id(),
            streamlet: streamlet.id(),
            lane,
        })
    }
}

/// Looks for a partition that another broker leads among the copies kept here: always a read that must
/// wait, or an answer without records.
pub(crate) fn look(
    entry: &mut Entry,
    index: usize,
    shared: &Shared,
    at_most: usize,
) -> Result<Part, DiskRead> {
    let place = match Elsewhere::of(entry, shared) {
        Ok(place) => place,
        Err(code) => return Ok(Part::failed(index, code)),
    };
    entry.elsewhere = Some(place);
    let owner = shared.data.directory.owner(place.stream, place.streamlet);
    let known = entry.wanted.leader_epoch;
    let epoch = owner.map_or(known, |owner| owner.epoch.0 as i32);
    if known >= 0 && known != epoch && !Rule::CopyEpochNotCompared.is_broken() {
        let code = match known < epoch {
            true => ResponseError::FencedLeaderEpoch,
            // It has heard of an owner that this broker has not heard of.
            false => ResponseError::NotLeaderOrFollower,
        };
        return Ok(Part::failed(index, code.code()));
    }
    if at_most == 0 {
        return Ok(Part::without_records(entry, index));
    }
    Err(DiskRead::of_copy(
        index,
        Asked {
            stream: place.stream,
            streamlet: place.streamlet,
            lane: place.lane,
            from: entry.from(),
            end_ordinal: Ordinal::MAX,
            max_bytes: at_most,
        },
    ))
}

/// The high watermark that is told with what a copy gave. The owner's may be higher; no client takes this
/// end for the partition's, since it is sent to the owner there.
fn high_watermark(given: &Given) -> i64 {
    if Rule::CopyHeadLow.is_broken() {
        return given.log_start as i64;
    }
    if Rule::CopyHeadHigh.is_broken() {
        return given.closed_to as i64 * 2;
    }
    given.closed_to as i64
}

/// What came of a read from a copy.
pub(crate) fn given(
    entry: &mut Entry,
    index: usize,
    shared: &Shared,
    read: Result<Given, Refused>,
) -> Part {
    match read {
        Ok(given) => {
            entry.next = given.next;
            Part {
                entry: index,
                code: errors::NONE,
                high_watermark: high_watermark(&given),
                // What a replica gives belongs to no transaction.
                stable: high_watermark(&given),
                aborted: Vec::new(),
                log_start: given.log_start as i64,
                bufs: given.bufs,
                bytes: given.bytes,
                elsewhere: None,
                at_once: true,
            }
        }
        Err(refused) => {
            tracing::debug!(reason = %refused.error, "a client goes back to a partition's owner");
            back(entry, index, shared)
        }
    }
}

/// Sends the client to the owner, if that is known and lives.
fn back(entry: &mut Entry, index: usize, shared: &Shared) -> Part {
    let directory = &shared.data.directory;
    let owner = entry
        .elsewhere
        .and_then(|place| directory.owner(place.stream, place.streamlet))
        .filter(|owner| owner.broker != directory.me())
        .and_then(|owner| directory.broker(owner.broker))
        .filter(|broker| !broker.kafka.is_empty());
    let Some(owner) = owner else {
        return Part::failed(index, ResponseError::NotLeaderOrFollower.code());
    };
    let owner = Nearby {
        broker: owner.id,
        held_to: Ordinal::MAX,
    };
    Part::to_elsewhere(entry, index, owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> StreamId {
        StreamId::from_slice(&[7; 16]).unwrap()
    }

    /// Sent from ordinal 100 to who holds records up to 1,000.
    fn sent() -> (Sent, Instant) {
        let mut sent = Sent::default();
        sent.went(stream(), 3, 100, 1_000);
        (sent, Instant::now())
    }

    #[test]
    fn who_read_what_it_was_sent_for_may_go_again() {
        let (mut sent, now) = sent();
        assert!(sent.may_go(stream(), 3, 1_000, now));
        assert!(sent.may_go(stream(), 3, 5_000, now), "and went further");
        // Clients come back now and then to ask whether they are still where they should be.
        assert!(sent.may_go(stream(), 3, 500, now + EARLY));
        assert!(sent.may_go(stream(), 4, 100, now), "another partition");
        let lately = |partition, later| sent.went_lately(stream(), partition, now + later);
        assert!(lately(3, PAUSE / 2) && !lately(3, PAUSE));
        assert!(!lately(4, Duration::ZERO));
    }

    #[test]
    fn who_was_refused_at_once_stays_for_a_while() {
        for later in [Duration::ZERO, 30 * EARLY] {
            let (mut sent, now) = sent();
            let back = now + later;
            assert!(!sent.may_go(stream(), 3, 100, back));
            assert!(!sent.may_go(stream(), 3, 2_000, back + PAUSE / 2));
            assert!(sent.may_go(stream(), 3, 2_000, back + PAUSE));
        }
    }

    #[test]
    fn who_was_refused_on_the_way_is_not_sent_again_at_once() {
        let (mut sent, now) = sent();
        assert!(!sent.may_go(stream(), 3, 500, now + EARLY / 2));
        assert!(!sent.may_go(stream(), 3, 600, now + EARLY / 2));
        assert!(sent.may_go(stream(), 3, 700, now + EARLY));
    }
}
