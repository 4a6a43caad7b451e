//! Several brokers of one kind that form a system.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Contender, Durability, Scenario, Work};

/// Most brokers of a cluster: all of them share one machine.
pub(super) const MOST_BROKERS: u32 = 4;

/// How many brokers serve a case, and how many of them have each record.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub brokers: u32,
    /// Copies of each record, one of them the owner's or leader's.
    pub replicas: u32,
}

impl Cluster {
    /// Copies that must be left for a record to be taken: at Kera `min_insync_replicas`, at Kafka
    /// `min.insync.replicas`. Where an acknowledgement is to mean that so many disks have flushed, all
    /// must be left: with fewer a broker that falls behind would go unnoticed, and its disk count no more.
    pub(crate) fn least_copies(&self, durability: Durability) -> u32 {
        match durability {
            Durability::Synced => self.replicas,
            Durability::Memory | Durability::Written => self.replicas.min(2),
        }
    }
}

/// Every combination of a scenario's numbers of brokers and of copies; one broker that is no cluster
/// if it names none.
pub(super) fn expand(scenario: &Scenario) -> Vec<Option<Cluster>> {
    if scenario.brokers.is_empty() {
        return vec![None];
    }
    let mut all = Vec::new();
    for &brokers in &scenario.brokers {
        for &replicas in &scenario.replicas {
            all.push(Some(Cluster { brokers, replicas }));
        }
    }
    all
}

impl Scenario {
    pub(super) fn check_cluster(&self) -> Result<()> {
        ensure!(!self.replicas.is_empty(), "replicas is empty");
        if self.brokers.is_empty() {
            ensure!(self.replicas == [1], "replicas needs brokers");
            return Ok(());
        }
        ensure!(
            self.brokers.iter().all(|n| (1..=MOST_BROKERS).contains(n)),
            "brokers are 1 to {MOST_BROKERS}"
        );
        let fewest = self.brokers.iter().min().copied().unwrap_or(1);
        ensure!(
            self.replicas.iter().all(|n| (1..=fewest).contains(n)),
            "replicas are 1 to the fewest brokers, {fewest}"
        );
        if self.work == Work::Start {
            ensure!(
                self.brokers == [1] && self.closed_groups.is_some(),
                "work = \"start\" takes closed_groups and one broker with its records in etcd"
            );
        }
        ensure!(
            matches!(
                self.work,
                Work::Produce | Work::Consume | Work::Latency | Work::Both | Work::Start
            ),
            "brokers are not for work = \"{}\"",
            self.work.name()
        );
        for contender in &self.contenders {
            ensure!(
                contender.has_clusters(),
                "there is no cluster of {} here",
                contender.name()
            );
        }
        Ok(())
    }
}

impl Contender {
    /// True if the harness can start several of its brokers as one system.
    pub(crate) fn has_clusters(self) -> bool {
        matches!(self, Self::Kafka | Self::Kera | Self::KeraNative)
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::{Broker, Case, Cases, Contender, Durability, File};

    const ONE: &str = "title = \"T\"\ncommand = \"c\"\n[[scenario]]\nname = \"b\"\nwork = \"both\"\n\
        contenders = [\"kafka\", \"kera-native\"]\nkeys = \"none\"\nbatch = [\"16KiB\"]\n\
        linger_ms = [1]\npartitions = [12]\nseconds = 1\nbrokers = [3, 4]\nreplicas = [1, 3]\n";

    fn problem(from: &str, to: &str) -> String {
        let text = ONE.replace(from, to);
        format!("{:#}", File::parse(&text).expect_err("the file is wrong"))
    }

    #[test]
    fn brokers_and_copies_are_dimensions() {
        let cases = Cases::of(&File::parse(ONE).unwrap(), 1).0;
        let names: Vec<_> = cases.iter().map(Case::name).collect();
        assert_eq!(cases.len(), 4);
        assert!(names[1].ends_with(", brokers=3, replicas=3"), "{names:?}");
        assert_eq!(cases[1].broker(Contender::Kafka), Broker::KafkaCluster(3));
        assert_eq!(
            cases[2].broker(Contender::KeraNative),
            Broker::KeraCluster(4)
        );
        let cluster = cases[1].cluster.unwrap();
        assert_eq!(cluster.replicas, 3);
        assert_eq!(cluster.least_copies(Durability::Written), 2);
        assert_eq!(cluster.least_copies(Durability::Synced), 3);
        // Copies take room, too.
        let produce = ONE
            .replace("\"both\"", "\"produce\"")
            .replace("seconds = 1", "records = 10");
        let cases = Cases::of(&File::parse(&produce).unwrap(), 1).0;
        assert_eq!(cases[1].bytes(), 3 * cases[0].bytes());
    }

    #[test]
    fn clusters_of_both_kinds_flush_before_they_acknowledge() {
        let text = ONE.replace(
            "brokers = [3, 4]",
            "durability = [\"synced\"]\nbrokers = [3]",
        );
        let cases = Cases::of(&File::parse(&text).unwrap(), 1).0;
        let all = cases[0].able().collect::<Vec<_>>();
        assert_eq!(all, [Contender::Kafka, Contender::KeraNative]);
        let setting = |one| Durability::Synced.setting(cases[0].broker(one));
        assert_eq!(setting(Contender::Kafka), Some(("flush.messages", "1")));
        assert_eq!(setting(Contender::Kera), Some(("kera.ack", "synced")));
    }

    #[test]
    fn clusters_that_cannot_be_are_refused() {
        assert!(problem("replicas = [1, 3]", "replicas = [4]").contains("fewest brokers, 3"));
        assert!(problem("[3, 4]", "[5]").contains("brokers are 1 to 4"));
        assert!(problem("brokers = [3, 4]", "").contains("replicas needs brokers"));
        assert!(problem("\"kafka\"", "\"iggy\"").contains("no cluster of iggy"));
        let work = ("\"both\"", "\"trickle\"\nrate = [10]");
        assert!(problem(work.0, work.1).contains("brokers are not for"));
    }
}
