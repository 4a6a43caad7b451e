//! What a broker has under way about transactions.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use kera_coordinator::transactions::{Fault, Member};
use kera_protocol::ids::{Epoch, LaneKey, StreamletId};
use parking_lot::{Mutex, RwLock};

use super::watched::Settling;
use crate::bell::Bell;

/// Producers of which the transactional id is remembered. At the limit all are forgotten, and coordinators asked anew.
const MAX_PRODUCERS: usize = 65_536;
/// As many pairs of a producer id and a transactional id are remembered to have nothing to do with each other.
const MAX_STRANGERS: usize = 4_096;

/// What is being asked, and what is being carried out.
#[derive(Debug, Default)]
pub struct Transactions {
    /// Lanes and producers of which a coordinator is being asked.
    pub(super) asking: Mutex<HashSet<(LaneKey, i64)>>,
    /// Coordinators, by streamlet and epoch, whose decisions are being carried out. Their bells ring when there are more.
    pub(super) finishing: Mutex<HashMap<(StreamletId, Epoch), Arc<Bell>>>,
    /// Rung when something may have been decided.
    pub(super) decided: Bell,
    /// What is known of lanes whose markers may be lost again.
    pub(super) settling: Settling,
    producers: Producers,
}

impl Transactions {
    /// Something may have been decided here.
    pub fn look(&self) {
        self.decided.ring();
    }

    /// Whether a producer id was given to this transactional id, as a coordinator says; `None` if none has said so yet.
    /// A client that guesses a producer id, which is easy, has no part in its transaction.
    pub fn is_of(&self, producer: i64, id: &str) -> Option<bool> {
        self.producers.is_of(producer, id)
    }

    /// Takes in what a coordinator says of a producer's transaction: also whether the producer id is its transactional id's.
    pub(super) fn heard(&self, member: &Member, said: Result<(), Fault>) {
        match said {
            // It looked at no producer id.
            Err(Fault::Ending) => {}
            Err(Fault::OtherProducer | Fault::InvalidId) => {
                self.producers.is_not(member.producer, &member.id);
            }
            _ => self.belongs(member.producer, &member.id),
        }
    }

    /// A coordinator says that a producer id was given to this transactional id, which is for ever.
    pub(super) fn belongs(&self, producer: i64, id: &str) {
        self.producers.belongs(producer, id);
    }
}

/// Producer ids, with a hash of the transactional id that each was given to.
#[derive(Debug, Default)]
struct Producers {
    hasher: RandomState,
    known: RwLock<HashMap<i64, u64>>,
    strangers: Mutex<HashSet<(i64, u64)>>,
}

impl Producers {
    fn is_of(&self, producer: i64, id: &str) -> Option<bool> {
        let id = self.hasher.hash_one(id);
        match self.known.read().get(&producer) {
            Some(known) => Some(*known == id),
            None if self.strangers.lock().contains(&(producer, id)) => Some(false),
            None => None,
        }
    }

    fn belongs(&self, producer: i64, id: &str) {
        let id = self.hasher.hash_one(id);
        if self.known.read().get(&producer) == Some(&id) {
            return;
        }
        // It may have been asked for before it was given out.
        self.strangers.lock().remove(&(producer, id));
        let mut known = self.known.write();
        if known.len() >= MAX_PRODUCERS {
            known.clear();
        }
        known.insert(producer, id);
    }

    fn is_not(&self, producer: i64, id: &str) {
        let mut strangers = self.strangers.lock();
        if strangers.len() >= MAX_STRANGERS {
            strangers.clear();
        }
        strangers.insert((producer, self.hasher.hash_one(id)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_belong_to_one_id() {
        let producers = Producers::default();
        assert_eq!(producers.is_of(7, "payments"), None);
        producers.is_not(7, "other");
        assert_eq!(producers.is_of(7, "other"), Some(false));
        assert_eq!(producers.is_of(7, "payments"), None, "that is not known");
        producers.belongs(7, "payments");
        assert_eq!(producers.is_of(7, "payments"), Some(true));
        assert_eq!(producers.is_of(7, "other"), Some(false));
        producers.belongs(8, "other");
        producers.is_not(8, "other");
        assert_eq!(producers.is_of(8, "other"), Some(true), "a late answer");
    }

    #[test]
    fn what_is_remembered_of_producers_takes_bounded_memory() {
        let producers = Producers::default();
        for producer in 0..2 * MAX_PRODUCERS as i64 {
            producers.belongs(producer, "many");
            producers.is_not(producer, "others");
        }
        assert!(producers.known.read().len() <= MAX_PRODUCERS);
        assert!(producers.strangers.lock().len() <= MAX_STRANGERS);
    }
}
