//! Machines as docs/operations.md speaks of them: each a folder with what was installed there, and the part of
//! systemd that starts and stops the services in it. Addresses of the documents stand for ports of loopback.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::ports::Reserved;
use crate::common::{PATIENCE, home, kera};
use crate::repository;
use crate::tools::run;

/// How long to listen before looking whether a process still runs.
const LOOK: Duration = Duration::from_millis(100);
/// Where the package of etcd begins, whatever /etc/default/etcd says.
const LONE_ETCD: &str = "/var/lib/etcd/default";

/// Ports of loopback for the addresses of the documents.
#[derive(Default)]
pub struct Addresses {
    ports: BTreeMap<String, Reserved>,
}

impl Addresses {
    /// The address that stands for `documented`, of machine `number` where only that reaches it.
    pub fn of(&mut self, number: u32, documented: &str) -> String {
        let name = match documented.strip_prefix("127.0.0.1:") {
            Some(port) => format!("own.{number}:{port}"),
            None => documented.to_owned(),
        };
        let port = self.ports.entry(name).or_insert_with(Reserved::new);
        port.address().to_owned()
    }

    /// A text with every address in it replaced.
    pub fn within(&mut self, number: u32, text: &str) -> String {
        let mut out = String::new();
        let mut word = String::new();
        for c in text.chars().chain(['\n']) {
            if c.is_ascii_digit() || c == '.' || c == ':' {
                word.push(c);
                continue;
            }
            let is_address = word.rsplit_once(':').is_some_and(|(host, port)| {
                host.split('.').count() == 4 && port.parse::<u16>().is_ok()
            });
            match is_address {
                true => out.push_str(&self.of(number, &word)),
                false => out.push_str(&word),
            }
            word.clear();
            out.push(c);
        }
        out.pop();
        out
    }
}

/// Where the package has the unit.
const UNIT: &str = "/usr/lib/systemd/system/kera.service";

/// A process that tells systemd when it serves (`Type=notify`).
struct Service {
    child: Child,
    told: UnixDatagram,
    log: PathBuf,
}

impl Service {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGTERM, and its end.
    fn stop(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("a child is signalled");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Gone already, or going now; either will do.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}:\n{}", self.log.display(), self.log());
        }
    }
}

/// One machine.
pub struct Machine {
    pub number: u32,
    // Ends before its folder goes.
    services: BTreeMap<&'static str, Service>,
    root: TempDir,
}

impl Machine {
    /// An empty one.
    pub fn new(number: u32) -> Self {
        Self {
            number,
            root: home(),
            services: BTreeMap::new(),
        }
    }

    /// Where a file of the machine is here.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// Changes a file that was installed.
    pub fn edit(&self, path: &str, edit: impl Fn(&str) -> String) {
        let path = self.path(path);
        let text = fs::read_to_string(&path).expect("it was installed");
        let lines = text.lines().map(|line| edit(line) + "\n");
        fs::write(&path, lines.collect::<String>()).expect("a file can be written");
    }

    /// What a line of the documents does here.
    pub fn command(&mut self, line: &str, addresses: &mut Addresses) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let words = words.strip_prefix(&["sudo"]).unwrap_or(&words);
        match words {
            ["apt", "install", packages @ ..] => {
                for package in packages {
                    match *package {
                        // It starts what it brings.
                        "etcd-server" => self.systemctl(&["start", "etcd"], addresses),
                        "./target/package/kera_*.deb" => self.install_kera(),
                        _ => panic!("{package} is not known here"),
                    }
                }
            }
            ["install" | "mv", ..] => {
                let mut command = Command::new(words[0]);
                command.current_dir(repository("."));
                for word in &words[1..] {
                    match word.starts_with('/') {
                        true => command.arg(self.path(word)),
                        false => command.arg(word),
                    };
                }
                let verdict = run(command);
                assert!(verdict.good, "{line}: {}", verdict.said);
            }
            ["systemctl", words @ ..] => self.systemctl(words, addresses),
            _ => panic!("`{line}` is not known here"),
        }
    }

    /// What matters here of the package; that the program is there, the tests' own build has seen to.
    fn install_kera(&self) {
        for (file, to) in [
            ("kera.service", UNIT),
            ("kera.toml", "/etc/kera/kera.toml"),
            ("cluster.conf", "/usr/share/doc/kera/examples/cluster.conf"),
            ("cluster.toml", "/usr/share/doc/kera/examples/cluster.toml"),
            ("member.env", "/usr/share/doc/kera/examples/member.env"),
            ("etcd.default", "/usr/share/doc/kera/examples/etcd.default"),
        ] {
            let to = self.path(to);
            fs::create_dir_all(to.parent().expect("it is in a folder")).expect("a folder");
            fs::copy(repository("deploy/systemd").join(file), to).expect("a file");
        }
    }

    fn systemctl(&mut self, words: &[&str], addresses: &mut Addresses) {
        let (flags, words): (Vec<&str>, Vec<&str>) =
            words.iter().partition(|word| word.starts_with("--"));
        let (verb, name) = match words.as_slice() {
            ["daemon-reload"] => return,
            [verb, "etcd"] => (*verb, "etcd"),
            [verb, "kera"] => (*verb, "kera"),
            _ => panic!("systemctl {words:?} is not known here"),
        };
        if verb == "enable" && !flags.contains(&"--now") {
            return;
        }
        if ["stop", "restart"].contains(&verb)
            && let Some(mut service) = self.services.remove(name)
        {
            service.stop();
        }
        if verb == "stop" {
            return;
        }
        assert!(["enable", "start", "restart"].contains(&verb), "{verb}");
        if !self.services.contains_key(name) {
            let service = self.start(name, addresses);
            self.services.insert(name, service);
            if !flags.contains(&"--no-block") {
                self.has_started(name, addresses);
            }
        }
    }

    fn start(&self, name: &'static str, addresses: &mut Addresses) -> Service {
        let notify = self.path(&format!("{name}.notify"));
        // That of the process before is gone.
        let _ = fs::remove_file(&notify);
        let told = UnixDatagram::bind(&notify).expect("a socket");
        let timeout = told.set_read_timeout(Some(LOOK));
        timeout.expect("a timeout can be set");
        let mut command = match name {
            "etcd" => self.etcd(addresses),
            _ => self.kera(addresses),
        };
        let log = self.path(&format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log);
        let file = file.expect("a log");
        let child = command
            .env("NOTIFY_SOCKET", &notify)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{name}: {error}"));
        Service { child, told, log }
    }

    /// Waits until a service says that it serves. One that ends before is started again, as its unit wants.
    pub fn has_started(&mut self, name: &'static str, addresses: &mut Addresses) {
        let begin = Instant::now();
        loop {
            let service = self.services.get_mut(name).expect("it was started");
            let mut text = [0; 512];
            match service.told.recv(&mut text) {
                Ok(length) if text[..length].starts_with(b"READY=1") => return,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => {}
                Err(error) => panic!("{name}: {error}"),
            }
            let ended = service.child.try_wait().expect("a child");
            if ended.is_some() && name == "kera" {
                let again = self.start(name, addresses);
                self.services.insert(name, again);
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{name} of machine {} does not start ({ended:?})",
                self.number
            );
        }
    }

    /// Lines of a file that systemd reads the environment from; nothing where there is none.
    fn environment(&self, path: &Path, addresses: &mut Addresses) -> Vec<(String, String)> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let set = text.lines().filter(|line| !line.starts_with('#'));
        set.filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), addresses.within(self.number, value)))
            .collect()
    }

    /// As the package's unit starts it: what is set there first, then /etc/default/etcd.
    fn etcd(&self, addresses: &mut Addresses) -> Command {
        let mut command = Command::new("etcd");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        let (clients, members) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
        let (clients, members) = (
            addresses.within(self.number, clients),
            addresses.within(self.number, members),
        );
        command
            .env("ETCD_NAME", format!("machine{}", self.number))
            .env("ETCD_DATA_DIR", LONE_ETCD)
            // What it listens on by itself.
            .env("ETCD_LISTEN_CLIENT_URLS", &clients)
            .env("ETCD_ADVERTISE_CLIENT_URLS", &clients)
            .env("ETCD_LISTEN_PEER_URLS", &members)
            .env("ETCD_INITIAL_ADVERTISE_PEER_URLS", &members)
            // Of a test: less for the disk to do, and nobody is taken for dead while the machine is busy.
            .env("ETCD_UNSAFE_NO_FSYNC", "true")
            .env("ETCD_HEARTBEAT_INTERVAL", "200")
            .env("ETCD_ELECTION_TIMEOUT", "2000");
        if cfg!(target_arch = "aarch64") {
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        for (name, value) in self.environment(&self.path("/etc/default/etcd"), addresses) {
            command.env(name, value);
        }
        let folder = command
            .get_envs()
            .find(|(name, _)| *name == "ETCD_DATA_DIR");
        let folder = folder
            .and_then(|(_, value)| value?.to_str())
            .expect("a path");
        let folder = self.path(folder);
        fs::create_dir_all(folder.parent().expect("it is not the root")).expect("a folder");
        command.env("ETCD_DATA_DIR", folder);
        command
    }

    /// As the unit says, with what lies beside it.
    fn kera(&self, addresses: &mut Addresses) -> Command {
        let read = |path: &str| fs::read_to_string(self.path(path)).unwrap_or_default();
        let unit = read(UNIT);
        let exec = unit
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="));
        let words: Vec<&str> = exec.expect("a command").split(' ').collect();
        let ["/usr/bin/kera", "serve", "--config", config] = words.as_slice() else {
            panic!("{words:?}");
        };
        let text = addresses.within(self.number, &read(config));
        let root = format!("\"{}/", self.root.path().display());
        let text = text.replace("\"/", &root);
        let here = self.path("kera.toml");
        fs::write(&here, text).expect("a file can be written");
        for folder in ["/var/lib/kera", "/dev/shm"] {
            fs::create_dir_all(self.path(folder)).expect("a folder");
        }
        let mut command = kera();
        command.args(["serve", "--config"]).arg(here);
        let beside = read("/etc/systemd/system/kera.service.d/cluster.conf");
        let files = beside.lines();
        for file in files.filter_map(|line| line.strip_prefix("EnvironmentFile=")) {
            for (name, value) in self.environment(&self.path(file), addresses) {
                command.env(name, value);
            }
        }
        command
            // All are this machine, as loopback says.
            .env("KERA_CLUSTER_ALLOW_SAME_HOST", "true")
            .env("KERA_REPLICA_STORE_SHARED_DIR", self.path("/dev/shm"))
            .env("KERA_REPLICA_STORE_MEMORY_BYTES", "64MiB")
            .env("KERA_MEMORY_POOL", "64MiB");
        command
    }
}
