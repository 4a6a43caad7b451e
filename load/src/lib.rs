//! A load: producers and consumers on one stream, in one process, and what is measured of them.
//!
//! `kera bench` and `kera-bench` run it with Kera's own clients ([`native`]); `kera-bench` runs it with the clients of
//! other brokers too ([`Clients`]). Latency counts from when a record was due, not from when it was sent: a stall counts
//! for every record that it held up (no coordinated omission).
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod acks;
mod arrivals;
pub mod disk;
mod engine;
pub mod native;
pub mod process;
mod progress;
mod records;
mod schedule;
mod sides;
mod waiting;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use acks::Acks;
pub use arrivals::{Latency, histogram};
pub use engine::{Clients, Consuming, Producing, run};
pub use progress::Sink;
pub use records::{KEY_BYTES, Records};
pub use sides::{Rate, Side, Sides};
pub use waiting::{LEAST_WAIT, SILENCE, wait_until};

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Producers alone.
    Produce,
    /// Consumers alone, of records that are there.
    Consume,
    /// Both at once.
    Both,
    /// Producers at a rate. After a while consumers begin to read all that is there, until they have caught up.
    CatchUp,
    /// Producers at a rate, each record to another of very many partitions.
    Trickle,
    /// A group alone whose members are busy with each record. A moment after the first record was given to any of them
    /// the time begins that counts.
    Share,
}

/// How much is done, and by how many.
#[derive(Clone, Debug)]
pub struct Load {
    /// What the clients do.
    pub work: Work,
    /// Records of all producers together; of consumers alone, and of those that catch up, the records that are there.
    pub records: u64,
    /// Bytes of key and value together.
    pub record_bytes: u32,
    /// Records have keys: eight random bytes.
    pub keyed: bool,
    /// So many different keys; without it each record has another.
    pub different_keys: Option<u64>,
    /// Partitions, or lanes, of the stream.
    pub partitions: u32,
    /// Records a second of all producers together; without it they send as fast as they can.
    pub rate: Option<u64>,
    /// Each producer completes its work after so many records ([`Producing::complete`]). At a rate they are due all at
    /// once, and their way counts from when the first of them was handed over.
    pub at_once: Option<u64>,
    /// How long producers send if neither records nor a rate decide; of a catch-up how long they are alone; of a group
    /// that shares how long it is at work.
    pub time: Option<Duration>,
    /// Sending stops after so long, even before all records are sent.
    pub most: Option<Duration>,
    /// Producers at once, each with connections of its own.
    pub producers: u32,
    /// Consumers of each subscription, each with connections of its own.
    pub consumers: u32,
    /// How often every record is read.
    pub subscriptions: u32,
    /// The consumers are a group that shares all partitions. Otherwise each is assigned its part of them.
    pub group: bool,
    /// What a member of a group that shares is busy with each record.
    pub busy: Duration,
    /// Every record's way to a consumer is timed.
    pub timed: bool,
    /// Records go there and back before the load begins, and the first second of an open loop does not count. Without it
    /// consumers see only what is sent once they are there, and everything counts.
    pub warm: bool,
    /// Without a rate, one acknowledgement of so many is timed; none if it is 0.
    pub sample: u64,
}

impl Load {
    /// True if sending is to stop so long after its beginning.
    fn is_over(&self, elapsed: Duration) -> bool {
        self.most.is_some_and(|most| elapsed >= most)
    }

    /// True if consumers are to see only what is sent once they read.
    fn follows(&self) -> bool {
        self.work == Work::Both && !self.warm
    }

    /// True if consumers are there before the load begins, and no records open the way.
    fn is_prepared(&self) -> bool {
        self.work == Work::Consume || self.follows()
    }

    /// True if the acknowledgement of a producer's record of this number is timed although it was due at no time.
    fn samples(&self, number: u64) -> bool {
        self.sample > 0 && number.is_multiple_of(self.sample)
    }

    /// Records that are due so early are not counted: connections and caches are cold.
    fn cold(&self) -> Duration {
        if self.warm {
            Duration::from_secs(1)
        } else {
            Duration::ZERO
        }
    }
}

/// What the load was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Records sent; of consumers alone, records read.
    pub records: u64,
    /// Of keys and values.
    pub bytes: u64,
    /// From the beginning to the last acknowledgement or arrival.
    pub seconds: f64,
    /// None if the client does not tell.
    pub mean_batch_bytes: Option<f64>,
    /// From when a record was due (or sent, without a rate) to its arrival.
    pub latency: Option<Latency>,
    /// Producers and consumers, each by themselves.
    #[serde(default)]
    pub sides: Sides,
}

#[cfg(test)]
impl Load {
    /// Producers alone.
    fn of_producers(producers: u32, records: u64) -> Self {
        Self {
            work: Work::Produce,
            records,
            record_bytes: 100,
            keyed: false,
            different_keys: None,
            partitions: 1,
            rate: None,
            at_once: None,
            time: None,
            most: None,
            producers,
            consumers: 0,
            subscriptions: 1,
            group: false,
            busy: Duration::ZERO,
            timed: false,
            warm: true,
            sample: 0,
        }
    }
}
