//! What time alone brings about.

use super::request::{Fault, GroupState};
use crate::coordinator::{Coordinator, Step};
use crate::view::LaneView;

/// How often offsets and groups are looked at for expiry, milliseconds.
const SWEEP_MS: u64 = 1_000;

impl Coordinator {
    /// Ends sessions, waits and rebalances whose time is over; forgets offsets and groups that
    /// nobody needs any more.
    pub(crate) fn classic_tick(&mut self, now_ms: u64, view: &dyn LaneView, step: &mut Step) {
        let due: Vec<String> = self
            .classic
            .iter()
            .filter(|(_, live)| {
                !live.members.is_empty()
                    || !live.pending.is_empty()
                    || live.state == GroupState::PreparingRebalance
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in due {
            self.classic_expire_members(now_ms, &name, step);
            self.classic_try_complete(now_ms, &name, step);
        }
        let consumers = self.classic.iter();
        let consumers = consumers.filter(|(_, live)| live.consumer.is_some());
        let consumers: Vec<String> = consumers.map(|(name, _)| name.clone()).collect();
        for name in consumers {
            self.consumer_expire(now_ms, &name, view, step);
        }
        if self.classic_sweep_ms > now_ms {
            return;
        }
        self.classic_sweep_ms = now_ms.saturating_add(SWEEP_MS);
        self.consumer_look_at_topics(now_ms, view, step);
        let names: Vec<String> = self.classic.keys().cloned().collect();
        for name in names {
            self.classic_expire_offsets(now_ms, &name, view, step);
            self.share_expire(now_ms, &name, view, step);
            self.classic_expire_group(now_ms, &name, step);
        }
    }

    fn classic_expire_members(&mut self, now_ms: u64, name: &str, step: &mut Step) {
        let Some(live) = self.classic.get_mut(name) else {
            return;
        };
        live.pending.retain(|_, until_ms| *until_ms > now_ms);
        let sync_over = !live.unsynced.is_empty()
            && live.unsynced_until_ms <= now_ms
            && matches!(
                live.state,
                GroupState::CompletingRebalance | GroupState::Stable
            );
        let gone: Vec<String> = live
            .members
            .iter()
            .filter(|(id, member)| {
                let silent_until = member.seen_ms.saturating_add(member.info.session_ms.into());
                let waits = member.join.is_some() || member.sync.is_some();
                (!waits && silent_until <= now_ms) || (sync_over && live.unsynced.contains(*id))
            })
            .map(|(id, _)| id.clone())
            .collect();
        if gone.is_empty() {
            return;
        }
        for id in gone {
            tracing::info!(group = name, member = id, "the time of a member is over");
            live.remove(&id, &Fault::UnknownMember, step);
        }
        self.classic_prepare(now_ms, name, step);
    }

    /// A group without members and offsets vanishes after a while.
    fn classic_expire_group(&mut self, now_ms: u64, name: &str, step: &mut Step) {
        let (Some(live), Some(group)) = (self.classic.get(name), self.state.classic.get(name))
        else {
            return;
        };
        let over = group.since_ms.saturating_add(self.limits.classic.empty_ms) <= now_ms;
        if over
            && live.state == GroupState::Empty
            && live.pending.is_empty()
            && group.offsets.is_empty()
            && group.pending.is_empty()
            && group.shares.is_empty()
            && group.config.is_default()
        {
            tracing::debug!(group = name, "an empty consumer group is forgotten");
            self.classic_forget_group(name, step);
        }
    }
}
