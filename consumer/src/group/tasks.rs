//! The three tasks of a membership: heartbeats, asking for leases, commits.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::v1;
use kera_rpc::RpcError;
use tokio::time::Instant;

use super::session::{Group, Session};
use crate::config::Order;

/// How long a request for leases waits at the coordinator.
const ACQUIRE_WAIT: Duration = Duration::from_secs(10);
/// How long a coordinator is given to answer before it is looked up anew: what it holds in memory,
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// a request that may wait,
const ACQUIRE_WITHIN: Duration = Duration::from_secs(15);
/// and what has to become durable first.
pub(super) const COMMIT_WITHIN: Duration = Duration::from_secs(10);
/// How long commits are held back before the log tells why.
const SILENCE: Duration = Duration::from_secs(2);
/// How often what is passed, of keys that others have, is committed where the application alone says what is.
const PASS_EVERY: Duration = Duration::from_millis(500);
/// After this part of a session a coordinator takes a lease that no heartbeat lists for forgotten.
const FORGOTTEN_AFTER: u32 = 3;
/// Commits in one request.
const COMMITS_PER_REQUEST: usize = 512;

/// Keeps the session alive, and hears which leases are lost or to be given back.
pub(super) async fn heartbeats(group: Arc<Group>) {
    let mut attempt = 0;
    while group.fatal().is_none() {
        let session = group.session();
        if attempt == 0 {
            tokio::time::sleep(session.heartbeat).await;
        }
        match heartbeat(&group, &session).await {
            Ok(()) => attempt = 0,
            Err(error) => {
                group.recover(error, session.epoch, attempt).await;
                attempt += 1;
            }
        }
    }
}

/// One sign of life, and what is heard of leases.
pub(super) async fn heartbeat(group: &Group, session: &Session) -> Result<(), RpcError> {
    let _listing = group.listing.lock().await;
    // An attempt that failed may be the one that the coordinator has heard of.
    let asked = Instant::now();
    let reply = group
        .client
        .group_call_anew(&group.settings.group, ANSWER_WITHIN, || {
            // A lease is listed until its release is answered: otherwise it would count as
            // forgotten. Each attempt lists what is held by then.
            v1::HeartbeatRequest {
                group: group.settings.group.clone(),
                member: session.member.clone(),
                leases: group.leases.lock().ids(),
            }
        })
        .await?;
    group.alive(session, asked, &reply);
    Ok(())
}

/// Asks for leases whenever there is room for more.
pub(super) async fn acquires(group: Arc<Group>) {
    let mut attempt = 0;
    while group.fatal().is_none() {
        let room = group
            .settings
            .max_leases
            .saturating_sub(group.leases.lock().active());
        if room == 0 {
            group.room.notified().await;
            continue;
        }
        let session = group.session();
        let asked = Instant::now();
        let request = v1::AcquireRequest {
            group: group.settings.group.clone(),
            member: session.member.clone(),
            max_leases: room as u32,
            max_wait_ms: ACQUIRE_WAIT.as_millis() as u32,
            max_bytes: group.settings.range_bytes,
        };
        let answer = group
            .client
            .group_call(&group.settings.group, ACQUIRE_WITHIN, request)
            .await;
        let taken_over = match answer {
            Ok(reply) => take_over(&group, &session, asked, reply.leases).await,
            Err(error) => Err(error),
        };
        match taken_over {
            Ok(()) => attempt = 0,
            Err(error) => {
                group.recover(error, session.epoch, attempt).await;
                attempt += 1;
            }
        }
    }
}

/// Takes over leases that were asked for then.
async fn take_over(
    group: &Group,
    session: &Session,
    asked: Instant,
    granted: Vec<v1::Lease>,
) -> Result<(), RpcError> {
    // A heartbeat on its way does not list them: what it made of them is known once it is answered.
    let _listing = group.listing.lock().await;
    let leases = still_held(group, &session.member, asked, granted).await?;
    group.granted(session.life, leases);
    Ok(())
}

/// Those of some leases that the coordinator still counts as ours. It takes a lease that heartbeats do not list for one
/// whose grant was lost on its way, once a third of the session is over, and gives its records to others. Where the
/// answer came so late that this may have happened, the coordinator is asked before anything of them is read.
async fn still_held(
    group: &Group,
    member: &str,
    asked: Instant,
    granted: Vec<v1::Lease>,
) -> Result<Vec<v1::Lease>, RpcError> {
    let session = group.session().session;
    if granted.is_empty() || asked.elapsed() < session / FORGOTTEN_AFTER {
        return Ok(granted);
    }
    let reply = group
        .client
        .group_call_anew(&group.settings.group, ANSWER_WITHIN, || {
            let mut leases = group.leases.lock().ids();
            leases.extend(granted.iter().map(|lease| lease.lease));
            v1::HeartbeatRequest {
                group: group.settings.group.clone(),
                member: member.to_owned(),
                leases,
            }
        })
        .await?;
    let is_held = |lease: &v1::Lease| !reply.lost.contains(&lease.lease);
    Ok(granted.into_iter().filter(is_held).collect())
}

/// Commits that wait for transactions which commit positions of the same leases.
#[derive(Default)]
struct HeldBack {
    since: Option<Instant>,
    is_logged: bool,
    attempt: u32,
    /// When they are sent again.
    again: Option<Instant>,
}

impl HeldBack {
    /// What the coordinator answered: the leases whose commits wait.
    fn told(&mut self, group: &Group, pending: &[u64]) {
        let Some(lease) = pending.first() else {
            if self.again.is_none() {
                *self = Self::default();
            }
            return;
        };
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if !self.is_logged && now.duration_since(since) >= SILENCE {
            self.is_logged = true;
            tracing::warn!(
                group = group.settings.group,
                lease,
                leases = pending.len(),
                "commits wait for a transaction that commits positions of the same leases, see `kera group describe`"
            );
        }
        self.again = Some(now + group.client.options().retry.pause(self.attempt));
        self.attempt += 1;
    }
}

/// Commits progress at the interval, and at once what ends a lease or is waited for.
pub(super) async fn commits(group: Arc<Group>) {
    let interval = group.settings.commit_interval;
    let every = match group.settings.order {
        Order::Key => Some(interval.unwrap_or(PASS_EVERY)),
        Order::Lane | Order::None => interval,
    };
    let mut next = every.map(|every| Instant::now() + every);
    let mut attempt = 0;
    let mut held_back = HeldBack::default();
    while group.fatal().is_none() {
        let wanted = group.commits.notified();
        match next.into_iter().chain(held_back.again).min() {
            Some(at) => {
                let _ = tokio::time::timeout_at(at, wanted).await;
            }
            None => wanted.await,
        }
        let now = Instant::now();
        let is_time = next.is_some_and(|at| at <= now);
        if is_time {
            next = every.map(|every| now + every);
            group.leases.lock().commit_passed();
        }
        let mut all = is_time && interval.is_some();
        if held_back.again.is_some_and(|at| at <= now) {
            held_back.again = None;
            group.leases.lock().ask_again();
            all |= interval.is_some();
        }
        all |= group.wants_commit();
        loop {
            let (session, commits) = group.due(all, COMMITS_PER_REQUEST);
            if commits.is_empty() {
                // A commit that is held back is not settled: those who wait for all commits wait for it as well.
                if held_back.again.is_none() {
                    group.settled.notify_waiters();
                }
                break;
            }
            let request = v1::CommitRequest {
                group: group.settings.group.clone(),
                member: session.member.clone(),
                commits: commits.clone(),
                accepts_pending: true,
            };
            let answer = group
                .client
                .group_call(&group.settings.group, COMMIT_WITHIN, request)
                .await;
            match answer {
                Ok(reply) => {
                    attempt = 0;
                    held_back.told(&group, &reply.pending);
                    group.commit_done(session.life, &commits, &reply);
                }
                Err(error) => {
                    group.commit_failed(session.life, &commits);
                    group.recover(error, session.epoch, attempt).await;
                    attempt += 1;
                    if group.fatal().is_some() {
                        break;
                    }
                }
            }
        }
    }
}
