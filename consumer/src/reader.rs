//! Reading lanes without a group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_protocol::ids::{LaneId, LaneKey, Ordinal, StreamId, StreamletId};
use kera_protocol::v1::{self, Cursor};
use kera_rpc::{Client, RpcError, Stall};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::batch::{Batch, ChunkReader, OwnedRecord, Position, Unpacked, Unpacking};
use crate::builder::ReaderBuilder;
use crate::config::{Fetch, FetchSettings, LaneRange, Seek, Start};
use crate::error::ConsumeError;
use crate::fetch::{Fetcher, Popped, SourceSpec};
use crate::find::{find, find_in_lane};
use crate::metrics::Metrics;
use crate::opened::OpenedBatch;

/// How often a reader that follows all lanes looks for new ones.
const LANES_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Lane {
    source: u64,
    key: LaneKey,
    /// Everything below was delivered.
    next: Cursor,
    end: Ordinal,
    finished: bool,
}

/// Reads lanes of a stream, on its own: it commits nothing, and every reader sees every record.
///
/// After a lost connection or a restart of the broker it goes on where it was.
pub struct Reader {
    client: Client,
    stream: String,
    fetch: Fetch,
    follow: bool,
    /// New lanes are read too.
    all_lanes: bool,
    look_for_lanes: Instant,
    /// A look under way. A task of its own: what arrives meanwhile is not held up by a broker that does not
    /// answer.
    looking: Option<JoinHandle<Result<Option<NewLanes>, RpcError>>>,
    fetcher: Arc<Fetcher>,
    lanes: Vec<Lane>,
    index: BTreeMap<(u32, u32), usize>,
    unpacking: Unpacking,
    current: Option<ChunkReader>,
    /// The batch that single records are taken of.
    opened: Option<OpenedBatch>,
    counts: Metrics,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("stream", &self.stream)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Settings of a new reader.
    pub fn builder() -> ReaderBuilder {
        ReaderBuilder::new()
    }

    pub(crate) async fn open(
        client: Client,
        stream: String,
        settings: FetchSettings,
        start: Start,
        follow: bool,
        chosen: Option<Vec<(u32, u32)>>,
    ) -> Result<Self, ConsumeError> {
        let meta = client.refresh(&stream).await?;
        let found = client.find_ordinals(&meta, start.into()).await?;
        let mut reader = Self::without_lanes(client, stream, &settings);
        reader.follow = follow;
        reader.all_lanes = chosen.is_none();
        let wanted = |lane: &(u32, u32)| chosen.as_ref().is_none_or(|all| all.contains(lane));
        let found = found.into_iter();
        let found = found.filter(|lane| wanted(&(lane.streamlet, lane.lane)));
        reader.add(meta.id, found.collect());
        for (streamlet, lane) in chosen.unwrap_or_default() {
            if !reader.index.contains_key(&(streamlet, lane)) {
                return Err(ConsumeError::UnknownLane { streamlet, lane });
            }
        }
        Ok(reader)
    }

    pub(crate) async fn open_ranges(
        client: Client,
        stream: String,
        settings: FetchSettings,
        ranges: &[LaneRange],
    ) -> Result<Self, ConsumeError> {
        let meta = client.refresh(&stream).await?;
        let mut reader = Self::without_lanes(client, stream, &settings);
        for range in ranges {
            if range.streamlet >= meta.streamlets {
                let (streamlet, lane) = (range.streamlet, range.lane);
                return Err(ConsumeError::UnknownLane { streamlet, lane });
            }
            let end = range.end.unwrap_or(Ordinal::MAX);
            reader.note(meta.id, (range.streamlet, range.lane), range.from, end);
        }
        reader.fetch_from(0);
        Ok(reader)
    }

    fn without_lanes(client: Client, stream: String, settings: &FetchSettings) -> Self {
        Self {
            fetcher: Fetcher::start(client.clone(), stream.clone(), settings),
            client,
            stream,
            fetch: settings.fetch,
            follow: false,
            all_lanes: false,
            look_for_lanes: Instant::now() + LANES_INTERVAL,
            looking: None,
            lanes: Vec::new(),
            index: BTreeMap::new(),
            unpacking: settings.unpacking(),
            current: None,
            opened: None,
            counts: Metrics::default(),
        }
    }

    /// Reads lanes that are not read yet.
    fn add(&mut self, stream: StreamId, found: Vec<v1::LaneCursor>) {
        let known = self.lanes.len();
        for lane in found {
            let key = (lane.streamlet, lane.lane);
            if !self.index.contains_key(&key) {
                let from = lane.cursor.unwrap_or_default();
                let end = match self.follow {
                    true => Ordinal::MAX,
                    false => lane.head_ordinal.max(from.ordinal),
                };
                self.note(stream, key, from, end);
            }
        }
        self.fetch_from(known);
    }

    /// Fetches the lanes from the one of this index on.
    fn fetch_from(&mut self, known: usize) {
        let lanes = self.lanes.iter().enumerate().skip(known);
        let specs = lanes.map(|(index, lane)| self.spec(index, lane)).collect();
        let sources = self.fetcher.add(specs);
        for (lane, source) in self.lanes[known..].iter_mut().zip(sources) {
            lane.source = source;
        }
    }

    fn note(
        &mut self,
        stream: StreamId,
        (streamlet, lane): (u32, u32),
        from: Cursor,
        end: Ordinal,
    ) {
        self.index.insert((streamlet, lane), self.lanes.len());
        self.lanes.push(Lane {
            source: 0,
            key: LaneKey {
                stream,
                streamlet: StreamletId(streamlet),
                lane: LaneId(lane),
            },
            next: from,
            end,
            finished: false,
        });
    }

    fn spec(&self, index: usize, lane: &Lane) -> SourceSpec {
        SourceSpec {
            tag: index as u64,
            life: 0,
            lane: lane.key,
            from: lane.next,
            end: lane.end,
            lane_generation: None,
            push: self.fetch == Fetch::Push,
            slices: None,
        }
    }

    /// The next batch of any lane, as soon as there is one; `None` when all lanes are read to their
    /// end, which never happens while following. Safe to cancel: nothing is lost.
    ///
    /// # Errors
    /// [`ConsumeError::Lane`], [`ConsumeError::Corrupt`] and [`ConsumeError::Undecodable`] are about one lane:
    /// call again to go on, or [`seek`](Self::seek) past it.
    pub async fn next_batch(&mut self) -> Result<Option<Batch>, ConsumeError> {
        let batch = match self.opened.take().and_then(OpenedBatch::rest) {
            Some(rest) => Some(rest),
            None => self.fetched().await?,
        };
        if let Some(batch) = &batch {
            let position = batch.position();
            self.deliver(position.lane, position.next, batch.len() as u64);
        }
        Ok(batch)
    }

    /// The next record; the others of its batch stay for later calls. Safe to cancel.
    pub(crate) async fn next_record(&mut self) -> Result<Option<OwnedRecord>, ConsumeError> {
        loop {
            if let Some(record) = self.record_at_hand() {
                return Ok(Some(record));
            }
            let Some(batch) = self.fetched().await? else {
                return Ok(None);
            };
            match OpenedBatch::new(batch.clone()) {
                Ok(opened) => self.opened = Some(opened),
                Err(error) => {
                    if let Some(reader) = self.current.take() {
                        self.fetcher
                            .rewind(reader.chunk.source, batch.first_ordinal());
                    }
                    return Err(batch.undecodable(error));
                }
            }
        }
    }

    /// The next record, if it is of a batch of which one was taken before. `None` says nothing about what there is beyond:
    /// [`records`](Self::records) waits for that. For loops over single records: it makes no future.
    pub fn record_at_hand(&mut self) -> Option<OwnedRecord> {
        let opened = self.opened.as_mut()?;
        let lane = opened.batch.lane();
        let Some((record, next)) = opened.next() else {
            self.opened = None;
            return None;
        };
        self.deliver(lane, next, 1);
        Some(record)
    }

    /// Notes that so many records of a lane, up to `next`, go to the application.
    fn deliver(&mut self, lane: LaneKey, next: Cursor, records: u64) {
        self.counts.records += records;
        if let Some(&index) = self.index.get(&(lane.streamlet.0, lane.lane.0)) {
            self.lanes[index].next = next;
        }
    }

    /// The next batch that arrived, not delivered yet.
    async fn fetched(&mut self) -> Result<Option<Batch>, ConsumeError> {
        loop {
            if let Some(batch) = self.take_batch()? {
                self.counts.batches += 1;
                self.counts.bytes += batch.wire_bytes() as u64;
                return Ok(Some(batch));
            }
            match self.fetcher.pop() {
                Popped::Chunk(chunk) => self.current = Some(ChunkReader::new(chunk)),
                Popped::Failed(error) => return Err(error),
                Popped::Empty => {
                    if self.is_finished() {
                        return Ok(None);
                    }
                    self.wait().await;
                }
            }
        }
    }

    /// True once all lanes are read to their end.
    pub(crate) fn is_finished(&self) -> bool {
        self.lanes.iter().all(|lane| lane.finished)
    }

    async fn wait(&mut self) {
        if !(self.follow && self.all_lanes) {
            return self.fetcher.readable().await;
        }
        let Some(looking) = &mut self.looking else {
            let readable = self.fetcher.readable();
            let waited = tokio::time::timeout_at(self.look_for_lanes, readable).await;
            if waited.is_err() {
                let known = self.lanes.first().map(|lane| lane.key.stream);
                let (client, stream) = (self.client.clone(), self.stream.clone());
                let look = new_lanes(client, stream, known, self.lanes.len());
                self.looking = Some(tokio::spawn(look));
            }
            return;
        };
        let looked = tokio::select! {
            () = self.fetcher.readable() => return,
            looked = looking => looked,
        };
        self.looking = None;
        self.look_for_lanes = Instant::now() + LANES_INTERVAL;
        match looked {
            Ok(Ok(Some((stream, lanes)))) => {
                self.add(stream, lanes);
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                tracing::debug!(stream = self.stream, %error, "cannot look for new lanes");
            }
            Err(error) => {
                tracing::debug!(stream = self.stream, %error, "looking for new lanes failed");
            }
        }
    }

    fn take_batch(&mut self) -> Result<Option<Batch>, ConsumeError> {
        while let Some(reader) = &mut self.current {
            let lane = &mut self.lanes[reader.chunk.tag as usize];
            if lane.source != reader.chunk.source {
                // The lane was moved elsewhere.
                self.current = None;
                return Ok(None);
            }
            let error = match reader.next_batch(None, &self.unpacking) {
                Some(Unpacked::Batch(batch)) => return Ok(Some(batch)),
                Some(Unpacked::Skipped(_, next)) => {
                    self.counts.skipped_batches += 1;
                    lane.next = Cursor {
                        ordinal: next,
                        ..Cursor::default()
                    };
                    continue;
                }
                Some(Unpacked::Passed(next)) => {
                    lane.next = next;
                    continue;
                }
                None => {
                    if reader.chunk.next.ordinal > lane.next.ordinal {
                        lane.next = reader.chunk.next;
                    }
                    lane.finished |= reader.chunk.finished;
                    self.current = None;
                    return Ok(None);
                }
                Some(Unpacked::Undecodable(error)) => error,
                Some(Unpacked::Damaged(error)) => {
                    self.counts.corrupt_batches += 1;
                    error
                }
            };
            self.fetcher.rewind(reader.chunk.source, reader.position());
            self.current = None;
            return Err(error);
        }
        Ok(None)
    }

    /// Goes on elsewhere in one lane: at a stored cursor, an ordinal, a time, or an end of the lane.
    /// Batches delivered later come from there. A reader that does not follow still ends where the
    /// head was when it was opened.
    ///
    /// # Errors
    /// [`ConsumeError::UnknownLane`]; [`ConsumeError::Rpc`] if the broker was asked and not reached.
    pub async fn seek(
        &mut self,
        streamlet: u32,
        lane: u32,
        to: impl Into<Seek>,
    ) -> Result<(), ConsumeError> {
        let unknown = ConsumeError::UnknownLane { streamlet, lane };
        let index = *self.index.get(&(streamlet, lane)).ok_or(unknown)?;
        let cursor = find_in_lane(&self.client, &self.stream, (streamlet, lane), to.into()).await?;
        self.restart(index, cursor);
        Ok(())
    }

    /// Goes on elsewhere in every lane.
    ///
    /// # Errors
    /// [`ConsumeError::Rpc`] if the broker was not reached.
    pub async fn seek_all(&mut self, to: Start) -> Result<(), ConsumeError> {
        for found in find(&self.client, &self.stream, to).await? {
            if let Some(&index) = self.index.get(&(found.streamlet, found.lane)) {
                self.restart(index, found.cursor.unwrap_or_default());
            }
        }
        Ok(())
    }

    fn restart(&mut self, index: usize, cursor: Cursor) {
        let lane = self.lanes[index].key;
        self.opened.take_if(|opened| opened.batch.lane() == lane);
        self.fetcher.remove(self.lanes[index].source);
        self.lanes[index].next = cursor;
        self.lanes[index].finished = false;
        let spec = self.spec(index, &self.lanes[index]);
        if let [source] = self.fetcher.add(vec![spec])[..] {
            self.lanes[index].source = source;
        }
    }

    /// Where the reader stands in each lane: what follows the last batch delivered.
    pub fn positions(&self) -> Vec<Position> {
        self.lanes
            .iter()
            .map(|lane| Position {
                lane: lane.key,
                next: lane.next,
                lease: None,
            })
            .collect()
    }

    /// The lanes that have not gone on for `longer` although there may be something to read, and why; `None` if
    /// all is well. What takes 2 s is also told in the log, as a warning, once for each cause and again at
    /// growing intervals.
    pub fn stall(&self, longer: Duration) -> Option<Stall> {
        self.fetcher.stall(longer)
    }

    /// Counts and sizes.
    pub fn metrics(&self) -> Metrics {
        let lag = self
            .fetcher
            .heads()
            .into_iter()
            .filter_map(|(tag, head, end)| {
                let lane = self.lanes.get(tag as usize)?;
                let known = if end == Ordinal::MAX { head } else { end };
                Some(known.saturating_sub(lane.next.ordinal))
            })
            .sum();
        Metrics {
            lag,
            buffered_bytes: self.fetcher.buffered_bytes(),
            skipped_records: self.fetcher.counts.skipped.load(Ordering::Relaxed),
            connects: self.fetcher.counts.connects.load(Ordering::Relaxed),
            copy_bytes: self.fetcher.counts.from_copies.load(Ordering::Relaxed),
            ..self.counts
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(looking) = &self.looking {
            looking.abort();
        }
        self.fetcher.close();
    }
}

/// A stream's id, and all of its lanes from their first record on.
type NewLanes = (StreamId, Vec<v1::LaneCursor>);

/// The lanes of a stream if it has another number of them than `count`; `None` too if the name stands for
/// another stream than `known` by now.
async fn new_lanes(
    client: Client,
    stream: String,
    known: Option<StreamId>,
    count: usize,
) -> Result<Option<NewLanes>, RpcError> {
    let meta = client.refresh(&stream).await?;
    if meta.partitions as usize == count || known.is_some_and(|id| id != meta.id) {
        return Ok(None);
    }
    let found = client.find_ordinals(&meta, Start::Earliest.into()).await?;
    Ok(Some((meta.id, found)))
}
