//! Promises broken on purpose in a running broker, and by a client: the history checker must see each,
//! or it would see no mistake either.

#[path = "../common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;

use kera_consumer::{Reader, Start};
use kera_history::{
    AnomalyKind, Class, Event, Expectations, Lane, Reader as HistoryReader, Record, Recorder,
    Report, check, payload,
};
use kera_producer::{Producer, Record as NewRecord};
use kera_protocol::batch::{self, BatchHeader};
use kera_protocol::frame::FrameKind;
use kera_protocol::v1;
use tokio::task::block_in_place;

use common::Broker;
use common::raw::{Raw, frame_of, stream_id};

const STREAM: &str = "planted";
/// Everything is in one lane, so that ordinals are easily told.
const LANE: Lane = Lane {
    stream: 0,
    streamlet: 0,
    lane: 0,
};
/// Records of a producer.
const SOME: u64 = 200;

/// A broker, and what its clients saw.
struct Story {
    broker: Broker,
    recorder: Recorder,
}

impl Story {
    fn new() -> Self {
        let broker = block_in_place(Broker::start);
        block_in_place(|| broker.run(&["stream", "create", STREAM, "--streamlets", "1"]));
        let recorder = Recorder::in_memory();
        recorder.record(Event::BrokerStarted);
        Self { broker, recorder }
    }

    async fn producer(&self) -> Producer {
        let producer = Producer::builder()
            .bootstrap(self.broker.address())
            .stream(STREAM);
        producer.build().await.expect("a producer can be built")
    }

    /// A producer of its own sends some records, each of which is acknowledged.
    async fn send(&self, number: u32) {
        let producer = self.producer().await;
        for seq in 0..SOME {
            self.send_one(&producer, number, seq, seq % 20 == 0).await;
        }
        producer.close().await.expect("all is sent");
    }

    async fn send_one(&self, producer: &Producer, number: u32, seq: u64, begins: bool) {
        let record = Record {
            producer: number,
            seq,
        };
        if begins {
            self.recorder.record(Event::Batched { producer: number });
        }
        self.recorder.record(Event::Send {
            record,
            stream: LANE.stream,
            streamlet: None,
            lane: None,
            key: None,
        });
        let ordinal = self.append(producer, number, seq).await;
        self.recorder.record(Event::Ack {
            record,
            lane: LANE,
            ordinal,
        });
    }

    /// Hands the record to the producer, and says where it is stored.
    async fn append(&self, producer: &Producer, number: u32, seq: u64) -> u64 {
        let value = payload::encode(number, seq, 100);
        let new = NewRecord {
            value: Some(&value),
            ..NewRecord::default()
        };
        let delivery = producer.append_wait(&new).await.expect("it takes records");
        delivery.await.expect("it is acknowledged").ordinal
    }

    /// A consumer without a group reads from the beginning, `most` records at most.
    async fn read(&self, consumer: u32, most: usize) {
        self.read_from(Start::Earliest, consumer, most).await;
    }

    /// As [`read`](Self::read), from elsewhere; the history is not told.
    async fn read_from(&self, start: Start, consumer: u32, most: usize) {
        let reader = Reader::builder()
            .bootstrap(self.broker.address())
            .stream(STREAM)
            .start(start)
            .follow(false)
            .open();
        let mut reader = reader.await.expect("a reader can be opened");
        let mut left = most;
        while left > 0 {
            let batch = reader.next_batch().await.expect("the stream can be read");
            let Some(batch) = batch else { break };
            self.recorder.record(Event::Polled { consumer });
            for record in batch.records().take(left) {
                let record = record.expect("a record decodes");
                left -= 1;
                self.recorder.record(Event::Read {
                    consumer,
                    lease: None,
                    lane: LANE,
                    ordinal: record.ordinal,
                    record: record.value.and_then(|value| payload::decode(value).ok()),
                    key: None,
                    head: Some(batch.head_ordinal()),
                });
            }
        }
        if left > 0 {
            for position in reader.positions() {
                self.recorder.record(Event::Drained {
                    reader: HistoryReader::Consumer(consumer),
                    lane: LANE,
                    ordinal: position.next.ordinal,
                });
            }
        }
    }

    fn kill(&mut self) {
        self.recorder.record(Event::BrokerKilled);
        block_in_place(|| self.broker.kill());
    }

    fn start(&mut self) {
        block_in_place(|| self.broker.restart());
        self.recorder.record(Event::BrokerStarted);
    }

    fn judge(self) -> Report {
        let history = self.recorder.finish().expect("it is in memory");
        let expectations = Expectations {
            complete: true,
            ..Expectations::default()
        };
        check(&history, &expectations).expect("the history can be judged")
    }
}

/// Makes `to` what `from` is, and nothing else.
fn copy(from: &Path, to: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).expect("a directory can be removed");
    }
    fs::create_dir_all(to).expect("a directory can be made");
    for entry in fs::read_dir(from).expect("a directory can be read") {
        let entry = entry.expect("a directory can be read");
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a file can be copied");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_wrong_with_a_broker_that_is_only_killed() {
    let mut story = Story::new();
    story.send(0).await;
    story.kill();
    story.start();
    story.send(1).await;
    story.read(0, usize::MAX).await;
    let report = story.judge();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.read, 2 * SOME);
}

/// The broker's disk is set back to what it was some time ago, as when a machine is restored from a
/// snapshot: what was acknowledged since is lost, and its ordinals are used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_set_back_to_an_older_disk() {
    let mut story = Story::new();
    story.send(0).await;
    story.kill();
    let older = common::home();
    let data = story.broker.data_dir().to_owned();
    block_in_place(|| copy(&data, older.path()));
    story.start();
    story.send(1).await;
    // Half of what is about to be lost was seen.
    story.read(0, (SOME + SOME / 2) as usize).await;
    story.kill();
    block_in_place(|| copy(older.path(), &data));
    story.start();
    story.send(2).await;
    story.read(1, usize::MAX).await;
    let report = story.judge();
    let kinds = report.kinds();
    assert!(kinds.contains(&AnomalyKind::Lost), "{report}");
    assert!(kinds.contains(&AnomalyKind::OrdinalReused), "{report}");
    let classes = report.classes();
    assert!(classes.contains(&Class::LostWrite), "{report}");
    assert!(classes.contains(&Class::InconsistentOffsets), "{report}");
}

/// The same, and nobody reads what comes after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_last_is_gone() {
    let mut story = Story::new();
    story.send(0).await;
    story.kill();
    let older = common::home();
    let data = story.broker.data_dir().to_owned();
    block_in_place(|| copy(&data, older.path()));
    story.start();
    story.send(1).await;
    story.kill();
    block_in_place(|| copy(older.path(), &data));
    story.start();
    story.read(0, usize::MAX).await;
    let report = story.judge();
    assert_eq!(report.counts.lost(), SOME, "{report}");
    assert_eq!(report.classes(), [Class::Unseen], "{report}");
}

/// A client that forgets who it is sends a record again, since it has not heard of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_forgets_its_id() {
    let story = Story::new();
    story.send(0).await;
    let another = story.producer().await;
    story.append(&another, 0, SOME / 2).await;
    another.close().await.expect("all is sent");
    story.read(0, usize::MAX).await;
    let report = story.judge();
    assert_eq!(report.kinds(), [AnomalyKind::Duplicated], "{report}");
    assert_eq!(report.classes(), [Class::Duplicate], "{report}");
}

/// Two connections without an order between them: what was sent later is stored first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_sends_over_two_connections() {
    for within in [true, false] {
        let story = Story::new();
        let (one, other) = (story.producer().await, story.producer().await);
        let record = |seq| Record { producer: 0, seq };
        story.recorder.record(Event::Batched { producer: 0 });
        for seq in 0..2 {
            if !within {
                story.recorder.record(Event::Batched { producer: 0 });
            }
            story.recorder.record(Event::Send {
                record: record(seq),
                stream: LANE.stream,
                streamlet: None,
                lane: None,
                key: None,
            });
        }
        // The first is under way for longer.
        for (seq, producer) in [(1, &other), (0, &one)] {
            let ordinal = story.append(producer, 0, seq).await;
            story.recorder.record(Event::Ack {
                record: record(seq),
                lane: LANE,
                ordinal,
            });
        }
        story.read(0, usize::MAX).await;
        let report = story.judge();
        let expected = if within {
            Class::IntNonmonotonicSend
        } else {
            Class::NonmonotonicSend
        };
        assert_eq!(report.kinds(), [AnomalyKind::Reordered], "{report}");
        assert_eq!(report.classes(), [expected], "{report}");
    }
}

/// A consumer loses its place and begins anew, without a word to anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_goes_back() {
    let story = Story::new();
    story.send(0).await;
    story.read(0, usize::MAX).await;
    story.read(0, 10).await;
    let report = story.judge();
    assert_eq!(report.kinds(), [AnomalyKind::Duplicated], "{report}");
    assert_eq!(report.classes(), [Class::NonmonotonicPoll], "{report}");
}

/// A consumer loses its place and goes on where others are by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_leaves_some_out() {
    let story = Story::new();
    story.send(0).await;
    story.read(1, usize::MAX).await;
    story.read(0, (SOME / 4) as usize).await;
    let later = Start::Ordinal(SOME / 2);
    story.read_from(later, 0, usize::MAX).await;
    let report = story.judge();
    assert_eq!(report.kinds(), [AnomalyKind::Unseen], "{report}");
    assert_eq!(report.classes(), [Class::PollSkip], "{report}");
}

/// A consumer that takes an answer's batches in the wrong order, or loses one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_mixes_up_one_answer() {
    for (loses, kind, class) in [
        (true, AnomalyKind::Unseen, Class::IntPollSkip),
        (false, AnomalyKind::Reordered, Class::IntNonmonotonicPoll),
    ] {
        let story = Story::new();
        story.send(0).await;
        story.read(1, usize::MAX).await;
        let answer = block_in_place(|| whole_answer(&story.broker));
        let mut batches: Vec<_> = batch::batches(&answer)
            .map(|found| found.expect("a batch").1)
            .collect();
        assert!(batches.len() > 3, "{} batches are no test", batches.len());
        if loses {
            batches.remove(1);
        } else {
            batches.swap(1, 2);
        }
        story.recorder.record(Event::Polled { consumer: 0 });
        for found in batches {
            let header = BatchHeader::peek(found).expect("a header");
            let mut scratch = Vec::new();
            let records = batch::Records::open(found, 1 << 20, &mut scratch);
            for record in records.expect("records") {
                let record = record.expect("a record");
                story.recorder.record(Event::Read {
                    consumer: 0,
                    lease: None,
                    lane: LANE,
                    ordinal: header.base_ordinal + u64::from(record.ordinal_delta),
                    record: record.value.and_then(|value| payload::decode(value).ok()),
                    key: None,
                    head: None,
                });
            }
        }
        let report = story.judge();
        assert_eq!(report.kinds(), [kind], "{report}");
        assert_eq!(report.classes(), [class], "{report}");
    }
}

/// The lane's batches from the first on, as one answer brings them.
fn whole_answer(broker: &Broker) -> bytes::Bytes {
    let mut raw = Raw::open(broker);
    let request = v1::ReadRequest {
        stream: stream_id(broker, STREAM),
        cursor: Some(v1::Cursor::default()),
        max_bytes: 1 << 20,
        ..v1::ReadRequest::default()
    };
    raw.send(&frame_of(FrameKind::Read, 1, &request, b""));
    let frame = raw.next().expect("a read is answered");
    assert_eq!(frame.kind, FrameKind::ReadReply);
    frame.body
}
