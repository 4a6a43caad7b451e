//! The process of one run.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde_json::json;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::{Args, inside, os, run};

/// Files that a run may have open.
const FILES: u64 = 1 << 16;

/// Where the log of a run is, and its outcome.
pub const LOG: &str = "log";
pub const OUTCOME: &str = "outcome.json";

/// Plays the run of the seed that is given, and leaves log and outcome in `dir`.
pub fn play(args: &Args, dir: &Path) -> ! {
    let seed = args.seed.unwrap_or(args.first);
    os::make_room(FILES);
    let filter = EnvFilter::try_new(&args.log).unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_writer(ToLog)
        .init();
    let (log, machines) = (dir.join(LOG), dir.join("m"));
    os::begin(seed, args.trace, log.clone());
    inside::watch_panics();
    let (findings, facts) = run::play(seed, &machines, &args.cut, !args.no_losses);
    for finding in &findings {
        os::log(&format!("FINDING {finding}"));
    }
    let (digest, lines) = os::at_exit();
    let outcome = json!({
        "seed": seed,
        "findings": findings,
        "digest": format!("{:016x}", digest.value),
        "turns": digest.turns,
        "facts": facts,
    });
    let written =
        write(&log, &lines).and_then(|()| fs::write(dir.join(OUTCOME), outcome.to_string()));
    let code = match written {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{}: {error}", dir.display());
            1
        }
    };
    os::end(code)
}

fn write(path: &Path, lines: &[String]) -> io::Result<()> {
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    for line in lines {
        writeln!(file, "{line}")?;
    }
    file.flush()
}

/// What brokers log becomes part of the run's log.
struct ToLog;

struct Line(Vec<u8>);

impl<'a> MakeWriter<'a> for ToLog {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Vec::new())
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.0);
        let node = os::node_here().unwrap_or(0);
        for line in text.lines() {
            inside::hear(line);
            os::log(&format!("[{node}] {line}"));
        }
    }
}
