//! Metrics of pins.

use std::collections::HashMap;

use kera_metadata::PinRecord;
use kera_protocol::ids::StreamId;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use crate::clock::wall_ms;
use crate::metrics::gauge;

/// What retention saw of pins last, by stream, for a scrape.
#[derive(Debug, Default)]
pub(crate) struct PinFigures {
    streams: Mutex<HashMap<StreamId, Tally>>,
}

impl PinFigures {
    /// Adds them to what a scrape sees.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let mut all = Tally::default();
        for tally in self.streams.lock().values() {
            all.pins += tally.pins;
            all.lost += tally.lost;
            all.held_bytes += tally.held_bytes;
            all.oldest_ms = all.oldest_ms.into_iter().chain(tally.oldest_ms).min();
        }
        let age_ms = all
            .oldest_ms
            .map_or(0, |oldest| wall_ms().saturating_sub(oldest));
        gauge(registry, "pins", "Pins of all streams", all.pins);
        gauge(
            registry,
            "pins_lost",
            "Those of them that have lost records",
            all.lost,
        );
        gauge(
            registry,
            "pins_held_bytes",
            "Bytes that retention would have deleted here, if no pin needed them",
            all.held_bytes,
        );
        gauge(
            registry,
            "pins_oldest_seconds",
            "Age of the oldest pin that has lost nothing",
            age_ms / 1000,
        );
    }

    /// The pins of a stream, and what stays for them here.
    pub(super) fn set(&self, stream: StreamId, pins: &[PinRecord], held_bytes: u64) {
        let mut streams = self.streams.lock();
        match Tally::of(pins, held_bytes) {
            Some(tally) => streams.insert(stream, tally),
            None => streams.remove(&stream),
        };
    }

    /// Likewise, where what stays is as it was.
    pub(super) fn count(&self, stream: StreamId, pins: &[PinRecord]) {
        let held_bytes = self.streams.lock().get(&stream).map_or(0, |t| t.held_bytes);
        self.set(stream, pins, held_bytes);
    }

    /// Nothing of a stream is due here.
    pub(super) fn holds_nothing(&self, stream: StreamId) {
        if let Some(tally) = self.streams.lock().get_mut(&stream) {
            tally.held_bytes = 0;
        }
    }

    /// Only these streams have pins.
    pub(super) fn keep(&self, has_pins: impl Fn(&StreamId) -> bool) {
        self.streams.lock().retain(|stream, _| has_pins(stream));
    }
}

/// Of a stream's pins.
#[derive(Debug, Default)]
struct Tally {
    pins: u64,
    lost: u64,
    held_bytes: u64,
    /// When the oldest was made that is not lost.
    oldest_ms: Option<u64>,
}

impl Tally {
    fn of(pins: &[PinRecord], held_bytes: u64) -> Option<Self> {
        let unlost = pins.iter().filter(|pin| pin.lost.is_none());
        (!pins.is_empty()).then(|| Self {
            pins: pins.len() as u64,
            lost: pins.iter().filter(|pin| pin.lost.is_some()).count() as u64,
            held_bytes,
            oldest_ms: unlost.map(|pin| pin.created_ms).min(),
        })
    }
}
