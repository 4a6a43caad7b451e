//! Copies that are being built while something else happens to their group or to their broker.

use std::time::Duration;

use kera_records::{Transaction, Write};
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::jobs::JobConfig;
use kera_replication::recovery::Unclean;
use kera_replication::transport::sim::MemoryFate;

use crate::jobs::{bytes, closed, jobs, record};
use crate::suite::scenario::streamlet;
use crate::suite::{Stage, busy};
use crate::{Case, OWNER, Opened, another, case};

/// Jobs so slow that there is time to do something in the middle.
fn slow(length: u64) -> JobConfig {
    JobConfig {
        bytes_per_second: length / 10,
        lost_after: Duration::ZERO,
        ..busy()
    }
}

/// The broker that has no copy of the group.
fn without(case: &Case, group: &Opened) -> BrokerId {
    let holders = group.0.holders();
    let nodes = case.stage.nodes().into_iter();
    let mut without = nodes.filter(|node| holders.iter().all(|h| h.broker != *node));
    without.next().expect("one that has none")
}

async fn until_built_in_part(case: &Case, at: BrokerId, copy: CopyId) {
    while !case
        .copies_over(at)
        .await
        .iter()
        .any(|info| info.copy == copy)
    {
        case.wait(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_joining_broker_killed_before_it_is_whole_does_not_count() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, lost) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let joining = without(&case, &group);
        case.stage.kill(lost).await;
        let begun = jobs(&case, &primary, &recovered, slow(before.length));
        let round = begun.clone();
        case.stage
            .runtime(OWNER)
            .spawn(Box::pin(async move { round.round().await }));
        until_built_in_part(&case, joining, copy).await;
        case.stage.kill(joining).await;
        case.wait(Duration::from_secs(20)).await;
        assert_eq!(record(&case, copy), before, "half a copy is recorded");

        // It comes back with the half that it has.
        case.stage.start(joining, MemoryFate::Kept).await;
        let whole = bytes(&case, OWNER, copy, before.length).await;
        let again = jobs(
            &case,
            &primary,
            &recovered,
            JobConfig {
                lost_after: Duration::ZERO,
                ..busy()
            },
        );
        for _ in 0..5 {
            again.round().await;
        }
        let after = record(&case, copy);
        assert!(
            after.copies.iter().any(|h| h.broker == joining),
            "{after:?}"
        );
        assert_eq!(bytes(&case, joining, copy, before.length).await, whole);
    });
}

#[test]
fn a_group_trimmed_while_it_is_copied_does_not_come_back() {
    case(|case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let group = closed(&case, &lane).await;
        let (copy, lost) = (group.0.id(), another(&group));
        let before = record(&case, copy);
        let target = without(&case, &group);
        case.stage.kill(lost).await;
        let begun = jobs(&case, &primary, &recovered, slow(before.length));
        let round = begun.clone();
        case.stage
            .runtime(OWNER)
            .spawn(Box::pin(async move { round.round().await }));
        until_built_in_part(&case, target, copy).await;
        let found = case.stage.look();
        let record = found.groups.iter().find(|r| CopyId::of(r) == copy);
        let revision = record.expect("it is recorded").revision;
        let delete = Write::delete_group(streamlet().group(copy.group), revision);
        let trim = Transaction::of_groups(streamlet(), recovered.epoch, [delete]);
        let trimmed = case.stage.records(OWNER).try_commit(trim).await;
        trimmed.expect("the owner trims");
        case.wait(Duration::from_secs(20)).await;
        let again = jobs(&case, &primary, &recovered, busy());
        case.stage.start(lost, MemoryFate::Kept).await;
        for _ in 0..5 {
            again.round().await;
            case.wait(Duration::from_millis(100)).await;
        }
        let recorded = case.stage.look().groups;
        assert!(
            recorded.iter().all(|r| CopyId::of(r) != copy),
            "{recorded:?}"
        );
        for node in case.stage.nodes() {
            let copies = case.copies_over(node).await;
            assert!(
                copies.iter().all(|info| info.copy != copy),
                "{node} keeps what nobody records: {copies:?}"
            );
        }
    });
}
