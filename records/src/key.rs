//! The one ordered keyspace that every store keeps records in.
//!
//! A key is a letter for the kind, then the ids, big-endian so that bytes sort as numbers do:
//!
//! ```text
//! a                                           rules of access
//! b broker:u32                                broker
//! c counter:u8                                counter
//! d [broker:u32]                              settings of a broker, or of all
//! g stream:16 streamlet:u32 group:u64         group
//! l stream:16 streamlet:u32 lane:u32          log start of a lane
//! n name                                      id of the stream of that name
//! p stream:16 name                            pin
//! q                                           quotas
//! s stream:16                                 stream
//! t stream:16 streamlet:u32                   streamlet
//! u                                           users
//! ```

use kera_protocol::ids::{GroupId, LaneId, LaneKey, StreamId, StreamletId, StreamletKey};

use crate::pin::PinKey;
use crate::record::{Counter, GroupKey};

/// Names one record. Variants are in the order of their letters, so that keys sort as their bytes do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Who may do what.
    Rules,
    /// A broker.
    Broker(u32),
    /// A counter.
    Counter(Counter),
    /// Settings of a broker, or of all, that were changed at run time.
    Settings(Option<u32>),
    /// A group.
    Group(GroupKey),
    /// The log start of a lane.
    LaneStart(LaneKey),
    /// Which stream has a name.
    StreamName(String),
    /// A pin.
    Pin(PinKey),
    /// How much clients may do.
    Quotas,
    /// A stream.
    Stream(StreamId),
    /// A streamlet.
    Streamlet(StreamletKey),
    /// Users.
    Users,
}

/// Kind of the key of the rules of access. Stores keep it apart as well, see [`SETTINGS`].
pub const RULES: u8 = b'a';
/// Kind of a broker's key.
pub const BROKER: u8 = b'b';
/// Kind of a counter's key.
pub const COUNTER: u8 = b'c';
/// Kind of the key of settings. Builds that do not know it find no such key among the records: stores
/// keep these apart.
pub const SETTINGS: u8 = b'd';
/// Kind of a group's key.
pub const GROUP: u8 = b'g';
/// Kind of the key of a lane's log start.
pub const LANE_START: u8 = b'l';
/// Kind of the key of a stream's name.
pub const STREAM_NAME: u8 = b'n';
/// Kind of a pin's key. Stores keep it apart as well, see [`SETTINGS`].
pub const PIN: u8 = b'p';
/// Kind of the key of quotas. Stores keep it apart as well, see [`SETTINGS`].
pub const QUOTAS: u8 = b'q';
/// Kind of a stream's key.
pub const STREAM: u8 = b's';
/// Kind of the key of users. Stores keep it apart as well, see [`SETTINGS`].
pub const USERS: u8 = b'u';
/// Kind of a streamlet's key.
pub const STREAMLET: u8 = b't';
/// Kinds of which a stream has any number, beside the stream itself and its name.
pub const OF_STREAMS: [u8; 4] = [STREAMLET, GROUP, LANE_START, PIN];

impl Key {
    /// The streamlet that the record is about, or one of its groups or lanes.
    pub fn streamlet_of(&self) -> Option<StreamletKey> {
        match self {
            Key::Streamlet(streamlet) => Some(*streamlet),
            Key::Group(group) => Some(group.streamlet_key()),
            Key::LaneStart(lane) => Some(lane.streamlet_key()),
            _ => None,
        }
    }

    /// The key's bytes in the keyspace.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Key::Rules => join(RULES, &[]),
            Key::Users => join(USERS, &[]),
            Key::Quotas => join(QUOTAS, &[]),
            Key::Broker(id) => join(BROKER, &[&id.to_be_bytes()]),
            Key::Counter(Counter::ProducerIds) => join(COUNTER, &[&[1]]),
            Key::Counter(Counter::EpochFloor) => join(COUNTER, &[&[2]]),
            Key::Settings(None) => join(SETTINGS, &[]),
            Key::Settings(Some(id)) => join(SETTINGS, &[&id.to_be_bytes()]),
            Key::Group(key) => join(
                GROUP,
                &[
                    key.stream.as_bytes(),
                    &key.streamlet.0.to_be_bytes(),
                    &key.group.0.to_be_bytes(),
                ],
            ),
            Key::LaneStart(key) => join(
                LANE_START,
                &[
                    key.stream.as_bytes(),
                    &key.streamlet.0.to_be_bytes(),
                    &key.lane.0.to_be_bytes(),
                ],
            ),
            Key::StreamName(name) => join(STREAM_NAME, &[name.as_bytes()]),
            Key::Pin(key) => join(PIN, &[key.stream.as_bytes(), key.name.as_bytes()]),
            Key::Stream(id) => join(STREAM, &[id.as_bytes()]),
            Key::Streamlet(key) => join(
                STREAMLET,
                &[key.stream.as_bytes(), &key.streamlet.0.to_be_bytes()],
            ),
        }
    }

    /// The key of its bytes; `None` when they are no key.
    pub fn decode(bytes: &[u8]) -> Option<Key> {
        let (&kind, mut rest) = bytes.split_first()?;
        let rest = &mut rest;
        let key = match kind {
            RULES => Key::Rules,
            USERS => Key::Users,
            QUOTAS => Key::Quotas,
            BROKER => Key::Broker(u32::from_be_bytes(take(rest)?)),
            COUNTER => match take::<1>(rest)? {
                [1] => Key::Counter(Counter::ProducerIds),
                [2] => Key::Counter(Counter::EpochFloor),
                _ => return None,
            },
            SETTINGS if rest.is_empty() => Key::Settings(None),
            SETTINGS => Key::Settings(Some(u32::from_be_bytes(take(rest)?))),
            GROUP => Key::Group(GroupKey {
                stream: stream(rest)?,
                streamlet: StreamletId(u32::from_be_bytes(take(rest)?)),
                group: GroupId(u64::from_be_bytes(take(rest)?)),
            }),
            LANE_START => Key::LaneStart(LaneKey {
                stream: stream(rest)?,
                streamlet: StreamletId(u32::from_be_bytes(take(rest)?)),
                lane: LaneId(u32::from_be_bytes(take(rest)?)),
            }),
            STREAM_NAME => {
                let name = std::str::from_utf8(rest).ok()?.to_owned();
                *rest = &[];
                Key::StreamName(name)
            }
            PIN => {
                let stream = stream(rest)?;
                let name = std::str::from_utf8(rest).ok()?.to_owned();
                *rest = &[];
                Key::Pin(PinKey { stream, name })
            }
            STREAM => Key::Stream(stream(rest)?),
            STREAMLET => Key::Streamlet(StreamletKey {
                stream: stream(rest)?,
                streamlet: StreamletId(u32::from_be_bytes(take(rest)?)),
            }),
            _ => return None,
        };
        rest.is_empty().then_some(key)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Rules => f.write_str("rules of access"),
            Key::Users => f.write_str("users"),
            Key::Quotas => f.write_str("quotas"),
            Key::Broker(id) => write!(f, "broker {id}"),
            Key::Counter(counter) => write!(f, "counter {counter:?}"),
            Key::Settings(None) => write!(f, "settings of all brokers"),
            Key::Settings(Some(id)) => write!(f, "settings of broker {id}"),
            Key::Group(key) => write!(f, "group {key}"),
            Key::LaneStart(key) => write!(f, "log start of lane {key}"),
            Key::StreamName(name) => write!(f, "stream name {name:?}"),
            Key::Pin(key) => write!(f, "pin {:?} of stream {}", key.name, key.stream),
            Key::Stream(id) => write!(f, "stream {id}"),
            Key::Streamlet(key) => write!(f, "streamlet {key}"),
        }
    }
}

/// What all keys of `kind` begin with, or those that belong to a stream.
pub fn kind_prefix(kind: u8, stream: Option<StreamId>) -> Vec<u8> {
    stream.map_or_else(|| vec![kind], |stream| stream_prefix(kind, stream))
}

/// What all keys of `kind` begin with that belong to a stream.
pub fn stream_prefix(kind: u8, stream: StreamId) -> Vec<u8> {
    join(kind, &[stream.as_bytes()])
}

/// What all keys of `kind` begin with that belong to a streamlet.
pub fn streamlet_prefix(kind: u8, stream: StreamId, streamlet: StreamletId) -> Vec<u8> {
    join(kind, &[stream.as_bytes(), &streamlet.0.to_be_bytes()])
}

/// The least key of a pin after this one, or of all.
pub fn pin_after(after: Option<&PinKey>) -> Vec<u8> {
    after.map_or_else(
        || vec![PIN],
        |after| {
            let mut key = Key::Pin(after.clone()).encode();
            key.push(0);
            key
        },
    )
}

/// The least key above all that begin with `prefix`; `None` when there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

fn join(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + parts.iter().map(|p| p.len()).sum::<usize>());
    out.push(kind);
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

fn stream(rest: &mut &[u8]) -> Option<StreamId> {
    StreamId::from_slice(&take::<16>(rest)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> impl Strategy<Value = Key> {
        let stream = any::<u128>().prop_map(|n| StreamId(uuid::Uuid::from_u128(n)));
        prop_oneof![
            Just(Key::Rules),
            Just(Key::Users),
            Just(Key::Quotas),
            any::<u32>().prop_map(Key::Broker),
            Just(Key::Counter(Counter::ProducerIds)),
            Just(Key::Counter(Counter::EpochFloor)),
            any::<Option<u32>>().prop_map(Key::Settings),
            (stream.clone(), any::<u32>(), any::<u64>()).prop_map(|(stream, t, g)| {
                Key::Group(GroupKey {
                    stream,
                    streamlet: StreamletId(t),
                    group: GroupId(g),
                })
            }),
            (stream.clone(), any::<u32>(), any::<u32>()).prop_map(|(stream, t, l)| {
                Key::LaneStart(LaneKey {
                    stream,
                    streamlet: StreamletId(t),
                    lane: LaneId(l),
                })
            }),
            "[a-z.]{0,20}".prop_map(Key::StreamName),
            (stream.clone(), "[a-z.]{0,20}")
                .prop_map(|(stream, name)| Key::Pin(PinKey { stream, name })),
            stream.clone().prop_map(Key::Stream),
            (stream, any::<u32>()).prop_map(|(stream, number)| {
                let streamlet = StreamletId(number);
                Key::Streamlet(StreamletKey { stream, streamlet })
            }),
        ]
    }

    proptest! {
        #[test]
        fn bytes_round_trip_and_sort_as_keys_do(a in keys(), b in keys()) {
            prop_assert_eq!(Key::decode(&a.encode()), Some(a.clone()));
            prop_assert_eq!(a.encode().cmp(&b.encode()), a.cmp(&b));
        }

        #[test]
        fn any_bytes_are_a_key_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(key) = Key::decode(&bytes) {
                prop_assert_eq!(key.encode(), bytes);
            }
        }
    }

    #[test]
    fn prefix_ends() {
        assert_eq!(prefix_end(b"a"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(&[1, 0xff, 0xff]), Some(vec![2]));
        assert_eq!(prefix_end(&[0xff]), None);
    }
}
