//! Brokers whose certificates the others refuse: they live, and nobody reaches them over TLS.

use std::collections::{BTreeMap, BTreeSet};

use kera_metadata::{LiveBroker, Role};

/// So many refuse a broker's certificate at the least. With one there would be no telling which of two is wrong.
const ACCUSERS: usize = 2;

/// A broker whose certificate the others refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Who refuses it.
    pub by: Vec<u32>,
    /// Why, as the first of them says.
    pub reason: String,
}

/// The brokers whose certificates the others refuse, by number.
///
/// * A broker is refused if more than half of the others refuse its certificate, and two brokers at least, itself
///   counted: one broker with a wrong file of authorities accuses in vain, also while others restart.
/// * A broker that refuses its own certificate has no say about others: its file of authorities may be what is wrong.
/// * If that leaves nobody, as where two refuse each other, those who have a say are not refused: somebody has to serve.
///
/// ```
/// use std::collections::BTreeMap;
/// use kera_controller::refused;
/// use kera_metadata::{Incarnation, LiveBroker};
/// use uuid::Uuid;
///
/// let incarnation = Incarnation { store_id: Uuid::nil(), boot_id: Uuid::nil() };
/// let mut living: BTreeMap<u32, LiveBroker> =
///     (1..=3).map(|id| (id, LiveBroker::new(id, incarnation))).collect();
/// living.get_mut(&2).unwrap().refuses.insert(1, "it has expired".into());
/// assert!(refused(&living).is_empty());
/// living.get_mut(&3).unwrap().refuses.insert(1, "it has expired".into());
/// assert_eq!(refused(&living)[&1].by, [2, 3]);
/// ```
pub fn refused(living: &BTreeMap<u32, LiveBroker>) -> BTreeMap<u32, Refused> {
    let brokers = || living.values().filter(|live| live.role == Role::Broker);
    if brokers().all(|live| live.refuses.is_empty()) {
        return BTreeMap::new();
    }
    let witnesses: Vec<&LiveBroker> = brokers()
        .filter(|live| !live.refuses.contains_key(&live.id))
        .collect();
    let mut found = BTreeMap::new();
    for broker in brokers() {
        let others = witnesses.iter().filter(|one| one.id != broker.id);
        let accuse = others.clone().filter_map(|one| {
            let reason = one.refuses.get(&broker.id)?;
            Some((one.id, reason))
        });
        let accuse: Vec<_> = accuse.collect();
        let Some((_, reason)) = accuse.first() else {
            continue;
        };
        let itself = usize::from(broker.refuses.contains_key(&broker.id));
        if 2 * accuse.len() > others.count() && accuse.len() + itself >= ACCUSERS {
            let refused = Refused {
                reason: (*reason).clone(),
                by: accuse.iter().map(|(id, _)| *id).collect(),
            };
            found.insert(broker.id, refused);
        }
    }
    let witnesses: BTreeSet<u32> = witnesses.into_iter().map(|one| one.id).collect();
    if witnesses.iter().all(|id| found.contains_key(id)) {
        found.retain(|id, _| !witnesses.contains(id));
    }
    found
}

#[cfg(test)]
mod tests {
    use kera_metadata::Incarnation;
    use uuid::Uuid;

    use super::*;

    /// Brokers 1 to `count`, of which the first of each pair refuses the second.
    fn refused_of(count: u32, pairs: &[(u32, u32)]) -> Vec<u32> {
        let incarnation = Incarnation {
            store_id: Uuid::nil(),
            boot_id: Uuid::nil(),
        };
        let live = |id| (id, LiveBroker::new(id, incarnation));
        let mut living: BTreeMap<u32, LiveBroker> = (1..=count).map(live).collect();
        for (by, whom) in pairs {
            let by = living.get_mut(by).expect("a broker");
            by.refuses.insert(*whom, format!("of {whom}"));
        }
        refused(&living).into_keys().collect()
    }

    #[test]
    fn more_than_half_of_the_others_have_to_refuse_it() {
        assert!(refused_of(3, &[]).is_empty());
        assert!(refused_of(3, &[(2, 1)]).is_empty());
        assert_eq!(refused_of(3, &[(2, 1), (3, 1)]), [1]);
        // Of two, or of three while the third restarts: whose files are wrong?
        assert!(refused_of(2, &[(2, 1)]).is_empty());
        assert_eq!(refused_of(2, &[(2, 1), (1, 1)]), [1]);
        assert!(refused_of(5, &[(2, 1), (3, 1)]).is_empty());
        // Two that were forgotten when the authority changed still trust each other.
        let three_refuse_two: Vec<_> = (3..=5).flat_map(|by| [(by, 1), (by, 2)]).collect();
        assert_eq!(refused_of(5, &three_refuse_two), [1, 2]);
    }

    #[test]
    fn who_refuses_itself_accuses_nobody() {
        // Its file of authorities is wrong, or its certificate: the other goes on.
        assert!(refused_of(2, &[(1, 1), (1, 2)]).is_empty());
        assert_eq!(refused_of(2, &[(1, 1), (1, 2), (2, 1)]), [1]);
        // All have expired.
        let all: Vec<_> = (1..=3)
            .flat_map(|by| (1..=3).map(move |id| (by, id)))
            .collect();
        assert!(refused_of(3, &all).is_empty());
    }

    #[test]
    fn somebody_goes_on() {
        assert!(refused_of(2, &[(1, 2), (2, 1)]).is_empty());
        let each_other = [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)];
        assert!(refused_of(3, &each_other).is_empty());
        // Of two halves neither yields.
        let halves = [
            (1, 3),
            (1, 4),
            (2, 3),
            (2, 4),
            (3, 1),
            (3, 2),
            (4, 1),
            (4, 2),
        ];
        assert!(refused_of(4, &halves).is_empty());
        // Nor do those whom one half of two refuses, while one that nobody takes does.
        assert_eq!(
            refused_of(3, &[(1, 2), (2, 1), (3, 3), (1, 3), (2, 3)]),
            [3]
        );
    }

    #[test]
    fn replica_stores_neither_refuse_nor_are_refused() {
        let incarnation = Incarnation {
            store_id: Uuid::nil(),
            boot_id: Uuid::nil(),
        };
        let mut living: BTreeMap<u32, LiveBroker> = (1..=3)
            .map(|id| (id, LiveBroker::new(id, incarnation)))
            .collect();
        let store = living.get_mut(&3).expect("a replica store");
        store.role = Role::ReplicaStore;
        store.refuses.insert(1, String::new());
        let two = living.get_mut(&2).expect("a broker");
        two.refuses.insert(3, String::new());
        assert!(refused(&living).is_empty());
    }
}
