//! What goes wrong, and what it is about.

/// A fault, and whom it is about.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It ends where it stands; it is started again when the fault is over.
    Killed(u32),
    /// Its machine loses its power: with the process goes what was in shared memory.
    PowerLost(u32),
    /// Its machine burns down, and another takes its place with its number.
    DiskLost(u32),
    /// All of them at once.
    AllKilled,
    /// It is asked to stop: it hands over, and comes back.
    Rolled(u32),
    /// Stopped and, later, let go on.
    Paused(u32),
    /// Nothing gets from either to the other.
    Parted(u32, u32),
    /// Nothing gets from the first to the second.
    OneWay(u32, u32),
    /// It does not reach the store.
    NoStore(u32),
    /// It reaches no other broker and not the store; clients reach it.
    Alone(u32),
    /// No client reaches it; brokers do.
    NoClients(u32),
    /// What gets from one to the other takes so many milliseconds longer.
    Slow(u32, u32, u64),
    /// An operator takes a snapshot of the store.
    Snapshot,
    /// All brokers are stopped, the store is put back to the snapshot, and all are started.
    PutBack,
    /// Records of the first lanes of a stream are trimmed.
    Trimmed(u32),
    /// The store forgets what was changed.
    Compacted,
    /// Nobody reaches the store.
    StoreAway,
    /// Its wall clock jumps by so many seconds and, later, back.
    ClockJumps(u32, i64),
    /// Its disk is full.
    DiskFull(u32),
    /// Of 1,000 writes to its disk so many fail.
    WritesFail(u32, u64),
    /// Of 1,000 flushes of its disk so many fail.
    FlushesFail(u32, u64),
    /// So many bits of what lies on its disk are others, from one moment to the next.
    Rots(u32, u64),
    /// All machines lose their power at once, or all but one.
    Blackout(Option<u32>),
    /// It does not reach the store, and takes its lease for longer than it is.
    LateLease(u32),
    /// A streamlet of a stream is handed to a broker.
    Moved(u32, u32),
    /// It is drained and, later, not any more.
    Drained(u32),
    /// All are restarted in turn: one is asked to stop once the one before serves again.
    AllRolled,
    /// There is one more.
    Added,
    /// It is drained and, once nothing is left there, stopped for good; its disk goes with it.
    Removed(u32),
}

/// Whether a broker is not to run while a fault lasts.
pub fn is_down(fault: Fault, broker: u32) -> bool {
    match fault {
        Fault::Killed(one) | Fault::PowerLost(one) | Fault::DiskLost(one) => one == broker,
        Fault::Blackout(spared) => spared != Some(broker),
        Fault::PutBack => true,
        _ => false,
    }
}

/// Whether a disk does not keep what is written.
pub fn takes_nothing(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::DiskFull(_) | Fault::WritesFail(..) | Fault::FlushesFail(..)
    )
}

/// Whether a machine loses what it holds, or a part of it.
pub fn takes_all(fault: Fault) -> bool {
    matches!(fault, Fault::PowerLost(_) | Fault::DiskLost(_))
}

/// Whether a broker is to take its lease for longer than it is.
pub fn is_late(fault: Fault) -> bool {
    matches!(fault, Fault::LateLease(_))
}

/// What a fault is about: there is one at a time.
pub fn touch(fault: Fault) -> (u32, u32) {
    match fault {
        Fault::Killed(one) | Fault::Rolled(one) | Fault::Paused(one) => (1, one),
        Fault::PowerLost(one) | Fault::DiskLost(one) => (1, one),
        Fault::LateLease(one) | Fault::NoStore(one) | Fault::Alone(one) | Fault::NoClients(one) => {
            (2, one)
        }
        Fault::Parted(..) | Fault::OneWay(..) => (3, 0),
        Fault::Slow(..) => (12, 0),
        Fault::Snapshot | Fault::PutBack => (13, 0),
        Fault::Trimmed(_) => (14, 0),
        Fault::StoreAway => (2, 0),
        Fault::AllKilled | Fault::Blackout(_) => (4, 0),
        Fault::Compacted => (5, 0),
        Fault::ClockJumps(one, _) => (6, one),
        Fault::DiskFull(one) | Fault::WritesFail(one, _) => (7, one),
        Fault::FlushesFail(one, _) | Fault::Rots(one, _) => (7, one),
        Fault::Moved(..) => (8, 0),
        Fault::Drained(_) | Fault::Removed(_) => (9, 0),
        Fault::AllRolled => (10, 0),
        Fault::Added => (11, 0),
    }
}

/// The broker that a fault is about, if that is one alone.
pub fn is_about(fault: Fault) -> Option<u32> {
    let (kind, broker) = touch(fault);
    let is_one = matches!(kind, 1 | 2 | 6 | 7) && broker > 0;
    is_one.then_some(broker)
}
