use super::*;

const BOTH: &str = r#"
title = "T"
command = "make t"
[[scenario]]
name = "at once"
work = "both"
contenders = ["kafka", "kera-native"]
keys = "none"
batch = ["16KiB"]
linger_ms = [1]
partitions = [16, 64]
producers = [1, 4]
streamlets = 4
seconds = 2
target = [{ measure = "throughput", contender = "kera-native", baseline = { partitions = 16 }, at_least = 0.8 }]
"#;

fn cases(text: &str) -> Vec<Case> {
    Cases::of(&File::parse(text).unwrap(), 1).0
}

fn problem(text: &str) -> String {
    format!("{:#}", File::parse(text).expect_err("the file is wrong"))
}

#[test]
fn consumers_are_as_many_as_producers_unless_it_is_said() {
    let alike: Vec<_> = cases(BOTH)
        .iter()
        .map(|case| (case.partitions, case.crowd.producers, case.crowd.consumers))
        .collect();
    assert_eq!(alike, [(16, 1, 1), (16, 4, 4), (64, 1, 1), (64, 4, 4)]);
    let own = cases(&BOTH.replace("streamlets = 4", "consumers = [0, 2]"));
    assert_eq!(own.len(), 8);
    assert!(own[0].name().contains("producers=1, consumers=0"));
    let case = &cases(BOTH)[0];
    assert_eq!(case.crowd.millis, Some(2_000));
    assert!(case.bytes() > 0, "the disk must have room for it");
}

#[test]
fn time_is_divided_but_an_open_loop_keeps_what_is_counted() {
    let file = File::parse(BOTH).unwrap();
    assert_eq!(Cases::of(&file, 1_000).0[0].crowd.millis, Some(300));
    let latency = BOTH
        .replace("\"both\"", "\"latency\"")
        .replace("streamlets = 4", "rate_of_peak = [0.01, 0.5]");
    let open = Cases::of(&File::parse(&latency).unwrap(), 1_000).0;
    assert_eq!(open.len(), 8);
    assert_eq!(open[0].crowd.millis, Some(2_000));
    assert_eq!(
        (open[0].rate, open[1].crowd.rate_of_peak),
        (None, Some(0.5))
    );
}

#[test]
fn what_lies_is_refused() {
    let refused = |from: &str, to: &str, said: &str| {
        let text = BOTH.replace(from, to);
        assert_ne!(text, BOTH);
        let problem = problem(&text);
        assert!(problem.contains(said), "{from} -> {to}: {problem}");
    };
    refused("seconds = 2", "", "either records or seconds");
    refused(
        "seconds = 2",
        "seconds = 2\nrecords = 5",
        "either records or seconds",
    );
    refused(
        "seconds = 2",
        "seconds = 2\nrate = [5]",
        "as fast as it can",
    );
    refused(
        "seconds = 2",
        "seconds = 2\nrate_of_peak = [0.5]",
        "rate_of_peak is for",
    );
    refused(
        "seconds = 2",
        "seconds = 2\norder = [\"none\"]",
        "order is for",
    );
    refused("seconds = 2", "seconds = 2\nwork_us = 5", "work_us is for");
    refused("[1, 4]", "[0]", "producers are");
    refused(
        "streamlets = 4",
        "streamlets = 3",
        "multiples of streamlets",
    );
    refused(
        "\"kafka\", \"kera-native\"",
        "\"kafka\"",
        "streamlets are for kera-native",
    );
    refused("= 16 }", "= 17 }", "is no case of the scenario");
    refused("{ partitions = 16 }", "{}", "names partitions");
    refused("\"both\"", "\"produce\"", "one producer at most");
    refused("\"both\"", "\"trickle\"", "one producer at most");
}

#[test]
fn a_share_needs_members_time_and_enough_to_share() {
    let share = BOTH
        .replace("\"both\"", "\"share\"")
        .replace(
            "producers = [1, 4]",
            "consumers = [1, 16]\norder = [\"lane\", \"none\"]",
        )
        .replace("streamlets = 4", "records = 64_000\nwork_us = 1_000");
    assert_eq!(cases(&share).len(), 8);
    let few = share.replace("64_000", "63_999");
    assert!(
        problem(&few).contains("16 consumers can do 64000"),
        "{}",
        problem(&few)
    );
    // Cases that differ in what a record takes share a table.
    let slower = share.replace("[1, 16]", "[1]").replace("1_000", "5_000");
    let name = |text: &str| cases(text)[1].name();
    assert!(name(&share).ends_with(", order=none, work=1 ms"));
    assert!(name(&slower).ends_with(", order=none, work=5 ms"));
    assert!(problem(&share.replace("order = [\"lane\", \"none\"]", "")).contains("order is for"));
}

#[test]
fn an_open_loop_has_one_kind_of_rate() {
    let latency = BOTH.replace("\"both\"", "\"latency\"");
    assert!(problem(&latency).contains("either rate or rate_of_peak"));
    let both = latency.replace("streamlets = 4", "rate = [5]\nrate_of_peak = [0.5]");
    assert!(problem(&both).contains("either rate or rate_of_peak"));
    let much = latency.replace("streamlets = 4", "rate_of_peak = [2]");
    assert!(problem(&much).contains("1.5 at most"));
    let catch_up = BOTH.replace("\"both\"", "\"catch-up\"");
    assert!(problem(&catch_up).contains("what is there before"));
    let catch_up = catch_up.replace("streamlets = 4", "records = 5");
    assert!(problem(&catch_up).contains("at which the producer goes on"));
    let trickle = BOTH
        .replace("\"both\"", "\"trickle\"")
        .replace("producers = [1, 4]", "");
    assert!(problem(&trickle).contains("rate is missing"));
}

#[test]
fn transactions_have_a_size_and_set_the_rate_of_those_without() {
    let both = BOTH.replace("\"kafka\", ", "\"kafka\", \"kafka-transactions\", ");
    assert!(problem(&both).contains("transaction_records are for"));
    let sized = |text: &str, records: u32| {
        let with = format!("streamlets = 4\ntransaction_records = {records}");
        text.replace("streamlets = 4", &with)
    };
    assert!(problem(&sized(&both, 0)).contains("are not 0"));
    assert!(problem(&sized(BOTH, 100)).contains("transaction_records are for"));
    let case = &cases(&sized(&both, 100))[0];
    assert!(case.name().ends_with(", transactions of 100"));
    assert!(Contender::KafkaTransactions.has_transactions());
    assert_eq!(case.broker(Contender::KafkaTransactions), Broker::Kafka);
    let produce = both.replace("\"both\"", "\"produce\"");
    assert!(problem(&produce).contains("kafka-transactions cannot do this work"));

    let latency = |contenders: &str| {
        let text = BOTH.replace("\"kafka\"", contenders);
        let text = text.replace("\"both\"", "\"latency\"");
        sized(&text, 100).replace("seconds = 2", "seconds = 2\nrate_of_peak = [0.5]")
    };
    let case = &cases(&latency("\"kera-native-transactions\""))[0];
    let peaks = case.contenders.iter().map(|one| one.peak_of(case));
    assert_eq!(
        peaks.collect::<Vec<_>>(),
        [Contender::KeraNativeTransactions; 2]
    );
    let without = &cases(BOTH)[0];
    let own = Contender::KeraNative.peak_of(without);
    assert_eq!(own, Contender::KeraNative);
}

#[test]
fn compaction_has_keys_and_something_to_compact() {
    let compact = "title = \"T\"\ncommand = \"c\"\n[[scenario]]\nname = \"c\"\nwork = \"compact\"\n\
        contenders = [\"kera-native\"]\nrecords = 1_000\nkeys = \"tenth\"\nbatch = [\"16KiB\"]\n\
        linger_ms = [1]\npartitions = [1]\n";
    assert_eq!(cases(compact)[0].records, 1_000);
    assert!(problem(&compact.replace("records = 1_000", "")).contains("records is missing"));
    assert!(problem(&compact.replace("tenth", "random")).contains("needs keys"));
    assert!(problem(&compact.replace("kera-native", "kera")).contains("cannot do this work"));
    let beside = compact
        .replace("\"compact\"", "\"latency\"")
        .replace(
            "\"kera-native\"",
            "\"kera-native\", \"kera-native-compacting\"",
        )
        .replace("records = 1_000", "rate = [10]\nseconds = 2");
    assert!(problem(&beside).contains("compacted_records are for"));
    let beside = format!("{beside}compacted_records = 1_000\n");
    let case = &cases(&beside)[0];
    assert_eq!(case.bytes(), (20 + 1_000) * 100);
    let file = File::parse(&beside).unwrap();
    let divided = &Cases::of(&file, 10).0[0];
    assert_eq!(divided.compacted_records, Some(100));
}

#[test]
fn a_case_is_compared_with_the_one_that_differs_as_named() {
    let cases = cases(BOTH);
    let baseline = cases[0].targets[0].baseline.unwrap();
    let base_of = |case: &Case| {
        let found = cases.iter().find(|other| baseline.is_of(other, case));
        found.map(|base| (base.partitions, base.crowd.producers))
    };
    assert_eq!(base_of(&cases[2]), Some((16, 1)));
    assert_eq!(base_of(&cases[3]), Some((16, 4)));
    assert!(baseline.holds(&cases[0]) && !baseline.holds(&cases[2]));
    assert_eq!(baseline.words(), "partitions=16");
}
