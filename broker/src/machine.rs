//! What the machine grants a broker, looked at when it starts.
//!
//! Containers and service managers grant less than a login shell does: few open files, little memory
//! to lock, a small `/dev/shm`. The broker starts all the same and says, in one line for each, what
//! is short, what that costs and what to set. A refused io_uring is told by the engine that falls
//! back; shared memory that is too small for the copies kept for others is refused by their store.

use kera_log_segments::io::LOCKED_BYTES;

use crate::config::BrokerConfig;
use crate::process;

/// Open files beyond connections that a broker should have: each lane that is appended to holds one
/// or two, and readers of old records some more.
const FILES_OF_GROUPS: u64 = 4096;

/// Connections that a broker takes of `wanted` where `files` may be open: at least half of them, or as many as
/// groups need, stay free. Where connections took them all, no group could be opened and no append served.
pub fn most_connections(wanted: u64, files: Option<u64>) -> u64 {
    let left = |files: u64| files - FILES_OF_GROUPS.min(files / 2);
    files.map_or(wanted, |files| wanted.min(left(files)).max(1))
}

/// What a broker can make use of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The name of the I/O engine.
    pub engine: &'static str,
    /// Files and sockets open at a time.
    pub open_files: u64,
    /// Bytes of memory registered with the kernel.
    pub locked_bytes: u64,
}

impl Needs {
    /// Those of a broker with this configuration; `engine` is the name of the I/O engine it uses.
    pub fn of(config: &BrokerConfig, engine: &'static str) -> Self {
        Self {
            engine,
            open_files: u64::from(config.server.max_connections) + FILES_OF_GROUPS,
            locked_bytes: if engine == "uring" { LOCKED_BYTES } else { 0 },
        }
    }

    /// Those of a process that only keeps copies.
    pub fn of_backup() -> Self {
        Self {
            engine: "blocking",
            open_files: FILES_OF_GROUPS,
            locked_bytes: 0,
        }
    }
}

/// What the machine grants this process. `None` is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// Files and sockets open at a time, RLIMIT_NOFILE.
    pub open_files: Option<u64>,
    /// Bytes of memory locked or registered, RLIMIT_MEMLOCK.
    pub locked_bytes: Option<u64>,
    /// Bytes of `/dev/shm`; 0 if there is none. What copies kept for other brokers may take there is
    /// `replica_store.memory_bytes`.
    pub shared_memory: u64,
}

impl Grants {
    /// Looks at this process and its machine.
    pub fn look() -> Self {
        let shared = rustix::fs::statvfs("/dev/shm");
        Self {
            open_files: process::open_files_limit(),
            locked_bytes: process::locked_limit(),
            shared_memory: shared.map_or(0, |stat| stat.f_blocks * stat.f_frsize),
        }
    }
}

/// One line for each thing that is short.
pub fn shortages(needs: &Needs, grants: &Grants) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(limit) = grants.open_files
        && limit < needs.open_files
    {
        lines.push(format!(
            "only {limit} files may be open, and {} are wanted: fewer connections than server.max_connections are taken, so that \
             groups can be opened; set LimitNOFILE= of the systemd unit, --ulimit nofile= of the container, or `ulimit -n` to {} or more",
            needs.open_files,
            needs.open_files.next_power_of_two(),
        ));
    }
    if let Some(limit) = grants.locked_bytes
        && limit < needs.locked_bytes
    {
        lines.push(format!(
            "only {} KiB of memory may be locked, and io_uring's buffers take {} KiB: synced and cold I/O goes on with \
             buffers that cost more CPU; set LimitMEMLOCK= of the systemd unit, --ulimit memlock= of the container, or \
             `ulimit -l` to {} KiB or more",
            limit >> 10,
            needs.locked_bytes >> 10,
            needs.locked_bytes.next_power_of_two() >> 10,
        ));
    }
    lines
}

/// Logs what the machine grants, and a warning for each thing that is short.
pub fn report(needs: &Needs) {
    let grants = Grants::look();
    let limit = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |n| n.to_string());
    tracing::info!(
        engine = needs.engine,
        open_files = limit(grants.open_files),
        locked_bytes = limit(grants.locked_bytes),
        shared_memory_bytes = grants.shared_memory,
        "what the machine grants"
    );
    for line in shortages(needs, &grants) {
        tracing::warn!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_groups() {
        assert_eq!(most_connections(4096, None), 4096);
        assert_eq!(most_connections(4096, Some(65_536)), 4096);
        assert_eq!(most_connections(4096, Some(8192)), 4096);
        assert_eq!(most_connections(4096, Some(1024)), 512);
        assert_eq!(most_connections(100, Some(1024)), 100);
        assert_eq!(most_connections(100, Some(1)), 1);
    }

    #[test]
    fn each_shortage_is_a_line_that_says_what_to_set() {
        let needs = Needs::of(&BrokerConfig::default(), "uring");
        let enough = Grants {
            open_files: Some(needs.open_files),
            locked_bytes: None,
            shared_memory: 0,
        };
        assert_eq!(shortages(&needs, &enough), Vec::<String>::new());
        let cases = [
            (
                Grants {
                    open_files: Some(1024),
                    ..enough.clone()
                },
                ["1024", "LimitNOFILE=", "8192"],
            ),
            (
                Grants {
                    locked_bytes: Some(64 << 10),
                    ..enough.clone()
                },
                ["64 KiB", "LimitMEMLOCK=", "memlock="],
            ),
        ];
        for (grants, words) in cases {
            let lines = shortages(&needs, &grants);
            assert_eq!(lines.len(), 1, "{lines:?}");
            for word in words {
                assert!(lines[0].contains(word), "{word} is missing: {}", lines[0]);
            }
        }
    }

    #[test]
    fn plain_calls_lock_nothing() {
        let needs = Needs::of(&BrokerConfig::default(), "blocking");
        let least = Grants {
            open_files: None,
            locked_bytes: Some(0),
            shared_memory: 0,
        };
        assert_eq!(shortages(&needs, &least), Vec::<String>::new());
    }
}
