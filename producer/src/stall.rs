//! Lanes that do not go on, and why: for whoever asks, and told in the log.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_protocol::ids::ANY_LANE;
use kera_rpc::{Reports, Stall, TOLD_AFTER};

use crate::shared::Shared;
use crate::slot::{Slot, SlotState};

impl Shared {
    /// The lanes that have batches to send, and of which none was acknowledged for `longer`.
    pub(crate) fn stall(&self, longer: Duration) -> Option<Stall> {
        let now = self.clock.load(Ordering::Relaxed);
        self.slots.iter().fold(None, |found, slot| {
            let state = slot.state.lock();
            match self.stall_of(slot, &state, now, longer) {
                Some(stall) => Some(stall.join(found)),
                None => found,
            }
        })
    }

    fn stall_of(
        &self,
        slot: &Slot,
        state: &SlotState,
        now: i64,
        longer: Duration,
    ) -> Option<Stall> {
        let deadline = match (state.in_flight.front(), state.queue.front()) {
            (Some(sent), _) => sent.deadline,
            (None, Some(ready)) => ready.deadline,
            (None, None) => return None,
        };
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        // Since it was opened, or an acknowledgement came.
        let begun = self.settings.deadline.saturating_sub(left);
        let heard = u64::try_from(now - state.heard_ms).unwrap_or(0);
        let waited = begun.min(Duration::from_millis(heard));
        if waited < longer {
            return None;
        }
        let why = match (&*state.link.trouble.lock(), &state.last_error) {
            (Some(trouble), _) => trouble.clone(),
            (None, Some(error)) => error.to_string(),
            (None, None) => "it has not answered yet".to_owned(),
        };
        let mut stall = Stall::new(slot.streamlet, waited, why);
        stall.lane = (slot.lane != ANY_LANE).then_some(slot.lane);
        stall.broker = Some(state.link.address.as_str().into());
        Some(stall)
    }

    /// Tells in the log what has not gone on for a while.
    pub(crate) fn tell_stall(&self, reports: &mut Reports) {
        let stall = self.stall(TOLD_AFTER);
        reports.tell(
            tokio::time::Instant::now(),
            &self.settings.stream,
            stall.as_ref(),
        );
    }
}
