//! What a broker has under way about transactions.

use std::collections::HashSet;

use kera_protocol::ids::{Epoch, LaneKey, StreamletId};
use parking_lot::Mutex;

use crate::bell::Bell;

/// What is being asked, and what is being carried out.
#[derive(Debug, Default)]
pub struct Transactions {
    /// Lanes and producers of which a coordinator is being asked.
    pub(super) asking: Mutex<HashSet<(LaneKey, i64)>>,
    /// Coordinators, by streamlet and epoch, whose decisions are being carried out.
    pub(super) finishing: Mutex<HashSet<(StreamletId, Epoch)>>,
    /// Rung when something may have been decided.
    pub(super) decided: Bell,
}

impl Transactions {
    /// Something may have been decided here.
    pub fn look(&self) {
        self.decided.ring();
    }
}
