//! What a session measured, as it is kept in JSON.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::cases::Case;
use super::plan::Wire;
use super::session::Taken;
use crate::measure::machine::Machine;
use crate::results::{read_json, write_json};
use crate::statistics::Summary;

/// Changes when a field changes its meaning.
const FORMAT: u32 = 1;

/// A session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub format: u32,
    pub command: String,
    /// UTC, such as 2026-01-31 12:00.
    pub started: String,
    pub minutes: f64,
    pub runs: u32,
    /// Backups beside the primary.
    pub backups: u32,
    /// The cases are those of a network card.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cards: bool,
    /// What the machine is, where its own words would mislead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// True if the program was built without optimisation.
    pub slow_build: bool,
    pub commit: Option<String>,
    pub machine: Machine,
    pub replication: Vec<Measured>,
}

/// A case over one way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub case: Case,
    pub wire: Wire,
    pub runs: Vec<Taken>,
    /// Runs that measured nothing, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// One quantity of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Records a second.
    Throughput,
    /// Bytes a second.
    Bytes,
    /// Microseconds.
    P50,
    P99,
    /// Nanoseconds a record, of the primary.
    Primary,
    /// Nanoseconds a record, of all backups together.
    Backups,
    /// Nanoseconds a record, of the primary and all backups together.
    All,
    /// Nanoseconds a record, of the whole machine: primary, backups, and what the kernel does for none
    /// of them.
    Machine,
    /// Nanoseconds a byte, of one backup.
    PerByte,
    /// Seconds until all groups had their close.
    Closed,
    /// Seconds until all was read back.
    Read,
}

impl Measured {
    /// Median and spread of a quantity; `None` if no run has it.
    pub fn of(&self, measure: Measure, backups: u32) -> Option<Summary> {
        Summary::of(self.each(measure, backups))
    }

    /// A quantity of each run that has it.
    pub fn each(&self, measure: Measure, backups: u32) -> Vec<f64> {
        let value = |taken: &Taken| {
            let records = taken.records.max(1) as f64;
            let bytes = taken.bytes.max(1) as f64;
            let latency = taken.latency.as_ref();
            Some(match measure {
                Measure::Throughput => records / taken.seconds.max(1e-9),
                Measure::Bytes => bytes / taken.seconds.max(1e-9),
                Measure::P50 => latency?.p50_us,
                Measure::P99 => latency?.p99_us,
                Measure::Primary => taken.primary_cpu_seconds * 1e9 / records,
                Measure::Backups if self.wire == Wire::Alone => return None,
                Measure::Backups => taken.backup_cpu_seconds * 1e9 / records,
                Measure::All => {
                    (taken.primary_cpu_seconds + taken.backup_cpu_seconds) * 1e9 / records
                }
                Measure::Machine => taken.machine_cpu_seconds * 1e9 / records,
                Measure::PerByte if self.wire == Wire::Alone => return None,
                Measure::PerByte => {
                    taken.backup_cpu_seconds * 1e9 / bytes / f64::from(backups.max(1))
                }
                Measure::Closed => taken.restored?.closed_seconds,
                Measure::Read => taken.restored?.read_seconds,
            })
        };
        self.runs.iter().filter_map(value).collect()
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Results {
    /// The file's name, and the title of the document's section.
    pub fn title(&self) -> &'static str {
        if self.cards { "rdma" } else { "replication" }
    }

    /// The format that this version writes.
    pub fn format() -> u32 {
        FORMAT
    }

    /// Reads what [`Results::write`] wrote.
    pub fn read(path: &Path) -> Result<Self> {
        read_json(path, "replication", FORMAT)
    }

    /// Writes the file anew, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_json(path, self)
    }

    /// The line of a case over one way.
    pub fn find(&self, case: &Case, wire: Wire) -> Option<&Measured> {
        let same = |one: &&Measured| {
            one.case.section == case.section && one.case.name == case.name && one.wire == wire
        };
        self.replication.iter().find(same)
    }
}
