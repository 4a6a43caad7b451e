//! Transactions of a run: who begins, ends and reads them, and what must be true of all of them.
//!
//! They have a stream of their own, because readers get no ordinals of markers and of what was aborted, which the
//! history of the other streams would take for gaps.

mod ending;
mod ledger;
mod producing;
mod reading;

use std::sync::Arc;

pub use ledger::{Ledger, Outcome};
pub use producing::run as produce;
pub use reading::{run as watch, until_all_is_read};

use crate::dice::Dice;
use crate::load::Load;

/// What clients with transactions share.
pub struct Shared {
    pub load: Arc<Load>,
    pub ledger: Ledger,
    /// The number of the stream.
    stream: u32,
    plan: crate::plan::TransactionPlan,
}

impl Shared {
    /// None if the run has no transactions.
    pub fn of(load: &Arc<Load>) -> Option<Arc<Self>> {
        let plan = load.plan.transactions.clone()?;
        Some(Arc::new(Self {
            load: load.clone(),
            ledger: Ledger::default(),
            stream: load.plan.streams.len() as u32,
            plan,
        }))
    }

    fn name(&self) -> &str {
        &self.plan.stream.name
    }
}

/// A key, of which there are enough for every lane.
fn key(dice: &mut Dice) -> String {
    format!("k{}", dice.below(40))
}
