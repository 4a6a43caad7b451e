//! The producer in programs without tasks.

mod fake;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fake::Broker;
use kera_producer::{
    AppendError, BlockingError, BuildError, ProduceError, Record, TransactionError,
};
use tokio::runtime::Runtime;

const LONG: Duration = Duration::from_secs(29);

/// The brokers' runtime, which no producer is to need, and a broker.
fn broker() -> (Runtime, Arc<Broker>) {
    let runtime = Runtime::new().unwrap();
    let broker = runtime.block_on(Broker::start(1, 1));
    (runtime, broker)
}

#[test]
fn threads_append_wait_and_close() {
    let (_runtime, broker) = broker();
    let producer = broker.producer().build_blocking().unwrap();
    thread::scope(|scope| {
        for writer in 0..4 {
            let producer = producer.clone();
            scope.spawn(move || {
                for number in 0..1_000 {
                    let value = format!("{writer} {number}");
                    producer.send(&Record::of_value(value.as_bytes())).unwrap();
                }
            });
        }
    });
    producer.flush().unwrap();
    assert_eq!(producer.metrics().records_acknowledged, 4_000);
    let last = producer.append(&Record::of_value(b"last")).unwrap();
    assert_eq!(last.wait().unwrap().ordinal, 4_000);
    producer.close().unwrap();
    let refused = producer.send(&Record::of_value(b"late"));
    assert!(matches!(refused, Err(AppendError::Closed)), "{refused:?}");
    let stored = broker.values();
    assert_eq!(stored[&(0, 0)].len(), 4_001);
}

#[test]
fn an_append_waits_for_memory_and_goes_on() {
    let (_runtime, broker) = broker();
    broker.hold(true);
    let settings = broker.producer().batch_size(1 << 10).memory_limit(4 << 10);
    let producer = settings.linger(LONG).build_blocking().unwrap();
    let value = [b'x'; 500];
    let mut taken = 0;
    while producer.send(&Record::of_value(&value)).is_ok() {
        taken += 1;
    }
    let refused = producer.append(&Record::of_value(&value));
    assert!(matches!(refused, Err(AppendError::Full)), "{refused:?}");
    let waiting = {
        let producer = producer.clone();
        thread::spawn(move || producer.append_wait(&Record::of_value(&value)).map(drop))
    };
    broker.hold(false);
    waiting.join().unwrap().unwrap();
    producer.close().unwrap();
    assert_eq!(broker.values()[&(0, 0)].len(), taken + 1);
}

#[test]
fn the_brokers_refusals_are_told() {
    let (_runtime, broker) = broker();
    let producer = broker.producer().build_blocking().unwrap();
    let error = producer.transaction().unwrap_err();
    assert!(
        matches!(error, TransactionError::NotTransactional),
        "{error}"
    );
    producer.close().unwrap();
    broker.state.lock().gone = true;
    let error = broker.eager().build_blocking().unwrap_err();
    assert!(matches!(error, BuildError::Rpc(_)), "{error}");
}

/// Dropping it anywhere is no error: not in a task, nor in a thread without one.
#[test]
fn tasks_are_told_to_use_the_async_producer() {
    let (runtime, broker) = broker();
    let producer = broker.producer().linger(LONG).build_blocking().unwrap();
    let record = Record::of_value(b"x");
    runtime.block_on(async {
        let error = broker.producer().build_blocking().unwrap_err();
        let within = BuildError::Blocking(BlockingError::WithinTask);
        assert_eq!(error.to_string(), within.to_string());
        assert!(error.to_string().contains("spawn_blocking"), "{error}");

        // What does not wait is allowed.
        let delivery = producer.append(&record).unwrap();
        let error = delivery.clone().wait().unwrap_err();
        assert!(matches!(error, ProduceError::Blocking(_)), "{error}");
        assert!(error.is_uncertain() && error.code().is_none());
        let error = producer.flush().unwrap_err();
        assert!(matches!(error, ProduceError::Blocking(_)), "{error}");
        let other = producer.clone();
        let flushed = tokio::task::spawn_blocking(move || other.flush());
        flushed.await.unwrap().unwrap();
        assert_eq!(delivery.await.unwrap().ordinal, 0);
        drop(producer);
    });
    assert_eq!(broker.values()[&(0, 0)], ["x"]);
}
