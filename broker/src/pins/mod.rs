//! Pins: positions that something still needs, and what retention does about them ([`rule`]).
//!
//! Owners read the pins of a stream from the metadata store right before retention deletes something of it, and again while that
//! takes long. Who makes a pin that waits writes the stream's record as it is, too, and a trim by retention holds only while that
//! record is the one that was known before the pins were read: so none is missed that a broker has answered. A pin is recorded as
//! lost before what it needs is deleted. None of that asks for the cluster version: a broker that has not heard of the one that brought pins deletes what no
//! pin needs as well.

pub(crate) mod asked;
mod figures;
pub(crate) mod pace;
pub(crate) mod remembered;
mod rule;

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_metadata::{
    Compare, Key, LossCause, MetadataError, MetadataStore, PinKey, PinLoss, PinRecord, Record,
    Transaction, Write,
};
use kera_protocol::ids::{LaneId, Ordinal, StreamId, StreamletId, StreamletKey};

use crate::clock::wall_ms;
use crate::data::catalog::Stream;
use crate::fault_rules::Rule;
use crate::retention::doomed;
use crate::shared::Shared;
pub(crate) use rule::HeldBytes;
use rule::{DueGroup, DueLane, Shape, Spared, Start, spare};

/// Times that is decided anew what goes of a stream, because its pins changed meanwhile.
const ATTEMPTS: u32 = 8;
/// Trims of a stream's lanes go by what was read of its pins this long ago at most.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Every so many rounds all pins are looked at: for figures, and for trims after which none was recorded as lost.
const LOOK_OVER: u32 = 6;
/// Pins that are read at once then: each may have half a million bytes.
const PAGE: usize = 256;

/// Lanes of which retention is to delete something: by the number of their streamlet, and what lies below which ordinal.
pub(crate) type Due = Vec<(usize, LaneId, Ordinal)>;

/// One round of retention over all streams.
pub(crate) struct Round<'a> {
    shared: &'a Arc<Shared>,
    /// They cannot be read: nothing is deleted in this round.
    is_blind: bool,
}

impl<'a> Round<'a> {
    /// Begins one.
    pub(crate) fn begin(shared: &'a Arc<Shared>) -> Self {
        let mut round = Self {
            shared,
            // Nothing could be recorded either: who waits for an answer of the store holds up what else is to be done.
            is_blind: !shared.data.directory.is_current(),
        };
        let every = shared.live().retention.check_interval * LOOK_OVER;
        let mut looked = shared.pins.looked_over.lock();
        if !round.is_blind && looked.is_none_or(|at| at.elapsed() >= every) {
            *looked = Some(Instant::now());
            drop(looked);
            look_over(shared).unwrap_or_else(|error| round.is_blind_by(&error));
        }
        round
    }

    fn is_blind_by(&mut self, error: &MetadataError) {
        tracing::warn!(%error, "retention waits: the metadata store does not tell which positions are pinned, or does not record which pins are lost");
        self.is_blind = true;
    }

    /// Of what is due of a stream, by retention at `now_ms`, has `trim` delete what no pin needs: below the ordinal, of the lane
    /// of the streamlet with this number, if no pin that waits was made since pins were read, which the comparison tells. It
    /// answers whether it did.
    pub(crate) fn trim(
        &mut self,
        stream: &Arc<Stream>,
        due: &Due,
        now_ms: u64,
        mut trim: impl FnMut(usize, LaneId, Ordinal, Compare) -> bool,
    ) {
        if due.is_empty() {
            self.shared.pins.figures.holds_nothing(stream.id());
            return;
        }
        if self.is_blind {
            return;
        }
        let mut read = Instant::now();
        let store = &self.shared.metadata;
        let settled = revision(&**store, stream.id()).and_then(|before| {
            let starts = self.settled(stream, due, now_ms)?;
            Ok((before, starts))
        });
        let (before, starts) = match settled {
            Ok(settled) => settled,
            Err(error) => return self.is_blind_by(&error),
        };
        let unchanged = Cell::new(before);
        let streamlets = stream.record.load().config.streamlets;
        let read_again = |was_refused| {
            let is_stale = was_refused || read.elapsed() >= READ_AGAIN;
            is_stale.then(|| {
                read = Instant::now();
                unchanged.set(revision(&**store, stream.id())?);
                store.pins(Some(stream.id()))
            })
        };
        let walked = walk(&starts, streamlets, read_again, |start| {
            let (streamlet, lane) = start.lane;
            let unchanged = Compare::revision(Key::Stream(stream.id()), unchanged.get());
            trim(streamlet.0 as usize, lane, start.start, unchanged)
        });
        walked.unwrap_or_else(|error| self.is_blind_by(&error));
    }

    /// What goes, once it is recorded which pins are lost by that.
    fn settled(
        &self,
        stream: &Arc<Stream>,
        due: &Due,
        now_ms: u64,
    ) -> Result<Vec<Start>, MetadataError> {
        let shared = self.shared;
        let decide = |pins: &[PinRecord]| {
            if pins.is_empty() || Rule::PinsIgnored.is_broken() {
                return all(due);
            }
            let elsewhere = asked::known(shared, stream, pins);
            let pins: Vec<_> = pins.iter().zip(elsewhere).collect();
            decide(shared, stream, due, &pins, now_ms)
        };
        let record = |pin: &PinRecord, loss: &PinLoss| record_loss(shared, stream, pin, loss);
        let settled = settle(&*shared.metadata, stream.id(), decide, record)?;
        let Some((pins, spared)) = settled else {
            tracing::warn!(
                stream = stream.name(),
                "retention waits: pins of the stream were changed again and again"
            );
            return Ok(Vec::new());
        };
        match spared.asks {
            true => asked::ask_meanwhile(shared, stream),
            false => shared.pins.elsewhere.forget(stream.id()),
        }
        let figures = &shared.pins.figures;
        figures.set(stream.id(), &pins, spared.kept_bytes);
        Ok(spared.starts)
    }
}

/// Reads the pins of a stream, decides what goes, and records which are lost by that; the pins, and what was decided. `None` if
/// pins changed again and again. `record` says whether the pin was still as it was and this broker owns the streamlet.
///
/// A pin that only warns keeps nothing back: if it is moved meanwhile, what was decided stays right, and it is lost, if it is,
/// in the next round. Who may only read cannot stop retention by moving one.
fn settle(
    store: &dyn MetadataStore,
    stream: StreamId,
    mut decide: impl FnMut(&[PinRecord]) -> Spared,
    mut record: impl FnMut(&PinRecord, &PinLoss) -> Result<bool, MetadataError>,
) -> Result<Option<(Vec<PinRecord>, Spared)>, MetadataError> {
    'anew: for _ in 0..ATTEMPTS {
        let mut pins = store.pins(Some(stream))?;
        let spared = decide(&pins);
        for (at, loss) in &spared.lost {
            let pin = &mut pins[*at];
            if record(pin, loss)? {
                pin.lost = Some(loss.clone());
                continue;
            }
            // Where there is none any more, nothing needs what goes.
            if let Some(now) = read(store, pin.key())? {
                let only_warns = now.policy == kera_metadata::PinPolicy::Warn;
                if now.revision == pin.revision || now.lost.is_none() && !only_warns {
                    continue 'anew;
                }
                *pin = now;
            }
        }
        return Ok(Some((pins, spared)));
    }
    Ok(None)
}

/// The revision of a stream's record, read from the store before pins are: a pin that waits and that is not among these makes
/// another one of it. 0: the stream is gone.
fn revision(store: &dyn MetadataStore, stream: StreamId) -> Result<u64, MetadataError> {
    Ok(store.stream(stream)?.map_or(0, |record| record.revision))
}

fn read(store: &dyn MetadataStore, key: PinKey) -> Result<Option<PinRecord>, MetadataError> {
    Ok(match store.read(&Key::Pin(key))? {
        Some(Record::Pin(pin)) => Some(pin),
        _ => None,
    })
}

/// Has `trim` carry out what was decided, one after the other; it says whether it did, and one that was refused is left for the
/// next round. Each may wait for the metadata store, so `read_again` says after a while, and after a refusal, which pins there are
/// by then: one whose maker has its answer is spared.
fn walk(
    starts: &[Start],
    streamlets: u32,
    mut read_again: impl FnMut(bool) -> Option<Result<Vec<PinRecord>, MetadataError>>,
    mut trim: impl FnMut(&Start) -> bool,
) -> Result<(), MetadataError> {
    let (mut pins, mut was_refused) = (Vec::new(), false);
    for start in starts {
        if let Some(read) = read_again(was_refused) {
            pins = read?;
            was_refused = false;
        }
        if !start.is_needed(&pins, streamlets) {
            was_refused |= !trim(start);
        }
    }
    Ok(())
}

/// All that is due goes, as there are no pins.
fn all(due: &Due) -> Spared {
    let start = |(streamlet, lane, start): &(usize, LaneId, Ordinal)| Start {
        lane: (
            StreamletId(u32::try_from(*streamlet).unwrap_or(u32::MAX)),
            *lane,
        ),
        start: *start,
        next: *start,
    };
    Spared {
        starts: due.iter().map(start).collect(),
        ..Spared::default()
    }
}

/// Looks at all pins, some at a time: for figures, and for those that a trim has hurt and that were not recorded as lost.
fn look_over(shared: &Arc<Shared>) -> Result<(), MetadataError> {
    let mut seen = HashSet::new();
    each_stream(&*shared.metadata, |stream, pins| {
        seen.insert(stream);
        if let Some(stream) = shared.data.catalog.get(stream) {
            let of: Vec<_> = pins.iter().map(|pin| (pin, 0)).collect();
            let spared = decide(shared, &stream, &Due::new(), &of, wall_ms());
            for (at, loss) in &spared.lost {
                // One that was changed meanwhile is looked at the next time.
                if record_loss(shared, &stream, &pins[*at], loss)? {
                    pins[*at].lost = Some(loss.clone());
                }
            }
        }
        shared.pins.figures.count(stream, pins);
        Ok(())
    })?;
    shared.pins.figures.keep(|stream| seen.contains(stream));
    shared.pins.elsewhere.keep(|stream| seen.contains(stream));
    Ok(())
}

/// The pins of each stream that has some, without holding those of all at once.
fn each_stream(
    store: &dyn MetadataStore,
    mut look: impl FnMut(StreamId, &mut [PinRecord]) -> Result<(), MetadataError>,
) -> Result<(), MetadataError> {
    let mut of_one: Vec<PinRecord> = Vec::new();
    let mut after = None;
    loop {
        let page = store.pins_after(after.as_ref(), PAGE)?;
        let is_last = page.len() < PAGE;
        after = page.last().map(PinRecord::key).or(after);
        for pin in page {
            let before = of_one.first().map(|first| first.stream);
            if let Some(stream) = before.filter(|stream| *stream != pin.stream) {
                look(stream, &mut of_one)?;
                of_one.clear();
            }
            of_one.push(pin);
        }
        if is_last {
            break;
        }
    }
    match of_one.first().map(|first| first.stream) {
        Some(stream) => look(stream, &mut of_one),
        None => Ok(()),
    }
}

/// Bytes that each of these pins of a stream holds back here.
pub(crate) fn held(
    shared: &Shared,
    stream: &Stream,
    pins: &[PinRecord],
    now_ms: u64,
) -> Vec<HeldBytes> {
    let pins: Vec<_> = pins.iter().map(|pin| (pin, 0)).collect();
    decide(shared, stream, &doomed(stream, now_ms), &pins, now_ms).held
}

fn decide(
    shared: &Shared,
    stream: &Stream,
    due: &Due,
    pins: &[(&PinRecord, u64)],
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
fn due_lanes(shared: &Shared, stream: &Stream, due: &Due) -> Vec<DueLane> {
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

/// Pins of a stream that have lost nothing, by name and by when their positions were set.
pub(crate) type WholePins = BTreeSet<(String, u64)>;

/// Those that a stream has now. Blocks.
///
/// # Errors
/// As for all reads of the store.
pub(crate) fn whole(
    store: &dyn MetadataStore,
    stream: StreamId,
) -> Result<WholePins, MetadataError> {
    let pins = store.pins(Some(stream))?.into_iter();
    let whole = pins.filter(|pin| pin.lost.is_none());
    Ok(whole.map(|pin| (pin.name, pin.created_ms)).collect())
}

/// Records which pins have lost records, after lanes of a stream were trimmed to begin here; the names of all that have, those
/// among them that were `whole` before and that somebody else has recorded meanwhile. What cannot be recorded now, a later
/// round of retention records. Blocks.
///
/// # Errors
/// The store's, where the pins cannot be read: which are hurt is not known then.
pub(crate) fn after_trim(
    store: &dyn MetadataStore,
    stream: &Stream,
    whole: &WholePins,
    starts: &[(StreamletId, LaneId, Ordinal)],
) -> Result<Vec<String>, MetadataError> {
    let (name, streamlets) = (stream.name(), stream.record.load().config.streamlets);
    let mut hurt = Vec::new();
    for pin in store.pins(Some(stream.id()))? {
        if is_hurt(store, &name, streamlets, whole, pin.clone(), starts)? {
            hurt.push(pin.name);
        }
    }
    Ok(hurt)
}

fn is_hurt(
    store: &dyn MetadataStore,
    stream: &str,
    streamlets: u32,
    whole: &WholePins,
    mut pin: PinRecord,
    starts: &[(StreamletId, LaneId, Ordinal)],
) -> Result<bool, MetadataError> {
    for _ in 0..ATTEMPTS {
        let starts = starts.iter().copied();
        let Some(loss) = below_start(&pin, streamlets, starts, wall_ms()) else {
            return Ok(false);
        };
        if pin.lost.is_some() {
            return Ok(whole.contains(&(pin.name, pin.created_ms)));
        }
        match put_loss(store, &pin, &loss, Vec::new()) {
            Ok(true) => {
                warn_of(stream, &pin, &loss);
                return Ok(true);
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(stream, pin = pin.name, %error, "a pin could not be recorded as lost yet");
                return Ok(true);
            }
        }
        match read(store, pin.key())? {
            Some(now) => pin = now,
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// Records that a pin which was just made is lost: lanes begin above its positions by now. What others have made of it since, or
/// recorded, stays.
pub(crate) fn lost_at_once(
    store: &dyn MetadataStore,
    stream: &str,
    pin: &PinRecord,
    loss: &PinLoss,
) {
    match put_loss(store, pin, loss, Vec::new()) {
        Ok(true) => warn_of(stream, pin, loss),
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(stream, pin = pin.name, %error, "a pin could not be recorded as lost yet");
        }
    }
}

#[cfg(test)]
mod round_tests;
