//! A partition of a share group at its owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use kera_coordinator::classic::shares::{Reset, ShareConfig};
use kera_coordinator::share::{
    Acknowledgement, Acquired, GivenUp, Holder, SharePartition, ShareState,
};
use kera_protocol::ids::Ordinal;
use parking_lot::Mutex;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OnceCell};

use super::ask::GroupSettings;
use super::table::{Opened, OwnedShare, ShareError, ShareKey, SharePlace, Shares, Standing};
use super::{ask, dead_letters};
use crate::clock::now_ms;
use crate::fault_rules::Rule;
use crate::shared::Shared;

/// How long an acknowledgement waits for what is kept.
const KEPT_WITHIN: Duration = Duration::from_secs(15);
/// How often a session begins anew with a partition whose offsets are set meanwhile.
const TRIES: usize = 3;
/// How old what is known of the group's settings may be where records are in flight.
const SETTINGS_AGE_MS: u64 = 5_000;
/// Pause after the coordinator has not answered.
const PAUSE: Duration = Duration::from_millis(100);

/// A session's part in a partition: with it go its locks.
pub struct Attached {
    shared: Arc<Shared>,
    share: Arc<OwnedShare>,
    holder: Holder,
}

impl Shares {
    /// A session begins to read a partition for a group.
    ///
    /// # Errors
    /// The group is not served there, or not yet.
    pub async fn attach(
        shared: &Arc<Shared>,
        group: &str,
        place: SharePlace,
        holder: Holder,
    ) -> Result<Attached, ShareError> {
        let key = ShareKey {
            group: Arc::from(group),
            stream: place.stream,
            partition: place.partition,
        };
        for _ in 0..TRIES {
            let (share, is_others) = shared.shares.share_of(&key, &place);
            // From here on it is given back, whatever comes.
            let attached = Attached {
                shared: shared.clone(),
                share: share.clone(),
                holder,
            };
            share.opened.get_or_try_init(|| share.begin(shared)).await?;
            attached.bury();
            if !is_others {
                return Ok(attached);
            }
            // Nobody tells the owner that the group's offsets were set: what it has kept after that is refused.
            match attached.confirm().await {
                Err(_) if share.has_ended() => {}
                confirmed => return confirmed.map(|()| attached),
            }
        }
        Err(ShareError::Fenced)
    }

    /// A partition of a group for one more session, and whether others began it.
    fn share_of(&self, key: &ShareKey, place: &SharePlace) -> (Arc<OwnedShare>, bool) {
        let mut open = self.open.lock();
        let known = open.get(key);
        let known = known.filter(|share| share.is_for(place) && !share.has_ended());
        let (share, is_others) = match known {
            Some(share) => (share.clone(), true),
            None => {
                let share = Arc::new(OwnedShare::new(key.clone(), place.clone()));
                open.insert(key.clone(), share.clone());
                (share, false)
            }
        };
        share.users.fetch_add(1, Ordering::Relaxed);
        (share, is_others)
    }

    /// Forgets a partition that nobody needs.
    fn let_go(&self, share: &Arc<OwnedShare>) {
        let mut open = self.open.lock();
        if share.users.load(Ordering::Relaxed) > 0 || share.is_writing() {
            return;
        }
        if open
            .get(&share.key)
            .is_some_and(|known| Arc::ptr_eq(known, share))
        {
            open.remove(&share.key);
        }
        drop(open);
        if let Some(opened) = share.opened.get() {
            let mut standing = opened.standing.lock();
            self.runs
                .fetch_sub(std::mem::take(&mut standing.runs), Ordering::Relaxed);
        }
    }
}

impl OwnedShare {
    fn new(key: ShareKey, place: SharePlace) -> Self {
        Self {
            key,
            epoch: place.streamlet.epoch(),
            streamlet: place.streamlet,
            lane: place.lane,
            users: AtomicUsize::new(0),
            opened: OnceCell::new(),
            news: Notify::new(),
            kept: Notify::new(),
        }
    }

    fn is_for(&self, place: &SharePlace) -> bool {
        Arc::ptr_eq(&self.streamlet, &place.streamlet) && self.epoch == place.streamlet.epoch()
    }

    fn has_ended(&self) -> bool {
        let opened = self.opened.get();
        opened.is_some_and(|opened| opened.standing.lock().ended.is_some())
    }

    fn is_writing(&self) -> bool {
        let opened = self.opened.get();
        opened.is_some_and(|opened| opened.standing.lock().writing)
    }

    /// Whether this broker owns the lane still, under the same epoch.
    fn is_owned(&self, shared: &Shared) -> bool {
        let directory = &shared.data.directory;
        let serves = !directory.is_shared()
            || directory.serves(self.streamlet.stream(), self.streamlet.id());
        serves && !self.streamlet.is_over() && self.streamlet.epoch() == self.epoch
    }

    /// Has the coordinator tell where the group stands. A group that begins does so durably.
    async fn begin(&self, shared: &Arc<Shared>) -> Result<Opened, ShareError> {
        let told = ask::open(shared, &self.key, self.epoch.0).await?;
        let bounds = self.streamlet.lane_bounds(self.lane);
        let (log_start, head) = bounds.ok_or(ShareError::NotOwner)?;
        if !self.is_owned(shared) {
            return Err(ShareError::NotOwner);
        }
        let state = match told.state {
            Some(state) if Rule::DeliveredTakenForDone.is_broken() => {
                ShareState::at(state.start + state.length())
            }
            Some(state) => state,
            None => {
                let start = match told.config.reset() {
                    Reset::Earliest => log_start,
                    Reset::Latest => head,
                };
                let state = ShareState::at(start);
                ask::write(shared, &self.key, told.state_epoch, &state).await?;
                state
            }
        };
        Ok(Opened {
            state_epoch: told.state_epoch,
            standing: Mutex::new(Standing {
                partition: SharePartition::new(
                    &state,
                    told.config.deliveries(),
                    told.config.dead_letter_topic().is_some(),
                ),
                version: 0,
                kept: 0,
                writing: false,
                burying: false,
                ended: None,
                runs: 0,
            }),
            config: ArcSwap::from_pointee(told.config),
            asked_ms: AtomicU64::new(now_ms()),
            asked: AtomicU64::new(0),
            asking: tokio::sync::Mutex::new(()),
        })
    }

    /// Has the coordinator tell what is set for the group by now. What it does not tell stays as it was.
    async fn hear_settings(&self, shared: &Arc<Shared>, opened: &Opened) {
        let before = opened.asked.load(Ordering::Acquire);
        let _alone = opened.asking.lock().await;
        // Another has asked since this began, and has its answer.
        if opened.asked.load(Ordering::Acquire) > before {
            return;
        }
        opened.asked.fetch_add(1, Ordering::AcqRel);
        opened.asked_ms.store(now_ms(), Ordering::Relaxed);
        let wanted = GroupSettings {
            group: self.key.group.to_string(),
            ..GroupSettings::default()
        };
        let config = match ask::settings(shared, wanted).await {
            Ok(Ok(config)) => config,
            Ok(Err(error)) => {
                tracing::debug!(group = %self.key.group, error, "the settings of a share group are not told");
                return;
            }
            Err(error) => {
                tracing::debug!(group = %self.key.group, %error, "the settings of a share group are not told");
                return;
            }
        };
        if **opened.config.load() != config {
            opened.config.store(Arc::new(config));
        }
    }
}

impl Attached {
    fn opened(&self) -> Option<&Opened> {
        self.share.opened.get()
    }

    /// How many records may be in flight.
    fn most(&self, opened: &Opened) -> u64 {
        let wanted = opened.config.load().record_locks();
        self.shared.shares.most_in_flight(wanted)
    }

    /// What is set for the group.
    pub fn config(&self) -> Option<Arc<ShareConfig>> {
        self.opened().map(|opened| opened.config.load_full())
    }

    /// Has what is set for the group by now count here. To be waited for before records are rejected or released: a
    /// dead-letter topic that was set before that gets them.
    pub async fn hear_settings(&self) {
        if let Some(opened) = self.opened() {
            self.share.hear_settings(&self.shared, opened).await;
            self.configure(opened, &mut opened.standing.lock());
        }
    }

    /// The same in the background, if it was not done for long.
    fn keep_hearing(&self, opened: &Opened) {
        let (now, asked) = (now_ms(), opened.asked_ms.load(Ordering::Relaxed));
        if now.saturating_sub(asked) < SETTINGS_AGE_MS {
            return;
        }
        // Without a runtime the broker is going down.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            opened.asked_ms.store(now, Ordering::Relaxed);
            let (shared, share) = (self.shared.clone(), self.share.clone());
            runtime.spawn(async move {
                if let Some(opened) = share.opened.get() {
                    share.hear_settings(&shared, opened).await;
                }
            });
        }
    }

    /// What was told of the group's settings counts.
    fn configure(&self, opened: &Opened, standing: &mut Standing) {
        let config = opened.config.load();
        let dead_letters = config.dead_letter_topic().is_some();
        let deliveries = config.deliveries();
        if standing.partition.configure(deliveries, dead_letters) {
            self.changed(standing);
        }
    }

    /// Where it is served from.
    pub fn place(&self) -> SharePlace {
        SharePlace {
            stream: self.share.key.stream,
            partition: self.share.key.partition,
            streamlet: self.share.streamlet.clone(),
            lane: self.share.lane,
        }
    }

    /// Why nothing is served any more; a session begins anew.
    pub fn ended(&self) -> Option<ShareError> {
        if !self.share.is_owned(&self.shared) {
            return Some(ShareError::NotOwner);
        }
        let opened = self.opened()?;
        opened.standing.lock().ended.clone()
    }

    /// Where to read next, if there may be something to acquire.
    pub fn next(&self) -> Option<Ordinal> {
        let opened = self.opened()?;
        let (log_start, _) = self.share.streamlet.lane_bounds(self.share.lane)?;
        let mut standing = opened.standing.lock();
        self.configure(opened, &mut standing);
        if standing.partition.in_flight() > 0 {
            self.keep_hearing(opened);
        }
        if self.end_locks(&mut standing) {
            self.changed(&mut standing);
        }
        if standing.partition.forget_below(log_start) {
            self.changed(&mut standing);
        }
        standing.partition.next(self.most(opened))
    }

    /// Acquires up to `wanted` records of batches that were read from `from` on; between batches there are none.
    pub fn acquire(
        &self,
        from: Ordinal,
        batches: &[(Ordinal, Ordinal)],
        wanted: u64,
    ) -> Vec<Acquired> {
        let Some(opened) = self.opened() else {
            return Vec::new();
        };
        let until_ms = opened.locked_until();
        let most = self.most(opened);
        let mut standing = opened.standing.lock();
        if standing.ended.is_some() {
            return Vec::new();
        }
        let partition = &mut standing.partition;
        if Rule::ShareLocksIgnored.is_broken() {
            partition.expire(u64::MAX);
        }
        let acquired = partition.acquire(self.holder, until_ms, from, batches, wanted, most);
        self.weigh(&mut standing);
        let records = acquired.iter().map(|run| run.last - run.first + 1);
        self.shared.shares.counts.acquired.inc_by(records.sum());
        acquired
    }

    /// From `first` to `last` there is nothing to acquire.
    pub fn pass_over(&self, first: Ordinal, last: Ordinal) {
        if let Some(opened) = self.opened() {
            let mut standing = opened.standing.lock();
            standing.partition.pass_over(first, last);
            self.changed(&mut standing);
        }
    }

    /// Nobody will ever read the records from `first` to `last`: their loss was accepted.
    pub fn give_up(&self, first: Ordinal, last: Ordinal) {
        let ShareKey {
            group,
            stream,
            partition,
        } = &self.share.key;
        tracing::warn!(%group, %stream, partition, first, last, "a share group passes over records that were given up");
        self.pass_over(first, last);
    }

    /// Whether the session has acquired all that it says something of, by what is locked now.
    ///
    /// # Errors
    /// It has not, or nothing is served any more.
    pub fn check(&self, said: &[(Ordinal, Ordinal, Acknowledgement)]) -> Result<(), ShareError> {
        if let Some(error) = self.ended() {
            return Err(error);
        }
        let opened = self.opened().ok_or(ShareError::Fenced)?;
        let mut standing = opened.standing.lock();
        if self.end_locks(&mut standing) {
            self.changed(&mut standing);
            self.share.news.notify_waiters();
        }
        for (first, last, _) in said {
            standing.partition.check(self.holder, *first, *last)?;
        }
        Ok(())
    }

    /// The session says what became of records: for each run of them from where to where. Either all counts or nothing.
    /// What is told is to be given to [`Self::kept`].
    ///
    /// # Errors
    /// It has not acquired all of them, or nothing is served any more.
    pub fn acknowledge(
        &self,
        said: &[(Ordinal, Ordinal, Acknowledgement)],
    ) -> Result<u64, ShareError> {
        if let Some(error) = self.ended() {
            return Err(error);
        }
        let opened = self.opened().ok_or(ShareError::Fenced)?;
        let counts = &self.shared.shares.counts;
        let most = self.most(opened);
        let mut standing = opened.standing.lock();
        let before = standing.partition.next(most);
        if self.end_locks(&mut standing) {
            self.changed(&mut standing);
            self.share.news.notify_waiters();
        }
        for (first, last, _) in said {
            standing.partition.check(self.holder, *first, *last)?;
        }
        let until_ms = opened.locked_until();
        for (first, last, what) in said {
            let partition = &mut standing.partition;
            let changed = partition.acknowledge(self.holder, *first, *last, *what, until_ms)?;
            let count = match what {
                Acknowledgement::Accept => &counts.accepted,
                Acknowledgement::Release => &counts.released,
                Acknowledgement::Reject => &counts.rejected,
                Acknowledgement::Renew => &counts.renewed,
            };
            count.inc_by(changed);
        }
        // Locks are not kept: a renewal alone leaves nothing to wait for.
        let is_renewal = |(.., what): &(_, _, Acknowledgement)| *what == Acknowledgement::Renew;
        let version = match said.iter().all(is_renewal) {
            true => {
                self.weigh(&mut standing);
                standing.kept
            }
            false => {
                self.changed(&mut standing);
                standing.version
            }
        };
        // What is given back is for others, and what is done may make room. Otherwise nobody is woken: members that wait for
        // records that nobody has sent yet would look at all their partitions with each acknowledgement of another.
        let is_news = standing.partition.next(most) != before && !Rule::ShareNewsKept.is_broken();
        drop(standing);
        if is_news {
            self.share.news.notify_waiters();
        }
        Ok(version)
    }

    /// Waits until the coordinator has kept where the group stands here.
    ///
    /// # Errors
    /// It refuses that, or does not answer in time.
    async fn confirm(&self) -> Result<(), ShareError> {
        let opened = self.opened().ok_or(ShareError::Fenced)?;
        let version = {
            let mut standing = opened.standing.lock();
            self.changed(&mut standing);
            standing.version
        };
        self.kept(version).await
    }

    /// Waits until what was acknowledged is kept.
    ///
    /// # Errors
    /// It is not, or not in time.
    pub async fn kept(&self, version: u64) -> Result<(), ShareError> {
        if Rule::SharesAnsweredEarly.is_broken() {
            return Ok(());
        }
        let opened = self.opened().ok_or(ShareError::Fenced)?;
        let waits = async {
            loop {
                let kept = self.share.kept.notified();
                {
                    let standing = opened.standing.lock();
                    if standing.kept >= version {
                        return Ok(());
                    }
                    if let Some(error) = &standing.ended {
                        return Err(error.clone());
                    }
                }
                kept.await;
            }
        };
        let waited = tokio::time::timeout(KEPT_WITHIN, waits).await;
        waited.unwrap_or(Err(ShareError::Late))
    }

    /// Whether the session has acquired something here.
    pub fn holds_any(&self) -> bool {
        let opened = self.opened();
        opened.is_some_and(|opened| opened.standing.lock().partition.is_held_by(self.holder))
    }

    /// How long until the next lock ends.
    pub fn next_expiry(&self) -> Option<Duration> {
        let until = self.opened()?.standing.lock().partition.next_expiry()?;
        Some(Duration::from_millis(until.saturating_sub(now_ms())))
    }

    /// Ends when something may have become available; from when this is called, not from when it is waited for.
    pub fn news(&self) -> Notified<'_> {
        self.share.news.notified()
    }

    /// Gives back what was acquired for as long as it may be. True if there was something.
    fn end_locks(&self, standing: &mut Standing) -> bool {
        let ended = !Rule::ShareLocksEndless.is_broken() && standing.partition.expire(now_ms());
        if ended {
            self.shared.shares.counts.expired.inc();
        }
        ended
    }

    /// Has dead letters made of what the owner before has left.
    fn bury(&self) {
        if let Some(opened) = self.opened() {
            self.begin_to_bury(&mut opened.standing.lock());
        }
    }

    /// Has dead letters made of what is given up, unless somebody is about it.
    fn begin_to_bury(&self, standing: &mut Standing) {
        if standing.burying || standing.ended.is_some() || !standing.partition.has_given_up() {
            return;
        }
        // Without a runtime the broker is going down, and the next owner does it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            standing.burying = true;
            // As long as this one is there nobody forgets the partition.
            self.share.users.fetch_add(1, Ordering::Relaxed);
            let (shared, share) = (self.shared.clone(), self.share.clone());
            let holder = shared.shares.new_holder();
            // A runtime that ends drops here, under the lock, what has not begun: there is nothing yet that takes the lock.
            runtime.spawn(async move {
                let other = Self {
                    shared,
                    share,
                    holder,
                };
                dead_letters::bury(other).await;
            });
        }
    }

    /// What is given up, so many records of it at most, and what is to be kept before it may be dead letters; `None` if there
    /// is nothing, or no more to do here, and then nobody is about it.
    pub(super) fn next_given_up(&self, most: u64) -> Option<(Vec<GivenUp>, u64)> {
        let opened = self.opened()?;
        let is_owned = self.share.is_owned(&self.shared);
        let mut standing = opened.standing.lock();
        let given_up = match is_owned && standing.ended.is_none() {
            true => standing.partition.given_up(most),
            false => Vec::new(),
        };
        standing.burying = !given_up.is_empty();
        standing.burying.then(|| (given_up, standing.version))
    }

    /// These are dead letters, or never will be: they are done.
    pub(super) fn buried(&self, given_up: &[GivenUp]) {
        let Some(opened) = self.opened() else { return };
        let mut standing = opened.standing.lock();
        for run in given_up {
            standing.partition.buried(run.first, run.last);
        }
        self.changed(&mut standing);
        drop(standing);
        // There may be room for more.
        self.share.news.notify_waiters();
    }

    /// Whose records these are.
    pub(super) fn key(&self) -> &ShareKey {
        &self.share.key
    }

    /// The broker.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Something is to be kept.
    fn changed(&self, standing: &mut Standing) {
        self.weigh(standing);
        standing.version += 1;
        self.begin_to_bury(standing);
        if standing.writing || standing.ended.is_some() {
            return;
        }
        // Without a runtime the broker is going down, and what is not kept is delivered again.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            standing.writing = true;
            runtime.spawn(keep(self.shared.clone(), self.share.clone()));
        }
    }

    fn weigh(&self, standing: &mut Standing) {
        let runs = standing.partition.runs();
        let before = std::mem::replace(&mut standing.runs, runs);
        let all = &self.shared.shares.runs;
        all.fetch_add(runs, Ordering::Relaxed);
        all.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(opened) = self.opened() {
            let mut standing = opened.standing.lock();
            if standing.partition.release(self.holder) {
                self.changed(&mut standing);
                drop(standing);
                self.share.news.notify_waiters();
            }
        }
        {
            let _open = self.shared.shares.open.lock();
            self.share.users.fetch_sub(1, Ordering::Relaxed);
        }
        self.shared.shares.let_go(&self.share);
    }
}

/// Has the coordinator keep what changed, as often as it takes.
async fn keep(shared: Arc<Shared>, share: Arc<OwnedShare>) {
    if let Some(opened) = share.opened.get() {
        while let Some((state, version)) = to_keep(opened) {
            let written = ask::write(&shared, &share.key, opened.state_epoch, &state).await;
            match written {
                Ok(()) => opened.standing.lock().kept = version,
                Err(ShareError::Coordinator(error)) if share.is_owned(&shared) => {
                    tracing::debug!(group = %share.key.group, %error, "what a share group has read is not kept yet");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(ShareError::Full) if share.is_owned(&shared) => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    tracing::info!(group = %share.key.group, partition = share.key.partition, %error, "a share group is not served in a partition any more");
                    opened.standing.lock().ended = Some(error);
                    share.news.notify_waiters();
                }
            }
            share.kept.notify_waiters();
        }
    }
    shared.shares.let_go(&share);
}

/// What is to be kept next; `None` if nothing is, which ends the writer.
fn to_keep(opened: &Opened) -> Option<(ShareState, u64)> {
    let mut standing = opened.standing.lock();
    if standing.ended.is_some() || standing.kept == standing.version {
        standing.writing = false;
        return None;
    }
    Some((standing.partition.state(), standing.version))
}
