//! Workers of Kafka Connect, as processes.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use kera_testkit::ports::Reserved;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{home, tools};

/// A worker answers within 90 s, or says that it could not.
const ANSWER_WITHIN: Duration = Duration::from_secs(100);

/// In ms: of a worker's own transactions and of its connectors'. A connector's that lasts longer fails for good; one takes 2 s.
const TRANSACTION_TIMEOUT: &str = "40000";

/// A worker with a port and a directory of its own, which outlive its process.
pub struct Worker {
    class_path: String,
    home: TempDir,
    port: Reserved,
    process: Option<Child>,
}

impl Worker {
    /// Not started. Workers of the same group share their work.
    pub fn new(class_path: &str, bootstrap: &str, group: &str) -> Self {
        let (home, port) = (home(), Reserved::new());
        let string = "org.apache.kafka.connect.storage.StringConverter";
        let listener = format!("http://{}", port.address());
        let topic = |what: &str| format!("{group}-{what}");
        let settings = [
            ("bootstrap.servers", bootstrap.to_owned()),
            ("group.id", group.to_owned()),
            ("exactly.once.source.support", "enabled".to_owned()),
            ("config.storage.topic", topic("configs")),
            ("offset.storage.topic", topic("offsets")),
            ("status.storage.topic", topic("status")),
            ("config.storage.replication.factor", "1".to_owned()),
            ("offset.storage.replication.factor", "1".to_owned()),
            ("status.storage.replication.factor", "1".to_owned()),
            ("offset.storage.partitions", "3".to_owned()),
            ("status.storage.partitions", "2".to_owned()),
            ("key.converter", string.to_owned()),
            ("value.converter", string.to_owned()),
            ("listeners", listener),
            ("plugin.discovery", "service_load".to_owned()),
            // A worker that is killed is soon missed, and its work soon given to another one.
            ("session.timeout.ms", "6000".to_owned()),
            ("heartbeat.interval.ms", "500".to_owned()),
            ("scheduled.rebalance.max.delay.ms", "500".to_owned()),
            ("reconnect.backoff.max.ms", "500".to_owned()),
            // A worker that is killed in a transaction of offsets leaves it open. The next worker reads up to the last offset,
            // committed or not, so it waits until that transaction times out: after 60 s by default, most of what a test waits.
            ("transaction.timeout.ms", TRANSACTION_TIMEOUT.to_owned()),
            (
                "producer.transaction.timeout.ms",
                TRANSACTION_TIMEOUT.to_owned(),
            ),
        ];
        let lines = settings.map(|(name, value)| format!("{name}={value}\n"));
        let path = home.path().join("worker.properties");
        fs::write(path, lines.concat()).expect("settings can be written");
        Self {
            class_path: class_path.to_owned(),
            home,
            port,
            process: None,
        }
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("log")
    }

    /// Starts the process; it does not serve yet when this returns.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "the worker is there already");
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.expect("a log can be written");
        let mut command = tools::java_command(&self.class_path);
        let child = command
            .arg("org.apache.kafka.connect.cli.ConnectDistributed")
            .arg(self.home.path().join("worker.properties"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn();
        self.process = Some(child.expect("Java can be started"));
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Fails if the worker has given up.
    pub fn check(&mut self) {
        if let Some(child) = &mut self.process {
            let ended = child.try_wait().expect("a process can be asked for");
            assert!(ended.is_none(), "a worker ended by itself: {ended:?}");
        }
    }

    /// What the worker answers to a request, if it does: the status and the body.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let answer = self.exchange(method, path, body).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split_whitespace().nth(1)?.parse().ok()?;
        Some((status, serde_json::from_str(body).unwrap_or_default()))
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> io::Result<String> {
        let mut socket = TcpStream::connect(self.port.address())?;
        socket.set_read_timeout(Some(ANSWER_WITHIN))?;
        // Of HTTP/1.0 an answer comes in one piece.
        let request = format!(
            "{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(request.as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        tools::show_last_words("a worker", &self.log());
    }
}
