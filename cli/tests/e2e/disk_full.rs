//! A full disk stops producers with a clear error, and nothing else.

use std::time::Duration;

use kera_producer::{Producer, Record};

use crate::common::Broker;
use crate::common::machine::skip;
use crate::common::small_disk::SmallDisk;

async fn producer(broker: &Broker, stream: &str, deadline: Duration) -> Producer {
    Producer::builder()
        .bootstrap(broker.address())
        .stream(stream)
        .batch_size(16 << 10)
        .deadline(deadline)
        .build()
        .await
        .expect("a producer can be built")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_are_told_readers_go_on_and_space_brings_it_back() {
    let small = match SmallDisk::mount(48 << 20) {
        Ok(small) => small,
        Err(reason) => return skip("e2e disk_full", &reason),
    };
    let mut broker = tokio::task::block_in_place(|| Broker::on(&small.path().join("data"), &[]));
    tokio::task::block_in_place(|| {
        let sizes = ["--segment-size", "256KiB", "--segments-per-group", "4"];
        for stream in ["ballast", "s"] {
            broker.run(&[&["stream", "create", stream], &sizes[..]].concat());
        }
    });
    // One of these is to be refused, after as long as that.
    let ballast = producer(&broker, "ballast", Duration::from_secs(8)).await;
    let kept = producer(&broker, "s", Duration::from_secs(60)).await;
    let first = kept
        .append(&Record::of_value(b"before"))
        .expect("a record is taken");
    first.await.expect("there is space");

    // Until the disk is full.
    let value = vec![7; 8 << 10];
    let mut stored = 0_u32;
    let refused = loop {
        assert!(stored < 48 << 7, "48 MiB were stored in 48 MiB");
        let delivery = ballast.append_wait(&Record::of_value(&value)).await;
        match delivery.expect("a record is taken").await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(stored > 1_000, "{stored} records of 8 KiB");
    let said = refused.to_string();
    assert!(said.contains("STORAGE_FULL"), "{said}");

    // Readers go on, and so does the broker.
    let read = |broker: &Broker, stream: &str| {
        tokio::task::block_in_place(|| {
            broker
                .attempt(&["consume", stream, "-f", "raw"], b"")
                .stdout
        })
    };
    assert!(broker.is_running());
    assert!(read(&broker, "ballast").len() >= stored as usize * value.len());
    assert_eq!(read(&broker, "s"), b"before");
    // So do groups, whose positions take of what is kept free.
    for expected in ["before", ""] {
        let output = tokio::task::block_in_place(|| {
            broker.attempt(&["consume", "s", "--group", "g", "-f", "raw"], b"")
        });
        assert!(output.status.success(), "{}", output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }

    // Space returns.
    tokio::task::block_in_place(|| {
        broker.run(&["stream", "trim", "ballast", "--everything", "--yes"])
    });
    let again = producer(&broker, "s", Duration::from_secs(60)).await;
    let second = again
        .append(&Record::of_value(b", after"))
        .expect("a record is taken");
    second.await.expect("there is space again");
    assert_eq!(read(&broker, "s"), b"before, after");
    tokio::task::block_in_place(|| {
        broker.kill();
        broker.restart();
    });
    assert_eq!(read(&broker, "s"), b"before, after");
    drop(broker);
    drop(small);
}
