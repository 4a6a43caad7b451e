//! What time alone brings about: sessions end, topics come, grow and go.

use super::subscribed::Seen;
use crate::coordinator::{Coordinator, Step};
use crate::event::Body;
use crate::view::LaneView;

impl Coordinator {
    /// Puts out members whose time is over.
    pub(in crate::classic) fn consumer_expire(
        &mut self,
        now_ms: u64,
        name: &str,
        view: &dyn LaneView,
        step: &mut Step,
    ) {
        let session_ms = u64::from(self.limits.classic.consumer_session_ms);
        let Some(live) = self.classic.get(name).and_then(|l| l.consumer.as_ref()) else {
            return;
        };
        let gone: Vec<String> = live
            .sessions
            .iter()
            .filter(|(_, session)| {
                let silent = session.seen_ms.saturating_add(session_ms) <= now_ms;
                silent || session.revoke_until_ms.is_some_and(|until| until <= now_ms)
            })
            .map(|(id, _)| id.clone())
            .collect();
        if gone.is_empty() {
            return;
        }
        for id in &gone {
            tracing::info!(group = name, member = id, "the time of a member is over");
        }
        self.consumer_remove(now_ms, name, &gone, view, step);
    }

    /// Members are out; the others are to have their work.
    pub(super) fn consumer_remove(
        &mut self,
        now_ms: u64,
        name: &str,
        members: &[String],
        view: &dyn LaneView,
        step: &mut Step,
    ) {
        for member in members {
            let removed = super::ConsumerMemberRemoved {
                member: member.clone(),
                heir: String::new(),
            };
            self.emit(step, name, Body::ConsumerMemberRemoved(removed));
            if let Some(live) = self.classic.get_mut(name).and_then(|l| l.consumer.as_mut()) {
                live.sessions.remove(member);
            }
        }
        let subscribed = self.consumer_subscribed(name, &mut Seen::default(), view);
        self.consumer_retarget(now_ms, name, subscribed, true, step);
    }

    /// Looks whether topics that groups subscribe to came, grew or went.
    pub(in crate::classic) fn consumer_look_at_topics(
        &mut self,
        now_ms: u64,
        view: &dyn LaneView,
        step: &mut Step,
    ) {
        let groups = self.state.classic.iter();
        let names: Vec<String> = groups
            .filter(|(_, group)| {
                group
                    .consumer
                    .as_ref()
                    .is_some_and(|c| !c.members.is_empty())
            })
            .map(|(name, _)| name.clone())
            .collect();
        let mut seen = Seen::default();
        for name in names {
            let subscribed = self.consumer_subscribed(&name, &mut seen, view);
            let live = self.classic.get(&name).and_then(|l| l.consumer.as_ref());
            let before = live.and_then(|live| live.subscribed.as_ref());
            if before == Some(&subscribed) {
                continue;
            }
            // After a restart it is not known for which topics the target was computed.
            let always = before.is_some();
            self.consumer_retarget(now_ms, &name, subscribed, always, step);
        }
    }
}
