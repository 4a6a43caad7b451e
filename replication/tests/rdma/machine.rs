//! The machine: its card, and what the system knows of a process.

use std::fs;
use std::io::Write;
use std::net::IpAddr;

use rustix::process::{Pid, Signal, kill_process};

const ADDRESS: &str = "KERA_RDMA_ADDRESS";
/// The address of the other machine, where there are two.
pub const PEER: &str = "KERA_RDMA_PEER";

/// The card's address; where there is none it says loudly that `test` did not run.
pub fn address(test: &str) -> Option<IpAddr> {
    if let Ok(text) = std::env::var(ADDRESS) {
        return Some(text.parse().expect("an address"));
    }
    let line = format!("SKIPPED: rdma {test}: {ADDRESS} names no card; run make test-rdma");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("KERA_SKIP_FILE") {
        let file = fs::File::options().create(true).append(true).open(path);
        let written = file.and_then(|mut file| writeln!(file, "{line}"));
        written.expect("the list for the summary can be written");
    }
    None
}

/// A runtime for one test, which shows what was logged if it fails.
pub fn runtime() -> tokio::runtime::Runtime {
    let shown = tracing_subscriber::fmt()
        .with_env_filter("kera_replication=debug")
        .with_ansi(false)
        .with_test_writer();
    // Another test of this process may have done it.
    let _is_shown = shown.try_init();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn pid(process: u32) -> Pid {
    Pid::from_raw(process as i32).expect("a process id")
}

/// SIGSTOP; returns when all its threads stand still.
pub fn stop(process: u32) {
    kill_process(pid(process), Signal::STOP).expect("is stopped");
    while !threads(process).iter().all(|thread| is_stopped(thread)) {
        std::thread::yield_now();
    }
}

/// SIGCONT.
pub fn resume(process: u32) {
    kill_process(pid(process), Signal::CONT).expect("goes on");
}

fn threads(process: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    tasks
        .map(|task| task.expect("a thread").path().display().to_string())
        .collect()
}

fn is_stopped(thread: &str) -> bool {
    let status = fs::read_to_string(format!("{thread}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| state.trim_start().starts_with('T'))
}

/// What all threads of a process have had of the processors: time, waiting, turns.
pub fn schedule(process: u32) -> Vec<String> {
    let mut all: Vec<_> = threads(process)
        .iter()
        .map(|thread| {
            let figures = fs::read_to_string(format!("{thread}/schedstat"));
            format!("{thread}: {}", figures.expect("the kernel counts").trim())
        })
        .collect();
    all.sort();
    all
}
