//! An etcd of one member on loopback, as a process that can be killed, paused and started again.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;
use tokio::net::TcpSocket;

/// A running etcd; it is killed, and what it stored removed, when this is dropped.
pub struct Etcd {
    data: TempDir,
    client: Port,
    peer: Port,
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

/// Says loudly that a test did not run here; `make test` counts and lists it.
pub fn skip(reason: &str) {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("SKIPPED: {test}: {reason}");
    if let Some(path) = std::env::var_os("KERA_SKIP_FILE") {
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("the list of skipped tests can be written");
        writeln!(file, "SKIPPED: {test}: {reason}")
            .expect("the list of skipped tests can be written");
    }
}

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

fn is_installed() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        let mut command = Command::new("etcd");
        command.arg("--version").stdout(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

/// A port that nobody is given but who asks for it by its number, whether its server runs or not: a socket
/// is bound to it that never listens.
pub struct Port {
    address: SocketAddr,
    _bound: TcpSocket,
}

impl Port {
    /// One that is free.
    pub fn free() -> Self {
        let bound = TcpSocket::new_v4().expect("a socket can be made");
        // So that a server can bind to it as well: servers say so too.
        bound.set_reuseaddr(true).expect("a port can be shared");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        bound.bind(any).expect("a port is free");
        Self {
            address: bound.local_addr().expect("it has an address"),
            _bound: bound,
        }
    }

    /// `host:port`; who connects to it without a server is refused.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Etcd {
    /// A new, empty etcd that answers; `None`, and said so, where there is no etcd on this machine.
    pub fn start() -> Option<Self> {
        Self::with("http", &[])
    }

    /// As [`start`](Self::start), with more flags; `scheme` is what clients are to speak.
    pub fn with(scheme: &'static str, flags: &[String]) -> Option<Self> {
        if !is_installed() {
            skip("there is no `etcd`; install etcd-server with your system's packages");
            return None;
        }
        let data = tempfile::Builder::new().prefix("kera-etcd").tempdir();
        let etcd = Self {
            data: data.expect("a directory can be made"),
            client: Port::free(),
            peer: Port::free(),
            scheme,
            flags: flags.to_vec(),
            state: Mutex::new("data".to_owned()),
            name: "member".to_owned(),
            together: String::new(),
            process: Mutex::new(None),
        };
        assert!(etcd.run(), "etcd did not start");
        Some(etcd)
    }

    /// Starts the process and waits until it answers; false if it ended instead.
    fn run(&self) -> bool {
        let client = format!("{}://{}", self.scheme, self.client.address());
        let peer = format!("http://{}", self.peer.address());
        let data = self.data.path().join(&*self.state.lock().unwrap());
        let cluster = match self.together.as_str() {
            "" => format!("member={peer}"),
            together => together.to_owned(),
        };
        let mut command = Command::new("etcd");
        // Nothing of the caller's own etcd.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        command
            .env(
                "ETCD_UNSUPPORTED_ARCH",
                if cfg!(target_arch = "aarch64") {
                    "arm64"
                } else {
                    ""
                },
            )
            .args(["--name", &self.name, "--logger", "zap", "--unsafe-no-fsync"])
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
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
        let log = child.stderr.take().expect("it has a log");
        let (ready, is_ready) = mpsc::sync_channel(1);
        // Also keeps the pipe empty for as long as the process runs.
        thread::spawn(move || {
            for line in BufReader::new(log).lines() {
                let Ok(line) = line else { return };
                if line.contains("serving client traffic") {
                    let _ = ready.try_send(());
                }
            }
        });
        if is_ready.recv().is_err() {
            child.wait().expect("it ended");
            return false;
        }
        *self.process.lock().unwrap() = Some(child);
        true
    }

    /// `host:port` of it.
    pub fn endpoint(&self) -> String {
        self.client.address().to_string()
    }

    /// Its address as Kera's stores are given it.
    pub fn address(&self) -> String {
        format!("etcd://{}", self.endpoint())
    }

    /// Kills it, as `kill -9` does; what it stored stays.
    pub fn kill(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }

    /// Starts it again, killed or not, with what it stored, and waits until it answers.
    pub fn restart(&self) {
        self.kill();
        assert!(self.run(), "etcd did not start again");
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

    /// Stops it without ending it: connections stay and nothing is answered.
    pub fn pause(&self) {
        let pid = self.signal(Signal::STOP);
        // On a busy machine some of its threads run on for a while.
        let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).expect("it is a child");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) -> Pid {
        let process = self.process.lock().unwrap();
        let child = process.as_ref().expect("it runs");
        let pid = Pid::from_child(child);
        kill_process(pid, signal).expect("it takes signals");
        pid
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
            skip("there is no `etcd`; install etcd-server with your system's packages");
            return None;
        }
        let mut members: Vec<_> = (0..3)
            .map(|number| Etcd {
                data: tempfile::Builder::new()
                    .prefix("kera-etcd")
                    .tempdir()
                    .expect("a directory"),
                client: Port::free(),
                peer: Port::free(),
                scheme: "http",
                flags: Vec::new(),
                state: Mutex::new("data".to_owned()),
                name: format!("member{number}"),
                together: String::new(),
                process: Mutex::new(None),
            })
            .collect();
        let all = members.iter();
        let all = all.map(|m| format!("{}=http://{}", m.name, m.peer.address()));
        let together = all.collect::<Vec<_>>().join(",");
        for member in &mut members {
            member.together.clone_from(&together);
        }
        // None answers before most of them run.
        thread::scope(|scope| {
            for member in &members {
                scope.spawn(|| assert!(member.run(), "etcd did not start"));
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
