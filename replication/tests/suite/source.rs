//! A group in memory, as a broker's would be, small enough to end often.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use kera_log_segments::group::AckPolicy;
use kera_log_segments::layout::SegmentHeader;
use kera_log_segments::ship::ShipRun;
use kera_log_segments::window::Place;
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, crc32c, patch};
use kera_protocol::ids::{LaneId, Ordinal};
use kera_replication::ids::CopyId;
use kera_replication::primary::{Lane, Shape, Source};
use kera_replication::records::RecordsError;
use kera_replication::runtime::within;
use tokio::sync::watch;

pub const SHAPE: Shape = Shape {
    segment_size: 1024,
    segments: 3,
};

/// A batch as it was appended.
#[derive(Clone, Debug)]
pub struct Appended {
    /// Unique among all batches of a run.
    pub id: u64,
    /// Where it ends in its group.
    pub end: u64,
    /// With ordinal and epoch in place.
    pub bytes: Bytes,
}

pub struct TestSource {
    pub copy: CopyId,
    pub lane: LaneId,
    shape: Shape,
    first_ordinal: Ordinal,
    ack: AckPolicy,
    state: Mutex<State>,
    /// Below this address all counts, as its lane says.
    durable: watch::Sender<u64>,
}

/// Why an append is not acknowledged.
#[derive(Debug, PartialEq)]
pub enum Unacknowledged {
    /// Not in time; the bytes may still become durable.
    TooFewReplicas,
    /// Another broker owns the streamlet.
    Deposed(RecordsError),
}

struct State {
    /// Bytes of each segment, as far as they were written.
    segments: Vec<Vec<u8>>,
    end: Place,
    frozen: bool,
    is_unreadable: bool,
    batches: Vec<Appended>,
}

/// Why a group takes no batch.
#[derive(Debug, PartialEq)]
pub enum Closed {
    Full,
    Frozen,
}

impl TestSource {
    pub fn new(copy: CopyId, lane: LaneId, first_ordinal: Ordinal) -> Self {
        Self::with_shape(copy, lane, first_ordinal, SHAPE)
    }

    /// Another size than the suite's.
    pub fn with_shape(copy: CopyId, lane: LaneId, first_ordinal: Ordinal, shape: Shape) -> Self {
        Self {
            copy,
            lane,
            shape,
            first_ordinal,
            ack: AckPolicy::Written,
            state: Mutex::new(State {
                segments: Vec::new(),
                end: Place {
                    address: 0,
                    ordinal: first_ordinal,
                },
                frozen: false,
                is_unreadable: false,
                batches: Vec::new(),
            }),
            durable: watch::Sender::new(0),
        }
    }

    /// Waits until all below `address` counts, at most for `time`.
    pub async fn acknowledged(
        &self,
        lane: &Arc<Lane>,
        address: u64,
        time: Duration,
    ) -> Result<(), Unacknowledged> {
        let mut durable = self.durable.subscribe();
        let runtime = lane.primary().runtime().clone();
        let lane = lane.clone();
        let counts = async move {
            loop {
                let reached = *durable.borrow_and_update();
                if let Some(error) = lane.deposed() {
                    return Err(Unacknowledged::Deposed(error));
                }
                if reached >= address {
                    return Ok(());
                }
                durable.changed().await.expect("it is not dropped");
            }
        };
        let counted = within(&*runtime, time, Box::pin(counts)).await;
        counted.unwrap_or(Err(Unacknowledged::TooFewReplicas))
    }

    /// What its replicas do with bytes before they count.
    pub fn with_ack(self, ack: AckPolicy) -> Self {
        Self { ack, ..self }
    }

    /// Its bytes cannot be read from now on, or can be again; nobody is told.
    pub fn set_unreadable(&self, is_unreadable: bool) {
        self.state.lock().unwrap().is_unreadable = is_unreadable;
    }

    /// What stands before the first batch, and comes with it.
    fn lead(&self) -> Vec<u8> {
        let snapshot = format!("lane {} before {}", self.lane, self.first_ordinal).into_bytes();
        let mut lead = self.header(0, self.first_ordinal, &snapshot);
        lead.extend_from_slice(&snapshot);
        lead
    }

    fn header(&self, segment: u32, first_ordinal: Ordinal, snapshot: &[u8]) -> Vec<u8> {
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
            snapshot_bytes: snapshot.len() as u32,
            snapshot_crc: crc32c(snapshot),
            created_ms: 0,
            ack: AckPolicy::Written,
            marked: false,
            in_order: false,
        };
        header.encode().to_vec()
    }

    /// Appends a batch that says `id`, with `filler` bytes more.
    pub fn append(&self, id: u64, filler: usize) -> Result<Appended, Closed> {
        let mut state = self.state.lock().unwrap();
        if state.frozen {
            return Err(Closed::Frozen);
        }
        let mut bytes = batch(id, filler);
        patch(&mut bytes, state.end.ordinal, self.copy.epoch);
        let size = self.shape.segment_size as usize;
        if state.segments.is_empty() {
            state.segments.push(self.lead());
        }
        let last = state.segments.len() - 1;
        // Never filled to the last byte: an address always tells its segment.
        if state.segments[last].len() + bytes.len() >= size {
            if state.segments.len() == self.shape.segments as usize {
                return Err(Closed::Full);
            }
            let header = self.header(last as u32 + 1, state.end.ordinal, &[]);
            state.segments.push(header);
        }
        let last = state.segments.len() - 1;
        state.segments[last].extend_from_slice(&bytes);
        state.end = Place {
            address: (last * size + state.segments[last].len()) as u64,
            ordinal: state.end.ordinal + 1,
        };
        let appended = Appended {
            id,
            end: state.end.address,
            bytes: bytes.into(),
        };
        state.batches.push(appended.clone());
        Ok(appended)
    }

    /// All its segments, as they lie in a copy: zeros between a segment's end and the next.
    pub fn bytes(&self) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        let mut out = Vec::new();
        for (index, segment) in state.segments.iter().enumerate() {
            out.resize(index * self.shape.segment_size as usize, 0);
            out.extend_from_slice(segment);
        }
        out
    }

    pub fn batches(&self) -> Vec<Appended> {
        self.state.lock().unwrap().batches.clone()
    }
}

/// A batch that no lane takes: its producer is not known, and it does not begin at 0.
pub fn out_of_sequence() -> Vec<u8> {
    let stamp = ProducerStamp {
        producer_id: 1,
        producer_epoch: 0,
        base_sequence: 9,
    };
    stamped(0, 0, stamp)
}

/// One record whose value begins with `id`.
pub fn batch(id: u64, filler: usize) -> Vec<u8> {
    stamped(id, filler, ProducerStamp::NONE)
}

fn stamped(id: u64, filler: usize, stamp: ProducerStamp) -> Vec<u8> {
    let mut value = id.to_be_bytes().to_vec();
    value.resize(8 + filler, id as u8);
    let mut builder = BatchBuilder::new();
    let record = NewRecord {
        value: Some(&value),
        timestamp: id as i64,
        ..Default::default()
    };
    builder.push(&record).expect("a small record");
    let batch = builder.finish(Compression::None, stamp);
    batch.expect("one record").to_vec()
}

impl Source for TestSource {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn ack(&self) -> AckPolicy {
        self.ack
    }

    fn first_ordinal(&self) -> Ordinal {
        self.first_ordinal
    }

    fn runs(&self, from: u64, max_bytes: usize) -> Vec<ShipRun> {
        let state = self.state.lock().unwrap();
        let size = u64::from(self.shape.segment_size);
        let (mut out, mut bytes) = (Vec::new(), 0);
        if state.is_unreadable {
            return out;
        }
        for (index, segment) in state.segments.iter().enumerate() {
            let start = index as u64 * size;
            let at = from.max(start);
            let skip = (at - start) as usize;
            if skip >= segment.len() || bytes >= max_bytes {
                continue;
            }
            let take = (segment.len() - skip).min(max_bytes - bytes);
            bytes += take;
            // Two parts, as if they lay in two chunks.
            let part = &segment[skip..skip + take];
            let (one, two) = part.split_at(take / 2);
            out.push(ShipRun {
                address: at,
                parts: vec![Bytes::copy_from_slice(one), Bytes::copy_from_slice(two)],
            });
        }
        out
    }

    fn end(&self) -> Place {
        self.state.lock().unwrap().end
    }

    fn is_frozen(&self) -> bool {
        self.state.lock().unwrap().frozen
    }

    fn freeze(&self) -> Place {
        let mut state = self.state.lock().unwrap();
        state.frozen = true;
        state.end
    }

    fn durable(&self, address: u64) {
        self.durable
            .send_modify(|durable| *durable = address.max(*durable));
    }

    fn closed(&self) {
        self.durable(self.end().address);
    }

    fn deposed(&self) {
        // Whoever waits looks again.
        self.durable.send_modify(|_| {});
    }
}
