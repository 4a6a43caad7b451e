//! What the tasks of one membership share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, LaneKey, Ordinal, StreamId, StreamletId};
use kera_protocol::slices::SliceSet;
use kera_protocol::v1::{self, Cursor, LeaseCommit};
use kera_rpc::{Client, GroupPositions, RpcError};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::lease_key::LeaseKey;
use super::leases::{LeaseInfo, LeaseTable};
use super::waiters::CommitWaiters;
use super::{Rebalance, tasks};
use crate::config::{Fetch, Order, Start};
use crate::error::ConsumeError;
use crate::fetch::{Fetcher, SourceSpec};
use crate::slices::LeasedSlices;

/// Told of changes of leases.
pub(crate) type RebalanceHook = dyn Fn(Rebalance<'_>) + Send + Sync;
/// Says where to resume a lane, given where the group stands.
pub(crate) type ResumeHook = dyn Fn(LaneKey, Ordinal) -> Option<Ordinal> + Send + Sync;

#[derive(Clone)]
pub(crate) struct GroupSettings {
    pub(crate) stream: String,
    pub(crate) group: String,
    pub(crate) client_name: String,
    pub(crate) order: Order,
    pub(crate) start: Start,
    pub(crate) session: Duration,
    pub(crate) fetch: Fetch,
    pub(crate) max_leases: usize,
    pub(crate) range_bytes: u32,
    pub(crate) commit_interval: Option<Duration>,
    pub(crate) on_rebalance: Option<Arc<RebalanceHook>>,
    pub(crate) resume_from: Option<Arc<ResumeHook>>,
}

/// Leases of a life, by their numbers at the coordinator.
fn keys(life: u64, leases: &[u64]) -> impl Iterator<Item = LeaseKey> {
    leases.iter().map(move |&lease| LeaseKey { life, lease })
}

/// The leases of commits of a life.
fn keys_of(life: u64, commits: &[LeaseCommit]) -> impl Iterator<Item = LeaseKey> {
    commits.iter().map(move |commit| LeaseKey {
        life,
        lease: commit.lease,
    })
}

/// The coordinator knows no such member.
fn is_unknown(error: &RpcError) -> bool {
    let code = error.code();
    matches!(
        code,
        Some(ErrorCode::UnknownMember | ErrorCode::UnknownConsumerGroup)
    )
}

fn stale(key: LeaseKey) -> ConsumeError {
    ConsumeError::StaleLease { lease: key.lease }
}

/// Who we are to the coordinator.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) member: String,
    /// Counts rejoins, so that only one task rejoins for one reason.
    pub(super) epoch: u64,
    /// Counts members that we were: what one is told says nothing of the leases of the next.
    pub(super) life: u64,
    pub(super) heartbeat: Duration,
    /// Who is not heard of for so long is a member no more.
    pub(super) session: Duration,
}

/// Until when the coordinator gives our leases to nobody else, as far as we know.
struct Held {
    began: Instant,
    /// Milliseconds after that.
    until_ms: AtomicU64,
    /// When it was first asked whether leases hold since.
    doubted: Mutex<Option<Instant>>,
}

impl Held {
    fn until(&self, until: Instant) {
        let ms = until.saturating_duration_since(self.began).as_millis() as u64;
        self.until_ms.fetch_max(ms, Ordering::Relaxed);
        *self.doubted.lock() = None;
    }

    /// When doubts began that are not settled yet.
    fn doubted_since(&self) -> Instant {
        *self.doubted.lock().get_or_insert_with(Instant::now)
    }

    fn is_over(&self) -> bool {
        self.began.elapsed().as_millis() as u64 >= self.until_ms.load(Ordering::Relaxed)
    }
}

/// What comes of a commit for which nobody waits any more, and what to do about it.
const SENT_ON: &str = "they are sent on: see that the brokers can be reached, and commit again to hear whether they took effect";

/// One membership in one group.
pub(crate) struct Group {
    pub(super) client: Client,
    pub(super) settings: GroupSettings,
    pub(super) fetcher: Arc<Fetcher>,
    /// The stream of the first lease.
    stream: OnceLock<StreamId>,
    /// Taken after `leases`: both change together.
    session: Mutex<Session>,
    held: Held,
    rejoining: tokio::sync::Mutex<()>,
    /// Held from when a heartbeat lists the leases until it is answered, and while new ones are taken over: the coordinator
    /// takes a lease that was granted a while ago, and that a heartbeat does not list, for forgotten.
    pub(super) listing: tokio::sync::Mutex<()>,
    pub(super) leases: Mutex<LeaseTable>,
    /// Taken before `leases` by whoever changes what is read, so that no lease is read twice.
    pub(super) reading: Mutex<()>,
    waiters: CommitWaiters,
    /// There is room for leases.
    pub(super) room: Notify,
    /// There is something to commit.
    pub(super) commits: Notify,
    /// A commit was answered.
    pub(super) settled: Notify,
    pub(crate) commit_count: AtomicU64,
    closing: AtomicBool,
}

impl Group {
    /// Joins. The tasks are not started.
    pub(crate) async fn join(
        client: Client,
        settings: GroupSettings,
        fetcher: Arc<Fetcher>,
    ) -> Result<Arc<Self>, ConsumeError> {
        let session = settings.session;
        let group = Self {
            client,
            settings,
            fetcher,
            stream: OnceLock::new(),
            session: Mutex::new(Session {
                member: String::new(),
                epoch: 0,
                life: 0,
                heartbeat: Duration::from_secs(1),
                session,
            }),
            held: Held {
                began: Instant::now(),
                until_ms: AtomicU64::new(0),
                doubted: Mutex::default(),
            },
            rejoining: tokio::sync::Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            leases: Mutex::default(),
            reading: Mutex::default(),
            waiters: CommitWaiters::default(),
            room: Notify::new(),
            commits: Notify::new(),
            settled: Notify::new(),
            commit_count: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        };
        group.first_join().await?;
        Ok(Arc::new(group))
    }

    /// Joins for the first time. A coordinator may hear of a stream later than the other brokers: while one
    /// of them knows it, the coordinator is asked again, until the retry policy's deadline.
    async fn first_join(&self) -> Result<(), RpcError> {
        let retry = self.client.options().retry;
        let deadline = Instant::now().checked_add(retry.deadline);
        let mut attempt = 0;
        loop {
            let error = match self.rejoin(0).await {
                Err(error) if error.code() == Some(ErrorCode::UnknownStream) => error,
                joined => return joined,
            };
            let next = Instant::now() + retry.pause(attempt);
            if deadline.is_some_and(|deadline| next >= deadline) || self.is_gone().await {
                return Err(error);
            }
            tracing::debug!(%error, attempt, "the coordinator has not heard of the stream yet");
            tokio::time::sleep_until(next).await;
            attempt += 1;
        }
    }

    /// Whether there is no such stream: a coordinator that does not know it may only not have heard of it.
    async fn is_gone(&self) -> bool {
        let known = self.client.refresh(&self.settings.stream).await;
        known.is_err_and(|error| error.code() == Some(ErrorCode::UnknownStream))
    }

    pub(super) fn session(&self) -> Session {
        self.session.lock().clone()
    }

    /// Joins again, unless another task did since `seen`. If the coordinator does not know the
    /// member any more, all leases are lost.
    pub(super) async fn rejoin(&self, seen: u64) -> Result<(), RpcError> {
        let _turn = self.rejoining.lock().await;
        let before = self.session();
        if before.epoch != seen {
            return Ok(());
        }
        let request = v1::JoinRequest {
            group: self.settings.group.clone(),
            stream: self.settings.stream.clone(),
            order: v1::Order::from(self.settings.order) as i32,
            client: self.settings.client_name.clone(),
            session_ms: self.settings.session.as_millis() as u32,
            start: Some(self.settings.start.into()),
            member: before.member.clone(),
        };
        let asked = Instant::now();
        let reply = self
            .client
            .group_call(&self.settings.group, tasks::COMMIT_WITHIN, request)
            .await?;
        let lost = {
            let mut leases = self.leases.lock();
            let lost = (reply.member != before.member).then(|| leases.lost_all());
            *self.session.lock() = Session {
                member: reply.member,
                epoch: seen + 1,
                life: leases.life(),
                heartbeat: Duration::from_millis(u64::from(reply.heartbeat_ms.max(1))),
                session: match reply.session_ms {
                    0 => self.settings.session,
                    ms => Duration::from_millis(ms.into()),
                },
            };
            lost
        };
        self.held.until(asked + self.session().session);
        if let Some(lost) = lost {
            self.forget(lost, |infos| Rebalance::Lost(infos));
        }
        Ok(())
    }

    /// True if the coordinator may have given our leases to others: this process may have stood still for longer than
    /// its session.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.held.is_over()
    }

    /// Where that is so, asks before more is handed out of what was fetched. Without an answer soon it is: the coordinator is
    /// away for all, and the next one lets members keep what they have.
    pub(crate) async fn settle_doubts(&self) {
        if !self.is_doubtful() {
            return;
        }
        let session = self.session();
        // A program that waits in short turns drops this future and calls again. So the time without an answer counts over all of
        // its calls. There is time for another connection: the one that there was may have ended while this process stood still.
        let give_up = self.held.doubted_since() + 2 * tasks::ANSWER_WITHIN;
        let asked = tokio::time::timeout_at(give_up, tasks::heartbeat(self, &session));
        if let Ok(Err(error)) = asked.await
            && is_unknown(&error)
        {
            // It is told by the heartbeats why, should this fail.
            let _ = self.rejoin(session.epoch).await;
        }
        self.held.until(Instant::now() + session.session);
    }

    /// What was answered to a heartbeat of a session that was sent then.
    pub(super) fn alive(&self, session: &Session, asked: Instant, reply: &v1::HeartbeatResponse) {
        self.held.until(asked + session.session);
        self.lost(session.life, &reply.lost);
        if !reply.give_back.is_empty() {
            self.give_back(session.life, &reply.give_back);
        }
    }

    /// What a failed call means: join again, give up, or try again after a pause.
    pub(super) async fn recover(&self, error: RpcError, epoch: u64, attempt: u32) {
        let unknown = is_unknown(&error);
        let error = match unknown {
            true => match self.rejoin(epoch).await {
                Ok(()) => return,
                Err(error) => error,
            },
            false => error,
        };
        if !error.is_retryable() && !unknown {
            self.fail(ConsumeError::of_stream(error, &self.settings.stream));
            return;
        }
        tracing::debug!(group = self.settings.group, %error, "coordinator is not reached");
        tokio::time::sleep(self.client.options().retry.pause(attempt + 1)).await;
    }

    /// Ends the consumer for good: who waits for batches or commits is told.
    pub(crate) fn fail(&self, error: ConsumeError) {
        self.waiters.fail(error);
        self.fetcher.wake();
        self.settled.notify_waiters();
    }

    pub(crate) fn fatal(&self) -> Option<ConsumeError> {
        self.waiters.failure()
    }

    /// Refuses a stream of the same name that was created after this one was deleted: what the application keeps of the
    /// lanes of the first one does not fit it.
    fn check_same_stream(&self, lane: LaneKey) -> Result<(), ConsumeError> {
        let first = *self.stream.get_or_init(|| lane.stream);
        if first == lane.stream {
            return Ok(());
        }
        let text = format!(
            "stream {:?} was deleted and created anew: its id was {first} and is {} now; open another consumer",
            self.settings.stream, lane.stream
        );
        Err(RpcError::from(WireError::new(ErrorCode::UnknownStream, text)).into())
    }

    /// A broker of an earlier version takes an order that it does not know for that of lanes.
    fn not_by_key(&self) -> ConsumeError {
        let text = format!(
            "the broker that coordinates consumer group {0:?} does not know the order of keys, and leases whole lanes: update all brokers, run `kera cluster finalize`, delete the group, and start again",
            self.settings.group,
        );
        RpcError::from(WireError::new(ErrorCode::InvalidArgument, text)).into()
    }

    /// Takes over leases that were granted in a life of the membership, and starts to read them.
    pub(super) fn granted(&self, life: u64, granted: Vec<v1::Lease>) {
        let mut infos = Vec::new();
        let mut specs = Vec::new();
        for lease in granted {
            let Some(stream) = StreamId::from_slice(&lease.stream) else {
                continue;
            };
            let lane = LaneKey {
                stream,
                streamlet: StreamletId(lease.streamlet),
                lane: LaneId(lease.lane),
            };
            if let Err(error) = self.check_same_stream(lane) {
                self.fail(error);
                return;
            }
            let mut from = lease.start.unwrap_or_default();
            let committed = from.ordinal;
            if let Some(resume_from) = &self.settings.resume_from
                && let Some(ordinal) = resume_from(lane, from.ordinal)
                && ordinal > from.ordinal
            {
                from = Cursor {
                    ordinal,
                    ..Cursor::default()
                };
            }
            let end = (lease.end_ordinal != 0).then_some(lease.end_ordinal);
            let slices = SliceSet::from_bits(lease.slices);
            let slices = (!slices.is_empty()).then_some(slices);
            if slices.is_none() && self.settings.order == Order::Key {
                self.fail(self.not_by_key());
                return;
            }
            infos.push(LeaseInfo {
                lease: lease.lease,
                lane,
                start: from.ordinal,
                end,
                slices,
            });
            specs.push((
                committed,
                SourceSpec {
                    tag: lease.lease,
                    life,
                    lane,
                    from,
                    end: end.unwrap_or(Ordinal::MAX),
                    lane_generation: lease.lane_generation,
                    // A range is short: one answer brings it.
                    push: self.settings.fetch == Fetch::Push && self.settings.order != Order::None,
                    slices: slices.map(|set| {
                        let starts = &lease.slice_starts;
                        Arc::new(LeasedSlices::new(set, from.ordinal, starts))
                    }),
                },
            ));
        }
        self.tell(&infos, Rebalance::Assigned);
        let _reading = self.reading.lock();
        let unread = {
            let mut leases = self.leases.lock();
            // It may have been lost while this was told.
            if leases.life() != life {
                drop(leases);
                self.tell(&infos, Rebalance::Lost);
                return;
            }
            let inserted = infos.into_iter().zip(specs);
            let unread = inserted.filter_map(|(info, (committed, spec))| {
                let lease = info.lease;
                let key = LeaseKey { life, lease };
                leases.insert(info, spec.from, committed);
                leases.is_read(key, &spec).then_some((key, spec))
            });
            unread.collect()
        };
        self.read(unread);
    }

    /// Stops delivering leases of a life that are to be given back.
    pub(super) fn give_back(&self, life: u64, leases: &[u64]) {
        let (infos, sources) = self.leases.lock().give_back(keys(life, leases));
        for source in sources {
            self.fetcher.remove(source);
        }
        self.tell(&infos, Rebalance::GivingBack);
        self.commits.notify_one();
    }

    pub(super) fn lost(&self, life: u64, leases: &[u64]) {
        let lost = self.leases.lock().lost(keys(life, leases));
        self.forget(lost, |infos| Rebalance::Lost(infos));
    }

    pub(super) fn forget(
        &self,
        (infos, sources): (Vec<LeaseInfo>, Vec<u64>),
        news: impl FnOnce(&[LeaseInfo]) -> Rebalance<'_>,
    ) {
        for source in sources {
            self.fetcher.remove(source);
        }
        self.tell(&infos, news);
        if !infos.is_empty() {
            self.settle_waiters();
            self.room.notify_one();
        }
    }

    fn tell<'a>(
        &self,
        infos: &'a [LeaseInfo],
        news: impl FnOnce(&'a [LeaseInfo]) -> Rebalance<'a>,
    ) {
        if !infos.is_empty()
            && let Some(hook) = &self.settings.on_rebalance
        {
            hook(news(infos));
        }
    }

    /// Notes that what lies below `next` goes to the application; false if its lease is no longer ours.
    pub(crate) fn deliver(&self, lease: LeaseKey, next: Ordinal) -> bool {
        self.leases.lock().deliver(lease, next)
    }

    /// Notes that nothing between two ordinals is delivered; false if the lease is no longer ours.
    pub(crate) fn skipped(&self, lease: LeaseKey, from: Ordinal, next: Ordinal) -> bool {
        let held = self.leases.lock().skip(lease, from, next);
        self.commits.notify_one();
        held
    }

    /// Notes that everything below `next` that was not handed out is other members'; false if the lease is no longer ours.
    pub(crate) fn passed(&self, lease: LeaseKey, next: Cursor) -> bool {
        self.leases.lock().pass(lease, next)
    }

    /// Nothing follows in this lease.
    pub(crate) fn finished(&self, lease: LeaseKey, at: Ordinal) {
        if self.leases.lock().finish(lease, at) {
            self.commits.notify_one();
            self.room.notify_one();
        }
    }

    /// Notes that a batch, and everything of its lease before it, is processed.
    pub(crate) fn processed(&self, lease: LeaseKey, next: Cursor) -> Result<(), ConsumeError> {
        let mut leases = self.leases.lock();
        match leases.processed(lease, next) {
            None if leases.committed(lease) >= Some(next.ordinal) => Ok(()),
            None => Err(stale(lease)),
            Some(false) => Ok(()),
            Some(true) => {
                self.commits.notify_one();
                self.room.notify_one();
                Ok(())
            }
        }
    }

    /// Notes that everything of the lease below `next` is processed, and waits until that is durably
    /// committed, no longer than calls are tried again. It is sent on even if nobody waits any more.
    pub(crate) async fn commit(&self, lease: LeaseKey, next: Cursor) -> Result<(), ConsumeError> {
        let done = {
            // In one go: the commit might otherwise be answered before anyone waits for it.
            let mut leases = self.leases.lock();
            if leases
                .committed(lease)
                .is_some_and(|committed| committed >= next.ordinal)
            {
                self.commit_marked();
                return Ok(());
            }
            if leases.processed(lease, next).is_none() {
                self.commit_marked();
                return Err(stale(lease));
            }
            self.waiters.wait(lease, next.ordinal)?
        };
        self.commits.notify_one();
        self.room.notify_one();
        let limit = self.commit_limit();
        match tokio::time::timeout(limit, done.answer()).await {
            Ok(answer) => answer,
            Err(_) => Err(self.unanswered(limit, SENT_ON)),
        }
    }

    /// What was marked in other leases goes with each commit, also with one that has nothing to do itself.
    pub(super) fn commit_marked(&self) {
        self.waiters.want();
        self.commits.notify_one();
    }

    /// Where the group stands after these, for a transaction to commit.
    pub(crate) fn positions(
        self: &Arc<Self>,
        positions: impl Iterator<Item = Result<(LeaseKey, Cursor), ConsumeError>>,
    ) -> Result<GroupPositions, ConsumeError> {
        if self.settings.commit_interval.is_some() {
            return Err(ConsumeError::Setting {
                setting: "commit_interval",
                reason:
                    "automatic commits would move the group without the transaction: turn them off"
                        .into(),
            });
        }
        let mut furthest: BTreeMap<LeaseKey, Cursor> = BTreeMap::new();
        for position in positions {
            let (lease, next) = position?;
            let known = furthest.entry(lease).or_insert(next);
            if next.ordinal > known.ordinal {
                *known = next;
            }
        }
        let leases = self.leases.lock();
        let Session { member, life, .. } = self.session();
        if let Some(lease) = furthest.keys().find(|lease| !leases.holds(**lease)) {
            return Err(stale(*lease));
        }
        let commits = furthest.into_iter().map(|(key, next)| LeaseCommit {
            lease: key.lease,
            next: Some(next),
            release: false,
        });
        let group = Arc::downgrade(self);
        Ok(GroupPositions::new(
            self.settings.group.clone(),
            member,
            commits.collect(),
            Arc::new(move |commits, is_committed| {
                if let Some(group) = group.upgrade() {
                    group.transaction_ended(life, commits, is_committed);
                }
            }),
        ))
    }

    /// A transaction has committed positions of a life, or it is not known that it has: then the coordinator says where to go on.
    fn transaction_ended(&self, life: u64, commits: &[LeaseCommit], is_committed: bool) {
        let mut leases = self.leases.lock();
        let mut sources = Vec::new();
        if is_committed {
            for (key, commit) in keys_of(life, commits).zip(commits) {
                if let Some(next) = commit.next {
                    leases.committed_by_transaction(key, next);
                }
            }
        } else {
            sources = leases.give_up(keys_of(life, commits));
        }
        drop(leases);
        // What it has committed others may wait for.
        self.settle_waiters();
        self.given_up(sources);
    }

    /// Leases are given back as they are committed: nothing more is read of them, and leases are asked for anew.
    fn given_up(&self, sources: Vec<u64>) {
        for source in sources {
            self.fetcher.remove(source);
        }
        self.commits.notify_one();
        self.room.notify_one();
    }

    /// Has everything delivered again that is not committed.
    pub(crate) fn rewind(&self) {
        let mut leases = self.leases.lock();
        let ahead = leases.ahead();
        let sources = leases.give_up(ahead);
        drop(leases);
        self.given_up(sources);
    }

    /// How long somebody waits for a commit: an attempt that has just begun is given its time all the same.
    pub(super) fn commit_limit(&self) -> Duration {
        let limit = self.client.options().retry.deadline;
        limit.max(tasks::COMMIT_WITHIN)
    }

    /// The error of commits that were not answered within `limit`, and what comes of that.
    pub(super) fn unanswered(&self, limit: Duration, advice: &str) -> ConsumeError {
        let text = format!(
            "commits of group {:?} on stream {:?} were not answered within {limit:?}; {advice}",
            self.settings.group, self.settings.stream
        );
        RpcError::from(WireError::new(ErrorCode::Timeout, text)).into()
    }

    /// True if all progress is to be committed now.
    pub(super) fn wants_commit(&self) -> bool {
        self.closing.load(Ordering::Acquire) | self.waiters.wants_commit()
    }

    /// Answers those whose commit is known to be done or to have failed.
    fn settle_waiters(&self) {
        let leases = self.leases.lock();
        self.waiters
            .settle(|lease, ordinal| match leases.committed(lease) {
                Some(committed) if committed >= ordinal => Some(Ok(())),
                Some(_) => None,
                None => Some(Err(stale(lease))),
            });
    }

    /// A commit of a life was answered.
    pub(super) fn commit_done(
        &self,
        life: u64,
        commits: &[LeaseCommit],
        reply: &v1::CommitResponse,
    ) {
        self.commit_count.fetch_add(1, Ordering::Relaxed);
        let v1::CommitResponse { stale, pending } = reply;
        let is_done = |lease: u64| !stale.contains(&lease) && !pending.contains(&lease);
        // Who waits for a commit that ends its lease must hear of the commit, not of the end.
        self.waiters.settle(|lease, ordinal| {
            let done = keys_of(life, commits).zip(commits).any(|(key, commit)| {
                key == lease && commit.next.is_some_and(|next| next.ordinal >= ordinal)
            });
            (done && is_done(lease.lease)).then_some(Ok(()))
        });
        let done: Vec<LeaseCommit> = commits
            .iter()
            .filter(|c| is_done(c.lease))
            .copied()
            .collect();
        let mut leases = self.leases.lock();
        leases.wait_for_transactions(keys(life, pending));
        let released = leases.commit_done(life, &done);
        leases.commit_refused(keys_of(life, commits));
        drop(leases);
        self.forget(released, |infos| Rebalance::Released(infos));
        self.lost(life, stale);
        self.settle_waiters();
        self.settled.notify_waiters();
    }

    /// What is to be committed now, at most `limit`, and who commits it: the member that holds these leases.
    pub(super) fn due(&self, all: bool, limit: usize) -> (Session, Vec<LeaseCommit>) {
        let mut leases = self.leases.lock();
        let due = leases.due(all, limit);
        (self.session(), due)
    }

    /// A commit of a life failed on its way.
    pub(super) fn commit_failed(&self, life: u64, commits: &[LeaseCommit]) {
        let mut leases = self.leases.lock();
        leases.commit_failed(keys_of(life, commits));
        drop(leases);
        self.settled.notify_waiters();
    }

    /// Starts the tasks. Abort them to end the membership.
    pub(crate) fn spawn(self: &Arc<Self>) -> Vec<tokio::task::AbortHandle> {
        [
            tokio::spawn(tasks::heartbeats(self.clone())).abort_handle(),
            tokio::spawn(tasks::acquires(self.clone())).abort_handle(),
            tokio::spawn(tasks::commits(self.clone())).abort_handle(),
        ]
        .into()
    }

    /// Ends the task that asks for leases.
    pub(crate) fn stop_acquiring(&self, tasks: &[tokio::task::AbortHandle]) {
        if let Some(acquires) = tasks.get(1) {
            acquires.abort();
        }
    }

    pub(crate) fn lease_infos(&self) -> Vec<LeaseInfo> {
        self.leases.lock().infos()
    }

    pub(crate) fn lease_count(&self) -> usize {
        self.leases.lock().len()
    }

    /// Durable records of the leases held that are not delivered.
    pub(crate) fn lag(&self) -> u64 {
        let heads = self.fetcher.heads();
        let leases = self.leases.lock();
        heads
            .into_iter()
            .filter_map(|(lease, head, end)| {
                let life = leases.life();
                let delivered = leases.delivered(LeaseKey { life, lease })?;
                // A range is durable to its end from the start.
                let known = if end == Ordinal::MAX { head } else { end };
                Some(known.saturating_sub(delivered))
            })
            .sum()
    }

    /// Leaves: the leases end at once.
    pub(crate) async fn leave(&self) -> Result<(), RpcError> {
        let request = v1::LeaveRequest {
            group: self.settings.group.clone(),
            member: self.session().member,
        };
        self.client
            .group_call(&self.settings.group, tasks::COMMIT_WITHIN, request)
            .await
            .map(|_| ())
    }

    /// Gives everything back and waits, at most `limit`, until what was processed is committed.
    pub(crate) async fn give_back_all(&self, limit: Duration) -> Result<(), ConsumeError> {
        self.closing.store(true, Ordering::Release);
        let sources = self.leases.lock().give_back_all();
        for source in sources {
            self.fetcher.remove(source);
        }
        let all = async {
            loop {
                let settled = self.settled.notified();
                tokio::pin!(settled);
                settled.as_mut().enable();
                if let Some(error) = self.fatal() {
                    return Err(error);
                }
                if !self.leases.lock().has_uncommitted() {
                    return Ok(());
                }
                self.commits.notify_one();
                settled.await;
            }
        };
        match tokio::time::timeout(limit, all).await {
            Ok(done) => done,
            Err(_) => Err(self.unanswered(
                limit,
                "what did not take effect is delivered again, to this group's next consumer",
            )),
        }
    }
}
