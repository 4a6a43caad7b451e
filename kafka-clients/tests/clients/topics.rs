//! Topics that nobody created.

use serde_json::json;

use crate::common::{NewRecord, until};
use crate::stage::{Stage, anyone, scenario};

scenario!(auto_create_on, AUTO_CREATE, anyone, |stage: &mut Stage| {
    let topic = stage.topic.clone();
    stage.client.producer("p", json!({"auto_create": true}));
    let place = stage
        .client
        .send("p", &topic, &[NewRecord::new("key", "first")])
        .remove(0);
    assert_eq!(place.offset, 0);
    assert!(stage.client.list_topics().contains(&topic));
    let described = stage
        .client
        .describe_topic(&topic)
        .expect("the topic is there");
    let partitions: Vec<i32> = (0..described.partitions.len() as i32).collect();
    stage.client.consumer("c", json!({}));
    stage
        .client
        .assign("c", &topic, &partitions, json!("beginning"));
    assert_eq!(stage.client.read("c", 1)[0].text(), "first");
});

scenario!(
    auto_create_off,
    NO_AUTO_CREATE,
    anyone,
    |stage: &mut Stage| {
        let topic = stage.topic.clone();
        let settings = json!({"auto_create": true, "max_block_ms": 3_000});
        stage.client.producer("p", settings);
        let outcome = stage
            .client
            .try_send("p", &topic, &[NewRecord::new("key", "lost")]);
        let failure = outcome[0].as_ref().expect_err("there is no such topic");
        let names = [
            "UNKNOWN_TOPIC_OR_PARTITION",
            "CLIENT:UnknownTopic",
            // Clients that wait for the topic to appear say that it took too long.
            "REQUEST_TIMED_OUT",
            "CLIENT:TimeoutException",
            "CLIENT:KafkaTimeoutError",
            "CLIENT:MessageTimedOut",
            "CLIENT:UnknownPartition",
        ];
        assert!(names.contains(&failure.name.as_str()), "{failure:?}");
        let failure = stage
            .client
            .describe_topic(&topic)
            .expect_err("it was not created");
        assert_eq!(failure.name, "UNKNOWN_TOPIC_OR_PARTITION");
        assert!(!stage.client.list_topics().contains(&topic));
        // Created by hand, it serves the same producer.
        stage.client.create_topic(&topic, 2, &[]);
        let place = until("the producer learns of the topic", || {
            let record = NewRecord::new("key", "found");
            stage.client.try_send("p", &topic, &[record]).remove(0).ok()
        });
        assert_eq!(place.offset, 0);
    }
);
