//! What a session measured, as it is kept in JSON.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::join::JoinPlan;
use super::{Scenario, failover, hand_over, join};
use crate::measure::disk::Disk;
use crate::measure::machine::Machine;
use crate::results::{read_json, write_json};

/// Changes when a field changes its meaning.
const FORMAT: u32 = 1;

/// A session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Results {
    pub format: u32,
    pub command: String,
    /// UTC, such as 2026-01-31 12:00.
    pub started: String,
    pub minutes: f64,
    /// True if the program was built without optimisation.
    pub slow_build: bool,
    pub commit: Option<String>,
    pub machine: Machine,
    pub disk: Disk,
    /// The first line of `etcd --version`.
    pub etcd: String,
    /// The first line of `kera --version`.
    pub kera: String,
    /// Brokers' lease.
    pub lease_ms: u64,
    /// Streamlets of `failover`, `silence` and `hand-over`.
    pub streamlets: u32,
    pub join_plan: JoinPlan,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failover: Vec<failover::Taken>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silence: Vec<failover::Taken>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hand_over: Vec<hand_over::Taken>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub join: Vec<join::Taken>,
    /// Runs that measured nothing, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failed>,
}

/// A run that measured nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Failed {
    pub scenario: Scenario,
    pub reason: String,
}

impl Results {
    /// The format that this version writes.
    pub(super) fn format() -> u32 {
        FORMAT
    }

    /// Reads what [`Results::write`] wrote.
    pub(super) fn read(path: &Path) -> Result<Self> {
        read_json(path, "cluster", FORMAT)
    }

    /// Writes the file anew, whole or not at all.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        write_json(path, self)
    }
}
