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

    /// The address at which replicas come.
    pub fn replicas_at(&self) -> &str {
        self.port.address()
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

/// Brokers 1, 2, ... of the cluster that the flag and the value `cluster` tell, each in a place of its own and with
/// `more` flags. `start` gets a broker's number and its flags.
pub fn start_each<B>(
    brokers: usize,
    cluster: [&str; 2],
    more: &[&str],
    mut start: impl FnMut(usize, &[&str]) -> B,
) -> (Vec<B>, Vec<Place>) {
    let started = (1..=brokers).map(|number| {
        let place = Place::new();
        let flags = place.flags(number, cluster);
        let mut flags: Vec<_> = flags.iter().map(String::as_str).collect();
        flags.extend(more);
        (start(number, &flags), place)
    });
    started.unzip()
}
