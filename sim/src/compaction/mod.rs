//! A compacted stream of a run: who writes and reads it, and what must be true of what is left of it.
//!
//! It is a stream of its own, because the history of the other streams would take what compaction removes for gaps.

mod judge;
mod producing;
mod reading;

use std::sync::Arc;

pub use judge::Table;
pub use producing::run as produce;
pub use reading::{read_and_compact, run as watch};

use crate::load::Load;

/// What clients of the compacted stream share.
pub struct Shared {
    pub load: Arc<Load>,
    pub table: Table,
    plan: crate::plan::TablePlan,
    /// The number of the stream.
    stream: u32,
}

impl Shared {
    /// None if the run has no compacted stream.
    pub fn of(load: &Arc<Load>) -> Option<Arc<Self>> {
        let plan = load.plan.table.clone()?;
        let before = load.plan.streams.len() + usize::from(load.plan.transactions.is_some());
        Some(Arc::new(Self {
            load: load.clone(),
            table: Table::default(),
            plan,
            stream: before as u32,
        }))
    }

    fn name(&self) -> &str {
        &self.plan.stream.name
    }
}
