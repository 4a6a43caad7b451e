//! Programs copy a stream. Each transaction has the copied records and the group's position behind them. Each record is copied
//! once, also if programs and brokers are killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kera_consumer::{Batch, ConsumeError, Consumer, ConsumerBuilder, Order, Start};
use kera_producer::{Producer, Record, TransactionError, Transactions};
use kera_protocol::error::ErrorCode;
use kera_rpc::Client;
use tokio::runtime::Runtime;

use crate::common::{Broker, PATIENCE};

fn consumer(address: &str, order: Order) -> ConsumerBuilder {
    Consumer::builder()
        .bootstrap(address)
        .stream("in")
        .group("copy")
        .order(order)
        .start(Start::Earliest)
        .range_bytes(1 << 10)
        .manual_commit()
}

async fn open(broker: &Broker) -> Consumer {
    let consumer = consumer(broker.address(), Order::Lane).open().await;
    consumer.expect("a consumer")
}

async fn producer(address: &str, id: &str) -> Result<Producer, kera_producer::BuildError> {
    let producer = Producer::builder().bootstrap(address).stream("out");
    producer.transactional_id(id).build().await
}

/// Streams `in` and `out`.
fn streams(broker: &Broker, lanes: &str) {
    for name in ["in", "out"] {
        broker.run(&[
            "stream",
            "create",
            name,
            "--streamlets",
            "1",
            "--lanes",
            lanes,
        ]);
    }
}

/// These numbers in `in`, in small batches.
fn append(broker: &Broker, numbers: std::ops::Range<u32>) {
    Runtime::new().expect("a runtime").block_on(async {
        let producer = Producer::builder().bootstrap(broker.address()).stream("in");
        let producer = producer
            .batch_size(1 << 10)
            .linger(Duration::ZERO)
            .build()
            .await;
        let producer = producer.expect("a producer");
        for number in numbers {
            let text = number.to_string();
            let record = Record::keyed(text.as_bytes(), text.as_bytes());
            producer.append_wait(&record).await.expect("room");
            if number % 10 == 9 {
                producer.flush().await.expect("it is stored");
            }
        }
        producer.close().await.expect("all is stored");
    });
}

/// What readers of what is committed see in `out`, sorted.
fn copied(broker: &Broker) -> Vec<u32> {
    let told = broker.run(&["consume", "out"]);
    let numbers = told.lines().map(|line| line.parse().expect("a number"));
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

fn appended(transaction: &kera_producer::Transaction<'_>, batch: &Batch) {
    for record in batch.records() {
        let value = record.expect("a record").value.expect("a value");
        transaction.append(&Record::of_value(value)).expect("room");
    }
}

/// What the group `copy` has consumed, in all lanes.
async fn committed(broker: &Broker) -> u64 {
    let client = Client::connect_to(broker.address()).expect("an address");
    let request = kera_protocol::v1::DescribeGroupRequest {
        group: "copy".to_owned(),
    };
    let described = client.group_call("copy", PATIENCE, request);
    let lanes = described.await.expect("a group").lanes;
    lanes.iter().map(|lane| lane.committed).sum()
}

/// The coordinator has had its chances to grant a lease.
async fn has_answered(broker: &Broker) {
    for _ in 0..100 {
        committed(broker).await;
    }
}

/// Copies batches in transactions, every fifth of which it aborts. After some it goes away with one that is open, its
/// positions sent.
async fn copy(address: String, id: String, order: Order, committed: Arc<AtomicU64>) {
    loop {
        let Ok(producer) = producer(&address, &id).await else {
            continue;
        };
        let Ok(mut consumer) = consumer(&address, order).open().await else {
            continue;
        };
        for round in 0..12 {
            let Ok(batch) = consumer.next_batch().await else {
                break;
            };
            let Ok(transaction) = producer.transaction().await else {
                break;
            };
            appended(&transaction, &batch);
            let sent = match consumer.positions([&batch]) {
                Ok(positions) => transaction.send_positions(positions).await.is_ok(),
                Err(_) => false,
            };
            match (sent, round) {
                (true, 11) => drop(producer.flush().await),
                (true, 3 | 8) => drop(transaction.abort().await),
                (true, _) => match transaction.commit().await {
                    Ok(()) => drop(committed.fetch_add(1, Ordering::Relaxed)),
                    Err(_) => break,
                },
                (false, _) => {
                    drop(transaction);
                    consumer.rewind();
                }
            }
        }
    }
}

#[test]
fn a_stream_is_copied_once_whoever_is_killed() {
    for order in [Order::Lane, Order::None] {
        const RECORDS: u32 = 600;
        const PART: u32 = RECORDS / 3;
        let mut broker = Broker::start();
        streams(&broker, "4");
        append(&broker, 0..PART);
        let runtime = Runtime::new().expect("a runtime");
        let commits = Arc::new(AtomicU64::new(0));
        let workers = ["one", "two"].map(|id| {
            let address = broker.address().to_owned();
            runtime.spawn(copy(address, id.into(), order, commits.clone()))
        });
        let all: Vec<u32> = (0..RECORDS).collect();
        let deadline = Instant::now() + PATIENCE * 4;
        let mut kills = 0;
        loop {
            let seen = copied(&broker);
            let twice = seen.windows(2).find(|pair| pair[0] == pair[1]);
            assert_eq!(twice, None, "a record is copied twice, {order:?}");
            if seen == all {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{} of {RECORDS} copied, {order:?}",
                seen.len()
            );
            // After some progress each time, and while there is work.
            if kills < 2 && commits.load(Ordering::Relaxed) >= (u64::from(kills) + 1) * 6 {
                kills += 1;
                append(&broker, PART * kills..PART * (kills + 1));
                broker.kill();
                broker.restart();
            }
        }
        for worker in workers {
            worker.abort();
            let ended = runtime.block_on(worker);
            assert!(
                ended.is_err_and(|error| error.is_cancelled()),
                "no worker fails"
            );
        }
        assert_eq!(copied(&broker), all, "{order:?}");
    }
}

#[test]
fn positions_count_with_the_records_and_others_wait_for_them() {
    let mut broker = Broker::start();
    streams(&broker, "1");
    append(&broker, 0..20);
    Runtime::new().expect("a runtime").block_on(async {
        let one = producer(broker.address(), "one").await.expect("a producer");
        let mut first = open(&broker).await;
        let batch = first.next_batch().await.expect("a batch");
        let transaction = one.transaction().await.expect("it begins");
        appended(&transaction, &batch);
        let positions = first.positions([&batch]).expect("it is held");
        transaction
            .send_positions(positions.clone())
            .await
            .expect("they are taken");
        transaction
            .send_positions(positions)
            .await
            .expect("they are taken again");
        assert_eq!(committed(&broker).await, 0, "nothing counts yet");
        // The next consumer waits, also after the coordinator was killed.
        drop(first);
        broker.kill();
        broker.restart();
        let told = broker.run(&["group", "describe", "copy"]);
        assert!(
            told.contains("UNTIL THE TRANSACTION ENDS OF PRODUCER"),
            "{told}"
        );
        let told = broker.run(&["group", "describe", "copy", "--json"]);
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        let held = &told["lanes"][0]["held"][0];
        assert_eq!(held["next_ordinal"], batch.next_ordinal(), "{told}");
        let mut second = open(&broker).await;
        let next = tokio::select! {
            biased;
            _ = second.next_batch() => panic!("nobody knows where to begin"),
            () = has_answered(&broker) => {
                transaction.commit().await.expect("it is committed");
                second.next_batch().await.expect("the next batch")
            }
        };
        assert_eq!(next.first_ordinal(), batch.next_ordinal());
        assert_eq!(committed(&broker).await, batch.next_ordinal());

        // After an abort the same is delivered again, and what was delivered before it cannot be committed.
        let transaction = one.transaction().await.expect("it begins");
        appended(&transaction, &next);
        let positions = second.positions([&next]).expect("it is held");
        transaction
            .send_positions(positions)
            .await
            .expect("they are taken");
        transaction.abort().await.expect("it is aborted");
        let stale = second.positions([&next]);
        assert!(
            matches!(stale, Err(ConsumeError::StaleLease { .. })),
            "{stale:?}"
        );
        let again = second.next_batch().await.expect("a batch");
        assert_eq!(again.first_ordinal(), next.first_ordinal());
        // The same for a consumer that goes back before it has sent a position.
        second.rewind();
        let again = second.next_batch().await.expect("a batch");
        assert_eq!(again.first_ordinal(), next.first_ordinal());

        // One that is prepared ends by its handle, also one of positions alone.
        let transaction = one.transaction().await.expect("it begins");
        let positions = second.positions([&again]).expect("it is held");
        transaction
            .send_positions(positions)
            .await
            .expect("they are taken");
        let handle = transaction.prepare().await.expect("it is prepared");
        let handle = handle.expect("it has positions");
        assert_eq!(committed(&broker).await, batch.next_ordinal());
        let client = Client::connect_to(broker.address()).expect("an address");
        Transactions::new(client)
            .commit(&handle)
            .await
            .expect("it is committed");
        let last = second.next_batch().await.expect("a batch");
        assert!(last.first_ordinal() >= again.next_ordinal());
    });
}

#[test]
fn whoever_is_fenced_commits_no_positions() {
    let broker = Broker::start();
    streams(&broker, "1");
    append(&broker, 0..20);
    Runtime::new().expect("a runtime").block_on(async {
        let old = producer(broker.address(), "one").await.expect("a producer");
        let mut consumer = open(&broker).await;
        let batch = consumer.next_batch().await.expect("a batch");
        let transaction = old.transaction().await.expect("it begins");
        let new = producer(broker.address(), "one").await.expect("a producer");
        let positions = consumer.positions([&batch]).expect("it is held");
        let fenced = transaction.send_positions(positions.clone()).await;
        let code = fenced.expect_err("it is fenced").code();
        assert_eq!(code, Some(ErrorCode::FencedProducer));
        let refused = transaction.commit().await;
        assert!(
            matches!(refused, Err(TransactionError::Records(_))),
            "{refused:?}"
        );
        // The lease was given up with it.
        let transaction = new.transaction().await.expect("it begins");
        let batch = consumer.next_batch().await.expect("a batch");
        assert_eq!(batch.first_ordinal(), 0);
        let stale = transaction.send_positions(positions).await;
        let code = stale.expect_err("its lease has ended").code();
        assert_eq!(code, Some(ErrorCode::StaleLease));
        assert!(
            transaction.commit().await.is_err(),
            "it lacks its positions"
        );
        assert_eq!(committed(&broker).await, 0);

        // A consumer that commits by itself would move the group without the transaction.
        drop(consumer);
        let automatic = self::consumer(broker.address(), Order::Lane).auto_commit(PATIENCE);
        let mut automatic = automatic.open().await.expect("a consumer");
        let batch = automatic.next_batch().await.expect("a batch");
        let refused = automatic.positions([&batch]);
        assert!(
            matches!(refused, Err(ConsumeError::Setting { .. })),
            "{refused:?}"
        );
    });
}
