//! Numbers and sentences.

use crate::measure::disk::Disk;
use crate::measure::machine::Machine;
use crate::results::{CaseRuns, Results};
use crate::scenario::{Case, Contender, Durability, Measure, Work};
use crate::statistics::Summary;

/// How many digits a quantity is shown with.
enum Digits {
    Whole,
    /// One behind the point.
    One,
    /// Three that count.
    Three,
    /// The same of what is small: a consumer that takes a millisecond for each record does one thousand a second.
    Few,
}

/// A quantity's name in a table's title, with its unit; what a value is multiplied by to be in that; its digits.
fn shown(measure: Measure) -> (&'static str, f64, Digits) {
    use Digits::{Few, One, Three, Whole};
    match measure {
        Measure::Throughput => ("thousand records a second", 1e-3, Few),
        Measure::BrokerCpu => ("broker CPU, ns per record", 1.0, Whole),
        Measure::ClientCpu => ("client CPU, ns per record", 1.0, Whole),
        Measure::Memory => ("highest resident memory, MB", 1e-6, Whole),
        Measure::Batch => ("mean batch, KiB", 1.0 / 1024.0, One),
        Measure::P50 => ("p50, ms", 1e-3, Three),
        Measure::P99 => ("p99, ms", 1e-3, Three),
        Measure::P999 => ("p99.9, ms", 1e-3, Three),
        Measure::Max => ("longest, ms", 1e-3, Three),
        Measure::Start => ("from start to first answer, ms", 1e3, Whole),
        Measure::Ready => ("from start until partitions are served, ms", 1e3, Whole),
        Measure::FirstAppend => ("from start to first acknowledged append, ms", 1e3, Whole),
        Measure::IdleMemory => ("resident memory when idle, MiB", 1.0 / 1_048_576.0, Whole),
        Measure::IdleCpu => ("CPU when idle, % of a core", 100.0, Three),
        Measure::Produced => ("producers, thousand records a second", 1e-3, Whole),
        Measure::Consumed => ("consumers, thousand records a second", 1e-3, Whole),
        Measure::Rate => ("rate, thousand records a second", 1e-3, Few),
        Measure::AckP50 => ("acknowledgement, p50, ms", 1e-3, Three),
        Measure::AckP99 => ("acknowledgement, p99, ms", 1e-3, Three),
        Measure::AckP999 => ("acknowledgement, p99.9, ms", 1e-3, Three),
        Measure::AckP50Flushes => (
            "acknowledgement, p50, in flushes (p50) of the idle device",
            1.0,
            Three,
        ),
        Measure::AckP99Flushes => (
            "acknowledgement, p99, in flushes (p99) of the idle device",
            1.0,
            Three,
        ),
        Measure::PerConsumer => ("records a second of each consumer", 1.0, Three),
        Measure::Compacted => ("compacted, MB for a second of broker CPU", 1e-6, Whole),
        Measure::Flushes => ("flushes of the device a second", 1.0, Whole),
        Measure::FlushRecords => ("records per flush of the device", 1.0, Three),
        Measure::FlushTime => (
            "a flush of the device during the run, mean, ms",
            1e-3,
            Three,
        ),
        Measure::DeviceP50 => ("a flush of the idle device, p50, ms", 1e-3, Three),
        Measure::DeviceP99 => ("a flush of the idle device, p99, ms", 1e-3, Three),
        Measure::BusyAckP99 => (
            "acknowledgement while a consumer catches up, p99, ms",
            1e-3,
            Three,
        ),
        Measure::CpuShare => ("broker CPU, % of a core", 100.0, One),
        Measure::StoreCpu => ("of that etcd's CPU, ns per record", 1.0, Three),
        Measure::StoreWrites => ("etcd transactions per GB of records", 1.0, Whole),
        Measure::StoreKeys => ("keys written in etcd per GB of records", 1.0, Whole),
        Measure::Written => (
            "bytes written by the brokers per byte of records",
            1.0,
            Three,
        ),
    }
}

/// A quantity's name in a table's title, with its unit.
pub(super) fn title(measure: Measure) -> &'static str {
    shown(measure).0
}

/// A value in the unit of [`title`], as a number.
pub(super) fn scaled(measure: Measure, value: f64) -> f64 {
    value * shown(measure).1
}

/// A value in the unit of [`title`].
pub(super) fn value(measure: Measure, value: f64) -> String {
    let scaled = scaled(measure, value);
    match shown(measure).2 {
        Digits::One => format!("{scaled:.1}"),
        Digits::Three => short(scaled),
        Digits::Few if scaled < 10.0 => short(scaled),
        Digits::Few | Digits::Whole => thousands(scaled),
    }
}

/// A number with three digits that count.
pub(super) fn short(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2}")
    } else if value < 100.0 {
        format!("{value:.1}")
    } else {
        thousands(value)
    }
}

/// A whole number with commas.
pub(super) fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Median and span, such as `1,607 (1,336-1,781)`.
pub(super) fn spread(measure: Measure, summary: &Summary) -> String {
    let show = |one| value(measure, one);
    if summary.values == 1 {
        return show(summary.median);
    }
    format!(
        "{} ({}-{})",
        show(summary.median),
        show(summary.least),
        show(summary.most)
    )
}

/// A contender's runs of a case, summed up; `None` if there is none that succeeded.
pub(super) fn summary(runs: &CaseRuns, contender: Contender, measure: Measure) -> Option<Summary> {
    let by = match measure {
        Measure::PerConsumer => f64::from(runs.case.crowd.consumers.max(1)),
        _ => 1.0,
    };
    let runs = runs.runs.iter().filter(|run| run.contender == contender);
    let taken = runs.filter_map(|run| run.taken.as_ref());
    Summary::of(
        taken
            .filter_map(|taken| taken.value(measure))
            .map(|value| value / by),
    )
}

/// The quantities shown of a case.
pub(super) fn measures(case: &Case) -> Vec<Measure> {
    let mut measures = of_work(case.work).to_vec();
    if case.work == Work::Both && case.crowd.consumers == 0 {
        // All that was taken was produced.
        measures.retain(|one| !matches!(one, Measure::Produced | Measure::Consumed));
    }
    if case.work == Work::Latency && case.transaction_records.is_some() {
        measures.push(Measure::Batch);
    }
    if case.cluster.is_some() && case.work != Work::Start {
        let after_cpu = measures.iter().position(|&one| one == Measure::BrokerCpu);
        let at = after_cpu.map_or(measures.len(), |at| at + 1);
        measures.insert(at, Measure::StoreCpu);
        measures.extend([
            Measure::Memory,
            Measure::Written,
            Measure::StoreWrites,
            Measure::StoreKeys,
        ]);
        if case.durability == Durability::Synced {
            let after_acks = measures.iter().position(|&one| one == Measure::AckP99);
            if let Some(at) = after_acks {
                let acks = [
                    Measure::AckP999,
                    Measure::AckP50Flushes,
                    Measure::AckP99Flushes,
                ];
                measures.splice(at + 1..at + 1, acks);
            }
            measures.extend([
                Measure::Flushes,
                Measure::FlushRecords,
                Measure::FlushTime,
                Measure::DeviceP50,
                Measure::DeviceP99,
            ]);
        }
    }
    measures
}

fn of_work(work: Work) -> &'static [Measure] {
    match work {
        Work::Produce => &[Measure::Throughput, Measure::BrokerCpu, Measure::Batch],
        Work::Consume => &[Measure::Throughput, Measure::BrokerCpu, Measure::ClientCpu],
        Work::Latency => &[
            Measure::Rate,
            Measure::P50,
            Measure::P99,
            Measure::P999,
            Measure::Max,
            Measure::AckP50,
            Measure::AckP99,
            Measure::BrokerCpu,
        ],
        Work::Start => &[
            Measure::Start,
            Measure::Ready,
            Measure::FirstAppend,
            Measure::IdleMemory,
            Measure::IdleCpu,
        ],
        Work::Both => &[
            Measure::Throughput,
            Measure::Produced,
            Measure::Consumed,
            Measure::BrokerCpu,
            Measure::ClientCpu,
            Measure::Batch,
        ],
        Work::CatchUp => &[Measure::Consumed, Measure::AckP99, Measure::BusyAckP99],
        Work::Trickle => &[Measure::CpuShare, Measure::Memory],
        Work::Share => &[Measure::Throughput, Measure::PerConsumer],
        Work::Compact => &[Measure::Compacted, Measure::BrokerCpu, Measure::Memory],
    }
}

/// A case in one line, for those who watch.
pub(crate) fn one_line(runs: &CaseRuns) -> String {
    let mut out = runs.case.name();
    for &contender in &runs.case.contenders {
        out.push_str(&format!("\n  {:<12}", contender.name()));
        let mut measures = measures(&runs.case);
        if !measures.contains(&Measure::Memory) {
            measures.push(Measure::Memory);
        }
        for measure in measures {
            if let Some(summary) = summary(runs, contender, measure) {
                out.push_str(&format!(
                    " {}: {};",
                    title(measure),
                    spread(measure, &summary)
                ));
            }
        }
        let ours = || runs.runs.iter().filter(|run| run.contender == contender);
        if !runs.case.offers(contender) {
            out.push_str(" has no such mode");
        } else if ours().next().is_none() {
            out.push_str(" was left out");
        }
        let failed = ours().filter(|run| run.failure.is_some()).count();
        if failed > 0 {
            out.push_str(&format!(" {failed} failed"));
        }
        let noisy = ours().filter(|run| run.noisy).count();
        if noisy > 0 {
            out.push_str(&format!(" {noisy} noisy"));
        }
    }
    out
}

/// A machine in words.
pub(super) fn machine(machine: &Machine) -> String {
    format!(
        "{} cores ({}), {:.0} GiB, {}",
        machine.cores,
        machine.processor,
        machine.memory_bytes as f64 / f64::from(1 << 30),
        machine.kernel,
    )
}

/// A disk in words.
pub(super) fn disk(disk: &Disk) -> String {
    let speeds = disk.write_mb_per_second.iter().map(u64::to_string);
    let speeds: Vec<_> = speeds.collect();
    format!(
        "{} on {}, {} MB/s of sequential writes",
        disk.filesystem,
        disk.device,
        speeds.join(" and "),
    )
}

/// What the figures were measured on and how, before any figure.
pub(super) fn conditions(results: &Results) -> String {
    let mut out = format!(
        "{} UTC, {:.0} minutes. {} shared by broker and client; {} (start, end).\n\n",
        results.started,
        results.minutes,
        machine(&results.machine),
        disk(&results.disk),
    );
    for broker in &results.brokers {
        out.push_str(&format!(
            "- {} {}; {}; answers {:.1} s after its start\n",
            broker.broker.title(),
            broker.version,
            broker.durability,
            broker.start_seconds
        ));
    }
    let versions: Vec<_> = results
        .versions
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    out.push_str(&format!("- {}\n", versions.join(", ")));
    for other in &results.others {
        let versions: Vec<_> = other
            .brokers
            .iter()
            .map(|one| format!("{} {}", one.broker.title(), one.version))
            .chain(
                other
                    .versions
                    .iter()
                    .map(|(name, version)| format!("{name} {version}")),
            )
            .collect();
        out.push_str(&format!(
            "- Completed {} UTC, {:.0} minutes, {} runs each: {}; {}; {}\n",
            other.started,
            other.minutes,
            other.repetitions,
            machine(&other.machine),
            disk(&other.disk),
            versions.join(", ")
        ));
    }
    for left_out in &results.left_out {
        out.push_str(&format!(
            "- **{} was left out**: {}\n",
            left_out.broker.title(),
            left_out.why.lines().next_back().unwrap_or_default().trim()
        ));
    }
    out.push_str(&format!(
        "\nAll brokers run for the whole session and take turns (A B A B), {} runs each; a cell is the median (least-most). \
         The load is a process of its own. CPU is user and system time of one process. \
         A run during which other processes used over {:.0} % of the cores was repeated; a star marks what stayed noisy.\n\n",
        results.repetitions,
        results.noise * 100.0
    ));
    out
}
