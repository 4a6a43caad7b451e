//! Transactions in a cluster: partitions, groups and coordinators at several brokers, which are killed between the steps
//! of transactions.

use kera_testkit::clock::Clock;
use kera_testkit::etcd::Etcd;

use crate::common::copying::{self, Copying, Moment};
use crate::common::{self, Kind, Session};
use crate::nodes::{BROKERS, Nodes};

#[test]
fn what_is_copied_by_transactions_is_there_once_whoever_is_killed() {
    const TEST: &str = "what_is_copied_by_transactions_is_there_once_whoever_is_killed";
    is_copied_once(TEST, Kind::Librdkafka);
}

/// A client whose transactions are of version 2: partitions and groups join at one broker what another one decides.
#[test]
fn what_is_copied_by_transactions_of_version_2_is_there_once_whoever_is_killed() {
    const TEST: &str =
        "what_is_copied_by_transactions_of_version_2_is_there_once_whoever_is_killed";
    is_copied_once(TEST, Kind::Java);
}

fn is_copied_once(test: &str, kind: Kind) {
    if let Some(reason) = Etcd::lacking().or_else(Clock::lacking) {
        return common::machine::skip(test, &reason);
    }
    if !kind.is_here(test) {
        return;
    }
    let mut nodes = Nodes::start();
    let bootstrap = nodes.bootstrap();
    let mut client = Session::at(kind, kind.open(), &bootstrap);
    let (from, to) = ("numbers", "numbers-copy");
    for topic in [from, to] {
        client.create_topic(topic, 2, &[]);
    }
    let total = 400;
    let ends = copying::fill(&mut client, from, total);
    let (mut transactions, mut kills) = (0, 0);
    let mut copying = Copying {
        client: &mut client,
        from,
        to,
        group: "copiers",
        ends,
    };
    copying.run(|moment| {
        transactions += usize::from(moment == Moment::BeforeCommit);
        let wanted = match kills % 2 {
            0 => Moment::BeforeCommit,
            _ => Moment::AfterCommit,
        };
        // Each of them once: one owns the copy's partitions, one decides, one has the group.
        if kills < BROKERS && moment == wanted {
            nodes.kill(kills);
            nodes.restart(kills);
            kills += 1;
        }
    });
    let copied = copying::read(&mut client, "judge", to, total);
    let expected: Vec<String> = (0..total).map(|n| n.to_string()).collect();
    assert_eq!(copied, expected, "each once");
    assert!(kills > 0, "in {transactions} transactions");
    nodes.all_run();
}
