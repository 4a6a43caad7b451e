//! What a seed decides before anything runs: the cluster, its streams and clients, and the moods of everything.

use std::time::Duration;

use kera_protocol::v1;

use crate::cut::Cut;
use crate::dice::Dice;
use crate::load::PATIENCE;
use crate::newer::{self, Newer};
use crate::os::{DiskMood, NetworkMood};
use crate::store::StoreMood;

/// Seeds up to this one, which every change plays, have disks that take no time.
const QUICK_DISKS: u64 = 100;
/// How often lanes are added, of a thousand bursts of their producer, unless a run is about that.
const GROWTH: u64 = 20;
/// The stream that takes what a share group gives up.
pub const DEAD_LETTERS: &str = "dlq.shares";
/// Seeds up to this one have disks that do not fail, and brokers that wait long for replicas.
const SOUND_DISKS: u64 = 60;

/// A stream of a run.
#[derive(Clone, Debug)]
pub struct StreamPlan {
    pub name: String,
    pub streamlets: u32,
    pub lanes: u32,
    pub replicas: u32,
    pub min_insync: u32,
    pub ack: v1::AckPolicy,
    pub segments_per_group: u32,
    pub compacted: Option<Compacted>,
    /// It takes what share groups give up.
    pub dead_letters: bool,
    /// What retention leaves of it, if there is a limit.
    pub retention_bytes: Option<u64>,
}

/// How a stream is compacted.
#[derive(Clone, Copy, Debug)]
pub struct Compacted {
    pub delete_retention: Duration,
    pub min_dirty_permille: u32,
}

/// A producer of a run.
#[derive(Clone, Debug)]
pub struct ProducerPlan {
    pub stream: u32,
    pub keys: u64,
    /// Records handed over in a row, at most, and the longest pause after them.
    pub burst: u64,
    pub pause: Duration,
    pub batch_bytes: usize,
    pub largest: u64,
    /// After which a record is given up that is not acknowledged.
    pub deadline: Duration,
}

impl ProducerPlan {
    /// Whether it may give records up.
    pub fn gives_up(&self) -> bool {
        self.deadline < PATIENCE
    }
}

/// What producers with transactional ids do, in a stream of their own.
#[derive(Clone, Debug)]
pub struct TransactionPlan {
    pub stream: StreamPlan,
    pub producers: u32,
    /// Readers that begin anew again and again.
    pub readers: u32,
    /// Records without a transaction come in between.
    pub plain: bool,
    pub batch_bytes: usize,
    pub largest: u64,
}

/// What is written to a compacted stream.
#[derive(Clone, Debug)]
pub struct TablePlan {
    pub stream: StreamPlan,
    pub producers: u32,
    /// Readers that begin anew again and again.
    pub readers: u32,
    /// Of each producer.
    pub keys: u64,
    /// Of a thousand records.
    pub tombstones: u64,
    pub burst: u64,
    pub pause: Duration,
    pub batch_bytes: usize,
    pub largest: u64,
    /// Longest pause of a reader after each batch: others compact what it has not come to yet.
    pub read_pause: Duration,
}

/// What is written to a stream, and who reads it with the order of keys.
#[derive(Clone, Debug)]
pub struct KeysPlan {
    pub stream: StreamPlan,
    /// More of them than lanes, at first.
    pub members: u32,
    /// How often lanes are added, of a thousand bursts.
    pub growth: u64,
    pub keys: u64,
    pub burst: u64,
    pub pause: Duration,
    pub batch_bytes: usize,
    pub largest: u64,
}

/// What is written to a stream that a share group reads.
#[derive(Clone, Debug)]
pub struct SharesPlan {
    pub stream: StreamPlan,
    pub members: u32,
    /// How long an acquired record is locked, and how often it is delivered at most.
    pub lock: Duration,
    pub deliveries: u16,
    /// What the group gives up is written to another stream.
    pub dead_letters: bool,
    /// How often lanes are added, of a thousand bursts.
    pub growth: u64,
    pub keys: u64,
    pub burst: u64,
    pub pause: Duration,
    pub batch_bytes: usize,
    pub largest: u64,
}

impl SharesPlan {
    /// The stream that takes what the group gives up, if there is one.
    pub fn letters(&self) -> Option<StreamPlan> {
        self.dead_letters.then(|| StreamPlan {
            name: DEAD_LETTERS.to_owned(),
            lanes: 1,
            dead_letters: true,
            ..self.stream.clone()
        })
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub brokers: u32,
    pub racks: u32,
    pub streams: Vec<StreamPlan>,
    pub producers: Vec<ProducerPlan>,
    /// Members of the group that reads the first stream in order.
    pub members: u32,
    /// Readers without a group, which begin anew again and again.
    pub watchers: u32,
    pub transactions: Option<TransactionPlan>,
    pub table: Option<TablePlan>,
    pub keys: Option<KeysPlan>,
    pub shares: Option<SharesPlan>,
    /// How often brokers look at what is due to be compacted.
    pub compaction_interval: Duration,
    /// How long there are faults.
    pub trouble: Duration,
    /// Longest pause between two faults.
    pub between: Duration,
    /// Records of all producers together after which they go slowly.
    pub budget: u64,
    pub network: NetworkMood,
    pub disk: DiskMood,
    /// Disks are full, fail and, where something may be lost, keep something else than what was written.
    pub failing_disks: bool,
    /// How long an append waits for its replicas, where that is not what brokers do by themselves.
    pub append_deadline: Option<Duration>,
    pub store: StoreMood,
    pub repair_interval: Duration,
    pub flush_interval: Duration,
    /// How often replicas are compared.
    pub scrub_interval: Duration,
    pub newer: Newer,
}

impl Plan {
    /// What `seed` decides.
    pub fn of(seed: u64) -> Self {
        let dice = &mut Dice::new(seed, "plan");
        let brokers = *dice.one(&[3, 3, 3, 3, 4, 5]);
        let streams = (0..dice.between(1, 2)).map(|number| stream(dice, number, brokers));
        let streams: Vec<_> = streams.collect();
        let producers = dice.between(1, 4);
        let producers = (0..producers)
            .map(|_| producer(dice, streams.len() as u64))
            .collect();
        // Apart from the rest: what a seed decided before there were any stays.
        let watchers = *Dice::new(seed, "watchers").one(&[0, 1, 1, 2]);
        let plan = Self {
            newer: Newer::default(),
            watchers,
            transactions: transactions(seed, brokers),
            table: table(seed, brokers),
            keys: None,
            shares: None,
            compaction_interval: *Dice::new(seed, "compaction")
                .one(&[Duration::from_millis(300), Duration::from_secs(2)]),
            brokers,
            racks: *dice.one(&[0, 0, 2, 3]),
            streams,
            producers,
            members: *dice.one(&[0, 1, 2, 3]),
            trouble: Duration::from_millis(dice.between(5_000, 30_000)),
            between: Duration::from_millis(*dice.one(&[300, 1_000, 3_000, 8_000])),
            budget: dice.between(500, 6_000),
            network: network(dice),
            disk: disk(seed),
            failing_disks: seed > SOUND_DISKS && Dice::new(seed, "disks fail").chance(400),
            append_deadline: append_deadline(seed),
            store: store(dice),
            repair_interval: Duration::from_millis(*dice.one(&[300, 1_000, 5_000])),
            flush_interval: Duration::from_millis(*dice.one(&[200, 1_000, 60_000])),
            // What rots is found in time.
            scrub_interval: Duration::from_millis(
                *Dice::new(seed, "scrub").one(&[1_000, 5_000, 20_000]),
            ),
        };
        newer::decide(seed, plan)
    }

    /// Whether acknowledgements of a stream are for what its owner's process remembers.
    pub fn remembers(&self) -> bool {
        let remembers = |stream: &StreamPlan| stream.ack == v1::AckPolicy::Memory;
        self.streams.iter().any(remembers)
    }

    /// The same without what `cut` leaves out.
    pub fn cut(mut self, cut: &Cut) -> Self {
        self.producers.truncate(cut.producers.unwrap_or(usize::MAX));
        self.members = self.members.min(cut.members.unwrap_or(u32::MAX));
        if let Some(plan) = &mut self.transactions {
            plan.producers = plan.producers.min(cut.transactions.unwrap_or(u32::MAX));
        }
        self.transactions = self.transactions.filter(|plan| plan.producers > 0);
        if let Some(plan) = &mut self.table {
            plan.producers = plan.producers.min(cut.table.unwrap_or(u32::MAX));
        }
        self.table = self.table.filter(|plan| plan.producers > 0);
        if let Some(plan) = &mut self.keys {
            plan.members = plan.members.min(cut.keys.unwrap_or(u32::MAX));
        }
        self.keys = self.keys.filter(|plan| plan.members > 0);
        if let Some(plan) = &mut self.shares {
            plan.members = plan.members.min(cut.shares.unwrap_or(u32::MAX));
        }
        self.shares = self.shares.filter(|plan| plan.members > 0);
        let trouble = Duration::from_millis(cut.trouble.unwrap_or(u64::MAX));
        self.trouble = self.trouble.min(trouble);
        self
    }
}

/// Every other run has transactions. Apart from the rest, as readers are.
fn transactions(seed: u64, brokers: u32) -> Option<TransactionPlan> {
    let dice = &mut Dice::new(seed, "transactions");
    if dice.chance(500) {
        return None;
    }
    let mut stream = stream(dice, 0, brokers);
    stream.name = "transactions".to_owned();
    // Without what a transaction needs there is none.
    stream.ack = *dice.one(&[
        v1::AckPolicy::Written,
        v1::AckPolicy::Written,
        v1::AckPolicy::Synced,
    ]);
    Some(TransactionPlan {
        stream,
        producers: dice.between(1, 3) as u32,
        readers: dice.between(1, 2) as u32,
        plain: dice.chance(500),
        batch_bytes: *dice.one(&[1 << 10, 4 << 10]),
        largest: *dice.one(&[40, 400, 2_000]),
    })
}

/// Every third run has a compacted stream.
fn table(seed: u64, brokers: u32) -> Option<TablePlan> {
    let dice = &mut Dice::new(seed, "table");
    if dice.chance(667) {
        return None;
    }
    let mut stream = stream(dice, 0, brokers);
    stream.name = "table".to_owned();
    stream.ack = *dice.one(&[
        v1::AckPolicy::Written,
        v1::AckPolicy::Written,
        v1::AckPolicy::Synced,
    ]);
    // Only what is closed is compacted.
    stream.segments_per_group = 1;
    stream.compacted = Some(Compacted {
        delete_retention: Duration::from_millis(*dice.one(&[0, 1_000, 20_000])),
        min_dirty_permille: *dice.one(&[0, 0, 300]),
    });
    Some(TablePlan {
        stream,
        producers: dice.between(1, 2) as u32,
        readers: dice.between(1, 2) as u32,
        keys: *dice.one(&[3, 10, 100]),
        tombstones: *dice.one(&[0, 50, 300]),
        burst: *dice.one(&[5, 20, 40]),
        pause: Duration::from_millis(*dice.one(&[10, 50, 200])),
        batch_bytes: *dice.one(&[1 << 10, 4 << 10]),
        largest: *dice.one(&[400, 2_000]),
        // Apart from the rest, as readers are.
        read_pause: Duration::from_millis(
            *Dice::new(seed, "pauses of readers of the table").one(&[0, 0, 100, 1_000]),
        ),
    })
}

/// A group that keeps the order of keys.
pub fn keys(seed: u64, brokers: u32) -> KeysPlan {
    let dice = &mut Dice::new(seed, "keys");
    let mut stream = stream(dice, 0, brokers);
    stream.name = "keys".to_owned();
    (stream.streamlets, stream.lanes) = (dice.between(1, 2) as u32, 1);
    stream.ack = *dice.one(&[v1::AckPolicy::Written, v1::AckPolicy::Synced]);
    KeysPlan {
        stream,
        members: dice.between(2, 4) as u32,
        growth: GROWTH,
        keys: *dice.one(&[5, 40, 200]),
        burst: *dice.one(&[5, 20, 40]),
        pause: Duration::from_millis(*dice.one(&[10, 50, 200])),
        batch_bytes: *dice.one(&[1 << 10, 4 << 10]),
        largest: *dice.one(&[40, 400]),
    }
}

/// A share group.
pub fn shares(seed: u64, brokers: u32) -> SharesPlan {
    let dice = &mut Dice::new(seed, "shares");
    let mut stream = stream(dice, 0, brokers);
    stream.name = "shares".to_owned();
    (stream.streamlets, stream.lanes) = (dice.between(1, 2) as u32, 1);
    stream.ack = *dice.one(&[v1::AckPolicy::Written, v1::AckPolicy::Synced]);
    SharesPlan {
        stream,
        members: dice.between(2, 4) as u32,
        lock: Duration::from_millis(*dice.one(&[1_000, 2_000, 5_000])),
        deliveries: *dice.one(&[5, 10]),
        dead_letters: false,
        growth: GROWTH,
        keys: *dice.one(&[5, 40, 200]),
        burst: *dice.one(&[5, 20, 40]),
        pause: Duration::from_millis(*dice.one(&[10, 50, 200])),
        batch_bytes: *dice.one(&[1 << 10, 4 << 10]),
        largest: *dice.one(&[40, 400]),
    }
}

fn stream(dice: &mut Dice, number: u64, brokers: u32) -> StreamPlan {
    let replicas = if brokers > 3 {
        *dice.one(&[2, 3, 3])
    } else {
        *dice.one(&[2, 3, 3, 3])
    };
    StreamPlan {
        name: format!("s{number}"),
        streamlets: dice.between(1, 3) as u32,
        lanes: dice.between(1, 2) as u32,
        replicas,
        min_insync: 2,
        ack: *dice.one(&[
            v1::AckPolicy::Memory,
            v1::AckPolicy::Written,
            v1::AckPolicy::Written,
        ]),
        segments_per_group: *dice.one(&[1, 2, 4]),
        compacted: None,
        dead_letters: false,
        retention_bytes: None,
    }
}

fn producer(dice: &mut Dice, streams: u64) -> ProducerPlan {
    ProducerPlan {
        stream: dice.below(streams) as u32,
        keys: *dice.one(&[1, 5, 40]),
        burst: *dice.one(&[1, 10, 40]),
        pause: Duration::from_millis(*dice.one(&[2, 10, 50, 200])),
        batch_bytes: *dice.one(&[1 << 10, 4 << 10, 16 << 10]),
        largest: *dice.one(&[40, 400, 2_000]),
        deadline: PATIENCE,
    }
}

/// The network that most runs have, or one with a weakness: not every run has all of them, or none would show what
/// each does alone.
fn network(dice: &mut Dice) -> NetworkMood {
    let mut mood = NetworkMood {
        least: 50,
        most: *dice.one(&[200, 500, 3_000, 20_000]),
        straggles: 0,
        longest: 50_000,
        breaks: 0,
    };
    if dice.chance(300) {
        mood.straggles = dice.between(50, 2_000);
        mood.longest = *dice.one(&[50_000, 400_000, 2_000_000]);
    }
    if dice.chance(300) {
        mood.breaks = dice.between(1, 200);
    }
    mood
}

/// In most runs what is written is there at once, as in a page cache. In others it takes its time, so that memory and
/// replicas are ahead of a file when its process is killed.
fn disk(seed: u64) -> DiskMood {
    let dice = &mut Dice::new(seed, "disk");
    if seed <= QUICK_DISKS || !dice.chance(400) {
        return DiskMood::default();
    }
    DiskMood {
        most: *dice.one(&[200, 2_000, 20_000]),
        stalls: *dice.one(&[0, 1, 20]),
        longest: *dice.one(&[100_000, 1_000_000]),
    }
}

/// Where it is short, appends are often answered before anybody can tell whether they take effect.
fn append_deadline(seed: u64) -> Option<Duration> {
    let dice = &mut Dice::new(seed, "deadline of appends");
    let short = seed > SOUND_DISKS && dice.chance(300);
    short.then(|| Duration::from_millis(*dice.one(&[100, 500, 2_000])))
}

fn store(dice: &mut Dice) -> StoreMood {
    let mut mood = StoreMood {
        least: 100,
        most: *dice.one(&[500, 3_000, 30_000]),
        answer_lost: 0,
        request_lost: 0,
        watch_lost: 0,
        late: 0,
    };
    if dice.chance(300) {
        mood.answer_lost = dice.between(1, 50);
        mood.request_lost = dice.between(1, 50);
    }
    if dice.chance(300) {
        mood.watch_lost = dice.between(1, 300);
    }
    if dice.chance(300) {
        mood.late = *dice.one(&[10_000, 300_000, 2_000_000]);
    }
    mood
}
