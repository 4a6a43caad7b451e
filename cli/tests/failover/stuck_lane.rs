//! Lanes that cannot acknowledge hold up the transactions that have records there, and no others.

use kera_producer::{Producer, Record, Transactions};
use kera_rpc::Client;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::Trio;
use crate::common::PATIENCE;

/// So many that each of the four coordinators has some.
const STUCK: usize = 12;
/// Producers that have nothing to do with those, and what each commits, one after the other.
const OTHERS: usize = 8;
const EACH: usize = 3;

async fn producer(bootstrap: &str, stream: &str, id: String) -> Producer {
    let producer = Producer::builder()
        .bootstrap(bootstrap)
        .stream(stream)
        .transactional_id(id)
        .build();
    producer.await.expect("a producer")
}

fn append(transaction: &kera_producer::Transaction<'_>) {
    for record in 0..10_u32 {
        let key = record.to_be_bytes();
        let appended = transaction.append(&Record::keyed(&key, b"value"));
        drop(appended.expect("room"));
    }
}

#[test]
fn lanes_that_cannot_acknowledge_keep_no_other_transaction_from_its_end() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    let all = trio.bootstrap();
    for (stream, min_insync) in [("stuck", "3"), ("fine", "2")] {
        let create = ["stream", "create", stream, "--if-not-exists"];
        let replicas = ["--streamlets", "3", "--replicas", "3"];
        let min_insync = ["--min-insync-replicas", min_insync];
        trio.run(&all, &[&create[..], &replicas, &min_insync].concat(), b"");
    }
    let runtime = Runtime::new().expect("a runtime");
    let handles = runtime.block_on(async {
        let mut handles = Vec::new();
        for number in 0..STUCK {
            let producer = producer(&all, "stuck", format!("stuck-{number}")).await;
            let transaction = producer.transaction().await.expect("it begins");
            append(&transaction);
            let prepared = transaction.prepare().await.expect("it is prepared");
            handles.push(prepared.expect("it has records"));
        }
        handles
    });
    trio.brokers[2].kill();
    runtime.block_on(async {
        let any = Transactions::new(Client::connect_to(&all).expect("addresses"));
        for handle in &handles {
            any.commit(handle).await.expect("that is decided");
        }
        let others = async {
            for number in 0..OTHERS {
                let producer = producer(&all, "fine", format!("other-{number}")).await;
                for _ in 0..EACH {
                    // It begins once the one before has its markers.
                    let transaction = producer.transaction().await.expect("it begins");
                    append(&transaction);
                    transaction.commit().await.expect("it is committed");
                }
            }
        };
        timeout(PATIENCE, others).await.expect("they end");
    });
    let states = |listed: &serde_json::Value| -> Vec<String> {
        let listed = listed.as_array().expect("a list").iter();
        let id = |one: &serde_json::Value| one["transactional_id"].as_str().map(str::to_owned);
        let stuck = listed.filter(|one| id(one).is_some_and(|id| id.starts_with("stuck")));
        stuck.map(|one| one["state"].to_string()).collect()
    };
    let list = ["transaction", "list"];
    trio.brokers[0].until(&list, |listed| {
        states(listed) == vec!["\"PrepareCommit\""; STUCK]
    });
    trio.brokers[2].restart();
    trio.brokers[0].until(&list, |listed| {
        listed.as_array().expect("a list").is_empty()
    });
}
