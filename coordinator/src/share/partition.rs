//! The records of one partition as a share group has them.

use std::cell::Cell;
use std::collections::BTreeMap;

use kera_protocol::ids::Ordinal;

use super::state::{ShareRun, ShareState};

/// Who acquires records: a session of a member.
pub type Holder = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Available,
    Acquired {
        holder: Holder,
        until_ms: u64,
    },
    /// Given up, and not yet in the group's dead-letter topic.
    GivenUp(GivenUpFor),
    Done,
}

/// Why a group gives a record up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUpFor {
    /// A member rejected it.
    Rejection,
    /// It came back after the last delivery that it may have.
    Deliveries,
}

/// Records that are given up, and are to be dead letters before they are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The first of them.
    pub first: Ordinal,
    /// The last of them.
    pub last: Ordinal,
    /// How often they were delivered.
    pub deliveries: u16,
    /// Why.
    pub why: GivenUpFor,
}

/// Records in a row that stand alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    last: Ordinal,
    standing: Standing,
    deliveries: u16,
}

/// What a holder says of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledgement {
    /// It is done.
    Accept,
    /// Somebody is to try again.
    Release,
    /// Nobody will ever succeed with it.
    Reject,
    /// It is at work on it still, and keeps its lock (KIP-1222).
    Renew,
}

/// Records that were acquired together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// The first of them.
    pub first: Ordinal,
    /// The last of them.
    pub last: Ordinal,
    /// How often they were delivered, with this time.
    pub deliveries: u16,
}

/// A record is not acquired by whoever acknowledges it: its time was over, or it was acknowledged before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {0} is not acquired by this member: its lock has ended, or it was acknowledged before; it is delivered again if it was not"
)]
pub struct WrongState(pub Ordinal);

/// What all runs come to. Each of many members that wait asks for it, whenever one acknowledges anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    /// Records that were delivered and are not done.
    in_flight: u64,
    /// The first record that is available again.
    available: Option<Ordinal>,
    /// When the next lock ends.
    expiry_ms: Option<u64>,
    /// Some are given up, and no dead letters yet.
    given_up: bool,
}

/// Where a share group stands in a partition, with who has acquired what.
#[derive(Clone, Debug)]
pub struct SharePartition {
    /// All records below are done.
    start: Ordinal,
    /// Those below are not stored any more: they are done, or given up and no dead letters yet.
    log_start: Ordinal,
    /// By first ordinal: each record from `start` to `end`.
    runs: BTreeMap<Ordinal, Run>,
    /// None from here on was ever acquired.
    end: Ordinal,
    /// Deliveries after which a record that comes back is done.
    most_deliveries: u16,
    /// Whether what is given up is to be a dead letter before it is done.
    dead_letters: bool,
    /// Of `runs` as they are; `None` from each change on until somebody asks.
    sums: Cell<Option<Sums>>,
}

impl SharePartition {
    /// As it was kept, with nothing acquired. A group with a dead-letter topic has what it gives up wait for
    /// [`Self::buried`]; why a record was given up is not kept, and its deliveries tell.
    pub fn new(state: &ShareState, most_deliveries: u16, dead_letters: bool) -> Self {
        let mut partition = Self {
            start: state.start,
            log_start: 0,
            runs: BTreeMap::new(),
            end: state.start,
            most_deliveries,
            dead_letters,
            sums: Cell::new(None),
        };
        for run in &state.runs {
            let first = partition.end;
            partition.end += run.length;
            // What was acquired comes back with its owner, once more than the limit at most: counts of it are kept with
            // what others acknowledge, so that each owner in a row would deliver it once more.
            let is_over = !run.done && run.deliveries > most_deliveries;
            let standing = match run.done {
                false if !is_over => Standing::Available,
                _ if dead_letters && (is_over || run.is_given_up()) => {
                    Standing::GivenUp(match run.deliveries >= most_deliveries {
                        true => GivenUpFor::Deliveries,
                        false => GivenUpFor::Rejection,
                    })
                }
                _ => Standing::Done,
            };
            let run = Run {
                last: partition.end - 1,
                standing,
                deliveries: match standing {
                    Standing::Done => 0,
                    _ => run.deliveries,
                },
            };
            partition.runs.insert(first, run);
        }
        partition.merge(partition.start, partition.end);
        partition.advance();
        partition
    }

    /// What is to be kept.
    pub fn state(&self) -> ShareState {
        let mut runs: Vec<ShareRun> = Vec::with_capacity(self.runs.len());
        for (first, run) in &self.runs {
            let done = matches!(run.standing, Standing::Done | Standing::GivenUp(_));
            let length = run.last - first + 1;
            match runs.last_mut() {
                Some(before) if (before.done, before.deliveries) == (done, run.deliveries) => {
                    before.length += length;
                }
                _ => runs.push(ShareRun {
                    length,
                    deliveries: run.deliveries,
                    done,
                }),
            }
        }
        ShareState {
            start: self.start,
            runs,
        }
    }

    /// All records below are done.
    pub fn start(&self) -> Ordinal {
        self.start
    }

    /// Records that were delivered and are not done: acquired, available again, or given up and no dead letters yet.
    pub fn in_flight(&self) -> u64 {
        self.sums().in_flight
    }

    fn sums(&self) -> Sums {
        if let Some(sums) = self.sums.get() {
            return sums;
        }
        let mut sums = Sums::default();
        for (first, run) in &self.runs {
            match run.standing {
                Standing::Done => continue,
                Standing::Available => sums.available = sums.available.or(Some(*first)),
                Standing::GivenUp(_) => sums.given_up = true,
                Standing::Acquired { until_ms, .. } => {
                    let earliest = sums.expiry_ms.unwrap_or(until_ms).min(until_ms);
                    sums.expiry_ms = Some(earliest);
                }
            }
            sums.in_flight += run.last - first + 1;
        }
        self.sums.set(Some(sums));
        sums
    }

    /// Runs of records that stand alike: what it takes in memory.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Where to read next for somebody who wants records. `most` is how many may be in flight; `None` if all that may
    /// be acquired is.
    pub fn next(&self, most: u64) -> Option<Ordinal> {
        let sums = self.sums();
        let fresh = || (sums.in_flight < most).then_some(self.end);
        sums.available.or_else(fresh)
    }

    /// Takes up to `wanted` available records for a holder. `batches` are the first and last ordinals of batches that were
    /// read from `from` on, in order; between them there are no records. No more than `most` records are in flight then.
    pub fn acquire(
        &mut self,
        holder: Holder,
        until_ms: u64,
        from: Ordinal,
        batches: &[(Ordinal, Ordinal)],
        wanted: u64,
        most: u64,
    ) -> Vec<Acquired> {
        let mut taken: Vec<Acquired> = Vec::new();
        let mut left = wanted;
        let mut fresh = most.saturating_sub(self.in_flight());
        let mut at = from.max(self.start);
        self.sums.set(None);
        for &(first, last) in batches {
            if left == 0 {
                break;
            }
            if last < at {
                continue;
            }
            if first > at {
                self.pass_over(at, first - 1);
            }
            let mut at_record = first.max(at);
            while at_record <= last && left > 0 {
                let known = self.run_at(at_record);
                let (until, deliveries) = match known {
                    Some(run) if run.standing == Standing::Available => {
                        (run.last.min(last), run.deliveries)
                    }
                    Some(run) => {
                        at_record = run.last + 1;
                        continue;
                    }
                    None if fresh == 0 => return taken,
                    None => (last.min(at_record.saturating_add(fresh - 1)), 0),
                };
                let until = until.min(at_record.saturating_add(left - 1));
                let count = until - at_record + 1;
                if known.is_none() {
                    fresh -= count;
                    // What nobody has read yet lies behind what is known.
                    self.extend_to(at_record);
                    self.end = until + 1;
                }
                left -= count;
                let deliveries = deliveries.saturating_add(1);
                let run = Run {
                    last: until,
                    standing: Standing::Acquired { holder, until_ms },
                    deliveries,
                };
                self.put(at_record, run);
                match taken.last_mut() {
                    Some(before)
                        if (before.last + 1, before.deliveries) == (at_record, deliveries) =>
                    {
                        before.last = until;
                    }
                    _ => taken.push(Acquired {
                        first: at_record,
                        last: until,
                        deliveries,
                    }),
                }
                at_record = until + 1;
            }
            at = last.saturating_add(1);
        }
        self.advance();
        taken
    }

    /// There are no records from `first` to `last`: nothing that is available there, or was not read before, is left.
    pub fn pass_over(&mut self, first: Ordinal, last: Ordinal) {
        let first = first.max(self.start);
        if first > last {
            return;
        }
        self.sums.set(None);
        if last >= self.end {
            self.extend_to(first);
            let from = first.max(self.end);
            self.end = last + 1;
            let gone = Run {
                last,
                standing: Standing::Done,
                deliveries: 0,
            };
            self.runs.insert(from, gone);
        }
        self.each_in(first, last, |run| {
            if run.standing == Standing::Available {
                (run.standing, run.deliveries) = (Standing::Done, 0);
            }
        });
        self.advance();
    }

    /// A holder says what became of the records from `first` to `last`; the locks of those that it renews end at `until_ms`. Of
    /// what is not stored any more nothing is left to say: how many records it counted for.
    ///
    /// # Errors
    /// One of them is not acquired by this holder; then nothing is changed.
    pub fn acknowledge(
        &mut self,
        holder: Holder,
        first: Ordinal,
        last: Ordinal,
        what: Acknowledgement,
        until_ms: u64,
    ) -> Result<u64, WrongState> {
        self.check(holder, first, last)?;
        let rules = self.rules();
        let first = first.max(self.start).max(self.log_start);
        if first > last {
            return Ok(0);
        }
        self.sums.set(None);
        self.each_in(first, last, |run| match what {
            Acknowledgement::Accept => {
                (run.standing, run.deliveries) = (Standing::Done, 0);
            }
            Acknowledgement::Reject => rules.give_up(run, GivenUpFor::Rejection),
            Acknowledgement::Release => rules.give_back(run),
            Acknowledgement::Renew => run.standing = Standing::Acquired { holder, until_ms },
        });
        self.advance();
        Ok(last - first + 1)
    }

    /// Whether any are given up and are to be dead letters.
    pub fn has_given_up(&self) -> bool {
        self.sums().given_up
    }

    /// The first records, `most` of them at the most, that are given up and are to be dead letters.
    pub fn given_up(&self, most: u64) -> Vec<GivenUp> {
        let mut left = most;
        let runs = self.runs.iter().filter_map(|(first, run)| {
            let Standing::GivenUp(why) = run.standing else {
                return None;
            };
            Some((*first, run, why))
        });
        let runs = runs.map_while(|(first, run, why)| {
            let last = run.last.min(first.saturating_add(left.checked_sub(1)?));
            left -= last - first + 1;
            Some(GivenUp {
                first,
                last,
                deliveries: run.deliveries,
                why,
            })
        });
        runs.collect()
    }

    /// Those of these records that are given up are dead letters, or nobody will ever make them such: they are done.
    pub fn buried(&mut self, first: Ordinal, last: Ordinal) {
        let first = first.max(self.start);
        if first > last {
            return;
        }
        self.sums.set(None);
        self.each_in(first, last, |run| {
            if matches!(run.standing, Standing::GivenUp(_)) {
                (run.standing, run.deliveries) = (Standing::Done, 0);
            }
        });
        self.advance();
    }

    /// Checks that a holder has acquired these records.
    ///
    /// # Errors
    /// The first of them that it has not.
    pub fn check(&self, holder: Holder, first: Ordinal, last: Ordinal) -> Result<(), WrongState> {
        let mut at = first.max(self.log_start);
        while at <= last {
            match self.run_at(at) {
                Some(Run {
                    last,
                    standing: Standing::Acquired { holder: by, .. },
                    ..
                }) if by == holder => at = last + 1,
                _ => return Err(WrongState(at)),
            }
        }
        Ok(())
    }

    /// Gives back what a holder has acquired. True if there was something.
    pub fn release(&mut self, holder: Holder) -> bool {
        self.give_back_if(|by, _| by == holder)
    }

    /// Gives back what was acquired until now at the latest. True if there was something.
    pub fn expire(&mut self, now_ms: u64) -> bool {
        let is_over = self.sums().expiry_ms.is_some_and(|until| until <= now_ms);
        is_over && self.give_back_if(|_, until_ms| until_ms <= now_ms)
    }

    /// When the next lock ends.
    pub fn next_expiry(&self) -> Option<u64> {
        self.sums().expiry_ms
    }

    /// Whether a holder has acquired anything.
    pub fn is_held_by(&self, holder: Holder) -> bool {
        let mut runs = self.runs.values();
        runs.any(
            |run| matches!(run.standing, Standing::Acquired { holder: by, .. } if by == holder),
        )
    }

    /// Records below are not stored any more: they are done, acquired or not. Those that are given up and no dead letters yet
    /// stay what they are, as a letter does not need its record. True if anything changed.
    pub fn forget_below(&mut self, log_start: Ordinal) -> bool {
        let before = self.log_start;
        self.log_start = before.max(log_start);
        if log_start <= self.start || log_start <= before {
            return false;
        }
        self.sums.set(None);
        self.extend_to(log_start);
        self.each_in(self.start, log_start - 1, |run| {
            if !matches!(run.standing, Standing::GivenUp(_)) {
                (run.standing, run.deliveries) = (Standing::Done, 0);
            }
        });
        self.advance();
        true
    }

    /// From here on a record is delivered so often at most, and what is given up is to be a dead letter, or is not. What was
    /// to be one and is to be none any more is done. True if anything is.
    pub fn configure(&mut self, most_deliveries: u16, dead_letters: bool) -> bool {
        (self.most_deliveries, self.dead_letters) = (most_deliveries, dead_letters);
        let is_over = !dead_letters && self.has_given_up();
        if is_over {
            self.buried(self.start, self.end);
        }
        is_over
    }

    fn give_back_if(&mut self, which: impl Fn(Holder, u64) -> bool) -> bool {
        let rules = self.rules();
        let mut any = false;
        for run in self.runs.values_mut() {
            if let Standing::Acquired { holder, until_ms } = run.standing
                && which(holder, until_ms)
            {
                rules.give_back(run);
                any = true;
            }
        }
        if any {
            self.sums.set(None);
            self.merge(self.start, self.end);
            self.advance();
        }
        any
    }

    fn rules(&self) -> Rules {
        Rules {
            most_deliveries: self.most_deliveries,
            dead_letters: self.dead_letters,
        }
    }

    fn run_at(&self, ordinal: Ordinal) -> Option<Run> {
        let (_, run) = self.runs.range(..=ordinal).next_back()?;
        (run.last >= ordinal).then_some(*run)
    }

    /// What lies between `end` and `first` was never seen, and holds no records.
    fn extend_to(&mut self, first: Ordinal) {
        if first > self.end {
            let gone = Run {
                last: first - 1,
                standing: Standing::Done,
                deliveries: 0,
            };
            self.runs.insert(self.end, gone);
            self.end = first;
        }
    }

    /// Has a run begin at `at`, if one lies around it.
    fn cut(&mut self, at: Ordinal) {
        let Some((first, run)) = self.runs.range_mut(..at).next_back() else {
            return;
        };
        if run.last >= at {
            debug_assert!(*first < at);
            let rest = *run;
            run.last = at - 1;
            self.runs.insert(at, rest);
        }
    }

    fn put(&mut self, first: Ordinal, run: Run) {
        self.cut(first);
        self.cut(run.last + 1);
        let replaced: Vec<Ordinal> = self
            .runs
            .range(first..=run.last)
            .map(|(at, _)| *at)
            .collect();
        for at in replaced {
            self.runs.remove(&at);
        }
        let last = run.last;
        self.runs.insert(first, run);
        self.merge(first, last);
    }

    fn each_in(&mut self, first: Ordinal, last: Ordinal, change: impl Fn(&mut Run)) {
        self.cut(first);
        self.cut(last + 1);
        for (_, run) in self.runs.range_mut(first..=last) {
            change(run);
        }
        self.merge(first, last);
    }

    /// Makes one of runs that stand alike, from the one before `first` to the one after `last`.
    fn merge(&mut self, first: Ordinal, last: Ordinal) {
        let before = self.runs.range(..first).next_back();
        let from = before.map_or(first, |(at, _)| *at);
        let runs: Vec<(Ordinal, Run)> = self
            .runs
            .range(from..=last.saturating_add(1))
            .map(|(at, run)| (*at, *run))
            .collect();
        let mut kept: Option<(Ordinal, Run)> = None;
        for (at, run) in runs {
            match &mut kept {
                Some((into, joined))
                    if joined.last + 1 == at
                        && (joined.standing, joined.deliveries)
                            == (run.standing, run.deliveries) =>
                {
                    self.runs.remove(&at);
                    joined.last = run.last;
                    self.runs.insert(*into, *joined);
                }
                _ => kept = Some((at, run)),
            }
        }
    }

    /// Moves `start` over what is done.
    fn advance(&mut self) {
        while let Some(first) = self.runs.first_entry() {
            if first.get().standing != Standing::Done {
                break;
            }
            self.start = first.get().last + 1;
            first.remove();
        }
        self.end = self.end.max(self.start);
    }
}

/// How records end that nobody accepted.
#[derive(Clone, Copy)]
struct Rules {
    most_deliveries: u16,
    dead_letters: bool,
}

impl Rules {
    /// The records are available again, or given up after their last delivery.
    fn give_back(self, run: &mut Run) {
        match run.deliveries >= self.most_deliveries {
            true => self.give_up(run, GivenUpFor::Deliveries),
            false => run.standing = Standing::Available,
        }
    }

    /// The records are done, or will be once they are dead letters.
    fn give_up(self, run: &mut Run, why: GivenUpFor) {
        match self.dead_letters {
            true => run.standing = Standing::GivenUp(why),
            false => (run.standing, run.deliveries) = (Standing::Done, 0),
        }
    }
}
