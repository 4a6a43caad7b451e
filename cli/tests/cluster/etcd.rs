//! An etcd of the test's own, which can be killed, stopped and brought back.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;

use tempfile::TempDir;

use crate::common::standstill::{go_on, stand_still};
use crate::common::{PATIENCE, home};

/// What etcd says when it serves.
const READY: &str = "ready to serve client requests";

/// One member, which is all there is of it.
pub struct Etcd {
    child: Option<Child>,
    /// What goes before its command line.
    within: Vec<String>,
    /// HOST:PORT for clients, and for members.
    clients: String,
    peers: String,
    data: TempDir,
}

impl Etcd {
    /// Why there is none on this machine, if so.
    pub fn lacking() -> Option<String> {
        let tried = Command::new("etcd").arg("--version").output();
        tried
            .err()
            .map(|error| format!("there is no `etcd` ({error}); install etcd-server"))
    }

    /// Starts one at these addresses; the program `within` starts it elsewhere.
    pub fn start(within: Vec<String>, clients: &str, peers: &str) -> Self {
        let mut etcd = Self {
            child: None,
            within,
            clients: clients.to_owned(),
            peers: peers.to_owned(),
            data: home(),
        };
        etcd.restart();
        etcd
    }

    /// As `kera serve --cluster` wants it.
    pub fn url(&self) -> String {
        format!("etcd://{}", self.clients)
    }

    fn command(&self) -> Command {
        let mut command = match self.within.split_first() {
            None => Command::new("etcd"),
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg("etcd");
                command
            }
        };
        let path = |dir: &Path| dir.join("etcd").display().to_string();
        let clients = format!("http://{}", self.clients);
        let peers = format!("http://{}", self.peers);
        command
            .args(["--name", "only", "--data-dir", &path(self.data.path())])
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("only={peers}")]);
        command
    }

    /// Starts it on its directory; returns when it serves.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "etcd runs already");
        let mut child = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("etcd can be started");
        let errors = child.stderr.take().expect("its errors are piped");
        let (lines, received) = sync_channel(16);
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                // Read on even when nobody listens any more.
                let _ = lines.send(line);
            }
        });
        self.child = Some(child);
        let mut last = Vec::new();
        loop {
            let Ok(line) = received.recv_timeout(PATIENCE) else {
                panic!("etcd did not say that it serves: {}", last.join(" | "));
            };
            if line.contains(READY) {
                return;
            }
            last.push(line);
        }
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("etcd runs");
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
    }

    /// Stops the process where it is, or lets it go on.
    pub fn pause(&self, paused: bool) {
        let child = self.child.as_ref().expect("etcd runs");
        if paused {
            stand_still(child);
        } else {
            go_on(child);
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Gone already, or going now; either will do.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
