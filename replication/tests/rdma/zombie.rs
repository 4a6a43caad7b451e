//! An owner that does not know that it is over.

use std::sync::Arc;

use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::primary::Config;
use kera_replication::records::MemoryRecords;

use crate::child::Backup;
use crate::machine;
use crate::owner::{LARGE, Owner};
use crate::suite::scenario::streamlet;
use crate::suite::test_group::Unacknowledged;

#[test]
fn a_zombie_acknowledges_nothing_and_writes_nowhere() {
    let Some(address) = machine::address("a_zombie_acknowledges_nothing_and_writes_nowhere") else {
        return;
    };
    let backups = Backup::three(address);
    let peers: Vec<_> = backups.iter().map(|b| (b.id, b.address.clone())).collect();
    machine::runtime().block_on(async {
        let records = MemoryRecords::default();
        records.create(streamlet());
        let (records, config) = (Arc::new(records), Config::default());
        let mut zombie = Owner::take(BrokerId(9), &peers, records.clone(), config, LARGE).await;
        for id in 0..20 {
            let appended = zombie.append(id);
            zombie.acknowledged(&appended).await.expect("all is well");
        }
        let (set, source) = zombie.group();
        let told = source.bytes();

        let owner = Owner::take(BrokerId(8), &peers, records, config, LARGE).await;
        let lane = &owner.recovered.lanes[0];
        let closed = lane.groups.first().expect("its group");
        let copy = &CopyId::of(closed);
        assert_eq!(*copy, set.id());
        assert_eq!(
            closed.length,
            told.len() as u64,
            "all that was acknowledged"
        );
        assert_eq!(lane.next_ordinal, 20);

        // It has heard nothing. Its writes are under way to cards that refuse them.
        let mut appended: Vec<_> = (20..40).map(|id| zombie.append(id)).collect();
        // That ends their group, and what is appended from then on goes into the next.
        while !source.is_frozen() {
            tokio::task::yield_now().await;
        }
        appended.extend((40..60).map(|id| zombie.append(id)));
        for one in &appended {
            let error = zombie.acknowledged(one).await.expect_err("it is over");
            assert!(matches!(error, Unacknowledged::Deposed(_)), "{error:?}");
        }
        let after = source.bytes().len().max(told.len() + 1000);
        for holder in &closed.copies {
            let found = owner.read(holder.broker, *copy, after).await;
            assert!(found[..told.len()] == told, "{}", holder.broker);
            let beyond = found[told.len()..].iter().any(|byte| *byte != 0);
            assert!(!beyond, "{} was written to after its seal", holder.broker);
        }
    });
}
