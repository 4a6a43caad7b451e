//! What a lane has at brokers that live another life by now.
//!
//! Of a group that was recorded ahead no byte was ever put anywhere, but the next owner has only its holders'
//! word for that: a broker that was booted since cannot give it, and where all of them were, one after the
//! other, a person would have to decide about nothing. An open group to which nothing is appended counts on
//! a copy that is gone: a machine that loses its power ends no connection.

use std::collections::BTreeSet;

use super::describe::Described;
use super::lane::{Ahead, Lane};
use crate::ids::{BrokerId, Replica};

/// What brokers are, as found out in one round.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    /// Those that answer.
    pub(crate) now: Vec<Described>,
    /// Those that have not answered for so long that nothing is expected of them.
    pub(crate) lost: BTreeSet<BrokerId>,
}

impl Lives {
    /// True if what was recorded at `was` is not there any more, for all that is known.
    fn is_over(&self, was: &Replica) -> bool {
        self.is_another(was) || self.lost.contains(&was.broker)
    }

    /// True if the broker has another store by now, or the same in another life.
    fn is_another(&self, was: &Replica) -> bool {
        let is = self.now.iter().find(|is| is.broker == was.broker);
        is.is_some_and(|is| is.is_another(was))
    }
}

impl Lane {
    /// Deletes the groups recorded ahead that name a broker of which nothing is left, and those that came
    /// too late to be used. True if there were any.
    pub(crate) async fn delete_useless_ahead(&self, lives: &Lives) -> bool {
        self.drop_ahead(|ahead: &Ahead| ahead.holders.iter().any(|was| lives.is_over(was)));
        let any = self.has_stale();
        if any {
            self.delete_stale().await;
        }
        any
    }

    /// The brokers that open groups name.
    pub(crate) fn brokers_open(&self) -> Vec<BrokerId> {
        let sets = self.open_groups().into_iter();
        let holders = sets.flat_map(|set| set.holders());
        holders.map(|holder| holder.broker).collect()
    }

    /// Copies of open groups at brokers that live another life by now are lost.
    pub(crate) fn lose_former(&self, lives: &Lives) {
        for set in self.open_groups() {
            for (index, holder) in set.holders().iter().enumerate() {
                if lives.is_another(holder) {
                    set.lose(index, "its broker was booted since, or has another store");
                }
            }
        }
    }
}
