//! What seeds above 100,000 decide beyond those before them, whose runs stay as they were.

use std::time::Duration;

use kera_protocol::v1;

use crate::dice::Dice;
use crate::os::DiskMood;
use crate::plan::{self, Plan};

/// Seeds up to this one are played as they were when there was less to decide.
const AS_BEFORE: u64 = 100_000;

/// Seeds up to this one have no group that keeps the order of keys.
const WITHOUT_KEYS: u64 = 200_000;

/// Seeds up to this one have no share group.
const WITHOUT_SHARES: u64 = 300_000;

/// Seeds up to this one put no metadata store back, trim nothing, and have neither slow links, clocks that drift nor dead letters.
const WITHOUT_RESTORES: u64 = 500_000;

/// Seeds up to this one have producers that never give a record up, and streams without retention.
const PATIENT: u64 = 600_000;

/// What retention leaves of a lane: less than most lanes get.
const KEPT_OF_A_LANE: u64 = 48 << 10;

/// Which machines lose, with their power, what they have not flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Power {
    /// Those that lose their power lose shared memory, and what was written is on their disks.
    #[default]
    Kept,
    /// The one that loses its power at all.
    One,
    /// Any, and all at once: every stream is `synced`. No bit turns there. In a flushed replica whose machine has lost its
    /// power it looks like a torn write, and only another replica tells, of which any may be away.
    All,
}

/// What such a seed decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Newer {
    pub power: Power,
    /// Operators move streamlets, drain brokers, add one, and restart all in turn.
    pub operations: bool,
    /// Brokers take their leases for longer than they are: their clocks are late.
    pub late_leases: bool,
    /// One replica beside the process of the owner, of which one is enough to go on. One machine's process fails, and does
    /// not reach one other machine now and then.
    pub alone: bool,
    /// Operators take snapshots of the metadata store, and put it back to one.
    pub restores: bool,
    /// Operators trim streams.
    pub trims: bool,
    /// Links are slow now and then.
    pub slow: bool,
    /// Appends are often answered before anybody can tell whether they take effect, and lanes are added all the time.
    pub unsure: bool,
    /// Producers of the streams in order give up what is not acknowledged within this time.
    pub deadline: Option<Duration>,
    /// Retention deletes the older groups of the last of the streams in order, and what is pinned there waits.
    pub retention: bool,
    /// Wall clocks gain or lose, as much as this many millionths.
    pub drift: u64,
}

impl Newer {
    fn of(seed: u64) -> Self {
        if seed <= AS_BEFORE {
            return Self::default();
        }
        let dice = &mut Dice::new(seed, "newer");
        let restores = seed > WITHOUT_RESTORES && Dice::new(seed, "restores").chance(300);
        let kind = match dice.below(1000) {
            // One thing is to blame.
            _ if restores => 999,
            // What is done for a share group would not outlive a loss of power everywhere, or of the only other replica.
            0..=299 | 400..=499 if seed > WITHOUT_SHARES => 999,
            kind => kind,
        };
        let one = dice.chance(600);
        let operations = dice.chance(400);
        let more = &mut Dice::new(seed, "newest");
        let mut newest = |chance| seed > WITHOUT_RESTORES && more.chance(chance);
        let drifts = &mut Dice::new(seed, "drifts");
        let hasty = &mut Dice::new(seed, "hasty");
        let hasty = (seed > PATIENT && hasty.chance(400)).then(|| *hasty.one(&[300, 1_000, 4_000]));
        let retention = seed > PATIENT && !restores && Dice::new(seed, "retention").chance(500);
        Self {
            power: match kind {
                0..=299 => Power::All,
                500.. if one && !restores => Power::One,
                _ => Power::Kept,
            },
            late_leases: (300..400).contains(&kind),
            alone: (400..500).contains(&kind),
            operations: operations && !restores && !(300..500).contains(&kind),
            restores,
            // What a pin needs may be trimmed by people.
            trims: newest(500) && !retention,
            slow: newest(400),
            unsure: !restores && !(300..500).contains(&kind) && newest(200),
            deadline: hasty.map(Duration::from_millis),
            retention,
            drift: match seed > WITHOUT_RESTORES {
                true => *drifts.one(&[0, 200, 10_000]),
                false => 0,
            },
        }
    }
}

/// Changes what `seed` decided before, where it decides more.
pub fn decide(seed: u64, mut plan: Plan) -> Plan {
    let newer = Newer::of(seed);
    plan.newer = newer;
    if newer.power == Power::All {
        let table = plan.table.iter_mut().map(|table| &mut table.stream);
        let transactions = plan.transactions.iter_mut().map(|plan| &mut plan.stream);
        for stream in plan.streams.iter_mut().chain(table).chain(transactions) {
            stream.ack = v1::AckPolicy::Synced;
        }
        // What groups have read is `written`, and would wait for an operator.
        plan.members = 0;
    }
    if newer.late_leases || newer.alone {
        // Nothing but the clock, or the process, is to blame.
        plan.network.most = plan.network.most.min(500);
        (plan.network.straggles, plan.network.breaks) = (0, 0);
        plan.failing_disks = false;
    }
    if newer.late_leases {
        plan.disk = DiskMood::default();
        plan.watchers = 2;
        for stream in &mut plan.streams {
            stream.replicas = 3;
        }
    }
    if newer.alone {
        // A process ends while it does not reach who has the replica.
        plan.between = plan.between.min(Duration::from_secs(1));
        plan.disk = DiskMood {
            most: 20_000,
            stalls: 20,
            longest: 300_000,
        };
        for stream in &mut plan.streams {
            (stream.replicas, stream.min_insync) = (2, 1);
            stream.ack = v1::AckPolicy::Memory;
        }
        (plan.table, plan.transactions) = (None, None);
    }
    // What groups have read survives all but a loss of power of all machines, or of the only replica beside an owner.
    let keeps = newer.power != Power::All && !newer.alone;
    if seed > WITHOUT_KEYS && keeps && Dice::new(seed, "has keys").chance(700) {
        plan.keys = Some(plan::keys(seed, plan.brokers));
    }
    if newer.unsure {
        plan.append_deadline = Some(Duration::from_millis(100));
        plan.disk = DiskMood {
            most: 20_000,
            stalls: 20,
            longest: 500_000,
        };
        plan.keys.iter_mut().for_each(|keys| keys.growth *= 10);
    }
    if let Some(deadline) = newer.deadline {
        let producers = plan.producers.iter_mut();
        producers.for_each(|producer| producer.deadline = deadline);
        // Or hardly any would hear of what became of a record in time.
        plan.append_deadline = Some(deadline / 2);
    }
    if newer.restores {
        // Lanes that are newer than the snapshot are unknown, as operations.md says: these groups have them added.
        plan.keys = None;
        plan.failing_disks = false;
    } else if seed > WITHOUT_SHARES {
        let mut shares = plan::shares(seed, plan.brokers);
        shares.dead_letters =
            seed > WITHOUT_RESTORES && Dice::new(seed, "dead letters").chance(600);
        if newer.unsure {
            shares.growth *= 10;
        }
        plan.shares = Some(shares);
        // In most of them there is little else, so that more of them are played in the same time.
        if Dice::new(seed, "little else").chance(700) {
            plan.producers.truncate(1);
            (plan.members, plan.watchers) = (0, 0);
            (plan.transactions, plan.table, plan.keys) = (None, None, None);
        }
    }
    if let Some(stream) = plan.streams.last_mut().filter(|_| newer.retention) {
        // Few lanes, small groups and large records: retention has something to do.
        (stream.streamlets, stream.segments_per_group) = (1, 1);
        stream.retention_bytes = Some(KEPT_OF_A_LANE * u64::from(stream.lanes));
        let last = plan.streams.len() as u32 - 1;
        for producer in &mut plan.producers {
            (producer.stream, producer.largest) = (last, 2_000);
        }
    }
    plan
}
