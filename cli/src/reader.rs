//! Reads lanes from the first to the last record without a consumer group.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kera_protocol::batch::{BatchHeader, MAX_BATCH_BYTES, Record, Records, batches, verify};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::FrameKind;
use kera_protocol::ids::StreamletId;
use kera_protocol::v1;
use kera_rpc::{Client, ConnectionError, RetryPolicy, RpcError, StreamMeta};

use crate::failure::Failure;
use crate::parse::Start;

/// Bytes asked for at once.
const READ_BYTES: u32 = 1 << 20;
/// Compressed batches are opened to this size at most.
const LARGEST_UNPACKED: usize = 16 * MAX_BATCH_BYTES;

/// Where each lane of a stream is read from, and what was durable when that was asked.
pub async fn find(
    client: &Client,
    stream: &str,
    start: Start,
) -> Result<Vec<v1::LaneCursor>, Failure> {
    use v1::find_ordinals_request::At;
    let at = match start {
        Start::Earliest => At::Earliest(true),
        Start::Latest => At::Latest(true),
        Start::Time(ms) => At::TimestampMs(ms),
        Start::Ordinal(ordinal) => At::Ordinal(ordinal),
    };
    let request = v1::FindOrdinalsRequest {
        name: stream.to_owned(),
        at: Some(at),
    };
    let answer = client
        .streams_call(|mut stub| {
            let request = request.clone();
            async move { stub.find_ordinals(request).await }
        })
        .await?;
    Ok(answer.lanes)
}

/// Follows one lane.
pub struct LaneReader {
    client: Client,
    stream: Arc<StreamMeta>,
    streamlet: u32,
    lane: u32,
    cursor: v1::Cursor,
    head: u64,
    /// How long a broker that does not answer is waited for.
    patience: Duration,
    /// Where the broker says that reading goes on, with a hint that makes it O(1).
    next: Option<v1::Cursor>,
    scratch: Vec<u8>,
}

impl LaneReader {
    /// A reader that stands where `place` says.
    pub fn new(
        client: Client,
        stream: Arc<StreamMeta>,
        place: &v1::LaneCursor,
        patience: Duration,
    ) -> Self {
        Self {
            client,
            stream,
            streamlet: place.streamlet,
            lane: place.lane,
            cursor: place.cursor.unwrap_or_default(),
            head: place.head_ordinal,
            patience,
            next: None,
            scratch: Vec::new(),
        }
    }

    /// The reader's streamlet and lane.
    pub fn place(&self) -> (u32, u32) {
        (self.streamlet, self.lane)
    }

    /// The ordinal of the next record.
    pub fn ordinal(&self) -> u64 {
        self.cursor.ordinal
    }

    /// The lane's durable head as last heard of.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Reads whole batches, waiting up to `wait` for the first; empty if none came. After a lost
    /// connection it is tried again for as long as the reader's patience lasts.
    pub async fn read(&mut self, wait: Duration) -> Result<Bytes, Failure> {
        let policy = RetryPolicy::default();
        let begin = Instant::now();
        let mut attempt = 0;
        loop {
            let error = match self.try_read(wait).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            if !error.is_retryable() || begin.elapsed() > self.patience {
                return Err(error.into());
            }
            tracing::debug!(%error, "reading again");
            tokio::time::sleep(policy.pause(attempt)).await;
            attempt += 1;
            if error.code() == Some(ErrorCode::NotOwner) {
                self.stream = self.client.refresh(&self.stream.name).await?;
            }
        }
    }

    async fn try_read(&mut self, wait: Duration) -> Result<Bytes, RpcError> {
        let owner = self
            .stream
            .owner(StreamletId(self.streamlet))
            .unwrap_or_default();
        let connection = self.client.data(owner).await?;
        let request = v1::ReadRequest {
            stream: Bytes::copy_from_slice(self.stream.id.as_bytes()),
            streamlet: self.streamlet,
            lane: self.lane,
            cursor: Some(self.cursor),
            max_bytes: READ_BYTES,
            min_bytes: 1,
            max_wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
            ..v1::ReadRequest::default()
        };
        let frame = connection
            .call(FrameKind::Read, &request, Bytes::new())
            .await?;
        let answer: v1::ReadResponse = frame.message().map_err(ConnectionError::from)?;
        if answer.error != 0 {
            let error = WireError::from_number(answer.error, answer.message);
            // Retention may have overtaken the reader.
            if error.code == ErrorCode::OutOfRange && answer.log_start > self.cursor.ordinal {
                tracing::warn!(
                    "records {} to {} of lane {}/{} were deleted before they were read",
                    self.cursor.ordinal,
                    answer.log_start,
                    self.streamlet,
                    self.lane
                );
                self.cursor = v1::Cursor {
                    ordinal: answer.log_start,
                    ..v1::Cursor::default()
                };
                return Ok(Bytes::new());
            }
            return Err(error.into());
        }
        self.head = answer.head_ordinal;
        if frame.body.is_empty()
            && let Some(next) = answer.next
        {
            self.cursor = next;
        }
        self.next = answer.next;
        Ok(frame.body)
    }

    /// Visits the records of what [`LaneReader::read`] returned that the reader has not passed yet,
    /// and moves on behind them. `visit` returns false to stop early.
    pub fn visit(
        &mut self,
        bytes: &Bytes,
        mut visit: impl FnMut(u64, &Record<'_>) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        for batch in batches(bytes) {
            let (header, batch) = batch.map_err(|error| self.unreadable(&error))?;
            verify(batch).map_err(|error| self.unreadable(&error))?;
            if !self.visit_batch(&header, batch, &mut visit)? {
                return Ok(());
            }
        }
        if let Some(next) = self.next.take()
            && next.ordinal >= self.cursor.ordinal
        {
            self.cursor = next;
        }
        Ok(())
    }

    fn visit_batch(
        &mut self,
        header: &BatchHeader,
        batch: &[u8],
        visit: &mut impl FnMut(u64, &Record<'_>) -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let from = self.cursor.ordinal;
        let mut go_on = true;
        let mut passed = from.max(header.next_ordinal());
        let records = Records::open(batch, LARGEST_UNPACKED, &mut scratch)
            .map_err(|error| self.unreadable(&error))?;
        for record in records {
            let record = record.map_err(|error| self.unreadable(&error))?;
            let ordinal = header.base_ordinal + u64::from(record.ordinal_delta);
            if ordinal < from {
                continue;
            }
            if !visit(ordinal, &record)? {
                passed = ordinal + 1;
                go_on = false;
                break;
            }
        }
        self.scratch = scratch;
        self.cursor = v1::Cursor {
            ordinal: passed,
            ..v1::Cursor::default()
        };
        Ok(go_on)
    }

    fn unreadable(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::message(format!(
            "lane {}/{} cannot be read at ordinal {}: {error}; run `kera segment verify` on the broker's files",
            self.streamlet, self.lane, self.cursor.ordinal
        ))
    }
}
