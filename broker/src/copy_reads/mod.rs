//! Reads of closed groups from copies that this broker holds of streamlets that another one owns.
//!
//! Which copies count is decided by the metadata store alone (`listed`): what lies here and is not
//! listed is not served. Bytes are walked from the batch that is asked for up to the recorded end,
//! each batch with its checksum (`walk`), and nothing behind that end is shown. The owner knows more
//! in every case: whoever is refused here asks it. The owner in turn tells readers that name their rack
//! who has a copy there (`near`).

pub(crate) mod listed;
mod near;
mod walk;

use std::sync::Arc;

use bytes::Bytes;
use kera_grpc::serve::Caller;
use kera_metadata::GroupRecord;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, Ordinal, StreamId, StreamletId};
use kera_protocol::v1;
use kera_streamlet::Located;

use crate::cluster::Clustered;
use crate::data::catalog::stream_id;
use crate::data::fetch::{cursor, located, read_refusal};
use crate::fault_rules::Rule;
use crate::shared::Shared;
use listed::Lane;

pub use near::{Nearby, brokers_in, nearby};

/// Most bytes of one answer, unless a single batch is larger.
pub(crate) const MOST_BYTES: usize = 1 << 20;
/// Groups that follow, named in one answer.
const GROUPS: usize = 16;

/// What is asked of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The lane.
    pub lane: LaneId,
    /// Where to begin: the ordinal decides, the rest is a hint.
    pub from: Located,
    /// Exclusive.
    pub end_ordinal: Ordinal,
    /// About so many bytes, at least a batch.
    pub max_bytes: usize,
}

/// What a copy gave.
#[derive(Debug)]
pub struct Given {
    /// Whole batches.
    pub bufs: Vec<Bytes>,
    /// Bytes of them.
    pub bytes: usize,
    /// Where the next read goes on.
    pub next: Located,
    /// The first ordinal of the lane that is still stored.
    pub log_start: Ordinal,
    /// Up to here this broker holds listed copies of closed groups, without a group in between that it
    /// does not hold.
    pub held_to: Ordinal,
    /// Up to here the lane's groups are closed, whoever holds them.
    pub closed_to: Ordinal,
    /// Bytes of each segment.
    pub segment_size: u32,
    /// The closed groups that follow the one read.
    groups: Vec<GroupRecord>,
}

/// Why a copy gave nothing.
#[derive(Debug)]
pub struct Refused {
    /// For the client.
    pub error: WireError,
    /// The first ordinal still stored, if what was asked for lies below.
    pub log_start: Option<Ordinal>,
}

impl From<WireError> for Refused {
    fn from(error: WireError) -> Self {
        Self {
            error,
            log_start: None,
        }
    }
}

/// The group of `lane` that holds the ordinal, if it is closed, and where to begin in it: behind a gap
/// that a loss has left the next group's begin stands for the ordinal.
fn group_at(lane: &Lane, ordinal: Ordinal) -> Option<(usize, Ordinal)> {
    let at = lane.groups.partition_point(|g| g.next_ordinal <= ordinal);
    let group = lane.groups.get(at)?;
    let first = group.first_ordinal?;
    if ordinal >= group.end_ordinal {
        let next = lane.groups.get(at + 1)?;
        return Some((at + 1, next.first_ordinal?));
    }
    (ordinal >= first).then_some((at, ordinal))
}

/// Where the run of groups from number `at` on ends that `broker` is listed for.
fn held_to(lane: &Lane, at: usize, broker: u32) -> Ordinal {
    let holds = |g: &&GroupRecord| {
        g.copies.iter().any(|copy| copy.broker.0 == broker) || Rule::UnlistedCopyServed.is_broken()
    };
    let run = lane.groups[at..].iter().take_while(holds);
    run.last().map_or(0, |group| group.next_ordinal)
}

fn no_copy(asked: &Asked) -> WireError {
    let text = format!(
        "stream {} streamlet {} lane {}: this broker is not recorded to hold a closed group with ordinal {}; ask the owner",
        asked.stream, asked.streamlet, asked.lane, asked.from.ordinal
    );
    WireError::new(ErrorCode::NotOwner, text)
}

/// Reads from a copy that this broker holds. Waits for the metadata store and for the disk.
///
/// # Errors
/// [`ErrorCode::NotOwner`] if it is not listed for the group, [`ErrorCode::OutOfRange`] below the log's
/// start, [`ErrorCode::Damaged`] if bytes are not whole, [`ErrorCode::StorageError`].
pub fn read(shared: &Shared, asked: &Asked) -> Result<Given, Refused> {
    let Some(clustered) = &shared.clustered else {
        return Err(no_copy(asked).into());
    };
    match read_listed(shared, clustered, asked) {
        // Groups may have been closed since the list was read, and copies made.
        Err(refused)
            if refused.error.code == ErrorCode::NotOwner
                && shared.listed.forget(asked.stream, asked.streamlet) =>
        {
            read_listed(shared, clustered, asked)
        }
        read => read,
    }
}

fn read_listed(shared: &Shared, clustered: &Clustered, asked: &Asked) -> Result<Given, Refused> {
    let known = shared
        .listed
        .of(&*shared.metadata, asked.stream, asked.streamlet)?;
    let lane = known.lane(asked.lane).ok_or_else(|| no_copy(asked))?;
    if asked.from.ordinal < lane.log_start {
        let text = format!(
            "ordinal {} is below the log's start, {}",
            asked.from.ordinal, lane.log_start
        );
        return Err(Refused {
            error: WireError::new(ErrorCode::OutOfRange, text),
            log_start: Some(lane.log_start),
        });
    }
    let found = group_at(lane, asked.from.ordinal);
    let (at, ordinal) = found.ok_or_else(|| no_copy(asked))?;
    let group = &lane.groups[at];
    let held_to = held_to(lane, at, shared.broker_id);
    if held_to == 0 {
        return Err(no_copy(asked).into());
    }
    let from = Located {
        ordinal,
        at: asked.from.at.filter(|_| ordinal == asked.from.ordinal),
    };
    let store = clustered.peers.backup.store();
    let at_most = asked.max_bytes.clamp(1, MOST_BYTES);
    let walked = walk::walk(store, group, from, asked.end_ordinal, at_most);
    let walked = walked.map_err(|error| {
        tracing::warn!(group = ?group.key(), %error, "a replica of this broker cannot be read");
        WireError::from(error)
    });
    let walked = match walked {
        Err(error) if error.code == ErrorCode::Damaged && Rule::DamageSkipped.is_broken() => {
            walk::Walked::nothing_up_to(group.end_ordinal)
        }
        walked => walked?,
    };
    if walked.stops_at_transaction && walked.bufs.is_empty() {
        let text = format!(
            "stream {} streamlet {} lane {}: ordinal {ordinal} belongs to a transaction, and how that ended is its owner's to say; ask the owner",
            asked.stream, asked.streamlet, asked.lane
        );
        return Err(WireError::new(ErrorCode::NotOwner, text).into());
    }
    shared
        .data
        .metrics
        .copy_read_bytes
        .inc_by(walked.bytes as u64);
    let next = match walked.ordinal >= group.end_ordinal {
        true => Located {
            ordinal: group.next_ordinal,
            at: None,
        },
        false => Located {
            ordinal: walked.ordinal,
            at: Some((group.group, group.generation, walked.address)),
        },
    };
    let follow = lane.groups[at + 1..].iter().take(GROUPS);
    let groups = match next.at {
        None => follow.cloned().collect(),
        Some(_) => Vec::new(),
    };
    Ok(Given {
        bufs: walked.bufs,
        bytes: walked.bytes,
        next,
        log_start: lane.log_start,
        held_to,
        closed_to: lane.groups.last().map_or(held_to, |g| g.next_ordinal),
        segment_size: walked.segment_size,
        groups,
    })
}

/// Answers a read frame that asks for a copy. Waits as [`read`] does.
pub fn answer(shared: &Shared, request: &v1::ReadRequest) -> (v1::ReadResponse, Vec<Bytes>) {
    match try_answer(shared, request) {
        Ok(answered) => answered,
        Err(refused) => {
            let mut refusal = read_refusal(&refused.error);
            refusal.log_start = refused.log_start.unwrap_or_default();
            (refusal, Vec::new())
        }
    }
}

fn try_answer(
    shared: &Shared,
    request: &v1::ReadRequest,
) -> Result<(v1::ReadResponse, Vec<Bytes>), Refused> {
    let stream = stream_id(&request.stream)?;
    if request.lane_generation.is_some() {
        let text = "where a generation of lanes ends is its owner's to say; ask it";
        return Err(WireError::new(ErrorCode::NotOwner, text).into());
    }
    let wanted = request.cursor.unwrap_or_default();
    let segment_size = shared.data.catalog.get(stream).map(|stream| {
        let record = stream.record.load();
        record.config.segment_size
    });
    let asked = Asked {
        stream,
        streamlet: StreamletId(request.streamlet),
        lane: LaneId(request.lane),
        from: located(&wanted, segment_size.unwrap_or_default()),
        end_ordinal: match request.end_ordinal {
            0 => Ordinal::MAX,
            end => end,
        },
        max_bytes: request.max_bytes as usize,
    };
    let given = read(shared, &asked)?;
    let reply = v1::ReadResponse {
        next: Some(cursor(&given.next, given.segment_size)),
        head_ordinal: given.held_to,
        log_start: given.log_start,
        groups: given.groups.iter().map(group_info).collect(),
        finished: given.next.ordinal >= asked.end_ordinal,
        ..Default::default()
    };
    Ok((reply, given.bufs))
}

/// A closed group as discovery shows it, with who is listed to hold it.
fn group_info(group: &GroupRecord) -> v1::GroupInfo {
    v1::GroupInfo {
        group: group.group.0,
        generation: group.generation,
        lane: group.lane.0,
        epoch: group.epoch.0,
        first_ordinal: group.start_ordinal(),
        end_ordinal: group.end_ordinal,
        bytes: group.length,
        closed: true,
        holders: group.copies.iter().map(|copy| copy.broker.0).collect(),
    }
}

/// The closed groups of a lane from an ordinal on, and the brokers that hold them. Waits for the
/// metadata store.
///
/// # Errors
/// [`ErrorCode::UnknownStreamlet`]; [`ErrorCode::StorageError`] if the store does not answer.
pub fn find(
    shared: &Arc<Shared>,
    stream: StreamId,
    request: &v1::FindCopiesRequest,
    caller: Option<&Caller>,
) -> Result<v1::FindCopiesResponse, WireError> {
    let streamlet = StreamletId(request.streamlet);
    let known = shared.listed.of(&*shared.metadata, stream, streamlet)?;
    let mut found = v1::FindCopiesResponse::default();
    if let Some(lane) = known.lane(LaneId(request.lane))
        && let Some((at, _)) = group_at(lane, request.ordinal.max(lane.log_start))
    {
        let groups = lane.groups[at..].iter().take(GROUPS);
        found.groups = groups.map(group_info).collect();
    }
    let names = |id: u32| found.groups.iter().any(|group| group.holders.contains(&id));
    let listener = caller.and_then(|caller| caller.listener);
    let brokers = shared.data.directory.brokers();
    let holders = brokers.iter().filter(|broker| names(broker.id));
    let reached = holders.filter_map(|broker| {
        Some(v1::CopyHolder {
            broker: broker.id,
            address: broker.native_at(listener)?.to_owned(),
            rack: broker.rack.clone().unwrap_or_default(),
        })
    });
    found.brokers = reached.collect();
    Ok(found)
}
