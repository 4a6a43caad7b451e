//! Pins: positions that something still needs, and what retention does about them ([`rule`]).
//!
//! Owners read the pins of a stream from the metadata store right before retention deletes something of it, so that none
//! is missed that a broker has answered. A pin is recorded as lost before what it needs is deleted.

mod figures;
mod rule;

use std::collections::{BTreeSet, HashMap};

use kera_metadata::{
    Compare, Feature, Key, LossCause, MetadataError, MetadataStore, PinLoss, PinRecord,
    Transaction, Write,
};
use kera_protocol::ids::{LaneId, Ordinal, StreamId, StreamletId, StreamletKey};

use crate::clock::wall_ms;
use crate::data::catalog::Stream;
use crate::fault_rules::Rule;
use crate::retention::doomed;
use crate::shared::Shared;
pub(crate) use figures::PinFigures;
use figures::Tally;
use rule::{DueGroup, DueLane, Shape, Spared, spare};

/// One round of retention over all streams.
pub(crate) struct Round<'a> {
    shared: &'a Shared,
    /// As they were when the round began, of streams that are still to come; `None` where there can be none.
    recorded: Option<HashMap<StreamId, Vec<PinRecord>>>,
    /// They cannot be read: nothing is deleted in this round.
    is_blind: bool,
    tally: Tally,
}

impl<'a> Round<'a> {
    /// Begins one.
    pub(crate) fn begin(shared: &'a Shared) -> Self {
        let mut round = Self {
            shared,
            recorded: None,
            is_blind: false,
            tally: Tally::default(),
        };
        if shared.has(Feature::Pins) && !shared.data.directory.is_current() {
            // Nothing could be recorded either: who waits for an answer of the store holds up what else is to be done.
            round.is_blind = true;
            round.recorded = Some(HashMap::new());
        } else if shared.has(Feature::Pins) {
            let mut recorded: HashMap<_, Vec<_>> = HashMap::new();
            for pin in round.read(None) {
                recorded.entry(pin.stream).or_default().push(pin);
            }
            round.recorded = Some(recorded);
        }
        round
    }

    fn read(&mut self, stream: Option<StreamId>) -> Vec<PinRecord> {
        self.shared.metadata.pins(stream).unwrap_or_else(|error| {
            tracing::warn!(%error, "retention waits: the metadata store does not tell which positions are pinned");
            self.is_blind = true;
            Vec::new()
        })
    }

    /// Of what is due of a stream, by retention at `now_ms`: what goes.
    pub(crate) fn spare(
        &mut self,
        stream: &Stream,
        due: Vec<(usize, LaneId, Ordinal)>,
        now_ms: u64,
    ) -> Vec<(usize, LaneId, Ordinal)> {
        let Some(recorded) = &mut self.recorded else {
            return due;
        };
        let mut pins = recorded.remove(&stream.id()).unwrap_or_default();
        if !due.is_empty() && !self.is_blind {
            // One may have been made since the round began.
            pins = self.read(Some(stream.id()));
        }
        if self.is_blind {
            return Vec::new();
        }
        if pins.is_empty() || Rule::PinsIgnored.is_broken() {
            return due;
        }
        let spared = decide(self.shared, stream, &due, &pins, now_ms);
        for (at, loss) in &spared.lost {
            match record_loss(self.shared, stream, &pins[*at], loss) {
                Ok(true) => pins[*at].lost = Some(loss.clone()),
                // It was moved or deleted, or the streamlet has another owner: all is looked at anew in the next round.
                Ok(false) => return Vec::new(),
                Err(error) => {
                    tracing::warn!(stream = stream.name(), pin = pins[*at].name, %error, "retention waits: a pin could not be recorded as lost");
                    return Vec::new();
                }
            }
        }
        self.tally.add(&pins, spared.kept_bytes);
        let starts = spared.starts.into_iter();
        starts
            .map(|((streamlet, lane), start)| (streamlet.0 as usize, lane, start))
            .collect()
    }

    /// Ends it: what it saw is what a scrape sees.
    pub(crate) fn end(self) {
        if !self.is_blind {
            self.shared.pins.set(&self.tally);
        }
    }
}

/// Bytes that each of these pins of a stream holds back here.
pub(crate) fn held(shared: &Shared, stream: &Stream, pins: &[PinRecord], now_ms: u64) -> Vec<u64> {
    decide(shared, stream, &doomed(stream, now_ms), pins, now_ms).held
}

fn decide(
    shared: &Shared,
    stream: &Stream,
    due: &[(usize, LaneId, Ordinal)],
    pins: &[PinRecord],
    now_ms: u64,
) -> Spared {
    let shape = shape(shared, stream);
    spare(&due_lanes(shared, stream, due), pins, shape, now_ms)
}

fn shape(shared: &Shared, stream: &Stream) -> Shape {
    let config = &stream.record.load().config;
    let me = shared.data.directory.me();
    let owned = stream.streamlets.iter();
    let owned = owned.filter(|streamlet| shared.owner_of(streamlet).broker == me);
    Shape {
        streamlets: config.streamlets,
        lanes: config.partitions(),
        owned: owned.map(|one| config.lanes_of(one.id())).sum(),
    }
}

/// The lanes that this broker owns, with what is due of them.
fn due_lanes(shared: &Shared, stream: &Stream, due: &[(usize, LaneId, Ordinal)]) -> Vec<DueLane> {
    let due: HashMap<_, _> = due
        .iter()
        .map(|(streamlet, lane, start)| ((*streamlet, *lane), *start))
        .collect();
    let me = shared.data.directory.me();
    let mut lanes = Vec::new();
    for (index, streamlet) in stream.streamlets.iter().enumerate() {
        if shared.owner_of(&streamlet).broker != me {
            continue;
        }
        for view in streamlet.describe() {
            let start = due.get(&(index, view.lane)).copied().unwrap_or(0);
            let going = view.groups.iter().enumerate();
            let going = going.take_while(|(_, g)| g.closed && g.end_ordinal <= start);
            let group = |(at, group): (usize, &kera_streamlet::GroupView)| {
                let next = view.groups.get(at + 1).map_or(0, |next| next.first_ordinal);
                DueGroup {
                    end: group.end_ordinal,
                    next: group.end_ordinal.max(next),
                    bytes: group.bytes,
                }
            };
            lanes.push(DueLane {
                lane: (streamlet.id(), view.lane),
                log_start: view.log_start,
                due: going.map(group).collect(),
            });
        }
    }
    lanes
}

/// Records that a pin has lost records, if it is still as it was and this broker owns the streamlet.
fn record_loss(
    shared: &Shared,
    stream: &Stream,
    pin: &PinRecord,
    loss: &PinLoss,
) -> Result<bool, MetadataError> {
    let Some(streamlet) = stream.streamlet(loss.streamlet) else {
        return Ok(false);
    };
    let key = StreamletKey {
        stream: stream.id(),
        streamlet: loss.streamlet,
    };
    let owned = Compare::epoch_of(key, streamlet.epoch());
    let recorded = put_loss(&*shared.metadata, pin, loss, vec![owned])?;
    if recorded {
        warn_of(&stream.name(), pin, loss);
    }
    Ok(recorded)
}

fn put_loss(
    store: &dyn MetadataStore,
    pin: &PinRecord,
    loss: &PinLoss,
    mut compare: Vec<Compare>,
) -> Result<bool, MetadataError> {
    let lost = PinRecord {
        lost: Some(loss.clone()),
        ..pin.clone()
    };
    compare.push(Compare::revision(Key::Pin(pin.key()), pin.revision));
    match store.commit(Transaction::new(compare, vec![Write::PutPin(lost)])) {
        Ok(_) => Ok(true),
        Err(MetadataError::Conflict(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn warn_of(stream: &str, pin: &PinRecord, loss: &PinLoss) {
    let (name, job, cause) = (&pin.name, &pin.job, loss.cause);
    let (streamlet, lane, ordinal) = (loss.streamlet.0, loss.lane.0, loss.ordinal);
    tracing::warn!(
        stream, pin = name, job, %cause, streamlet, lane, ordinal,
        "a pin loses records: those of this lane from this ordinal on are deleted, and nothing waits for the pin any more"
    );
}

/// The pin's position that lies below where one of these lanes begins.
pub(crate) fn below_start(
    pin: &PinRecord,
    streamlets: u32,
    starts: impl IntoIterator<Item = (StreamletId, LaneId, Ordinal)>,
    now_ms: u64,
) -> Option<PinLoss> {
    starts.into_iter().find_map(|(streamlet, lane, start)| {
        let ordinal = pin.position(streamlets, streamlet, lane);
        (start > ordinal).then_some(PinLoss {
            streamlet,
            lane,
            ordinal,
            cause: LossCause::Trim,
            at_ms: now_ms,
        })
    })
}

/// Records which pins have lost records, after lanes of a stream were trimmed to begin here; their names. What cannot be
/// recorded now, retention's next round records. Blocks.
pub(crate) fn after_trim(
    shared: &Shared,
    stream: &Stream,
    starts: &[(StreamletId, LaneId, Ordinal)],
) -> Vec<String> {
    if !shared.has(Feature::Pins) {
        return Vec::new();
    }
    let pins = match shared.metadata.pins(Some(stream.id())) {
        Ok(pins) => pins,
        Err(error) => {
            tracing::warn!(stream = stream.name(), %error, "which pins a trim has hurt cannot be told yet");
            return Vec::new();
        }
    };
    let streamlets = stream.record.load().config.streamlets;
    let mut lost = BTreeSet::new();
    for pin in pins.iter().filter(|pin| pin.lost.is_none()) {
        let starts = starts.iter().copied();
        let Some(loss) = below_start(pin, streamlets, starts, wall_ms()) else {
            continue;
        };
        match put_loss(&*shared.metadata, pin, &loss, Vec::new()) {
            Ok(true) => warn_of(&stream.name(), pin, &loss),
            // Whoever moved it is told where lanes begin.
            Ok(false) => continue,
            Err(error) => {
                tracing::warn!(stream = stream.name(), pin = pin.name, %error, "a pin could not be recorded as lost yet");
            }
        }
        lost.insert(pin.name.clone());
    }
    lost.into_iter().collect()
}

/// Records that a pin which was just made is lost: lanes begin above its positions by now.
pub(crate) fn lost_at_once(
    store: &dyn MetadataStore,
    stream: &str,
    pin: &PinRecord,
    loss: &PinLoss,
) -> Result<bool, MetadataError> {
    let recorded = put_loss(store, pin, loss, Vec::new())?;
    if recorded {
        warn_of(stream, pin, loss);
    }
    Ok(recorded)
}
