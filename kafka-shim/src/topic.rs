//! Topics and partitions as streams, streamlets and lanes.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kera_broker::Shared;
use kera_broker::coordination::GROUPS_STREAM;
use kera_broker::data::catalog::Stream;
use kera_metadata::INTERNAL_PREFIX;
use kera_protocol::ids::{LaneId, StreamId, StreamletId};
use kera_protocol::partition;
use kera_streamlet::Streamlet;
use uuid::Uuid;

use crate::wire::reader::{ReadError, Reader};
use crate::wire::writer::Writer;

/// A topic as a request names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TopicRef {
    Name(Arc<str>),
    Id(Uuid),
}

impl TopicRef {
    /// Reads a reference as it stands in a request.
    pub(crate) fn read(reader: &mut Reader<'_>, by_id: bool) -> Result<Self, ReadError> {
        if by_id {
            reader.uuid().map(Self::Id)
        } else {
            reader.string().map(|name| Self::Name(name.into()))
        }
    }

    /// Writes it as it stands in replies.
    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Name(name) => writer.nullable_string(Some(name)),
            Self::Id(id) => writer.uuid(*id),
        }
    }

    /// Its name; none for an id that no topic has.
    pub(crate) fn name(&self, shared: &Shared) -> Option<Arc<str>> {
        match self {
            Self::Name(name) => Some(name.clone()),
            Self::Id(id) => shown_with_id(shared, *id).map(|stream| name_of(&stream).into()),
        }
    }

    /// Its stream, or Kafka's number for there being none.
    pub(crate) fn find(&self, shared: &Shared) -> Result<Arc<Stream>, i16> {
        let (found, unknown) = match self {
            Self::Name(name) => (shown(shared, name), ResponseError::UnknownTopicOrPartition),
            Self::Id(id) => (shown_with_id(shared, *id), ResponseError::UnknownTopicId),
        };
        match found {
            // Clients see that it is there, and would look for it again and again.
            Some(stream) if is_internal(&stream) => {
                Err(ResponseError::TopicAuthorizationFailed.code())
            }
            Some(stream) => Ok(stream),
            None => Err(unknown.code()),
        }
    }
}

/// The stream of a topic that a client wants to append to, or Kafka's number for why it cannot. As with Kafka
/// nobody appends to internal topics.
pub(crate) fn to_append_to(shared: &Shared, topic: &TopicRef) -> Result<Arc<Stream>, i16> {
    let is_internal = match topic {
        TopicRef::Name(name) => name.starts_with(INTERNAL_PREFIX) || is_kafkas_own(name),
        TopicRef::Id(id) => StreamId::from_slice(id.as_bytes())
            .and_then(|id| shared.data.catalog.get(id))
            .is_some_and(|stream| stream.record.load().internal),
    };
    match is_internal {
        true => Err(ResponseError::InvalidTopicException.code()),
        false => topic.find(shared),
    }
}

/// Partitions of a stream: lanes of all its streamlets.
pub(crate) fn partitions(stream: &Stream) -> i32 {
    i32::try_from(stream.record.load().config.partitions()).unwrap_or(i32::MAX)
}

/// Where a partition is: lane `p / M` of streamlet `p % M`.
pub(crate) fn lane_of(stream: &Stream, partition: i32) -> Option<(Arc<Streamlet>, LaneId)> {
    let partition = u32::try_from(partition).ok()?;
    let record = stream.record.load();
    if partition >= record.config.partitions() {
        return None;
    }
    let (streamlet, lane) = partition::place_of(partition, record.config.streamlets);
    Some((stream.streamlet(streamlet)?, lane))
}

/// True if this broker is the one to ask about a streamlet's partitions, recovered or not.
pub(crate) fn is_led_here(shared: &Shared, streamlet: &Streamlet) -> bool {
    let directory = &shared.data.directory;
    if !directory.is_shared() {
        return true;
    }
    shared.owner_of(streamlet).broker == directory.me()
        && (!streamlet.is_recovered() || directory.serves(streamlet.stream(), streamlet.id()))
}

/// The partition of a lane.
pub(crate) fn partition_of(stream: &Stream, streamlet: StreamletId, lane: LaneId) -> i32 {
    let streamlets = stream.record.load().config.streamlets;
    let partition = partition::partition_of(streamlet, lane, streamlets);
    i32::try_from(partition).unwrap_or(i32::MAX)
}

/// The stream of a topic's name; the broker's own streams are no topics.
pub(crate) fn named(shared: &Shared, name: &str) -> Option<Arc<Stream>> {
    shared.data.catalog.named(name).filter(|s| !is_internal(s))
}

/// The stream of a topic's id.
pub(crate) fn with_id(shared: &Shared, id: Uuid) -> Option<Arc<Stream>> {
    shown_with_id(shared, id).filter(|s| !is_internal(s))
}

/// Every stream that is a topic, by name.
pub(crate) fn visible(shared: &Shared) -> Vec<Arc<Stream>> {
    let mut streams = shared.data.catalog.all();
    streams.retain(|s| !s.record.load().internal);
    streams
}

/// Kafka's own topics, which clients may name but here hold nothing.
const KAFKAS_OWN: [&str; 3] = [
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
];

/// True for the names of Kafka's internal topics: its clients look for them, and must not make them.
pub(crate) fn is_kafkas_own(name: &str) -> bool {
    KAFKAS_OWN.contains(&name)
}

/// Kafka's name for the topic that groups and their offsets are kept in, under which tools look for it.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// As [`named`], and the brokers' own stream of groups under Kafka's name: it is shown, and its records are
/// neither read nor written by clients.
pub(crate) fn shown(shared: &Shared, name: &str) -> Option<Arc<Stream>> {
    match name {
        OFFSETS_TOPIC => shared.data.catalog.named(GROUPS_STREAM),
        _ => named(shared, name),
    }
}

/// As [`shown`], by the topic's id.
pub(crate) fn shown_with_id(shared: &Shared, id: Uuid) -> Option<Arc<Stream>> {
    let id = StreamId::from_slice(id.as_bytes())?;
    let of_groups = |s: &Stream| s.name() == GROUPS_STREAM;
    let found = shared.data.catalog.get(id);
    found.filter(|s| !is_internal(s) || of_groups(s))
}

/// True for the brokers' own streams.
pub(crate) fn is_internal(stream: &Stream) -> bool {
    stream.record.load().internal
}

/// The name of a stream's topic.
pub(crate) fn name_of(stream: &Stream) -> String {
    match is_internal(stream) {
        true => OFFSETS_TOPIC.to_owned(),
        false => stream.name(),
    }
}

/// The id of a stream's topic.
pub(crate) fn id_of(stream: &Stream) -> Uuid {
    stream.id().0
}
