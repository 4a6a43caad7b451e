//! Metrics under the names that they had before, until the next version.

use std::fmt::Write;

/// What comes before every metric's name.
const PREFIX: &str = "kera_";
/// The last line of a scrape.
const END: &str = "# EOF\n";

/// The name of a metric, and the one that it had.
const FORMER: [(&str, &str); 17] = [
    ("replica_store_connections", "backup_connections"),
    (
        "replica_store_connections_refused",
        "backup_connections_refused",
    ),
    (
        "replica_store_memory_limit_bytes",
        "backup_memory_limit_bytes",
    ),
    (
        "replica_store_memory_used_bytes",
        "backup_memory_used_bytes",
    ),
    ("replica_store_primaries", "backup_primaries"),
    ("replica_store_received_bytes", "backup_received_bytes"),
    ("replica_store_refusals", "backup_refusals"),
    ("replica_store_replicas", "backup_copies"),
    ("replica_store_seals", "backup_seals"),
    ("replica_read_bytes", "copy_read_bytes"),
    ("peer_lost_replicas", "peer_lost_copies"),
    ("repair_replicas", "repair_copies"),
    ("scrub_bad_replicas", "scrub_harmed_copies"),
    ("scrub_replaced_replicas", "scrub_replaced_copies"),
    ("spread_replicas", "spread_copies"),
    ("spread_surplus_replicas", "spread_surplus_copies"),
    ("spread_waiting_replicas", "spread_waiting_copies"),
];

/// A scrape with each metric that had another name once more under that.
pub(crate) fn with_former_names(text: String) -> String {
    let mut out = text.strip_suffix(END).unwrap_or(&text).to_owned();
    for (name, former) in FORMER {
        for line in text.lines() {
            // `# HELP name ...`, `# TYPE name ...`, or a sample: `name`, with `_total` if it is a counter.
            let (mark, rest) = match line.strip_prefix("# ") {
                Some(comment) => comment.split_once(' ').unwrap_or_default(),
                None => ("", line),
            };
            let rest = rest
                .strip_prefix(PREFIX)
                .and_then(|rest| rest.strip_prefix(name))
                .filter(|rest| rest.starts_with([' ', '{']) || rest.starts_with("_total"));
            let _ = match (mark, rest) {
                (_, None) => Ok(()),
                ("", Some(rest)) => writeln!(out, "{PREFIX}{former}{rest}"),
                ("HELP", Some(_)) => writeln!(
                    out,
                    "# HELP {PREFIX}{former} Former name of {PREFIX}{name}."
                ),
                (mark, Some(rest)) => writeln!(out, "# {mark} {PREFIX}{former}{rest}"),
            };
        }
    }
    out.push_str(END);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_has_its_former_name_with_the_same_samples() {
        let text = "# HELP kera_spread_replicas Moved.\n# TYPE kera_spread_replicas counter\n\
            kera_spread_replicas_total 3\n\
            # HELP kera_replica_store_replicas Kept.\n# TYPE kera_replica_store_replicas gauge\n\
            kera_replica_store_replicas{state=\"open\"} 1\n\
            # HELP kera_ready Ready.\n# TYPE kera_ready gauge\nkera_ready 1\n# EOF\n";
        let out = with_former_names(text.to_owned());
        let added = out.strip_prefix(text.strip_suffix(END).unwrap()).unwrap();
        assert_eq!(
            added,
            "# HELP kera_backup_copies Former name of kera_replica_store_replicas.\n\
             # TYPE kera_backup_copies gauge\nkera_backup_copies{state=\"open\"} 1\n\
             # HELP kera_spread_copies Former name of kera_spread_replicas.\n\
             # TYPE kera_spread_copies counter\nkera_spread_copies_total 3\n# EOF\n"
        );
    }

    #[test]
    fn names_are_of_one_metric_each() {
        for (name, former) in FORMER {
            let same = FORMER.iter().filter(|(a, b)| *a == name || *b == former);
            assert_eq!(same.count(), 1, "{name}");
            assert!(FORMER.iter().all(|(other, _)| *other != former), "{former}");
        }
    }
}
