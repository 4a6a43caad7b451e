//! Reading: what a partition of a query does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{RecordBatch, RecordBatchOptions};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use futures::FutureExt;
use kera_consumer::{Batch, ConsumeError, LaneRange as FetchedRange, Reader};
use kera_protocol::v1::find_ordinals_request::At;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::columns::{Column, Columns, TooLarge};
use crate::error::KeraError;
use crate::filter::Known;
use crate::json;
use crate::layout::{Place, widened};
use crate::scan::{LaneRange, Scan};

/// How often is looked whether lanes were added.
const LANES_INTERVAL: Duration = Duration::from_secs(2);
/// How often is looked whether reading goes on.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pause after an error that may pass.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of keys and values, about, of one record batch.
const BATCH_BYTES: usize = 4 << 20;

/// Where record batches go.
type Out = Sender<DataFusionResult<RecordBatch>>;

/// Nobody wants what follows.
struct Unwanted;

/// What is read of a lane, as far as it is done.
struct Lane {
    range: LaneRange,
    /// Nothing before this time.
    waits_for: Option<i64>,
    done: bool,
    /// Each record is judged by the query's condition.
    is_judged: bool,
}

impl Lane {
    fn new(range: LaneRange, scan: &Scan) -> Self {
        let known = Known {
            streamlet: range.streamlet,
            lane: range.lane,
            record: None,
        };
        Self {
            waits_for: range.from_time,
            done: false,
            is_judged: scan.condition.holds(known) != Some(true),
            range,
        }
    }

    /// Whether a record is wanted; sets `done` at the first that is behind the end.
    fn wants(&mut self, scan: &Scan, ordinal: u64, timestamp: i64) -> bool {
        if let Some(end) = self.range.end {
            let is_late = |(from, time): (u64, i64)| ordinal >= from && timestamp >= time;
            if ordinal >= end.ordinal || end.time.is_some_and(is_late) {
                self.done = true;
                return false;
            }
        }
        if self.waits_for.is_some_and(|time| timestamp < time) {
            return false;
        }
        self.waits_for = None;
        if ordinal < self.range.first {
            return false;
        }
        let known = Known {
            streamlet: self.range.streamlet,
            lane: self.range.lane,
            record: Some((ordinal, timestamp)),
        };
        !self.is_judged || scan.condition.holds(known) == Some(true)
    }

    /// Everything below `next` was read.
    fn reached(&mut self, next: u64) {
        self.done |= self.range.end.is_some_and(|end| next >= end.ordinal);
    }
}

/// Records of one lane on their way into a record batch.
struct Gathered {
    key: (u32, u32),
    columns: Columns,
    rows: usize,
    bytes: usize,
}

struct Reading {
    scan: Arc<Scan>,
    lanes: BTreeMap<(u32, u32), Lane>,
    reader: Reader,
    gathered: Option<Gathered>,
    /// Rows of a record batch.
    rows: usize,
    out: Out,
    /// Since when errors come that may pass.
    failing: Option<Instant>,
}

/// Reads lanes to their ends, or for ever.
pub(crate) async fn lanes(
    scan: Arc<Scan>,
    ranges: Vec<LaneRange>,
    rows: usize,
    out: Out,
) -> Result<(), KeraError> {
    let reader = open(&scan, &ranges).await?;
    let lanes = ranges.into_iter().map(|range| {
        let key = (range.streamlet, range.lane);
        (key, Lane::new(range, &scan))
    });
    let mut reading = Reading {
        lanes: lanes.collect(),
        scan,
        reader,
        gathered: None,
        rows: rows.max(1),
        out,
        failing: None,
    };
    match reading.run().await? {
        Ok(()) | Err(Unwanted) => Ok(()),
    }
}

fn consume(scan: &Scan, error: ConsumeError) -> KeraError {
    let stream = scan.settings.stream.to_string();
    KeraError::Consume {
        stream,
        error: Box::new(error),
    }
}

/// A reader that stands where the lanes begin for the query.
async fn open(scan: &Scan, ranges: &[LaneRange]) -> Result<Reader, KeraError> {
    let settings = &scan.settings;
    // A place below what is stored by now is noticed, while one that is looked up is moved.
    let parts = ranges.iter().map(|range| FetchedRange {
        streamlet: range.streamlet,
        lane: range.lane,
        from: range.start,
        end: range.end.map(|end| end.ordinal),
    });
    let mut builder = Reader::builder()
        .client(scan.client.clone())
        .stream(&*settings.stream)
        .ranges(parts)
        .memory_limit(settings.memory_limit)
        .rack(settings.rack.as_str());
    if settings.skip_damaged {
        let stream = settings.stream.clone();
        builder = builder.skip_damaged(
            move |error| tracing::warn!(%stream, %error, "a query skips what cannot be read"),
        );
    }
    let opened = builder.open().await;
    let reader = opened.map_err(|error| consume(scan, error))?;
    if let Some(position) = reader.positions().first()
        && position.lane.stream != scan.stream
    {
        return Err(KeraError::Replaced {
            stream: settings.stream.to_string(),
        });
    }
    Ok(reader)
}

impl Reading {
    async fn run(&mut self) -> Result<Result<(), Unwanted>, KeraError> {
        loop {
            let read = match self.reader.next_batch().now_or_never() {
                Some(read) => read,
                None => {
                    // Who follows a stream gets what there is.
                    if !self.scan.is_bounded() && self.flush().await?.is_err() {
                        return Ok(Err(Unwanted));
                    }
                    match self.wait().await? {
                        Some(read) => read,
                        None => break,
                    }
                }
            };
            match read {
                Ok(Some(batch)) => {
                    self.failing = None;
                    if self.take(&batch).await?.is_err() {
                        return Ok(Err(Unwanted));
                    }
                }
                Ok(None) => {
                    self.check_losses()?;
                    break;
                }
                Err(error) => self.failed(error).await?,
            }
            if self.lanes.values().all(|lane| lane.done) {
                break;
            }
        }
        self.flush().await
    }

    /// Waits for the next batch. `None`: all lanes are read to their ends.
    async fn wait(&mut self) -> Result<Option<Result<Option<Batch>, ConsumeError>>, KeraError> {
        loop {
            let read = tokio::time::timeout(LOOK_EVERY, self.reader.next_batch()).await;
            if let Ok(read) = read {
                return Ok(Some(read));
            }
            // Nobody asks for more, as behind a LIMIT.
            if self.out.is_closed() {
                return Ok(None);
            }
            // A lane's end may lie where there are no records.
            for position in self.reader.positions() {
                let key = (position.lane.streamlet.0, position.lane.lane.0);
                if let Some(lane) = self.lanes.get_mut(&key) {
                    lane.reached(position.next.ordinal);
                }
            }
            if self.lanes.values().all(|lane| lane.done) {
                return Ok(None);
            }
            let limit = self.scan.settings.connection.timeout();
            if let Some(stall) = self.reader.stall(limit) {
                let stream = self.scan.settings.stream.to_string();
                return Err(KeraError::Stalled {
                    stream,
                    limit,
                    stall: Box::new(stall),
                });
            }
        }
    }

    /// An error of one lane: it is tried again if it may pass.
    async fn failed(&mut self, error: ConsumeError) -> Result<(), KeraError> {
        let since = *self.failing.get_or_insert_with(Instant::now);
        let is_over = since.elapsed() > self.scan.settings.connection.timeout();
        if !error.is_retryable() || is_over {
            return Err(consume(&self.scan, error));
        }
        tracing::debug!(stream = %self.scan.settings.stream, %error, "reading is tried again");
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    fn check_losses(&self) -> Result<(), KeraError> {
        let records = self.reader.metrics().skipped_records;
        if records == 0 || self.scan.settings.skip_lost {
            return Ok(());
        }
        Err(KeraError::Lost {
            stream: self.scan.settings.stream.to_string(),
            records,
        })
    }

    async fn take(&mut self, batch: &Batch) -> Result<Result<(), Unwanted>, KeraError> {
        self.check_losses()?;
        let key = (batch.lane().streamlet.0, batch.lane().lane.0);
        if self.lanes.get(&key).is_none_or(|lane| lane.done) {
            return Ok(Ok(()));
        }
        if self
            .gathered
            .as_ref()
            .is_some_and(|gathered| gathered.key != key)
            && self.flush().await?.is_err()
        {
            return Ok(Err(Unwanted));
        }
        self.gather(key, batch)?;
        let is_full = |all: &Gathered| all.rows >= self.rows || all.bytes >= BATCH_BYTES;
        match self.gathered.as_ref().is_some_and(is_full) {
            true => self.flush().await,
            false => Ok(Ok(())),
        }
    }

    fn gather(&mut self, key: (u32, u32), batch: &Batch) -> Result<(), KeraError> {
        let Some(lane) = self.lanes.get_mut(&key) else {
            return Ok(());
        };
        let made = &self.scan.selection.made;
        let gathered = self.gathered.get_or_insert_with(|| Gathered {
            key,
            columns: Columns::new(made, batch.len()),
            rows: 0,
            bytes: 0,
        });
        for record in batch.records() {
            let record = record.map_err(|error| consume(&self.scan, batch.undecodable(error)))?;
            if !lane.wants(&self.scan, record.ordinal, record.timestamp) {
                if lane.done {
                    break;
                }
                continue;
            }
            let pushed = gathered.columns.push(&record);
            pushed.map_err(|TooLarge| KeraError::TooLarge {
                stream: self.scan.settings.stream.to_string(),
                streamlet: key.0,
                lane: key.1,
            })?;
            gathered.rows += 1;
            let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
            gathered.bytes += length(record.key) + length(record.value);
        }
        lane.reached(batch.next_ordinal());
        Ok(())
    }

    /// Sends the rows gathered so far to the query.
    async fn flush(&mut self) -> Result<Result<(), Unwanted>, KeraError> {
        let Some(gathered) = self.gathered.take() else {
            return Ok(Ok(()));
        };
        let count = gathered.rows;
        if count == 0 {
            return Ok(Ok(()));
        }
        let batch = match assemble(&self.scan, gathered) {
            Ok(batch) => Ok(batch),
            Err(Problem::Kera(error)) => return Err(error),
            Err(Problem::DataFusion(error)) => Err(error),
        };
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                let sent = self.out.send(Err(error)).await;
                drop(sent);
                return Ok(Err(Unwanted));
            }
        };
        for begin in (0..count).step_by(self.rows) {
            let part = batch.slice(begin, self.rows.min(count - begin));
            if self.out.send(Ok(part)).await.is_err() {
                return Ok(Err(Unwanted));
            }
        }
        Ok(Ok(()))
    }
}

enum Problem {
    Kera(KeraError),
    DataFusion(DataFusionError),
}

/// The columns that the query wants of the records gathered.
fn assemble(scan: &Scan, gathered: Gathered) -> Result<RecordBatch, Problem> {
    let arrow = |error| Problem::DataFusion(DataFusionError::from(error));
    let ((streamlet, lane), count) = (gathered.key, gathered.rows);
    let mut own = gathered.columns.finish(streamlet, lane).map_err(arrow)?;
    let selection = &scan.selection;
    let headers = selection
        .made
        .iter()
        .position(|made| *made == Column::Headers);
    if let Some(index) = headers {
        own[index] = widened(&own[index]).map_err(arrow)?;
    }
    let mut fields = None;
    if let Some(json) = &selection.json {
        let values = own[json.values].as_binary::<i32>();
        let decoded = json::decode(&json.schema, values, scan.settings.on_bad_json);
        fields = Some(decoded.map_err(|bad| {
            let ordinals = own[json.ordinals].as_primitive::<UInt64Type>();
            Problem::Kera(KeraError::Json {
                stream: scan.settings.stream.to_string(),
                streamlet,
                lane,
                ordinal: ordinals.values().get(bad.row).copied().unwrap_or(0),
                reason: bad.reason,
            })
        })?);
    }
    let mut columns = Vec::with_capacity(selection.places.len());
    for place in &selection.places {
        match (*place, &fields) {
            (Place::Own(index), _) => columns.push(own[index].clone()),
            (Place::Json(index), Some(fields)) => columns.push(fields.column(index).clone()),
            (Place::Json(_), None) => {}
        }
    }
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    let batch = RecordBatch::try_new_with_options(selection.schema.clone(), columns, &options);
    batch.map_err(arrow)
}

/// Reads lanes that are added while a query without end runs, each from its first record on.
pub(crate) async fn new_lanes(scan: Arc<Scan>, rows: usize, out: Out) -> Result<(), KeraError> {
    let mut known: BTreeSet<(u32, u32)> = scan.lanes.clone();
    let mut readers = JoinSet::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(LANES_INTERVAL) => {}
            Some(ended) = readers.join_next() => {
                // One that panicked has said so.
                if let Ok(Err(error)) = ended {
                    return Err(error);
                }
                continue;
            }
            () = out.closed() => return Ok(()),
        }
        let meta = match scan.client.refresh(&scan.settings.stream).await {
            Ok(meta) => meta,
            Err(error) if error.is_retryable() => continue,
            Err(error) => return Err(scan.rpc(error)),
        };
        if meta.id != scan.stream {
            return Err(KeraError::Replaced {
                stream: scan.settings.stream.to_string(),
            });
        }
        if meta.partitions as usize <= known.len() {
            continue;
        }
        let found = match scan.client.find_ordinals(&meta, At::Earliest(true)).await {
            Ok(found) => found,
            Err(error) if error.is_retryable() => continue,
            Err(error) => return Err(scan.rpc(error)),
        };
        let mut added = Vec::new();
        for lane in found {
            if known.insert((lane.streamlet, lane.lane)) {
                added.extend(scan.new_lane(&lane));
            }
        }
        if !added.is_empty() {
            readers.spawn(lanes(scan.clone(), added, rows, out.clone()));
        }
    }
}
