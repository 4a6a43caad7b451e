//! Two machines, of which one is powered off. `make test-rdma` runs each of these tests in a machine
//! of its own.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use kera_replication::ids::BrokerId;
use kera_replication::primary::Config;
use kera_replication::records::MemoryRecords;
use kera_replication::transport::{Request, Transport};

use crate::child::{Backup, serve_here};
use crate::machine::{self, PEER};
use crate::owner::{Owner, transport};
use crate::suite::scenario::streamlet;

/// Where the backup of the machine that is powered off listens.
const PORT: u16 = 7601;
/// Printed once the other machine may be powered off.
const UNDER_LOAD: &str = "UNDER LOAD: power the other machine off";
const VICTIM: BrokerId = BrokerId(3);

/// The machine that will be powered off: one backup, until then.
#[test]
fn victim() {
    if std::env::var_os(PEER).is_none() {
        return;
    }
    let Some(address) = machine::address("two::victim") else {
        return;
    };
    let dir = tempfile::tempdir_in("/dev/shm").expect("shared memory");
    serve_here(dir.path(), SocketAddr::new(address, PORT));
}

/// The machine that goes on: a primary and two backups.
#[test]
fn survivor() {
    let Ok(peer) = std::env::var(PEER) else {
        return;
    };
    let Some(address) = machine::address("two::survivor") else {
        return;
    };
    let peer: IpAddr = peer.parse().expect("an address");
    let backups = [Backup::start(1, address), Backup::start(2, address)];
    let mut peers: Vec<_> = backups.iter().map(|b| (b.id, b.address.clone())).collect();
    peers.push((VICTIM, SocketAddr::new(peer, PORT).to_string()));
    machine::runtime().block_on(async {
        let ways = transport(BrokerId(9), &peers);
        while ways.call(VICTIM, Request::Describe).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let records = MemoryRecords::default();
        records.create(streamlet());
        let records = Arc::new(records);
        let config = Config::default();
        let shape = crate::owner::LARGE;
        let mut owner = Owner::take(BrokerId(9), &peers, records.clone(), config, shape).await;
        let mut id = 0;
        // All of them, in the order in which they were acknowledged.
        let mut append = async |owner: &mut Owner| {
            let appended: Vec<_> = (id..id + 20).map(|id| owner.append(id)).collect();
            id += 20;
            for one in &appended {
                let acknowledged = owner.acknowledged(one).await;
                acknowledged.expect("two copies are enough");
            }
            id
        };
        for _ in 0..20 {
            append(&mut owner).await;
        }
        let (first, _) = owner.group();
        let names_victim = |set: &kera_replication::primary::ReplicaSet| {
            set.holders().iter().any(|holder| holder.broker == VICTIM)
        };
        assert!(names_victim(&first), "one copy lies at the other machine");
        println!("\n{UNDER_LOAD}");
        std::io::stdout().flush().expect("is said");

        // Appends go on all the while; each is acknowledged.
        let rolled = loop {
            append(&mut owner).await;
            let (now, _) = owner.group();
            if now.id() != first.id() && !now.holders().is_empty() {
                break now;
            }
        };
        assert!(!names_victim(&rolled), "the lane goes on without it");
        for _ in 0..20 {
            append(&mut owner).await;
        }
        let total = append(&mut owner).await;

        let (last, source) = owner.group();
        let length = source.end().address;
        let wanted = source.bytes();
        for holder in last.holders() {
            let found = owner.read(holder.broker, last.id(), length as usize).await;
            assert!(found == wanted, "{} holds other bytes", holder.broker);
        }
        // Somebody else finds all of it among those who are left.
        let successor = Owner::take(BrokerId(8), &peers, records, config, shape).await;
        let lane = &successor.recovered.lanes[0];
        assert_eq!(lane.next_ordinal, total, "{lane:?}");
        println!("{total} appends, {} groups", lane.groups.len());
    });
}
