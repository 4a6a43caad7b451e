//! Apache Kafka's own tools for share groups, unchanged.

use crate::secured_tools::{PRODUCER, TOPICS, Tools};

/// What `kafka-share-groups.sh` starts,
const SHARE_GROUPS: &str = "org.apache.kafka.tools.consumer.group.ShareGroupCommand";
/// and `kafka-console-share-consumer.sh`.
const SHARE_CONSUMER: &str = "org.apache.kafka.tools.consumer.ConsoleShareConsumer";

const TOPIC: [&str; 2] = ["--topic", "jobs"];
const GROUP: [&str; 2] = ["--group", "workers"];
const MECHANISM: &str = "SCRAM-SHA-512";

impl Tools {
    /// Reads so many records in the group, and does this with them; what they are, and whether anything was said of them.
    fn share(&mut self, most: &str, how: &[&str]) -> Vec<String> {
        let words = [&TOPIC[..], &GROUP, &["--max-messages", most], how].concat();
        let read = self.does(SHARE_CONSUMER, &words);
        let mut read: Vec<String> = read.lines().map(str::to_owned).collect();
        read.sort_unstable();
        read
    }

    /// The words of the line that tells of the group in the topic.
    fn share_offsets(&mut self) -> Vec<String> {
        let told = self.does(SHARE_GROUPS, &[&["--describe"], &GROUP[..]].concat());
        let mut lines = told
            .lines()
            .map(|line| line.split_whitespace().map(str::to_owned).collect());
        let line = lines.find(|words: &Vec<String>| words.starts_with(&["workers".to_owned()]));
        line.unwrap_or_else(|| panic!("the group is told of: {told}"))
    }
}

pub fn a_share_group_works_and_is_set_back(tools: &mut Tools) {
    tools.admin(MECHANISM);
    tools.does(TOPICS, &[&["--create"], &TOPIC[..]].concat());
    tools.feed(
        PRODUCER,
        &[&TOPIC[..], &["--sync"]].concat(),
        "one\ntwo\nthree\n",
    );
    let set = "share.auto.offset.reset=earliest,share.delivery.count.limit=2";
    tools.alter(&GROUP, &["--add-config", set]);
    let described = tools.describe(&GROUP);
    for told in [
        "share.auto.offset.reset=earliest ",
        "share.delivery.count.limit=2 ",
    ] {
        assert!(described.contains(told), "{described}");
    }
    assert_eq!(tools.share("2", &["--release"]).len(), 2);
    assert_eq!(tools.share("3", &[]), ["one", "three", "two"]);

    for (words, told) in [
        (&["--list"][..], "workers"),
        (&["--list", "--state"], "Empty"),
    ] {
        let listed = tools.does(SHARE_GROUPS, words);
        let mut lines = listed.lines();
        assert!(
            lines.any(|l| l.starts_with("workers") && l.contains(told)),
            "{listed}"
        );
    }
    assert_eq!(tools.share_offsets()[1..4], ["jobs", "0", "3"]);
    let back = [
        &["--reset-offsets", "--to-earliest", "--execute"],
        &TOPIC[..],
        &GROUP,
    ]
    .concat();
    tools.does(SHARE_GROUPS, &back);
    assert_eq!(tools.share_offsets()[1..4], ["jobs", "0", "0"]);
    assert_eq!(tools.share("3", &["--reject"]), ["one", "three", "two"]);
    assert_eq!(tools.share_offsets()[1..4], ["jobs", "0", "3"]);
}
