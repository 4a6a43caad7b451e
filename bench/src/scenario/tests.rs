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
        against: Contender::Kafka,
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
            assert!(case.bytes() <= 1_200_000_000, "{}: too large", case.name());
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
