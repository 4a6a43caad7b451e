//! Commits: progress within leases, and their end.

use kera_protocol::error::WireError;
use kera_protocol::v1::{CommitRequest, CommitResponse};

use crate::coordinator::{Coordinator, Step};
use crate::event::{Body, CommitRecord, Committed};
use crate::members::invalid;
use crate::send_positions::is_sent;
use crate::view::LaneView;

impl Coordinator {
    pub(crate) fn commit(
        &mut self,
        now_ms: u64,
        request: CommitRequest,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<CommitResponse, WireError> {
        let name = request.group.as_str();
        self.shape_of(name, view, step)?;
        self.touch(now_ms, name, &request.member)?;
        if request.commits.len() > self.limits.commits_per_request {
            return Err(invalid(format!(
                "commit of member {:?} has {} entries: send at most {} in one request",
                request.member,
                request.commits.len(),
                self.limits.commits_per_request
            )));
        }
        let group = &self.state.groups[name];
        let member = &group.members[&request.member];
        let mut stale = Vec::new();
        let mut pending = Vec::new();
        let mut commits = Vec::new();
        for commit in &request.commits {
            let Some(lease) = group
                .leases
                .get(&commit.lease)
                .filter(|lease| lease.member == request.member)
            else {
                // A repetition of a commit that took effect is no news to anyone.
                let next = commit.next.map_or(0, |next| next.ordinal);
                if member.ended_at(commit.lease).is_none_or(|at| at < next) {
                    stale.push(commit.lease);
                }
                continue;
            };
            if let Some(next) = commit.next
                && let Some(head) = view.highest_readable(group.lane_key(lease.lane))
                && next.ordinal > head
            {
                return Err(invalid(format!(
                    "commit of lease {} of group {name:?} at ordinal {} is above the durable head {} of its lane",
                    commit.lease, next.ordinal, head
                )));
            }
            // Progress never goes back; only what moves something is worth an event.
            let next = commit.next.filter(|next| next.ordinal > lease.next);
            if next.is_some() && group.sent.of_lease(commit.lease).is_some() {
                if !request.accepts_pending {
                    return Err(is_sent(name, commit.lease));
                }
                pending.push(commit.lease);
                continue;
            }
            if next.is_some() || commit.release {
                commits.push(CommitRecord {
                    lease: commit.lease,
                    next,
                    release: commit.release,
                });
            }
        }
        for leases in [&mut stale, &mut pending] {
            leases.sort_unstable();
            leases.dedup();
        }
        // A lease is answered as one: its other entries wait as well.
        commits.retain(|commit: &CommitRecord| pending.binary_search(&commit.lease).is_err());
        // Two entries for one lease become one: after its end there would be nothing to apply.
        commits.sort_by_key(|commit| commit.lease);
        commits.dedup_by(|later, earlier| {
            let same = later.lease == earlier.lease;
            if same {
                earlier.release |= later.release;
                if later.next.map(|c| c.ordinal) > earlier.next.map(|c| c.ordinal) {
                    earlier.next = later.next;
                }
            }
            same
        });
        if commits.is_empty() {
            return Ok(CommitResponse { stale, pending });
        }
        let leases_before = group.leases.len();
        self.emit(
            step,
            name,
            Body::Committed(Committed {
                member: request.member.clone(),
                commits,
            }),
        );
        if self.state.groups[name].leases.len() < leases_before {
            self.serve(now_ms, name, view, step);
        }
        Ok(CommitResponse { stale, pending })
    }
}
