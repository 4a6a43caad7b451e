//! What a producer says of lanes that do not go on.

mod fake;

use std::time::Duration;

use fake::{Action, Broker};
use kera_producer::{Producer, Record};
use kera_protocol::error::ErrorCode;

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the producer says that a lane does not go on, for such a reason.
async fn stalls(producer: &Producer, why: &str) {
    let stalled = async {
        loop {
            let stall = producer.stall(Duration::from_millis(1));
            if stall.is_some_and(|stall| stall.to_string().contains(why)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let stalled = tokio::time::timeout(PATIENCE, stalled).await;
    assert!(
        stalled.is_ok(),
        "{why}: it says {:?}",
        producer.stall(Duration::ZERO)
    );
}

#[tokio::test]
async fn a_lane_that_does_not_go_on_says_why() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().build().await.unwrap();
    producer
        .append(&Record::of_value(b"v"))
        .unwrap()
        .await
        .unwrap();
    assert_eq!(producer.stall(Duration::ZERO), None);
    broker.script(|_, _| Action::Refuse(ErrorCode::NotEnoughCopies));
    let sent = producer.append(&Record::of_value(b"v")).unwrap();
    stalls(&producer, "planted (NOT_ENOUGH_COPIES)").await;
    assert_eq!(producer.stall(PATIENCE), None, "not for so long");
    broker.behave();
    sent.await.unwrap();
    assert_eq!(producer.stall(Duration::ZERO), None);
    broker.script(|_, _| Action::Swallow { store: false });
    producer.send(&Record::of_value(b"v")).unwrap();
    stalls(&producer, "streamlet 0 lane 0 has waited").await;
    stalls(&producer, "it has not answered yet").await;
    broker.kill(0);
    stalls(&producer, "connection").await;
}
