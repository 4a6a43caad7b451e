//! A line of the audit log, and how many there were and were not.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::Serialize;

use super::{Number, Peer, WAITING};
use crate::calendar::rfc3339;
use crate::clock::wall_ms;
use crate::metrics::{Counter, Family, Labels, label};

/// What became of a line.
pub(super) const WRITTEN: &str = "written";
pub(super) const LEFT_OUT: &str = "left_out";
pub(super) const LOST: &str = "lost";

/// What a line is about, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Login,
    LoginRefused,
    AccessRefused,
    Changed,
    ChangeFailed,
    ChangeUncertain,
    /// Lines were lost.
    Lost,
}

impl Event {
    /// All of which lines may be left out.
    const LIMITED: [Self; 4] = [
        Self::Login,
        Self::LoginRefused,
        Self::AccessRefused,
        Self::ChangeFailed,
    ];

    /// `event` and `result` of the line.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Login => ("login", "done"),
            Self::LoginRefused => ("login", "refused"),
            Self::AccessRefused => ("access", "refused"),
            Self::Changed => ("change", "done"),
            Self::ChangeFailed => ("change", "failed"),
            Self::ChangeUncertain => ("change", "uncertain"),
            Self::Lost => ("audit", LOST),
        }
    }
}

/// A line, in the order in which it is written.
#[derive(Default, Serialize)]
pub(super) struct Line<'a> {
    pub(super) time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) broker: Option<u32>,
    pub(super) event: &'static str,
    pub(super) result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<IpAddr>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) listener: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) listener_name: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) mechanism: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) action: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) detail: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
}

impl Line<'_> {
    pub(super) fn new(event: Event, peer: Peer) -> Self {
        let (event, result) = event.names();
        Self {
            event,
            result,
            host: Some(peer.host.to_canonical()),
            listener: peer.via.listener.to_string(),
            listener_name: peer.via.name,
            ..Self::default()
        }
    }
}

/// Lines that are not in the log, of one sort.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    event: Event,
    count: u64,
}

impl Missing {
    /// The line that says so.
    pub(super) fn line(&self) -> Line<'static> {
        let (event, result) = self.event.names();
        Line {
            event,
            result,
            count: Some(self.count),
            ..Line::default()
        }
    }
}

/// What those who write share with the thread that writes to the disk.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) broker: Number,
    waiting: AtomicUsize,
    /// Not told yet in the log, each of [`Event::LIMITED`].
    left_out: [AtomicU64; Event::LIMITED.len()],
    /// Likewise.
    lost: AtomicU64,
    pub(super) events: Family<Labels, Counter>,
}

impl Counts {
    /// All there is to count, from the start: a rate leaves out what a series begins with.
    pub(super) fn begin(&self) {
        for result in [WRITTEN, LEFT_OUT, LOST] {
            self.count(result, 0);
        }
    }

    fn count(&self, result: &str, lines: u64) {
        let labels = label("result", result);
        self.events.get_or_create_owned(&labels).inc_by(lines);
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.waiting() >= WAITING / 2
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn waits(&self, lines: usize) {
        self.waiting.fetch_add(lines, Ordering::Relaxed);
    }

    pub(super) fn taken(&self, lines: usize) {
        self.waiting.fetch_sub(lines, Ordering::Relaxed);
    }

    pub(super) fn written(&self, lines: u64) {
        self.count(WRITTEN, lines);
    }

    pub(super) fn left_out(&self, event: Event) {
        self.count(LEFT_OUT, 1);
        self.add(event, 1);
    }

    pub(super) fn lost(&self, lines: u64) {
        self.count(LOST, lines);
        self.add(Event::Lost, lines);
    }

    /// Lines are still to be told: what told of them was lost itself.
    pub(super) fn untold(&self, missing: &[Missing]) {
        for one in missing {
            self.add(one.event, one.count);
        }
    }

    fn add(&self, event: Event, lines: u64) {
        let at = Event::LIMITED.iter().position(|one| *one == event);
        let counted = at.map_or(&self.lost, |at| &self.left_out[at]);
        counted.fetch_add(lines, Ordering::Relaxed);
    }

    /// How many lines were left out or lost since the last call.
    pub(super) fn missing(&self) -> Vec<Missing> {
        let limited = Event::LIMITED.iter().copied().zip(&self.left_out);
        let all = limited.chain([(Event::Lost, &self.lost)]);
        let all = all.map(|(event, count)| Missing {
            event,
            count: count.swap(0, Ordering::Relaxed),
        });
        all.filter(|one| one.count > 0).collect()
    }

    /// The text of a line.
    pub(super) fn render(&self, line: Line<'_>) -> String {
        let line = Line {
            time: rfc3339(wall_ms()),
            broker: self.broker.get().copied(),
            ..line
        };
        // A line of plain values always has a text.
        serde_json::to_string(&line).unwrap_or_default()
    }
}

/// What stands at the end of a text that is cut.
const CUT: char = '\u{2026}';

/// The first characters, `most` with [`CUT`] where there are more. Control characters are replaced: JSON writes six bytes for
/// each, so a client could make its lines six times as long.
pub(super) fn cut(text: &str, most: usize) -> String {
    let shown = text.chars().map(|one| match one.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => one,
    });
    match text.chars().nth(most).is_some() {
        true => shown.take(most.saturating_sub(1)).chain([CUT]).collect(),
        false => shown.collect(),
    }
}
