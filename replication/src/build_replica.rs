//! Building a replica of a group at one broker, or the rest of one: read at the owner or at other replicas, written
//! piece by piece, brought to its disk, and compared with where the group ends.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use kera_log_segments::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use kera_log_segments::ship::Shipped;
use kera_log_segments::window::Place;
use kera_protocol::ids::{Epoch, Ordinal};

use crate::ids::{BrokerId, CopyId};
use crate::pace::Pace;
use crate::primary::{Primary, ReplicaSet, Shape};
use crate::runtime::{all, off};
use crate::transport::{CallError, Pending, Refusal, Reply, Request};

/// Bytes of one read and one write.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;
/// Reads of one replica under way at once, where nothing limits their pace.
const READS: usize = 8;
/// Pieces in the memory of all that a broker builds at once.
pub(crate) const PIECES: usize = 128;

/// Why a replica was not built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    #[error("no replica gave bytes from {0} on")]
    NoSource(u64),
    #[error("no replica is built: {0}")]
    Target(CallError),
    #[error(
        "the replica that was built is not whole, and most likely its sources are not either: {0}"
    )]
    NotWhole(CallError),
    #[error(
        "what was built on {at} ends at byte {length}, ordinal {end_ordinal}: not the recorded group"
    )]
    Differs {
        at: BrokerId,
        length: u64,
        end_ordinal: Ordinal,
    },
}

impl From<CallError> for BuildError {
    fn from(error: CallError) -> Self {
        match error.refusal() {
            Some(Refusal::Short { .. }) => Self::NotWhole(error),
            _ => Self::Target(error),
        }
    }
}

impl BuildError {
    /// The epoch of the newer owner that has sealed the broker, if that is why.
    pub(crate) fn sealed_by(&self) -> Option<Epoch> {
        match self {
            Self::Target(error) => match error.refusal() {
                Some(Refusal::Sealed { by }) => Some(*by),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Asks a broker.
pub(crate) type Ask<'a> =
    &'a (dyn Fn(BrokerId, Request) -> Pending<Result<Reply, CallError>> + Send + Sync);

/// Where a group's bytes are read.
pub(crate) enum GroupBytes<'a> {
    /// At its owner: in memory, or in its file.
    Owner(Arc<ReplicaSet>),
    /// At the brokers that have all of it.
    Replicas(Replicas<'a>),
}

/// Brokers that have all of a group.
#[derive(Clone, Copy)]
pub(crate) struct Replicas<'a> {
    pub(crate) copy: CopyId,
    pub(crate) at: &'a [BrokerId],
    ask: Ask<'a>,
    /// How the group is cut, as its own header says; `None` where that cannot be read.
    pub(crate) shape: Option<Shape>,
}

impl<'a> Replicas<'a> {
    pub(crate) async fn of(copy: CopyId, at: &'a [BrokerId], ask: Ask<'a>) -> Self {
        let shape = None;
        let mut this = Self {
            copy,
            at,
            ask,
            shape,
        };
        let head = this.read(0, 0, SEGMENT_HEADER_BYTES as u64).await;
        let header = head.and_then(|head| SegmentHeader::decode(&head).ok());
        this.shape = header.map(|header| Shape {
            segment_size: header.segment_size,
            segments: header.segments,
        });
        this
    }

    /// Reads a range at one of them, beginning with number `turn`, so that many reads are spread over all; the others
    /// are asked when it fails.
    pub(crate) fn read(&self, turn: usize, address: u64, len: u64) -> Pending<Option<Bytes>> {
        let first = turn % self.at.len().max(1);
        let asks: Vec<_> = self.at[first..]
            .iter()
            .chain(&self.at[..first])
            .map(|broker| {
                let request = Request::Read {
                    copy: self.copy,
                    address,
                    len: len as u32,
                };
                (self.ask)(*broker, request)
            })
            .collect();
        Box::pin(async move {
            for ask in asks {
                if let Ok(Reply::Bytes(bytes)) = ask.await
                    && bytes.len() as u64 == len
                {
                    return Some(bytes);
                }
            }
            None
        })
    }

    /// The pieces from `at` on, `most` of them, below `end`. None reaches over the end of a segment.
    async fn pieces(
        &self,
        (mut at, end): (u64, u64),
        segment_size: u32,
        most: usize,
    ) -> Result<Vec<(u64, Bytes)>, BuildError> {
        let mut reads: Vec<Pending<_>> = Vec::new();
        while at < end && reads.len() < most {
            let to = piece_end(at, end, segment_size);
            let read = self.read(reads.len(), at, to - at);
            reads.push(Box::pin(async move { (at, read.await) }));
            at = to;
        }
        let pieces = all(reads).await.into_iter();
        let pieces = pieces.map(|(at, bytes)| Ok((at, bytes.ok_or(BuildError::NoSource(at))?)));
        pieces.collect()
    }
}

/// Where the piece ends that begins at `at`, of a group that ends at `end`: pieces are read and written one by one, and
/// none lies in two segments.
pub fn piece_end(at: u64, end: u64, segment_size: u32) -> u64 {
    let size = u64::from(segment_size);
    end.min(at + PIECE_BYTES).min((at / size + 1) * size)
}

/// A replica to be built.
pub(crate) struct Build<'a> {
    pub(crate) primary: &'a Primary,
    pub(crate) copy: CopyId,
    /// Under whose seal it is written.
    pub(crate) epoch: Epoch,
    pub(crate) at: BrokerId,
    /// The address below which it has everything already.
    pub(crate) from: u64,
    pub(crate) end: Place,
    pub(crate) bytes: GroupBytes<'a>,
    pub(crate) ask: Ask<'a>,
    /// How fast, and after how much rest; without it as fast as it goes.
    pub(crate) pace: Option<&'a Pace>,
}

impl Build<'_> {
    /// Seals the broker, which shuts out all owners before this one and none after it, and builds the replica.
    pub(crate) async fn seal_and_run(&self) -> Result<(), BuildError> {
        let seal = Request::seal(self.copy.streamlet, self.epoch);
        (self.ask)(self.at, seal).await?;
        self.run().await
    }

    /// Builds the replica at a broker that is sealed.
    pub(crate) async fn run(&self) -> Result<(), BuildError> {
        let runtime = &*self.primary.runtime;
        let end = self.end.address;
        let mut at = self.from;
        while at < end {
            let shape = match &self.bytes {
                GroupBytes::Owner(set) => set.shape(),
                GroupBytes::Replicas(from) => from.shape.ok_or(BuildError::NoSource(at))?,
            };
            if let Some(pace) = self.pace {
                let bytes = piece_end(at, end, shape.segment_size) - at;
                pace.take(runtime, bytes).await;
            }
            let most = match (&self.bytes, self.pace) {
                (GroupBytes::Replicas(_), None) => READS,
                _ => 1,
            };
            // All of them at once, so that nobody waits with some in hand.
            let room = self.primary.pieces.acquire_many(most as u32).await;
            let begun = runtime.now();
            let pieces = match &self.bytes {
                GroupBytes::Owner(set) => {
                    let set = set.clone();
                    off(runtime, move || owner_pieces(&set, at)).await?
                }
                GroupBytes::Replicas(replicas) => {
                    let size = shape.segment_size;
                    replicas.pieces((at, end), size, most).await?
                }
            };
            for (address, bytes) in pieces {
                at = address + bytes.len() as u64;
                let complete = Request::Complete {
                    copy: self.copy,
                    epoch: self.epoch,
                    segment_size: shape.segment_size,
                    segments: shape.segments,
                    address,
                    bytes,
                };
                (self.ask)(self.at, complete).await?;
            }
            drop(room);
            if let Some(pace) = self.pace {
                pace.took(runtime, runtime.now().saturating_sub(begun));
            }
        }
        self.flush().await
    }

    async fn flush(&self) -> Result<(), BuildError> {
        let flush = Request::flush_closed(self.copy, self.end.address);
        match (self.ask)(self.at, flush).await? {
            Reply::Flushed {
                length,
                end_ordinal,
            } if length == self.end.address && end_ordinal != self.end.ordinal && length > 0 => {
                Err(BuildError::Differs {
                    at: self.at,
                    length,
                    end_ordinal,
                })
            }
            Reply::Flushed { .. } => Ok(()),
            other => Err(BuildError::Target(CallError::Lost {
                backup: self.at,
                reason: format!("it answered flush with {other:?}"),
            })),
        }
    }
}

/// The owner's bytes from `at` on, one piece for each segment that they touch, small parts joined so that they do not
/// cost a call each.
fn owner_pieces(set: &ReplicaSet, at: u64) -> Result<Vec<(u64, Bytes)>, BuildError> {
    let Shipped {
        mut runs, on_disk, ..
    } = set.runs(at, PIECE_BYTES as usize);
    if runs.is_empty() {
        runs.extend(on_disk.and_then(|range| set.read_back(range)));
    }
    let pieces = runs.into_iter().map(|run| {
        let mut joined = BytesMut::with_capacity(run.len() as usize);
        run.parts
            .iter()
            .for_each(|part| joined.extend_from_slice(part));
        (run.address, joined.freeze())
    });
    match pieces.collect::<Vec<_>>() {
        none if none.is_empty() => Err(BuildError::NoSource(at)),
        pieces => Ok(pieces),
    }
}
