//! Topics that are compacted: what schema registries, Connect and stateful stream processing keep their state in.

use std::collections::BTreeMap;

use serde_json::json;

use crate::common::{NewRecord, until};
use crate::stage::{Stage, anyone, scenario};

const KEYS: usize = 7;

scenario!(compacted_topic, PLAIN, anyone, |stage: &mut Stage| {
    let topic = stage.topic.clone();
    let configs = [
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("segment.ms", "1000"),
        ("delete.retention.ms", "60000"),
    ];
    stage.client.create_topic(&topic, 1, &configs);
    let shown = stage
        .client
        .describe_configs(&topic)
        .expect("the topic is there");
    for (name, value) in configs {
        assert_eq!(shown[name].value.as_deref(), Some(value), "{name}");
    }
    stage.client.producer("p", json!({}));
    let mut last = BTreeMap::new();
    let mut sent = 0;
    for round in 0..40 {
        let records: Vec<_> = (0..KEYS)
            .map(|n| {
                let key = format!("key-{n}");
                let record = NewRecord::new(&key, &format!("value-{round}-{n}"));
                match (n, round) {
                    (3, 39) => record.tombstone(),
                    _ => record,
                }
            })
            .collect();
        for (record, place) in records.iter().zip(stage.client.send("p", &topic, &records)) {
            last.insert(record.key.clone(), (place.offset, record.value.clone()));
            sent += 1;
        }
    }
    // Another broker compacts when it likes.
    let is_kera = stage.broker.is_kera();
    if is_kera {
        stage.broker.kera(&["stream", "compact", &topic], b"");
    }
    // Behind what is compacted, so that a reader knows that it has read all.
    let end = stage
        .client
        .send("p", &topic, &[NewRecord::new("end", "end")])
        .remove(0);
    assert_eq!(end.offset, sent, "offsets do not change");
    let mut reads = 0;
    until("only the last value of each key is left", || {
        reads += 1;
        let name = format!("c{reads}");
        stage.client.consumer(&name, json!({}));
        stage.client.assign(&name, &topic, &[0], json!("beginning"));
        let mut found = BTreeMap::new();
        let mut count = 0;
        'all: loop {
            for read in stage.client.poll(&name).records {
                if read.offset == end.offset {
                    break 'all;
                }
                count += 1;
                found.insert(read.key.clone(), (read.offset, read.value.clone()));
            }
        }
        stage.client.close_consumer(&name);
        assert_eq!(
            found, last,
            "the last value of each key is there at any time"
        );
        (count == KEYS || !is_kera).then_some(())
    });
    // A reader goes on from where there was a record once.
    stage.client.consumer("middle", json!({}));
    stage
        .client
        .assign("middle", &topic, &[0], json!("beginning"));
    stage.client.seek("middle", &topic, 0, 5);
    let next = until("a reader goes on", || {
        stage.client.poll("middle").records.into_iter().next()
    });
    let oldest = if is_kera { sent - KEYS as i64 } else { 5 };
    assert!(next.offset >= oldest, "{next:?}");
    // Without a key there is nothing to compact by.
    let refused = stage
        .client
        .try_send("p", &topic, &[NewRecord::new("", "lost").without_key()])
        .remove(0);
    assert!(refused.is_err(), "a record without a key was taken");
});
