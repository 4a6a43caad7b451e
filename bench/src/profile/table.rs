//! A profile as a table: nanoseconds of the broker's CPU per record, by step.

use std::fmt::Write;

use super::floor::Floor;
use super::stacks::Stacks;
use super::steps::{Step, by_step, unknown};

/// Functions that no rule knows are named from this share of all samples on.
const NAMED: f64 = 0.005;

/// What was profiled.
pub(super) struct Profile {
    /// Such as `produce, native, batches of 16 KiB`.
    pub title: String,
    pub stacks: Stacks,
    /// The broker's CPU per record, as the kernel counts it.
    pub nanos: f64,
    /// Bytes of a batch per record: what the floor's bytes are multiplied by.
    pub bytes: f64,
    pub floor: Floor,
}

impl Profile {
    /// The table, as Markdown.
    pub(super) fn table(&self) -> String {
        let steps = by_step(&self.stacks);
        let total = self.stacks.total().max(1) as f64;
        let mut out = format!("**{}**\n\n", self.title);
        out += "| step | ns per record | share | bare loop, ns |\n|---|---|---|---|\n";
        let mut floors = 0.0;
        for step in Step::ALL {
            let share = steps.get(&step).copied().unwrap_or(0) as f64 / total;
            let floor = self.floor.of(step).map(|nanos| nanos * self.bytes);
            if share == 0.0 && floor.is_none() {
                continue;
            }
            floors += floor.unwrap_or(0.0);
            let _ = writeln!(
                out,
                "| {} | {:.1} | {:.1} % | {} |",
                step.title(),
                share * self.nanos,
                share * 100.0,
                floor.map_or("-".to_owned(), |nanos| format!("{nanos:.1}")),
            );
        }
        let _ = writeln!(
            out,
            "| **broker's CPU** | **{:.1}** | {} samples | **{floors:.1}** |",
            self.nanos,
            self.stacks.total(),
        );
        let named: Vec<_> = unknown(&self.stacks)
            .into_iter()
            .filter(|(_, count)| *count as f64 / total >= NAMED)
            .map(|(name, count)| format!("`{name}` {:.1} %", count as f64 / total * 100.0))
            .collect();
        if !named.is_empty() {
            let _ = writeln!(out, "\nOther: {}.", named.join(", "));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_nanoseconds_beside_the_floor() {
        let profile = Profile {
            title: "produce".to_owned(),
            stacks: Stacks::parse(
                "1000 kera_log_segments::local_writer::x\n\n1000 kera_log_segments::local_writer::x\n\n\
                 1000 kera_log_segments::local_writer::x\n\n2000 surprise\n",
            ),
            nanos: 80.0,
            bytes: 100.0,
            floor: Floor {
                steps: vec![(Step::Write, 0.25), (Step::Receive, 0.1)],
            },
        };
        let table = profile.table();
        assert!(
            table.contains("| pump: write the file | 60.0 | 75.0 % | 25.0 |"),
            "{table}"
        );
        assert!(table.contains("| receive: read the socket | 0.0 | 0.0 % | 10.0 |"));
        assert!(table.contains("| other | 20.0 | 25.0 % | - |"));
        assert!(table.contains("**80.0** | 4 samples | **35.0**"));
        assert!(table.contains("`surprise` 25.0 %"));
    }
}
