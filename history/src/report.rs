//! The outcome of a check, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::anomaly::{Anomaly, AnomalyKind, Class};
use crate::event::Entry;

/// Anomalies of a kind that are kept with their evidence; others are counted only.
const KEPT_PER_KIND: u64 = 100;
/// Anomalies that are shown with what the history says about them.
pub(crate) const EXPLAINED: usize = 10;
/// Entries that are shown for one anomaly.
pub(crate) const ENTRIES_EACH: usize = 40;

/// How much a history holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Entries.
    pub entries: u64,
    /// Records sent.
    pub sent: u64,
    /// Records acknowledged.
    pub acknowledged: u64,
    /// Records said not to be stored.
    pub failed: u64,
    /// Records of which their producer does not know whether they are stored.
    pub unknown: u64,
    /// Records without any outcome.
    pub unresolved: u64,
    /// Records read at least once.
    pub read: u64,
    /// Acknowledged records that nobody read: reading was not complete, or they are lost, or were
    /// trimmed.
    pub unread: u64,
    /// Deliveries to readers, each reader's every time.
    pub deliveries: u64,
    /// Deliveries that a reader had got before, and was allowed to get again.
    pub redeliveries: u64,
    /// Leases granted.
    pub leases: u64,
    /// Ordinals that the broker reported as gaps.
    pub gap_ordinals: u64,
    /// Times that a broker was killed.
    pub kills: u64,
    /// Anomalies of each kind, also those not kept.
    pub anomalies: BTreeMap<AnomalyKind, u64>,
    /// Anomalies of each class of Jepsen's, which are among those above.
    #[serde(default)]
    pub classes: BTreeMap<Class, u64>,
}

impl Counts {
    /// Anomalies of a kind.
    pub fn of(&self, kind: AnomalyKind) -> u64 {
        self.anomalies.get(&kind).copied().unwrap_or(0)
    }

    /// Records lost.
    pub fn lost(&self) -> u64 {
        self.of(AnomalyKind::Lost)
    }

    /// Records stored twice, or delivered twice where once was promised.
    pub fn duplicated(&self) -> u64 {
        self.of(AnomalyKind::Duplicated)
    }

    /// Breaches of an order.
    pub fn reordered(&self) -> u64 {
        self.of(AnomalyKind::Reordered)
    }
}

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How much there was.
    pub counts: Counts,
    /// Anomalies with their evidence, at most 100 of each kind.
    pub anomalies: Vec<Anomaly>,
    /// For the first ten anomalies, what the history says about them, at most 40 entries each.
    pub evidence: Vec<Vec<Entry>>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.counts.anomalies.is_empty()
    }

    /// The kinds of anomalies there are, each once.
    pub fn kinds(&self) -> Vec<AnomalyKind> {
        self.counts.anomalies.keys().copied().collect()
    }

    /// The classes of anomalies there are, in Jepsen's words, each once.
    pub fn classes(&self) -> Vec<Class> {
        self.counts.classes.keys().copied().collect()
    }

    /// The verdict in one line: how many anomalies of which kinds, and the first in words.
    pub fn headline(&self) -> String {
        let Some(first) = self.anomalies.first() else {
            return format!("no anomaly in {} records", self.counts.sent);
        };
        let counts: Vec<_> = self
            .counts
            .anomalies
            .iter()
            .map(|(kind, count)| format!("{count} {}", kind.words()))
            .collect();
        format!("{}; the first: {first}", counts.join(", "))
    }

    /// The report as one JSON document.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    pub(crate) fn add(&mut self, anomaly: Anomaly) {
        let count = self.counts.anomalies.entry(anomaly.kind()).or_default();
        *count += 1;
        if let Some(class) = anomaly.class() {
            *self.counts.classes.entry(class).or_default() += 1;
        }
        if *count <= KEPT_PER_KIND {
            self.anomalies.push(anomaly);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        writeln!(
            f,
            "{} sent, {} lost, {} duplicated, {} out of order",
            c.sent,
            c.lost(),
            c.duplicated(),
            c.reordered(),
        )?;
        writeln!(
            f,
            "{} acknowledged, {} failed, {} unknown, {} without outcome; {} read by someone, {} acknowledged but unread",
            c.acknowledged, c.failed, c.unknown, c.unresolved, c.read, c.unread,
        )?;
        writeln!(
            f,
            "{} deliveries ({} again, as allowed), {} leases, {} kills, {} ordinals in gaps",
            c.deliveries, c.redeliveries, c.leases, c.kills, c.gap_ordinals,
        )?;
        for (kind, count) in &c.anomalies {
            writeln!(f, "ANOMALY {count} {}", kind.words())?;
        }
        for (class, count) in &c.classes {
            writeln!(f, "of which, in Jepsen's words, {count} {}", class.words())?;
        }
        for (index, anomaly) in self.anomalies.iter().enumerate() {
            writeln!(f, "- {anomaly}")?;
            for entry in self.evidence.get(index).into_iter().flatten() {
                // An entry always is JSON; if it could not be, the anomaly still shows.
                let line = serde_json::to_string(&entry.event).unwrap_or_default();
                writeln!(f, "    {:>8} {line}", entry.at)?;
            }
        }
        Ok(())
    }
}
