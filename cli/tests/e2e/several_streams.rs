//! Producers of several streams in one transaction.

use std::time::Instant;

use kera_producer::{AppendError, BuildError, Producer, ProducerBuilder, Record, TransactionError};
use tokio::runtime::Runtime;

use crate::common::{Broker, PATIENCE};

const STREAMS: [&str; 2] = ["orders", "invoices"];

fn broker() -> Broker {
    let broker = Broker::start();
    for stream in STREAMS {
        broker.run(&["stream", "create", stream, "--lanes", "2"]);
    }
    broker
}

fn builder(broker: &Broker) -> ProducerBuilder {
    let builder = Producer::builder().bootstrap(broker.address());
    builder.stream(STREAMS[0]).transactional_id("shop-1")
}

/// What readers see of a stream, sorted.
fn seen(broker: &Broker, stream: &str) -> Vec<String> {
    let told = broker.run(&["consume", stream]);
    let mut seen: Vec<String> = told.lines().map(str::to_owned).collect();
    seen.sort_unstable();
    seen
}

/// Readers of both streams see this and nothing else, once markers have followed the decision.
fn sees(broker: &Broker, expected: [&[&str]; 2]) {
    let deadline = Instant::now() + PATIENCE;
    let all = || STREAMS.map(|stream| seen(broker, stream));
    while all() != expected && Instant::now() < deadline {}
    assert_eq!(all(), expected);
}

fn append(producer: &Producer, value: &str) {
    let record = Record::keyed(value.as_bytes(), value.as_bytes());
    producer.append(&record).expect("room");
}

#[test]
fn a_transaction_over_two_streams_counts_in_both_or_in_none() {
    let broker = broker();
    Runtime::new().expect("a runtime").block_on(async {
        let orders = builder(&broker).build().await.expect("a producer");
        let invoices = orders.for_stream(STREAMS[1]).await.expect("a producer");
        let outside = invoices.append(&Record::of_value(b"x")).map(drop);
        assert!(matches!(outside, Err(AppendError::NoTransaction)));
        for (round, commits) in [(1, true), (2, false), (3, true)] {
            // Whichever begins it, it is the one of both.
            let begins = [&orders, &invoices][round % 2];
            let transaction = begins.transaction().await.expect("it begins");
            let another = orders.transaction().await.map(drop);
            assert!(matches!(another, Err(TransactionError::AlreadyOpen)));
            append(&orders, &format!("order {round}"));
            append(&invoices, &format!("invoice {round}"));
            match commits {
                true => transaction.commit().await.expect("it is committed"),
                false => transaction.abort().await.expect("it is aborted"),
            }
        }
        // What is dropped counts in neither, and what comes after it does.
        let dropped = orders.transaction().await.expect("it begins");
        append(&invoices, "invoice 4");
        invoices.flush().await.expect("it is stored");
        drop(dropped);
        let transaction = orders.transaction().await.expect("it begins");
        append(&invoices, "invoice 5");
        transaction.commit().await.expect("it is committed");
        for producer in [orders, invoices] {
            producer.close().await.expect("nothing is left");
        }
    });
    let orders = ["order 1", "order 3"];
    let invoices = ["invoice 1", "invoice 3", "invoice 5"];
    sees(&broker, [&orders, &invoices]);
}

/// A lane has one sequence under an epoch: begun again, its batches would be taken for those before.
#[test]
fn a_stream_that_was_closed_is_opened_again_and_loses_nothing() {
    let broker = broker();
    Runtime::new().expect("a runtime").block_on(async {
        let orders = builder(&broker).build().await.expect("a producer");
        let invoices = orders.for_stream(STREAMS[1]).await.expect("a producer");
        let refused = |error: BuildError, says: &str| {
            let text = error.to_string();
            assert!(text.contains(says), "{text}");
        };
        let twice = orders.for_stream(STREAMS[1]).await.map(drop);
        refused(twice.unwrap_err(), "clone that one");

        let transaction = orders.transaction().await.expect("it begins");
        append(&invoices, "a");
        invoices.close().await.expect("it is stored");
        let early = orders.for_stream(STREAMS[1]).await.map(drop);
        refused(early.unwrap_err(), "end the transaction first");
        transaction.commit().await.expect("it is committed");

        let invoices = orders.for_stream(STREAMS[1]).await.expect("a producer");
        let transaction = orders.transaction().await.expect("it begins");
        append(&orders, "b");
        append(&invoices, "c");
        append(&invoices, "a");
        transaction.commit().await.expect("it is committed");
    });
    sees(&broker, [&["b"], &["a", "a", "c"]]);
}

#[test]
fn a_stream_that_promises_too_little_takes_no_part() {
    let broker = broker();
    broker.run(&["stream", "create", "lossy", "--ack", "memory"]);
    Runtime::new().expect("a runtime").block_on(async {
        let orders = builder(&broker).build().await.expect("a producer");
        let error = orders.for_stream("lossy").await.map(drop).unwrap_err();
        assert!(error.to_string().contains("ack = memory"), "{error}");
    });
}
