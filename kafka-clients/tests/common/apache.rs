//! Apache Kafka as a process: one node that is broker and controller.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use kera_testkit::command::{killed, run};
use kera_testkit::home;
use kera_testkit::ports::Reserved;

use super::{PATIENCE, Setup, until};

/// A broker of Apache Kafka.
pub struct Apache {
    child: Option<Child>,
    home: TempDir,
    lib: PathBuf,
    /// Keeps its port for it while it does not run.
    port: Reserved,
    _controller: Reserved,
}

impl Apache {
    /// Starts a broker from the jars in `lib`.
    pub fn start(lib: &Path, setup: Setup) -> Self {
        let (port, controller) = (Reserved::new(), Reserved::new());
        let (clients, voters) = (port.address(), controller.address());
        let home = home();
        let settings = format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@{voters}\n\
             listeners=PLAINTEXT://{clients},CONTROLLER://{voters}\n\
             advertised.listeners=PLAINTEXT://{clients}\n\
             controller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             inter.broker.listener.name=PLAINTEXT\n\
             offsets.topic.replication.factor=1\n\
             offsets.topic.num.partitions=4\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n\
             share.coordinator.state.topic.replication.factor=1\n\
             share.coordinator.state.topic.min.isr=1\n\
             group.initial.rebalance.delay.ms=0\n\
             group.min.session.timeout.ms=500\n\
             auto.create.topics.enable={}\n\
             log.dirs={}\n",
            setup.auto_create,
            home.path().join("data").display()
        );
        fs::write(home.path().join("server.properties"), settings).expect("settings are written");
        let mut apache = Self {
            child: None,
            home,
            lib: lib.to_owned(),
            port,
            _controller: controller,
        };
        let mut format = apache.java();
        format
            .args(["kafka.tools.StorageTool", "format", "-t"])
            .args(["MkU3OEVBNTcwNTJENDM2Qg", "-c"])
            .arg(apache.home.path().join("server.properties"));
        run(format, b"", PATIENCE);
        apache.restart();
        apache
    }

    fn java(&self) -> Command {
        let mut command = Command::new("java");
        command
            .args([
                "-Xmx384m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-cp",
            ])
            .arg(self.lib.join("*"));
        command
    }

    /// Starts it again on its directory and ports.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "the broker runs already");
        let log = File::create(self.home.path().join("broker.log")).expect("a log can be written");
        let child = self
            .java()
            .arg("kafka.Kafka")
            .arg(self.home.path().join("server.properties"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .expect("the broker can be started");
        self.child = Some(child);
        until("the broker accepts", || {
            TcpStream::connect(self.port.address()).ok()
        });
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        killed(self.child.take().expect("the broker runs"));
    }

    /// HOST:PORT.
    pub fn bootstrap(&self) -> String {
        self.port.address().to_owned()
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            killed(child);
        }
    }
}
