//! Backups take no part in what is written to them.

use std::sync::Arc;

use kera_replication::ids::BrokerId;
use kera_replication::primary::Config;
use kera_replication::records::MemoryRecords;

use crate::child::Backup;
use crate::machine::{self, resume, schedule, stop};
use crate::owner::{LARGE, Owner};
use crate::suite::scenario::streamlet;

const APPENDS: u64 = 10_000;
/// Appends under way at once.
const AT_ONCE: u64 = 50;

#[test]
fn a_stopped_backup_takes_ten_thousand_appends_and_no_processor_time() {
    let Some(address) = machine::address("a_stopped_backup_takes_ten_thousand_appends") else {
        return;
    };
    let backups = Backup::three(address);
    let peers: Vec<_> = backups.iter().map(|b| (b.id, b.address.clone())).collect();
    machine::runtime().block_on(async {
        let records = MemoryRecords::default();
        records.create(streamlet());
        // The group's buffers are reserved with its first append, which is a control call; those after
        // it need none.
        let config = Config {
            first_buffer_bytes: LARGE.segment_size,
            ..Config::default()
        };
        let records = Arc::new(records);
        let mut owner = Owner::take(BrokerId(9), &peers, records, config, LARGE).await;
        let first = owner.append(0);
        owner.acknowledged(&first).await.expect("all is well");
        assert_eq!(first.0.0.holders().len(), 3);

        let stopped = &backups[1];
        let process = stopped.process.id();
        stop(process);
        let before = schedule(process);
        let mut last = None;
        for id in 1..=APPENDS {
            let appended = owner.append(id);
            if id % AT_ONCE == 0 {
                let acknowledged = owner.acknowledged(&appended).await;
                acknowledged.expect("a card needs no process");
            }
            last = Some(appended);
        }
        assert_eq!(schedule(process), before, "it took part");
        resume(process);

        let ((set, _), _) = last.expect("appends");
        assert_eq!(set.id(), first.0.0.id(), "one group took them all");
        let (_, source) = owner.group();
        let wanted = source.bytes();
        assert_eq!(source.batches().len() as u64, APPENDS + 1);
        for backup in &backups {
            let found = owner.read(backup.id, set.id(), wanted.len()).await;
            assert!(found == wanted, "{} holds other bytes", backup.id);
        }
        // It is no proof if the figures never move.
        assert_ne!(schedule(process), before, "the kernel does not count");
    });
}
