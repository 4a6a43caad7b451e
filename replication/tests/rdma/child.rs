//! Processes of their own: this test binary, started anew as a backup.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use kera_replication::backup::{Limits, ReplicaStore, ShmMemory, ShmOptions};
use kera_replication::faults::Faults;
use kera_replication::ids::BrokerId;
use kera_replication::transport::rdma::RdmaServer;
use kera_replication::transport::tcp::{BackupServer, ServerOptions};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::machine;

const DIR: &str = "KERA_TEST_BACKUP_DIR";
const LISTEN: &str = "KERA_TEST_BACKUP_LISTEN";
const READY: &str = "backup listens on ";
const QUOTA: u64 = 64 << 20;

/// A store over `dir`, served on `listen` over TCP and RDMA until the process ends.
pub fn serve_here(dir: &Path, listen: SocketAddr) {
    let memory = ShmMemory::new(ShmOptions {
        dir: dir.join("shared"),
        disk: None,
        quota: QUOTA,
    });
    let limits = Limits {
        memory_bytes: QUOTA,
        ..Limits::default()
    };
    let store = ReplicaStore::start(memory, limits, Faults::default()).expect("starts");
    machine::runtime().block_on(async {
        let listener = TcpListener::bind(listen).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let cards = RdmaServer::bind(address, &store).expect("listens");
        println!("\n{READY}{address}");
        let server = BackupServer::new(store, ServerOptions::default());
        let (data, control) = tokio::join!(cards.serve(), server.serve(listener));
        data.expect("serves");
        control.expect("serves");
    });
}

/// The process itself; without the variables it is no test of anything.
#[test]
fn serve() {
    let (Some(dir), Ok(listen)) = (std::env::var_os(DIR), std::env::var(LISTEN)) else {
        return;
    };
    serve_here(Path::new(&dir), listen.parse().expect("an address"));
}

/// This binary once more, to run one of its tests; its output.
pub fn start(test: &str, settings: &[(&str, String)]) -> (Running, BufReader<ChildStdout>) {
    let mut process = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let output = BufReader::new(process.stdout.take().expect("its output"));
    (Running(process), output)
}

/// A process; killed when dropped.
pub struct Running(Child);

impl Running {
    /// SIGKILL; returns when the process is gone.
    pub fn kill(&mut self) {
        self.0.kill().expect("is killed");
        self.0.wait().expect("is gone");
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A backup's process.
pub struct Backup {
    pub id: BrokerId,
    pub address: String,
    pub process: Running,
    _output: BufReader<ChildStdout>,
    _dir: TempDir,
}

impl Backup {
    pub fn start(id: u32, address: IpAddr) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").expect("shared memory");
        let path: PathBuf = dir.path().into();
        let settings = [
            (DIR, path.display().to_string()),
            (LISTEN, SocketAddr::new(address, 0).to_string()),
        ];
        let (process, mut output) = start("child::serve", &settings);
        let mut line = String::new();
        let address = loop {
            line.clear();
            let read = output.read_line(&mut line).expect("text");
            assert_ne!(read, 0, "the process ended without a word");
            if let Some(address) = line.trim().strip_prefix(READY) {
                break address.to_owned();
            }
        };
        Self {
            id: BrokerId(id),
            address,
            process,
            _output: output,
            _dir: dir,
        }
    }

    pub fn three(address: IpAddr) -> Vec<Self> {
        (1..=3).map(|id| Self::start(id, address)).collect()
    }
}
