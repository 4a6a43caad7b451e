//! What is measured: the analogues of the figures of Tailwind's evaluation.

use serde::{Deserialize, Serialize};

use super::plan::{Load, Wire};

/// Bytes that one backup's groups may take in a run.
pub const MEMORY: u64 = 1 << 30;
/// Records have so many bytes of value.
const RECORD: u32 = 100;
const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

/// What a case's runs do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Appends.
    Append(Load),
    /// Appends by a producer, at whole brokers.
    Produce(Load),
    /// So many records are appended, the primary is killed, another process recovers them.
    Recover { records: u64, load: Load },
}

impl Work {
    pub fn load(&self) -> &Load {
        match self {
            Self::Append(load) | Self::Produce(load) | Self::Recover { load, .. } => load,
        }
    }
}

/// A case: one line of a table for each way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub section: Section,
    /// Such as `append=1KiB`.
    pub name: String,
    pub work: Work,
    pub wires: Vec<Wire>,
}

/// A table, or a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    Throughput,
    Latency,
    Threads,
    Groups,
    Rolls,
    Brokers,
    Recovery,
}

impl Section {
    pub const ALL: [Self; 7] = [
        Self::Throughput,
        Self::Latency,
        Self::Threads,
        Self::Groups,
        Self::Rolls,
        Self::Brokers,
        Self::Recovery,
    ];

    /// As the command line names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Threads => "threads",
            Self::Groups => "groups",
            Self::Rolls => "rolls",
            Self::Brokers => "brokers",
            Self::Recovery => "recovery",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Throughput => "Throughput and CPU by size of an append",
            Self::Latency => "Latency of one append at a time",
            Self::Threads => "Scaling with threads",
            Self::Groups => "Number of active groups",
            Self::Rolls => "With rolls, closes and frees",
            Self::Brokers => "Whole brokers",
            Self::Recovery => "Recovery",
        }
    }

    /// What a reader must know of the cases.
    pub fn about(self) -> &'static str {
        match self {
            Self::Throughput => {
                "64 appends under way over 16 groups. Buffers are reserved before the measurement, so \
                 that a backup does nothing but take bytes; the bare loops receive the same pieces \
                 from the same primary."
            }
            Self::Latency => "One lane, the next append when the one before is acknowledged.",
            Self::Threads => {
                "64 appends of 1 KiB under way over 16 groups; so many threads in the primary, and in \
                 each backup to receive or to handle requests. All processes share the machine's cores."
            }
            Self::Groups => {
                "1,000 appends under way, spread over the groups: with more groups fewer of one group are \
                 there to be shipped as one piece."
            }
            Self::Rolls => {
                "64 appends of 16 KiB under way over 16 groups of 8 MiB, which are replaced, closed, \
                 checked and freed at the backups as they fill."
            }
            Self::Brokers => {
                "A `kera serve` for each copy, and one native producer that sends to the first: 16 lanes, \
                 `written`, records of 100 bytes, groups of two segments of 8 MiB. The first broker's own \
                 file is one of the copies; the others write closed groups to their disks meanwhile. Half \
                 as many records go before those that are measured: memory at the backups is warm."
            }
            Self::Recovery => {
                "All groups are open when the primary is killed. Closed: a new owner has sealed the \
                 copies, walked their bytes and closed every group. Read: it has read every byte from \
                 the copies, half from each. Calls for control are the same in both."
            }
        }
    }
}

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All cases.
    Whole,
    /// One or two small cases of each section, to try it out.
    Quick,
}

/// The load of which cases are variations; how much of it there is they say themselves.
fn usual(cores: usize) -> Load {
    Load {
        append_bytes: KIB,
        record_bytes: RECORD,
        lanes: 16,
        outstanding: 64,
        threads: cores.clamp(1, 2),
        segment_bytes: 0,
        segments: 4,
        bytes: 0,
        millis: 0,
        frees: false,
    }
}

/// All cases of that extent, on a machine of so many cores.
pub fn cases(extent: Extent, cores: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    let quick = extent == Extent::Quick;
    let both = vec![Wire::Tcp, Wire::Rpc];
    let all = vec![
        Wire::Alone,
        Wire::Bare,
        Wire::BareKept,
        Wire::Tcp,
        Wire::Rpc,
    ];
    let base = Load {
        bytes: if quick { 8 << 20 } else { 3 * MEMORY / 4 },
        millis: if quick { 500 } else { 3_000 },
        ..usual(cores)
    };
    let mut add = |section, name: String, load, wires: &[Wire]| {
        cases.push(Case {
            section,
            name,
            work: Work::Append(load),
            wires: wires.to_vec(),
        });
    };
    let sizes: &[u32] = if quick {
        &[KIB]
    } else {
        &[100, KIB, 16 * KIB, 128 * KIB]
    };
    for size in sizes {
        let load = Load {
            append_bytes: *size,
            ..base.clone()
        };
        let name = format!("append={}", bytes_name(*size));
        add(Section::Throughput, name.clone(), roomy(load.clone()), &all);
        let one = Load {
            lanes: 1,
            outstanding: 1,
            bytes: load.bytes / 4,
            ..load
        };
        add(Section::Latency, name, roomy(one), &both);
    }
    let counts: Vec<usize> = if quick {
        vec![1]
    } else {
        (1..=cores.max(2)).filter(|n| n.is_power_of_two()).collect()
    };
    for threads in counts {
        let load = Load {
            threads,
            ..base.clone()
        };
        let name = format!("threads={threads}");
        add(Section::Threads, name, roomy(load), &both);
    }
    let sizes: &[u32] = if quick { &[KIB] } else { &[KIB, 16 * KIB] };
    for size in sizes {
        for lanes in if quick {
            vec![4, 16]
        } else {
            vec![10, 100, 1_000]
        } {
            let load = Load {
                append_bytes: *size,
                lanes,
                outstanding: if quick { 16 } else { 1_000 },
                ..base.clone()
            };
            let name = format!("append={}, groups={lanes}", bytes_name(*size));
            add(Section::Groups, name, roomy(load), &both);
        }
    }
    let rolls = Load {
        append_bytes: 16 * KIB,
        segment_bytes: if quick { 256 * KIB } else { 2 * MIB },
        frees: true,
        bytes: if quick { 32 << 20 } else { 8 << 30 },
        ..base.clone()
    };
    add(Section::Rolls, "append=16KiB".into(), rolls, &both);
    let sizes: &[u32] = if quick {
        &[16 * KIB]
    } else {
        &[16 * KIB, 128 * KIB]
    };
    for size in sizes {
        let load = Load {
            append_bytes: *size,
            segment_bytes: if quick { 256 * KIB } else { 8 * MIB },
            // As streams with copies have them unless told otherwise.
            segments: 2,
            bytes: u64::from(RECORD) * if quick { 100_000 } else { 10_000_000 },
            millis: 60_000,
            ..base.clone()
        };
        cases.push(Case {
            section: Section::Brokers,
            name: format!("batch={}", bytes_name(*size)),
            work: Work::Produce(load),
            wires: vec![Wire::OneCopy, Wire::Copies],
        });
    }
    let counts: &[u64] = if quick {
        &[20_000]
    } else {
        &[1_000_000, 10_000_000]
    };
    for records in counts {
        let bytes = records * u64::from(RECORD + 10);
        let load = Load {
            append_bytes: 16 * KIB,
            bytes,
            millis: 120_000,
            ..base.clone()
        };
        cases.push(Case {
            section: Section::Recovery,
            name: format!("records={records}"),
            work: Work::Recover {
                records: *records,
                load: roomy(load),
            },
            wires: both.clone(),
        });
    }
    cases
}

/// The cases of a network card: rdma beside rpc and tcp. They are few and small, since they run in a
/// virtual machine whose card is software.
pub fn card_cases(extent: Extent, cores: usize) -> Vec<Case> {
    let quick = extent == Extent::Quick;
    let base = Load {
        bytes: if quick { 4 << 20 } else { 64 << 20 },
        millis: if quick { 300 } else { 2_000 },
        ..usual(cores)
    };
    let sizes: &[u32] = if quick {
        &[KIB]
    } else {
        &[KIB, 16 * KIB, 128 * KIB]
    };
    let mut cases = Vec::new();
    for section in [Section::Throughput, Section::Latency] {
        for size in sizes {
            let mut load = Load {
                append_bytes: *size,
                ..base.clone()
            };
            if section == Section::Latency {
                (load.lanes, load.outstanding) = (1, 1);
                load.bytes /= 2;
            }
            cases.push(Case {
                section,
                name: format!("append={}", bytes_name(*size)),
                work: Work::Append(roomy(load)),
                wires: vec![Wire::Rdma, Wire::Rpc, Wire::Tcp],
            });
        }
    }
    cases
}

/// The same with groups of one segment that takes all that a lane gets, headers included. A second one would
/// be reserved ahead, in the middle of the measurement, and never used.
fn roomy(load: Load) -> Load {
    let each = load.most_of_a_lane() as u32 + load.append_bytes.max(4 * KIB);
    Load {
        segments: 1,
        segment_bytes: each.max(64 * KIB).next_multiple_of(4 * KIB),
        ..load
    }
}

fn bytes_name(bytes: u32) -> String {
    if bytes.is_multiple_of(KIB) {
        format!("{}KiB", bytes / KIB)
    } else {
        format!("{bytes}B")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_of_a_card_fit_a_small_machine() {
        for extent in [Extent::Whole, Extent::Quick] {
            for case in card_cases(extent, 2) {
                assert_eq!(case.wires, [Wire::Rdma, Wire::Rpc, Wire::Tcp]);
                let load = case.work.load();
                let each = u64::from(load.segment_bytes);
                assert!(each > load.most_of_a_lane(), "{}: it rolls", case.name);
                let at_each_backup = u64::from(load.lanes) * each;
                assert!(
                    at_each_backup <= 256 << 20,
                    "{}: {at_each_backup}",
                    case.name
                );
            }
        }
    }

    #[test]
    fn every_section_has_cases_that_fit_their_memory() {
        for extent in [Extent::Whole, Extent::Quick] {
            let all = cases(extent, 2);
            for section in Section::ALL {
                assert!(all.iter().any(|case| case.section == section));
            }
            for case in &all {
                let load = case.work.load();
                let lanes = u64::from(load.lanes);
                let first = u64::from(load.segment_bytes) * lanes;
                assert!(first <= 2 * MEMORY, "{}: {first}", case.name);
                if !matches!(case.section, Section::Rolls | Section::Brokers) {
                    let most = u64::from(load.lanes) * load.most_of_a_lane();
                    assert!(first > most && most > load.bytes, "{}: it rolls", case.name);
                }
                assert!(load.append_bytes < load.segment_bytes, "{}", case.name);
            }
            let mut names: Vec<_> = all
                .iter()
                .map(|c| format!("{:?} {}", c.section, c.name))
                .collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all.len());
        }
    }
}
