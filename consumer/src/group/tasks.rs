//! The three tasks of a membership: heartbeats, asking for leases, commits.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::v1;

use super::session::Group;

/// How long a request for leases waits at the coordinator.
const ACQUIRE_WAIT: Duration = Duration::from_secs(10);
/// How long a coordinator is given to answer before it is looked up anew: what it holds in memory,
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// a request that may wait,
const ACQUIRE_WITHIN: Duration = Duration::from_secs(15);
/// and what has to become durable first.
pub(super) const COMMIT_WITHIN: Duration = Duration::from_secs(10);
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
        let answer = group
            .client
            .group_call(&group.settings.group, ANSWER_WITHIN, |mut stub| {
                // A lease is listed until its release is answered: otherwise it would count as
                // forgotten. Each attempt lists what is held by then.
                let request = v1::HeartbeatRequest {
                    group: group.settings.group.clone(),
                    member: session.member.clone(),
                    leases: group.leases.lock().ids(),
                };
                async move { stub.heartbeat(request).await }
            })
            .await;
        match answer {
            Ok(reply) => {
                attempt = 0;
                if group.session().member != session.member {
                    continue;
                }
                group.lost(&reply.lost);
                if !reply.give_back.is_empty() {
                    group.give_back(&reply.give_back);
                }
            }
            Err(error) => {
                group.recover(error, session.epoch, attempt).await;
                attempt += 1;
            }
        }
    }
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
        let request = v1::AcquireRequest {
            group: group.settings.group.clone(),
            member: session.member.clone(),
            max_leases: room as u32,
            max_wait_ms: ACQUIRE_WAIT.as_millis() as u32,
            max_bytes: group.settings.range_bytes,
        };
        let answer = group
            .client
            .group_call(&group.settings.group, ACQUIRE_WITHIN, |mut stub| {
                let request = request.clone();
                async move { stub.acquire(request).await }
            })
            .await;
        match answer {
            Ok(reply) => {
                attempt = 0;
                // A member that joined anew meanwhile has nothing to do with these leases.
                if group.session().member == session.member {
                    group.granted(reply.leases);
                }
            }
            Err(error) => {
                group.recover(error, session.epoch, attempt).await;
                attempt += 1;
            }
        }
    }
}

/// Commits progress at the interval, and at once what ends a lease or is waited for.
pub(super) async fn commits(group: Arc<Group>) {
    let interval = group.settings.commit_interval;
    let mut next = interval.map(|interval| tokio::time::Instant::now() + interval);
    let mut attempt = 0;
    while group.fatal().is_none() {
        let wanted = group.commits.notified();
        let mut all = false;
        match next {
            Some(at) => {
                if tokio::time::timeout_at(at, wanted).await.is_err() {
                    all = true;
                }
            }
            None => wanted.await,
        }
        if all || next.is_some_and(|at| at <= tokio::time::Instant::now()) {
            all = true;
            next = interval.map(|interval| tokio::time::Instant::now() + interval);
        }
        all |= group.wants_commit();
        loop {
            let commits = group.leases.lock().due(all, COMMITS_PER_REQUEST);
            if commits.is_empty() {
                group.settled.notify_waiters();
                break;
            }
            let session = group.session();
            let request = v1::CommitRequest {
                group: group.settings.group.clone(),
                member: session.member.clone(),
                commits: commits.clone(),
            };
            let answer = group
                .client
                .group_call(&group.settings.group, COMMIT_WITHIN, |mut stub| {
                    let request = request.clone();
                    async move { stub.commit(request).await }
                })
                .await;
            match answer {
                Ok(reply) => {
                    attempt = 0;
                    // What a former member committed says nothing of leases that have the same numbers by now.
                    if group.session().member == session.member {
                        group.commit_done(&commits, &reply.stale);
                    }
                }
                Err(error) => {
                    group.leases.lock().commit_failed(&commits);
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
