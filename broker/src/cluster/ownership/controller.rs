//! The controller at work: what [`kera_controller`] decides, at the broker that was elected.
//!
//! Streamlets of an owner that is gone get new owners in bulk, by transactions that compare each
//! streamlet's revision and that this broker still is controller. Everything else is a hand-over, which
//! the owner makes when it is asked. A controller that is over, or two that both believe to be one, do no
//! harm: what one has recorded the other's comparisons refuse.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kera_controller::{
    Cause, Limits, Member, Members, Move, Picture, Plan, Stranded, UnderWay, plan, refused,
    takeovers,
};
use kera_metadata::{ClusterStore, Compare, Conflict, Living, MetadataError, Transaction};
use kera_protocol::ids::StreamletKey;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::external_moves::Movers;
use super::suspicion::Suspects;
use crate::cluster::cluster_view::ClusterView;
use crate::cluster::counts::ControllerMetrics;

/// When the controller acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// A broker whose lease ended is given so long to be back.
    pub grace: Duration,
    /// The same for one that this process has not seen alive: all may be starting.
    pub unseen: Duration,
    /// Nobody is replaced for so long after this broker's own lease began: if it had ended because the
    /// store was away, the others' leases have ended too and they are about to be back.
    pub back: Duration,
    /// Balancing waits so long after brokers came, went or changed.
    pub settle: Duration,
    /// Balancing waits so long after somebody else moved a streamlet: an exchange takes two moves, and it
    /// would undo the first.
    pub moved: Duration,
    /// A streamlet whose hand-over failed is left alone for so long.
    pub rest: Duration,
    /// After so long without a word of any holder of a streamlet's open groups others own it, so that an operator can accept
    /// what is lost: `cluster.lost_after`.
    pub lost: Duration,
    /// The longest time between two looks.
    pub look: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            grace: Duration::from_millis(200),
            unseen: Duration::from_secs(10),
            back: Duration::from_secs(3),
            settle: Duration::from_secs(2),
            moved: Duration::from_secs(5),
            rest: Duration::from_secs(5),
            lost: Duration::from_secs(600),
            look: Duration::from_secs(1),
        }
    }
}

/// A streamlet that was handed over is left alone for so long, until its record is seen.
const SEEN_WITHIN: Duration = Duration::from_secs(2);
/// It counts as the new owner's for so long, if its record is not seen before: longer than any watch is behind.
const COUNTED_FOR: Duration = Duration::from_secs(60);
/// Pause after the store did not take what was decided.
const RECORD_AGAIN: Duration = Duration::from_millis(100);

/// Asks owners to hand streamlets over.
pub(crate) trait HandOvers: Send + Sync + 'static {
    /// Returns once the new owner is recorded, or says why it is not.
    fn ask(&self, one: Move) -> BoxFuture<'static, Result<(), String>>;
}

/// The comparison that this broker is controller; `None` while it is not.
pub(crate) type Fence = Box<dyn Fn() -> Option<Compare> + Send + Sync>;

/// What a controller works with.
pub(crate) struct Tools {
    pub(crate) store: Arc<dyn ClusterStore>,
    pub(crate) cluster_view: Arc<ClusterView>,
    pub(crate) fence: Fence,
    pub(crate) hand_overs: Arc<dyn HandOvers>,
    /// Brokers that are most likely gone though their lease goes on.
    pub(crate) suspects: watch::Receiver<Suspects>,
    pub(crate) allow_same_host: bool,
    pub(crate) timing: Timing,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<ControllerMetrics>,
}

/// A broker that is or may become controller.
pub(crate) struct Controller {
    tools: Tools,
    living: Living,
    suspects: Suspects,
    /// Brokers whose certificates the others refuse: alive, and reached by nobody.
    refused: BTreeSet<u32>,
    /// Every broker that was seen alive, as it was last.
    known: BTreeMap<u32, Member>,
    /// Brokers that are not alive, and since when.
    missing: BTreeMap<u32, Instant>,
    began: Instant,
    /// When this broker's lease last began.
    back: Instant,
    /// When brokers last came, went or changed.
    stirred: Instant,
    /// When somebody else last moved a streamlet.
    moved: Option<Instant>,
    movers: Movers,
    asked: JoinSet<(Move, Result<(), String>)>,
    under_way: BTreeSet<Move>,
    /// Hand-overs that were made, and until when they count though their records are not seen.
    made: BTreeMap<Move, Instant>,
    resting: BTreeMap<StreamletKey, Instant>,
    /// What was last said to be stranded.
    told: Vec<Stranded>,
}

/// What one look decided.
struct Decided {
    plan: Plan,
    transactions: Vec<Transaction>,
}

impl Controller {
    pub(crate) fn new(tools: Tools) -> Self {
        let now = Instant::now();
        Self {
            tools,
            living: Living::default(),
            suspects: Suspects::new(),
            refused: BTreeSet::new(),
            known: BTreeMap::new(),
            missing: BTreeMap::new(),
            began: now,
            back: now,
            stirred: now,
            moved: None,
            movers: Movers::default(),
            asked: JoinSet::new(),
            under_way: BTreeSet::new(),
            made: BTreeMap::new(),
            resting: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    /// Watches, and decides while `elected` has a term, until `stopping` is set. `valid` tells whether this
    /// broker has a lease.
    pub(crate) async fn run(
        mut self,
        mut elected: watch::Receiver<Option<u64>>,
        mut valid: watch::Receiver<bool>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let mut living = self.tools.store.living();
        let mut owners = self.tools.cluster_view.owners();
        let mut suspects = self.tools.suspects.clone();
        let mut term = None;
        let mut leased = false;
        loop {
            let now_leased = *valid.borrow_and_update();
            if now_leased && !leased {
                self.back = Instant::now();
            }
            leased = now_leased;
            let now_living = living.borrow_and_update().clone();
            self.look_round(now_living);
            self.suspects.clone_from(&suspects.borrow_and_update());
            let owners_changed = owners.borrow_and_update().has_changed();
            let now_term = *elected.borrow_and_update();
            if now_term != term {
                term = now_term;
                self.told.clear();
                match term {
                    Some(term) => {
                        let movers = &mut self.movers;
                        let begun = self
                            .tools
                            .cluster_view
                            .read(|picture| movers.begin(picture));
                        begun.unwrap_or_default();
                        self.tools.metrics.elected();
                        tracing::info!(term, "this broker is controller");
                    }
                    None => {
                        self.tools.metrics.over();
                        tracing::info!("this broker is not controller any more");
                    }
                }
            }
            let again = match term {
                Some(_) => {
                    let again = self.step(owners_changed).await;
                    let under_way = self.under_way.len() as u64;
                    self.tools.metrics.looked(self.without_owner(), under_way);
                    again
                }
                None => Instant::now() + self.tools.timing.look,
            };
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => return,
                changed = living.changed() => if changed.is_err() { return },
                changed = elected.changed() => if changed.is_err() { return },
                changed = valid.changed() => if changed.is_err() { return },
                changed = suspects.changed() => if changed.is_err() { return },
                changed = owners.changed() => if changed.is_err() { return },
                Some(ended) = self.asked.join_next(), if !self.asked.is_empty() => {
                    if let Ok((one, outcome)) = ended {
                        self.ended(one, outcome);
                    }
                }
                () = tokio::time::sleep_until(again) => {}
            }
        }
    }

    /// Takes note of who lives.
    fn look_round(&mut self, living: Living) {
        let now = Instant::now();
        let members: BTreeMap<u32, Member> = living
            .iter()
            .map(|(id, live)| (*id, Member::from(live)))
            .collect();
        let known = self
            .living
            .iter()
            .map(|(id, live)| (*id, Member::from(live)));
        if !known.eq(members.iter().map(|(id, member)| (*id, member.clone()))) {
            self.stirred = now;
        }
        for id in self.known.keys() {
            if !members.contains_key(id) {
                self.missing.entry(*id).or_insert_with(|| {
                    tracing::warn!(broker = id, "the broker is not alive any more");
                    now
                });
            }
        }
        self.missing.retain(|id, _| !members.contains_key(id));
        self.known.extend(members);
        let refused: BTreeSet<u32> = refused(&living).into_keys().collect();
        if refused != self.refused {
            self.stirred = now;
        }
        self.refused = refused;
        self.living = living;
    }

    /// Takes note of who owns what; true if somebody else made moves between brokers that stay.
    fn look_at_owners(&mut self) -> bool {
        let living = &self.living;
        let stays = |id: u32| {
            let found = living.get(&id);
            found.is_some_and(|live| live.may_own())
        };
        let movers = &mut self.movers;
        let read = |picture: &Picture| movers.look(picture, stays);
        let moved = self.tools.cluster_view.read(read) == Some(true);
        if moved {
            self.moved = Some(Instant::now());
        }
        moved
    }

    /// True if the broker is alive as far as anybody can tell, and the others reach it.
    fn lives(&self, id: u32) -> bool {
        self.living.contains_key(&id) && !self.is_away(id)
    }

    /// True if it is known that nobody reaches the broker, whose lease goes on.
    fn is_away(&self, id: u32) -> bool {
        self.suspects.contains(&id) || self.refused.contains(&id)
    }

    fn members(&self) -> Members {
        let members = self.living.values().filter(|live| self.lives(live.id));
        let members = members.map(Member::from);
        Members::new(members, self.tools.allow_same_host).remembering(self.known.values())
    }

    /// Decides and acts; when to look again unless something happens before.
    async fn step(&mut self, owners_changed: bool) -> Instant {
        let now = Instant::now();
        let timing = self.tools.timing;
        let mut again = now + timing.look;
        self.resting.retain(|_, until| *until > now);
        self.made.retain(|_, until| *until > now);
        let mut settled = self.stirred + timing.settle;
        if let Some(moved) = self.moved {
            settled = settled.max(moved + timing.moved);
        }
        if settled > now {
            again = again.min(settled);
        }
        let mut under_way = UnderWay {
            moves: self.under_way.clone(),
            made: self.made.keys().copied().collect(),
            resting: self.resting.keys().copied().collect(),
            awaited: BTreeSet::new(),
            forsaken: self.forsaken(),
            unsettled: settled > now,
        };
        for (id, until) in self.awaited() {
            if until > now {
                under_way.awaited.insert(id);
                again = again.min(until);
            }
        }
        let Some(mut decided) = self.decide(under_way).await else {
            return again;
        };
        // Only now, so that it sees whatever the plan rests on.
        let evens_out = |one: &Move| one.cause == Cause::Balance;
        if (owners_changed || decided.plan.moves.iter().any(evens_out))
            && self.look_at_owners()
            && timing.moved > Duration::ZERO
        {
            decided.plan.moves.retain(|one| !evens_out(one));
        }
        self.tell(decided.plan.stranded);
        for one in &decided.plan.moves {
            self.movers.asked(one);
        }
        if !decided.transactions.is_empty() {
            if !self
                .take_over(&decided.plan.moves, decided.transactions)
                .await
            {
                again = again.min(Instant::now() + RECORD_AGAIN);
            }
            return again;
        }
        for one in decided.plan.moves {
            tracing::info!(
                stream = %one.stream, streamlet = one.streamlet.0, from = one.from, to = one.to,
                cause = ?one.cause, "asking for a hand-over"
            );
            self.under_way.insert(one);
            let asking = self.tools.hand_overs.ask(one);
            self.asked.spawn(async move { (one, asking.await) });
        }
        again
    }

    /// Owners that are not alive, and until when each is waited for.
    fn awaited(&self) -> BTreeMap<u32, Instant> {
        let owners = self.tools.cluster_view.read(|picture| {
            let owners = picture.streamlets().map(|(_, _, s)| s.owner());
            owners.collect::<BTreeSet<_>>()
        });
        let timing = self.tools.timing;
        let gone = owners.into_iter().flatten();
        let gone = gone.filter(|id| !self.lives(*id));
        let back = self.back + timing.back;
        let deadline = |id: u32| match self.missing.get(&id) {
            // That has its own proof.
            _ if self.is_away(id) => self.began,
            Some(since) => back.max(*since + timing.grace),
            None => back.max(self.began + timing.unseen),
        };
        gone.map(|id| (id, deadline(id))).collect()
    }

    /// Holders of open groups of which nothing was heard for long.
    fn forsaken(&self) -> BTreeSet<u32> {
        let lost = self.tools.timing.lost;
        let holders = self.tools.cluster_view.read(|picture| {
            let streamlets = picture.streamlets();
            let orphans = streamlets.filter(|(_, _, s)| !self.lives(s.owner()));
            let holders = orphans.flat_map(|(_, _, s)| s.open_holders());
            holders.collect::<BTreeSet<_>>()
        });
        let is_gone = |id: &u32| {
            let since = self.missing.get(id).copied().unwrap_or(self.began);
            !self.living.contains_key(id) && since.elapsed() >= lost
        };
        let holders = holders.into_iter().flatten();
        holders.filter(is_gone).collect()
    }

    /// How many streamlets have an owner that is not alive.
    fn without_owner(&self) -> u64 {
        let count = self.tools.cluster_view.read(|picture| {
            let streamlets = picture.streamlets();
            streamlets
                .filter(|(_, _, s)| !self.lives(s.owner()))
                .count()
        });
        count.unwrap_or(0) as u64
    }

    async fn decide(&self, under_way: UnderWay) -> Option<Decided> {
        let (members, limits) = (self.members(), self.tools.limits);
        let cluster_view = self.tools.cluster_view.clone();
        // Beside the changes, each of these transactions compares that this broker is controller.
        let most = self.tools.store.max_operations().saturating_sub(1);
        let deciding = tokio::task::spawn_blocking(move || {
            cluster_view.read(|picture| {
                let plan = plan(picture, &members, &under_way, &limits);
                let transactions = takeovers(picture, &plan.moves, most);
                Decided { plan, transactions }
            })
        });
        deciding.await.ok().flatten()
    }

    /// Records new owners for streamlets of owners that are gone; false if some are not recorded.
    async fn take_over(&self, moves: &[Move], transactions: Vec<Transaction>) -> bool {
        let mut counts: BTreeMap<(u32, u32), usize> = BTreeMap::new();
        for one in moves.iter().filter(|one| one.cause == Cause::OwnerGone) {
            *counts.entry((one.from, one.to)).or_default() += 1;
        }
        for ((from, to), streamlets) in &counts {
            tracing::warn!(
                from,
                to,
                streamlets,
                "the owner is gone: another takes over"
            );
        }
        let Some(fence) = (self.tools.fence)() else {
            return false;
        };
        let begun: Vec<_> = transactions
            .into_iter()
            .map(|mut transaction| {
                transaction.compare.insert(0, fence.clone());
                let committing = self.tools.store.commit_async(transaction.clone());
                (transaction, committing)
            })
            .collect();
        let (mut all, asked) = (true, Instant::now());
        for (transaction, committing) in begun {
            match committing.await {
                Ok(done) => self
                    .tools
                    .cluster_view
                    .recorded(&transaction.write, done.revision),
                Err(MetadataError::Conflict(Conflict::NotController { .. })) => {
                    tracing::info!("another broker is controller by now");
                    return false;
                }
                // One that somebody else changed must not keep the others from it.
                Err(MetadataError::Conflict(_)) => {
                    all &= self.one_by_one(&fence, transaction).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "new owners cannot be recorded; trying again");
                    all = false;
                }
            }
        }
        if all {
            let mut of_each: BTreeMap<u32, u64> = BTreeMap::new();
            for ((from, _), streamlets) in counts {
                *of_each.entry(from).or_default() += streamlets as u64;
            }
            for (from, streamlets) in of_each {
                // One that is suspected was found so just now.
                let since = self.missing.get(&from).copied().unwrap_or(asked);
                self.tools.metrics.reassigned(streamlets, since.elapsed());
            }
        }
        all
    }

    /// Records the changes of a refused transaction each by itself; false if one is refused again.
    async fn one_by_one(&self, fence: &Compare, transaction: Transaction) -> bool {
        // The first comparison is the fence, the others belong to the writes in their order.
        let compares = transaction.compare.into_iter().skip(1);
        let begun: Vec<_> = compares
            .zip(transaction.write)
            .map(|(compare, write)| {
                let alone = Transaction::new(vec![fence.clone(), compare], vec![write.clone()]);
                (write, self.tools.store.commit_async(alone))
            })
            .collect();
        let mut all = true;
        for (write, committing) in begun {
            match committing.await {
                Ok(done) => self.tools.cluster_view.recorded(&[write], done.revision),
                Err(error) => {
                    tracing::debug!(%error, "a streamlet was changed by somebody else");
                    all = false;
                }
            }
        }
        all
    }

    /// A hand-over ended.
    fn ended(&mut self, one: Move, outcome: Result<(), String>) {
        self.under_way.remove(&one);
        let rest = match outcome {
            Ok(()) => {
                self.made.insert(one, Instant::now() + COUNTED_FOR);
                SEEN_WITHIN
            }
            Err(reason) => {
                self.movers.failed(&one);
                tracing::warn!(
                    stream = %one.stream, streamlet = one.streamlet.0, from = one.from, to = one.to,
                    reason, "the hand-over failed; trying again later"
                );
                self.tools.timing.rest
            }
        };
        self.resting.insert(one.which(), Instant::now() + rest);
    }

    /// Says what nobody can take over, once for each change.
    fn tell(&mut self, stranded: Vec<Stranded>) {
        if stranded == self.told {
            return;
        }
        let mut by_owner: BTreeMap<u32, usize> = BTreeMap::new();
        for one in &stranded {
            *by_owner.entry(one.owner).or_default() += 1;
        }
        for (owner, streamlets) in by_owner {
            tracing::warn!(
                owner,
                streamlets,
                "the owner is gone and nobody can take over; `kera cluster status` says what is missing"
            );
        }
        self.told = stranded;
    }
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
