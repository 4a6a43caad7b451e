//! A group at a primary that has nothing else to do: batches in chunks of the pool that brokers use.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use bytes::Bytes;
use futures::task::AtomicWaker;
use kera_log_segments::group::AckPolicy;
use kera_log_segments::layout::SegmentHeader;
use kera_log_segments::pool::{ChunkPool, ChunkReader, ChunkWriter};
use kera_log_segments::window::Place;
use kera_protocol::batch::{
    BatchBuilder, Compression, HEADER_BYTES, NewRecord, ProducerStamp, crc32c, patch,
};
use kera_protocol::ids::{LaneId, Ordinal};
use kera_replication::ids::CopyId;
use kera_replication::primary::{Run, Shape, Source};
use parking_lot::Mutex;
use rand::RngCore;

/// One batch, appended again and again under other ordinals.
pub struct Batch {
    bytes: Bytes,
    /// Records in it.
    pub records: u32,
}

impl Batch {
    /// As many records of `record_bytes` as fit `batch_bytes`, at least one.
    ///
    /// # Errors
    /// If a record is too large for any batch.
    pub fn new(record_bytes: u32, batch_bytes: u32) -> anyhow::Result<Self> {
        let mut value = vec![0; record_bytes as usize];
        rand::rng().fill_bytes(&mut value);
        let record = NewRecord {
            value: Some(&value),
            ..Default::default()
        };
        let build = |records: u32| -> anyhow::Result<Bytes> {
            let mut builder = BatchBuilder::new();
            for _ in 0..records {
                builder.push(&record)?;
            }
            Ok(Bytes::from(
                builder
                    .finish(Compression::None, ProducerStamp::NONE)?
                    .to_vec(),
            ))
        };
        let two = build(2)?.len() - build(1)?.len();
        // A record's own fields grow by a byte or two within a batch.
        let room = (batch_bytes as usize).saturating_sub(HEADER_BYTES);
        let records = (room / (two + 2)).max(1) as u32;
        Ok(Self {
            bytes: build(records)?,
            records,
        })
    }

    /// Bytes of the batch.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Why a group takes no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has no more segments.
    Full,
    /// It has ended.
    Frozen,
}

/// A group in memory; what its copies have may be released.
pub struct PoolSource {
    copy: CopyId,
    lane: LaneId,
    shape: Shape,
    first_ordinal: Ordinal,
    pool: ChunkPool,
    state: Mutex<State>,
    /// Below this address everything is acknowledged.
    durable: AtomicU64,
    waiter: AtomicWaker,
}

struct State {
    /// Chunks by address; those of one segment without a gap.
    chunks: VecDeque<(u64, ChunkReader)>,
    writer: Option<ChunkWriter>,
    end: Place,
    frozen: bool,
}

impl PoolSource {
    /// An empty group, which holds its first header.
    ///
    /// # Errors
    /// If the pool is used up.
    pub fn new(
        copy: CopyId,
        lane: LaneId,
        shape: Shape,
        first_ordinal: Ordinal,
        pool: ChunkPool,
    ) -> anyhow::Result<Self> {
        let state = State {
            chunks: VecDeque::new(),
            writer: None,
            end: Place {
                address: 0,
                ordinal: first_ordinal,
            },
            frozen: false,
        };
        let source = Self {
            copy,
            lane,
            shape,
            first_ordinal,
            pool,
            state: Mutex::new(state),
            durable: AtomicU64::new(0),
            waiter: AtomicWaker::new(),
        };
        let header = source.header(0, first_ordinal);
        source.write(&mut source.state.lock(), &header)?;
        Ok(source)
    }

    fn header(&self, segment: u32, first_ordinal: Ordinal) -> Vec<u8> {
        let header = SegmentHeader {
            stream: self.copy.streamlet.stream,
            streamlet: self.copy.streamlet.streamlet,
            lane: self.lane,
            group: self.copy.group,
            generation: 0,
            segment,
            epoch: self.copy.epoch,
            segment_size: self.shape.segment_size,
            segments: self.shape.segments,
            first_ordinal,
            snapshot_bytes: 0,
            snapshot_crc: crc32c(&[]),
            created_ms: 0,
            ack: AckPolicy::Written,
            marked: false,
            in_order: false,
        };
        header.encode().to_vec()
    }

    /// Copies `bytes` to the end; nobody sees them before the end moves.
    fn write(&self, state: &mut State, mut bytes: &[u8]) -> anyhow::Result<()> {
        while !bytes.is_empty() {
            let full = state.writer.as_ref().is_none_or(|w| w.remaining() == 0);
            if full {
                let writer = self.pool.try_take();
                let writer = writer.ok_or_else(|| anyhow::anyhow!("the chunk pool is used up"))?;
                state.chunks.push_back((state.end.address, writer.reader()));
                state.writer = Some(writer);
            }
            let Some(writer) = &mut state.writer else {
                continue;
            };
            let taken = writer.append(bytes);
            bytes = &bytes[taken..];
            state.end.address += taken as u64;
        }
        Ok(())
    }

    /// Appends `batch`; where it ends.
    ///
    /// # Errors
    /// The outer one if the pool is used up.
    pub fn append(&self, batch: &Batch) -> anyhow::Result<Result<u64, Refused>> {
        let mut state = self.state.lock();
        if state.frozen {
            return Ok(Err(Refused::Frozen));
        }
        let size = u64::from(self.shape.segment_size);
        let len = batch.len() as u64;
        // Never filled to the last byte: an address always tells its segment.
        if state.end.address % size + len >= size {
            let segment = state.end.address / size + 1;
            if segment >= u64::from(self.shape.segments) {
                return Ok(Err(Refused::Full));
            }
            state.writer = None;
            state.end.address = segment * size;
            let header = self.header(segment as u32, state.end.ordinal);
            self.write(&mut state, &header)?;
        }
        let mut head = [0; HEADER_BYTES];
        head.copy_from_slice(&batch.bytes[..HEADER_BYTES]);
        patch(&mut head, state.end.ordinal, self.copy.epoch);
        self.write(&mut state, &head)?;
        self.write(&mut state, &batch.bytes[HEADER_BYTES..])?;
        state.end.ordinal += u64::from(batch.records);
        Ok(Ok(state.end.address))
    }

    /// Below this address everything is acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Waits until all below `address` is; one waits at a time. As in a broker, nothing is set up for a wait
    /// but a waker.
    pub async fn reaches(&self, address: u64) {
        std::future::poll_fn(|cx| {
            if self.acknowledged() >= address {
                return Poll::Ready(());
            }
            self.waiter.register(cx.waker());
            // It may have come in between.
            match self.acknowledged() >= address {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Gives back chunks that lie wholly below `address`.
    pub fn release(&self, address: u64) {
        let mut state = self.state.lock();
        // The next chunk begins where this one ends, or in the next segment.
        while state
            .chunks
            .get(1)
            .is_some_and(|(next, _)| *next <= address)
        {
            state.chunks.pop_front();
        }
    }
}

impl Source for PoolSource {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn first_ordinal(&self) -> Ordinal {
        self.first_ordinal
    }

    fn runs(&self, from: u64, max_bytes: usize) -> Vec<Run> {
        let state = self.state.lock();
        let mut runs: Vec<Run> = Vec::new();
        let mut left = max_bytes;
        let begin = state
            .chunks
            .partition_point(|(at, chunk)| at + chunk.len() as u64 <= from);
        for (at, chunk) in state.chunks.range(begin..) {
            if left == 0 {
                break;
            }
            let skip = from.saturating_sub(*at) as usize;
            let take = (chunk.len() - skip).min(left);
            if take == 0 {
                continue;
            }
            let part = chunk.slice(skip..skip + take);
            let address = at + skip as u64;
            left -= take;
            match runs.last_mut() {
                Some(run) if run.address + run.len() == address => run.parts.push(part),
                _ => runs.push(Run {
                    address,
                    parts: vec![part],
                }),
            }
        }
        runs
    }

    fn end(&self) -> Place {
        self.state.lock().end
    }

    fn is_frozen(&self) -> bool {
        self.state.lock().frozen
    }

    fn freeze(&self) -> Place {
        let mut state = self.state.lock();
        state.frozen = true;
        state.end
    }

    fn durable(&self, address: u64) {
        self.durable.fetch_max(address, Ordering::AcqRel);
        self.waiter.wake();
    }

    fn closed(&self) {
        self.durable(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};
    use kera_replication::certificate::{FetchedFile, scan_copy};
    use kera_replication::faults::Faults;
    use kera_replication::ids::StreamletKey;

    use super::*;

    fn source(shape: Shape) -> PoolSource {
        let copy = CopyId {
            streamlet: StreamletKey {
                stream: StreamId::random(),
                streamlet: StreamletId(0),
            },
            group: GroupId(3),
            epoch: Epoch(1),
        };
        let pool = ChunkPool::new(64 << 20).unwrap();
        PoolSource::new(copy, LaneId(2), shape, 7, pool).unwrap()
    }

    #[test]
    fn what_is_shipped_is_a_group_that_a_scan_accepts() {
        let shape = Shape {
            segment_size: 1 << 20,
            segments: 3,
        };
        let source = source(shape);
        let batch = Batch::new(100, 16 << 10).unwrap();
        assert!(batch.len() <= 16 << 10 && batch.len() > 15 << 10);
        let mut group = vec![0; 3 << 20];
        let (mut shipped, mut appended) = (0, 0u64);
        loop {
            let end = match source.append(&batch).unwrap() {
                Ok(end) => end,
                Err(refused) => {
                    assert_eq!(refused, Refused::Full);
                    break;
                }
            };
            appended += 1;
            // Behind by a few batches, in pieces that fit nothing.
            while end - shipped > 100_000 {
                for run in source.runs(shipped, 33_333) {
                    let mut at = run.address as usize;
                    for part in &run.parts {
                        group[at..at + part.len()].copy_from_slice(part);
                        at += part.len();
                    }
                    shipped = at as u64;
                }
                source.release(shipped);
            }
        }
        let end = source.freeze();
        for run in source.runs(shipped, usize::MAX) {
            let bytes = run.parts.concat();
            let at = run.address as usize;
            group[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(source.append(&batch).unwrap(), Err(Refused::Frozen));
        let found = scan_copy(&FetchedFile(group.into()), source.copy, Faults::default());
        let found = found.unwrap().expect("a group");
        assert_eq!(found.length, end.address);
        assert_eq!(found.batches, appended);
        assert_eq!(found.end_ordinal, 7 + appended * u64::from(batch.records));
        let used = source.pool.used();
        assert!(used < 1 << 20, "{used} bytes are still held");
    }

    #[test]
    fn a_small_batch_has_one_record() {
        let batch = Batch::new(100, 1).unwrap();
        assert_eq!(batch.records, 1);
        assert!(batch.len() > 100);
    }
}
