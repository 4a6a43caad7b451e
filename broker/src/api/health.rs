//! Whether all is well, in one sentence, and what to do about it if not.

use std::cmp::Reverse;

use super::told::Told;
use super::views::{GroupRow, Health, Problem, Severity, StreamRow, short};

/// Problems that are listed.
const LISTED: usize = 100;
/// A disk with less than this share free deserves a look.
const DISK_SHARE: f64 = 0.10;

/// What there is to say of one look.
pub(super) fn of(told: &Told, streams: &[StreamRow], groups: &[GroupRow]) -> Health {
    let mut problems = Vec::new();
    of_brokers(told, &mut problems);
    of_cluster(told, &mut problems);
    of_streams(told, streams, &mut problems);
    let mut behind: Vec<_> = groups.iter().filter(|group| group.falls_behind).collect();
    behind.sort_by_key(|group| Reverse(group.lag));
    for group in behind {
        problems.push(problem(
            Severity::Attention,
            format!("group {}", short(&group.group)),
            format!("is behind by {}; {}", records(group.lag), group.why),
            match group.members {
                0 => "start a consumer, or delete the group if it is not needed any more",
                _ => "see its lanes for the one that lags, and add members or make them faster",
            },
        ));
    }
    problems.sort_by_key(|one| Reverse(one.severity));
    let problems_total = problems.len();
    let (state, sentence, advice) = match problems.first() {
        None => (
            Severity::Ok,
            all_is_well(told, streams, groups),
            String::new(),
        ),
        Some(first) => {
            let others = match problems_total - 1 {
                0 => String::new(),
                1 => " There is 1 more problem.".to_owned(),
                more => format!(" There are {more} more problems."),
            };
            let sentence = format!("{} {}.{others}", capital(&first.object), first.problem);
            (
                first.severity,
                sentence,
                format!("{}.", capital(&first.advice)),
            )
        }
    };
    problems.truncate(LISTED);
    Health {
        state,
        sentence,
        advice,
        problems,
        problems_total,
    }
}

fn problem(
    severity: Severity,
    object: impl Into<String>,
    problem: impl Into<String>,
    advice: impl Into<String>,
) -> Problem {
    Problem {
        severity,
        object: object.into(),
        problem: problem.into(),
        advice: advice.into(),
    }
}

fn all_is_well(told: &Told, streams: &[StreamRow], groups: &[GroupRow]) -> String {
    let brokers = counted(told.brokers.len(), "broker", "brokers");
    let verb = if told.brokers.len() == 1 {
        "serves"
    } else {
        "serve"
    };
    let unknown = groups.iter().filter(|group| group.unknown_lanes > 0);
    let unknown = unknown.count();
    let behind = match groups.len() {
        0 => String::new(),
        _ if unknown > 0 => {
            let groups = counted(unknown, "consumer group is", "consumer groups are");
            format!(", and how far {groups} behind is not known yet")
        }
        1 => ", and the one consumer group keeps up".to_owned(),
        many => format!(", and all {many} consumer groups keep up"),
    };
    let streams = match streams.len() {
        0 => "no stream yet".to_owned(),
        many => counted(many, "stream", "streams"),
    };
    format!("All is well: {brokers} {verb} {streams}{behind}.")
}

fn of_brokers(told: &Told, problems: &mut Vec<Problem>) {
    let refused = |id: u32| {
        told.cluster.iter().any(|cluster| {
            let mut brokers = cluster.brokers.iter();
            brokers.any(|broker| broker.id == id && !broker.refused.is_empty())
        })
    };
    // Why nobody hears of one that is refused is told with the cluster.
    for silent in told.silent.iter().filter(|one| !refused(one.broker_id)) {
        problems.push(problem(
            Severity::Trouble,
            format!("broker {}", silent.broker_id),
            "does not answer",
            "see whether its process runs and can be reached, and its log; others take over what they have replicas of",
        ));
    }
    for broker in &told.brokers {
        let object = format!("broker {}", broker.broker);
        if !broker.not_ready.is_empty() && !refused(broker.broker) {
            let text = format!("is not ready: {}", broker.not_ready);
            let advice = match broker.not_ready.starts_with("disk full") {
                true => "free space on its disk, or shorten retention",
                false => "see its log",
            };
            problems.push(problem(Severity::Trouble, object.clone(), text, advice));
        }
        let (free, total) = (
            broker.disk_free_bytes as f64,
            broker.disk_total_bytes as f64,
        );
        if total > 0.0 && free / total < DISK_SHARE {
            problems.push(problem(
                Severity::Attention,
                object.clone(),
                format!("has {:.0} % of its disk free", free / total * 100.0),
                "free space, shorten retention, or give it a larger disk",
            ));
        }
        for trouble in &broker.troubles {
            let lane = trouble
                .lane
                .map(|lane| format!(" lane {lane}"))
                .unwrap_or_default();
            problems.push(problem(
                Severity::Trouble,
                format!(
                    "stream {} streamlet {}{lane}",
                    trouble.stream, trouble.streamlet
                ),
                format!("is not served: {}", trouble.reason),
                format!(
                    "bring back what it waits for; `kera stream recover {}` shows it",
                    trouble.stream
                ),
            ));
        }
    }
}

fn of_cluster(told: &Told, problems: &mut Vec<Problem>) {
    let Some(cluster) = &told.cluster else {
        return;
    };
    for one in &cluster.stranded {
        problems.push(problem(
            Severity::Trouble,
            format!("stream {} streamlet {}", one.stream, one.streamlet),
            format!("is not served until {}", one.needs),
            format!("start broker {} again, which owned it", one.owner),
        ));
    }
    if cluster.controller.is_none() {
        problems.push(problem(
            Severity::Trouble,
            "the cluster",
            "has no controller, so nobody takes over what a broker owns that goes",
            format!("see whether the metadata store answers, {}", cluster.store),
        ));
    }
    for broker in &cluster.brokers {
        if !broker.refused.is_empty() {
            problems.push(problem(
                Severity::Trouble,
                format!("broker {}", broker.id),
                format!("serves nobody: its certificate is refused {}", broker.refused),
                "put another certificate into the file of its tls.certificate, it is taken without a restart; others have taken over what they have replicas of",
            ));
        }
        if broker.state() == kera_protocol::v1::BrokerState::Gone {
            let named = broker.copies.max(broker.streamlets) as usize;
            problems.push(problem(
                Severity::Trouble,
                format!("broker {}", broker.id),
                format!(
                    "is gone, and {} it",
                    counted(named, "group names", "groups name")
                ),
                "start it again, with the data directory that it had",
            ));
        }
    }
    let lacking = cluster
        .under_replicated_groups
        .saturating_sub(cluster.limited_groups);
    if cluster.limited_streams > 0 {
        problems.push(problem(
            Severity::Attention,
            match cluster.limited_streams {
                1 => format!("stream {}", cluster.limited_stream),
                many => format!("{many} streams, {} among them,", cluster.limited_stream),
            },
            format!(
                "should have {} replicas, and the live brokers can hold {}",
                cluster.limited_replicas, cluster.most_copies
            ),
            "start brokers that are away, or more of them, on other machines",
        ));
    }
    if lacking > 0 {
        problems.push(problem(
            Severity::Attention,
            counted(lacking as usize, "closed group", "closed groups"),
            match lacking {
                1 => "has too few live replicas",
                _ => "have too few live replicas",
            },
            "nothing to do: they are replicated anew in the background",
        ));
    }
}

fn of_streams(told: &Told, streams: &[StreamRow], problems: &mut Vec<Problem>) {
    // Who does not answer may well serve its part.
    if !told.silent.is_empty() {
        return;
    }
    for stream in streams
        .iter()
        .filter(|stream| stream.unserved_streamlets > 0)
    {
        let waits = stream.unserved_streamlets as usize;
        problems.push(problem(
            Severity::Trouble,
            format!("stream {}", stream.name),
            format!("waits for {} of {}", counted(waits, "streamlet", "streamlets"), stream.streamlets),
            "wait a moment if a broker has just gone; else `kera stream recover` shows what is missing",
        ));
    }
}

fn counted(many: usize, one: &str, more: &str) -> String {
    format!("{many} {}", if many == 1 { one } else { more })
}

/// A number of records, for people.
fn records(many: u64) -> String {
    let digits = many.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{text} record{}", if many == 1 { "" } else { "s" })
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kera_protocol::v1;

    use super::*;
    use crate::api::views::Silent;

    fn told(brokers: u32) -> Told {
        let one = |broker| {
            Arc::new(v1::ObserveResponse {
                broker,
                disk_free_bytes: 50,
                disk_total_bytes: 100,
                ..Default::default()
            })
        };
        Told {
            brokers: (1..=brokers).map(one).collect(),
            silent: Vec::new(),
            cluster: None,
        }
    }

    #[test]
    fn one_sentence_says_that_all_is_well() {
        let health = of(&told(3), &[], &[]);
        assert_eq!(
            health.sentence,
            "All is well: 3 brokers serve no stream yet."
        );
        assert_eq!((health.state, health.problems_total), (Severity::Ok, 0));
    }

    #[test]
    fn of_groups_that_fall_behind_the_one_that_lags_most_is_told_first() {
        let meter = crate::api::rates::Meter::default();
        let row = |(name, lag): (&str, u64)| {
            let summary = v1::GroupSummary {
                group: name.into(),
                lag,
                ..Default::default()
            };
            crate::api::groups::row(&summary, 1, &meter, None, 0)
        };
        let groups = [("a", 3), ("b", 4_950), ("c", 7)].map(row);
        let health = of(&told(1), &[], &groups);
        assert!(
            health
                .sentence
                .starts_with("Group b is behind by 4,950 records"),
            "{health:?}"
        );
    }

    #[test]
    fn that_lags_are_not_known_is_no_good_news() {
        let group = v1::GroupSummary {
            group: "g".into(),
            unknown_lanes: 2,
            ..Default::default()
        };
        let meter = crate::api::rates::Meter::default();
        let row = crate::api::groups::row(&group, 1, &meter, None, 0);
        let health = of(&told(3), &[], &[row]);
        assert_eq!(
            health.sentence,
            "All is well: 3 brokers serve no stream yet, and how far 1 consumer group is behind is not known yet."
        );
    }

    #[test]
    fn the_worst_problem_comes_first_with_what_to_do() {
        let mut told = told(2);
        let full = Arc::make_mut(&mut told.brokers[0]);
        full.disk_free_bytes = 4;
        told.silent.push(Silent {
            broker_id: 3,
            reason: "planted".into(),
        });
        let health = of(&told, &[], &[]);
        assert_eq!(health.state, Severity::Trouble);
        assert_eq!(
            health.sentence,
            "Broker 3 does not answer. There is 1 more problem."
        );
        assert!(
            health.advice.starts_with("See whether its process runs"),
            "{health:?}"
        );
        assert_eq!(health.problems[1].problem, "has 4 % of its disk free");
    }

    #[test]
    fn a_cluster_tells_what_it_lacks() {
        let mut told = told(1);
        told.cluster = Some(v1::DescribeClusterResponse {
            under_replicated_groups: 3,
            limited_groups: 1,
            brokers: vec![v1::ClusterBroker {
                id: 9,
                state: v1::BrokerState::Gone.into(),
                copies: 12,
                ..Default::default()
            }],
            ..Default::default()
        });
        let health = of(&told, &[], &[]);
        let told: Vec<_> = health
            .problems
            .iter()
            .map(|one| one.object.as_str())
            .collect();
        assert_eq!(told, ["the cluster", "broker 9", "2 closed groups"]);
    }

    #[test]
    fn a_broker_whose_certificate_is_refused_is_told_once() {
        let mut told = told(2);
        let refused = Arc::make_mut(&mut told.brokers[0]);
        refused.not_ready = "certificate refused: planted".into();
        told.silent.push(Silent {
            broker_id: 3,
            reason: "planted".into(),
        });
        let broker = |id| v1::ClusterBroker {
            id,
            refused: "by broker 2: it has expired".into(),
            ..Default::default()
        };
        told.cluster = Some(v1::DescribeClusterResponse {
            controller: Some(2),
            brokers: vec![broker(1), broker(3)],
            ..Default::default()
        });
        let health = of(&told, &[], &[]);
        assert_eq!(
            health.sentence,
            "Broker 1 serves nobody: its certificate is refused by broker 2: it has expired. There is 1 more problem."
        );
    }

    #[test]
    fn records_are_counted_in_thousands() {
        assert_eq!(records(1), "1 record");
        assert_eq!(records(999), "999 records");
        assert_eq!(records(1_234_567), "1,234,567 records");
    }
}
