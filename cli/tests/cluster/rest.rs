//! What brokers hold when all is at rest, and after a trim and a deletion.

use kera_metadata::{EtcdOptions, EtcdStore, GroupRecord, Image, MetadataStore};
use kera_protocol::ids::StreamId;

use crate::asking::until;
use crate::common::holdings::{Directories, first_group, settled};
use crate::world::{KEYED, PINNED, World};

/// What is recorded, read without a broker.
pub struct Recorded(EtcdStore);

impl Recorded {
    pub fn at(url: &str) -> Self {
        let store = EtcdStore::open(url, EtcdOptions::default());
        Self(store.expect("the store answers"))
    }

    pub fn image(&self) -> Image {
        self.0.load().expect("the store answers")
    }

    /// The id of a stream.
    pub fn stream(&self, name: &str) -> Option<StreamId> {
        let image = self.image();
        let mut streams = image.streams.iter();
        streams.find(|stream| stream.name == name).map(|s| s.id)
    }
}

/// Nobody writes any more: what brokers hold is what is recorded, and what is trimmed or deleted is gone.
pub fn is_right(url: &str, bootstrap: &str, brokers: &[Directories]) {
    let recorded = Recorded::at(url);
    settled(|| recorded.image(), brokers);
    let keyed = recorded.stream(World::stream_name(KEYED));
    trim_one(&recorded, bootstrap, |record| Some(record.stream) == keyed);
    settled(|| recorded.image(), brokers);
    for stream in [KEYED, PINNED].map(World::stream_name) {
        let found = recorded.stream(stream);
        until(bootstrap, &["stream", "delete", stream, "--yes"], |_| {
            Some(())
        });
        assert!(found.is_some() && recorded.stream(stream).is_none());
    }
    settled(|| recorded.image(), brokers);
}

/// Trims one of the groups that are `wanted` away, where a lane has several.
pub fn trim_one(recorded: &Recorded, bootstrap: &str, wanted: impl Fn(&GroupRecord) -> bool) {
    let image = recorded.image();
    let Some(group) = first_group(&image, wanted) else {
        // A story may be over before a lane has a second group.
        return;
    };
    let mut streams = image.streams.iter();
    let stream = streams.find(|stream| stream.id == group.stream);
    let name = &stream.expect("a group has a stream").name;
    let numbers = [
        group.streamlet.to_string(),
        group.lane.to_string(),
        group.end_ordinal.to_string(),
    ];
    let [streamlet, lane, ordinal] = numbers.each_ref().map(String::as_str);
    let words = [
        "stream",
        "trim",
        name,
        "--streamlet",
        streamlet,
        "--lane",
        lane,
        "--ordinal",
        ordinal,
    ];
    // It stays until the lane's next one is closed at its owner, too, whose own file may come a moment after the record.
    until(bootstrap, &words, |_| {
        let image = recorded.image();
        let is_there = image.groups.iter().any(|one| one.key() == group.key());
        (!is_there).then_some(())
    });
}
