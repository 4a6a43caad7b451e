//! Groups whose only replica is their owner's file: an append whose bytes another one writes is acknowledged too.
//!
//! An append publishes its bytes and then says so. Between the two another append may have the turn at the file, and
//! writes those bytes along; then nothing is left to write for the first one, and no other replica comes by later.

use std::sync::Arc;
use std::time::Duration;

use kera_log_segments::ship::Shipping;

use crate::bent::{self, Gate, Outcome};
use crate::own::{plan, take_over};
use crate::suite::Stage;
use crate::{BRIEFLY, OWNER, Opened, open, planned};

/// Appends a batch that another append writes before this one says that it is there; `meanwhile` comes between the two.
async fn written_by_another(group: &Opened, meanwhile: impl AsyncFnOnce()) -> u64 {
    let batch = group.1.append(1, 20).expect("room");
    group.1.write_out();
    meanwhile().await;
    group.0.grew();
    // Its own turn finds nothing to write.
    group.1.write_out();
    batch.end
}

#[test]
fn an_append_whose_bytes_another_one_wrote_is_acknowledged() {
    planned(plan(1, 1), |case| async move {
        let (primary, recovered) = take_over(&case).await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        while group.0.holders().is_empty() {
            case.wait(Duration::from_millis(1)).await;
        }
        let end = written_by_another(&group, async || {}).await;
        let acknowledged = group.1.acknowledged(&lane, end, BRIEFLY).await;
        acknowledged.expect("its one replica has it");
    });
}

#[test]
fn an_append_whose_bytes_were_written_before_the_groups_record_is_acknowledged() {
    planned(plan(1, 1), |case| async move {
        let gate = Gate::default();
        let held = gate.clone();
        let records = bent::records(&case, OWNER, move |_| Outcome::Held(held.clone()));
        let primary = case.primary_over(OWNER, case.stage.transport(OWNER), records);
        let own = case.stage.own(OWNER).expect("it has files");
        let primary = Arc::new(primary.with_own(own));
        let recovered = case.recover_as(&primary, kera_replication::recovery::Unclean::Wait);
        let recovered = recovered.await;
        let lane = case.lane(&primary, &recovered);
        let group = open(&lane, 0);
        let end = written_by_another(&group, async || {
            gate.reached(&case).await;
            assert!(group.0.holders().is_empty(), "it is not recorded yet");
            gate.open();
            while group.0.holders().is_empty() {
                case.wait(Duration::from_millis(1)).await;
            }
        });
        let end = end.await;
        let acknowledged = group.1.acknowledged(&lane, end, BRIEFLY).await;
        acknowledged.expect("its one replica has it");
    });
}
