//! Who did what: one line of JSON for each login, each refusal by the rules, and each change that a client made or tried.
//!
//! A line is made where the thing happens and written by a thread of its own, so no connection waits for a disk. What
//! a client can have in any number (logins, refusals, changes that fail) is limited in rate, for each address and in
//! all; a change that was made never is. Lines that are left out or lost are counted, and a line of their own tells how many.

mod attempt;
mod file;
mod limit;
mod line;
mod texts;

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kera_metadata::access::{Kind, Operation};
use parking_lot::Mutex;

use crate::access::Who;
use crate::config::{AuditConfig, AuditTarget, Via};
use crate::error::BrokerError;
use crate::metrics::{Counter, Family, Labels};

pub use attempt::{Attempt, Change};
use file::AuditFile;
use limit::Limit;
use line::{Counts, Event, Line, cut};
pub use texts::settings_text;
pub(crate) use texts::{
    mechanisms_text, members_texts, pin_text, recovery_text, reset_text, trim_text,
};

/// Lines that wait to be written. What is limited in rate takes half of the places at most.
const WAITING: usize = 4096;
/// How often the log says that lines were left out.
const TELL_LEFT_OUT: Duration = Duration::from_secs(5);
/// Longest wait for the disk at the broker's end.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Lines that are written together.
const AT_ONCE: usize = 256;
/// Longest name and longest text in a line, in characters: both are clients' words.
const NAME: usize = 256;
const TEXT: usize = 1024;

/// From where something is asked.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The listener that the client connected to.
    pub via: Via,
    /// The client's address.
    pub host: IpAddr,
}

/// The audit log of one broker.
pub struct Audit {
    /// `None`: there is none, or it has ended.
    lines: Mutex<Option<SyncSender<String>>>,
    writer: Mutex<Option<Writer>>,
    /// Each sort has a limit of its own: a flood of wrong passwords hides neither the right one nor what the rules deny.
    logins: Limit,
    refused_logins: Limit,
    others: Limit,
    is_on: bool,
    counts: Arc<Counts>,
}

impl Audit {
    /// As configured. Opens the file.
    ///
    /// # Errors
    /// [`BrokerError::Audit`]: the file cannot be written.
    pub(crate) fn open(config: &AuditConfig) -> Result<Arc<Self>, BrokerError> {
        let sink: Box<dyn Sink> = match &config.to {
            AuditTarget::Off => return Ok(Self::off()),
            AuditTarget::Log => Box::new(Log),
            AuditTarget::File(path) => {
                let file = AuditFile::open(path, config.max_file_bytes, config.kept_files);
                Box::new(file.map_err(|error| BrokerError::Audit {
                    path: path.clone(),
                    error,
                })?)
            }
        };
        Self::into_sink(sink, config.max_per_second)
    }

    /// None at all.
    pub(crate) fn off() -> Arc<Self> {
        Arc::new(Self::of(None, 1, Arc::default()))
    }

    fn into_sink(mut sink: Box<dyn Sink>, max_per_second: u32) -> Result<Arc<Self>, BrokerError> {
        let counts = Arc::new(Counts::default());
        counts.begin();
        let (lines, waiting) = sync_channel(WAITING);
        let shared = counts.clone();
        let (ends, has_ended) = sync_channel(0);
        let thread = std::thread::Builder::new()
            .name("kera-audit".into())
            .spawn(move || {
                let _ends: SyncSender<()> = ends;
                write(&waiting, sink.as_mut(), &shared);
            })
            .map_err(|error| BrokerError::System {
                what: "starting the thread of the audit log failed",
                error,
            })?;
        let running = Some((lines, Writer { thread, has_ended }));
        Ok(Arc::new(Self::of(running, max_per_second, counts)))
    }

    fn of(
        running: Option<(SyncSender<String>, Writer)>,
        max_per_second: u32,
        counts: Arc<Counts>,
    ) -> Self {
        let is_on = running.is_some();
        let (lines, writer) = running.unzip();
        Self {
            lines: Mutex::new(lines),
            writer: Mutex::new(writer),
            logins: Limit::new(max_per_second),
            refused_logins: Limit::new(max_per_second),
            others: Limit::new(max_per_second),
            is_on,
            counts,
        }
    }

    /// Lines name this broker from now on.
    pub(crate) fn name(&self, broker: u32) {
        // The first name stays: a broker has one number.
        let _ = self.counts.broker.set(broker);
    }

    /// What became of lines, by result; `None` without an audit log.
    pub(crate) fn events(&self) -> Option<Family<Labels, Counter>> {
        self.is_on.then(|| self.counts.events.clone())
    }

    /// A client has proved to be `user`, or has not: with why not. `user` and `mechanism` are empty where they are not
    /// known.
    pub fn login(&self, peer: Peer, mechanism: &str, user: &str, outcome: Result<(), &str>) {
        let event = match outcome {
            Ok(()) => Event::Login,
            Err(_) => Event::LoginRefused,
        };
        if !self.may_write(event, peer.host) {
            return;
        }
        self.write(Line {
            user: (!user.is_empty()).then(|| principal(user)),
            mechanism: cut(mechanism, NAME),
            reason: cut(outcome.err().unwrap_or_default(), TEXT),
            ..Line::new(event, peer)
        });
    }

    /// The rules of access denied something.
    pub(crate) fn denied(&self, who: Who<'_>, operation: Operation, (kind, name): (Kind, &str)) {
        if !self.may_write(Event::AccessRefused, who.host) {
            return;
        }
        let operation = operation.to_string();
        self.write(Line {
            user: Some(principal(who.user())),
            action: &operation,
            kind: kind.to_string(),
            name: cut(name, NAME),
            ..Line::new(Event::AccessRefused, who.peer())
        });
    }

    /// Whether one more line of those that are limited in rate may be written.
    fn may_write(&self, event: Event, host: IpAddr) -> bool {
        if !self.is_on {
            return false;
        }
        let limit = match event {
            Event::Login => &self.logins,
            Event::LoginRefused => &self.refused_logins,
            _ => &self.others,
        };
        let may = !self.counts.is_crowded() && limit.admits(host.into(), Instant::now());
        if !may {
            self.counts.left_out(event);
        }
        may
    }

    fn write(&self, line: Line<'_>) {
        let line = self.counts.render(line);
        let lines = self.lines.lock();
        // Counted first: the thread counts down what it has taken.
        self.counts.waits(1);
        let sent = lines
            .as_ref()
            .is_some_and(|lines| lines.try_send(line).is_ok());
        if !sent {
            self.counts.taken(1);
            self.counts.lost(1);
        }
    }

    /// Writes what waits, and ends the audit log. Waits some seconds for a disk, and no longer.
    pub(crate) fn end(&self) {
        self.end_within(END_WITHIN);
    }

    fn end_within(&self, within: Duration) {
        self.lines.lock().take();
        let Some(Writer { thread, has_ended }) = self.writer.lock().take() else {
            return;
        };
        if has_ended.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
            let lines = self.counts.waiting();
            tracing::error!(
                lines,
                "the audit log cannot be written: its file or disk does not answer; the last lines are lost"
            );
        } else if thread.join().is_err() {
            tracing::error!("the thread of the audit log has panicked; its last lines are lost");
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread that writes.
struct Writer {
    thread: JoinHandle<()>,
    /// Closed at its end.
    has_ended: Receiver<()>,
}

/// Where lines go.
trait Sink: Send {
    /// Writes lines; how many could not be.
    fn write(&mut self, lines: &[String]) -> u64;
}

/// The broker's log.
struct Log;

impl Sink for Log {
    fn write(&mut self, lines: &[String]) -> u64 {
        for line in lines {
            tracing::info!(target: "kera_audit", "{line}");
        }
        0
    }
}

fn write(waiting: &Receiver<String>, sink: &mut dyn Sink, counts: &Counts) {
    let mut has_ended = false;
    let mut told = Instant::now();
    while !has_ended {
        let mut lines: Vec<String> = Vec::new();
        match waiting.recv_timeout(TELL_LEFT_OUT) {
            Ok(line) => lines.push(line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => has_ended = true,
        }
        lines.extend(waiting.try_iter().take(AT_ONCE));
        counts.taken(lines.len());
        let mut missing = Vec::new();
        if has_ended || told.elapsed() >= TELL_LEFT_OUT {
            told = Instant::now();
            missing = counts.missing();
        }
        lines.extend(missing.iter().map(|missing| counts.render(missing.line())));
        let lost = match lines.is_empty() {
            true => 0,
            false => sink.write(&lines),
        };
        if lost > 0 {
            // What says that lines are missing comes last, so it is the first that is lost.
            let untold = missing
                .len()
                .min(usize::try_from(lost).unwrap_or(usize::MAX));
            counts.untold(&missing[missing.len() - untold..]);
            counts.lost(lost - untold as u64);
        }
        counts.written(lines.len() as u64 - lost);
    }
}

fn principal(user: &str) -> String {
    format!("User:{}", cut(user, NAME))
}

/// The broker's number, once it is known.
type Number = OnceLock<u32>;

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
