//! Builds an [`Image`] from stored values and finds what contradicts.

use std::collections::HashMap;
#[cfg(feature = "etcd")]
use std::collections::HashSet;
use std::path::Path;

use kera_protocol::ids::{LaneId, StreamId, StreamletId};

use crate::encode::{Record, decode_value};
use crate::error::MetadataError;
use kera_records::key::Key;
use kera_records::{Image, StreamRecord};

/// Collects values in any order of kinds; each kind in the order of its keys.
pub(crate) struct ImageBuilder<'a> {
    path: &'a Path,
    image: Image,
    names: HashMap<StreamId, String>,
    values: u64,
}

impl<'a> ImageBuilder<'a> {
    pub(crate) fn new(path: &'a Path) -> Self {
        Self {
            path,
            image: Image::default(),
            names: HashMap::new(),
            values: 0,
        }
    }

    pub(crate) fn push(&mut self, key_bytes: &[u8], value: &[u8]) -> Result<(), MetadataError> {
        self.values += 1;
        let Some(key) = Key::decode(key_bytes) else {
            return Err(corrupt(
                self.path,
                format!("it holds a key that is none: {key_bytes:?}"),
            ));
        };
        let record = decode_value(&key, key_bytes, value)
            .map_err(|detail| corrupt(self.path, format!("{key}: {detail}")))?;
        match record {
            Record::Broker(r) => self.image.brokers.push(r),
            Record::Counter(value) => {
                if let Key::Counter(counter) = key {
                    self.image.counters.push((counter, value));
                }
            }
            Record::Settings(r) => self.image.settings.push(r),
            Record::Rules(r) => self.image.rules = Some(r),
            Record::Users(r) => self.image.users = Some(r),
            Record::Quotas(r) => self.image.quotas = Some(r),
            Record::Pin(r) => self.image.pins.push(r),
            Record::Group(r) => self.image.groups.push(r),
            Record::LaneStart(r) => self.image.lane_starts.push(r),
            Record::StreamName(id) => {
                if let Key::StreamName(name) = key {
                    self.names.insert(id, name);
                }
            }
            Record::Stream(r) => self.image.streams.push(r),
            Record::Streamlet(r) => self.image.streamlets.push(r),
        }
        Ok(())
    }

    /// How many values were collected.
    pub(crate) fn values(&self) -> u64 {
        self.values
    }

    /// What was collected, unchecked.
    pub(crate) fn finish(self) -> Image {
        self.image
    }

    /// Leaves out what has no stream: a creation in parts leaves streamlets so until its end, and an import groups
    /// and log starts too.
    #[cfg(feature = "etcd")]
    pub(crate) fn forget_unfinished(&mut self) {
        let image = &mut self.image;
        let streams: HashSet<StreamId> = image.streams.iter().map(|s| s.id).collect();
        let is_whole = |id: StreamId| streams.contains(&id);
        image.streamlets.retain(|s| is_whole(s.stream));
        image.groups.retain(|g| is_whole(g.stream));
        image.lane_starts.retain(|l| is_whole(l.key.stream));
        image.pins.retain(|p| is_whole(p.stream));
    }

    /// What was collected, once it is known to fit together.
    pub(crate) fn finish_whole(self) -> Result<Image, MetadataError> {
        let Self {
            path, image, names, ..
        } = self;
        let streams: HashMap<StreamId, &StreamRecord> =
            image.streams.iter().map(|s| (s.id, s)).collect();
        let mut streamlets: HashMap<StreamId, u64> = HashMap::new();
        for stream in &image.streams {
            if names.get(&stream.id) != Some(&stream.name) {
                return Err(corrupt(
                    path,
                    format!("{} is not recorded under its name", Key::Stream(stream.id)),
                ));
            }
        }
        if names.len() != streams.len() {
            return Err(corrupt(path, "a stream name names no stream".into()));
        }
        let place = |key: Key, stream: StreamId, streamlet: StreamletId, lane: Option<LaneId>| {
            match streams.get(&stream) {
                Some(s)
                    if streamlet.0 < s.config.streamlets
                        && lane.is_none_or(|l| l.0 < s.config.lanes_of(streamlet)) =>
                {
                    Ok(())
                }
                _ => Err(corrupt(path, format!("{key} belongs to no stream"))),
            }
        };
        for s in &image.streamlets {
            place(Key::Streamlet(s.key()), s.stream, s.streamlet, None)?;
            *streamlets.entry(s.stream).or_default() += 1;
        }
        for stream in &image.streams {
            let found = streamlets.get(&stream.id).copied().unwrap_or(0);
            // None at all is a stream whose creation was split; its creator goes on.
            if found != 0 && found != u64::from(stream.config.streamlets) {
                return Err(corrupt(
                    path,
                    format!(
                        "{} has {} streamlets, of which {found} are recorded",
                        Key::Stream(stream.id),
                        stream.config.streamlets
                    ),
                ));
            }
        }
        for g in &image.groups {
            place(Key::Group(g.key()), g.stream, g.streamlet, Some(g.lane))?;
        }
        for l in &image.lane_starts {
            place(
                Key::LaneStart(l.key),
                l.key.stream,
                l.key.streamlet,
                Some(l.key.lane),
            )?;
        }
        for pin in &image.pins {
            place(Key::Pin(pin.key()), pin.stream, StreamletId(0), None)?;
        }
        Ok(image)
    }
}

pub(crate) fn corrupt(path: &Path, detail: String) -> MetadataError {
    MetadataError::Corrupt {
        path: path.to_path_buf(),
        detail,
    }
}
