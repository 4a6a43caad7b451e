//! A broker that works alone.

use kera_testkit::finish;
use kera_testkit::program::earlier_binary;

use crate::common::Broker;
use crate::{lines, read, text};

const STREAMS: [(&str, &str); 2] = [("clicks", "written"), ("orders", "synced")];

fn write(broker: &Broker, range: std::ops::Range<usize>) {
    for (stream, _) in STREAMS {
        let produce = [
            "produce",
            stream,
            "-q",
            "--key-separator",
            ",",
            "--batch-size",
            "2KiB",
        ];
        broker.feed(&produce, &text(&lines(range.clone())));
    }
}

fn holds(broker: &Broker, records: usize) {
    for (stream, _) in STREAMS {
        assert_eq!(read(broker, stream), lines(0..records), "{stream}");
    }
}

/// The group goes on where it was, whoever remembered that.
fn group_reads(broker: &Broker, records: usize) {
    let most = records.to_string();
    let consume = [
        "consume", "clicks", "--group", "counters", "--from", "earliest", "--max", &most,
    ];
    assert_eq!(broker.run(&consume).lines().count(), records);
}

#[test]
fn alone_there_is_a_way_back_until_the_version_is_finalized() {
    let Some(earlier) = earlier_binary() else {
        return;
    };
    let mut broker = Broker::of(earlier, &[]);
    for (stream, ack) in STREAMS {
        let create = [
            "stream",
            "create",
            stream,
            "--streamlets",
            "2",
            "--lanes",
            "2",
            "--ack",
            ack,
        ];
        let small = ["--segment-size", "64KiB", "--segments-per-group", "2"];
        broker.run(&[&create[..], &small].concat());
    }
    write(&broker, 0..5_000);
    group_reads(&broker, 1_000);
    broker.kill();

    broker.set_program(None);
    broker.restart();
    holds(&broker, 5_000);
    write(&broker, 5_000..6_000);
    group_reads(&broker, 1_000);
    let compacted = ["stream", "create", "tables", "--cleanup", "compact"];
    let said = broker.refused(&compacted);
    assert!(said.contains("kera cluster finalize"), "{said}");
    let said = broker.refused(&["stream", "alter", "clicks", "--cleanup", "compact"]);
    assert!(said.contains("kera cluster finalize"), "{said}");
    assert!(broker.stop().success());

    broker.set_program(Some(earlier));
    broker.restart();
    holds(&broker, 6_000);
    write(&broker, 6_000..7_000);
    group_reads(&broker, 1_000);
    broker.kill();

    broker.set_program(None);
    broker.restart();
    holds(&broker, 7_000);
    group_reads(&broker, 4_000);
    let finalize = ["cluster", "finalize", "--yes"];
    let told = broker.json(&finalize);
    assert_eq!((&told["before"], &told["version"]), (&0.into(), &7.into()));
    assert_eq!(broker.json(&finalize)["changed"], false);
    broker.run(&compacted);
    broker.kill();

    broker.set_program(Some(earlier));
    let ended = finish(broker.command(), b"");
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("newer"), "{}", ended.stderr);

    broker.set_program(None);
    broker.restart();
    holds(&broker, 7_000);
    broker.run(&["stream", "describe", "tables"]);
}

#[test]
fn a_new_directory_is_of_the_newest_version() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "tables", "--cleanup", "compact"]);
    let told = broker.json(&["cluster", "finalize", "--yes"]);
    assert_eq!(
        (&told["before"], &told["changed"]),
        (&7.into(), &false.into())
    );
    let said = broker.attempt(&["cluster", "finalize"], b"").stderr;
    assert!(said.contains("--yes"), "{said}");
}
