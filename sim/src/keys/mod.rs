//! A group of a run that keeps the order of keys: more members than lanes, which come and go while lanes grow, and what
//! must be true of what they get.
//!
//! It reads a stream of its own: the history of the other streams knows one holder of a lane at a time.

mod consuming;
mod judge;
mod producing;

use std::sync::Arc;

pub use consuming::{drain, run as consume};
pub use judge::Keys;
pub use producing::run as produce;

use crate::load::Load;
use crate::plan::KeysPlan;

/// The group's name.
const GROUP_NAME: &str = "by-key";

/// What clients of the stream share.
pub struct Shared {
    pub load: Arc<Load>,
    pub keys: Keys,
    plan: KeysPlan,
}

impl Shared {
    /// None if the run has no such group.
    pub fn of(load: &Arc<Load>) -> Option<Arc<Self>> {
        let plan = load.plan.keys.clone()?;
        Some(Arc::new(Self {
            load: load.clone(),
            keys: Keys::default(),
            plan,
        }))
    }

    fn name(&self) -> &str {
        &self.plan.stream.name
    }
}
