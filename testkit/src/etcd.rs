//! An etcd of one member, as a process that can be killed, paused and started again.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread;

use tempfile::TempDir;

use crate::command::{killed, lines_of};
use crate::machine::skip_this;
use crate::ports::Reserved;
use crate::program::{started_within, undisturbed};
use crate::standstill::{go_on, stand_still};
use crate::{PATIENCE, home};

/// A running etcd; it is killed, and what it stored removed, when this is dropped.
pub struct Etcd {
    data: TempDir,
    /// HOST:PORT for clients, and for members.
    clients: String,
    peers: String,
    /// Keep them for it while it does not run.
    _ports: Vec<Reserved>,
    /// What goes before its command line: a program that starts it elsewhere.
    within: Vec<String>,
    /// How clients reach it, and more of its flags.
    scheme: &'static str,
    flags: Vec<String>,
    /// Which of the states in its directory it has.
    state: Mutex<String>,
    /// Its name, and with whom it is one etcd; empty for itself alone.
    name: String,
    together: String,
    process: Mutex<Option<Child>>,
}

/// Of a test's own: less for the disk to do, and elected at once.
const QUICK: [&str; 5] = [
    "--unsafe-no-fsync",
    "--heartbeat-interval",
    "20",
    "--election-timeout",
    "200",
];

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it can be listed");
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("it can be copied");
        }
    }
}

/// Says where there is no etcd; whether there is one.
fn is_installed() -> bool {
    let lacking = Etcd::lacking();
    if let Some(reason) = &lacking {
        skip_this(reason);
    }
    lacking.is_none()
}

impl Etcd {
    /// Why there is none on this machine, if so.
    pub fn lacking() -> Option<String> {
        static LACKING: OnceLock<Option<String>> = OnceLock::new();
        let look = || {
            let tried = Command::new("etcd").arg("--version").output();
            let error = tried.err()?;
            Some(format!(
                "there is no `etcd` ({error}); install etcd-server with your system's packages"
            ))
        };
        LACKING.get_or_init(look).clone()
    }

    /// A new, empty etcd that answers; `None`, and said so, where there is no etcd on this machine.
    pub fn start() -> Option<Self> {
        Self::with("http", &[])
    }

    /// As [`start`](Self::start), with more flags; `scheme` is what clients are to speak.
    pub fn with(scheme: &'static str, flags: &[String]) -> Option<Self> {
        if !is_installed() {
            return None;
        }
        let quick = QUICK.iter().map(|flag| (*flag).to_owned());
        let mut etcd = Self::on_loopback();
        etcd.scheme = scheme;
        etcd.flags = quick.chain(flags.iter().cloned()).collect();
        etcd.restart();
        Some(etcd)
    }

    /// As [`start`](Self::start), with what another etcd left behind in this directory.
    pub fn on(directory: &Path) -> Option<Self> {
        if !is_installed() {
            return None;
        }
        let mut etcd = Self::on_loopback();
        etcd.flags = QUICK.map(str::to_owned).into();
        // A whole path: it is not one of those in its own directory.
        etcd.state = Mutex::new(directory.display().to_string());
        etcd.restart();
        Some(etcd)
    }

    /// One with etcd's own settings, on loopback, that answers.
    pub fn plain() -> Self {
        let etcd = Self::on_loopback();
        etcd.restart();
        etcd
    }

    /// The same at these addresses; the program `within` starts it elsewhere.
    pub fn at(within: Vec<String>, clients: &str, peers: &str) -> Self {
        let mut etcd = Self::unstarted(clients, peers, Vec::new());
        etcd.within = within;
        etcd.restart();
        etcd
    }

    fn on_loopback() -> Self {
        let ports = [Reserved::new(), Reserved::new()];
        let (clients, peers) = (ports[0].address().to_owned(), ports[1].address().to_owned());
        Self::unstarted(&clients, &peers, ports.into())
    }

    fn unstarted(clients: &str, peers: &str, ports: Vec<Reserved>) -> Self {
        Self {
            data: home(),
            clients: clients.to_owned(),
            peers: peers.to_owned(),
            _ports: ports,
            within: Vec::new(),
            scheme: "http",
            flags: Vec::new(),
            state: Mutex::new("data".to_owned()),
            name: "member".to_owned(),
            together: String::new(),
            process: Mutex::new(None),
        }
    }

    /// Starts the process and waits until it answers.
    fn run(&self) {
        let client = format!("{}://{}", self.scheme, self.clients);
        let peer = format!("http://{}", self.peers);
        let data = self.data.path().join(&*self.state.lock().unwrap());
        let cluster = match self.together.as_str() {
            "" => format!("{}={peer}", self.name),
            together => together.to_owned(),
        };
        // Nothing of the caller's own etcd.
        let mut command = undisturbed(started_within(&self.within, "etcd".as_ref()), "ETCD_");
        if cfg!(target_arch = "aarch64") {
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        command
            .args(["--name", &self.name, "--logger", "zap"])
            .args(["--initial-cluster", &cluster])
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .arg("--data-dir")
            .arg(&data)
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("etcd starts");
        let lines = lines_of(child.stderr.take().expect("it has a log"));
        *self.process.lock().unwrap() = Some(child);
        let mut last = Vec::new();
        loop {
            let Ok(line) = lines.recv_timeout(PATIENCE) else {
                panic!("etcd did not say that it serves: {}", last.join(" | "));
            };
            if line.contains("serving client traffic") {
                return;
            }
            last.push(line);
        }
    }

    /// HOST:PORT of it.
    pub fn endpoint(&self) -> String {
        self.clients.clone()
    }

    /// Its address as Kera's stores are given it.
    pub fn address(&self) -> String {
        format!("etcd://{}", self.endpoint())
    }

    /// Kills it, as `kill -9` does; what it stored stays.
    pub fn kill(&self) {
        if let Some(child) = self.process.lock().unwrap().take() {
            killed(child);
        }
    }

    /// Starts it again, killed or not, with what it stored, and waits until it answers.
    pub fn restart(&self) {
        self.kill();
        self.run();
    }

    /// Puts another etcd in its place, at its address: the one that was left as `state`, or a new, empty one.
    /// Its own first state is `data`.
    pub fn become_state(&self, state: &str) {
        self.kill();
        *self.state.lock().unwrap() = state.to_owned();
        self.restart();
    }

    /// Keeps what it holds now as `state`, as a snapshot does; it is killed and started again for that.
    pub fn keep_state(&self, state: &str) {
        self.kill();
        let now = self.data.path().join(&*self.state.lock().unwrap());
        copy_dir(&now, &self.data.path().join(state));
        self.restart();
    }

    /// Stops the process where it is, so that connections stay and nothing is answered, or lets it go on.
    pub fn pause(&self, paused: bool) {
        let process = self.process.lock().unwrap();
        let child = process.as_ref().expect("it runs");
        if paused {
            stand_still(child);
        } else {
            go_on(child);
        }
    }

    /// Makes it forget all changes before `revision`.
    pub fn compact(&self, revision: u64) {
        let body = format!("{{\"revision\":{revision},\"physical\":true}}");
        self.call("/v3/kv/compaction", &body);
    }

    /// Writes a key that no broker wrote.
    pub fn put(&self, key: &str, value: &str) {
        let (key, value) = (base64(key.as_bytes()), base64(value.as_bytes()));
        let body = format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}");
        self.call("/v3/kv/put", &body);
    }

    /// Deletes all keys that begin with `prefix`.
    pub fn wipe(&self, prefix: &str) {
        let (from, to) = keys_of(prefix);
        let body = format!("{{\"key\":\"{from}\",\"range_end\":\"{to}\"}}");
        self.call("/v3/kv/deleterange", &body);
    }

    /// How many keys begin with `prefix`.
    pub fn count(&self, prefix: &str) -> u64 {
        let (from, to) = keys_of(prefix);
        let body = format!("{{\"key\":\"{from}\",\"range_end\":\"{to}\",\"count_only\":true}}");
        let answer = self.call("/v3/kv/range", &body);
        // What is 0 is left out.
        let Some((_, count)) = answer.split_once("\"count\":\"") else {
            return 0;
        };
        let (count, _) = count.split_once('"').expect("its end");
        count.parse().expect("a number")
    }

    /// Deletes a key behind everybody's back.
    pub fn delete(&self, key: &str) {
        let body = format!("{{\"key\":\"{}\"}}", base64(key.as_bytes()));
        self.call("/v3/kv/deleterange", &body);
    }

    /// A call in etcd's other protocol, so that nothing of the client under test is in it.
    pub fn call(&self, path: &str, body: &str) -> String {
        let mut connection = TcpStream::connect(self.endpoint()).expect("it listens");
        write!(
            connection,
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .expect("it reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    /// How often somebody has begun this call since it was started.
    pub fn begun(&self, call: &str) -> u64 {
        let mut connection = TcpStream::connect(self.endpoint()).expect("it listens");
        write!(connection, "GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        let name = format!("grpc_server_started_total{{grpc_method=\"{call}\",");
        let line = answer.lines().find_map(|line| line.strip_prefix(&name));
        let count = line.and_then(|line| line.rsplit_once(' '));
        let (_, count) = count.expect("it counts calls");
        count.parse().expect("a number")
    }
}

/// An etcd of three members.
pub struct Trio {
    members: Vec<Etcd>,
}

impl Trio {
    /// A new, empty one that answers; `None`, and said so, where there is no etcd on this machine.
    pub fn start() -> Option<Self> {
        if !is_installed() {
            return None;
        }
        let quick: Vec<_> = QUICK.iter().map(|flag| (*flag).to_owned()).collect();
        let mut members: Vec<_> = (0..3)
            .map(|number| {
                let mut member = Etcd::on_loopback();
                member.flags.clone_from(&quick);
                member.name = format!("member{number}");
                member
            })
            .collect();
        let all = members.iter();
        let all = all.map(|m| format!("{}=http://{}", m.name, m.peers));
        let together = all.collect::<Vec<_>>().join(",");
        for member in &mut members {
            member.together.clone_from(&together);
        }
        // None answers before most of them run.
        thread::scope(|scope| {
            for member in &members {
                scope.spawn(|| member.run());
            }
        });
        Some(Self { members })
    }

    /// The address of all members, as Kera's stores are given it.
    pub fn address(&self) -> String {
        let all: Vec<_> = self.members.iter().map(Etcd::endpoint).collect();
        format!("etcd://{}", all.join(","))
    }

    /// Kills the member that leads; its number.
    pub fn kill_leader(&mut self) -> usize {
        loop {
            for (number, member) in self.members.iter().enumerate() {
                let answer = member.call("/v3/maintenance/status", "{}");
                let of = |name: &str| {
                    let (_, rest) = answer.split_once(&format!("\"{name}\":\""))?;
                    Some(rest.split_once('"')?.0.to_owned())
                };
                let leader = of("leader");
                if leader.is_some() && leader == of("member_id") {
                    member.kill();
                    return number;
                }
            }
        }
    }

    /// Starts a member that was killed again, and waits until it answers.
    pub fn restart(&mut self, number: usize) {
        self.members[number].restart();
    }
}

/// The first key that begins with `prefix`, and the first behind them.
fn keys_of(prefix: &str) -> (String, String) {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().expect("a prefix") += 1;
    (base64(prefix.as_bytes()), base64(&end))
}

pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let mut number = [0, three[0], 0, 0];
        number[1..=three.len()].copy_from_slice(three);
        let number = u32::from_be_bytes(number);
        for digit in 0..4 {
            out.push(if digit <= three.len() {
                DIGITS[(number >> (18 - 6 * digit)) as usize & 63] as char
            } else {
                '='
            });
        }
    }
    out
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
