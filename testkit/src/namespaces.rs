//! A network of machines on this one: a namespace for each node, and this process in the middle, in
//! a namespace of its own, as the router through which all of them talk.
//!
//! Everything vanishes with the processes that hold it: nothing is left to be removed, whatever
//! becomes of the test.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The address of node `number`, from 1.
pub fn address(number: u32) -> String {
    format!("10.77.{number}.2")
}

/// Where the test itself is, as node `number` sees it.
fn router(number: u32) -> String {
    format!("10.77.{number}.1")
}

/// The test's end of the cable to node `number`.
fn cable(number: u32) -> String {
    format!("node{number}")
}

/// Runs a command of iproute2 or util-linux at the router; it must succeed.
fn run(words: &[&str]) {
    let (ok, text) = attempt(words);
    assert!(ok, "{}: {text}", words.join(" "));
}

/// Adds (`add`) or removes (`del`) the router's rule that swallows what `from` sends to `to`.
fn blackhole(verb: &str, from: u32, to: u32) {
    let (source, target) = (address(from), address(to));
    let between = ["from", &source, "to", &target];
    run(&[
        &["ip", "rule", verb, "pref", "100"],
        &between[..],
        &["blackhole"],
    ]
    .concat());
}

/// Runs a command at the router, where this process is, though the thread may be elsewhere; whether
/// it succeeded, and what it said.
fn attempt(words: &[&str]) -> (bool, String) {
    let output = Command::new("nsenter")
        .arg(format!("--net=/proc/{}/ns/net", std::process::id()))
        .args(words)
        .output();
    let output = output.unwrap_or_else(|error| panic!("nsenter cannot be run: {error}"));
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    (output.status.success(), text)
}

/// A machine: a network namespace, held by a process that does nothing else.
struct Node {
    holder: Child,
    /// The holder ends when this does.
    _input: ChildStdin,
}

impl Node {
    fn new(number: u32) -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo here; read -r end"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare can be run");
        let input = holder.stdin.take().expect("the input is piped");
        let output = holder.stdout.take().expect("the output is piped");
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        assert!(read.is_ok() && line == "here\n", "no namespace: {line}");
        let node = Self {
            holder,
            _input: input,
        };
        let (ours, theirs) = (cable(number), node.pid());
        run(&[
            "ip", "link", "add", &ours, "type", "veth", "peer", "name", "eth0", "netns", &theirs,
        ]);
        let (here, there) = (router(number), address(number));
        run(&["ip", "address", "add", &format!("{here}/24"), "dev", &ours]);
        run(&["ip", "link", "set", &ours, "up"]);
        for words in [
            &["link", "set", "lo", "up"][..],
            &["address", "add", &format!("{there}/24"), "dev", "eth0"],
            &["link", "set", "eth0", "up"],
            &["route", "add", "default", "via", &here],
        ] {
            let enter = node.enter();
            let mut all: Vec<&str> = enter.iter().map(String::as_str).collect();
            all.push("ip");
            all.extend(words);
            run(&all);
        }
        node
    }

    fn pid(&self) -> String {
        self.holder.id().to_string()
    }

    /// What goes before a command that is to run there.
    fn enter(&self) -> Vec<String> {
        let namespace = format!("--net=/proc/{}/ns/net", self.pid());
        vec!["nsenter".to_owned(), namespace]
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Nodes 1, 2, ... and what gets through between them.
pub struct Network {
    nodes: Vec<Node>,
    /// Rules of the router that are in force.
    cuts: Vec<(u32, u32)>,
    slow: Vec<u32>,
}

impl Network {
    /// As many nodes. This process must be in a network namespace of its own.
    pub fn new(nodes: u32) -> Self {
        run(&["ip", "link", "set", "lo", "up"]);
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("this machine is a router");
        Self {
            nodes: (1..=nodes).map(Node::new).collect(),
            cuts: Vec::new(),
            slow: Vec::new(),
        }
    }

    /// What goes before a command that is to run at node `number`.
    pub fn enter(&self, number: u32) -> Vec<String> {
        self.nodes[number as usize - 1].enter()
    }

    /// A function that moves the thread that calls it, and those it makes later, to node `number`.
    pub fn mover(&self, number: u32) -> impl Fn() + Send + Sync + 'static {
        let path = format!("/proc/{}/ns/net", self.nodes[number as usize - 1].pid());
        let namespace = std::fs::File::open(path).expect("the node is there");
        move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).expect("a thread can move");
        }
    }

    /// Nothing gets from the one to the other any more, and neither hears why.
    pub fn cut(&mut self, from: u32, to: u32) {
        if !self.cuts.contains(&(from, to)) {
            blackhole("add", from, to);
            self.cuts.push((from, to));
        }
    }

    /// What node `number` is sent, and what it sends, trickles.
    pub fn slow(&mut self, number: u32) {
        if self.slow.contains(&number) {
            return;
        }
        let ours = cable(number);
        let narrow = |enter: &[String], device: &str| {
            let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
            let with = |words: &[&str]| {
                let begin = ["tc", "qdisc", "replace", "dev", device, "root"];
                let all = [&enter[..], &begin[..], words].concat();
                attempt(&all)
            };
            let delayed = ["netem", "delay", "30ms", "15ms", "rate", "8mbit"];
            // Not every kernel can delay; any can make the cable narrow.
            let (ok, _) = with(&delayed);
            if !ok {
                let (ok, text) =
                    with(&["tbf", "rate", "8mbit", "burst", "16kb", "latency", "400ms"]);
                assert!(ok, "a cable cannot be made slow: {text}");
            }
        };
        narrow(&[], &ours);
        narrow(&self.enter(number), "eth0");
        self.slow.push(number);
    }

    /// All is well again.
    pub fn heal(&mut self) {
        for (from, to) in std::mem::take(&mut self.cuts) {
            blackhole("del", from, to);
        }
        for number in std::mem::take(&mut self.slow) {
            run(&["tc", "qdisc", "del", "dev", &cable(number), "root"]);
            let enter = self.enter(number);
            let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
            run(&[&enter[..], &["tc", "qdisc", "del", "dev", "eth0", "root"]].concat());
        }
    }
}

/// Mounts a file system in memory of that size on an empty directory. This process must be in a
/// mount namespace of its own.
pub fn small_disk(at: &std::path::Path, bytes: u64) {
    std::fs::create_dir_all(at).expect("a directory");
    let size = format!("size={bytes}");
    let at = at.to_str().expect("a path is text");
    run(&["mount", "-t", "tmpfs", "-o", &size, "kera-test", at]);
}

/// Why this machine cannot play several, if so.
pub fn lacking() -> Option<String> {
    for program in ["unshare", "nsenter", "ip", "tc", "mount"] {
        let found = Command::new(program)
            .arg(if matches!(program, "ip" | "tc") {
                "-V"
            } else {
                "--version"
            })
            .output();
        if found.is_err() {
            return Some(format!(
                "there is no `{program}`; install iproute2 and util-linux"
            ));
        }
    }
    let tried = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private", "--", "sh", "-c"])
        .arg("ip link add probe0 type veth peer name probe1 && echo 1 > /proc/sys/net/ipv4/ip_forward && mount -t tmpfs none /mnt")
        .output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "network namespaces cannot be made, which takes root: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Some(format!("unshare cannot be run: {error}")),
    }
}
