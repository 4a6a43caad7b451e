//! Produce: batches into lanes, and their acknowledgements.
//!
//! A request's batches stay where they were received; the broker patches their headers there and
//! copies them into segments. The request is answered when the durable heads of all its lanes have
//! passed them.

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::ApiKey;
use kera_broker::clock::{now_ms, wall_ms};
use kera_broker::data::accept;
use kera_broker::data::append::{self, Refused};
use kera_broker::data::catalog::Stream;
use kera_broker::data::traced::TracedAppend;
use kera_broker::transactions::{BatchLane, check_id, verify_batch};
use kera_coordinator::transactions::{Fault, Member};
use kera_log_segments::group::{AckPolicy, Group};
use kera_metadata::access::Kind;
use kera_protocol::batch::{BatchError, BatchHeader, Compression, check_produced, verify};
use kera_protocol::ids::{LaneId, Ordinal};
use kera_streamlet::producers::SequenceError;
use kera_streamlet::transactions::TransactionError;
use kera_streamlet::{AppendError, AppendSpec, Appended, Outcome, Settings, Streamlet};

use crate::access;
use crate::apis::PRODUCE;
use crate::behind::Failed;
use crate::context::Ctx;
use crate::errors;
use crate::reply_room::throttle_ms;
use crate::topic::{self, TopicRef};
use crate::transactions;
use crate::wire::reader::{ReadError, Reader};
use crate::wire::request::is_flexible;
use crate::wire::writer::Writer;

/// Longest time that a client may have an append wait.
const MAX_TIMEOUT: Duration = Duration::from_secs(300);
/// The first version that names topics by id.
const BY_ID: i16 = 13;
/// The first version whose clients know zstd.
const ZSTD: i16 = 7;

/// Partitions of a topic, and where in the request their records lie.
pub(crate) type Records = Vec<(i32, Range<usize>)>;

/// A request as far as it is needed; batches stay in the request's bytes.
pub(crate) struct ProduceRequest {
    /// 0: no answer. Everything else waits for the durable head.
    pub(crate) acks: i16,
    timeout: Duration,
    pub(crate) transactional_id: Option<Box<str>>,
    pub(crate) topics: Vec<(TopicRef, Records)>,
}

impl ProduceRequest {
    /// Reads a request's body; ranges count from the start of `body`.
    pub(crate) fn parse(body: &[u8], version: i16) -> Result<Self, ReadError> {
        let mut reader = Reader::new(body, is_flexible(ApiKey::Produce, version));
        let transactional_id = reader.nullable_string()?.map(Box::from);
        let acks = reader.i16()?;
        let timeout = reader.i32()?;
        let mut topics = Vec::new();
        for _ in 0..reader.count(3)? {
            let name = TopicRef::read(&mut reader, version >= BY_ID)?;
            let mut partitions = Vec::new();
            for _ in 0..reader.count(5)? {
                let index = reader.i32()?;
                let at = reader.at();
                partitions.push((index, reader.nullable_bytes()?.unwrap_or(at..at)));
                reader.tagged_fields()?;
            }
            reader.tagged_fields()?;
            topics.push((name, partitions));
        }
        reader.tagged_fields()?;
        Ok(Self {
            acks,
            timeout: Duration::from_millis(u64::try_from(timeout).unwrap_or(0)).min(MAX_TIMEOUT),
            transactional_id,
            topics,
        })
    }
}

/// What became of one partition's batch.
enum Outcomes {
    Refused(Rejected),
    /// It has its place; `None` once it is settled.
    Placed(Option<Box<Waiting>>, Acknowledged),
}

impl Outcomes {
    /// Negative for a batch without sequence.
    fn producer(&self) -> i64 {
        match self {
            Self::Refused(rejected) => rejected.producer,
            Self::Placed(_, known) => known.producer,
        }
    }
}

/// A batch that has no place.
struct Rejected {
    /// Kafka's number.
    code: i16,
    /// Why.
    text: Option<String>,
    /// The log's start, where the client is to be told it, -1 elsewhere.
    log_start: i64,
    /// Negative for a batch without sequence.
    producer: i64,
}

/// A batch that has its place and is not settled.
struct Waiting {
    appended: Appended,
    streamlet: Arc<Streamlet>,
    traced: Option<Box<TracedAppend>>,
}

impl Waiting {
    /// Kafka's number for a batch that will never be durable here.
    fn lost(&self) -> i16 {
        let kafka = if self.streamlet.is_moved() {
            // The client asks for the leader and sends it again, with the same sequence number.
            ResponseError::NotLeaderOrFollower
        } else {
            ResponseError::KafkaStorageError
        };
        kafka.code()
    }
}

#[derive(Clone, Copy)]
struct Acknowledged {
    code: i16,
    base: Ordinal,
    /// -1 unless the broker's time was stamped.
    append_time: i64,
    log_start: Ordinal,
    /// Negative for a batch without sequence.
    producer: i64,
}

/// A request whose batches have their places, or are being given them.
pub(crate) struct Produce {
    /// Of its request.
    pub(crate) correlation: i32,
    /// Bytes of its batches, for the limits.
    pub(crate) bytes: usize,
    /// When it was received.
    pub(crate) received: Instant,
    /// When it is answered, whatever became of it.
    pub(crate) deadline: Instant,
    /// How long the client is told to wait before it produces more.
    pub(crate) throttle: Duration,
    version: i16,
    topics: Vec<(TopicRef, Vec<(i32, Outcomes)>)>,
    /// Topic and partition up to which everything is settled.
    settled: (usize, usize),
}

impl Produce {
    /// Nothing placed yet.
    pub(crate) fn new(request: &ProduceRequest, version: i16, correlation: i32) -> Self {
        let received = Instant::now();
        Self {
            correlation,
            bytes: 0,
            received,
            deadline: received + request.timeout,
            throttle: Duration::ZERO,
            version,
            topics: Vec::with_capacity(request.topics.len()),
            settled: (0, 0),
        }
    }

    /// Places the batches of `request` that have no place yet. False: memory is short; call again,
    /// with `give_up` once it was for too long. `refused` is why a coordinator took the lanes into no transaction.
    pub(crate) fn place(
        &mut self,
        ctx: &Ctx,
        request: &ProduceRequest,
        body: &mut [u8],
        touched: &mut Vec<Arc<Group>>,
        refused: Option<Fault>,
        give_up: bool,
    ) -> bool {
        let shared = &*ctx.shared;
        for (at, (name, partitions)) in request.topics.iter().enumerate() {
            if self.topics.len() == at {
                self.topics
                    .push((name.clone(), Vec::with_capacity(partitions.len())));
            }
            let done = self.topics[at].1.len();
            if done == partitions.len() {
                continue;
            }
            let stream = topic::to_append_to(shared, name);
            let stream = may_write(ctx, name, stream);
            for (index, range) in &partitions[done..] {
                let place = Placing {
                    ctx,
                    version: self.version,
                    transactional_id: request.transactional_id.as_deref(),
                    refused,
                    touched,
                    since: self.received,
                };
                let outcome = match &stream {
                    Ok(stream) => place.batch(stream, *index, &mut body[range.clone()]),
                    Err(code) => Err((*code, None)),
                };
                let outcome = match outcome {
                    Ok(None) if give_up => Outcomes::Refused(Rejected {
                        code: ResponseError::RequestTimedOut.code(),
                        text: Some("the broker's memory.pool was full for too long".to_string()),
                        log_start: -1,
                        producer: producer_of(&body[range.clone()]),
                    }),
                    Ok(None) => return false,
                    Ok(Some((waiting, known))) => {
                        self.bytes += range.len();
                        Outcomes::Placed(Some(Box::new(waiting)), known)
                    }
                    Err((code, text)) => {
                        shared.data.metrics.append_errors.inc();
                        // Told -1, clients send a batch of a producer that is not remembered again and again.
                        let forgotten = code == ResponseError::UnknownProducerId.code();
                        let lane = stream.as_ref().ok().filter(|_| forgotten);
                        let lane = lane.and_then(|stream| topic::lane_of(stream, *index));
                        let start =
                            lane.map_or(-1, |(streamlet, lane)| log_start(&streamlet, lane) as i64);
                        Outcomes::Refused(Rejected {
                            code,
                            text,
                            log_start: start,
                            producer: producer_of(&body[range.clone()]),
                        })
                    }
                };
                self.topics[at].1.push((*index, outcome));
            }
        }
        true
    }

    /// Version of its request.
    pub(crate) fn version(&self) -> i16 {
        self.version
    }

    /// True if any batch was refused.
    pub(crate) fn any_refused(&self) -> bool {
        self.topics
            .iter()
            .flat_map(|(_, partitions)| partitions)
            .any(|(_, outcome)| matches!(outcome, Outcomes::Refused(..)))
    }

    /// True once every batch is durable or given up; otherwise `waker` is woken when to look again.
    pub(crate) fn poll(&mut self, waker: &Waker) -> bool {
        while let Some((_, partitions)) = self.topics.get_mut(self.settled.0) {
            while let Some((_, outcome)) = partitions.get_mut(self.settled.1) {
                if let Outcomes::Placed(waiting, known) = outcome
                    && let Some(placed) = waiting
                {
                    match placed.appended.poll(waker) {
                        Outcome::Pending => return false,
                        Outcome::Durable => {
                            let traffic = placed.streamlet.traffic();
                            traffic.note_acknowledged(self.received.elapsed());
                            if let Some(traced) = placed.traced.take() {
                                traced.end(None);
                            }
                        }
                        Outcome::Lost => known.code = placed.lost(),
                    }
                    *waiting = None;
                }
                self.settled.1 += 1;
            }
            self.settled = (self.settled.0 + 1, 0);
        }
        true
    }

    /// Forgets a waker given to [`Self::poll`].
    pub(crate) fn forget(&self, waker: &Waker) {
        let at = self.topics.get(self.settled.0);
        if let Some((_, Outcomes::Placed(Some(waiting), _))) =
            at.and_then(|(_, partitions)| partitions.get(self.settled.1))
        {
            waiting.appended.head.forget(waker);
        }
    }

    /// The reply's body. What is not settled by now has timed out; it may still take effect. A broker
    /// that is no `member` of its cluster any more may have lost its streamlets without knowing: clients
    /// are told to look for the leader then. `failed` is of the connection.
    pub(crate) fn encode(&self, member: bool, failed: &mut Failed, out: &mut BytesMut) {
        let mut writer = Writer::new(out, is_flexible(ApiKey::Produce, self.version));
        let w = &mut writer;
        w.length(self.topics.len());
        for (name, partitions) in &self.topics {
            name.write(w);
            w.length(partitions.len());
            for (index, outcome) in partitions {
                w.i32(*index);
                let (mut answer, text) = answer_to(outcome, member);
                answer.code = failed.answer(name, *index, outcome.producer(), answer.code);
                w.i16(answer.code);
                w.i64(answer.base);
                w.i64(answer.append_time);
                if self.version >= 5 {
                    w.i64(answer.log_start);
                }
                if self.version >= 8 {
                    // No errors of single records: a batch is refused whole.
                    w.length(0);
                    w.nullable_string(text);
                }
                w.no_tags();
            }
            w.no_tags();
        }
        w.i32(throttle_ms(self.throttle));
        w.no_tags();
    }
}

/// What a batch is answered with, and why if it was refused.
fn answer_to(outcome: &Outcomes, member: bool) -> (Answer, Option<&str>) {
    match outcome {
        Outcomes::Refused(rejected) => (
            Answer {
                log_start: rejected.log_start,
                ..Answer::refused(rejected.code)
            },
            rejected.text.as_deref(),
        ),
        Outcomes::Placed(Some(waiting), _) if waiting.appended.group.is_shipped() && !member => (
            Answer::refused(ResponseError::NotLeaderOrFollower.code()),
            Some("this broker has lost its lease; it may still take effect"),
        ),
        Outcomes::Placed(Some(waiting), _) if waiting.appended.group.is_shipped() => (
            // `NOT_ENOUGH_REPLICAS` says that it was not appended: then an application may send it as another record.
            Answer::refused(ResponseError::NotEnoughReplicasAfterAppend.code()),
            Some("too few replicas could be reached in time; it may still take effect"),
        ),
        Outcomes::Placed(Some(_), _) => (
            Answer::refused(ResponseError::RequestTimedOut.code()),
            Some("the batch was not durable in time; it may still take effect"),
        ),
        Outcomes::Placed(None, known) => (Answer::placed(*known), None),
    }
}

/// The producer of a batch as it was received; negative for one without sequence, and for what is no batch.
fn producer_of(batch: &[u8]) -> i64 {
    BatchHeader::peek(batch).map_or(-1, |header| header.producer_id)
}

struct Answer {
    code: i16,
    base: i64,
    append_time: i64,
    log_start: i64,
}

impl Answer {
    fn refused(code: i16) -> Self {
        Self {
            code,
            base: -1,
            append_time: -1,
            log_start: -1,
        }
    }

    fn placed(known: Acknowledged) -> Self {
        if known.code != errors::NONE {
            return Self::refused(known.code);
        }
        Self {
            code: errors::NONE,
            base: known.base as i64,
            append_time: known.append_time,
            log_start: known.log_start as i64,
        }
    }
}

/// The stream, if the client may write to it. Of a topic that is not there it is not told whether it is, as of one that
/// it may not write to.
pub(crate) fn may_write(
    ctx: &Ctx,
    topic: &TopicRef,
    stream: Result<Arc<Stream>, i16>,
) -> Result<Arc<Stream>, i16> {
    match ctx.is_denied(PRODUCE, topic) {
        false => stream,
        true => Err(access::topic_code()),
    }
}

/// Kafka's number and why.
type Refusal = (i16, Option<String>);

struct Placing<'a> {
    ctx: &'a Ctx,
    version: i16,
    transactional_id: Option<&'a str>,
    refused: Option<Fault>,
    touched: &'a mut Vec<Arc<Group>>,
    /// When the request was received.
    since: Instant,
}

impl Placing<'_> {
    /// `None`: memory is short.
    fn batch(
        self,
        stream: &Stream,
        partition: i32,
        batch: &mut [u8],
    ) -> Result<Option<(Waiting, Acknowledged)>, Refusal> {
        let Some((streamlet, lane)) = topic::lane_of(stream, partition) else {
            return Err((ResponseError::UnknownTopicOrPartition.code(), None));
        };
        let settings = streamlet.settings();
        if !settings.lane_by_key {
            let text = format!(
                "stream {} has lane_by = producer, so its owner chooses lanes: write to it with a native client",
                stream.name()
            );
            return Err((ResponseError::InvalidRequest.code(), Some(text)));
        }
        let header = self.check(&settings, batch)?;
        let producer = header.producer_id;
        if header.is_transactional() {
            self.check_producer(&header, &streamlet, lane, partition)?;
        }
        let stamp = settings.append_time.then(wall_ms);
        let spec = AppendSpec {
            lane: lane.0,
            lane_generation: None,
            now_ms: now_ms(),
            essential: false,
        };
        let placed = append::place_batch(
            &self.ctx.shared.data,
            &streamlet,
            stamp,
            batch,
            spec,
            self.touched,
        );
        match placed {
            Ok(appended) => {
                let known = Acknowledged {
                    code: errors::NONE,
                    base: appended.base_ordinal,
                    append_time: stamp.map_or(-1, |stamp| stamp as i64),
                    log_start: log_start(&streamlet, lane),
                    producer,
                };
                let data = &self.ctx.shared.data;
                let traced = TracedAppend::begin(data, &streamlet, batch, &appended, self.since);
                let waiting = Waiting {
                    appended,
                    streamlet,
                    traced,
                };
                Ok(Some((waiting, known)))
            }
            Err(Refused::Append(AppendError::NoMemory)) => Ok(None),
            Err(Refused::Append(error)) => {
                if let AppendError::Sequence(SequenceError::Transaction(
                    why @ (TransactionError::Unverified { .. } | TransactionError::NotOpen { .. }),
                )) = &error
                {
                    if let Some(fault) = self.refused.filter(|fault| *fault != Fault::Ending) {
                        let code = transactions::batch_error(fault).code();
                        return Err((code, Some(fault.to_string())));
                    }
                    if matches!(why, TransactionError::Unverified { .. }) {
                        self.verify(&header, streamlet, lane, partition);
                    }
                }
                let code = errors::append_code(&error, self.version);
                Err((code, Some(error.to_string())))
            }
            Err(Refused::Batch(error)) => Err(refused_batch(&error)),
        }
    }

    /// Whether a batch of a transaction may be appended to a stream.
    fn check_transactional(&self, settings: &Settings) -> Result<(), Refusal> {
        let refused = |error: ResponseError, text: &str| Err((error.code(), Some(text.to_owned())));
        let Some(id) = self.transactional_id else {
            let text = "a batch of a transaction came without a transactional id";
            return refused(ResponseError::InvalidRequest, text);
        };
        if let Err(text) = check_id(id) {
            return refused(ResponseError::InvalidRequest, &text);
        }
        if !self.ctx.may_by(PRODUCE, (Kind::TransactionalId, id)) {
            let text = "the rules of access do not let you write under this transactional id";
            return refused(ResponseError::TransactionalIdAuthorizationFailed, text);
        }
        if settings.ack == AckPolicy::Memory {
            let text = "the stream has ack = memory, which promises nothing that a transaction needs; alter it to written or synced";
            return refused(ResponseError::InvalidTxnState, text);
        }
        Ok(())
    }

    /// Whether a batch's producer id is the one that was given to the transactional id of the request.
    fn check_producer(
        &self,
        header: &BatchHeader,
        streamlet: &Arc<Streamlet>,
        lane: LaneId,
        partition: i32,
    ) -> Result<(), Refusal> {
        let (producer, id) = (
            header.producer_id,
            self.transactional_id.unwrap_or_default(),
        );
        match self.ctx.shared.transactions.is_of(producer, id) {
            Some(true) => Ok(()),
            Some(false) => {
                let text = format!(
                    "producer id {producer} was not given to this transactional id: begin anew"
                );
                Err((ResponseError::InvalidProducerIdMapping.code(), Some(text)))
            }
            None => {
                self.verify(header, streamlet.clone(), lane, partition);
                let error = TransactionError::Unverified { producer };
                let error = AppendError::Sequence(SequenceError::Transaction(error));
                let code = errors::append_code(&error, self.version);
                Err((code, Some(error.to_string())))
            }
        }
    }

    /// Has the coordinator asked about a batch's transaction; the producer sends the batch again. Of a producer that leaves
    /// it to brokers what takes part nothing is asked: its batch is made part when it comes again.
    fn verify(
        &self,
        header: &BatchHeader,
        streamlet: Arc<Streamlet>,
        lane: LaneId,
        partition: i32,
    ) {
        if transactions::joins(self.version) {
            return;
        }
        let member = Member {
            id: self.transactional_id.unwrap_or_default().to_owned(),
            producer: header.producer_id,
            epoch: header.producer_epoch,
        };
        let to = BatchLane {
            streamlet,
            lane,
            partition: partition.unsigned_abs(),
        };
        verify_batch(&self.ctx.shared, member, to);
    }

    /// One intact batch, of a kind that is supported.
    fn check(&self, settings: &Settings, batch: &[u8]) -> Result<BatchHeader, Refusal> {
        let invalid = |text: &str| (ResponseError::InvalidRecord.code(), Some(text.to_string()));
        let header: BatchHeader = verify(batch).map_err(|e| refused_batch(&e))?;
        check_produced(&header, batch).map_err(|e| refused_batch(&e))?;
        if header.total_bytes != batch.len() {
            return Err(invalid("a partition's records are more than one batch"));
        }
        if header.is_transactional() {
            self.check_transactional(settings)?;
        }
        if self.version < ZSTD && header.compression() == Ok(Compression::Zstd) {
            let text = format!("zstd needs version {ZSTD} of Produce or later");
            return Err((ResponseError::UnsupportedCompressionType.code(), Some(text)));
        }
        if settings.rules.any() {
            accept::check(settings, &header, batch).map_err(|e| refused_batch(&e))?;
        }
        Ok(header)
    }
}

fn log_start(streamlet: &Streamlet, lane: LaneId) -> Ordinal {
    streamlet.lane_bounds(lane).map_or(0, |(start, _)| start)
}

fn refused_batch(error: &BatchError) -> Refusal {
    let kafka = match error {
        BatchError::BadCrc { .. } | BatchError::Truncated { .. } | BatchError::BadLength(_) => {
            ResponseError::CorruptMessage
        }
        BatchError::BadTimestamp { .. } => ResponseError::InvalidTimestamp,
        BatchError::BadMagic(_) => ResponseError::UnsupportedForMessageFormat,
        BatchError::UnknownCompression(_) => ResponseError::UnsupportedCompressionType,
        _ => ResponseError::InvalidRecord,
    };
    (kafka.code(), Some(error.to_string()))
}
