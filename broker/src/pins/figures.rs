//! Metrics of pins.

use std::sync::atomic::{AtomicU64, Ordering};

use kera_metadata::PinRecord;
use prometheus_client::registry::Registry;

use crate::clock::wall_ms;
use crate::metrics::gauge;

/// What a round of retention saw of pins, for a scrape.
#[derive(Debug, Default)]
pub(crate) struct PinFigures {
    pins: AtomicU64,
    lost: AtomicU64,
    held_bytes: AtomicU64,
    /// When the oldest was made that is not lost; 0 if there is none.
    oldest_ms: AtomicU64,
}

impl PinFigures {
    /// Adds them to what a scrape sees.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let oldest = of(&self.oldest_ms);
        let age_ms = match oldest {
            0 => 0,
            oldest => wall_ms().saturating_sub(oldest),
        };
        gauge(registry, "pins", "Pins of all streams", of(&self.pins));
        gauge(
            registry,
            "pins_lost",
            "Those of them that have lost records",
            of(&self.lost),
        );
        gauge(
            registry,
            "pins_held_bytes",
            "Bytes that retention would have deleted here, if no pin needed them",
            of(&self.held_bytes),
        );
        gauge(
            registry,
            "pins_oldest_seconds",
            "Age of the oldest pin that has lost nothing",
            age_ms / 1000,
        );
    }

    pub(super) fn set(&self, tally: &Tally) {
        let figures = [
            (&self.pins, tally.pins),
            (&self.lost, tally.lost),
            (&self.held_bytes, tally.held_bytes),
            (&self.oldest_ms, tally.oldest_ms.unwrap_or(0)),
        ];
        for (figure, value) in figures {
            figure.store(value, Ordering::Relaxed);
        }
    }
}

/// What a round has seen so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pins: u64,
    lost: u64,
    held_bytes: u64,
    oldest_ms: Option<u64>,
}

impl Tally {
    /// Adds the pins of a stream, and what stays for them here.
    pub(super) fn add(&mut self, pins: &[PinRecord], held_bytes: u64) {
        self.held_bytes += held_bytes;
        self.pins += pins.len() as u64;
        let (kept, lost): (Vec<_>, Vec<_>) = pins.iter().partition(|pin| pin.lost.is_none());
        self.lost += lost.len() as u64;
        let oldest = kept.iter().map(|pin| pin.created_ms.max(1)).min();
        self.oldest_ms = self.oldest_ms.into_iter().chain(oldest).min();
    }
}
