//! A broker whose data directory is new, among recorded ones of which none is alive.
//!
//! Who has been in the cluster knows how far its metadata store was, and so whether it was put back to an older state since.
//! A new directory knows nothing of that. Where others are alive, they have told of it. Where none is, this broker takes what it finds for an older
//! state: what it would append otherwise may get ordinals and ids that others' files have already.
//!
//! The lease of a broker that has ended lasts until its time is over, and in a store that was put back that time begins anew. So
//! whoever seems to be alive counts once it takes a connection, or has outlasted its lease. One that is alive with another data
//! directory than the one that is recorded is as new as this one.

use std::time::{Duration, Instant};

use kera_metadata::{BrokerRecord, LiveBroker, Living, MetadataError, Role};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use super::joining::Joined;
use crate::store_dir::StoreDir;

/// A lease that nobody keeps alive is over after so many times its length.
const LEASES: u32 = 2;
/// How often those that seem to be alive are tried.
const TRIED_EVERY: Duration = Duration::from_millis(200);
/// After this it is told what is waited for.
const SILENCE: Duration = Duration::from_secs(2);

/// Whether this broker, which has its place in the store and is not recorded yet with this directory, is new and alone. Blocks,
/// for [`LEASES`] leases at most, and is to be called within a tokio runtime.
///
/// # Errors
/// The store's.
pub(crate) fn is_alone(
    joined: &Joined,
    dir: &StoreDir,
    brokers: &[BrokerRecord],
    lease: Duration,
) -> Result<bool, MetadataError> {
    let mine = dir.incarnation().store_id;
    let is_recorded = brokers
        .iter()
        .any(|b| (b.id, b.store_id) == (joined.id, mine));
    let mut others = brokers
        .iter()
        .filter(|b| b.id != joined.id && b.role == Role::Broker);
    if !dir.is_new() || is_recorded || others.next().is_none() {
        return Ok(false);
    }
    if joined.store.streamlets()?.is_empty() {
        return Ok(false);
    }
    Ok(!Handle::current().block_on(is_any_alive(joined, brokers, lease * LEASES)))
}

async fn is_any_alive(joined: &Joined, brokers: &[BrokerRecord], patience: Duration) -> bool {
    let mut living = joined.store.living();
    let (begun, mut is_told) = (Instant::now(), false);
    loop {
        let others = known(&living.borrow_and_update(), joined.id, brokers);
        if others.is_empty() {
            return false;
        }
        for other in &others {
            if takes_connections(other).await {
                return true;
            }
        }
        if begun.elapsed() >= patience {
            return true;
        }
        if !is_told && begun.elapsed() >= SILENCE {
            is_told = true;
            let others: Vec<_> = others.iter().map(|other| other.id).collect();
            tracing::info!(
                brokers = ?others,
                "this data directory is new. Brokers that know the cluster hold leases and take no connections: waiting until they do, or the leases end"
            );
        }
        let _ = tokio::time::timeout(TRIED_EVERY, living.changed()).await;
    }
}

/// Who is alive with the directory that is recorded, of other brokers.
fn known(living: &Living, me: u32, brokers: &[BrokerRecord]) -> Vec<LiveBroker> {
    let is_known = |live: &&LiveBroker| {
        let store_id = live.incarnation.store_id;
        let mut records = brokers.iter();
        let is_recorded = records.any(|b| (b.id, b.store_id) == (live.id, store_id));
        is_recorded && live.id != me && live.role == Role::Broker
    };
    living.values().filter(is_known).cloned().collect()
}

async fn takes_connections(other: &LiveBroker) -> bool {
    let connected = TcpStream::connect(other.address.as_str());
    matches!(
        tokio::time::timeout(TRIED_EVERY, connected).await,
        Ok(Ok(_))
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kera_metadata::Incarnation;
    use uuid::Uuid;

    use super::*;

    fn incarnation(store: u128) -> Incarnation {
        Incarnation {
            store_id: Uuid::from_u128(store),
            boot_id: Uuid::from_u128(9),
        }
    }

    #[test]
    fn whoever_is_alive_with_another_directory_knows_no_more() {
        let recorded = [(1, 11), (2, 12), (3, 13)].map(|(id, store)| BrokerRecord {
            id,
            store_id: Uuid::from_u128(store),
            boot_id: Uuid::nil(),
            address: String::new(),
            started_ms: 0,
            version: String::new(),
            role: Role::Broker,
            restore: 0,
            revision: 0,
        });
        // The second is as new as the third, which asks; the fourth is not recorded.
        let living = [(1, 11), (2, 22), (3, 33), (4, 14)];
        let living = living.map(|(id, store)| (id, LiveBroker::new(id, incarnation(store))));
        let living = Living::new(BTreeMap::from(living));
        let found = known(&living, 3, &recorded);
        assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), [1]);
    }
}
