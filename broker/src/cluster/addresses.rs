//! Addresses that brokers of one machine can give each other, and others cannot use: loopback leads every
//! machine to itself. Two brokers that name machines of their own and tell such an address would keep both
//! copies of a group on one of them.

use kera_metadata::{LiveBroker, Living};

use crate::config::is_of_every_machine;
use crate::error::BrokerError;

/// An address of a broker that leads others to themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Astray<'a> {
    /// The address.
    pub(super) address: &'a str,
    /// The keys that it comes from.
    pub(super) keys: &'static str,
}

/// The address at which brokers of other machines do not find `live`, if it tells one.
pub(super) fn astray(live: &LiveBroker) -> Option<Astray<'_>> {
    let told = [
        (
            &live.replication_address,
            "cluster.listen (--replication-listen) or cluster.advertise",
        ),
        (
            &live.address,
            "server.listen (--listen) or server.advertise",
        ),
    ];
    let mut told = told.into_iter();
    let found = told.find(|(address, _)| is_of_every_machine(address));
    found.map(|(address, keys)| Astray { address, keys })
}

/// True if both name the machine they run on, and it is not the same.
pub(super) fn elsewhere(one: &str, other: &str) -> bool {
    !one.is_empty() && !other.is_empty() && one != other
}

/// Whether `live` and those that live on other machines can reach each other, as far as that is told.
///
/// # Errors
/// [`BrokerError::Astray`] names who is to have another address, and the keys to set.
pub(super) fn check(live: &LiveBroker, living: &Living) -> Result<(), BrokerError> {
    let others = living.values().filter(|other| other.id != live.id);
    for other in others.filter(|other| elsewhere(&live.host, &other.host)) {
        for (of, seen_by) in [(live, other), (other, live)] {
            if let Some(Astray { address, keys }) = astray(of) {
                return Err(BrokerError::Astray {
                    broker: of.id,
                    host: of.host.clone(),
                    address: address.to_owned(),
                    keys,
                    other: seen_by.id,
                    other_host: seen_by.host.clone(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kera_metadata::Incarnation;
    use uuid::Uuid;

    use super::*;

    fn at(id: u32, host: &str, address: &str, replication: &str) -> LiveBroker {
        let incarnation = Incarnation {
            store_id: Uuid::from_u128(id.into()),
            boot_id: Uuid::nil(),
        };
        LiveBroker {
            host: host.into(),
            address: address.into(),
            replication_address: replication.into(),
            ..LiveBroker::new(id, incarnation)
        }
    }

    fn told(live: &LiveBroker, others: &[&LiveBroker]) -> Option<String> {
        let mut living = std::collections::BTreeMap::new();
        for one in others.iter().copied().chain([live]) {
            living.insert(one.id, one.clone());
        }
        let refused = check(live, &Arc::new(living)).err();
        refused.map(|error| error.to_string())
    }

    #[test]
    fn default_addresses_serve_one_machine_only() {
        let first = at(1, "a", "127.0.0.1:7600", "127.0.0.1:7601");
        let beside = at(2, "a", "127.0.0.1:7610", "127.0.0.1:7611");
        let far = at(3, "b", "10.0.0.3:7600", "10.0.0.3:7601");
        assert_eq!(told(&first, &[]), None);
        assert_eq!(told(&beside, &[&first]), None);
        let of_first = "broker 1 on a tells others the address 127.0.0.1:7601";
        for said in [told(&first, &[&far]), told(&far, &[&first, &beside])] {
            let said = said.expect("it is refused");
            assert!(said.contains(of_first), "{said}");
            assert!(said.contains("cluster.advertise"), "{said}");
        }
        // Copies would come, and no control call.
        let half = at(1, "a", "localhost:7600", "10.0.0.1:7601");
        let said = told(&half, &[&far]).expect("it is refused");
        assert!(said.contains("server.advertise"), "{said}");
        let every = at(1, "a", "10.0.0.1:7600", "0.0.0.0:7601");
        assert!(told(&every, &[&far]).is_some());
        let good = at(1, "a", "10.0.0.1:7600", "hosta:7601");
        assert_eq!(told(&good, &[&far]), None);
        // One that keeps no copies, or does not say where it runs.
        let silent = at(4, "", "127.0.0.1:7600", "");
        assert_eq!(told(&good, &[&far, &silent]), None);
    }
}
