//! What a broker remembers of pins between rounds of retention.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kera_metadata::PinRecord;
use kera_protocol::ids::{StreamId, StreamletId};
use kera_protocol::v1;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::figures::PinFigures;
use super::pace::Pace;
use super::rule::HeldBytes;

/// Owners of a stream are asked this often at most: while the disk is full rounds come fast.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Lists that are put together at once.
const LISTS_AT_ONCE: usize = 2;
/// Stamps lie so far ahead of the clock at most.
const STAMPS_AHEAD_MS: u64 = 3_600_000;

/// What a broker remembers of pins.
#[derive(Debug, Default)]
pub(crate) struct SharedPins {
    /// For a scrape.
    pub(crate) figures: PinFigures,
    pub(super) elsewhere: HeldElsewhere,
    /// When all of them were looked at last.
    pub(super) looked_over: Mutex<Option<Instant>>,
    /// How fast those make and move some who may only read.
    pub(crate) pace: Pace,
    /// What was stamped last.
    stamped_ms: AtomicU64,
    /// Lists of clients that are put together at once, each of which may hold positions of many pins.
    pub(crate) lists: ListTurns,
    /// The same of other brokers, for their clients: neither waits for the other.
    pub(crate) local_lists: ListTurns,
}

/// Room for so many lists at a time.
#[derive(Debug)]
pub(crate) struct ListTurns(Semaphore);

impl Default for ListTurns {
    fn default() -> Self {
        Self(Semaphore::new(LISTS_AT_ONCE))
    }
}

impl ListTurns {
    /// Waits for a turn, which ends when what is answered is dropped.
    pub(crate) async fn take(&self) -> Option<SemaphorePermit<'_>> {
        self.0.acquire().await.ok()
    }
}

impl SharedPins {
    /// A stamp at `now_ms`, or as soon after that as tells it from all that were given here, also to pins that are gone.
    pub(crate) fn stamp(&self, now_ms: u64) -> u64 {
        let next = |last: u64| match last.saturating_sub(now_ms) {
            // The clock was set back by a day, say: pins are not to be as young as it said then.
            ahead if ahead > STAMPS_AHEAD_MS => now_ms,
            _ => now_ms.max(last + 1),
        };
        let stamped = self
            .stamped_ms
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(next(last))
            });
        next(stamped.unwrap_or(0))
    }
}

/// What brokers hold back for pins, by the broker and the pin's name: when the pin was set there, and bytes by streamlet.
pub(super) type Told = HashMap<(u32, String), (u64, Vec<v1::StreamletBytes>)>;

/// What other owners have told of the pins of a stream.
#[derive(Debug, Default)]
struct Asked {
    begun: Option<Instant>,
    is_under_way: bool,
    answered: Option<Instant>,
    told: Told,
}

/// What other owners have told of pins, by stream: they are asked meanwhile, and the next round of retention knows.
///
/// A streamlet counts once, also while it moves: of what a broker says only the streamlets count that are recorded as its
/// own. A broker that does not answer counts with nothing: no pin is lost for its silence, and each broker by itself holds
/// back no more for a pin than the pin's bound.
#[derive(Debug)]
pub(super) struct HeldElsewhere {
    /// Where calls are made; none in a broker that was opened without one, which has no others.
    runtime: Option<Handle>,
    streams: Mutex<HashMap<StreamId, Asked>>,
}

impl Default for HeldElsewhere {
    fn default() -> Self {
        Self {
            runtime: Handle::try_current().ok(),
            streams: Mutex::default(),
        }
    }
}

impl HeldElsewhere {
    /// Bytes that other owners hold back for each of these pins, as far as they have told within `fresh`. `owners` is this
    /// broker, and that of each streamlet.
    pub(super) fn known(
        &self,
        stream: StreamId,
        pins: &[PinRecord],
        owners: (u32, &[u32]),
        fresh: Duration,
    ) -> Vec<u64> {
        let (me, owners) = owners;
        let streams = self.streams.lock();
        let asked = streams.get(&stream);
        let asked = asked.filter(|asked| asked.answered.is_some_and(|at| at.elapsed() < fresh));
        let mut known: HashMap<&str, u64> = HashMap::new();
        let told = asked.iter().flat_map(|asked| &asked.told);
        let created: HashMap<_, _> = pins
            .iter()
            .map(|pin| (pin.name.as_str(), pin.created_ms))
            .collect();
        for ((broker, name), (of, held)) in told.filter(|((broker, _), _)| *broker != me) {
            if let Some(created_ms) = created.get(name.as_str()) {
                let bytes = counted(owners, *broker, (*of, held), *created_ms);
                *known.entry(name).or_default() += bytes;
            }
        }
        let of = |pin: &PinRecord| known.get(pin.name.as_str()).copied().unwrap_or(0);
        pins.iter().map(of).collect()
    }

    /// Where to ask the other owners of a stream, if they are not being asked and were not just now.
    pub(super) fn begin(&self, stream: StreamId) -> Option<&Handle> {
        let runtime = self.runtime.as_ref()?;
        let mut streams = self.streams.lock();
        let asked = streams.entry(stream).or_default();
        let is_early = asked.begun.is_some_and(|at| at.elapsed() < ASK_AGAIN);
        if asked.is_under_way || is_early {
            return None;
        }
        asked.begun = Some(Instant::now());
        asked.is_under_way = true;
        Some(runtime)
    }

    /// What they have told, in the place of what they told before.
    pub(super) fn heard(&self, stream: StreamId, told: Told) {
        if let Some(asked) = self.streams.lock().get_mut(&stream) {
            asked.is_under_way = false;
            asked.answered = Some(Instant::now());
            asked.told = told;
        }
    }

    /// Forgets streams that have no pins any more.
    pub(super) fn keep(&self, has_pins: impl Fn(&StreamId) -> bool) {
        let mut streams = self.streams.lock();
        streams.retain(|stream, asked| asked.is_under_way || has_pins(stream));
    }

    /// Forgets a stream that holds back too little to ask about.
    pub(super) fn forget(&self, stream: StreamId) {
        let mut streams = self.streams.lock();
        if streams
            .get(&stream)
            .is_some_and(|asked| !asked.is_under_way)
        {
            streams.remove(&stream);
        }
    }
}

/// Bytes that a broker says that it holds back for a pin, without those of streamlets that are not its own, and nothing if it
/// knew the pin elsewhere than where it is now. `told` has when the pin was set there, and the bytes.
pub(crate) fn counted(
    owners: &[u32],
    broker: u32,
    told: (u64, &[v1::StreamletBytes]),
    created_ms: u64,
) -> u64 {
    let (of, held) = told;
    let is_its_own = |held: &&v1::StreamletBytes| {
        owners.get(held.streamlet as usize) == Some(&broker) && of == created_ms
    };
    let held = held.iter().filter(is_its_own);
    held.map(|held| held.bytes).sum()
}

/// Bytes by streamlet, as they are told.
pub(crate) fn told(held: &HeldBytes) -> Vec<v1::StreamletBytes> {
    let held = held.iter();
    held.map(|(StreamletId(streamlet), bytes)| v1::StreamletBytes {
        streamlet: *streamlet,
        bytes: *bytes,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use kera_metadata::PinPolicy;

    use super::*;

    /// Streamlet 1 was broker 2's when broker 2 was asked, and is broker 3's by now.
    const OWNERS: [u32; 3] = [1, 3, 2];

    fn bytes(streamlet: u32, bytes: u64) -> v1::StreamletBytes {
        v1::StreamletBytes { streamlet, bytes }
    }

    #[test]
    fn no_two_pins_have_one_stamp() {
        let pins = SharedPins::default();
        let stamps = [10, 10, 9, 20, 12].map(|now_ms| pins.stamp(now_ms));
        assert_eq!(stamps, [10, 11, 12, 20, 21]);
        let far = 20 + 2 * STAMPS_AHEAD_MS;
        assert_eq!([pins.stamp(far), pins.stamp(30)], [far, 30]);
    }

    #[test]
    fn a_streamlet_counts_for_its_owner_alone_and_for_the_pin_as_it_is() {
        let told = [bytes(1, 10), bytes(2, 5), bytes(9, 1)];
        let by = |broker, created_ms| counted(&OWNERS, broker, (7, &told), created_ms);
        assert_eq!([by(2, 7), by(3, 7), by(1, 7)], [5, 10, 0]);
        assert_eq!(by(2, 8), 0, "the pin was moved since");
    }

    #[tokio::test]
    async fn what_others_told_counts_while_it_is_fresh_and_who_is_silent_counts_with_nothing() {
        let held = HeldElsewhere::default();
        let stream = StreamId(uuid::Uuid::from_u128(1));
        let pin = |name: &str| PinRecord {
            stream,
            name: name.to_owned(),
            job: String::new(),
            owner: "User:ann".to_owned(),
            created_ms: 7,
            positions: Vec::new(),
            max_age_ms: 1,
            max_bytes: 1,
            policy: PinPolicy::Wait,
            lost: None,
            revision: 1,
        };
        let pins = [pin("a"), pin("b")];
        let known = |fresh| held.known(stream, &pins, (1, &OWNERS), fresh);
        let long = Duration::from_secs(3600);
        assert!(held.begin(stream).is_some() && held.begin(stream).is_none());
        held.forget(stream);
        assert_eq!(known(long), [0, 0]);
        let of = |broker, name: &str, held| ((broker, name.to_owned()), (7, vec![held]));
        let told = [
            of(2, "b", bytes(2, 5)),
            of(3, "b", bytes(1, 4)),
            of(1, "b", bytes(0, 9)),
        ];
        held.heard(stream, told.into());
        assert_eq!(known(long), [0, 9]);
        assert_eq!(known(Duration::ZERO), [0, 0]);
        assert!(held.begin(stream).is_none(), "they were asked just now");
        held.heard(stream, Told::new());
        assert_eq!(known(long), [0, 0]);
        held.forget(stream);
        assert!(held.begin(stream).is_some());
        held.keep(|_| false);
        assert!(held.begin(stream).is_none(), "they are being asked");
        held.heard(stream, Told::new());
        held.keep(|_| false);
        assert!(held.streams.lock().is_empty());
    }
}
