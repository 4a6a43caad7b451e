//! Work in the background: closed groups get back the copies that they have lost, copies are compared
//! and those that are damaged replaced, they move from brokers that hold much or leave to others, open
//! groups that were begun with too few end once more can be had, and what nobody needs any more is given
//! back.
//!
//! All state is in the records and at the backups, so a round may be broken off anywhere and begun
//! again by anyone: what was built and not recorded is freed by a later round. A copy is built aside,
//! at a broker that no record names for the group yet; it is checked there, batch by batch, against the
//! recorded length and end, brought to disk, and only then added, by a transaction that compares the
//! record's revision. No head waits for any of it.

mod flushed;
mod lists;
mod re_replicate;
mod remembered;
mod scrub;
mod shift;
mod ship;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kera_protocol::ids::Epoch;
use parking_lot::Mutex;

pub use remembered::{Followed, FollowedNow};
pub use scrub::{Harm, Mend, Mended};
pub use shift::{Shift, ShiftsNow};
pub use ship::Rewritten;

pub(crate) use lists::Held;
use lists::Known;

use crate::ids::{BrokerId, CopyId, Replica, StreamletKey};
use crate::pace::Pace;
use crate::primary::tidy;
use crate::primary::{Lane, Lives, MoreReplicas, Primary};
use crate::runtime::{all, within};
use crate::seldom::Seldom;
use crate::signal::Signal;
use crate::transport::Pending;

/// Pause before the next round, where one has left something to do.
const GO_ON: Duration = Duration::from_millis(200);
/// Open groups that a round ends are waited for so long: the next round finds them closed.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);
/// How often it looks whether they are.
const LOOK: Duration = Duration::from_millis(50);
/// A round that somebody asks for begins within this time, so that those of many brokers do not all begin
/// at once.
const SOON: Duration = Duration::from_secs(1);

/// How the jobs go about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobConfig {
    /// Between two rounds; each wait is up to a quarter longer or shorter, so that brokers that were
    /// started together do not work together.
    pub interval: Duration,
    /// Bytes copied per second at most.
    pub bytes_per_second: u64,
    /// A holder that has not answered for so long counts as lost: its groups get other copies.
    pub lost_after: Duration,
    /// Copies built in one round at most; the next round, which goes on with the others, begins at once.
    pub builds: usize,
    /// After so long the copies of a closed group are compared again; waits vary as those between
    /// rounds do.
    pub scrub_interval: Duration,
}

impl Default for JobConfig {
    /// Every minute; 32 MiB a second; lost after ten minutes; 64 copies a round; compared every week.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(60),
            bytes_per_second: 32 << 20,
            lost_after: Duration::from_secs(600),
            builds: 64,
            scrub_interval: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// A streamlet that this broker owns.
#[derive(Clone)]
pub struct Owned {
    /// The streamlet.
    pub streamlet: StreamletKey,
    /// The epoch under which it is this broker's.
    pub epoch: Epoch,
    /// Copies that each closed group should have.
    pub replicas: usize,
    /// Copies without which no record is left.
    pub min_insync_replicas: usize,
    /// Its lanes, as far as they take appends: their open groups are looked at too.
    pub lanes: Vec<Arc<Lane>>,
    /// Puts this broker's own files right, if they are copies.
    pub mend: Option<Arc<dyn Mend>>,
}

/// Says what this broker owns at present: of all streamlets, or of one.
pub type OwnedNow = Box<dyn Fn(Option<StreamletKey>) -> Vec<Owned> + Send + Sync>;

/// What the jobs have done since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobStats {
    /// Rounds ended.
    pub rounds: u64,
    /// Copies built and recorded.
    pub built: u64,
    /// Bytes copied for them.
    pub bytes: u64,
    /// Copies built that replace others where those were not needed, or too many, and nothing was lost.
    pub shifted: u64,
    /// Copies given up because their groups had more than they are to have.
    pub surplus: u64,
    /// Copies freed that no record named.
    pub freed: u64,
    /// Closed copies brought to disk.
    pub flushed: u64,
    /// What could not be done, and is tried again.
    pub failed: u64,
    /// Open groups with too few copies that were ended, so that their lanes go on with more.
    pub renewed: u64,
    /// Closed groups that had too few copies when they were last looked at.
    pub wanting: u64,
    /// Closed groups whose copies were compared.
    pub scrubbed: u64,
    /// Bytes read for that, at all holders together.
    pub scrubbed_bytes: u64,
    /// Copies found that were not whole.
    pub damaged: u64,
    /// Copies found to be gone.
    pub missing: u64,
    /// Copies found whole that differ from others.
    pub differing: u64,
    /// Copies of these three kinds that were replaced.
    pub mended: u64,
    /// Groups that have such copies now, as far as is known.
    pub unsound: u64,
    /// How long ago the last round ended.
    pub round_ended: Option<Duration>,
    /// How long ago the copies of some streamlet's groups had all been compared.
    pub scrub_ended: Option<Duration>,
    /// Streamlets owned, whose copies are compared in turn.
    pub scrub_streamlets: u64,
    /// Those of them that have had their turn since this broker has owned them.
    pub scrub_done: u64,
    /// Since how long ago all of them have had their turn; `None`: not all had one yet.
    pub scrub_whole: Option<Duration>,
}

/// The jobs of one broker. They end when its [`Primary`] is dropped.
pub struct Jobs {
    primary: Weak<Primary>,
    owned: OwnedNow,
    config: JobConfig,
    pace: Pace,
    counts: Mutex<JobStats>,
    /// Since when each broker has not answered.
    silent: Mutex<BTreeMap<BrokerId, Duration>>,
    plan: Mutex<scrub::Plan>,
    turns: Mutex<turns::Turns>,
    /// Says which copies are to move.
    shifts: OnceLock<ShiftsNow>,
    /// Says how far streamlets' records are followed.
    followed: OnceLock<FollowedNow>,
    remembered: Mutex<remembered::Remembered>,
    lists: Mutex<lists::Remembered>,
    /// Somebody asks for a round.
    asked: Arc<Signal>,
    ended: Mutex<Ended>,
    /// The last round ended open groups.
    renewed: AtomicBool,
    /// Recorded replicas of closed groups whose brokers answered in the last round that they do not have
    /// them, and for which there is no other yet.
    missing: Mutex<BTreeMap<CopyId, Vec<BrokerId>>>,
    /// Groups of which no copy could be made, as the log tells of them.
    unrepaired: Mutex<Seldom>,
    /// Held by whoever changes a closed group's copies, from a look at its record on.
    repairing: tokio::sync::Mutex<()>,
}

/// When work ended last, in the runtime's time.
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    round: Option<Duration>,
    scrub: Option<Duration>,
}

/// Who is recorded for a group, and is there.
#[derive(Default)]
struct Standing {
    /// They have it.
    have: Vec<Replica>,
    /// They do not answer; they may have it.
    silent: Vec<Replica>,
    /// They have it, and are to be emptied: they give it to others, and do not count.
    leaving: Vec<Replica>,
    /// They answer, and do not have it.
    missing: Vec<BrokerId>,
}

impl Standing {
    /// Whether that is enough without those that leave. Silent ones count for the replicas that a group should have; but
    /// for nobody is a replica given up as long as fewer can be read than acknowledged records must have.
    fn suffices(&self, owned: &Owned) -> bool {
        let can_be_read = self.leaving.is_empty() || self.have.len() >= owned.min_insync_replicas;
        can_be_read && self.have.len() + self.silent.len() >= owned.replicas
    }
}

impl Jobs {
    /// The jobs of a broker that owns what `owned` says.
    pub fn new(primary: &Arc<Primary>, owned: OwnedNow, config: JobConfig) -> Arc<Self> {
        Arc::new(Self {
            primary: Arc::downgrade(primary),
            owned,
            config,
            pace: Pace::new(config.bytes_per_second, u64::from(primary.me.0)),
            counts: Mutex::default(),
            unrepaired: Mutex::default(),
            silent: Mutex::default(),
            plan: Mutex::default(),
            turns: Mutex::default(),
            shifts: OnceLock::new(),
            followed: OnceLock::new(),
            remembered: Mutex::default(),
            lists: Mutex::default(),
            asked: Arc::default(),
            ended: Mutex::default(),
            renewed: AtomicBool::default(),
            missing: Mutex::default(),
            repairing: tokio::sync::Mutex::default(),
        })
    }

    /// Says which copies are to move. Only the first word counts; without it none do.
    pub fn set_shifts(&self, shifts: ShiftsNow) {
        let _only_once = self.shifts.set(shifts);
    }

    /// A round is to begin soon: something has changed that there is work for, like a broker that comes or
    /// leaves. Cheap.
    pub fn ask(&self) {
        self.asked.notify();
    }

    /// What they have done so far.
    pub fn stats(&self) -> JobStats {
        let now = self.primary.upgrade().map(|primary| primary.runtime.now());
        let ended = *self.ended.lock();
        let ago = |then: Option<Duration>| Some(now?.saturating_sub(then?));
        let owned = (self.owned)(None);
        let plan = self.plan.lock();
        let (scrub_done, scrub_whole) = plan.done(owned.iter().map(|one| one.streamlet));
        JobStats {
            unsound: plan.unsound(),
            round_ended: ago(ended.round),
            scrub_ended: ago(ended.scrub),
            scrub_streamlets: owned.len() as u64,
            scrub_done,
            scrub_whole: ago(scrub_whole),
            ..*self.counts.lock()
        }
    }

    /// Closed groups that lacked the bytes of recorded replicas when they were last looked at, and the brokers
    /// that are recorded to have them.
    pub fn missing(&self) -> BTreeMap<CopyId, Vec<BrokerId>> {
        self.missing.lock().clone()
    }

    /// Takes note of what a look at a streamlet's groups has `found` to be missing, and of what is `left` of that
    /// where another replica could be made at once.
    fn note_missing(
        &self,
        streamlet: StreamletKey,
        found: &BTreeMap<CopyId, Vec<BrokerId>>,
        left: BTreeMap<CopyId, Vec<BrokerId>>,
    ) {
        let mut missing = self.missing.lock();
        let new = found.iter().filter(|(copy, _)| !missing.contains_key(copy));
        let new: Vec<_> = new.collect();
        let at: BTreeSet<_> = new
            .iter()
            .flat_map(|(_, at)| *at)
            .map(|broker| broker.0)
            .collect();
        let first = new.first().map(|(copy, _)| copy.group.0);
        if let Some(first) = first {
            tracing::warn!(%streamlet, groups = new.len(), first, ?at, "brokers do not have replicas of closed groups that are recorded there; others are made of those that are left");
        }
        let before = missing.range(CopyId::all_of(streamlet));
        let before: Vec<_> = before.map(|(copy, _)| *copy).collect();
        for copy in before {
            missing.remove(&copy);
        }
        missing.extend(left);
    }

    /// Waits until `bytes` more may be copied for the sake of these streamlets, for somebody who copies
    /// beside the jobs: both together keep to [`JobConfig::bytes_per_second`].
    pub async fn may_copy(&self, bytes: u64) {
        let runtime = self
            .primary
            .upgrade()
            .map(|primary| primary.runtime.clone());
        if let Some(runtime) = runtime {
            self.pace.take(&*runtime, bytes).await;
        }
    }

    /// Works round after round, until the primary is dropped. One that had more to do than a round may is
    /// followed by the next at once: how much is copied is limited by bytes per second and not by rounds.
    pub async fn run(self: Arc<Self>) {
        let mut more = false;
        let mut seen = self.asked.seen();
        loop {
            let Some(primary) = self.primary.upgrade() else {
                return;
            };
            let runtime = primary.runtime.clone();
            drop(primary);
            let interval = self.config.interval;
            let wait = if more { GO_ON.min(interval) } else { interval };
            let asked = self.asked.clone();
            let asking: Pending<()> = Box::pin(async move { asked.changed(seen).await });
            if within(&*runtime, self.pace.about(wait), asking)
                .await
                .is_some()
            {
                runtime.sleep(self.pace.within(SOON.min(interval))).await;
            }
            seen = self.asked.seen();
            more = self.work().await;
        }
    }

    /// One round over all that this broker owns.
    pub async fn round(&self) {
        self.work().await;
    }

    /// One round; true if it has got something done and there is more of that.
    async fn work(&self) -> bool {
        let Some(primary) = self.primary.upgrade() else {
            return false;
        };
        let owned = (self.owned)(None);
        let by_key: BTreeMap<_, _> = owned.iter().map(|one| (one.streamlet, one)).collect();
        let is_owned = |key: &StreamletKey| by_key.contains_key(key);
        self.forget_others(is_owned);
        // The lists first, the records after them: see `tidy`.
        let mine: Vec<_> = by_key.keys().copied().collect();
        let mut held = self.held(&primary, &mine).await;
        for (streamlet, one) in &by_key {
            let lists = held.of_streamlet(*streamlet);
            if lists.is_empty() {
                continue;
            }
            let found = self.remembered(&primary, one).await;
            if found.is_some_and(|found| !tidy::has_work(&primary, &found, one.epoch, &lists)) {
                continue;
            }
            let tidied = tidy::listed(&primary, (*streamlet, one.epoch), &lists).await;
            {
                let mut counts = self.counts.lock();
                counts.freed += tidied.freed;
                counts.flushed += tidied.flushed;
                counts.failed += tidied.failed;
            }
            held.short.extend(tidied.short);
            held.on_disk.extend(tidied.on_disk);
        }
        self.tell_flushed(&primary, &owned, &held).await;
        for mend in owned.iter().filter_map(|one| one.mend.as_ref()) {
            let freed = mend.tidy().await;
            self.counts.lock().freed += freed;
        }
        self.part_with_former(&primary, &owned).await;
        let built_before = self.counts.lock().built;
        let mut left = self.config.builds;
        let mut wanting = 0;
        for one in &owned {
            wanting += self.repair(&primary, one, &held, &mut left).await;
        }
        self.counts.lock().wanting = wanting;
        let renewed = self.renew(&primary, &owned).await;
        // What is lost comes first.
        let shifted = match left {
            0 => false,
            _ => self.shift(&primary, &by_key, &held, left).await,
        };
        self.counts.lock().rounds += 1;
        self.ended.lock().round = Some(primary.runtime.now());
        let built = self.counts.lock().built > built_before;
        // What was ended is closed by then; once, so that nothing goes round and round.
        let first_renewal = !self.renewed.swap(renewed, Ordering::Relaxed) && renewed;
        shifted || first_renewal || (left == 0 && built)
    }

    /// Sees to what lanes have at brokers that were booted since, or are lost: groups recorded ahead are
    /// deleted, and open groups end without them. A lane that rests does not come to either by itself.
    async fn part_with_former(&self, primary: &Primary, owned: &[Owned]) {
        let runtime = &*primary.runtime;
        let lanes = || owned.iter().flat_map(|one| &one.lanes);
        let named = lanes().flat_map(|lane| [lane.brokers_ahead(), lane.brokers_open()]);
        let mut named: BTreeSet<_> = named.flatten().collect();
        let asks = named.iter().map(|broker| primary.describe(*broker));
        let answers = all(asks.collect()).await;
        let now: Vec<_> = answers.into_iter().flatten().collect();
        let is_silent = |broker: &BrokerId| now.iter().all(|is| is.broker != *broker);
        named.retain(|broker| is_silent(broker) && self.is_lost(*broker, runtime.now()));
        let lives = Lives { now, lost: named };
        for lane in lanes() {
            lane.lose_former(&lives);
            if lane.delete_useless_ahead(&lives).await {
                // As with those that are renewed: each is a transaction.
                let cost = u64::from(primary.config.first_buffer_bytes);
                self.pace.take(runtime, cost).await;
            }
        }
    }

    /// Ends open groups whose copies are not where they should be, and sees them closed; true if there were
    /// any.
    async fn renew(&self, primary: &Arc<Primary>, owned: &[Owned]) -> bool {
        let (runtime, mut more) = (&*primary.runtime, MoreReplicas::default());
        let mut ended = Vec::new();
        for lane in owned.iter().flat_map(|one| &one.lanes) {
            for set in lane.renew(&mut more).await {
                self.counts.lock().renewed += 1;
                // Each takes a close and an open: what that costs others is bounded like everything here.
                let cost = u64::from(primary.config.first_buffer_bytes);
                self.pace.take(runtime, cost).await;
                ended.push(set);
            }
        }
        let any = !ended.is_empty();
        let until = runtime.now() + CLOSED_WITHIN;
        while ended.iter().any(|set| !set.is_closed()) && runtime.now() < until {
            runtime.sleep(LOOK).await;
        }
        any
    }
}
