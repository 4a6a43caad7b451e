use super::document::replace;
use super::{render, summary, targets, text};
use crate::measure::disk::Disk;
use crate::measure::machine::Machine;
use crate::results::{BrokerFacts, CaseRuns, LeftOut, Results, Run, Taken};
use crate::scenario::{Broker, Cases, Contender, Durability, File, Measure, Target};
use kera_load::Sides;
use kera_load::process::Memory;

const FILE: &str = r#"
title = "Clients"
command = "make bench-clients"
[[scenario]]
name = "produce"
work = "produce"
contenders = ["kafka", "kera"]
records = 1_000_000
keys = "random"
batch = ["16KiB"]
linger_ms = [5]
partitions = [1, 16]
[[scenario.target]]
measure = "broker-cpu"
contender = "kera"
against = "kafka"
at_most = 0.5
[[target]]
measure = "memory"
contender = "kera"
against = "kafka"
at_most = 0.25
"#;

fn run(contender: Contender, repetition: u32, cpu_ns: f64, peak: u64) -> Run {
    Run {
        contender,
        repetition,
        attempts: 1,
        noisy: false,
        others: 0.01,
        taken: Some(Taken {
            device: None,
            records: 1_000_000,
            bytes: 100_000_000,
            seconds: 0.5,
            broker_cpu_seconds: cpu_ns / 1e3,
            client_cpu_seconds: 0.6,
            memory: Memory {
                resident: peak,
                peak,
            },
            broker_written: 110_000_000,
            mean_batch_bytes: Some(16_000.0),
            latency: None,
            start: None,
            cluster: None,
            sides: Sides::default(),
        }),
        failure: None,
    }
}

/// A run that differs in what several clients tell.
pub(super) fn run_with(contender: Contender, sides: Sides) -> Run {
    let mut run = run(contender, 1, 100.0, 1);
    if let Some(taken) = &mut run.taken {
        taken.sides = sides;
    }
    run
}

/// Kera takes 100 ns against Kafka's 480 with one partition, 300 against 500 with sixteen.
pub(crate) fn results() -> Results {
    let file = File::parse(FILE).unwrap();
    let cpu = [(480.0, 100.0), (500.0, 300.0)];
    let cases = Cases::of(&file, 1).0.into_iter().zip(cpu);
    let facts = |broker| BrokerFacts {
        broker,
        version: "1.2.3".into(),
        durability: "page cache".into(),
        configuration: String::new(),
        start_seconds: 1.0,
        idle: Memory {
            resident: 300_000_000,
            peak: 0,
        },
    };
    Results {
        format: Results::format(),
        title: file.title,
        command: file.command,
        started: "2026-01-31 12:00".into(),
        minutes: 3.0,
        repetitions: 3,
        noise: 0.15,
        machine: Machine::default(),
        disk: Disk::default(),
        versions: [("librdkafka".to_owned(), "2".to_owned())].into(),
        brokers: vec![facts(Broker::Kafka), facts(Broker::Kera)],
        left_out: Vec::new(),
        targets: file.target,
        plots: file.plot,
        others: Vec::new(),
        cases: cases
            .map(|(case, (kafka, kera))| CaseRuns {
                case,
                from: None,
                runs: [-10.0, 0.0, 20.0]
                    .into_iter()
                    .zip(1..)
                    .flat_map(|(by, at)| {
                        [
                            run(Contender::Kafka, at, kafka + by, 1_000_000_000),
                            run(Contender::Kera, at, kera + by, 200_000_000),
                        ]
                    })
                    .collect(),
            })
            .collect(),
    }
}

#[test]
fn tables_show_medians_spread_and_verdicts() {
    let text = render(&results());
    for line in [
        "## Clients: `make bench-clients`",
        "| 1 | 480 (470-500) | 100 (90-120) | 0.21, met (at most 0.5) |",
        "| 16 | 500 (490-520) | 300 (290-320) | 0.60, **missed** (at most 0.5) |",
        "| 1 | 2,000 (2,000-2,000) | 2,000 (2,000-2,000) |",
        "| Kera | 300 | 200 | 1.10 |",
        "Kera / Apache Kafka: 0.20, met (at most 0.25).",
    ] {
        assert!(
            text.lines().any(|one| one == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(
        text.contains("at most 0.5 | 1 of 2 | 0.60 (partitions=16,"),
        "{text}"
    );
}

#[test]
fn consumers_and_seconds_of_cpu_divide() {
    let share = FILE
        .replace("work = \"produce\"", "work = \"share\"")
        .replace(
            "[1, 16]",
            "[1]\nconsumers = [4]\norder = [\"none\"]\nseconds = 1",
        );
    let file = File::parse(&share).unwrap();
    let mut results = results();
    results.cases.truncate(1);
    results.cases[0].case = Cases::of(&file, 1).0.remove(0);
    let of = |measure| text::summary(&results.cases[0], Contender::Kera, measure).unwrap();
    // A million records in half a second, and 100 ns of CPU for each.
    assert_eq!(of(Measure::Throughput).median, 2_000_000.0);
    assert_eq!(of(Measure::PerConsumer).median, 500_000.0);
    let compacted = of(Measure::Compacted);
    assert_eq!(text::value(Measure::Compacted, compacted.median), "1,000");
    let target = Target {
        measure: Measure::Compacted,
        contender: Contender::Kera,
        against: None,
        baseline: None,
        at_most: None,
        at_least: Some(1_001.0),
    };
    let value = targets::value(&results.cases, &results.cases[0], &target).unwrap();
    assert_eq!(targets::margin(&target, value), "**missed by 0 %**");
}

#[test]
fn what_failed_or_was_left_out_is_said() {
    let mut results = results();
    results.cases[0].runs[0].noisy = true;
    for run in &mut results.cases[1].runs {
        if run.contender == Contender::Kera {
            run.taken = None;
            run.failure = Some("x".into());
        }
    }
    results.left_out.push(LeftOut {
        broker: Broker::Kafka,
        why: "no java".into(),
    });
    let text = render(&results);
    assert!(text.contains("| 480 (470-500)* |"), "{text}");
    assert!(
        text.contains("| 16 | 500 (490-520) | failed | - |"),
        "{text}"
    );
    assert!(
        text.contains("**Apache Kafka was left out**: no java"),
        "{text}"
    );
    let line = text::one_line(&results.cases[1]);
    assert!(line.contains("kera") && line.contains("failed"), "{line}");

    let case = &mut results.cases[0];
    case.runs.retain(|run| run.contender == Contender::Kera);
    let line = text::one_line(case);
    assert!(line.contains("kafka        was left out"), "{line}");
    case.case.durability = Durability::Memory;
    let line = text::one_line(case);
    assert!(line.contains("kafka        has no such mode"), "{line}");
    let text = render(&results);
    assert!(
        text.contains("| 1 | memory | has no such mode | "),
        "{text}"
    );
    assert!(text.contains("| 16 | written | 500 "), "{text}");
}

#[test]
fn results_survive_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/results.json");
    results().write(&path).unwrap();
    let read = Results::read(&path).unwrap();
    assert_eq!(render(&read), render(&results()));
    let older = std::fs::read_to_string(&path).unwrap();
    let older = older.replacen("\"format\": 1", "\"format\": 0", 1);
    std::fs::write(&path, older).unwrap();
    let error = Results::read(&path).unwrap_err().to_string();
    assert!(error.contains("run it again"), "{error}");
}

#[test]
fn only_the_section_changes() {
    let old = "# A\n\nx\n";
    let once = replace(old, "T", "## new\n").unwrap();
    assert!(once.starts_with("# A\n\nx\n\n<!-- kera-bench: T, begin -->\n## new\n<!--"));
    let after = format!("{once}\n## more\n");
    let twice = replace(&after, "T", "## newer\n").unwrap();
    assert!(twice.contains("## newer") && !twice.contains("## new\n"));
    assert!(twice.ends_with("end -->\n\n## more\n"));
    assert_eq!(replace(&twice, "T", "## newer\n").unwrap(), twice);
    let broken = twice.replace(", end -->", "");
    assert!(replace(&broken, "T", "x").is_err());
    let turned = "<!-- kera-bench: T, end --><!-- kera-bench: T, begin -->";
    assert!(replace(turned, "T", "x").is_err());
}

#[test]
fn numbers_are_readable() {
    assert_eq!(text::value(Measure::Throughput, 1_607_400.0), "1,607");
    assert_eq!(text::value(Measure::Throughput, 446.0), "0.45");
    assert_eq!(text::value(Measure::BrokerCpu, 97.6), "98");
    assert_eq!(text::value(Measure::P99, 840.0), "0.84");
    assert_eq!(text::value(Measure::P99, 56_040.0), "56.0");
    assert_eq!(text::value(Measure::P99, 1_234_000.0), "1,234");
    let target = Target {
        measure: Measure::P99,
        contender: Contender::Kera,
        against: Some(Contender::Kafka),
        baseline: None,
        at_most: Some(0.333),
        at_least: None,
    };
    assert_eq!(targets::bound(&target), "at most 0.33");
    assert_eq!(targets::verdict(&target, 0.333), "0.33, met");
}

/// A session of the first case alone, of another day.
fn ended() -> Results {
    let mut ended = results();
    ended.cases.truncate(1);
    ended.started = "2026-01-30 10:00".into();
    ended
}

#[test]
fn a_session_is_completed_by_another_and_says_so() {
    let mut whole = ended();
    let mut later = results();
    later.machine.kernel = "Linux 7.0".into();
    later.cases[0].runs.truncate(2);
    whole.complete_from(&later).unwrap();
    assert_eq!(whole.cases.len(), 2);
    assert_eq!(whole.cases[0].from, None);
    assert_eq!(whole.cases[0].runs.len(), 6, "what was there stays");
    assert_eq!(whole.cases[1].from.as_deref(), Some("2026-01-31 12:00"));
    assert_eq!(whole.others.len(), 1);
    // Again it changes nothing; nor does one that has nothing to give.
    let before = render(&whole);
    whole.complete_from(&later).unwrap();
    whole.complete_from(&ended()).unwrap();
    assert_eq!(render(&whole), before);
    assert_eq!(whole.others.len(), 1);
    for part in [
        "- Completed 2026-01-31 12:00 UTC, 3 minutes, 3 runs each:",
        "Linux 7.0",
        "| 16† | 500 (490-520) |",
        "† of another session:\n\n- partitions=16, batch=16 KiB, linger=5 ms, acks=all: measured 2026-01-31 12:00 UTC",
    ] {
        assert!(before.contains(part), "{part} is not in\n{before}");
    }
    // Through a third session the mark stays that of the one that measured.
    let mut third = ended();
    third.cases.clear();
    third.started = "2026-02-01 08:00".into();
    third.complete_from(&whole).unwrap();
    let from: Vec<_> = third
        .cases
        .iter()
        .map(|runs| runs.from.as_deref())
        .collect();
    assert_eq!(from, [Some("2026-01-30 10:00"), Some("2026-01-31 12:00")]);
    assert_eq!(third.others.len(), 2);

    let mut other = results();
    other.title = "Others".into();
    let error = whole.complete_from(&other).unwrap_err().to_string();
    assert!(error.contains("cannot be completed by `Others`"), "{error}");
}

#[test]
fn a_case_that_failed_is_taken_from_the_other() {
    let mut whole = results();
    for run in &mut whole.cases[0].runs {
        run.taken = None;
    }
    let mut later = results();
    later.started = "2026-02-01 08:00".into();
    whole.complete_from(&later).unwrap();
    assert_eq!(whole.cases.len(), 2);
    assert_eq!(whole.cases[0].from.as_deref(), Some("2026-02-01 08:00"));
    assert!(whole.has(&whole.cases[0].case));
}

#[test]
fn the_summary_tells_how_far_targets_were_met_or_missed() {
    let mut absolute = results();
    absolute.title = "Second".into();
    absolute.command = "make second".into();
    absolute.targets = vec![Target {
        measure: Measure::Memory,
        contender: Contender::Kera,
        against: None,
        baseline: None,
        at_most: Some(100.0),
        at_least: None,
    }];
    let text = summary::render(&[&results(), &absolute]);
    for part in [
        "Met in every case: 1 of 4 targets.",
        "| [Clients](#clients-make-bench-clients) | produce, 16 KiB: broker CPU per record, Kera / Apache Kafka, at most 0.5 | 1 of 2 | 0.60 | **missed by 20 %** |",
        "highest resident memory, Kera / Apache Kafka, at most 0.25 | 1 of 1 | 0.20 | met with 20 % to spare |",
        "highest resident memory, MB, Kera, at most 100 | 0 of 1 | 200 | **missed by 100 %** |",
        "Apache Kafka 1.2.3: page cache; Kera 1.2.3: page cache",
        "2026-01-31 12:00, 3 minutes, 3 runs of each case",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn a_target_that_nothing_was_measured_for_is_no_success() {
    let mut results = results();
    for run in results.cases.iter_mut().flat_map(|runs| &mut runs.runs) {
        if run.contender == Contender::Kafka {
            run.taken = None;
        }
    }
    let text = summary::render(&[&results]);
    for part in [
        "Met in every case: 0 of 0 targets, 2 could not be measured.",
        "Kera / Apache Kafka, at most 0.5 | - | - | not measured |",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn new_sections_go_above_the_line_for_them() {
    let old = format!("# A\n\n{}\n\nThe end.\n", super::document::MORE);
    let one = replace(&old, "One", "x").unwrap();
    let two = replace(&one, "Two", "y").unwrap();
    let place = |text: &str| {
        two.find(text)
            .unwrap_or_else(|| panic!("{text} is not in {two}"))
    };
    assert!(place("One, end") < place("Two, begin"));
    assert!(place("Two, end") < place(super::document::MORE));
    assert!(two.ends_with("The end.\n"));
    assert_eq!(replace(&two, "Two", "y").unwrap(), two);
    assert!(super::document::has(&two, "Two") && !super::document::has(&two, "Three"));
}
