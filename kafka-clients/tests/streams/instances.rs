//! Instances of the application, as processes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::TempDir;

use crate::common::{home, tools, until};

/// What an instance said of itself since it was started.
#[derive(Default)]
struct Said {
    running: bool,
    /// Records that were read from the changelog of the counts.
    restored: u64,
    died: Option<String>,
}

/// An instance with a directory of its own, which outlives its process.
pub struct Instance {
    class_path: String,
    arguments: Vec<String>,
    home: TempDir,
    process: Option<Child>,
    said: Arc<Mutex<Said>>,
}

impl Instance {
    /// Not started. `arguments`: the brokers, the application's id and settings.
    pub fn new(class_path: &str, bootstrap: &str, application: &str, settings: &[String]) -> Self {
        let home = home();
        let state = home.path().join("state").display().to_string();
        let mut arguments = vec![bootstrap.to_owned(), application.to_owned(), state];
        arguments.extend_from_slice(settings);
        Self {
            class_path: class_path.to_owned(),
            arguments,
            home,
            process: None,
            said: Arc::default(),
        }
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("log")
    }

    /// Starts the process; it does not run yet when this returns.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "the instance is there already");
        let log = File::options().create(true).append(true).open(self.log());
        let mut command = tools::java_command(&self.class_path);
        let mut child = command
            .arg("kera.Streams")
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("a log can be written"))
            .spawn()
            .expect("Java can be started");
        let stdout = child.stdout.take().expect("standard output is piped");
        let said = Arc::<Mutex<Said>>::default();
        self.said = said.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                match line.split_once(' ') {
                    Some(("state", state)) => said.running = state == "RUNNING",
                    Some(("restored", rest)) => {
                        let (records, store) = rest.split_once(' ').expect("records and a store");
                        if store == "counts" {
                            said.restored += records.parse::<u64>().expect("a number");
                        }
                    }
                    _ => said.died = Some(line),
                }
            }
        });
        self.process = Some(child);
    }

    fn said<T>(&self, look: impl FnOnce(&Said) -> T) -> T {
        look(&self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Fails if the application has given up.
    pub fn check(&self) {
        if let Some(why) = self.said(|said| said.died.clone()) {
            panic!("an instance ended by itself: {why}");
        }
    }

    /// Waits until it has its partitions and their state.
    pub fn wait(&self) {
        until("an instance runs", || {
            self.check();
            self.said(|said| said.running.then_some(()))
        });
    }

    /// Records of the changelog of the counts that this process has read.
    pub fn restored(&self) -> u64 {
        self.said(|said| said.restored)
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// As on another machine: what it had stored is gone.
    pub fn forget(&self) {
        assert!(self.process.is_none(), "the process is gone");
        let state = self.home.path().join("state");
        fs::remove_dir_all(state).expect("the state can be deleted");
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
        tools::show_last_words("an instance", &self.log());
    }
}
