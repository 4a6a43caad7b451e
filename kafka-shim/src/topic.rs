//! Topics and partitions as streams, streamlets and lanes.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kera_broker::Shared;
use kera_broker::catalog::Stream;
use kera_protocol::ids::{LaneId, StreamId, StreamletId};
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

    /// Its stream, or Kafka's number for there being none.
    pub(crate) fn find(&self, shared: &Shared) -> Result<Arc<Stream>, i16> {
        match self {
            Self::Name(name) => {
                named(shared, name).ok_or_else(|| ResponseError::UnknownTopicOrPartition.code())
            }
            Self::Id(id) => {
                with_id(shared, *id).ok_or_else(|| ResponseError::UnknownTopicId.code())
            }
        }
    }
}

/// Partitions of a stream: streamlets times lanes.
pub(crate) fn partitions(stream: &Stream) -> i32 {
    let lanes = stream.record.load().config.lanes;
    i32::try_from(stream.streamlets.len() as u64 * u64::from(lanes)).unwrap_or(i32::MAX)
}

/// Where a partition is: lane `p / M` of streamlet `p % M`.
pub(crate) fn lane_of(stream: &Stream, partition: i32) -> Option<(Arc<Streamlet>, LaneId)> {
    let partition = u32::try_from(partition).ok()?;
    let streamlets = u32::try_from(stream.streamlets.len())
        .ok()
        .filter(|m| *m > 0)?;
    let lane = partition / streamlets;
    if lane >= stream.record.load().config.lanes {
        return None;
    }
    let streamlet = stream.streamlet(StreamletId(partition % streamlets))?;
    Some((streamlet.clone(), LaneId(lane)))
}

/// True if this broker is the one to ask about a streamlet's partitions, recovered or not.
pub(crate) fn is_led_here(shared: &Shared, streamlet: &Streamlet) -> bool {
    let directory = &shared.directory;
    if !directory.is_shared() {
        return true;
    }
    shared.owner_of(streamlet).broker == directory.me()
        && (!streamlet.is_recovered() || directory.serves(streamlet.stream(), streamlet.id()))
}

/// The partition of a lane.
pub(crate) fn partition_of(stream: &Stream, streamlet: StreamletId, lane: LaneId) -> i32 {
    let streamlets = stream.streamlets.len() as u64;
    let partition = u64::from(lane.0) * streamlets + u64::from(streamlet.0);
    i32::try_from(partition).unwrap_or(i32::MAX)
}

/// The stream of a topic's name; the broker's own streams are no topics.
pub(crate) fn named(shared: &Shared, name: &str) -> Option<Arc<Stream>> {
    shared
        .catalog
        .named(name)
        .filter(|s| !s.record.load().internal)
}

/// The stream of a topic's id.
pub(crate) fn with_id(shared: &Shared, id: Uuid) -> Option<Arc<Stream>> {
    let id = StreamId::from_slice(id.as_bytes())?;
    shared.catalog.get(id).filter(|s| !s.record.load().internal)
}

/// The id of a stream's topic.
pub(crate) fn id_of(stream: &Stream) -> Uuid {
    stream.id().0
}
