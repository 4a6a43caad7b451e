//! A backup as a process of its own: this test binary, started anew.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kera_replication::backup::{ReplicaStore, ShmMemory};
use kera_replication::faults::Faults;
use kera_replication::transport::tcp::{BackupServer, ServerOptions};
use tokio::net::TcpListener;

use crate::stage::{limits, options};

const DIR: &str = "KERA_TEST_BACKUP_DIR";
const READY: &str = "backup listens on ";
const REFUSED: &str = "backup does not start: ";

/// The process itself; without the variable it is no test of anything.
#[test]
fn serve() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let memory = ShmMemory::new(options(Path::new(&dir), true));
    let store = match ReplicaStore::start(memory, limits(), Faults::default()) {
        Ok(store) => store,
        Err(error) => {
            println!("\n{REFUSED}{error}");
            return;
        }
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("\n{READY}{}", listener.local_addr().expect("an address"));
        let server = BackupServer::new(store, ServerOptions::default());
        server.serve(listener).await.expect("serves");
    });
}

/// A backup's process; killed when dropped.
pub struct Backup {
    process: Child,
    pub address: String,
}

/// Starts a backup over `dir`; what it says if it does not start.
pub fn start(dir: &Path) -> Result<Backup, String> {
    let process = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "child::serve", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut backup = Backup {
        process,
        address: String::new(),
    };
    let stdout = BufReader::new(backup.process.stdout.take().expect("its output"));
    for line in stdout.lines() {
        let line = line.expect("text");
        if let Some(address) = line.strip_prefix(READY) {
            backup.address = address.to_owned();
            return Ok(backup);
        }
        if let Some(reason) = line.strip_prefix(REFUSED) {
            return Err(reason.to_owned());
        }
    }
    panic!("the process ended without a word");
}

impl Backup {
    /// SIGKILL; returns when the process is gone.
    pub fn kill(mut self) {
        self.process.kill().expect("is killed");
        self.process.wait().expect("is gone");
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
