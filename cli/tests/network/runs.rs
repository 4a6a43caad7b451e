//! What the tests in namespaces have in common: each run is a process of its own, which says what it
//! was in a line that begins with `run: `.

use std::future::Future;
use std::process::Command;

use kera_history::Report;

use crate::common::{PATIENCE, reasons};

/// The environment's variable of that name.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
    )
}

/// Number and seed of a run, as its process is told them.
pub fn number_and_seed(inside: &str) -> (u64, u64) {
    let (number, seed) = inside.split_once(' ').expect("a number and a seed");
    (
        number.parse().expect("a number"),
        seed.parse().expect("a seed"),
    )
}

/// Runs this program's `test` once more, in namespaces of its own, where it finds `inside` in the
/// environment's `variable`. What it printed; why it failed, if it did.
pub fn within_namespaces(variable: &str, test: &str, inside: &str) -> Result<String, String> {
    let output = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", test, "--nocapture"])
        .env(variable, inside)
        .output()
        .expect("unshare can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    println!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    // In the last lines: logs are cut off.
    Err(reasons::of(&output))
}

/// What runs had, as each says in its last line.
#[derive(Default)]
pub struct Sums {
    pub faults: u64,
    pub kills: u64,
    pub records: u64,
}

impl Sums {
    pub fn add(&mut self, text: &str) {
        let line = text.lines().find_map(|line| line.strip_prefix("run: "));
        let line = line.unwrap_or_else(|| panic!("a run did not say what it was: {text}"));
        let numbers: Vec<u64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
        let [faults, kills, records] = numbers[..] else {
            panic!("a run says {line}");
        };
        self.faults += faults;
        self.kills += kills;
        self.records += records;
    }
}

/// Runs `story` on a task, where blocking is allowed; each thread begins with `on_thread_start`.
pub fn told(
    on_thread_start: impl Fn() + Send + Sync + 'static,
    story: impl Future<Output = ()> + Send + 'static,
) {
    reasons::remember();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(on_thread_start)
        .enable_all()
        .build()
        .expect("a runtime");
    let task = runtime.spawn(story);
    let done = runtime.block_on(task);
    if let Err(error) = done {
        // By now the brokers have said their last words.
        reasons::tell();
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Beyond what the checker asks for: that nothing is missing, and that there was enough to check.
pub fn judge(report: &Report, sent: u64) -> Result<(), String> {
    let counts = &report.counts;
    if !report.is_clean() {
        return Err("a broker did not keep its promises".to_owned());
    }
    if counts.sent != sent || counts.acknowledged != sent {
        return Err(format!(
            "{sent} records were to be sent, {} were, and {} acknowledged within {PATIENCE:?}",
            counts.sent, counts.acknowledged
        ));
    }
    if counts.unread > 0 || counts.read < sent {
        return Err(format!("{} records were not read", sent - counts.read));
    }
    if counts.gap_ordinals > 0 {
        return Err(format!(
            "{} ordinals were given up although nothing was lost",
            counts.gap_ordinals
        ));
    }
    if sent < 50 {
        return Err(format!("{sent} records are no test"));
    }
    Ok(())
}
