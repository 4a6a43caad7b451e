//! What brokers hold, awaited: see [`held_bytes`](super::held_bytes).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kera_metadata::{GroupRecord, Image};

use super::held_bytes::has_records;
pub use super::held_bytes::{Directories, MISSED, look};
use super::{Broker, PATIENCE};

/// Looks until all is settled.
///
/// # Panics
/// If a recorded replica has lost its bytes, or it does not come to rest.
#[expect(
    clippy::disallowed_methods,
    reason = "nobody tells when brokers have freed what no record names"
)]
pub fn settled(image: impl Fn() -> Image, brokers: &[Directories]) {
    let begin = Instant::now();
    loop {
        let amiss = look(&image, brokers);
        assert!(amiss.lost.is_empty(), "{LOST}: {:#?}", amiss.lost);
        if amiss.unsettled.is_empty() {
            return;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "what brokers hold is not what is recorded: {:#?}",
            amiss.unsettled
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What is said when brokers that do not own a streamlet lack recorded replicas of it.
pub const LOST: &str = "recorded replicas have lost their bytes";

/// Fails if any of some brokers, none of which has lost a file, has found that another lacks a recorded replica: it
/// would have been made once more elsewhere.
pub fn nothing_was_missed(brokers: &[Broker]) {
    for broker in brokers {
        let log = broker.log();
        let found = log.lines().find(|line| line.contains(MISSED));
        assert!(found.is_none(), "a replica was denied: {found:?}");
    }
}

/// What a trim gives up: the first closed group with records of some lane that has more, among those that
/// are `wanted`.
pub fn first_group(image: &Image, wanted: impl Fn(&GroupRecord) -> bool) -> Option<GroupRecord> {
    let groups = image.groups.iter();
    let closed = groups.filter(|record| wanted(record) && has_records(record));
    let mut lanes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for record in closed {
        let lane = lanes.entry((record.streamlet, record.lane)).or_default();
        lane.push(record);
    }
    let mut lanes = lanes.into_values().filter(|lane| lane.len() > 1);
    lanes.next().map(|lane| lane[0].clone())
}
