use std::path::Path;

use super::*;

const ONE: &str = r#"
title = "T"
command = "make t"
[[scenario]]
name = "produce"
work = "produce"
contenders = ["kafka", "kera"]
records = 1000
keys = "random"
batch = ["16KiB", "128KiB"]
linger_ms = [5]
partitions = [1, 16]
acks = ["1", "all"]
[[scenario.target]]
measure = "broker-cpu"
contender = "kera"
against = "kafka"
at_most = 0.5
"#;

fn problem(text: &str) -> String {
    format!("{:#}", File::parse(text).expect_err("the file is wrong"))
}

#[test]
fn every_combination_is_a_case() {
    let file = File::parse(ONE).unwrap();
    assert_eq!(file.repetitions, 5);
    let cases = Cases::of(&file, 10);
    assert_eq!(cases.0.len(), 8);
    assert_eq!(cases.runs(5), 80);
    let names: Vec<_> = cases.0.iter().map(Case::name).collect();
    assert_eq!(
        names[1],
        "produce partitions=1, batch=16 KiB, linger=5 ms, acks=all"
    );
    let mut distinct = names.clone();
    distinct.dedup();
    assert_eq!(distinct.len(), names.len());
    assert_eq!(cases.0[0].bytes(), 100 * 100);
}

#[test]
fn cases_are_chosen_by_name_and_contender() {
    let cases = || Cases::of(&File::parse(ONE).unwrap(), 1);
    let only = cases().select(&["partitions=1,".into()], &[Contender::Kera]);
    assert_eq!(only.0.len(), 4);
    assert!(
        only.0
            .iter()
            .all(|case| case.contenders == [Contender::Kera])
    );
    assert!(cases().select(&[], &[Contender::KeraNative]).0.is_empty());
}

#[test]
fn what_is_not_known_is_refused() {
    assert!(problem(&ONE.replace("keys =", "kees =")).contains("kees"));
    assert!(problem(&ONE.replace("\"random\"", "\"odd\"")).contains("odd"));
    assert!(problem(&ONE.replace("16KiB", "16KB")).contains("16KB"));
    assert!(problem(&ONE.replace("at_most", "at_mots")).contains("at_mots"));
    assert!(problem(&ONE.replace("title", "titel")).contains("titel"));
}

#[test]
fn what_cannot_be_run_is_refused() {
    assert!(problem(&ONE.replace("records = 1000", "")).contains("records is missing"));
    assert!(problem(&ONE.replace("[1, 16]", "[0]")).contains("partitions"));
    assert!(problem(&ONE.replace("at_most = 0.5", "")).contains("at_most or at_least"));
    assert!(problem(&ONE.replace("\"kafka\", \"kera\"", "\"kera\"")).contains("names kafka"));
    let latency = ONE.replace("work = \"produce\"", "work = \"latency\"");
    assert!(problem(&latency).contains("rate and seconds decide"));
    let latency = latency.replace("records = 1000", "rate = [10]");
    assert!(problem(&latency).contains("seconds is missing"));
    let latency = latency.replace("rate = [10]", "rate = [10, 20]\nseconds = 3");
    let cases = Cases::of(&File::parse(&latency).unwrap(), 1);
    assert_eq!(cases.0.len(), 16);
    assert_eq!(cases.0[1].records, 60);
}

#[test]
fn sizes_are_read_and_written() {
    for (text, bytes) in [("16KiB", 16 << 10), ("1MiB", 1 << 20), ("100", 100)] {
        assert_eq!(Size::parse(text), Some(Size(bytes)));
        let json = serde_json::to_string(&Size(bytes)).unwrap();
        assert_eq!(serde_json::from_str::<Size>(&json).unwrap(), Size(bytes));
    }
    for text in ["", "KiB", "0", "-1", "65MiB", "4096MiB", "1GiB"] {
        assert_eq!(Size::parse(text), None, "{text}");
    }
}

#[test]
fn targets_bound_from_their_side() {
    let target = |at_most, at_least| Target {
        measure: Measure::Throughput,
        contender: Contender::Kera,
        against: Some(Contender::Kafka),
        baseline: None,
        at_most,
        at_least,
    };
    assert!(target(Some(0.5), None).met(0.5) && !target(Some(0.5), None).met(0.51));
    assert!(target(None, Some(1.0)).met(1.0) && !target(None, Some(1.0)).met(0.99));
}

#[test]
fn the_files_of_the_repository_can_be_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let cases = Cases::of(&File::read(&path).unwrap(), 1);
        for case in &cases.0 {
            // Two brokers hold a case's records at a time.
            assert!(case.bytes() <= 3_000_000_000, "{}: too large", case.name());
        }
        let mut names: Vec<_> = cases.0.iter().map(Case::name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all, "{}: a case comes twice", path.display());
        seen += 1;
    }
    assert!(seen >= 2);
}

#[test]
fn durability_is_a_dimension_that_some_sit_out() {
    let modes = "acks = [\"0\", \"all\"]\ndurability = [\"memory\", \"written\", \"synced\"]";
    let text = ONE.replace("acks = [\"1\", \"all\"]", modes);
    let text = text.replace("\"kera\"]", "\"kera\", \"nats\"]");
    let cases = Cases::of(&File::parse(&text).unwrap(), 1);
    assert_eq!(cases.0.len(), 24);
    // Kafka has no mode in which nothing survives.
    assert_eq!(cases.runs(1), 8 * 2 + 16 * 3);
    let able: Vec<_> = cases.0[0].able().collect();
    assert_eq!(able, [Contender::Kera, Contender::Nats]);
    let names: Vec<_> = cases.0[..3].iter().map(Case::name).collect();
    assert!(names[0].ends_with("acks=0, durability=memory"), "{names:?}");
    assert!(names[1].ends_with("acks=0"), "{names:?}");
    assert!(names[2].ends_with("durability=synced"), "{names:?}");
    let broker = |at: usize| cases.0[at].broker(Contender::Nats);
    assert_eq!(
        [broker(0), broker(1), broker(2)],
        [Broker::Nats, Broker::Nats, Broker::NatsSynced]
    );
    let kafka = cases.select(&[], &[Contender::Kafka]);
    assert_eq!(kafka.0.len(), 16, "cases that nobody can run are dropped");
    assert!(problem(&text.replace("\"synced\"]", "\"fsync\"]")).contains("fsync"));
    assert!(problem(&text.replace("\"written\", ", "\"written\"],")).contains("expected"));
    assert!(
        problem(&text.replace("[\"memory\", \"written\", \"synced\"]", "[]"))
            .contains("durability")
    );
}

#[test]
fn every_durability_is_told_of_every_broker() {
    use Durability::{Memory, Synced, Written};
    let has = |broker: Broker| [Memory, Written, Synced].map(|one| one.means(broker).is_some());
    assert_eq!(has(Broker::Kera), [true, true, true]);
    assert_eq!(has(Broker::Kafka), [false, true, true]);
    assert_eq!(has(Broker::Nats), [true, true, false]);
    assert_eq!(has(Broker::NatsSynced), [false, false, true]);
    assert_eq!(has(Broker::IggyMemory), [true, false, false]);
    assert_eq!(has(Broker::Iggy), [false, true, false]);
    assert_eq!(has(Broker::IggySynced), [false, false, true]);
    let setting = |broker, one: Durability| one.setting(broker);
    assert_eq!(setting(Broker::Kera, Memory), Some(("kera.ack", "memory")));
    assert_eq!(
        setting(Broker::Kafka, Synced),
        Some(("flush.messages", "1"))
    );
    assert_eq!(setting(Broker::Kafka, Written), None);
    // Results of before there were modes are of the default.
    assert_eq!(Durability::default(), Written);
}

#[test]
fn who_takes_much_by_hand_is_there_on_request_only() {
    let text = ONE.replace("\"kera\"]", "\"kera\", \"iggy\"]");
    let cases = |contenders: &[Contender]| {
        Cases::of(&File::parse(&text).unwrap(), 1).select(&["acks=all".into()], contenders)
    };
    let of = |cases: Cases| cases.0[0].contenders.clone();
    assert_eq!(of(cases(&[])), [Contender::Kafka, Contender::Kera]);
    let asked = [Contender::Kera, Contender::Iggy];
    assert_eq!(of(cases(&asked)), asked);
    // Even where the file does not know of it.
    let plain = Cases::of(&File::parse(ONE).unwrap(), 1).select(&[], &asked);
    assert_eq!(of(plain), asked);
}

#[test]
fn most_seconds_is_for_producing() {
    let limited = ONE.replace("acks =", "most_seconds = 1.5\nacks =");
    let cases = Cases::of(&File::parse(&limited).unwrap(), 1);
    assert_eq!(cases.0[0].most_seconds, Some(1.5));
    assert!(problem(&limited.replace("1.5", "0.0")).contains("most_seconds"));
    let consume = limited.replace("work = \"produce\"", "work = \"consume\"");
    assert!(problem(&consume).contains("most_seconds"));
}

const PLOT: &str = r#"
[[plot]]
name = "produce-cpu"
scenario = "produce"
kind = "lines"
measure = ["broker-cpu"]
over = "partitions"
title = "CPU"
caption = "By partitions."
"#;

#[test]
fn plots_are_checked_against_the_scenarios() {
    let with = |from: &str, to: &str| format!("{ONE}{}", PLOT.replace(from, to));
    let file = File::parse(&with("", "")).unwrap();
    assert_eq!(file.plot[0].kind, PlotKind::Lines);
    assert!(!file.plot[0].is_log(Axis::X));
    assert!(problem(&with("\"produce\"", "\"consume\"")).contains("no scenario is named consume"));
    assert!(problem(&with("produce-cpu", "../cpu")).contains("lowercase letters"));
    assert!(problem(&with("over = \"partitions\"", "")).contains("lines need `over`"));
    assert!(problem(&with("[\"broker-cpu\"]", "[]")).contains("one to three measures"));
    assert!(problem(&with("By partitions.", " ")).contains("caption is empty"));
    assert!(problem(&with("over", "above")).contains("above"));
    let twice = format!("{}{PLOT}", with("", ""));
    assert!(problem(&twice).contains("two plots are named produce-cpu"));
}

#[test]
fn a_start_may_be_without_data() {
    let start = r#"
title = "T"
command = "make t"
[[scenario]]
name = "start"
work = "start"
contenders = ["kera"]
keys = "none"
batch = ["16KiB"]
linger_ms = [5]
partitions = [10]
seconds = 10
"#;
    let case = |text: &str, divide| Cases::of(&File::parse(text).unwrap(), divide).0.remove(0);
    assert_eq!(case(start, 1).name(), "start partitions=10, data=none");
    assert_eq!(case(start, 1).idle_ms, Some(10_000));
    let filled = format!("{start}records = 1_048_576\nrecord_bytes = 2048\n");
    assert_eq!(case(&filled, 1).name(), "start partitions=10, data=2 GiB");
    assert_eq!(case(&filled, 100).data(), "20 MiB");
    assert!(problem(&start.replace("seconds = 10", "")).contains("left alone"));
}
