//! `kera group`, and `kera consume --group`.

use crate::common::{Broker, PATIENCE};

fn lag(broker: &Broker, group: &str) -> Option<u64> {
    let groups = broker.json(&["group", "list"]);
    let groups = groups.as_array().expect("a list");
    groups.iter().find(|g| g["group"] == group)?["lag"].as_u64()
}

fn numbers(text: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> = text
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    numbers.sort_unstable();
    numbers
}

fn input(range: std::ops::Range<u64>) -> String {
    range.map(|n| format!("{n}\n")).collect()
}

#[test]
fn a_group_goes_on_where_it_was() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "2", "--lanes", "2"]);
    for order in ["lane", "none"] {
        let group = format!("g-{order}");
        let consume = ["consume", "s", "--group", &group, "--order", order];
        let all = broker.run(&["consume", "s"]).lines().count() as u64;
        broker.feed(
            &["produce", "s", "-q", "--batch-size", "1KiB"],
            input(all..all + 1_000).as_bytes(),
        );
        assert_eq!(
            numbers(&broker.run(&consume)),
            (0..all + 1_000).collect::<Vec<_>>()
        );
        assert_eq!(lag(&broker, &group), Some(0));
        assert_eq!(broker.run(&consume), "", "everything was committed");
        broker.feed(
            &["produce", "s", "-q"],
            input(all + 1_000..all + 1_010).as_bytes(),
        );
        assert_eq!(lag(&broker, &group), Some(10));
        broker.kill();
        broker.restart();
        assert_eq!(
            numbers(&broker.run(&consume)),
            (all + 1_000..all + 1_010).collect::<Vec<_>>(),
            "commits survive the broker"
        );
    }
}

#[test]
fn max_takes_part_of_a_batch_and_leaves_the_rest_to_the_next() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    // Batches of about a hundred records: most of these ends lie within one.
    broker.feed(
        &["produce", "s", "-q", "--batch-size", "1KiB"],
        input(0..1_000).as_bytes(),
    );
    for order in ["lane", "none"] {
        let group = format!("g-{order}");
        let consume = ["consume", "s", "--group", &group, "--order", order];
        let mut taken = Vec::new();
        for max in [1_u64, 7, 250, 0, 142] {
            let most = max.to_string();
            let text = broker.run(&[&consume[..], &["--max", &most]].concat());
            let records: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
            let first = taken.len() as u64;
            assert_eq!(
                records,
                (first..first + max).collect::<Vec<_>>(),
                "{group}: --max {max} takes the next {max}, no more"
            );
            taken.extend(records);
            let rest = 1_000 - taken.len() as u64;
            assert_eq!(
                lag(&broker, &group).unwrap_or(1_000),
                rest,
                "{group}: just these are committed"
            );
        }
        taken.extend(numbers(&broker.run(&consume)));
        assert_eq!(taken, (0..1_000).collect::<Vec<_>>(), "{group}");
        assert_eq!(lag(&broker, &group), Some(0));
    }
}

#[test]
fn described_reset_and_deleted() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], input(0..100).as_bytes());
    let consume = ["consume", "s", "--group", "g"];
    broker.run(&consume);
    let described = broker.json(&["group", "describe", "g"]);
    assert_eq!(described["stream"], "s");
    assert_eq!(described["order"], "lane");
    assert_eq!(described["members"], 0);
    assert_eq!(described["lanes"][0]["committed"], 100);
    assert_eq!(described["lanes"][0]["lag"], 0);

    broker.run(&["group", "reset", "g", "--to", "ordinal:90"]);
    assert_eq!(lag(&broker, "g"), Some(10));
    assert_eq!(
        numbers(&broker.run(&consume)),
        (90..100).collect::<Vec<_>>()
    );
    broker.run(&["group", "reset", "g", "--to", "earliest"]);
    assert_eq!(numbers(&broker.run(&consume)), (0..100).collect::<Vec<_>>());

    broker.run(&["group", "delete", "g", "--yes"]);
    assert_eq!(lag(&broker, "g"), None);
    let said = broker.refused(&["group", "describe", "g"]);
    assert!(said.contains("UNKNOWN_CONSUMER_GROUP"), "{said}");
    assert_eq!(
        numbers(&broker.run(&consume)),
        (0..100).collect::<Vec<_>>(),
        "it starts anew"
    );
}

#[test]
fn a_group_keeps_its_order() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], b"1\n");
    broker.run(&["consume", "s", "--group", "g", "--order", "none"]);
    let said = broker.refused(&["consume", "s", "--group", "g", "--order", "lane"]);
    assert!(said.contains("GROUP_CONFLICT"), "{said}");
    let said = broker.refused(&["group", "reset", "nobody", "--to", "earliest"]);
    assert!(said.contains("UNKNOWN_CONSUMER_GROUP"), "{said}");
}

/// The answer's code to a commit of a group's offset in stream `s`, as a client of Kafka's that is no member sends it.
fn committed(broker: &Broker, group: &str) -> u16 {
    let text = |text: &str| [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat();
    // API 8, version 2, correlation 7, no client id; no generation, member or retention; one partition, 0, at offset 1.
    let request = [
        vec![0, 8, 0, 2, 0, 0, 0, 7, 0xff, 0xff],
        text(group),
        vec![0xff; 4],
        text(""),
        vec![0xff; 8],
        vec![0, 0, 0, 1],
        text("s"),
        vec![0, 0, 0, 1, 0, 0, 0, 0],
        1_u64.to_be_bytes().to_vec(),
        vec![0xff; 2],
    ];
    let reply = kera_testkit::kafka::exchange(broker.kafka(), &request.concat());
    // Correlation, one topic of a name, one partition and its number.
    let code = &reply[4 + 4 + 3 + 4 + 4..];
    u16::from_be_bytes([code[0], code[1]])
}

#[test]
fn a_name_of_escape_sequences_does_nothing_to_a_terminal() {
    let broker = Broker::with(&["--kafka-listen", "127.0.0.1:0"]);
    broker.json(&["stream", "create", "s", "--streamlets", "1"]);
    broker.feed(&["produce", "s", "--quiet"], b"a\n");
    let group = "\u{1b}]0;owned\u{7}\u{1b}[2Jx\r\nhealthy y";
    let begin = std::time::Instant::now();
    // The coordinator may still read its state.
    while committed(&broker, group) != 0 {
        assert!(begin.elapsed() < PATIENCE, "it is not committed");
    }
    for words in [&["group", "list"][..], &["group", "describe", group]] {
        let told = broker.run(words);
        assert!(told.contains("owned"), "{told}");
        assert!(
            !told.contains(|c: char| c.is_control() && c != '\n'),
            "{words:?}: {told:?}"
        );
        assert!(
            !told.lines().any(|line| line.starts_with("healthy")),
            "{told}"
        );
    }
    // Programs get it as it is.
    let told = broker.json(&["group", "describe", group]);
    assert_eq!(told["group"], group);
}
