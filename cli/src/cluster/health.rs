//! Whether a cluster is well, in one sentence: what is wrong with which object, and what to do about it.

use serde::Serialize;

use crate::members::{BrokerView, ComparedView, Problem};
use crate::output::count;

/// Problems that are told one by one.
const TOLD: usize = 8;

/// What a cluster lacks, the worst first.
#[derive(Debug, Serialize)]
pub(super) struct Health {
    pub(super) healthy: bool,
    /// The same for people.
    pub(super) summary: String,
    pub(super) problems: Vec<Problem>,
}

/// A streamlet whose owner is gone.
#[derive(Serialize)]
pub(super) struct StrandedView {
    pub(super) stream: String,
    pub(super) streamlet: u32,
    pub(super) owner: u32,
    pub(super) needs: String,
    pub(super) brokers: Vec<u32>,
}

/// What is looked at.
pub(super) struct Looked<'a> {
    pub(super) store: &'a str,
    /// The cluster version that was finalized.
    pub(super) version: u32,
    pub(super) controller: Option<u32>,
    pub(super) brokers: &'a [BrokerView],
    pub(super) stranded: &'a [StrandedView],
    pub(super) told: &'a [ComparedView],
    /// Closed groups that lack copies and get others, and those that lack brokers for them.
    pub(super) lacking: (u64, u64),
    /// Streams that are to have more copies than the living brokers can hold: how many, the one that is to have
    /// most, and how many that is.
    pub(super) limited: (u32, &'a str, u32),
    pub(super) most_copies: u32,
}

impl Health {
    pub(super) fn of(looked: &Looked<'_>) -> Self {
        let mut problems = Vec::new();
        for one in looked.stranded {
            problems.push(Problem::new(
                format!("stream {} streamlet {}", one.stream, one.streamlet),
                format!("is not served until {}", one.needs),
                format!("its owner was broker {}", one.owner),
            ));
        }
        if looked.controller.is_none() {
            problems.push(Problem::new(
                "the cluster",
                "has no controller, so nobody takes over what a broker owns that goes",
                format!("see whether the metadata store answers, {}", looked.store),
            ));
        }
        for broker in looked.brokers {
            problems.extend(of_broker(broker));
            problems.extend(of_program(broker, looked.version));
        }
        // That others do not reach them is told once.
        let away = looked.brokers.iter().filter(|one| is_away(one));
        let away: Vec<_> = away.map(|broker| broker.broker_id).collect();
        for told in looked.told {
            problems.extend(told.problems(&away));
        }
        let (streams, stream, replicas) = looked.limited;
        if streams > 0 {
            let (object, up_to) = match streams {
                1 => (format!("stream {stream}"), ""),
                _ => {
                    let many = count(streams.into());
                    (format!("{many} streams, {stream} among them,"), "up to ")
                }
            };
            problems.push(Problem::new(
                object,
                format!(
                    "should have {up_to}{replicas} replicas, and the live brokers can hold {}",
                    looked.most_copies
                ),
                "start brokers that are away, or more of them, on other machines",
            ));
        }
        let (lacking, limited) = looked.lacking;
        if limited > 0 {
            problems.push(Problem::new(
                format!("{} closed groups", count(limited)),
                format!(
                    "should have more replicas than the live brokers can hold, which is {}",
                    looked.most_copies
                ),
                "start more brokers, on other machines",
            ));
        }
        if lacking > 0 {
            problems.push(Problem::new(
                format!("{} closed groups", count(lacking)),
                "have too few live replicas",
                "they are re-replicated in the background: look again later",
            ));
        }
        Self {
            healthy: problems.is_empty(),
            summary: summary(&problems),
            problems,
        }
    }

    /// Lines for what the summary has no room for.
    pub(super) fn others(&self) -> Vec<String> {
        let rest = self.problems.iter().skip(1);
        let mut lines: Vec<_> = rest
            .take(TOLD)
            .map(|one| format!("  also: {}", one.text()))
            .collect();
        let untold = self.problems.len().saturating_sub(1 + TOLD);
        if untold > 0 {
            lines.push(format!(
                "  and {} more; --json lists them",
                count(untold as u64)
            ));
        }
        lines
    }
}

fn summary(problems: &[Problem]) -> String {
    match problems {
        [] => "healthy: all brokers answer, and everything is served".into(),
        [one] => format!("NOT HEALTHY: {}", one.text()),
        [first, ..] => format!(
            "NOT HEALTHY, {} problems: {}",
            count(problems.len() as u64),
            first.text()
        ),
    }
}

fn is_away(broker: &BrokerView) -> bool {
    matches!(broker.state, "GONE" | "SILENT" | "REFUSED")
}

fn of_broker(broker: &BrokerView) -> Option<Problem> {
    let object = format!("broker {}", broker.broker_id);
    match broker.state {
        "GONE" => Some(Problem::new(
            object,
            format!(
                "is gone, and {} groups name it",
                count(broker.copies.max(broker.streamlets))
            ),
            "start it again, with the data directory that it had",
        )),
        "REFUSED" => Some(Problem::new(
            object,
            format!(
                "serves nobody: its certificate is refused {}",
                broker.refused.as_deref().unwrap_or_default()
            ),
            "put another certificate into the file of its tls.certificate, it is taken without a restart",
        )),
        "SILENT" => Some(Problem::new(
            object,
            format!(
                "does not answer at {}: {}",
                broker.address,
                broker.silent.as_deref().unwrap_or("no answer")
            ),
            "see whether it runs and can be reached, and its log",
        )),
        _ => broker.cannot_write.as_ref().map(|reason| {
            Problem::new(
                object,
                format!("cannot write its own files, and others own what it owned: {reason}"),
                "free space on its disk, or mend it",
            )
        }),
    }
}

/// A program of before cluster versions does not look for one, and so does not end.
fn of_program(broker: &BrokerView, version: u32) -> Option<Problem> {
    let is_old = broker.state != "GONE" && broker.cluster_version < version;
    is_old.then(|| {
        Problem::new(
            format!("{} {}", broker.role, broker.broker_id),
            format!(
                "has a program of before cluster version {version} ({}), which cannot read all that others write",
                broker.version
            ),
            "stop it, and start it with a program of the version that the others have",
        )
    })
}

#[cfg(test)]
mod tests {
    use kera_protocol::v1;

    use super::*;

    fn brokers(states: &[v1::BrokerState]) -> Vec<BrokerView> {
        let numbered = states.iter().zip(1..);
        let views = numbered.map(|(state, id)| {
            BrokerView::new(v1::ClusterBroker {
                id,
                state: (*state).into(),
                address: format!("10.0.0.{id}:7600"),
                copies: 12,
                ..Default::default()
            })
        });
        views.collect()
    }

    fn health(brokers: &[BrokerView], told: &[ComparedView], lacking: (u64, u64)) -> Health {
        Health::of(&Looked {
            store: "etcd://here:2379",
            version: 0,
            controller: Some(1),
            brokers,
            stranded: &[],
            told,
            lacking,
            limited: (0, "", 0),
            most_copies: 2,
        })
    }

    #[test]
    fn fewer_brokers_than_copies_are_a_problem_before_any_group_is_closed() {
        let brokers = brokers(&[v1::BrokerState::Normal; 2]);
        let found = |limited| {
            Health::of(&Looked {
                store: "etcd://here:2379",
                version: 0,
                controller: Some(1),
                brokers: &brokers,
                stranded: &[],
                told: &[],
                lacking: (0, 0),
                limited,
                most_copies: 2,
            })
        };
        let one = found((1, "clicks", 3));
        assert!(!one.healthy);
        assert_eq!(
            one.summary,
            "NOT HEALTHY: stream clicks should have 3 replicas, and the live brokers can hold 2; start brokers that are away, or more of them, on other machines"
        );
        assert!(
            found((4, "clicks", 3))
                .summary
                .contains("4 streams, clicks among them, should")
        );
        assert!(found((0, "", 0)).healthy);
    }

    #[test]
    fn a_cluster_that_is_well_says_so_and_progress_is_no_problem() {
        use v1::BrokerState::{Draining, Normal, Partial};
        let found = health(&brokers(&[Normal, Partial, Draining]), &[], (0, 0));
        assert!(found.healthy && found.summary.starts_with("healthy"));
        assert!(found.others().is_empty());
    }

    #[test]
    fn a_program_of_before_the_cluster_version_is_a_problem() {
        use v1::BrokerState::{Gone, Normal};
        let mut brokers = brokers(&[Normal, Normal, Gone]);
        brokers[0].cluster_version = 1;
        brokers[1].version = "0.0.1".into();
        let told = |version| {
            let problems = brokers.iter().filter_map(|one| of_program(one, version));
            problems.map(|one| one.text()).collect::<Vec<_>>()
        };
        assert_eq!(told(0), Vec::<String>::new());
        assert_eq!(
            told(1),
            [
                "broker 2 has a program of before cluster version 1 (0.0.1), which cannot read all that others write; stop it, and start it with a program of the version that the others have"
            ]
        );
    }

    #[test]
    fn a_broker_that_cannot_write_its_files_is_told_with_why_and_what_to_do() {
        let mut brokers = brokers(&[v1::BrokerState::Normal; 2]);
        brokers[1].cannot_write = Some("its disk is full".into());
        let found = health(&brokers, &[], (0, 0));
        assert_eq!(
            found.summary,
            "NOT HEALTHY: broker 2 cannot write its own files, and others own what it owned: its disk is full; free space on its disk, or mend it"
        );
    }

    #[test]
    fn a_broker_whose_certificate_is_refused_is_told_with_why_and_not_as_silent() {
        let mut refused = BrokerView::new(v1::ClusterBroker {
            id: 1,
            state: v1::BrokerState::Joining.into(),
            refused: "by brokers 2, 3: it has expired".into(),
            ..Default::default()
        });
        refused.silenced("TLS: it has expired".into());
        let unreachable = v1::PeerDescription {
            id: 1,
            unreachable: "no answer".into(),
            ..Default::default()
        };
        let told = ComparedView::new(
            2,
            Ok(v1::DescribeBrokerResponse {
                broker_id: 2,
                cluster: Some(v1::ClusterDescription {
                    peers: vec![unreachable],
                    ..Default::default()
                }),
                ..Default::default()
            }),
        );
        let found = health(&[refused], &[told], (0, 0));
        assert_eq!(
            found.summary,
            "NOT HEALTHY: broker 1 serves nobody: its certificate is refused by brokers 2, 3: it has expired; put another certificate into the file of its tls.certificate, it is taken without a restart"
        );
    }

    #[test]
    fn each_problem_names_its_object_and_what_to_do() {
        use v1::BrokerState::{Gone, Normal};
        let mut brokers = brokers(&[Normal, Gone, Normal]);
        brokers[2].silenced("nobody listens there".into());
        let unreachable = |id| v1::PeerDescription {
            id,
            unreachable: "no answer".into(),
            ..Default::default()
        };
        let still = v1::Trouble {
            stream: "clicks".into(),
            streamlet: 4,
            lane: Some(1),
            reason: "its bytes are awaited at its replicas, missing at broker 3".into(),
            lasted_ms: Some(7_900),
        };
        let told = ComparedView::new(
            1,
            Ok(v1::DescribeBrokerResponse {
                broker_id: 1,
                troubles: vec![still],
                troubles_total: 1,
                cluster: Some(v1::ClusterDescription {
                    peers: [2, 3].map(unreachable).into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
        );
        let cut = told.problems(&[2]);
        let cut = cut.last().map(Problem::text).unwrap_or_default();
        assert!(
            cut.starts_with("broker 1 does not reach broker 3: no answer"),
            "{cut}"
        );
        let found = health(&brokers, &[told], (3, 4));
        assert!(!found.healthy);
        let objects: Vec<_> = found.problems.iter().map(|one| &*one.object).collect();
        let still = "stream clicks streamlet 4 lane 1";
        let groups = ["4 closed groups", "3 closed groups"];
        assert_eq!(
            objects,
            ["broker 2", "broker 3", still, groups[0], groups[1]]
        );
        assert!(
            found
                .summary
                .starts_with("NOT HEALTHY, 5 problems: broker 2 is gone"),
            "{}",
            found.summary
        );
        let others = found.others().join("\n");
        assert!(
            others.contains("10.0.0.3:7600: nobody listens there; see"),
            "{others}"
        );
        assert!(
            others.contains("for 7 s: its bytes are awaited"),
            "{others}"
        );
        assert!(found.problems.iter().all(|one| !one.advice.is_empty()));
    }
}
