//! A Fetch request as far as it is needed.

use std::time::Duration;

use kafka_protocol::messages::ApiKey;

use crate::topic::TopicRef;
use crate::wire::reader::{ReadError, Reader};
use crate::wire::request::is_flexible;

/// The first version that names topics by id.
pub(crate) const BY_ID: i16 = 13;
/// The isolation level of who reads only what is committed.
const READ_COMMITTED: i8 = 1;
/// Longest wait of a long poll.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// What a client wants of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) topic: TopicRef,
    pub(crate) partition: i32,
    /// The leader epoch the client knows; -1 for none.
    pub(crate) leader_epoch: i32,
    pub(crate) offset: i64,
    pub(crate) max_bytes: usize,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct FetchRequest {
    pub(crate) max_wait: Duration,
    pub(crate) min_bytes: usize,
    pub(crate) max_bytes: usize,
    pub(crate) session_id: i32,
    pub(crate) session_epoch: i32,
    /// Whether it and its answer name topics by id.
    pub(crate) by_id: bool,
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) forgotten: Vec<(TopicRef, i32)>,
    /// Whether only what is committed is to be given.
    pub(crate) committed: bool,
    /// Where the client is, if it says so.
    pub(crate) rack: Option<Box<str>>,
}

fn at_least_zero(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

impl FetchRequest {
    /// The most bytes that a request asks for, without the rest of its body.
    pub(crate) fn max_bytes(body: &[u8], version: i16) -> Result<usize, ReadError> {
        let mut reader = Reader::new(body, is_flexible(ApiKey::Fetch, version));
        if version < 15 {
            reader.i32()?;
        }
        let (_wait, _least) = (reader.i32()?, reader.i32()?);
        Ok(at_least_zero(reader.i32()?))
    }

    /// Reads a request's body.
    pub(crate) fn parse(body: &[u8], version: i16) -> Result<Self, ReadError> {
        let mut reader = Reader::new(body, is_flexible(ApiKey::Fetch, version));
        let r = &mut reader;
        if version < 15 {
            r.i32()?; // The replica, which no client is.
        }
        let max_wait = Duration::from_millis(u64::try_from(r.i32()?).unwrap_or(0));
        let min_bytes = at_least_zero(r.i32()?);
        let max_bytes = at_least_zero(r.i32()?);
        let committed = r.i8()? == READ_COMMITTED;
        let (session_id, session_epoch) = if version >= 7 {
            (r.i32()?, r.i32()?)
        } else {
            (0, -1)
        };
        let by_id = version >= BY_ID;
        let mut wanted = Vec::new();
        for _ in 0..r.count(3)? {
            let topic = TopicRef::read(r, by_id)?;
            for _ in 0..r.count(16)? {
                wanted.push(read_partition(r, version, &topic)?);
            }
            r.tagged_fields()?;
        }
        let mut forgotten = Vec::new();
        if version >= 7 {
            for _ in 0..r.count(3)? {
                let topic = TopicRef::read(r, by_id)?;
                for _ in 0..r.count(4)? {
                    forgotten.push((topic.clone(), r.i32()?));
                }
                r.tagged_fields()?;
            }
        }
        let rack = match version >= 11 {
            true => r.nullable_string()?.filter(|rack| !rack.is_empty()),
            false => None,
        };
        r.tagged_fields()?;
        Ok(Self {
            max_wait: max_wait.min(MAX_WAIT),
            min_bytes,
            max_bytes,
            session_id,
            session_epoch,
            by_id,
            wanted,
            forgotten,
            committed,
            rack: rack.map(Box::from),
        })
    }
}

fn read_partition(r: &mut Reader<'_>, version: i16, topic: &TopicRef) -> Result<Wanted, ReadError> {
    let partition = r.i32()?;
    let leader_epoch = if version >= 9 { r.i32()? } else { -1 };
    let offset = r.i64()?;
    if version >= 12 {
        r.i32()?; // The epoch last fetched, which replicas compare.
    }
    if version >= 5 {
        r.i64()?; // A replica's log start.
    }
    let max_bytes = at_least_zero(r.i32()?);
    r.tagged_fields()?;
    Ok(Wanted {
        topic: topic.clone(),
        partition,
        leader_epoch,
        offset,
        max_bytes,
    })
}
