//! One suite over all transports: any interleaving of appends, rolls, seals, crashes and restarts
//! recovers exactly a prefix that contains everything acknowledged.
#![allow(dead_code)] // each test file uses its part

pub mod asked;
pub mod check;
pub mod own;
pub mod scenario;
pub mod served;
pub mod test_group;

use std::sync::Arc;
use std::time::Duration;

use kera_replication::backup::Limits;
use kera_replication::faults::Faults;
use kera_replication::ids::BrokerId;
use kera_replication::jobs::JobConfig;
use kera_replication::own::OwnFiles;
use kera_replication::primary::{Config, ReplicaSet};
use kera_replication::records::RecordsRef;
use kera_replication::runtime::RuntimeRef;
use kera_replication::transport::sim::MemoryFate;
use kera_replication::transport::{Pending, TransportRef};

use asked::Asked;
use served::Disk;
use test_group::TestGroup;

/// Brokers that can be hurt. Each runs a backup store, and primaries beside it.
pub trait Stage: Send + Sync {
    /// The brokers.
    fn nodes(&self) -> Vec<BrokerId>;
    /// Their network, as `node` sees it.
    fn transport(&self, node: BrokerId) -> TransportRef;
    /// The records, as asked from `node`.
    fn records(&self, node: BrokerId) -> RecordsRef {
        self.asked(node)
    }
    /// The same records, as tests ask them without waiting for an answer.
    fn asked(&self, node: BrokerId) -> Arc<Asked>;
    /// Where the groups that `node` owns have their files. If these do not count as copies, each owner
    /// begins with an empty disk.
    fn disk(&self, _node: BrokerId) -> Disk {
        Disk::of_no_account()
    }
    /// Tasks that end with the present process of `node`.
    fn runtime(&self, node: BrokerId) -> RuntimeRef;
    /// The process is gone at once.
    fn kill(&self, node: BrokerId) -> Pending<()>;
    /// The process is gone, and its memory with it, though writes to it go on completing for a
    /// moment; where that can be arranged.
    fn kill_with_memory(&self, node: BrokerId) -> Pending<()> {
        self.kill(node)
    }
    /// The files that `node` writes itself, if its groups are kept in such.
    fn own(&self, _node: BrokerId) -> Option<Arc<OwnFiles>> {
        None
    }
    /// Writes what its own file lacks of a group.
    fn write_own(&self, _node: BrokerId, _set: &ReplicaSet, _source: &TestGroup) {}
    /// It starts again.
    fn start(&self, node: BrokerId, fate: MemoryFate) -> Pending<()>;
    fn is_alive(&self, node: BrokerId) -> bool;
    /// Stops or continues it.
    fn pause(&self, node: BrokerId, paused: bool);
    /// Nothing gets from the one to the other.
    fn cut(&self, from: BrokerId, to: BrokerId);
    /// The records do not answer `node` any more, where that can be arranged.
    fn cut_records(&self, _node: BrokerId) {}
    /// Ends cuts and pauses.
    fn heal(&self);
    /// Ends all bad luck, where there is any.
    fn calm(&self) {}
    /// Lets time pass.
    fn wait(&self, time: Duration) -> Pending<()>;
}

pub type StageRef = Arc<dyn Stage>;

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub replicas: usize,
    pub min_insync_replicas: usize,
    pub lanes: u32,
    /// Owners, one after the other.
    pub reigns: u32,
    /// What happens under each.
    pub rounds: u32,
    /// Longest pause between two things that happen.
    pub pause: Duration,
    /// Of 100 things that happen, so many are trouble.
    pub trouble: u64,
    /// Of 1,000 questions to the records, so many are carried out long after nobody waits any more.
    pub late: u64,
    pub faults: Faults,
    pub config: Config,
    /// There is one owner, started again and again, and its own files count as copies.
    pub own: bool,
    /// Acknowledged is what is flushed to disks. Then all brokers may lose power at once.
    pub synced: bool,
    /// Acknowledged is what the owner remembers and others have placed: its own file is written later.
    pub remembered: bool,
    /// What backups may hold.
    pub limits: Limits,
    /// Copies that closed groups have lost are built anew meanwhile.
    pub jobs: bool,
    /// Of 1,000 groups that end, so many are followed at once by one that has nothing in it yet.
    pub empty: u64,
}

impl Plan {
    pub fn new(seed: u64, min_insync_replicas: usize, faults: Faults) -> Self {
        Self {
            seed,
            replicas: 3,
            min_insync_replicas,
            lanes: 2,
            reigns: 3,
            rounds: 30,
            pause: Duration::from_millis(40),
            trouble: 16,
            late: 10,
            faults,
            config: small(),
            own: false,
            synced: false,
            remembered: false,
            limits: Limits::default(),
            jobs: false,
            empty: 0,
        }
    }
}

/// Jobs that are always at it.
pub fn busy() -> JobConfig {
    JobConfig {
        interval: Duration::from_millis(100),
        bytes_per_second: 1 << 20,
        lost_after: Duration::from_millis(500),
        builds: 8,
        scrub_interval: Duration::from_secs(3600),
    }
}

/// Everything so small that every limit is met.
pub fn small() -> Config {
    Config {
        call_timeout: Duration::from_millis(200),
        reconnect_timeout: Duration::from_millis(200),
        scan_timeout: Duration::from_millis(400),
        flush_timeout: Duration::from_millis(400),
        flush_interval: Duration::from_millis(100),
        attempts: 2,
        pause: Duration::from_millis(10),
        room_timeout: Duration::from_millis(300),
        drain_timeout: Duration::from_millis(300),
        tidy_after: Duration::ZERO,
        in_flight_bytes: 4096,
        submission_bytes: 2048,
        turn_bytes: 700,
        read_backs: 2,
        first_buffer_bytes: 128,
        buffer_bytes: 512,
        ahead: 1,
        ahead_busy: 3,
    }
}
