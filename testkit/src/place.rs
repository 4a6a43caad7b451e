//! What a broker of a cluster needs of this machine.

use std::path::Path;

use tempfile::TempDir;

use crate::ports::Reserved;
use crate::shared_memory;

/// Shared memory for replicas and a port at which they come. To be kept as long as the broker, restarts included.
pub struct Place {
    shared: TempDir,
    port: Reserved,
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Place {
    pub fn new() -> Self {
        Self {
            shared: shared_memory(),
            port: Reserved::new(),
        }
    }

    /// Where replicas are kept in memory.
    pub fn shared(&self) -> &Path {
        self.shared.path()
    }

    /// Flags of the broker with this number, whose cluster is told by the flag and the value `cluster`. Others may
    /// run on the same machine.
    pub fn flags(&self, number: usize, cluster: [&str; 2]) -> Vec<String> {
        let (number, shared) = (number.to_string(), self.shared().display().to_string());
        let flags = [
            cluster,
            ["--broker-id", &number],
            ["--replication-listen", self.port.address()],
            ["--replica-store-memory-bytes", "64MiB"],
            ["--replica-store-shared-dir", &shared],
        ];
        let flags = flags.as_flattened().iter().copied();
        let flags = flags.chain(["--allow-same-host"]);
        flags.map(str::to_owned).collect()
    }
}
