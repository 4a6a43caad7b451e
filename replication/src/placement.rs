//! Which brokers may hold copies of one group together: not those of one machine, unless that is
//! allowed, since a machine fails as a whole; and rather those of different racks.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::BrokerId;

/// Where brokers run. A broker of which nothing is known counts as a machine of its own.
///
/// ```
/// use kera_replication::{ids::BrokerId, placement::Placement};
/// let host = |n: u32, name: &str| (BrokerId(n), name.to_owned());
/// let hosts = [host(1, "alpha"), host(2, "alpha"), host(3, "beta")];
/// let placement = Placement::new(hosts, false);
/// let mut order = vec![BrokerId(2), BrokerId(3)];
/// // Broker 2 shares a machine with broker 1, which has a copy already.
/// assert_eq!(placement.take(&mut order, &[BrokerId(1)], 2), [BrokerId(3)]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    hosts: BTreeMap<BrokerId, String>,
    racks: BTreeMap<BrokerId, String>,
    allow_same_host: bool,
}

impl Placement {
    /// Brokers and their machines; `allow_same_host` lets one machine hold several copies of a group,
    /// where no other machine is left.
    pub fn new(hosts: impl IntoIterator<Item = (BrokerId, String)>, allow_same_host: bool) -> Self {
        Self {
            hosts: hosts.into_iter().collect(),
            racks: BTreeMap::new(),
            allow_same_host,
        }
    }

    /// Says in which racks, or zones, brokers stand. One of which nothing is known counts as a rack of
    /// its own.
    #[must_use]
    pub fn with_racks(mut self, racks: impl IntoIterator<Item = (BrokerId, String)>) -> Self {
        self.racks = racks.into_iter().collect();
        self
    }

    /// The machine of a broker, if it is known.
    pub fn host(&self, broker: BrokerId) -> Option<&str> {
        self.hosts.get(&broker).map(String::as_str)
    }

    /// True if both are known to run on one machine.
    pub fn same_host(&self, a: BrokerId, b: BrokerId) -> bool {
        a == b || self.host(a).is_some_and(|host| self.host(b) == Some(host))
    }

    fn same_rack(&self, a: BrokerId, b: BrokerId) -> bool {
        a == b
            || self
                .racks
                .get(&a)
                .is_some_and(|rack| self.racks.get(&b) == Some(rack))
    }

    /// Takes up to `count` brokers from the front of `order` that may hold copies beside each other
    /// and beside `with`: first from racks that have none, then from machines that have none, then, if
    /// that is allowed, from the others. Who may not stays in `order`, in case one of those taken does
    /// not answer.
    pub fn take(
        &self,
        order: &mut Vec<BrokerId>,
        with: &[BrokerId],
        count: usize,
    ) -> Vec<BrokerId> {
        let mut taken: Vec<BrokerId> = Vec::new();
        let mut take = |order: &mut Vec<BrokerId>, apart: &dyn Fn(BrokerId, BrokerId) -> bool| {
            order.retain(|candidate| {
                let mut others = with.iter().chain(&taken);
                let fits = taken.len() < count && others.all(|other| apart(*other, *candidate));
                if fits {
                    taken.push(*candidate);
                }
                !fits
            });
        };
        take(order, &|a, b| {
            !self.same_host(a, b) && !self.same_rack(a, b)
        });
        take(order, &|a, b| !self.same_host(a, b));
        if self.allow_same_host {
            take(order, &|a, b| a != b);
        }
        taken
    }

    /// The most copies that a group can have at `brokers`.
    pub fn most_copies(&self, brokers: &[BrokerId]) -> usize {
        if self.allow_same_host {
            return brokers.iter().collect::<BTreeSet<_>>().len();
        }
        let places = brokers.iter().map(|b| self.host(*b).ok_or(b));
        places.collect::<BTreeSet<_>>().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brokers(numbers: &[u32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    fn placement(allow_same_host: bool) -> Placement {
        let hosts = [(1, "a"), (2, "a"), (3, "b"), (4, "b")];
        let hosts = hosts.map(|(n, host)| (BrokerId(n), host.to_owned()));
        Placement::new(hosts, allow_same_host)
    }

    #[test]
    fn one_machine_holds_one_copy() {
        let placement = placement(false);
        let mut order = brokers(&[1, 2, 3, 4, 5]);
        assert_eq!(placement.take(&mut order, &[], 3), brokers(&[1, 3, 5]));
        assert_eq!(order, brokers(&[2, 4]), "they may stand in for 1 and 3");
        let mut again = order.clone();
        assert!(placement.take(&mut again, &brokers(&[1, 3]), 1).is_empty());
        // Broker 3 did not answer, so its machine has no copy.
        assert_eq!(
            placement.take(&mut order, &brokers(&[1, 5]), 1),
            brokers(&[4])
        );
        assert_eq!(placement.most_copies(&brokers(&[1, 2, 3, 4, 5])), 3);
    }

    #[test]
    fn other_racks_come_first() {
        let racks = [(1, "east"), (2, "east"), (3, "east"), (4, "west")];
        let racks = racks.map(|(n, rack)| (BrokerId(n), rack.to_owned()));
        let placement = Placement::default().with_racks(racks);
        let mut order = brokers(&[1, 2, 3, 4]);
        assert_eq!(placement.take(&mut order, &[], 3), brokers(&[1, 4, 2]));
        assert_eq!(order, brokers(&[3]));
        // Of broker 5 nothing is known.
        let mut order = brokers(&[2, 5]);
        assert_eq!(placement.take(&mut order, &brokers(&[1]), 1), brokers(&[5]));
    }

    #[test]
    fn where_it_is_allowed_other_machines_still_come_first() {
        let placement = placement(true);
        let mut order = brokers(&[1, 2, 3, 4]);
        assert_eq!(placement.take(&mut order, &[], 3), brokers(&[1, 3, 2]));
        assert_eq!(order, brokers(&[4]));
        assert_eq!(
            placement.take(&mut order, &brokers(&[1, 3, 2]), 2),
            brokers(&[4])
        );
        assert_eq!(placement.most_copies(&brokers(&[1, 2, 3, 4])), 4);
    }

    #[test]
    fn brokers_of_which_nothing_is_known_count_one_by_one() {
        let placement = Placement::default();
        let mut order = brokers(&[7, 8, 9]);
        assert_eq!(placement.take(&mut order, &[], 2), brokers(&[7, 8]));
        assert_eq!(placement.most_copies(&brokers(&[7, 8, 9])), 3);
        assert!(!placement.same_host(BrokerId(7), BrokerId(8)));
    }
}
