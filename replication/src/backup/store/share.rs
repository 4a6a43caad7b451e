//! How much of what is asked for a copy gets.
//!
//! As long as half of the quota is free it is all of it: few and large buffers are cheap. From then on
//! no copy takes more at once than its share of what is left, so that very many open groups, none of
//! which has filled what it has, do not use up what they all need for their next bytes. Whoever gets less
//! than it asked for knows that there is little, and asks again when it has filled that.

use std::ops::Range;

use super::{Control, ReplicaStore};
use crate::backup::copy::{Copy, PAGE, State};

/// No share is smaller than this, since each costs a request: where there is less it is refused.
const LEAST: u64 = 64 << 10;

impl ReplicaStore {
    /// The end of what `copy` gets of `range`, which it asks for.
    pub(super) fn share(
        &self,
        control: &Control,
        copy: &Copy,
        state: &State,
        range: Range<u64>,
    ) -> u64 {
        let quota = self.limits.memory_bytes;
        let asked = copy.memory.lacking(range.start, range.end - range.start);
        if control.used().saturating_add(asked) <= quota / 2 {
            return range.end;
        }
        let free = quota.saturating_sub(control.used());
        let among = control.holders + u64::from(state.reserved == 0);
        let share = (free / among.max(1)).max(LEAST) / PAGE * PAGE;
        range.end.min(range.start + share)
    }
}
