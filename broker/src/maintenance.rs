//! Work off the data path: closing and recording groups, flushing, retention, compaction, giving back memory,
//! watching the disk.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kera_log_segments::group::Group;
use kera_log_segments::local_writer::sync_together;
use kera_log_segments::pool::heap;
use kera_log_segments::sync::Ordering;
use kera_protocol::ids::StreamletKey;
use kera_streamlet::{Job, Streamlet};

use crate::clock::{now_ms, retention_ms};
use crate::config::BrokerConfig;
use crate::data::catalog::make_missing_dir;
use crate::error::BrokerError;
use crate::job_queue::Jobs;
use crate::pins::Round;
use crate::retention::doomed;
use crate::shared::Shared;

/// Jobs that could not be done are tried again after this.
const RETRY: Duration = Duration::from_millis(20);
/// How often what `memory` streams gather is written, and work that is due is asked for again.
const WRITE_OUT: Duration = Duration::from_secs(1);
/// How often it is looked whether files can be written, while they cannot.
const PROBE: Duration = Duration::from_secs(1);
/// How often it is looked whether the disk is to be tried, or something of it to be told.
const DISK_LOOK: Duration = Duration::from_secs(1);
/// Most bytes of a reason that others are told.
const MOST_REASON: usize = 256;
/// How often the disk's free space is looked at.
const SPACE_CHECK: Duration = Duration::from_millis(250);
/// More groups than this are flushed by one flush of the file system.
const FLUSHED_TOGETHER: usize = 16;
/// Appends are refused while less than this is free, so that metadata can still be written.
const MIN_FREE: u64 = 8 << 20;
/// And accepted again once this is free.
const ENOUGH_FREE: u64 = 16 << 20;

/// The maintenance threads of a broker: one for jobs, one that reads again what could not be read, one for intervals,
/// one that looks at the disk, one that flushes, one that compacts, one that pumps.
pub struct Maintenance {
    jobs: Arc<Jobs>,
    rereads: Arc<Jobs>,
    shared: Arc<Shared>,
    clock: Arc<Jobs>,
    flushes: Arc<Jobs>,
    /// The looks at the disk.
    looks: Arc<Jobs>,
    threads: Vec<JoinHandle<()>>,
}

impl Maintenance {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system's, if it has no thread to give.
    pub fn start(
        shared: Arc<Shared>,
        jobs: Arc<Jobs>,
        rereads: Arc<Jobs>,
    ) -> Result<Self, BrokerError> {
        let clock = shared.retimed.intervals.clone();
        let mut threads = Vec::new();
        let spawn = |name: &'static str, body: Box<dyn FnOnce() + Send>| {
            let fallen = shared.fallen.clone();
            std::thread::Builder::new()
                .name(name.into())
                .spawn(move || {
                    let _watch = fallen.watch(name);
                    body();
                })
                .map_err(|error| BrokerError::System {
                    what: "starting a maintenance thread failed",
                    error,
                })
        };
        let (s, j) = (shared.clone(), jobs.clone());
        threads.push(spawn("kera-jobs", Box::new(move || run_jobs(&s, &j)))?);
        let (s, r) = (shared.clone(), rereads.clone());
        // A stop does not wait for it: it may be held by a disk for as long as that takes to fail.
        drop(spawn("kera-reread", Box::new(move || run_jobs(&s, &r)))?);
        let (s, c) = (shared.clone(), clock.clone());
        threads.push(spawn(
            "kera-intervals",
            Box::new(move || run_intervals(&s, &c)),
        )?);
        let looks = Arc::new(Jobs::default());
        let (s, l) = (shared.clone(), looks.clone());
        // Nor for this one, for the same reason.
        drop(spawn("kera-disk", Box::new(move || watch_disk(&s, &l)))?);
        let flushes = shared.retimed.flushes.clone();
        let (s, f) = (shared.clone(), flushes.clone());
        threads.push(spawn("kera-flush", Box::new(move || run_flushes(&s, &f)))?);
        let s = shared.clone();
        let compact = move || crate::compaction::run(&s);
        threads.push(spawn("kera-compact", Box::new(compact))?);
        let pump = shared.data.env.pump.clone();
        threads.push(spawn("kera-pump", Box::new(move || pump.run()))?);
        Ok(Self {
            jobs,
            rereads,
            shared,
            clock,
            flushes,
            looks,
            threads,
        })
    }

    /// Ends jobs and intervals; the pump goes on until it is stopped itself, as closing needs it.
    pub fn stop(mut self) {
        let all = [&self.jobs, &self.rereads, &self.clock];
        for queue in all.into_iter().chain([&self.flushes, &self.looks]) {
            queue.stop();
        }
        self.shared.compactor.stop();
        let pump = self.threads.pop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a maintenance thread had panicked");
            }
        }
        drop(pump);
        drop(self.shared);
    }
}

fn run_jobs(shared: &Arc<Shared>, jobs: &Jobs) {
    let mut again: Vec<Job> = Vec::new();
    loop {
        let wait = if again.is_empty() {
            Duration::from_secs(3600)
        } else {
            RETRY
        };
        let Some(mut work) = jobs.take(Instant::now() + wait) else {
            return;
        };
        for job in again.drain(..) {
            if !work.contains(&job) {
                work.push(job);
            }
        }
        for job in work {
            let StreamletKey { stream, streamlet } = job.target();
            let Some(target) = shared.streamlet(stream, streamlet) else {
                continue;
            };
            if !target.do_job(&job, now_ms()) {
                again.push(job);
            }
        }
    }
}

fn run_intervals(shared: &Arc<Shared>, clock: &Jobs) {
    let mut every = [
        Interval::new(|_| WRITE_OUT, write_out),
        Interval::new(|config| config.storage.durable_mark_interval, mark),
        Interval::new(|config| config.memory.idle_release, release_idle),
        Interval::new(|config| config.retention.check_interval, retain),
        Interval::new(|_| SPACE_CHECK, watch_space),
        Interval::new(|_| PROBE, probe_files),
    ];
    loop {
        let config = shared.live();
        let next = every
            .iter()
            .map(|interval| interval.due(&config))
            .min()
            .unwrap_or_else(Instant::now);
        drop(config);
        if clock.take(next).is_none() {
            return;
        }
        let (config, now) = (shared.live(), Instant::now());
        for interval in &mut every {
            if interval.due(&config) <= now {
                (interval.work)(shared);
                interval.last = Instant::now();
            }
        }
    }
}

struct Interval {
    /// As settings have it, which may change.
    period: fn(&BrokerConfig) -> Duration,
    last: Instant,
    work: fn(&Arc<Shared>),
}

impl Interval {
    fn new(period: fn(&BrokerConfig) -> Duration, work: fn(&Arc<Shared>)) -> Self {
        Self {
            period,
            last: Instant::now(),
            work,
        }
    }

    fn due(&self, config: &BrokerConfig) -> Instant {
        self.last + (self.period)(config).max(Duration::from_millis(10))
    }
}

fn each_streamlet(shared: &Shared, mut work: impl FnMut(&Arc<Streamlet>)) {
    for stream in shared.data.catalog.all() {
        stream
            .streamlets
            .iter()
            .for_each(|streamlet| work(&streamlet));
    }
}

fn write_out(shared: &Arc<Shared>) {
    each_streamlet(shared, |streamlet| streamlet.write_out());
}

/// Flushes `written` streams at their interval, on a thread of its own: the device may take its time.
fn run_flushes(shared: &Arc<Shared>, clock: &Jobs) {
    let mut last = Instant::now();
    loop {
        let due = last + shared.live().storage.flush_interval;
        if clock.take(due).is_none() {
            return;
        }
        if Instant::now() < last + shared.live().storage.flush_interval {
            // The interval changed.
            continue;
        }
        last = Instant::now();
        let mut groups = Vec::new();
        each_streamlet(shared, |streamlet| groups.extend(streamlet.unflushed()));
        flush(&groups);
    }
}

fn flush(groups: &[Arc<Group>]) {
    let mut each = groups.to_vec();
    if groups.len() > FLUSHED_TOGETHER {
        match sync_together(groups) {
            Ok(left) => each = left,
            Err(error) => {
                tracing::warn!(%error, "flushing the file system failed; each group is written once more and flushed by itself");
            }
        }
    }
    for group in &each {
        if let Err(error) = group.sync() {
            // The lane's next repair decides where it goes on.
            tracing::error!(group = ?group, %error, "flushing a group failed");
        }
    }
}

fn mark(shared: &Arc<Shared>) {
    each_streamlet(shared, |streamlet| streamlet.mark());
}

fn release_idle(shared: &Arc<Shared>) {
    let idle_ms = shared.config.memory.idle_release.as_millis() as u64;
    let now = now_ms();
    each_streamlet(shared, |streamlet| {
        streamlet.release_idle(now, idle_ms);
    });
    shared.data.env.pool.give_back_idle();
    kera_log_segments::buffers::give_back();
    if heap::is_due(&shared.data.freed) {
        heap::give_back();
    }
}

fn watch_space(shared: &Arc<Shared>) {
    let Ok((free, _)) = shared.dir.space() else {
        return;
    };
    let full = shared.data.env.disk_full.load(Ordering::Relaxed);
    if free < MIN_FREE && !full {
        shared.data.env.disk_full.store(true, Ordering::Relaxed);
        tracing::error!(
            path = %shared.dir.path().display(), free,
            "the disk is full: appends are refused until {ENOUGH_FREE} bytes are free, reads go on; free space, shorten retention, or delete pins that hold much (`kera pin list`)"
        );
    } else if free >= ENOUGH_FREE && full {
        shared.data.env.disk_full.store(false, Ordering::Relaxed);
        tracing::info!(free, "the disk has space again: appends are accepted");
    }
    if full || free < MIN_FREE {
        // What is expired may be what fills the disk.
        retain(shared);
    }
}

/// Watches the disk of a broker that shares its store with others, until `clock` is stopped.
fn watch_disk(shared: &Arc<Shared>, clock: &Jobs) {
    let Some(clustered) = &shared.clustered else {
        return;
    };
    let mut told: Option<String> = None;
    while clock.take(Instant::now() + DISK_LOOK).is_some() {
        clustered.disk.look(|| shared.dir.probe());
        let reason = shared.cannot_write();
        // Another error of the same disk is no news to others.
        if reason.is_some() == told.is_some() {
            continue;
        }
        match &reason {
            Some(reason) => tracing::error!(
                reason,
                "this broker cannot write its own files, and is to own nothing that another can own"
            ),
            None => tracing::info!("this broker can write its own files again"),
        }
        let telling = reason.clone().map(shortened);
        match clustered
            .members
            .describe(|live| live.cannot_write = telling)
        {
            Ok(()) => told = reason,
            Err(error) => {
                tracing::warn!(%error, "the other brokers do not know yet whether this one can write its own files");
            }
        }
    }
}

fn shortened(mut reason: String) -> String {
    while reason.len() > MOST_REASON {
        reason.pop();
    }
    reason
}

/// Looks whether files can be written again, while there are streamlets that refuse appends because
/// theirs cannot.
fn probe_files(shared: &Arc<Shared>) {
    let mut refusing = Vec::new();
    each_streamlet(shared, |streamlet| {
        refusing.extend(streamlet.refuses_to_write().then(|| streamlet.clone()));
    });
    if refusing.is_empty() {
        return;
    }
    if let Err(error) = shared.dir.probe() {
        tracing::debug!(%error, "files can still not be written");
        return;
    }
    for streamlet in refusing {
        match make_missing_dir(&streamlet, &shared.data.env) {
            Ok(()) => streamlet.take_appends_again(),
            Err(error) => tracing::debug!(%error, "its files can still not be written"),
        }
    }
}

/// Rolls old groups, then trims what retention no longer keeps and no pin needs.
fn retain(shared: &Arc<Shared>) {
    let (now, old) = (now_ms(), retention_ms());
    let mut round = Round::begin(shared);
    for stream in shared.data.catalog.all() {
        for streamlet in &stream.streamlets {
            streamlet.age_out(now);
        }
        round.trim(&stream, &doomed(&stream, old), old, |streamlet, lane, ordinal, unpinned| {
            let Some(target) = stream.streamlets.get(streamlet) else {
                return true;
            };
            let trimmed = target.trim_if(lane, ordinal, vec![unpinned]);
            if let Err(error) = &trimmed {
                tracing::warn!(stream = stream.name(), streamlet, lane = lane.0, %error, "retention could not trim; the next round tries again");
            }
            trimmed.is_ok()
        });
    }
}
