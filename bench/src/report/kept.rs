//! What has to be said beside the tables of several clients.

use super::text;
use crate::results::CaseRuns;
use crate::scenario::{Case, Work};

/// What a run is, in a few words.
pub(super) fn setting(case: &Case) -> String {
    let bytes = case.record_bytes;
    let seconds = case.crowd.millis.map_or(0.0, |millis| millis as f64 / 1e3);
    let records = text::thousands(case.records as f64);
    match case.work {
        Work::CatchUp => format!("{records} records of {bytes} bytes there before a run"),
        Work::Share => format!("Records of {bytes} bytes; {seconds} s a run"),
        _ if case.records > 0 => format!("{records} records of {bytes} bytes a run"),
        _ => format!("Records of {bytes} bytes, {seconds} s a run"),
    }
}

/// What the quantities mean where the name does not say it.
pub(super) fn explanation(case: &Case) -> &'static str {
    match case.work {
        Work::Both if case.crowd.consumers == 0 => {
            " Producers at once, each with connections of its own, and no consumers. The throughput is that of records that were acknowledged."
        }
        Work::Both => {
            " Producers and consumers at once, each with connections of its own. The throughput is that of records that were appended, acknowledged and read; CPU per record is for all of that."
        }
        Work::CatchUp => {
            " A producer goes on at the rate; after a while a consumer begins to read all that is there, until it is no more than 50 ms behind."
        }
        Work::Trickle => {
            " A producer sends a record at a time, each to another partition; the topic stays from run to run."
        }
        Work::Share => {
            " `lane`: one member of the group follows a partition (Kafka's consumer group, Kera's `order = lane`). `none`: any member takes any records (a share group with the Java client at Kafka and at Kera's Kafka listener, Kera's own `order = none`)."
        }
        Work::Latency if case.transaction_records.is_some() => {
            " A producer hands over as many records as a transaction has, all at once, and commits them if it has transactions; otherwise Kera's own client sends them at once, and librdkafka after the linger. All have one rate; where that is a share of a peak, it is the peak of the one with transactions. Times count from the moment at which the first of them is handed over, until a consumer has the record or, of an acknowledgement, until it is acknowledged and not yet committed; without the first second."
        }
        Work::Latency if case.compacted_records.is_some() => {
            " By turns, the broker compacts another stream meanwhile, with the quarter of a core that it takes for that, or leaves it alone."
        }
        Work::Compact => {
            " A stream is filled and then compacted at once, without rests, by a broker that has nothing else to do. Its CPU is all that it takes meanwhile; bytes are those of keys and values."
        }
        Work::Produce | Work::Consume | Work::Latency | Work::Start => "",
    }
}

/// What the quantities mean where several brokers share the work.
pub(super) const OF_CLUSTERS: &str = " CPU, memory and bytes written are those of all brokers together, with etcd, which only Kera's clusters have; Apache Kafka's controllers are in its brokers. The clients' are apart.";

/// What the quantities mean where an acknowledgement waits for the device.
pub(super) const OF_FLUSHES: &str = " All brokers, and etcd, have their files on the device named above. Its flushes are those that the kernel counts in /proc/diskstats, whoever asked for them; of several calls that wait at once the kernel makes one flush. The idle device is what one writer alone sees just before and just after each run: 4 KiB with O_DIRECT, then fdatasync.";

/// Rates that a load did not keep, and partitions that a broker could not have.
pub(super) fn remarks(group: &[&CaseRuns]) -> String {
    let mut out = String::new();
    for runs in group {
        for &contender in &runs.case.contenders {
            let of_contender = runs.runs.iter().filter(|run| run.contender == contender);
            let sides: Vec<_> = of_contender
                .filter_map(|run| Some(&run.taken.as_ref()?.sides))
                .collect();
            let rates = || sides.iter().filter_map(|sides| sides.rate);
            let late = rates().filter(|rate| !rate.is_kept()).count();
            if late > 0 {
                let least = rates().map(|rate| rate.reached / rate.wanted.max(1e-9));
                let least = least.fold(f64::INFINITY, f64::min);
                out.push_str(&format!(
                    "- {}: in {late} of {} runs of `{}` the load did not keep its rate; it reached {:.0} % of it at the least.\n",
                    contender.title(),
                    sides.len(),
                    runs.case.name(),
                    least * 100.0
                ));
            }
            if let Some(partitions) = sides.iter().find_map(|sides| sides.partitions) {
                out.push_str(&format!(
                    "- {} could not have {} partitions; it has {partitions}.\n",
                    contender.title(),
                    runs.case.partitions
                ));
            }
        }
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Cases, Contender, File, Measure};
    use kera_load::Sides;

    const FILE: &str = "title = \"T\"\ncommand = \"c\"\n[[scenario]]\nname = \"l\"\nwork = \"latency\"\n\
        contenders = [\"kera\"]\nkeys = \"none\"\nbatch = [\"16KiB\"]\nlinger_ms = [1]\n\
        partitions = [8]\nrate = [1000]\nseconds = 3\n";

    #[test]
    fn a_rate_that_was_not_kept_is_said() {
        let case = Cases::of(&File::parse(FILE).unwrap(), 1).0.remove(0);
        let run = |reached: f64, partitions: Option<u32>| {
            let sides = serde_json::json!({
                "rate": { "wanted": 1000.0, "reached": reached }, "partitions": partitions
            });
            let sides: Sides = serde_json::from_value(sides).unwrap();
            super::super::tests::run_with(Contender::Kera, sides)
        };
        let kept = CaseRuns {
            case: case.clone(),
            from: None,
            runs: vec![run(960.0, None)],
        };
        assert_eq!(remarks(&[&kept]), "");
        let late = CaseRuns {
            case,
            from: None,
            runs: vec![run(1000.0, None), run(870.0, Some(4))],
        };
        let said = remarks(&[&late]);
        assert!(said.contains("in 1 of 2 runs"), "{said}");
        assert!(said.contains("87 %"), "{said}");
        assert!(
            said.contains("could not have 8 partitions; it has 4"),
            "{said}"
        );
        let late = late.runs.iter().filter_map(|run| run.taken.as_ref());
        let rates: Vec<_> = late
            .filter_map(|taken| taken.value(Measure::Rate))
            .collect();
        assert_eq!(rates, [1000.0, 1000.0]);
    }
}
