//! Whoever has a replica built looks where it ends, whatever it is built for.

use std::sync::Arc;
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::jobs::JobConfig;
use kera_replication::primary::{Lane, Primary};
use kera_replication::recovery::{RecoverSpec, Unclean, recover};
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::{Reply, Request, TransportRef};

use crate::jobs::{closed, jobs, record};
use crate::suite::Stage;
use crate::suite::scenario::streamlet;
use crate::trouble::{Bent, Fate};
use crate::{Case, OWNER, Opened, append, case, open};

/// The broker at which everything that is built seems to end elsewhere.
const WRONG: BrokerId = BrokerId(3);

/// A broker among four.
fn primary(case: &Case, of: BrokerId) -> Arc<Primary> {
    let primary = case.primary_over(of, network(case, of), case.stage.records(of));
    let peers = (0..4).map(BrokerId).collect();
    primary.set_peers(peers, (*primary.placement()).clone(), Vec::new());
    Arc::new(primary)
}

fn network(case: &Case, of: BrokerId) -> TransportRef {
    Arc::new(Bent {
        inner: case.stage.transport(of),
        clock: case.stage.sim.runtime(None),
        fate: |to, request: &Request| match request {
            Request::Flush {
                length,
                closed: true,
                ..
            } if to == WRONG && *length > 0 => Fate::Answered(Reply::Flushed {
                length: *length,
                end_ordinal: 1000,
            }),
            _ => Fate::Usual,
        },
    })
}

/// An owner over that network, with a group that is open at itself, 1 and 2.
async fn opened(case: &Case) -> (Arc<Lane>, Opened) {
    let primary = primary(case, OWNER);
    let recovered = case.recover_as(&primary, Unclean::Wait).await;
    let lane = case.lane(&primary, &recovered);
    let group = open(&lane, 0);
    append(&lane, &group, 1).await.expect("all is well");
    let holders = group.0.holders();
    assert!(holders.iter().all(|holder| holder.broker != WRONG));
    (lane, group)
}

fn holders(case: &Case, copy: CopyId) -> Vec<BrokerId> {
    let recorded = record(case, copy);
    recorded.copies.iter().map(|h| h.broker).collect()
}

#[test]
fn a_close_names_no_replica_that_was_built_and_ends_elsewhere() {
    case(|case| async move {
        let (_lane, group) = opened(&case).await;
        for broker in [BrokerId(1), BrokerId(2)] {
            case.stage.cut(OWNER, broker);
        }
        group.1.append(2, 20).expect("room");
        group.1.freeze();
        group.0.froze();
        case.wait(Duration::from_secs(5)).await;
        assert!(!group.0.is_closed(), "{:?}", holders(&case, group.0.id()));
        case.stage.heal();
        case.wait(Duration::from_secs(20)).await;
        assert!(group.0.is_closed());
        let named = holders(&case, group.0.id());
        assert!(named.len() > 1 && !named.contains(&WRONG), "{named:?}");
    });
}

#[test]
fn a_recovery_names_no_replica_that_was_built_and_ends_elsewhere() {
    case(|case| async move {
        let (lane, group) = opened(&case).await;
        let copy = group.0.id();
        drop((lane, group));
        case.stage.kill(OWNER).await;
        case.stage.kill(BrokerId(2)).await;
        let next = BrokerId(1);
        let primary = primary(&case, next);
        let spec = RecoverSpec {
            streamlet: streamlet(),
            min_insync_replicas: 2,
            unclean: Unclean::Wait,
            starts: Default::default(),
        };
        let stopped = recover(&primary, &spec).await.expect("a recovery");
        assert!(stopped.lanes[0].stopped.is_some(), "{stopped:?}");
        case.stage.start(BrokerId(2), MemoryFate::Kept).await;
        let recovered = recover(&primary, &spec).await.expect("a recovery");
        assert_eq!(recovered.lanes[0].stopped, None);
        assert_eq!(holders(&case, copy), [next, BrokerId(2)]);
    });
}

#[test]
fn a_group_gets_no_replica_that_was_built_and_ends_elsewhere() {
    case(|case| async move {
        let primary = primary(&case, OWNER);
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let group = closed(&case, &case.lane(&primary, &recovered)).await;
        case.stage.kill(BrokerId(2)).await;
        let config = JobConfig {
            lost_after: Duration::ZERO,
            ..JobConfig::default()
        };
        let jobs = jobs(&case, &primary, &recovered, config);
        for _ in 0..3 {
            jobs.round().await;
        }
        assert!(jobs.stats().failed > 0, "it was not tried: no test");
        let named = holders(&case, group.0.id());
        assert!(!named.contains(&WRONG), "{named:?}");
    });
}
