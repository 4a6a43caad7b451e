//! Transactions of native producers: all of one is read, or nothing, whoever is killed meanwhile; and those that are
//! prepared wait for whoever has their handle.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bytes::Buf;
use kera_producer::{
    AppendError, BuildError, Producer, ProducerBuilder, Record, TransactionError,
    TransactionHandle, Transactions,
};
use kera_protocol::Message;
use kera_protocol::batch::{ProducerStamp, Records, batches, mark_transactional};
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::FrameKind;
use kera_protocol::v1::{self, CallMethod};
use kera_rpc::Client;
use tokio::runtime::Runtime;

use crate::common::raw::{Raw, batch_by, frame_of, stream_id};
use crate::common::{Broker, PATIENCE};

fn builder(broker: &Broker, id: &str) -> ProducerBuilder {
    Producer::builder()
        .bootstrap(broker.address())
        .stream("s")
        .transactional_id(id)
        .batch_size(1 << 10)
}

/// How long a transaction may be open: soon over, and enough for one that the machine holds up.
const TIME: Duration = Duration::from_secs(2);

/// How many transactions with ids that begin so are open, prepared or not.
async fn count_open(broker: &Broker, prefix: &str) -> usize {
    let client = Client::connect_to(broker.address()).expect("an address");
    let request = v1::ListOpenTransactionsRequest {
        prefix: prefix.to_owned(),
        ..Default::default()
    };
    let call = client.call(request);
    call.await.expect("a list").transactions.len()
}

fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

async fn open(broker: &Broker, id: &str) -> Producer {
    builder(broker, id).build().await.expect("a producer")
}

/// Records of a transaction, with keys and without.
fn append(transaction: &kera_producer::Transaction<'_>, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let text = number.to_string();
        let record = match number % 2 {
            0 => Record::keyed(text.as_bytes(), text.as_bytes()),
            _ => Record::of_value(text.as_bytes()),
        };
        transaction.append(&record).expect("room");
    }
}

/// What native readers see, sorted.
fn seen(broker: &Broker) -> Vec<u32> {
    let told = broker.run(&["consume", "s"]);
    let mut seen: Vec<u32> = told
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    seen.sort_unstable();
    seen
}

/// Native readers see this and nothing else, once markers have followed the decision.
fn sees(broker: &Broker, expected: &[u32], when: &str) {
    let deadline = Instant::now() + PATIENCE;
    while seen(broker) != expected && Instant::now() < deadline {}
    assert_eq!(seen(broker), expected, "{when}");
}

/// What Kafka's read_committed consumers see of a partition, by Fetch of version 4.
fn seen_by_kafka(broker: &Broker, partition: i32) -> Vec<u32> {
    // API 1, version 4, correlation 7, no client id; no replica, no wait, at most 1 MiB, read_committed; topic "s".
    let mut request = vec![0, 1, 0, 4, 0, 0, 0, 7, 0xff, 0xff];
    for number in [-1, 0, 0, 1 << 20] {
        request.extend_from_slice(&i32::to_be_bytes(number));
    }
    request.push(1);
    request.extend_from_slice(&[0, 0, 0, 1, 0, 1, b's', 0, 0, 0, 1]);
    request.extend_from_slice(&partition.to_be_bytes());
    request.extend_from_slice(&0_i64.to_be_bytes());
    request.extend_from_slice(&(1_i32 << 20).to_be_bytes());
    let reply = kera_testkit::kafka::exchange(broker.kafka(), &request);
    let mut reply = bytes::Bytes::from(reply);
    // Correlation, throttle, one topic of a name, one partition and its number.
    reply.advance(4 + 4 + 4 + 3 + 4 + 4);
    assert_eq!(reply.get_i16(), 0, "no error");
    reply.advance(16);
    let mut aborted = Vec::new();
    for _ in 0..reply.get_i32().max(0) {
        let producer = reply.get_i64();
        aborted.push((reply.get_i64() as u64, producer));
    }
    aborted.sort_unstable();
    let records = reply
        .split_to(reply.clone().get_i32() as usize + 4)
        .slice(4..);
    let (mut dropping, mut seen) = (HashSet::new(), Vec::new());
    for batch in batches(&records) {
        let (header, bytes) = batch.expect("a whole batch");
        while let Some((first, producer)) = aborted.first().copied()
            && first < header.next_ordinal()
        {
            dropping.insert(producer);
            aborted.remove(0);
        }
        if header.is_control() {
            dropping.remove(&header.producer_id);
            continue;
        }
        assert!(header.is_transactional());
        if dropping.contains(&header.producer_id) {
            continue;
        }
        let mut scratch = Vec::new();
        for record in Records::open(bytes, 1 << 20, &mut scratch).expect("records") {
            let value = record.expect("a record").value.expect("a value");
            let text = std::str::from_utf8(value).expect("text");
            seen.push(text.parse().expect("a number"));
        }
    }
    seen
}

fn numbers(numbers: impl IntoIterator<Item = u32>) -> Vec<u32> {
    numbers.into_iter().collect()
}

fn transactions(broker: &Broker) -> Transactions {
    Transactions::new(Client::connect_to(broker.address()).expect("an address"))
}

fn is_of<T: std::fmt::Debug>(outcome: Result<T, TransactionError>, code: ErrorCode) {
    let error = outcome.expect_err("it is refused");
    assert_eq!(error.code(), Some(code), "{error}");
}

#[test]
fn what_is_committed_is_read_and_what_is_aborted_is_not() {
    for lane_by in ["key", "producer"] {
        let mut broker = Broker::with(&["--kafka-listen", "127.0.0.1:0"]);
        let create = ["stream", "create", "s", "--streamlets", "2", "--lanes", "2"];
        broker.run(&[&create[..], &["--lane-by", lane_by]].concat());
        runtime().block_on(async {
            let producer = open(&broker, "one").await;
            let outside = producer.append(&Record::of_value(b"7")).map(drop);
            assert!(matches!(outside, Err(AppendError::NoTransaction)));
            for round in 0..4 {
                let transaction = producer.transaction().await.expect("it begins");
                append(&transaction, round * 100..round * 100 + 100);
                match round % 2 {
                    0 => transaction.commit().await.expect("it is committed"),
                    _ => transaction.abort().await.expect("it is aborted"),
                }
            }
            // What is dropped is aborted, and so is what is open when the next instance begins.
            append(&producer.transaction().await.expect("it begins"), 400..500);
            let empty = producer.transaction().await.expect("it begins");
            assert_eq!(empty.handle(), None);
            empty.commit().await.expect("nothing is to be committed");
            let left = producer.transaction().await.expect("it begins");
            append(&left, 500..600);
            producer.flush().await.expect("it is stored");
            let second = open(&broker, "one").await;
            is_of(left.commit().await, ErrorCode::UnknownTransaction);
            is_of(producer.transaction().await, ErrorCode::FencedProducer);
            let transaction = second.transaction().await.expect("it begins");
            let another = second.transaction().await.map(drop);
            assert!(matches!(another, Err(TransactionError::AlreadyOpen)));
            append(&transaction, 600..700);
            transaction.commit().await.expect("it is committed");
        });
        let counts = numbers((0..100).chain(200..300).chain(600..700));
        sees(&broker, &counts, lane_by);
        let mut kafka: Vec<u32> = (0..4).flat_map(|p| seen_by_kafka(&broker, p)).collect();
        kafka.sort_unstable();
        assert_eq!(kafka, counts, "{lane_by}, Kafka's readers");
        broker.kill();
        broker.restart();
        sees(&broker, &counts, "from the disk");
    }
}

#[test]
fn a_prepared_transaction_outlives_its_producer_and_the_broker() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "2", "--lanes", "2"]);
    let prepare = |broker: &Broker, id: &str, records: std::ops::Range<u32>| {
        runtime().block_on(async {
            let producer = builder(broker, id).transaction_timeout(TIME);
            let producer = producer.build().await.expect("a producer");
            let transaction = producer.transaction().await.expect("it begins");
            append(&transaction, records);
            let prepared = transaction.prepare().await.expect("it is prepared");
            is_of(
                prepared_next(&producer).await,
                ErrorCode::TransactionPrepared,
            );
            prepared.expect("it has records")
        })
    };
    let first = prepare(&broker, "job/0/1", 0..100);
    let second = prepare(&broker, "job/1/1", 100..200);
    prepare(&broker, "other/0/1", 200..300);
    assert!(seen(&broker).is_empty());
    broker.kill();
    broker.restart();
    assert!(seen(&broker).is_empty());

    // Another process finds them.
    let runtime = runtime();
    runtime.block_on(async {
        // One whose producer says that it lives stays open for longer than its time.
        let alive = builder(&broker, "alive").transaction_timeout(TIME);
        let alive = alive.transaction_heartbeats(true);
        let alive = alive.build().await.expect("a producer");
        let kept = alive.transaction().await.expect("it begins");
        append(&kept, 800..810);
        alive.flush().await.expect("it is stored");
        // One that began later and is not prepared is aborted: their time would be over as well.
        let late = builder(&broker, "late").transaction_timeout(TIME);
        let late = late.build().await.expect("a producer");
        let transaction = late.transaction().await.expect("it begins");
        append(&transaction, 900..910);
        late.flush().await.expect("it is stored");
        while count_open(&broker, "late").await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let over = transaction.commit().await;
        assert!(matches!(over, Err(TransactionError::Aborted)), "{over:?}");
        assert_eq!(count_open(&broker, "alive").await, 1);
        kept.abort().await.expect("it is aborted");

        let all = transactions(&broker);
        let found = all.prepared("job/").await.expect("a list");
        let handles: Vec<TransactionHandle> = found.into_iter().map(|one| one.handle).collect();
        assert_eq!(handles, [first.clone(), second.clone()]);
        all.commit(&first).await.expect("it is committed");
        all.abort(&second).await.expect("it is aborted");
    });
    sees(&broker, &numbers(0..100), "one is committed");
    broker.kill();
    broker.restart();
    // How they ended is told again.
    runtime.block_on(async {
        let all = transactions(&broker);
        all.commit(&first).await.expect("it is committed");
        let aborted = all.commit(&second).await;
        assert!(matches!(aborted, Err(TransactionError::Aborted)));
        let committed = all.abort(&first).await;
        assert!(matches!(committed, Err(TransactionError::Committed)));
        all.forget(&first).await.expect("it is forgotten");
        all.forget(&first).await.expect("it was forgotten");
        is_of(all.commit(&first).await, ErrorCode::UnknownTransaction);
        // Its id is free, unlike that of the one that is prepared still.
        let producer = open(&broker, "job/1/1").await;
        let next = producer.transaction().await.expect("it begins");
        append(&next, 300..301);
        next.commit().await.expect("it is committed");
        let taken = builder(&broker, "other/0/1").build().await;
        let Err(BuildError::Rpc(error)) = taken else {
            panic!("{taken:?}")
        };
        assert_eq!(error.code(), Some(ErrorCode::TransactionPrepared));
    });
    // Behind one that is prepared nothing is read.
    assert_eq!(seen(&broker), numbers(0..100));
    runtime.block_on(async {
        let all = transactions(&broker);
        let other = all.prepared("other/").await.expect("a list").remove(0);
        all.commit(&other.handle).await.expect("it is committed");
    });
    sees(&broker, &numbers((0..100).chain(200..301)), "all are ended");
}

async fn prepared_next(producer: &Producer) -> Result<(), TransactionError> {
    let transaction = producer.transaction().await?;
    append(&transaction, 0..1);
    transaction.commit().await
}

#[test]
fn a_commit_whose_answer_is_lost_is_asked_for_until_it_is_known() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    let runtime = runtime();
    let producer = runtime.block_on(open(&broker, "one"));
    let mut counts = Vec::new();
    for round in 0..6_u32 {
        let records = round * 10..round * 10 + 10;
        let (producer, own) = (producer.clone(), records.clone());
        let (flushed, is_flushed) = tokio::sync::oneshot::channel();
        let commit = runtime.spawn(async move {
            let transaction = producer.transaction().await?;
            append(&transaction, own);
            producer.flush().await.expect("it is stored");
            let _ = flushed.send(());
            transaction.commit().await
        });
        runtime.block_on(is_flushed).expect("it is stored");
        // Anywhere between the request and its answer.
        runtime.block_on(async {
            for _ in 0..round * 20 {
                tokio::task::yield_now().await;
            }
        });
        broker.kill();
        broker.restart();
        match runtime.block_on(commit).expect("no panic") {
            Ok(()) => counts.extend(records),
            Err(error) => panic!("nothing refuses it: {error}"),
        }
        sees(&broker, &counts, &format!("round {round}"));
    }
}

#[test]
fn a_transaction_whose_time_is_over_is_aborted() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    runtime().block_on(async {
        let producer = builder(&broker, "slow").transaction_timeout(TIME);
        let producer = producer.build().await.expect("a producer");
        let transaction = producer.transaction().await.expect("it begins");
        append(&transaction, 0..10);
        producer.flush().await.expect("it is stored");
        // The marker of its abort: somebody who waits for it sees no time.
        let list = transactions(&broker);
        while count_open(&broker, "").await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(list.prepared("").await.expect("a list").is_empty());
        let handle = transaction.handle().expect("it has records");
        let late = transaction.commit().await;
        assert!(matches!(late, Err(TransactionError::Aborted)), "{late:?}");
        let asked = list.commit(&handle).await;
        assert!(matches!(asked, Err(TransactionError::Aborted)), "{asked:?}");
        let next = producer.transaction().await.expect("it begins");
        append(&next, 10..20);
        next.commit().await.expect("it is committed");
    });
    sees(&broker, &numbers(10..20), "the second one");
}

#[test]
fn a_transaction_that_somebody_ends_while_records_are_appended_is_not_committed_in_part() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "1", "--lanes", "8"]);
    runtime().block_on(async {
        let producer = open(&broker, "one").await;
        let others = transactions(&broker);
        for _ in 0..2 {
            let transaction = producer.transaction().await.expect("it begins");
            transaction
                .append(&Record::keyed(b"0", b"0"))
                .expect("room");
            producer.flush().await.expect("it is stored");
            let handle = transaction.handle().expect("it has a record");
            others.abort(&handle).await.expect("it is aborted");
            // Other lanes: they would be part of another transaction, without the first record.
            for number in 1..50 {
                let text = number.to_string();
                let record = Record::keyed(text.as_bytes(), text.as_bytes());
                if let Err(error) = transaction.append(&record) {
                    let told = matches!(error, AppendError::TransactionFailed(_));
                    assert!(told, "{error}");
                }
            }
            // How is not remembered since the other one has begun.
            let ended = transaction.commit().await.expect_err("it was ended");
            assert!(matches!(ended, TransactionError::Unknown { .. }), "{ended}");
        }
        let next = producer.transaction().await.expect("it begins");
        append(&next, 100..110);
        next.commit().await.expect("it is committed");
    });
    sees(&broker, &numbers(100..110), "the last one");
}

#[test]
fn a_producer_whose_id_was_forgotten_begins_anew() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    runtime().block_on(async {
        let producer = open(&broker, "one").await;
        let transaction = producer.transaction().await.expect("it begins");
        append(&transaction, 0..10);
        let prepared = transaction.prepare().await.expect("it is prepared");
        let handle = prepared.expect("it has records");
        let others = transactions(&broker);
        others.commit(&handle).await.expect("it is committed");
        others.forget(&handle).await.expect("it is forgotten");
        // Nobody has told it yet.
        let transaction = producer.transaction().await.expect("it begins");
        append(&transaction, 10..20);
        is_of(transaction.commit().await, ErrorCode::FencedProducer);
        let next = producer.transaction().await.expect("it begins");
        append(&next, 20..30);
        next.commit().await.expect("it is committed");
    });
    sees(&broker, &numbers((0..10).chain(20..30)), "it goes on");
}

fn call(raw: &mut Raw, method: CallMethod, request: &impl Message) -> Result<bytes::Bytes, u32> {
    let header = v1::CallRequest {
        method: method.into(),
        deadline_ms: 0,
    };
    raw.send(&frame_of(
        FrameKind::Call,
        1,
        &header,
        &request.encode_to_vec(),
    ));
    let frame = raw.next().expect("a call is answered");
    let told: v1::CallResponse = frame.message().expect("a reply");
    match told.error {
        0 => Ok(frame.body),
        error => Err(error),
    }
}

#[test]
fn what_is_no_part_of_an_open_transaction_is_refused() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.run(&["stream", "create", "m", "--ack", "memory"]);
    let mut raw = Raw::open(&broker);
    let refused_of = |raw: &mut Raw, stream: &str, id: &str, lane: u32, batches: &[u8]| {
        let request = v1::AppendRequest {
            stream: stream_id(&broker, stream),
            lane,
            transactional_id: id.into(),
            ..Default::default()
        };
        loop {
            raw.send(&frame_of(FrameKind::Append, 2, &request, batches));
            let (_, answer) = raw.append_answer();
            let code = ErrorCode::from_number(answer.error).expect("a code");
            assert_eq!(answer.placement(), v1::Placement::NotPlaced, "{code}");
            // While the coordinator is asked.
            if code != ErrorCode::TransactionPending {
                return code;
            }
        }
    };
    let refused = |raw: &mut Raw, stream: &str, id: &str, lane: u32| {
        let stamp = ProducerStamp {
            producer_id: 1000,
            producer_epoch: 0,
            base_sequence: 0,
        };
        let mut batch = batch_by(stamp, b"v");
        mark_transactional(&mut batch);
        refused_of(raw, stream, id, lane, &batch)
    };
    assert_eq!(refused(&mut raw, "s", "", 0), ErrorCode::InvalidBatch);
    assert_eq!(
        refused(&mut raw, "s", "id", u32::MAX),
        ErrorCode::InvalidArgument
    );
    assert_eq!(refused(&mut raw, "m", "id", 0), ErrorCode::InvalidArgument);
    assert_eq!(
        refused(&mut raw, "s", "id", 0),
        ErrorCode::TransactionNotOpen
    );

    // Of several batches each is looked at: the first one is not the only one that could be of another's transaction.
    let init = v1::InitTransactionsRequest {
        transactional_id: "own".into(),
        ..Default::default()
    };
    let begun = call(&mut raw, CallMethod::InitTransactions, &init).expect("it begins");
    let own = v1::InitTransactionsResponse::decode(begun).expect("a reply");
    let batch_of = |producer_id: i64, is_transactional: bool| {
        let stamp = ProducerStamp {
            producer_id,
            producer_epoch: 0,
            base_sequence: 0,
        };
        let mut batch = batch_by(stamp, b"v");
        if is_transactional {
            mark_transactional(&mut batch);
        }
        batch
    };
    let several = [
        [
            batch_of(own.producer, true),
            batch_of(own.producer + 1, true),
        ],
        [
            batch_of(own.producer, false),
            batch_of(own.producer + 1, true),
        ],
        [batch_of(own.producer, true), batch_of(own.producer, false)],
    ];
    for batches in several {
        let code = refused_of(&mut raw, "s", "own", 0, &batches.concat());
        assert_eq!(code, ErrorCode::InvalidBatch);
    }

    let add = |stream: &str, lane: u32| v1::AddToTransactionRequest {
        transactional_id: "id".into(),
        producer: 1000,
        epoch: 0,
        streams: vec![v1::LanesOfTransaction {
            stream: stream_id(&broker, stream),
            lanes: vec![v1::LaneOfTransaction { streamlet: 0, lane }],
        }],
        groups: Vec::new(),
    };
    let refused = [
        (add("m", 0), ErrorCode::InvalidArgument),
        (add("s", 9), ErrorCode::UnknownLane),
        (add("s", 0), ErrorCode::FencedProducer),
    ];
    for (request, code) in refused {
        let answer = call(&mut raw, CallMethod::AddToTransaction, &request);
        assert_eq!(answer, Err(code as u32));
    }
    let end = v1::EndTransactionRequest::default();
    let answer = call(&mut raw, CallMethod::EndTransaction, &end);
    assert_eq!(answer, Err(ErrorCode::InvalidArgument as u32));

    let memory = Producer::builder()
        .bootstrap(broker.address())
        .stream("m")
        .transactional_id("id");
    let built = runtime().block_on(memory.build());
    assert!(
        matches!(built, Err(BuildError::Setting { .. })),
        "{built:?}"
    );
}
